//! Operands.

use rayon::prelude::*;
use silumin_codegen::problem::{ElementKind, Formats, Shape};
use silumin_formats::{Matrix, element};
use silumin_verify::inputs::{Distribution, DualGemmInputs};

/// Standard deviation of elements without scale factors in [`Distribution::Benchmark`]; those with scale factors are
/// close to it.
const DRAWN: f32 = 0.5;

/// Draws operands. `benchmark` and `full` are the variants of [`Distribution`]. `peers` is the distribution of the
/// peers' script for 16-bit operands: A has deviation 1 and B 1 / sqrt(K), so that the gate's input is about standard
/// normal. An operand of another format is drawn as in `benchmark`, and the other operand is scaled to compensate.
pub fn draw(shape: Shape, formats: Formats, name: &str, seed: u64) -> Result<DualGemmInputs, String> {
    let distribution = match name {
        "full" => Distribution::Full,
        "benchmark" | "peers" => Distribution::Benchmark,
        other => return Err(format!("--inputs: `{other}` is none of: peers, benchmark, full")),
    };
    let drawn = match shape.groups.by_rows() {
        true => DualGemmInputs::generate_grouped(shape, &shape.even_sizes(), formats, distribution, seed),
        false => DualGemmInputs::generate_for(shape, formats, distribution, seed),
    };
    let mut inputs = drawn.map_err(|e| e.to_string())?;
    if name == "peers" {
        let root = (shape.k as f32).sqrt();
        let wide =
            |matrix: &Matrix| matches!(matrix.format().spec().element, ElementKind::Bf16 | ElementKind::F16);
        match (wide(&inputs.a), wide(&inputs.b1)) {
            (true, true) => {
                inputs.a = scaled(&inputs.a, 1.0 / DRAWN)?;
                inputs.b1 = scaled(&inputs.b1, 1.0 / DRAWN / root)?;
                inputs.b2 = scaled(&inputs.b2, 1.0 / DRAWN / root)?;
            }
            (true, false) => inputs.a = scaled(&inputs.a, 1.0 / DRAWN / DRAWN / root)?,
            _ => {}
        }
    }
    Ok(inputs)
}

/// A matrix of 16-bit floats multiplied by a number, rounded.
fn scaled(matrix: &Matrix, factor: f32) -> Result<Matrix, String> {
    let kind = matrix.format().spec().element;
    let table: Vec<u16> =
        (0..=u16::MAX).map(|code| element::encode(kind, element::decode(kind, code) * factor)).collect();
    let mut codes = matrix.codes().to_vec();
    codes.par_chunks_mut(1 << 16).for_each(|run| {
        for pair in run.as_chunks_mut::<2>().0 {
            *pair = table[usize::from(u16::from_le_bytes(*pair))].to_le_bytes();
        }
    });
    Matrix::new(matrix.format(), matrix.rows(), matrix.k(), codes, Vec::new(), 1.0).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job;

    #[test]
    fn the_gate_s_input_is_about_standard_normal() {
        for format in ["bf16", "f16"] {
            let inputs = draw(Shape::new(64, 96, 2048), job::formats(format).unwrap(), "peers", 5).unwrap();
            let sums = silumin_verify::reference::gemm(&inputs.a, &inputs.b1).unwrap();
            let variance = sums.iter().map(|sum| sum * sum).sum::<f64>() / sums.len() as f64;
            assert!((0.8..1.2).contains(&variance), "{format}: {variance}");
        }
        assert!(draw(Shape::new(8, 8, 64), Formats::default(), "normal", 5).is_err());
    }
}
