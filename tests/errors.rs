//! The book's page of errors is what the program, the macro and launches say.
//!
//! `cargo xtask bless errors` writes the page.

use silumin::codegen::error::{ConfigError, explain};
use silumin::codegen::problem::{Formats, OperandFormat};
use silumin::codegen::spec::SpecFile;
use silumin::runtime::mlp::MlpWeights;
use silumin::runtime::weights::{GateUp, Order, Weight};
use silumin::verify::inputs::DualGemmInputs;
use silumin::{
    Arch, Args, Buckets, Buffer, Bundle, Device, DeviceOperands, Distribution, DualGemm, LaunchError,
    LoadedKernel, Matrix, Shape, Spec, Warmup,
};
use silumin_cli::emit;
use silumin_testkit::root;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Flags of `silumin emit` that make no kernel, by what is wrong.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "Shape",
        &[
            "--shape 0,4096,7168",
            "--shape 256,4096,7170",
            "--shape 256,4100,7168 --formats nvfp4,nvfp4,nvfp4",
            "--shape 64,320,1024 --arch sm_90a --formats e4m3_1x128,e4m3_128x128,bf16 --batch 2",
            "--shape 1073741824,1073741824,128",
        ],
    ),
    (
        "Formats",
        &[
            "--formats nvfp4,bf16,f16",
            "--formats nvfp4,nvfp5,f16",
            "--formats mxfp8,mxfp8,bf16 --arch sm_90a",
            "--formats e4m3_1x128,e4m3_128x128,bf16",
        ],
    ),
    (
        "Gate",
        &[
            "--gate 'swish(A @ B1) * (A @ B2)'",
            "--gate 'silu(A @ B1) * (A @ B2'",
            "--gate 'silu(A @ B1) * A'",
            "--gate 'silu(A @ B1 + bias[k]) * (A @ B2)'",
        ],
    ),
    ("Chip", &["--arch sm_89", "--arch sm_90a --cta-group 2"]),
    (
        "Tile",
        &[
            "--tile '[128, 128]'",
            "--tile '[256, 128, 256]' --cta-group 1",
            "--tile '[128, 320, 256]'",
            "--tile '[128, 96, 256]'",
            "--tile '[128, 128, 100]'",
            "--tile '[128, 256, 256]' --cta-group 1",
            "--tile '[96, 128, 64]' --arch sm_90a",
            "--tile '[192, 128, 64]' --arch sm_90a",
        ],
    ),
    (
        "Stages and shared memory",
        &[
            "--stages 40",
            "--stages 9 --tile '[128, 128, 256]'",
            "--stages 1 --arch sm_90a",
            "--tmem-columns 100",
            "--tmem-columns 32",
        ],
    ),
    (
        "Strategy and order of K",
        &[
            "--strategy single",
            "--strategy sequential --accumulators side_by_side",
            "--strategy sequential --arch sm_90a --formats bf16,nvfp4,bf16",
            "--k-order 'split_tail(40)'",
            "--k-order 'split_tail(9)' --stages 4",
            "--k-order 'split_tail(2)' --accumulators side_by_side",
            "--k-order 'split_tail(2)' --schedule stream_k",
        ],
    ),
    (
        "Schedule and clusters",
        &[
            "--schedule 'split_k(99)'",
            "--schedule 'cluster_split_k(3)'",
            "--schedule one_tile --groups 5,6 --shape 11,4096,7168 --store tma",
            "--consumers ping_pong --schedule one_tile --arch sm_90a",
            "--sms 500",
            "--multicast 'a(3)'",
            "--raster 'swizzled(0)'",
        ],
    ),
    (
        "Accumulators",
        &[
            "--accumulator-buffers 3",
            "--accumulator-buffers 2 --schedule one_tile",
            "--accumulator-buffers overlapped --schedule persistent --tile '[128, 192, 256]'",
            "--accumulators side_by_side --tile '[128, 64, 256]'",
            "--accumulators side_by_side --tile '[128, 192, 256]'",
            "--accumulators side_by_side --swap-ab on",
            "--a-reuse collector --strategy sequential",
            "--promotion 'every(100)' --arch sm_90a --formats e4m3,e4m3,bf16",
            "--promotion off --arch sm_90a --formats e4m3_1x128,e4m3_128x128,bf16",
            "--swap-ab on --gate 'silu((A @ B1) + bias[m]) * (A @ B2)' --shape 16,4096,7168",
        ],
    ),
    (
        "Scale factors",
        &[
            "--sf-load bulk --cta-group 2",
            "--sf-load multicast --cta-group 1",
            "--sf-preload 'ahead(0)'",
            "--sf-preload all --formats bf16,bf16,bf16",
            "--swap-ab on --formats nvfp4,nvfp4,nvfp4 --groups 5,6 --shape 11,4096,7168",
        ],
    ),
    (
        "Stores",
        &[
            "--store 'direct(16x256b)' --swap-ab on",
            "--store tma --shape 256,4097,7168",
            "--store tma --tile '[128, 8, 128]' --arch sm_90a --formats e4m3,e4m3,e4m3",
        ],
    ),
];

/// Errors that no flag causes.
const WITHOUT_FLAG: [&str; 1] = ["Name"];

/// Characters of a line of the page.
const LINE: usize = 150;

/// The text with lines of at most [`LINE`] characters; the rest of a longer one stands below it, indented.
fn in_short_lines(text: &str) -> String {
    let broken = |line: &str| {
        let indent = " ".repeat(4 + line.len() - line.trim_start().len());
        let mut lines = vec![String::new()];
        for word in line.split(' ') {
            let last = lines.len() - 1;
            match lines[last].len() + word.len() < LINE {
                true if lines[last].is_empty() => lines[last] += word,
                true => lines[last] += &format!(" {word}"),
                false => lines.push(format!("{indent}{word}")),
            }
        }
        lines.join("\n")
    };
    let short = |line: &str| if line.len() <= LINE { line.to_owned() } else { broken(line) };
    text.lines().map(short).collect::<Vec<_>>().join("\n")
}

/// Words of a command line; those in quotes stay together.
fn words(line: &str) -> Vec<String> {
    let quoted = |(place, part): (usize, &str)| match place % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    };
    line.split('\'').enumerate().flat_map(quoted).collect()
}

/// What `silumin emit` says to these flags, and the names of the configuration's errors.
fn refusal(flags: &str) -> (String, Vec<String>) {
    let matches = match emit::command().try_get_matches_from([vec!["emit".to_owned()], words(flags)].concat())
    {
        Ok(matches) => matches,
        // As the terminal shows it, without what the usage adds.
        Err(error) => return (error.to_string().lines().next().unwrap_or_default().to_owned(), Vec::new()),
    };
    let read = emit::spec_file(&matches).and_then(|file: SpecFile| Ok((file.read()?, file.shape())));
    let ((spec, arch), shape) = match read {
        Ok(read) => read,
        Err(error) => return (format!("error: {error}"), Vec::new()),
    };
    let errors = spec.plan(shape, arch).expect_err(flags);
    (format!("error: {}", explain(&errors)), errors.iter().map(name).collect())
}

/// The name of an error's kind.
fn name(error: &ConfigError) -> String {
    let text = format!("{error:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// The names of all kinds, from the declaration of [`ConfigError`].
fn kinds() -> BTreeSet<String> {
    let source = fs::read_to_string(root().join("codegen/src/error/mod.rs")).unwrap();
    let body = source.split_once("pub enum ConfigError {").unwrap().1.split_once("\n}").unwrap().0;
    let names = body.lines().filter_map(|line| line.strip_prefix("    "));
    let names = names.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    names
        .map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned())
        .collect()
}

fn knobs(page: &mut String) {
    let mut seen = BTreeSet::new();
    for (title, cases) in REFUSED {
        write!(page, "\n### {title}\n\n```text\n").unwrap();
        for (place, flags) in cases.iter().enumerate() {
            let (said, names) = refusal(flags);
            seen.extend(names);
            let gap = if place == 0 { "" } else { "\n" };
            write!(page, "{gap}$ silumin emit {flags}\n{}\n", in_short_lines(&said)).unwrap();
        }
        page.push_str("```\n");
    }
    let missing: Vec<_> = kinds().into_iter().filter(|kind| !seen.contains(kind)).collect();
    assert_eq!(missing, WITHOUT_FLAG, "kinds of ConfigError without an example in {}", file!());
}

/// What the compiler says, from the expected messages of `tests/messages`.
fn declarations(page: &mut String) {
    let folder = root().join("tests/messages/tests/ui");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "stderr"));
    files.sort();
    for path in files {
        let title = path.file_stem().unwrap().to_str().unwrap().replace('_', " ");
        let title = title[..1].to_uppercase() + &title[1..];
        let said = fs::read_to_string(&path).unwrap().replace("tests/ui/", "");
        write!(page, "\n### {title}\n\n```text\n{}\n```\n", in_short_lines(said.trim_end())).unwrap();
    }
}

const SHAPE: Shape = Shape::new(4, 64, 128);

/// A kernel with what its launches take.
struct Ready {
    kernel: LoadedKernel,
    operands: DeviceOperands,
}

impl Ready {
    fn new(device: &Device, gate: &str, formats: Formats) -> Self {
        let mut spec = Spec::new(gate.parse().unwrap(), &[device.arch()]).unwrap();
        spec.formats = formats;
        let kernel = DualGemm::new(spec).load(device, SHAPE).unwrap();
        let inputs = DualGemmInputs::generate_for(SHAPE, formats, Distribution::Benchmark, 1).unwrap();
        Ready { kernel, operands: DeviceOperands::upload(device, &inputs).unwrap() }
    }

    fn refuses(&self, args: &Args<'_>) -> LaunchError {
        self.kernel.launch(&self.kernel.device().stream(), args).unwrap_err()
    }
}

fn part(buffer: &Buffer, offset: usize, len: usize) -> Buffer {
    buffer.slice(offset, len).unwrap()
}

/// Launches that are refused: what is wrong in words, and the error.
fn launches() -> [(&'static str, LaunchError); 18] {
    let device = Device::emulated(Arch::Sm100a);
    let plain = Ready::new(&device, "silu(A @ B1) * (A @ B2)", Formats::default());
    let scaled = Ready::new(&device, "silu(alpha * (A @ B1)) * (A @ B2)", Formats::default());
    let biased = Ready::new(&device, "silu((A @ B1) + bias[n]) * (A @ B2)", Formats::default());
    let args = plain.operands.args(&[]);
    let other = Device::emulated(Arch::Sm100a);
    let foreign = other.upload(&[0; 64 * 4]).unwrap();
    let long = device.alloc(1024).unwrap();
    let short = part(&plain.operands.a, 0, 128);
    let odd = part(&long, 8, plain.operands.a.len());
    let short_bias = device.upload(&[0; 4 * 32]).unwrap();
    let bias = device.upload(&[0; 4 * 64]).unwrap();
    let biased_args = biased.operands.args(&[]);
    let scaled_args = scaled.operands.args(&[]);
    let wrong_stream = plain.kernel.launch(&other.stream(), &args).unwrap_err();
    let with_bias = |vectors: &[(&str, &Buffer)]| biased.refuses(&biased_args.vectors(vectors));
    [
        ("The stream of another device", wrong_stream),
        ("A on another device", plain.refuses(&Args { a: &foreign, ..args })),
        ("No scale factors of A", plain.refuses(&Args { sfa: None, ..args })),
        ("Scale factors of C, which is f16", plain.refuses(&Args { sfc: Some(&long), ..args })),
        ("A scale of C, which is f16", plain.refuses(&Args { c_scale: Some(0.5), ..args })),
        ("A without its last rows", plain.refuses(&Args { a: &short, ..args })),
        ("More rows than the kernel computes", plain.refuses(&args.rows(5))),
        ("A at an address that is no multiple of 16", plain.refuses(&Args { a: &odd, ..args })),
        (
            "C within the memory of A's scale factors",
            plain.refuses(&Args { sfa: Some(&long), c: &part(&long, 0, 512), ..args }),
        ),
        (
            "Weights with tensor scales, and a gate without",
            plain.refuses(&Args { weight_scales: Some([0.5, 2.0]), ..args }),
        ),
        ("No value for a scalar", scaled.refuses(&scaled_args)),
        ("A scalar that the gate does not have", scaled.refuses(&scaled_args.scalars(&[("beta", 1.0)]))),
        ("A scalar twice", scaled.refuses(&scaled_args.scalars(&[("alpha", 1.0), ("alpha", 1.0)]))),
        ("No bias", with_bias(&[])),
        ("A bias under another name", with_bias(&[("b", &bias)])),
        ("A bias twice", with_bias(&[("bias", &bias), ("bias", &bias)])),
        ("Half of a bias", with_bias(&[("bias", &short_bias)])),
        ("A bias on another device", with_bias(&[("bias", &foreign)])),
    ]
}

/// Loads that are refused: what is wrong in words, and the error.
fn loads() -> Vec<(&'static str, String)> {
    let device = Device::emulated(Arch::Sm100a);
    let gemm = DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap());
    let kernels = Warmup::of(&gemm).weights(64, 128).buckets(Buckets::powers_of_two(4)).run(&device).unwrap();
    let odd = Warmup::of(&gemm).weights(64, 100).buckets(Buckets::powers_of_two(1)).run(&device);
    let (codes, scales) = (vec![0u8; 64 * 64], vec![0x38u8; 64 * 8]);
    let mut damaged = scales.clone();
    damaged[9] = 0x7f;
    let weight =
        |rows: usize, codes, scales| Weight::new(OperandFormat::Nvfp4, rows, 128, codes, scales, 1.0);
    let whole = |rows: usize| weight(rows, &codes[..rows * 64], &scales[..rows * 8]).unwrap();
    let down = MlpWeights::new(GateUp::new(whole(64), whole(64)).unwrap(), whole(64));
    let missing = Path::new("model.kernels");
    vec![
        ("Buckets without a size", Buckets::new([]).unwrap_err().to_string()),
        ("K that NVFP4 does not have", odd.unwrap_err().to_string()),
        ("5 tokens and buckets of up to 4", kernels.for_problem(5, 64, 128).unwrap_err().to_string()),
        ("Weights that nobody named", kernels.for_problem(4, 128, 64).unwrap_err().to_string()),
        ("NVFP4 weights without their last row", weight(64, &codes[64..], &scales).unwrap_err().to_string()),
        ("A scale factor that is NaN", weight(64, &codes, &damaged).unwrap_err().to_string()),
        ("Gate and up of two shapes", GateUp::new(whole(64), whole(32)).unwrap_err().to_string()),
        (
            "Gate and up in one tensor of 63 rows",
            GateUp::stacked(whole(63), Order::GateFirst).unwrap_err().to_string(),
        ),
        ("Down of another shape", down.map(drop).unwrap_err().to_string()),
        (
            "12 numbers for a matrix of 4 x 4",
            Matrix::<f32>::upload(&device, &[0.0; 12], 4, 4).map(drop).unwrap_err().to_string(),
        ),
        ("A bundle that is not there", Bundle::open(missing).map(drop).unwrap_err().to_string()),
    ]
}

/// The text with emulated devices numbered as they appear in it: other tests of the process have some, too.
fn renumbered(text: &str) -> String {
    const BEFORE: &str = ", number ";
    let mut parts = text.split(BEFORE);
    let (mut out, mut seen) = (parts.next().unwrap_or_default().to_owned(), Vec::new());
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(digits);
        let place = seen.iter().position(|other| *other == number).unwrap_or(seen.len());
        if place == seen.len() {
            seen.push(number);
        }
        out += &format!("{BEFORE}{place}{rest}");
    }
    out
}

/// Cases with what is said, indented, in a block.
fn block(cases: &[(&'static str, String)]) -> String {
    let cases: Vec<String> =
        cases.iter().map(|(what, said)| format!("{what}:\n  {}\n", said.replace('\n', "\n  "))).collect();
    format!("```text\n{}\n```\n", in_short_lines(&renumbered(&cases.join("\n"))))
}

#[test]
fn the_book_shows_what_errors_say() {
    let mut page = "# Errors\n\n".to_owned();
    page.push_str(
        "This page shows what silumin says of problems and knobs, of declarations while they compile, at model load and at a launch.\n\
         An error names the knob, tensor or file, the limit with its sum, and a way out. All that is wrong with a configuration is said at\n\
         once. A test writes this page from real runs, and breaks long lines: `cargo xtask bless errors`.\n\n\
         What the emulator finds wrong with a kernel is in [Run any PTX](guide/emulate.md), what a checkpoint lacks in\n\
         [Weights from checkpoints](weights.md).\n\n\
         ## Problems and knobs\n",
    );
    knobs(&mut page);
    page.push_str("\n## Declarations\n\nThe compiler points at the knob, the format or the operand.\n");
    declarations(&mut page);
    write!(page, "\n## Model load\n\n{}", block(&loads())).unwrap();
    page.push_str(
        "\n## Launches\n\nA launch checks its arguments before anything runs, on a GPU as on the emulated device. The kernel here is for 4 tokens,\n\
         64 features and K = 128, in NVFP4.\n\n",
    );
    page.push_str(&block(&launches().map(|(what, error)| (what, error.to_string()))));

    let path = root().join("book/src/errors.md");
    if std::env::var_os("SILUMIN_BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "{} is not what errors say: run cargo xtask bless errors",
        Path::new("book/src/errors.md").display()
    );
}
