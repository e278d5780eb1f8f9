//! Tensor copies of every type and mode at coordinates on and off the grid of 16 bytes against what an H200 made of them:
//! `corpus/hardware/tma_grid.txt`.

use crate::common::truth;

use silumin_emulator::launch_file::LaunchFile;
use silumin_emulator::{FindingKind, Options, Tracking};
use std::fs;
use std::path::{Path, PathBuf};

const CASES: &str = include_str!("corpus/hardware/tma_grid.txt");
const PTX: &str = include_str!("corpus/hardware/tma_grid.ptx");
/// Bytes of the tensor's buffer, of which no two pairs are the same.
const DATA: u32 = 16384;

/// One launch: `RESULT MODE TYPE COORDINATES ELEMENT_STRIDES EXTRA`.
#[derive(Debug)]
struct Case {
    /// `stopped`, or the hash of what it left.
    result: &'static str,
    mode: &'static str,
    ty: &'static str,
    coordinates: Vec<i32>,
    /// Element strides of the innermost dimensions; the others have 1.
    steps: Vec<u32>,
    /// A swizzle or an interleave, or `-`.
    extra: &'static str,
}

fn numbers<T: std::str::FromStr<Err: std::fmt::Debug>>(list: &str) -> Vec<T> {
    list.split(',').map(|n| n.parse().expect("a number")).collect()
}

fn cases() -> Vec<Case> {
    let lines = CASES.lines().filter(|l| !l.starts_with('#'));
    let case = |line: &'static str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let &[result, mode, ty, coordinates, steps, extra] = &fields[..] else {
            panic!("this line of the list has {} fields: {line}", fields.len());
        };
        Case { result, mode, ty, coordinates: numbers(coordinates), steps: numbers(steps), extra }
    };
    lines.map(case).collect()
}

impl Case {
    fn name(&self) -> String {
        let coordinates: Vec<String> = self.coordinates.iter().map(i32::to_string).collect();
        let steps: Vec<String> = self.steps.iter().map(u32::to_string).collect();
        let (at, steps) = (coordinates.join("_"), steps.join("_"));
        format!("tma_grid-{}-{}-{at}-by-{steps}-{}", self.mode, self.ty, self.extra)
    }

    fn size(&self) -> u32 {
        match self.ty {
            "u8" => 1,
            "u16" | "f16" | "bf16" => 2,
            "u64" | "i64" | "f64" => 8,
            _ => 4,
        }
    }

    /// The launch file, for a folder with `k.ptx` and `data.bin`.
    fn launch(&self) -> String {
        let (number, dims, sizes): (u32, &[u32], &[u32]) = match self.mode {
            "load_2d" => (0, &[64, 8], &[16, 4]),
            "store_2d" => (1, &[64, 8], &[16, 4]),
            "reduce_2d" => (2, &[64, 8], &[16, 4]),
            // Eight pixels of sixteen channels.
            "load_im2col" => (3, &[32, 6, 5, 2], &[16, 8]),
            "store_im2col" => (4, &[32, 6, 5, 2], &[16, 8]),
            "prefetch_2d" => (5, &[64, 8], &[16, 4]),
            "load_1d" => (6, &[512], &[16]),
            "load_3d" => (7, &[64, 4, 4], &[16, 2, 2]),
            "load_5d" => (8, &[64, 4, 2, 2, 2], &[16, 2, 2, 1, 1]),
            "store_3d" => (9, &[64, 4, 4], &[16, 2, 2]),
            other => panic!("there is no mode {other}"),
        };
        let mut sizes = sizes.to_vec();
        let mut modes = String::new();
        match self.extra {
            "-" => {}
            "interleave_16b" => {
                sizes[0] = 16 / self.size();
                modes = ", interleave = \"16b\"".to_owned();
            }
            "interleave_32b" => {
                sizes[0] = 32 / self.size();
                modes = ", interleave = \"32b\", swizzle = \"32b\"".to_owned();
            }
            swizzle => modes = format!(", swizzle = \"{swizzle}\""),
        }
        let bytes = sizes.iter().product::<u32>() * self.size();
        let mut strides = Vec::new();
        let mut stride = self.size();
        for dim in &dims[..dims.len() - 1] {
            stride *= dim;
            strides.push(stride);
        }
        let mut steps = vec![1; dims.len()];
        steps[..self.steps.len()].copy_from_slice(&self.steps);
        let shape = if self.mode.ends_with("im2col") {
            "lower_corner = [0, 0], upper_corner = [0, 0], channels = 16, pixels = 8".to_owned()
        } else {
            // That of the innermost dimension is ignored.
            let step = |i: usize| if i == 0 { 1 } else { steps[i] };
            let sizes: Vec<u32> = sizes.iter().enumerate().map(|(i, size)| size * step(i)).collect();
            format!("box = {sizes:?}")
        };
        let mut text = format!(
            "ptx = \"k.ptx\"\nkernel = \"tma_grid\"\ngrid = [1, 1, 1]\nblock = [64, 1, 1]\n\
             [buffers.data]\nfile = \"data.bin\"\n[buffers.out]\nbytes = 1024\n\
             [[params]]\ntensor_map = {{ buffer = \"data\", data_type = \"{}\", dims = {dims:?}, strides = {strides:?}, \
             element_strides = {steps:?}, {shape}{modes} }}\n\
             [[params]]\nu32 = {number}\n[[params]]\nu32 = {bytes}\n",
            self.ty
        );
        for i in 0..5 {
            let coordinate = self.coordinates.get(i).copied().unwrap_or(0);
            text += &format!("[[params]]\ni32 = {coordinate}\n");
        }
        text + "[[params]]\npointer = \"out\"\n"
    }
}

/// Where the launch is written: a folder that is carried to a machine with a GPU, or one that goes away.
fn write(case: &Case, root: &Path) -> PathBuf {
    let folder = root.join(case.name());
    fs::create_dir_all(folder.join("expected")).expect("a folder");
    let data: Vec<u8> = (0..DATA as u16 / 2).flat_map(|i| (0x3c00 + i).to_le_bytes()).collect();
    for (name, bytes) in
        [("k.ptx", PTX.as_bytes()), ("data.bin", &data), ("launch.toml", case.launch().as_bytes())]
    {
        fs::write(folder.join(name), bytes).expect("a file");
    }
    folder
}

/// The emulator's result: the hash of both buffers, `stopped`, or `refused` for a tensor map that is not modelled.
fn run(folder: &Path) -> Result<String, String> {
    let file = match LaunchFile::read(&folder.join("launch.toml")) {
        Ok(file) => file,
        Err(e) if e.to_string().contains("interleaved tensor maps are not modelled") => {
            return Ok("refused".to_owned());
        }
        Err(e) => return Err(e.to_string()),
    };
    let (memory, buffers) = file.allocate();
    let options = Options { tracking: Tracking::HappensBefore, ..Options::default() };
    let report = file.module.run(&file.kernel, &file.launch, &memory, &options).map_err(|e| e.to_string())?;
    match report.findings.first() {
        Some(finding) if finding.kind == FindingKind::IllegalTensorMap => return Ok("stopped".to_owned()),
        Some(finding) => return Err(finding.to_string()),
        None => {}
    }
    let mut all = Vec::new();
    for (spec, buffer) in file.buffers.iter().zip(&buffers) {
        let bytes = memory.read(buffer);
        fs::write(folder.join("expected").join(format!("{}.bin", spec.name)), &bytes)
            .map_err(|e| e.to_string())?;
        all.extend(bytes);
    }
    Ok(format!("{:016x}", truth::hash(&all)))
}

#[test]
fn tensor_copies_are_those_of_an_h200() {
    let away = tempfile::tempdir().expect("a folder");
    let root = std::env::var_os("SILUMIN_EXPORT").map_or(away.path().to_owned(), PathBuf::from);
    let mut wrong = Vec::new();
    let mut stopped = String::new();
    let all = cases();
    for case in &all {
        let folder = write(case, &root);
        let got = run(&folder).unwrap_or_else(|e| e);
        if got == "stopped" {
            stopped += &format!("{} data {DATA} stopped\n", case.name());
        }
        // What the emulator has no model of it has to refuse, whatever the GPU does.
        let right = if case.extra.starts_with("interleave") { got == "refused" } else { got == case.result };
        if !right {
            wrong.push(format!("{}: {got}, should be {}", case.name(), case.result));
        }
    }
    if std::env::var_os("SILUMIN_EXPORT").is_some() {
        fs::write(root.join("stopped.txt"), stopped).expect("a list");
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    assert!(all.len() >= 90, "{} cases", all.len());
}
