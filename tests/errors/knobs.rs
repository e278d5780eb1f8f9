//! Problems and knobs that `silumin emit` refuses, and what the macro says of declarations.

use super::{Case, Page, case, kind};
use silumin::codegen::config::ParseKnobError;
use silumin::codegen::error::explain;
use silumin::codegen::gate::{Expr, Product, gate_code};
use silumin::codegen::spec::{EmitError, SpecFile, SpecFileError};
use silumin::{Arch, Config, DualGemm, Formats, Gate, OperandFormat, Shape, Spec};
use silumin_cli::emit;
use silumin_testkit::root;
use std::fs;
use std::path::PathBuf;

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
            "--schedule stream_k --groups 5,6 --shape 11,4096,7168",
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
            "--epilogue-warps 8 --schedule stream_k",
            "--epilogue-warps 8 --tile '[128, 40, 256]' --shape 256,40,7168",
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

/// Words of a command line; those in quotes stay together.
pub fn words(line: &str) -> Vec<String> {
    let quoted = |(place, part): (usize, &str)| match place % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    };
    line.split('\'').enumerate().flat_map(quoted).collect()
}

/// What `silumin emit` says to these flags.
fn refusal(flags: &'static str) -> Case {
    let said = |text: String, kinds| Case { what: flags.into(), kinds, said: text };
    let matches = match emit::command().try_get_matches_from([vec!["emit".to_owned()], words(flags)].concat())
    {
        Ok(matches) => matches,
        // As the terminal shows it, without what the usage adds.
        Err(error) => {
            return said(error.to_string().lines().next().unwrap_or_default().to_owned(), Vec::new());
        }
    };
    let read = emit::spec_file(&matches).and_then(|file: SpecFile| Ok((file.read()?, file.shape())));
    match read {
        Ok(((spec, arch), shape)) => {
            let errors = spec.plan(shape, arch).expect_err(flags);
            said(format!("error: {}", explain(&errors)), errors.iter().map(kind).collect())
        }
        Err(error) => {
            let of_file = error.downcast_ref::<SpecFileError>().map(kind);
            let of_knob = error.downcast_ref::<ParseKnobError>().map(kind);
            said(format!("error: {error}"), of_file.into_iter().chain(of_knob).collect())
        }
    }
}

const SWIGLU: &str = "silu(A @ B1) * (A @ B2)";

/// Mistakes of files and of programs, for which there is no flag.
fn in_code() -> Vec<Case> {
    let spec = Spec::new(SWIGLU.parse().unwrap(), &[Arch::Sm100a]).unwrap();
    let shape = Shape::new(4, 64, 128);
    let mut file = SpecFile::new(Shape::new(256, 4096, 7168));
    (file.batch, file.groups) = (Some(2), Some(2));
    let mut named = spec.clone();
    named.name = "7 days".into();
    let name = named.plan(shape, Arch::Sm100a).unwrap_err();
    let mut config = spec.clone();
    config.config.set("stages", "40").unwrap();
    let fixed = DualGemm::new(spec.clone()).with_shape(shape);
    let code = |gate: &str, arch: &str, width| {
        gate_code(&gate.parse::<Gate>().unwrap().expr, arch, width).map(drop).unwrap_err()
    };
    vec![
        case("A file with a batch and with groups", file.read().map(drop).unwrap_err()),
        case("A knob that is not there", Config::default().set("stagse", "4").unwrap_err()),
        Case {
            what: "A kernel's name with a space".into(),
            kinds: name.iter().map(kind).collect(),
            said: explain(&name),
        },
        case("40 stages in a program", config.kernel(shape, Arch::Sm100a).map(drop).unwrap_err()),
        case("A spec made for B200, on H200", spec_for_hopper(&spec, shape)),
        case(
            "Another shape than the declared one",
            fixed.plan(Shape::new(4, 64, 256), Arch::Sm100a).unwrap_err(),
        ),
        case("A chip that gates are not lowered for", code(SWIGLU, "sm_80", 4)),
        case("Three elements at a time", code(SWIGLU, "sm_100a", 3)),
        case(
            "A gate with the second product alone",
            gate_code(&Expr::Product(Product::Second), "sm_100a", 4).map(drop).unwrap_err(),
        ),
        case(
            "A gate without a value for its scalar, on the host",
            "silu(alpha * (A @ B1)) * (A @ B2)"
                .parse::<Gate>()
                .unwrap()
                .expr
                .eval(1.0, 2.0, &[])
                .unwrap_err(),
        ),
    ]
}

fn spec_for_hopper(spec: &Spec, shape: Shape) -> EmitError {
    let bf16 = OperandFormat::Bf16;
    let formats = Formats { a: bf16, b: bf16, ..Formats::default() };
    Spec { formats, ..spec.clone() }.kernel(shape, Arch::Sm90a).map(drop).unwrap_err()
}

pub fn problems(page: &mut Page) {
    for (title, flags) in REFUSED {
        page.subsection(title);
        let cases: Vec<Case> = flags.iter().map(|flags| refusal(flags)).collect();
        let texts = cases.iter().map(|case| format!("$ silumin emit {}\n{}\n", case.what, case.said));
        page.block(&texts.collect::<Vec<_>>());
        page.saw(&cases);
    }
    page.cases("In files and programs", in_code());
}

/// What the compiler says, from the expected messages of `tests/messages`.
pub fn declarations(page: &mut Page) {
    let folder = root().join("tests/messages/tests/ui");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "stderr"));
    files.sort();
    for path in files {
        let title = path.file_stem().unwrap().to_str().unwrap().replace('_', " ");
        page.subsection(&(title[..1].to_uppercase() + &title[1..]));
        page.block(&[
            fs::read_to_string(&path).unwrap().replace("tests/ui/", "").trim_end().to_owned() + "\n"
        ]);
    }
}
