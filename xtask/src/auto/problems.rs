//! The problems on which `auto` is judged: gate and up projections of current models, by tokens and formats.

use silumin::codegen::spec::{Spec, SpecFile};
use silumin::{Arch, Shape};

/// A layer: name, widths (N: gate or up, K: hidden) and numbers of tokens.
type Layer = (&'static str, [u32; 2], &'static [u32]);

/// Dense layers, and single experts.
const LAYERS: [Layer; 8] = [
    ("Llama 3 8B", [14336, 4096], &[1, 16, 64, 256, 1024, 4096]),
    ("Llama 3 70B, one of 8", [3584, 8192], &[1, 16, 64, 256, 1024, 4096]),
    ("Qwen3 8B", [12288, 4096], &[8, 48, 192]),
    ("Qwen3 32B", [25600, 5120], &[1, 32, 128, 512]),
    ("DeepSeek V3, dense", [18432, 7168], &[1, 64, 128]),
    ("DeepSeek V3, an expert", [2048, 7168], &[16, 64, 128, 256, 512, 1024]),
    ("gpt-oss", [2880, 2880], &[1, 64, 256, 1024, 16384]),
    ("GPU MODE's benchmark", [4096, 7168], &[64, 256, 512]),
];

/// The other two shapes of the benchmark.
const MORE: [[u32; 3]; 2] = [[256, 3072, 4096], [512, 3072, 7168]];

/// Experts in one launch: number of groups, rows of all groups together, N, K.
const EXPERTS: [(u32, [u32; 3]); 4] =
    [(32, [64, 2048, 7168]), (32, [1024, 2048, 7168]), (32, [512, 2880, 2880]), (128, [2048, 768, 2048])];

/// A name, and formats of A, B and C.
pub const FORMATS: [(&str, [&str; 3]); 6] = [
    ("nvfp4", ["nvfp4", "nvfp4", "f16"]),
    ("mxfp4", ["mxfp4", "mxfp4", "bf16"]),
    ("mxfp8", ["mxfp8", "mxfp8", "bf16"]),
    ("mxfp8_mxfp4", ["mxfp8", "mxfp4", "bf16"]),
    ("e4m3", ["e4m3", "e4m3", "bf16"]),
    ("bf16", ["bf16", "bf16", "bf16"]),
];

/// One problem: a row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// M, N, K.
    pub sizes: [u32; 3],
    /// Number of groups; 0 for a single problem.
    pub groups: u32,
    /// Name in [`FORMATS`].
    pub formats: &'static str,
}

impl Problem {
    /// `64 x 4096 x 7168`, with the groups.
    pub fn name(&self) -> String {
        let [m, n, k] = self.sizes;
        match self.groups {
            0 => format!("{m} x {n} x {k}"),
            groups => format!("{m} x {n} x {k} in {groups} groups"),
        }
    }

    /// The spec and shape of its kernels, with default knobs.
    pub fn spec(&self, arch: Arch) -> Result<(Spec, Shape), String> {
        let [m, n, k] = self.sizes;
        let mut file = SpecFile::new(Shape::new(m, n, k));
        file.arch = arch.target().to_owned();
        file.groups = (self.groups > 0).then_some(self.groups);
        let formats = FORMATS.iter().find(|(name, _)| *name == self.formats);
        let (_, [a, b, c]) = formats.ok_or_else(|| format!("there are no formats `{}`", self.formats))?;
        let names = &mut file.formats;
        (names.a, names.b, names.c) = ((*a).to_owned(), (*b).to_owned(), (*c).to_owned());
        let (spec, _) = file.read().map_err(|e| e.to_string())?;
        Ok((spec, file.shape()))
    }

    /// Estimated cost of a simulation. Problems are taken in ascending order.
    pub fn size(&self) -> u64 {
        self.sizes.iter().map(|size| u64::from((*size).max(128))).product()
    }
}

/// All problems of the given formats, cheapest simulation first.
pub fn all(formats: &[&'static str]) -> Vec<Problem> {
    let layers = LAYERS.iter().flat_map(|(_, [n, k], tokens)| tokens.iter().map(|m| (0, [*m, *n, *k])));
    let shapes = layers.chain(MORE.map(|sizes| (0, sizes))).chain(EXPERTS);
    let shapes: Vec<(u32, [u32; 3])> = shapes.collect();
    let of = |formats: &&'static str| {
        let formats = *formats;
        shapes.iter().map(move |(groups, sizes)| Problem { sizes: *sizes, groups: *groups, formats })
    };
    let mut all: Vec<Problem> = formats.iter().flat_map(of).collect();
    all.sort_by_key(Problem::size);
    all
}
