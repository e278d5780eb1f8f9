//! Kernels that prepare operands: their text as reviewed, the assembler, and mistakes put into them.
//!
//! `SILUMIN_BLESS=1 cargo test --test all prepare::` rewrites `tests/prepared`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use silumin::Arch;
use silumin::codegen::prepare::{Preparation, Source};
use silumin::codegen::problem::OperandFormat;
use silumin::formats::layout::from_blocked;
use silumin::formats::quantize::{MxRule, TensorScale, quantize, quantize_to, quantize_with};
use silumin::verify::toolchain::Ptxas;
use silumin_emulator::mutate::{BAR, Earlier, Equivalents, Subject, SurveyOptions, text};
use silumin_emulator::{LaunchFile, Options};
use silumin_testkit::sample;

fn golden(preparation: Preparation, arch: Arch) -> PathBuf {
    let folder = silumin_testkit::root().join("tests/prepared");
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
    let cases =
        Preparation::ALL.into_iter().flat_map(|preparation| Arch::ALL.map(|arch| (preparation, arch)));
    // Prime to the number of chips, so that a part has all of them.
    for (_, (preparation, arch)) in sample::of(cases.collect(), 5) {
        let kernel = preparation.kernel(arch).unwrap();
        let again = sample::again();
        assert_eq!(silumin_testkit::unclean(&ptxas, &kernel), None, "{preparation} for {arch}; {again}");
    }
}

/// What a launch takes: buffers with their contents, or with so many bytes that it writes; numbers behind the addresses; CTAs.
struct Case {
    inputs: Vec<(&'static str, Vec<u8>)>,
    outputs: Vec<(&'static str, u32)>,
    numbers: Vec<String>,
    ctas: u32,
}

/// bf16 of all sizes from 2^-10 to 2^6, or subnormal, one of them infinite and one NaN.
fn activations(count: u32, tiny: bool) -> Vec<u8> {
    let code = |i: u32| {
        let hash = i.wrapping_mul(2_654_435_761);
        let magnitude = if tiny { (hash >> 25) as u16 } else { 0x3A80 + (hash >> 21) as u16 };
        match i {
            1000 => 0x7F80,
            2000 => 0x7FC0,
            _ => magnitude | (hash as u16 & 0x200) << 6,
        }
    };
    (0..count).flat_map(|i| code(i).to_le_bytes()).collect()
}

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Choices of experts, some of none, and what they lead to: offsets, sources and places, by sorting.
struct Routes {
    tokens: u32,
    top_k: u32,
    first: i32,
    experts: i32,
    chosen: Vec<i32>,
    offsets: Vec<i32>,
    sources: Vec<i32>,
    places: Vec<i32>,
}

impl Routes {
    fn new(tokens: u32, top_k: u32, first: i32, experts: i32) -> Routes {
        // Numbers from one before the first expert to one behind the last; one in seven is the second.
        let choose = |i: u32| match i.wrapping_mul(2_654_435_761) >> 8 {
            hash if hash % 7 == 0 => first + 1,
            hash => first - 1 + (hash % (experts as u32 + 2)) as i32,
        };
        let chosen: Vec<i32> = (0..tokens * top_k).map(choose).collect();
        let (mut offsets, mut sources, mut places) = (vec![0], Vec::new(), vec![-1; chosen.len()]);
        let mut padded = 0i32;
        for expert in first..first + experts {
            let its = chosen.iter().enumerate().filter(|(_, chosen)| **chosen == expert);
            let start = padded;
            for (choice, _) in its {
                places[choice] = sources.len() as i32 / 2;
                sources.extend([choice as i32 / top_k as i32, padded]);
                padded += 1;
            }
            padded = start + (padded - start + 127) / 128 * 128;
            offsets.push(sources.len() as i32 / 2);
        }
        Routes { tokens, top_k, first, experts, chosen, offsets, sources, places }
    }

    fn rows(&self) -> u32 {
        self.sources.len() as u32 / 2
    }

    fn choices(&self) -> u32 {
        self.chosen.len() as u32
    }
}

/// Choices for the kernels that gather and sum: of a token more than a thread stores to, or loads, at once.
fn routes() -> Routes {
    Routes::new(9, 11, 0, 4)
}

/// Choices for the kernel that sorts them: more than its threads place at once, and more than a block of an expert.
fn many_routes() -> Routes {
    Routes::new(823, 5, 3, 3)
}

/// Blocks of 16 in a row of three blocks of 128, and rows in two blocks of 128.
const WIDE: u32 = 24;
const HIGH: u32 = 150;

/// Blocks of 16 in a row that takes all threads of a CTA, some of them twice.
const LONG: u32 = 300;

/// Ten rows of activations: not finite in the first, and the largest number of each other in another warp's part, of the last
/// in what a thread reads second.
fn long_rows(tiny: bool) -> Vec<u8> {
    let mut bytes = activations(10 * LONG * 16, tiny);
    for row in 1..10 {
        let block = row * LONG + if row < 9 { 32 * (row - 1) + 5 } else { 270 };
        let at = 32 * block as usize;
        bytes[at..at + 2].copy_from_slice(&if tiny { 0x00C0u16 } else { 0xC400 }.to_le_bytes());
    }
    bytes
}

/// 37 rows of 6 blocks of 16, or of 5 scale factors: pads of either kind. With experts, 9 tokens of 6 blocks.
fn case(preparation: Preparation, tiny: bool) -> Case {
    let blocks = match preparation {
        Preparation::Block => 5,
        Preparation::GatherQuantizeE4m3Blocks(_) => WIDE,
        _ => 6,
    };
    let rows = 37u32;
    let u32s = |values: &[u32]| values.iter().map(|value| format!("u32 = {value}")).collect::<Vec<_>>();
    let scale = format!("f32 = {}", if tiny { "2.3e-41" } else { "0.125" });
    let routes = if preparation == Preparation::Route { many_routes() } else { routes() };
    let choices = routes.choices();
    let gathered = |outputs: Vec<(&'static str, u32)>, scaled: bool| {
        let inputs =
            vec![("x", activations(routes.tokens * blocks * 16, tiny)), ("places", bytes(&routes.places))];
        let mut numbers = u32s(&[routes.tokens, blocks, routes.top_k]);
        numbers.extend(scaled.then(|| scale.clone()));
        Case { inputs, outputs, numbers, ctas: preparation.ctas(routes.tokens, blocks).unwrap() }
    };
    // What is tiny is sorted already, and stays in place.
    let gathered_or_sorted = |outputs: Vec<(&'static str, u32)>| {
        // What is behind the last row has no place among scale factors.
        let mut sources = routes.sources.clone();
        sources.resize(2 * choices as usize, 1 << 20);
        let (rows, top_k) = if tiny { (choices, 0) } else { (routes.tokens, routes.top_k) };
        let inputs = vec![
            ("x", activations(rows * blocks * 16, tiny)),
            ("sources", bytes(&sources)),
            ("offsets", bytes(&routes.offsets)),
            ("places", bytes(&routes.places)),
        ];
        let numbers = u32s(&[rows, blocks, routes.experts as u32, top_k]);
        Case { inputs, outputs, numbers, ctas: preparation.ctas(rows, blocks).unwrap() }
    };
    match preparation {
        Preparation::Quantize(_) => Case {
            inputs: vec![("x", activations(rows * blocks * 16, tiny))],
            outputs: vec![("codes", rows * blocks * 8), ("scales", 128 * 8)],
            numbers: [u32s(&[rows, blocks]), vec![scale]].concat(),
            ctas: preparation.ctas(rows, blocks).unwrap(),
        },
        Preparation::QuantizeE4m3(_) => Case {
            inputs: vec![("x", activations(rows * blocks * 16, tiny))],
            outputs: vec![("codes", rows * blocks * 16)],
            numbers: [u32s(&[rows * blocks]), vec![scale]].concat(),
            ctas: preparation.ctas(rows, blocks).unwrap(),
        },
        // A row takes a CTA, or, where numbers are tiny, a warp.
        Preparation::QuantizeE4m3Rows(_) => {
            let (rows, blocks) = if tiny { (rows, blocks) } else { (10, LONG) };
            let x = if tiny { activations(rows * blocks * 16, tiny) } else { long_rows(tiny) };
            Case {
                inputs: vec![("x", x)],
                outputs: vec![("codes", rows * blocks * 16), ("scales", rows * 4)],
                numbers: u32s(&[rows, blocks, preparation.row_warps(rows, blocks)]),
                ctas: preparation.ctas(rows, blocks).unwrap(),
            }
        }
        Preparation::QuantizeE4m3Blocks(_) => Case {
            inputs: vec![("x", activations(rows * WIDE * 16, tiny))],
            outputs: vec![("codes", rows * WIDE * 16), ("scales", rows * WIDE / 8 * 4)],
            numbers: u32s(&[rows, WIDE]),
            ctas: preparation.ctas(rows, WIDE).unwrap(),
        },
        Preparation::QuantizeMxfp8(_) => Case {
            inputs: vec![("x", activations(HIGH * blocks * 16, tiny))],
            outputs: vec![("codes", HIGH * blocks * 16), ("scales", 2 * 512)],
            numbers: u32s(&[HIGH, blocks]),
            ctas: preparation.ctas(HIGH, blocks).unwrap(),
        },
        Preparation::Block => Case {
            inputs: vec![("linear", (0..rows * blocks).map(|i| (i % 251 + 1) as u8).collect())],
            outputs: vec![("blocked", 128 * 8)],
            numbers: u32s(&[rows, blocks]),
            ctas: preparation.ctas(rows, blocks).unwrap(),
        },
        Preparation::Route => Case {
            inputs: vec![("experts", bytes(&routes.chosen))],
            outputs: vec![
                ("offsets", 4 * (routes.experts as u32 + 1)),
                ("sources", 8 * choices),
                ("places", 4 * choices),
            ],
            numbers: u32s(&[choices, routes.top_k, routes.first as u32, routes.experts as u32]),
            ctas: preparation.ctas(choices, routes.experts as u32).unwrap(),
        },
        Preparation::Gather => {
            // What is behind the last row names a token that there is not.
            let mut sources = routes.sources.clone();
            sources.resize(2 * choices as usize, 1 << 20);
            Case {
                inputs: vec![
                    ("x", activations(routes.tokens * blocks * 16, tiny)),
                    ("sources", bytes(&sources)),
                    ("offsets", bytes(&routes.offsets)),
                ],
                outputs: vec![("rows", choices * blocks * 32)],
                numbers: u32s(&[choices, blocks, routes.experts as u32]),
                ctas: preparation.ctas(choices, blocks).unwrap(),
            }
        }
        Preparation::GatherQuantize(_) => {
            let case = gathered_or_sorted(vec![("codes", choices * blocks * 8), ("scales", 4 * 128 * 8)]);
            Case { numbers: [case.numbers, vec![scale]].concat(), ..case }
        }
        Preparation::GatherQuantizeE4m3Blocks(_) | Preparation::GatherQuantizeMxfp8(_) => {
            let scales = match preparation {
                Preparation::GatherQuantizeMxfp8(_) => 4 * 512,
                _ => choices * blocks / 8 * 4,
            };
            gathered_or_sorted(vec![("codes", choices * blocks * 16), ("scales", scales)])
        }
        Preparation::GatherQuantizeE4m3(_) => gathered(vec![("codes", choices * blocks * 16)], true),
        Preparation::GatherQuantizeE4m3Rows(_) => {
            let outputs = vec![("codes", choices * blocks * 16), ("scales", choices * 4)];
            let case = gathered(outputs, false);
            Case { numbers: u32s(&[blocks, routes.top_k]), ..case }
        }
        Preparation::Combine(_) => {
            let numbers = |count: u32, scale: f32| -> Vec<f32> {
                (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) * scale).collect()
            };
            let bf16s = |values: Vec<f32>| -> Vec<u8> {
                values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect()
            };
            let size = if tiny { 1e-39 } else { 0.25 };
            let weights = numbers(choices, 0.0625);
            Case {
                inputs: vec![
                    ("rows", bf16s(numbers(routes.rows() * blocks * 16, size))),
                    ("places", bytes(&routes.places)),
                    ("weights", weights.iter().flat_map(|weight| weight.to_le_bytes()).collect()),
                    ("residual", bf16s(numbers(routes.tokens * blocks * 16, 3.0 * size))),
                ],
                outputs: vec![("out", routes.tokens * blocks * 32)],
                numbers: u32s(&[routes.tokens, blocks, routes.top_k, u32::from(!tiny)]),
                ctas: preparation.ctas(routes.tokens, blocks).unwrap(),
            }
        }
    }
}

/// The launch file of a case.
fn launch_file(folder: &Path, preparation: Preparation, arch: Arch, tiny: bool) -> PathBuf {
    launch_file_of(folder, preparation, arch, case(preparation, tiny))
}

fn launch_file_of(folder: &Path, preparation: Preparation, arch: Arch, case: Case) -> PathBuf {
    let Case { inputs, outputs, numbers, ctas } = case;
    let kernel = preparation.kernel(arch).unwrap();
    fs::write(folder.join("kernel.ptx"), &kernel.ptx).unwrap();
    let mut file = format!(
        "ptx = \"kernel.ptx\"\nkernel = \"{preparation}\"\ngrid = [{ctas}, 1, 1]\nblock = [{}, 1, 1]\n\n",
        preparation.threads()
    );
    for (name, contents) in &inputs {
        fs::write(folder.join(format!("{name}.bin")), contents).unwrap();
        writeln!(file, "[buffers.{name}]\nfile = \"{name}.bin\"").unwrap();
    }
    for (name, bytes) in &outputs {
        writeln!(file, "[buffers.{name}]\nbytes = {bytes}\nfill = 0xA5").unwrap();
    }
    let names = inputs.iter().map(|(name, _)| name).chain(outputs.iter().map(|(name, _)| name));
    for param in names.map(|name| format!("pointer = \"{name}\"")).chain(numbers) {
        writeln!(file, "[[params]]\n{param}").unwrap();
    }
    let path = folder.join("launch.toml");
    fs::write(&path, file).unwrap();
    path
}

/// What a launch leaves in its buffers, or what is wrong with it.
fn run(path: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let file = LaunchFile::read(path).map_err(|error| error.to_string())?;
    let (memory, buffers) = file.allocate();
    let report = file.module.run(&file.kernel, &file.launch, &memory, &Options::default());
    let report = report.map_err(|error| error.to_string())?;
    match report.findings.first() {
        Some(finding) => Err(finding.to_string()),
        None => {
            let named = file.buffers.iter().zip(&buffers);
            Ok(named.map(|(spec, buffer)| (spec.name.clone(), memory.read(buffer))).collect())
        }
    }
}

/// What a launch writes, by the names of its buffers.
fn outputs<const N: usize>(preparation: Preparation, arch: Arch, names: [&str; N]) -> [Vec<u8>; N] {
    outputs_of(preparation, arch, case(preparation, false), names)
}

fn outputs_of<const N: usize>(
    preparation: Preparation,
    arch: Arch,
    case: Case,
    names: [&str; N],
) -> [Vec<u8>; N] {
    let folder = tempfile::tempdir().unwrap();
    let mut buffers = run(&launch_file_of(folder.path(), preparation, arch, case)).unwrap();
    names.map(|name| buffers.remove(name).unwrap())
}

#[test]
fn choices_are_sorted_as_the_host_sorts_them() {
    for arch in [Arch::Sm90a, Arch::Sm100a] {
        let [offsets, sources, places] = outputs(Preparation::Route, arch, ["offsets", "sources", "places"]);
        let routes = many_routes();
        assert!(routes.chosen.len() > 4096 && routes.rows() < routes.choices());
        let (written, rest) = sources.split_at(8 * routes.rows() as usize);
        assert!(offsets == bytes(&routes.offsets), "{arch}: offsets");
        assert!(places == bytes(&routes.places), "{arch}: places");
        assert!(written == bytes(&routes.sources), "{arch}: sources");
        assert!(rest.iter().all(|byte| *byte == 0xA5), "what no choice leads to is not written");
    }
}

#[test]
fn rows_are_gathered_as_they_are() {
    let [rows] = outputs(Preparation::Gather, Arch::Sm100a, ["rows"]);
    let (routes, x) = (routes(), &case(Preparation::Gather, false).inputs[0].1);
    let of = |token: usize| &x[token * 192..(token + 1) * 192];
    let expected: Vec<u8> = routes.sources.chunks(2).flat_map(|pair| of(pair[0] as usize).to_vec()).collect();
    let (written, rest) = rows.split_at(expected.len());
    assert!(written == expected);
    assert!(!rest.is_empty() && rest.iter().all(|byte| *byte == 0xA5));
}

#[test]
fn gathered_rows_are_quantised_as_rows_are() {
    // The same tokens by the kernel without experts, with as many rows as tokens.
    let x = activations(9 * 6 * 16, false);
    let values: Vec<f32> =
        x.chunks(2).map(|pair| half::bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect();
    assert!(values.iter().all(|value| value.is_finite()), "the host's quantiser takes them");
    let [codes, scales] =
        outputs(Preparation::GatherQuantize(Source::Bf16), Arch::Sm100a, ["codes", "scales"]);
    let scales = from_blocked(&scales, 512, 6).unwrap();
    let host = quantize(&values, 9, 96, TensorScale::Fixed(0.125)).unwrap();
    let [one_byte] = outputs(Preparation::GatherQuantizeE4m3(Source::Bf16), Arch::Sm90a, ["codes"]);
    let e4m3 = quantize_to(OperandFormat::E4m3, &values, 9, 96, TensorScale::Fixed(0.125)).unwrap();
    let [by_row, row_scales] =
        outputs(Preparation::GatherQuantizeE4m3Rows(Source::Bf16), Arch::Sm90a, ["codes", "scales"]);
    for (row, pair) in routes().sources.chunks(2).enumerate() {
        let (token, padded) = (pair[0] as usize, pair[1] as usize);
        assert_eq!(codes[row * 48..(row + 1) * 48], host.codes()[token * 48..(token + 1) * 48]);
        assert_eq!(one_byte[row * 96..(row + 1) * 96], e4m3.codes()[token * 96..(token + 1) * 96]);
        let values = &values[token * 96..(token + 1) * 96];
        let own = quantize_to(OperandFormat::E4m3, values, 1, 96, TensorScale::FromMax).unwrap();
        assert_eq!(by_row[row * 96..(row + 1) * 96], *own.codes());
        assert_eq!(row_scales[row * 4..(row + 1) * 4], own.tensor_scale().to_le_bytes());
        assert_eq!(
            scales[padded * 6..(padded + 1) * 6],
            host.scales()[token * 6..(token + 1) * 6],
            "row {row}"
        );
    }
}

#[test]
fn sorted_rows_are_quantised_in_place() {
    let routes = routes();
    for (preparation, columns) in [
        (Preparation::GatherQuantize(Source::Bf16), 96),
        (Preparation::GatherQuantizeE4m3Blocks(Source::Bf16), 16 * WIDE as usize),
        (Preparation::GatherQuantizeMxfp8(Source::Bf16), 96),
    ] {
        // Sorted rows, but of usual numbers.
        let mut case = case(preparation, true);
        case.inputs[0].1 = activations(routes.choices() * columns as u32, false);
        let nvfp4 = matches!(preparation, Preparation::GatherQuantize(_));
        if nvfp4 {
            *case.numbers.last_mut().unwrap() = "f32 = 0.125".to_owned();
        }
        let values = real(&case.inputs[0].1);
        let [codes] = outputs_of(preparation, Arch::Sm100a, case, ["codes"]);
        let bytes = if nvfp4 { columns / 2 } else { columns };
        let mut judged = 0;
        for row in 0..routes.rows() as usize {
            let own = &values[row * columns..(row + 1) * columns];
            if own.iter().any(|value| !value.is_finite()) {
                continue;
            }
            let (format, scale) = match preparation {
                Preparation::GatherQuantize(_) => (OperandFormat::Nvfp4, TensorScale::Fixed(0.125)),
                Preparation::GatherQuantizeMxfp8(_) => (OperandFormat::Mxfp8, TensorScale::One),
                _ => (OperandFormat::E4m3Vector128, TensorScale::One),
            };
            let host = quantize_with(format, own, 1, columns, scale, MxRule::Up).unwrap();
            assert_eq!(codes[row * bytes..(row + 1) * bytes], *host.codes(), "{preparation}, row {row}");
            judged += 1;
        }
        let behind = &codes[routes.rows() as usize * bytes..];
        assert!(judged > 50 && behind.iter().all(|byte| *byte == 0xA5), "{preparation}: {judged} rows");
    }
}

/// bf16 rows as f32.
fn real(x: &[u8]) -> Vec<f32> {
    x.as_chunks::<2>().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32()).collect()
}

#[test]
fn blocks_with_scale_factors_are_the_host_s() {
    for arch in [Arch::Sm90a, Arch::Sm100a] {
        for (preparation, format, columns) in [
            (Preparation::QuantizeE4m3Blocks(Source::Bf16), OperandFormat::E4m3Vector128, 16 * WIDE as usize),
            (Preparation::QuantizeMxfp8(Source::Bf16), OperandFormat::Mxfp8, 96),
        ] {
            let [codes, scales] = outputs(preparation, arch, ["codes", "scales"]);
            let mx = format == OperandFormat::Mxfp8;
            let (block, bytes) = if mx { (32, 1) } else { (128, 4) };
            let scales = if mx { from_blocked(&scales, HIGH as usize, 3).unwrap() } else { scales };
            let values = real(&case(preparation, false).inputs[0].1);
            let (mut exact, mut shown) = (0, 0);
            for (index, values) in values.chunks(block).enumerate() {
                let found = &codes[index * block..(index + 1) * block];
                let scale = &scales[index * bytes..(index + 1) * bytes];
                if values.iter().all(|value| value.is_finite()) {
                    let (one, rule) = (TensorScale::One, MxRule::Up);
                    let host = quantize_with(format, values, 1, block, one, rule).unwrap();
                    assert_eq!(
                        (found, scale),
                        (host.codes(), host.scales()),
                        "{preparation} {arch}, block {index}"
                    );
                    exact += 1;
                } else {
                    assert_eq!(
                        scale,
                        if mx { &[127][..] } else { &[0, 0, 0x80, 0x3F] },
                        "{preparation}, block {index}"
                    );
                    let nan = |(code, value): (&u8, &f32)| (code & 0x7F == 0x7F) != value.is_finite();
                    assert!(found.iter().zip(values).all(nan), "{preparation}, block {index}");
                    shown += 1;
                }
            }
            assert!(
                exact > 100 && shown == 2 && values.len().is_multiple_of(columns),
                "{exact} and {shown} blocks"
            );
        }
    }
}

#[test]
fn gathered_blocks_are_quantised_as_blocks_are() {
    for (preparation, format, columns) in [
        (
            Preparation::GatherQuantizeE4m3Blocks(Source::Bf16),
            OperandFormat::E4m3Vector128,
            16 * WIDE as usize,
        ),
        (Preparation::GatherQuantizeMxfp8(Source::Bf16), OperandFormat::Mxfp8, 96),
    ] {
        let [codes, scales] = outputs(preparation, Arch::Sm100a, ["codes", "scales"]);
        let mx = format == OperandFormat::Mxfp8;
        let scales = if mx { from_blocked(&scales, 512, 3).unwrap() } else { scales };
        let values = real(&case(preparation, false).inputs[0].1);
        for (row, pair) in routes().sources.chunks(2).enumerate() {
            let (token, padded) = (pair[0] as usize, pair[1] as usize);
            let own = &values[token * columns..(token + 1) * columns];
            // Tokens with numbers that are not finite are those of the test before.
            if own.iter().any(|value| !value.is_finite()) {
                continue;
            }
            let host = quantize_with(format, own, 1, columns, TensorScale::One, MxRule::Up).unwrap();
            assert_eq!(codes[row * columns..(row + 1) * columns], *host.codes(), "{preparation}, row {row}");
            let (place, bytes) = if mx { (padded, 3) } else { (row, 12) };
            assert_eq!(
                scales[place * bytes..(place + 1) * bytes],
                *host.scales(),
                "{preparation}, row {row}"
            );
        }
    }
}

#[test]
fn rows_with_scales_of_their_own_are_the_host_s() {
    let preparation = Preparation::QuantizeE4m3Rows(Source::Bf16);
    let cases = [(false, 8), (false, 4), (true, 4), (true, 2), (true, 1)];
    for (arch, (tiny, warps)) in
        [Arch::Sm90a, Arch::Sm100a].into_iter().flat_map(|arch| cases.map(|case| (arch, case)))
    {
        // Any number of warps may share a row.
        let mut case = case(preparation, tiny);
        let x = case.inputs[0].1.clone();
        let rows = case.outputs[1].1 / 4;
        case.numbers[2] = format!("u32 = {warps}");
        case.ctas = (rows * warps).div_ceil(8);
        let k = x.len() / 2 / rows as usize;
        let [codes, scales] = outputs_of(preparation, arch, case, ["codes", "scales"]);
        for (row, bytes) in x.chunks(2 * k).enumerate() {
            let values: Vec<f32> =
                bytes.as_chunks::<2>().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect();
            let (found, scale) = (&codes[row * k..(row + 1) * k], &scales[row * 4..(row + 1) * 4]);
            let scale = f32::from_le_bytes(scale.try_into().unwrap());
            if values.iter().all(|value| value.is_finite()) {
                let host = quantize_to(OperandFormat::E4m3, &values, 1, k, TensorScale::FromMax).unwrap();
                assert_eq!((found, scale), (host.codes(), host.tensor_scale()), "{arch}, row {row}");
            } else {
                assert_eq!(scale, 1.0, "{arch}, row {row}");
                let shown =
                    found.iter().zip(&values).all(|(code, value)| (code & 0x7F == 0x7F) != value.is_finite());
                assert!(shown, "{arch}, row {row}: NaN where x is not finite, and nowhere else");
            }
        }
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

const ROUTE: [(&str, &str); 14] = [
    ("sub.u32 %id5, %id5, %first", "mov.b32 %id5, %id5"),
    ("setp.lt.u32 %there, %id2, %experts", "setp.le.u32 %there, %id2, %experts"),
    ("mov.b32 %next7, %none", "mov.b32 %next7, %first"),
    ("setp.lt.u32 %more, %index, %expert;", "setp.le.u32 %more, %index, %expert;"),
    ("add.u32 %count, %count, 127", "mov.b32 %count, %count"),
    ("add.u32 %total, %start, %own", "mov.b32 %total, %start"),
    ("mul.lo.u32 %block_start, %block_start, 128", "mul.lo.u32 %block_start, %block_start, 64"),
    ("setp.ge.and.u32 %there, %id3, %experts", "setp.gt.and.u32 %there, %id3, %experts"),
    ("and.b32 %before, %before, %lanes5", "mov.b32 %before, %lanes5"),
    ("mad.lo.u32 %index, %warp, 256, %lane", "mad.lo.u32 %index, %warp, 255, %lane"),
    ("add.u32 %rank, %rank, %count", "mov.b32 %rank, %rank"),
    ("@%there add.u32 %rank, %rank, %total", "add.u32 %rank, %rank, %total"),
    ("add.u32 %start, %start, %total", "mov.b32 %start, %start"),
    ("add.u32 %row, %row, %start", "mov.b32 %row, %row"),
];

const GATHER: [(&str, &str); 4] = [
    ("min.u32 %rows, %rows, %from", "mov.b32 %rows, %rows"),
    ("setp.ge.u32 %outside, %row, %rows", "setp.gt.u32 %outside, %row, %rows"),
    ("mad.lo.u32 %from, %token, %blocks", "mad.lo.u32 %from, %row, %blocks"),
    ("sub.u32 %column, %item, %column", "mov.b32 %column, %column"),
];

const GATHER_E4M3: [(&str, &str); 7] = [
    ("setp.ge.u32 %outside, %token, %tokens", "setp.gt.u32 %outside, %token, %tokens"),
    ("sub.u32 %column, %item, %column", "mov.b32 %column, %column"),
    ("mul.lo.u32 %number, %token, %top_k", "mov.b32 %number, %token"),
    ("setp.ge.s32 %goes1, %target1, 0", "setp.gt.s32 %goes1, %target1, 40"),
    ("setp.lt.u32 %goes3, %number, %top_k", "setp.le.u32 %goes3, %number, %top_k"),
    ("add.u64 %places, %places, 32", "mov.b64 %places, %places"),
    ("setp.lt.u32 %more_choices, %choice, %top_k", "setp.gt.u32 %more_choices, %choice, %top_k"),
];

const GATHER_QUANTIZE: [(&str, &str); 7] = [
    ("@%in_place mov.b32 %target0, %row", "mov.b32 %target0, %target0"),
    ("min.u32 %rows, %rows, %last", "mov.b32 %rows, %rows"),
    ("and.b32 %number, %padded1, 31", "and.b32 %number, %padded1, 15"),
    ("shr.u32 %number, %padded1, 7", "shr.u32 %number, %padded1, 8"),
    ("and.pred %plain, %inside, %goes1", "and.pred %plain, %goes1, %goes1"),
    ("and.pred %plain, %first, %goes1", "and.pred %plain, %first, %first"),
    ("and.pred %goes3, %goes3, %there", "and.pred %goes3, %goes3, %goes3"),
];

const GATHER_ROWS: [(&str, &str); 4] = [
    ("mul.lo.u32 %number, %row, %top_k", "mov.b32 %number, %row"),
    ("and.pred %more, %first, %goes1", "and.pred %more, %first, %first"),
    ("add.u64 %places, %places, 32", "mov.b64 %places, %places"),
    ("mad.wide.u32 %offset, %target1, %blocks", "mad.wide.u32 %offset, %target0, %blocks"),
];

const COMBINE: [(&str, &str); 6] = [
    ("setp.ge.s32 %there1, %place1, 0", "setp.gt.s32 %there1, %place1, 0"),
    ("setp.lt.u32 %there3, %entry, %top_k", "setp.le.u32 %there3, %entry, %top_k"),
    ("mad.lo.u32 %entry, %token, %top_k, %entry", "mov.b32 %entry, %entry"),
    ("%weight2, %value, %sum5", "%weight1, %value, %sum5"),
    ("setp.ne.u32 %adds, %flag, 0", "setp.ge.u32 %adds, %flag, 0"),
    ("setp.lt.u32 %more, %choice, %top_k", "setp.gt.u32 %more, %choice, %top_k"),
];

const E4M3_ROWS: [(&str, &str); 8] = [
    ("setp.lt.u32 %inside, %row, %rows", "setp.le.u32 %inside, %row, %rows"),
    ("setp.lt.u32 %of_row, 1, %row_warps", "setp.le.u32 %of_row, 1, %row_warps"),
    ("max.NaN.f32 %amax, %amax, %other", "max.f32 %amax, %amax, %amax"),
    ("0f43E00000", "0f43D00000"),
    ("selp.f32 %scale, %scale, 0f3F800000, %finite", "mov.f32 %scale, %scale"),
    ("abs.f32 %magnitude, %v0;\n    max", "mov.f32 %magnitude, %v0;\n    max"),
    ("mad.wide.u32 %address, %row, 4", "mad.wide.u32 %address, %row, 8"),
    ("0f7FFFFFFF, %finite", "0f00000000, %finite"),
];

const BLOCK: [(&str, &str); 6] = [
    ("shl.b32 %items, %items, 7", "shl.b32 %items, %items, 6"),
    ("shr.u32 %atom, %item, 7", "shr.u32 %atom, %item, 6"),
    ("mad.lo.u32 %row, %part, 32", "mad.lo.u32 %row, %part, 16"),
    ("setp.lt.u32 %inside", "setp.le.u32 %inside"),
    ("setp.lt.u32 %single", "setp.le.u32 %single"),
    ("setp.eq.u32 %whole, %part, 0", "setp.ne.u32 %whole, %part, 0"),
];

const E4M3_BLOCKS: [(&str, &str); 7] = [
    ("setp.lt.u32 %there, %row, %rows", "setp.le.u32 %there, %row, %rows"),
    ("%other, %amax, 4", "%other, %amax, 2"),
    ("and.b32 %part, %item, 7", "and.b32 %part, %item, 15"),
    ("0f43E00000", "0f43D00000"),
    ("selp.f32 %scale, %scale, 0f3F800000, %finite", "mov.f32 %scale, %scale"),
    ("shr.u32 %index, %item, 3", "shr.u32 %index, %item, 4"),
    ("0f7FFFFFFF, %finite", "0f00000000, %finite"),
];

const MXFP8: [(&str, &str); 8] = [
    ("0x1fffff", "0x3fffff"),
    ("max.u32 %factor, %factor, 8", "max.u32 %factor, %factor, 9"),
    ("selp.b32 %factor, %factor, 127, %finite", "mov.b32 %factor, %factor"),
    ("0x00400000", "0x00200000"),
    ("shr.u32 %column, %column, 1", "mov.b32 %column, %column"),
    ("add.u32 %index, %blocks, 7", "mov.b32 %index, %blocks"),
    ("and.b32 %bits, %row, 31", "and.b32 %bits, %row, 15"),
    ("and.b32 %part, %item, 1;", "and.b32 %part, %item, 3;"),
];

const GATHER_BLOCKS: [(&str, &str); 3] = [
    ("@%in_place mov.b32 %target0, %row", "mov.b32 %target0, %target0"),
    ("min.u32 %rows, %rows, %last", "mov.b32 %rows, %rows"),
    ("and.pred %goes3, %goes3, %there", "and.pred %goes3, %goes3, %goes3"),
];

/// In MXFP8 most scale factors are equal here. Only f32 factors show this mistake.
const SCATTERED_SCALES: (&str, &str) =
    ("and.pred %finite, %first, %goes1", "and.pred %finite, %first, %first");

#[test]
fn mistakes_in_them_are_caught() {
    let equivalents = silumin_testkit::root().join("tests/mutants.toml");
    let equivalents = Equivalents::parse(&fs::read_to_string(equivalents).unwrap()).unwrap();
    // Five times what the longest of them executes: a mutant with an endless loop ends there.
    let plan = SurveyOptions { seeds: 1, equivalents, instruction_limit: 60_000, ..SurveyOptions::default() };
    let quantize = Preparation::Quantize(Source::Bf16);
    let mut missed = Vec::new();
    let cases = [
        (quantize, Arch::Sm90a, [&QUANTIZE[..], &ON_HOPPER].concat()),
        (quantize, Arch::Sm100a, QUANTIZE.to_vec()),
        (Preparation::QuantizeE4m3(Source::Bf16), Arch::Sm90a, E4M3.to_vec()),
        (Preparation::QuantizeE4m3Rows(Source::Bf16), Arch::Sm90a, E4M3_ROWS.to_vec()),
        (Preparation::QuantizeE4m3Blocks(Source::Bf16), Arch::Sm90a, E4M3_BLOCKS.to_vec()),
        (Preparation::QuantizeMxfp8(Source::Bf16), Arch::Sm100a, MXFP8.to_vec()),
        (
            Preparation::GatherQuantizeE4m3Blocks(Source::Bf16),
            Arch::Sm90a,
            [&GATHER_BLOCKS[..], &[SCATTERED_SCALES]].concat(),
        ),
        (Preparation::GatherQuantizeMxfp8(Source::Bf16), Arch::Sm100a, GATHER_BLOCKS.to_vec()),
        (Preparation::Block, Arch::Sm100a, BLOCK.to_vec()),
        (Preparation::Route, Arch::Sm100a, ROUTE.to_vec()),
        (Preparation::Gather, Arch::Sm90a, GATHER.to_vec()),
        (Preparation::GatherQuantize(Source::Bf16), Arch::Sm100a, GATHER_QUANTIZE.to_vec()),
        (Preparation::GatherQuantizeE4m3(Source::Bf16), Arch::Sm100a, GATHER_E4M3.to_vec()),
        (Preparation::GatherQuantizeE4m3Rows(Source::Bf16), Arch::Sm100a, GATHER_ROWS.to_vec()),
        (Preparation::Combine(Source::Bf16), Arch::Sm90a, COMBINE.to_vec()),
    ];
    // The emulator's mistakes are put into a part of the kernels at each commit.
    let surveyed: Vec<usize> =
        sample::of((0..cases.len()).collect(), 7).into_iter().map(|(number, _)| number).collect();
    for (number, (preparation, arch, own)) in cases.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let launch = launch_file(folder.path(), preparation, arch, false);
        let subject = Subject::read(&launch).unwrap();
        // Steps so small that f32 has no reciprocal of them.
        let other = tempfile::tempdir().unwrap();
        let tiny = Subject::read(&launch_file(other.path(), preparation, arch, true)).unwrap();
        // A short row leaves most warps without work; the kernel without experts has a long one.
        let of_short_rows = matches!(preparation, Preparation::GatherQuantizeE4m3Rows(_));
        if !of_short_rows && surveyed.contains(&number) {
            // This one has ten times as many mutants as most, and a longer launch.
            let every = if preparation == Preparation::Route { 6 } else { 1 };
            let plan = SurveyOptions { every, ..plan.clone() };
            let survey = subject.survey_with(&plan, &[tiny], &Earlier::default()).unwrap();
            assert!(survey.outcomes.len() >= 5, "{preparation}: {} mutants", survey.outcomes.len());
            assert!(survey.share() >= BAR, "{}", text(&survey));
        }
        let tiny = run(other.path().join("launch.toml").as_path()).unwrap();
        // Without synchronisation there are few classes of the emulator's; so here are mistakes by hand.
        let right = run(&launch).unwrap();
        let ptx = preparation.kernel(arch).unwrap().ptx;
        for (from, to) in own {
            let mistaken = ptx.replace(from, to);
            assert_ne!(mistaken, ptx, "{preparation}: there is no `{from}`");
            fs::write(folder.path().join("kernel.ptx"), &mistaken).unwrap();
            fs::write(other.path().join("kernel.ptx"), &mistaken).unwrap();
            let gives =
                |path: &Path, expected: &BTreeMap<String, Vec<u8>>| run(path).as_ref() == Ok(expected);
            if gives(&launch, &right) && gives(&other.path().join("launch.toml"), &tiny) {
                missed.push(format!("{preparation} for {arch}: `{to}` for `{from}`"));
            }
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}
