//! The gate's vectors on a device: uploaded, and checked before a launch.

use silumin_codegen::gate::{Expr, GateVector};
use silumin_codegen::plan::Operand;
use silumin_codegen::problem::Problem;
use silumin_verify::vectors::{ALIGNMENT, GateVectors, VectorError, check_length, check_names};

use super::Args;
use crate::device::{Buffer, Device, DeviceError};

/// Uploads each vector, and returns its buffer by name, for [`Args::vectors`].
///
/// # Errors
///
/// The device has too little memory, or refuses a copy.
pub fn upload_vectors(vectors: &GateVectors, device: &Device) -> Result<Vec<(String, Buffer)>, DeviceError> {
    vectors.bytes().map(|(name, bytes)| Ok((name.to_owned(), device.upload(&bytes)?))).collect()
}

/// Checks the vectors of a launch: names, lengths, alignment, device, and overlap with outputs.
pub(super) fn check(
    gate: &Expr,
    known: &[GateVector],
    problem: &Problem,
    device: &Device,
    args: &Args<'_>,
) -> Result<(), VectorError> {
    check_names(gate, known, problem, args.vectors.iter().map(|(name, _)| *name))?;
    for vector in known {
        let Some((_, buffer)) = args.vectors.iter().find(|(name, _)| *name == vector.name) else { continue };
        if buffer.device() != device {
            let (found, device) = (buffer.device().numbered(), device.numbered());
            return Err(VectorError::Device { vector: vector.clone(), found, device });
        }
        check_length(vector, problem, buffer.len() as u64)?;
        if !buffer.is_aligned(ALIGNMENT) {
            return Err(VectorError::Alignment { vector: vector.clone() });
        }
        let mut outputs = args.given().filter(|(operand, _)| operand.is_output());
        // A thread reads the elements of a matrix whose places in C it writes, and reads them first.
        let in_place = |operand: Operand, output: &Buffer| {
            operand == Operand::C
                && vector.is_matrix()
                && problem.formats.matrix() == problem.formats.c
                && output.is_same(buffer)
        };
        let apart = |operand: Operand, output: &Buffer| !output.overlaps(buffer) || in_place(operand, output);
        if let Some((output, _)) = outputs.find(|(operand, output)| !apart(*operand, output)) {
            return Err(VectorError::Aliasing { output, vector: vector.clone() });
        }
    }
    Ok(())
}
