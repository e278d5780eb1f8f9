//! Checks of machine code before the driver gets it.
//!
//! The driver's loader takes an address and no length (CUDA driver API, `cuModuleLoadDataEx`). How far it reads
//! follows from the image's headers or, for text, from its zero byte. An image from a file may hold any bytes, so
//! both are checked first.

use object::LittleEndian;
use object::elf::{EM_CUDA, FileHeader64, SHT_SYMTAB};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};

use crate::cache::MOST_BYTES;

/// Checks that an image is a 64-bit ELF file for CUDA of plausible length whose headers, segments, sections and names
/// lie within its bytes. The code itself is not checked.
///
/// # Errors
/// What lies outside, in words.
pub(super) fn check(image: &[u8]) -> Result<(), String> {
    if image.len() as u64 > MOST_BYTES {
        return Err(format!("it has {} bytes, and at most {MOST_BYTES} are taken", image.len()));
    }
    let in_words = |what: &'static str| move |error: object::Error| format!("{what}: {error}");
    let header = FileHeader64::<LittleEndian>::parse(image).map_err(in_words("its ELF header"))?;
    let endian = header.endian().map_err(in_words("its ELF header"))?;
    let machine = header.e_machine(endian);
    if machine != EM_CUDA {
        return Err(format!("it is an ELF file for machine {machine}, not for CUDA ({EM_CUDA})"));
    }
    let outside =
        |what: &str, index: usize| format!("{what} {index} does not lie within its {} bytes", image.len());
    let segments = header.program_headers(endian, image).map_err(in_words("its program headers"))?;
    for (index, segment) in segments.iter().enumerate() {
        segment.data(endian, image).map_err(|()| outside("segment", index))?;
    }
    let sections = header.sections(endian, image).map_err(in_words("its section headers"))?;
    for (index, section) in sections.iter().enumerate() {
        section.data(endian, image).map_err(|_| outside("section", index))?;
        sections.section_name(endian, section).map_err(|_| outside("the name of section", index))?;
    }
    let symbols = sections.symbols(endian, image, SHT_SYMTAB).map_err(in_words("its symbols"))?;
    for (index, symbol) in symbols.iter().enumerate() {
        symbol.name(endian, symbols.strings()).map_err(|_| outside("the name of symbol", index))?;
    }
    match (segments.len(), sections.len()) {
        (0, 0) => Err("it has neither segments nor sections".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use silumin_codegen::arch::Arch;
    use silumin_verify::toolchain::Ptxas;
    use std::sync::OnceLock;

    const TEXT: &str = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 k_0)\n{\n  .reg \
                        .b64 %rd<2>;\n  ld.param.b64 %rd1, [k_0];\n  st.global.b64 [%rd1], %rd1;\n  ret;\n}\n";

    fn cubin() -> &'static [u8] {
        static CUBIN: OnceLock<Vec<u8>> = OnceLock::new();
        CUBIN.get_or_init(|| Ptxas::find().unwrap().assemble(TEXT, Arch::Sm90a).unwrap().cubin)
    }

    #[test]
    fn what_the_assembler_makes_is_taken_and_no_beginning_of_it_is() {
        let cubin = cubin();
        check(cubin).unwrap();
        // The last bytes are of a table: any cut is found, also one that leaves all headers.
        for length in 0..cubin.len() {
            assert!(check(&cubin[..length]).is_err(), "{length} of {} bytes", cubin.len());
        }
    }

    #[test]
    fn other_files_are_refused() {
        for image in [&b""[..], b"\x7fELF", TEXT.as_bytes(), &[0; 4096], b".version 8.0"] {
            assert!(check(image).is_err());
        }
        let mut other_machine = cubin().to_vec();
        other_machine[18] = 62;
        assert!(check(&other_machine).unwrap_err().contains("machine 62"));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(check(&own).is_err());
    }

    #[test]
    fn what_is_longer_than_any_entry_is_refused() {
        let mut image = cubin().to_vec();
        image.resize(MOST_BYTES as usize, 0);
        check(&image).unwrap();
        image.push(0);
        let error = check(&image).unwrap_err();
        assert!(error.contains("67108865 bytes") && error.contains("67108864"), "{error}");
    }

    /// Puts a number into a field of the ELF header (System V ABI, "ELF Header").
    fn with(offset: usize, bytes: &[u8]) -> Vec<u8> {
        let mut image = cubin().to_vec();
        image[offset..offset + bytes.len()].copy_from_slice(bytes);
        image
    }

    #[test]
    fn headers_that_point_outside_are_found() {
        let end = cubin().len() as u64;
        // e_phoff, e_shoff at 32 and 40; e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx from 54 on.
        for (offset, value) in [(32, end), (32, u64::MAX - 8), (40, end - 8), (40, u64::MAX)] {
            assert!(check(&with(offset, &value.to_le_bytes())).is_err(), "{offset}: {value}");
        }
        for (offset, value) in [(54, 1u16), (56, 0x7fff), (58, 8), (60, 0x7fff), (62, 0x7fff)] {
            assert!(check(&with(offset, &value.to_le_bytes())).is_err(), "{offset}: {value}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        /// Any bytes, and a cubin with any bytes changed: an answer, and no panic. What is taken lies within its bytes.
        #[test]
        fn any_bytes_get_an_answer(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            head in any::<bool>(),
        ) {
            prop_assert!(check(&bytes).is_err());
            let mut image = cubin().to_vec();
            for (place, byte) in changes {
                let among = if head { 64 } else { image.len() };
                image[place.index(among)] = byte;
            }
            let _ = check(&image);
        }
    }
}
