//! Parses formats, shapes, knobs and lists of knobs; and the job for a child process.

use serde::{Deserialize, Serialize};
use silumin_codegen::config::Config;
use silumin_codegen::problem::{Formats, OperandFormat, OutputFormat, PreactivationFormat, Shape};
use silumin_runtime::tune::{knobs, words};
use std::path::PathBuf;

/// Shapes on which the peers are timed, by name: M, N of each weight matrix, K.
pub const PEER_SHAPES: [(&str, [u32; 3]); 10] = [
    ("gpumode-1", [256, 4096, 7168]),
    ("gpumode-2", [512, 4096, 7168]),
    ("gpumode-3", [256, 3072, 4096]),
    ("gpumode-4", [512, 3072, 7168]),
    ("llama8b-prefill4k", [4096, 14336, 4096]),
    ("llama70b-prefill4k", [4096, 28672, 8192]),
    ("llama8b-m1", [1, 14336, 4096]),
    ("llama8b-m16", [16, 14336, 4096]),
    ("llama8b-m64", [64, 14336, 4096]),
    ("llama8b-m128", [128, 14336, 4096]),
];

/// Short names of common formats.
const ALIASES: [(&str, &str); 12] = [
    ("bf16", "bf16*bf16->bf16"),
    ("f16", "f16*f16->f16"),
    ("e4m3", "e4m3*e4m3->bf16"),
    ("e4m3_blocks", "e4m3_1x128*e4m3_128x128->bf16"),
    ("nvfp4", "nvfp4*nvfp4->f16"),
    ("nvfp4w", "bf16*nvfp4->bf16"),
    ("nvfp4w_repacked", "bf16*nvfp4_repacked->bf16"),
    ("nvfp4w_f16", "f16*nvfp4->f16"),
    ("mxfp4w", "bf16*mxfp4->bf16"),
    ("mxfp4w_repacked", "bf16*mxfp4_repacked->bf16"),
    ("mxfp4", "mxfp4*mxfp4->bf16"),
    ("mxfp8", "mxfp8*mxfp8->bf16"),
];

/// Work of one child: kernels of one problem.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The GPU's number.
    pub device: usize,
    /// See [`formats`].
    pub formats: String,
    /// See [`shape`].
    pub shape: String,
    /// The gate expression.
    pub gate: String,
    /// A value for each scalar of the gate.
    pub scalars: Vec<(String, f32)>,
    /// The kernels: number in the reports, and knobs.
    pub kernels: Vec<(usize, String)>,
    /// Distribution of the operands: see [`crate::inputs::draw`].
    pub inputs: String,
    /// Seed of the operands.
    pub seed: u64,
    /// Timed replays of each graph.
    pub reps: usize,
    /// Target duration of a graph in ms.
    pub graph_ms: f64,
    /// Whether kernels are timed in turns.
    pub interleave: bool,
    /// Whether kernels are only checked.
    pub check_only: bool,
    /// Line information in the machine code, for profilers.
    pub line_info: bool,
    /// Limit of the relative Frobenius error that replaces the formats' limits.
    pub limit: Option<f64>,
    /// Number of kernels that the driver compiles at a time.
    pub load_threads: usize,
    /// Folder for launch files of right kernels.
    pub emit: Option<PathBuf>,
    /// Whether read bandwidth is measured first.
    pub bandwidth: bool,
}

/// Parses formats: `bf16` or another short name, or `A*B->C` such as `bf16*nvfp4->bf16`; without B it is A's. A
/// suffix `+f32` keeps the pre-activations in f32.
pub fn formats(text: &str) -> Result<Formats, String> {
    let (text, kept) = text.trim().split_once('+').unwrap_or((text.trim(), "none"));
    let whole = ALIASES.iter().find(|(name, _)| *name == text).map_or(text, |(_, whole)| whole);
    let (operands, c) = whole.split_once("->").ok_or_else(|| {
        let names = ALIASES.map(|(name, _)| name).join(", ");
        format!("--format: `{text}` is neither A*B->C, such as bf16*nvfp4->bf16, nor one of: {names}")
    })?;
    let (a, b) = operands.split_once('*').unwrap_or((operands, operands));
    let operand = |text: &str| text.parse::<OperandFormat>().map_err(|e| format!("--format: {e}"));
    let c: OutputFormat = c.parse().map_err(|e| format!("--format: {e}"))?;
    let preactivations = PreactivationFormat::parse_setting(kept).map_err(|e| format!("--format: {e}"))?;
    Ok(Formats { preactivations, ..Formats::new(operand(a)?, operand(b)?, c) })
}

/// Parses a shape: a peer's name, or `MxNxK`; a suffix `:l4` makes it a batch of four, `:g8` eight groups.
pub fn shape(text: &str) -> Result<Shape, String> {
    let text = text.trim();
    let bad = || {
        let names = PEER_SHAPES.map(|(name, _)| name).join(", ");
        format!(
            "--shapes: `{text}` is not MxNxK, such as 256x4096x7168 (:l4 for a batch, :g8 for groups), nor one of: {names}"
        )
    };
    let (sizes, groups) = text.split_once(':').map_or((text, None), |(sizes, groups)| (sizes, Some(groups)));
    let known = PEER_SHAPES.iter().find(|(name, _)| *name == sizes).map(|(_, sizes)| *sizes);
    let sizes = match known {
        Some(sizes) => sizes,
        None => {
            let parsed: Result<Vec<u32>, _> = sizes.split('x').map(str::parse).collect();
            parsed.ok().and_then(|sizes| <[u32; 3]>::try_from(sizes).ok()).ok_or_else(bad)?
        }
    };
    if sizes.contains(&0) {
        return Err(bad());
    }
    let whole = Shape::new(sizes[0], sizes[1], sizes[2]);
    match groups.map(|text| (text.get(..1).unwrap_or(""), text.get(1..).unwrap_or("").parse::<u32>())) {
        None => Ok(whole),
        Some(("l", Ok(count @ 1..))) => Ok(whole.batch(count)),
        Some(("g", Ok(count @ 1..))) => Ok(whole.grouped(count)),
        Some(_) => Err(bad()),
    }
}

/// Parses a list of shapes separated by commas; `peers` stands for all shapes of the peers.
pub fn shapes(text: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        if item == "peers" {
            all.extend(PEER_SHAPES.iter().map(|(name, _)| (*name).to_owned()));
        } else {
            shape(item)?;
            all.push(item.to_owned());
        }
    }
    if all.is_empty() { Err("--shapes: no shape".to_owned()) } else { Ok(all) }
}

/// Expands alternatives as in `tile=128x128x64|128x256x64 stages=3|4` to every combination, in the order of the text.
pub fn expand(text: &str) -> Result<Vec<String>, String> {
    let mut all = vec![String::new()];
    for word in words(text) {
        let (name, values) = word
            .split_once('=')
            .ok_or_else(|| format!("knobs: `{word}` is not NAME=VALUE, or NAME=VALUE|VALUE for several"))?;
        let values: Vec<&str> = values.split('|').collect();
        let join = |so_far: &String, value: &&str| {
            let space = if so_far.is_empty() { "" } else { " " };
            format!("{so_far}{space}{name}={value}")
        };
        all = all.iter().flat_map(|so_far| values.iter().map(move |value| join(so_far, value))).collect();
    }
    Ok(all)
}

/// The default knobs with those in a text. A tile may be written `128x256x64`.
pub fn config(text: &str) -> Result<Config, String> {
    knobs(text, &Config::default()).map_err(|e| format!("knobs: {e}"))
}

/// Parses a list of knobs, one configuration per line. Alternatives are expanded; `#` starts a comment; a prefix
/// `SHAPE:` limits a line to one shape.
pub fn sweep(text: &str, shape: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        let (only, knobs) = match line.split_once(": ") {
            Some((only, knobs)) => (Some(only.trim()), knobs),
            None => (None, line),
        };
        if !line.is_empty() && only.is_none_or(|only| only == shape) {
            all.extend(expand(knobs)?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_short_names_and_a_long_form() {
        let nvfp4w = formats("nvfp4w").unwrap();
        assert_eq!(
            (nvfp4w.a, nvfp4w.b, nvfp4w.c),
            (OperandFormat::Bf16, OperandFormat::Nvfp4, OutputFormat::Bf16)
        );
        assert_eq!(formats("bf16*nvfp4->bf16").unwrap(), nvfp4w);
        assert_eq!(
            formats("e4m3->f32").unwrap(),
            Formats::new(OperandFormat::E4m3, OperandFormat::E4m3, OutputFormat::F32)
        );
        for (alias, _) in ALIASES {
            assert!(formats(alias).is_ok(), "{alias}");
        }
        assert_eq!(formats("bf16+f32").unwrap().preactivations, Some(PreactivationFormat::F32));
        assert!(formats("bf16+int4").is_err());
        assert!(formats("int4").unwrap_err().contains("nvfp4w"));
        assert!(formats("int4->f16").unwrap_err().contains("an operand format"));
    }

    #[test]
    fn shapes_are_names_or_sizes() {
        assert_eq!(shape("llama8b-m16"), Ok(Shape::new(16, 14336, 4096)));
        assert_eq!(shape("1x2x3"), Ok(Shape::new(1, 2, 3)));
        assert_eq!(shape("1x2x3:l4"), Ok(Shape::new(1, 2, 3).batch(4)));
        assert_eq!(shape("8x2x3:g4"), Ok(Shape::new(8, 2, 3).grouped(4)));
        for wrong in ["", "1x2", "1x2x3x4", "0x1x1", "1x2x3:", "1x2x3:q4", "1x2x3:l0", "1x2x3:ü"] {
            assert!(shape(wrong).unwrap_err().contains("MxNxK"), "{wrong}");
        }
        assert_eq!(shapes("peers").unwrap().len(), PEER_SHAPES.len());
        assert_eq!(shapes("1x2x3, gpumode-1").unwrap(), ["1x2x3", "gpumode-1"]);
        assert!(shapes(" , ").is_err());
    }

    #[test]
    fn knobs_expand_to_every_combination() {
        assert_eq!(expand("").unwrap(), [""]);
        assert_eq!(
            expand("tile=[128, 64, 64]|128x128x64 stages=3|4").unwrap(),
            [
                "tile=[128, 64, 64] stages=3",
                "tile=[128, 64, 64] stages=4",
                "tile=128x128x64 stages=3",
                "tile=128x128x64 stages=4"
            ]
        );
        assert!(expand("stages").unwrap_err().contains("NAME=VALUE"));
    }

    #[test]
    fn knobs_are_those_of_the_generator() {
        let config = config("tile=128x64x256 stages=3 cache=[a: evict_normal, sf: evict_first]").unwrap();
        let entries = config.entries();
        let value = |name: &str| entries.iter().find(|(knob, _)| *knob == name).unwrap().1.clone();
        assert_eq!((value("tile").as_str(), value("stages").as_str()), ("[128, 64, 256]", "3"));
        assert!(super::config("stage=3").unwrap_err().contains("did you mean `stages`"));
        assert!(super::config("stages=many").is_err());
    }

    #[test]
    fn lists_have_comments_and_lines_for_one_shape() {
        let text = "# all\nstages=2|3 # two\n\ngpumode-1: stages=4\n1x2x3: stages=5\n";
        assert_eq!(sweep(text, "gpumode-1").unwrap(), ["stages=2", "stages=3", "stages=4"]);
        assert_eq!(sweep(text, "gpumode-2").unwrap(), ["stages=2", "stages=3"]);
    }
}
