//! Kernels that prepare operands: their text as reviewed, the assembler, and mistakes put into them.
//!
//! `SILUMIN_BLESS=1 cargo test --test all prepare::` rewrites `tests/prepared`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use silumin::Arch;
use silumin::codegen::prepare::{Preparation, Source};
use silumin::verify::toolchain::Ptxas;
use silumin_emulator::mutate::{BAR, Earlier, Equivalents, Subject, SurveyOptions, text};
use silumin_emulator::{LaunchFile, Options};

fn golden(preparation: Preparation, arch: Arch) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prepared");
    folder.join(format!("{preparation}.{arch}.ptx"))
}

#[test]
fn kernels_are_as_reviewed() {
    let bless = std::env::var_os("SILUMIN_BLESS").is_some();
    for preparation in Preparation::ALL {
        for arch in [Arch::Sm90a, Arch::Sm100a] {
            let (path, kernel) = (golden(preparation, arch), preparation.kernel(arch).unwrap());
            if bless {
                fs::write(&path, &kernel.ptx).unwrap();
            }
            let reviewed = fs::read_to_string(&path).ok();
            assert!(
                reviewed.as_deref() == Some(&kernel.ptx),
                "{} differs from what was reviewed: look at the change, then run SILUMIN_BLESS=1 cargo test --test all prepare::",
                path.display()
            );
        }
    }
}

#[test]
fn the_assembler_takes_them_for_every_chip() {
    let ptxas = Ptxas::find().unwrap();
    for preparation in Preparation::ALL {
        for arch in Arch::ALL {
            let kernel = preparation.kernel(arch).unwrap();
            assert_eq!(silumin_testkit::unclean(&ptxas, &kernel), None, "{preparation} for {arch}");
        }
    }
}

/// A launch file of 37 rows of 6 blocks of 16, or of 5 scale factors: pads of either kind.
fn launch_file(folder: &Path, preparation: Preparation, arch: Arch, tiny: bool) -> PathBuf {
    let (rows, columns) = (37u32, if preparation == Preparation::Block { 5 } else { 6 });
    let kernel = preparation.kernel(arch).unwrap();
    let ctas = preparation.ctas(rows, columns).unwrap();
    fs::write(folder.join("kernel.ptx"), &kernel.ptx).unwrap();
    let inputs: Vec<u8> = match preparation {
        // bf16 of all sizes from 2^-10 to 2^6, or subnormal, one of them infinite and one NaN.
        Preparation::Quantize(_) | Preparation::QuantizeE4m3(_) => (0..rows * columns * 16)
            .flat_map(|i| {
                let hash = i.wrapping_mul(2_654_435_761);
                let magnitude = if tiny { (hash >> 25) as u16 } else { 0x3A80 + (hash >> 21) as u16 };
                let code = magnitude | (hash as u16 & 0x200) << 6;
                match i {
                    1000 => 0x7F80,
                    2000 => 0x7FC0,
                    _ => code,
                }
                .to_le_bytes()
            })
            .collect(),
        Preparation::Block => (0..rows * columns).map(|i| (i % 251 + 1) as u8).collect(),
    };
    fs::write(folder.join("input.bin"), inputs).unwrap();
    let mut file = format!(
        "ptx = \"kernel.ptx\"\nkernel = \"{preparation}\"\ngrid = [{ctas}, 1, 1]\nblock = [256, 1, 1]\n\n[buffers.input]\nfile = \"input.bin\"\n"
    );
    let mut buffer =
        |name: &str, bytes: u32| write!(file, "[buffers.{name}]\nbytes = {bytes}\nfill = 0xA5\n").unwrap();
    match preparation {
        Preparation::Quantize(_) => buffer("codes", rows * columns * 8),
        Preparation::QuantizeE4m3(_) => buffer("codes", rows * columns * 16),
        Preparation::Block => {}
    }
    if !matches!(preparation, Preparation::QuantizeE4m3(_)) {
        buffer("scales", 128 * 8);
    }
    let params = match preparation {
        Preparation::Quantize(_) => {
            ["pointer = \"input\"", "pointer = \"codes\"", "pointer = \"scales\""].as_slice()
        }
        Preparation::QuantizeE4m3(_) => &["pointer = \"input\"", "pointer = \"codes\""],
        Preparation::Block => &["pointer = \"input\"", "pointer = \"scales\""],
    };
    let sizes = match preparation {
        Preparation::QuantizeE4m3(_) => vec![format!("u32 = {}", rows * columns)],
        _ => vec![format!("u32 = {rows}"), format!("u32 = {columns}")],
    };
    let params = params.iter().map(|param| (*param).to_owned()).chain(sizes);
    for param in params.chain(
        (preparation != Preparation::Block)
            .then(|| format!("f32 = {}", if tiny { "2.3e-41" } else { "0.125" })),
    ) {
        write!(file, "[[params]]\n{param}\n").unwrap();
    }
    let path = folder.join("launch.toml");
    fs::write(&path, file).unwrap();
    path
}

/// What a launch leaves in its buffers, or what is wrong with it.
fn run(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let file = LaunchFile::read(path).map_err(|error| error.to_string())?;
    let (memory, buffers) = file.allocate();
    let report = file.module.run(&file.kernel, &file.launch, &memory, &Options::default());
    let report = report.map_err(|error| error.to_string())?;
    match report.findings.first() {
        Some(finding) => Err(finding.to_string()),
        None => Ok(buffers.iter().map(|buffer| memory.read(buffer)).collect()),
    }
}

/// Mistakes that are in none of the emulator's classes: numbers, comparisons, roundings.
const QUANTIZE: [(&str, &str); 15] = [
    ("-4;", "-1;"),
    ("setp.lt.u32 %inside, %row", "setp.le.u32 %inside, %row"),
    ("%column, %blocks, %inside", "%column, %columns, %inside"),
    ("mul.wide.u32 %offset, %index, 32", "mul.wide.u32 %offset, %index, 16"),
    ("0xffff0000", "0xffffffff"),
    ("max.NaN.f32", "max.f32"),
    ("abs.f32 %amax, %v0", "mov.f32 %amax, %v0"),
    ("0f40C00000;                       // 6", "0f40E00000;  // 7"),
    ("selp.b16 %code, %code, 0x7f, %finite", "selp.b16 %code, %code, 0x7e, %finite"),
    ("selp.b32 %codes1, %codes1, 0, %some", "mov.b32 %codes1, %codes1"),
    ("and.b32 %part, %row, 31", "and.b32 %part, %row, 15"),
    ("shl.b32 %bits, %bits, 8", "shl.b32 %bits, %bits, 4"),
    ("%word, 2, 0x1f", "%word, 1, 0x1f"),
    ("shr.u32 %part, %row, 5", "shr.u32 %part, %row, 6"),
    ("neg.f32 %negative, %step", "mov.f32 %negative, %step"),
];

const ON_HOPPER: [(&str, &str); 5] = [
    ("0x0b000000", "0x0a800000"),
    ("max.u32 %binade", "min.u32 %binade"),
    ("0x3f800000", "0x40000000"),
    ("sub.u32 %rounded, %rounded, 254", "sub.u32 %rounded, %rounded, 253"),
    ("shr.u32 %sign, %sign, 28", "shr.u32 %sign, %sign, 29"),
];

const E4M3: [(&str, &str); 6] = [
    ("setp.ge.u32 %outside", "setp.gt.u32 %outside"),
    ("mul.wide.u32 %offset, %item, 32", "mul.wide.u32 %offset, %item, 16"),
    ("0xffff0000", "0xffffffff"),
    ("0f7FFFFFFF, %finite", "0f00000000, %finite"),
    ("%v1, %v0;", "%v0, %v1;"),
    ("div.rn.f32 %v5, %v5, %tensor_scale", "mul.rn.f32 %v5, %v5, %tensor_scale"),
];

const BLOCK: [(&str, &str); 6] = [
    ("shl.b32 %items, %items, 7", "shl.b32 %items, %items, 6"),
    ("shr.u32 %atom, %item, 7", "shr.u32 %atom, %item, 6"),
    ("mad.lo.u32 %row, %part, 32", "mad.lo.u32 %row, %part, 16"),
    ("setp.lt.u32 %inside", "setp.le.u32 %inside"),
    ("setp.lt.u32 %single", "setp.le.u32 %single"),
    ("setp.eq.u32 %whole, %part, 0", "setp.ne.u32 %whole, %part, 0"),
];

#[test]
fn mistakes_in_them_are_caught() {
    let equivalents = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mutants.toml");
    let equivalents = Equivalents::parse(&fs::read_to_string(equivalents).unwrap()).unwrap();
    let plan = SurveyOptions { seeds: 1, equivalents, ..SurveyOptions::default() };
    let quantize = Preparation::Quantize(Source::Bf16);
    let mut missed = Vec::new();
    for (preparation, arch, own) in [
        (quantize, Arch::Sm90a, [&QUANTIZE[..], &ON_HOPPER].concat()),
        (quantize, Arch::Sm100a, QUANTIZE.to_vec()),
        (Preparation::QuantizeE4m3(Source::Bf16), Arch::Sm90a, E4M3.to_vec()),
        (Preparation::Block, Arch::Sm100a, BLOCK.to_vec()),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let launch = launch_file(folder.path(), preparation, arch, false);
        let subject = Subject::read(&launch).unwrap();
        // Steps so small that f32 has no reciprocal of them.
        let other = tempfile::tempdir().unwrap();
        let tiny = Subject::read(&launch_file(other.path(), preparation, arch, true)).unwrap();
        let survey = subject.survey_with(&plan, &[tiny], &Earlier::default()).unwrap();
        assert!(survey.outcomes.len() >= 5, "{preparation}: {} mutants", survey.outcomes.len());
        assert!(survey.share() >= BAR, "{}", text(&survey));
        // Without synchronisation there are few classes of the emulator's; so here are mistakes by hand.
        let right = run(&launch).unwrap();
        let ptx = preparation.kernel(arch).unwrap().ptx;
        for (from, to) in own {
            let mistaken = ptx.replace(from, to);
            assert_ne!(mistaken, ptx, "{preparation}: there is no `{from}`");
            fs::write(folder.path().join("kernel.ptx"), mistaken).unwrap();
            if run(&launch).as_ref() == Ok(&right) {
                missed.push(format!("{preparation} for {arch}: `{to}` for `{from}`"));
            }
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}
