//! The linker's API: it takes PTX and returns an image that modules are loaded from.
//!
//! The image is the PTX itself in an ELF file, not machine code. So a program takes the same path from text to kept
//! image to module as on a GPU, including the checks of the image's headers.
//!
//! ```text
//! bytes    what (numbers are little-endian)
//! 0..64    the ELF header of a 64-bit file for CUDA, `SILUMIN` in the padding of its identification
//! 64..120  its only program header: a segment of all bytes after it
//! 120..128 FNV-1a of all bytes after these
//! 128..132 the CUDA version of the driver that made it, 1000 major + 10 minor
//! 132..148 the chip, filled up with zero bytes
//! 148..    the PTX, then a zero byte
//! ```

use crate::module::{Log, load, write_log};
use crate::put;
use crate::state::{Code, code, state};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::{ptr, slice};

/// Class, byte order, version, ABI and ABI version as cubins have them; the rest is padding (System V ABI, "ELF
/// Identification").
const MAGIC: &[u8; 16] = b"\x7fELF\x02\x01\x01\x33\x07SILUMIN";
/// Bytes of the ELF header and of the program header.
const HEADERS: usize = 64 + 56;
/// Bytes before the PTX.
const HEAD: usize = HEADERS + 28;
/// `EM_CUDA`.
const MACHINE: u16 = 190;
/// `CU_JIT_INPUT_PTX`.
const INPUT_PTX: c_uint = 1;

/// State behind a `CUlinkState`.
pub(crate) struct Link {
    /// The caller's options, which it keeps until the linker is destroyed: how many, their addresses.
    options: (usize, usize, usize),
    text: Option<String>,
    /// The image, which is the caller's to read until the linker is destroyed.
    image: Vec<u8>,
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The headers of an ELF file with one segment of `segment` bytes.
fn headers(segment: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    // e_type (executable), e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags.
    bytes.extend(2u16.to_le_bytes());
    bytes.extend(MACHINE.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    [0u64, 64, 0].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    bytes.extend(0u32.to_le_bytes());
    // e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx.
    [64u16, 56, 1, 64, 0, 0].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    // p_type (load), p_flags (read); p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align.
    [1u32, 4].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    let fields = [HEADERS as u64, 0, 0, segment, segment, 1];
    fields.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    bytes
}

/// The image of a text for this chip.
fn image(text: &str) -> Vec<u8> {
    let mut target = [0; 16];
    for (place, byte) in target.iter_mut().zip(state().chip.target().bytes()) {
        *place = byte;
    }
    let mut body = state().cuda.to_le_bytes().to_vec();
    body.extend(target);
    body.extend(text.as_bytes());
    body.push(0);
    let mut image = headers((8 + body.len()) as u64);
    image.extend(fnv(&body).to_le_bytes());
    image.extend(body);
    image
}

/// The PTX in the image at an address; `None` if there is no image.
///
/// # Safety
/// At `image` is an image as long as it says, or a text that ends in a zero byte.
pub(crate) unsafe fn text_of(image: *const u8) -> Option<Result<String, Code>> {
    for (place, byte) in MAGIC.iter().enumerate() {
        // SAFETY: a text that has been equal so far has not ended yet, for there is no zero byte in the magic.
        if unsafe { image.add(place).read() } != *byte {
            return None;
        }
    }
    let number = |place: usize| {
        let mut bytes = [0; 8];
        // SAFETY: an image has more bytes than its head.
        unsafe { ptr::copy_nonoverlapping(image.add(place), bytes.as_mut_ptr(), 8) };
        u64::from_le_bytes(bytes)
    };
    // p_filesz, and the sum behind the headers.
    let (Ok(bytes), sum) = (usize::try_from(number(96)), number(HEADERS)) else {
        return Some(Err(Code::InvalidImage));
    };
    if bytes <= HEAD - HEADERS || bytes > isize::MAX as usize - HEADERS {
        return Some(Err(Code::InvalidImage));
    }
    // SAFETY: the caller vouches for the length that the image says.
    let body = unsafe { slice::from_raw_parts(image.add(HEADERS + 8), bytes - 8) };
    if fnv(body) != sum {
        return Some(Err(Code::InvalidImage));
    }
    let (head, text) = body.split_at(20);
    let cuda = head.first_chunk().map_or(0, |bytes| c_int::from_le_bytes(*bytes));
    if cuda / 1000 > state().cuda / 1000 {
        return Some(Err(Code::InvalidImage));
    }
    let target = head[4..].split(|byte| *byte == 0).next().unwrap_or_default();
    if target != state().chip.target().as_bytes() {
        return Some(Err(Code::NoBinaryForGpu));
    }
    let text = text.strip_suffix(&[0]).and_then(|text| String::from_utf8(text.to_vec()).ok());
    Some(text.ok_or(Code::InvalidImage))
}

/// Creates a linker. Its options and log buffers must live as long as it does.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLinkCreate_v2(
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
    link: *mut *mut c_void,
) -> c_int {
    let number = state().number();
    let options = (count as usize, options.expose_provenance(), values.expose_provenance());
    state().contents().links.insert(number, Link { options, text: None, image: Vec::new() });
    // SAFETY: the caller's place.
    code(unsafe { put(link, ptr::without_provenance_mut(number)) })
}

/// Adds and compiles PTX; it accepts no other input, and only one.
///
/// # Safety
/// As in the driver's API: `bytes` bytes lie at `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLinkAddData_v2(
    link: *mut c_void,
    kind: c_uint,
    data: *mut c_void,
    bytes: usize,
    _name: *const c_char,
    _count: c_uint,
    _options: *mut c_uint,
    _values: *mut *mut c_void,
) -> c_int {
    if data.is_null() || kind != INPUT_PTX {
        return code(if data.is_null() { Code::InvalidValue } else { Code::NotSupported });
    }
    // SAFETY: the caller has so many bytes there.
    let data = unsafe { slice::from_raw_parts(data.cast::<u8>(), bytes) };
    let text = data.split(|byte| *byte == 0).next().unwrap_or_default();
    let Ok(text) = str::from_utf8(text) else { return code(Code::InvalidPtx) };
    let outcome = load(text);
    let mut contents = state().contents();
    let Some(found) = contents.links.get_mut(&link.addr()) else { return code(Code::InvalidHandle) };
    let (count, options, values) = found.options;
    match outcome {
        Ok(_) if found.text.is_some() => code(Code::NotSupported),
        Ok(_) => {
            found.text = Some(text.to_owned());
            code(Code::Success)
        }
        Err((error, log)) => {
            let (options, values) =
                (ptr::with_exposed_provenance_mut(options), ptr::with_exposed_provenance_mut(values));
            // SAFETY: the caller's options, which it keeps.
            unsafe { write_log(Log::Error, &log, count, options, values) };
            code(error)
        }
    }
}

/// Returns the image of the added PTX.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLinkComplete(
    link: *mut c_void,
    cubin: *mut *mut c_void,
    bytes: *mut usize,
) -> c_int {
    let mut contents = state().contents();
    let Some(found) = contents.links.get_mut(&link.addr()) else { return code(Code::InvalidHandle) };
    let Some(text) = &found.text else { return code(Code::InvalidValue) };
    found.image = image(text);
    let mut log = format!("emulated driver: {} bytes of PTX for {}", text.len(), state().chip.target());
    if text.contains("setmaxnreg.") {
        // The driver's linker does so, for what it compiles is relocatable.
        log.push_str("\n(C7504) Potential Performance Loss: 'setmaxnreg' ignored");
    }
    let (count, options, values) = found.options;
    let (options, values) =
        (ptr::with_exposed_provenance_mut(options), ptr::with_exposed_provenance_mut(values));
    // SAFETY: the caller's options, which it keeps.
    unsafe { write_log(Log::Info, &log, count, options, values) };
    if !bytes.is_null() {
        // SAFETY: the caller's place.
        unsafe { bytes.write(found.image.len()) };
    }
    // SAFETY: the caller's place.
    code(unsafe { put(cubin, found.image.as_mut_ptr().cast()) })
}

/// Destroys a linker and its image.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLinkDestroy(link: *mut c_void) -> c_int {
    let known = state().contents().links.remove(&link.addr()).is_some();
    code(if known { Code::Success } else { Code::InvalidHandle })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    const TEXT: &str = ".version 8.6\n.target sm_100a\n.address_size 64\n.visible .entry k() { ret; }\n";

    fn link(text: &str) -> (Result<Vec<u8>, c_int>, String, String) {
        let (mut info, mut error) = ([0u8; 256], [0u8; 256]);
        let mut options = [3, 4, 5, 6];
        let room = ptr::without_provenance_mut(256);
        let mut values = [info.as_mut_ptr().cast(), room, error.as_mut_ptr().cast(), room];
        let (mut state, mut image, mut bytes) = (ptr::null_mut(), ptr::null_mut(), 0usize);
        let text = CString::new(text).unwrap();
        // SAFETY: options, text and results live until the end of the block.
        let result = unsafe {
            assert_eq!(cuLinkCreate_v2(4, options.as_mut_ptr(), values.as_mut_ptr(), &mut state), 0);
            let data = text.as_ptr().cast_mut().cast();
            let size = text.as_bytes_with_nul().len();
            let added =
                cuLinkAddData_v2(state, 1, data, size, ptr::null(), 0, ptr::null_mut(), ptr::null_mut());
            let completed = cuLinkComplete(state, &mut image, &mut bytes);
            let result = match (added, completed) {
                (0, 0) => Ok(slice::from_raw_parts(image.cast::<u8>(), bytes).to_vec()),
                (0, error) | (error, _) => Err(error),
            };
            assert_eq!(cuLinkDestroy(state), 0);
            assert_eq!(cuLinkDestroy(state), Code::InvalidHandle as c_int);
            result
        };
        let [info, error] = [info, error]
            .map(|log| String::from_utf8(log.split(|b| *b == 0).next().unwrap().to_vec()).unwrap());
        (result, info, error)
    }

    #[test]
    fn an_image_holds_its_text() {
        let (image, info, error) = link(TEXT);
        let image = image.unwrap();
        assert!(info.contains("bytes of PTX for sm_100a") && error.is_empty(), "{info} {error}");
        // SAFETY: an image of the right length, then texts.
        unsafe {
            assert_eq!(text_of(image.as_ptr()), Some(Ok(TEXT.to_owned())));
            assert_eq!(text_of(c"".as_ptr().cast()), None);
            assert_eq!(text_of(c"\x7fSILU".as_ptr().cast()), None);
        }
        // The sum covers what is behind the ELF headers.
        for place in (HEADERS..image.len()).step_by(7) {
            let mut changed = image.clone();
            changed[place] ^= 1;
            // SAFETY: the length is as it was.
            assert!(unsafe { text_of(changed.as_ptr()) }.unwrap().is_err(), "byte {place}");
        }
    }

    #[test]
    fn what_does_not_compile_gives_no_image() {
        let (result, _, error) = link(&TEXT.replace("ret", "rat"));
        assert_eq!(result, Err(Code::InvalidPtx as c_int));
        assert!(error.contains("line 4"), "{error}");
        assert_eq!(link(&TEXT.replace("sm_100a", "sm_90a")).0, Err(Code::NoBinaryForGpu as c_int));
        assert_eq!(link(&TEXT.replace("8.6", "9.9")).0, Err(Code::UnsupportedPtxVersion as c_int));
    }
}
