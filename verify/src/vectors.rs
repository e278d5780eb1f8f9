//! Vectors and matrices of a gate: their elements on the host, drawn for verification, and the checks of what a caller gives.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use silumin_codegen::gate::{Expr, GateVector};
use silumin_codegen::plan::Operand;
use silumin_codegen::problem::{ElementKind, OutputFormat, Problem, Shape};
use silumin_formats::element;
use thiserror::Error;

/// Alignment of a vector, in bytes: what vector loads need.
pub const ALIGNMENT: usize = 16;

/// Why a vector of a gate is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VectorError {
    /// A vector was not given.
    #[error("the gate `{gate}` reads `{vector}`: add it to the vectors, {elements} elements of {format}")]
    Missing {
        /// The gate.
        gate: String,
        /// The vector.
        vector: GateVector,
        /// Its elements.
        elements: u64,
        /// The format of an element.
        format: OutputFormat,
    },
    /// A given vector is not in the gate.
    #[error("the gate `{gate}` has no vector `{name}`; it has: {known}")]
    Unknown {
        /// The gate.
        gate: String,
        /// As given.
        name: String,
        /// Its vectors.
        known: String,
    },
    /// One vector twice.
    #[error("the vector `{name}` is given twice: give it once")]
    Duplicate {
        /// The vector.
        name: String,
    },
    /// Too few or too many elements.
    #[error("`{vector}` has {found} bytes, but in the problem of {shape} it has {expected}: {} for each of its {} elements", .expected / vector.elements(*.shape).max(1), vector.elements(*.shape))]
    Length {
        /// The vector.
        vector: GateVector,
        /// Bytes given.
        found: u64,
        /// Bytes that it has.
        expected: u64,
        /// The problem's shape.
        shape: Shape,
    },
    /// The address is not aligned for vector loads.
    #[error("`{vector}` starts at an address that is not a multiple of {ALIGNMENT}: slice at one that is")]
    Alignment {
        /// The vector.
        vector: GateVector,
    },
    /// The vector is on another device.
    #[error("`{vector}` is on another device ({found}) than the kernel ({device}): upload it there")]
    Device {
        /// The vector.
        vector: GateVector,
        /// Where it is.
        found: String,
        /// The kernel's device.
        device: String,
    },
    /// An output of the kernel overlaps the vector.
    #[error(
        "`{output}` shares memory with `{vector}`: the kernel still reads that while it writes `{output}`, so give `{output}` memory of its own"
    )]
    Aliasing {
        /// The output.
        output: Operand,
        /// The vector.
        vector: GateVector,
    },
    /// The kernel changed a vector.
    #[error("`{kernel}` wrote to the vector `{name}`, which is an input; please report this")]
    Written {
        /// The kernel.
        kernel: String,
        /// The vector.
        name: String,
    },
}

/// Checks that each vector of the gate is given exactly once, and nothing else.
///
/// # Errors
///
/// The first name that is missing, unknown or given twice.
pub fn check_names<'a>(
    gate: &Expr,
    known: &[GateVector],
    problem: &Problem,
    given: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), VectorError> {
    for (position, name) in given.clone().enumerate() {
        if !known.iter().any(|vector| vector.name == *name) {
            let names: Vec<String> = known.iter().map(GateVector::to_string).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(VectorError::Unknown { gate: gate.to_string(), name: name.to_owned(), known });
        }
        if given.clone().take(position).any(|other| other == name) {
            return Err(VectorError::Duplicate { name: name.to_owned() });
        }
    }
    match known.iter().find(|vector| !given.clone().any(|name| name == vector.name)) {
        Some(vector) => {
            let elements = vector.elements(problem.shape);
            let format = format_of(vector, problem);
            Err(VectorError::Missing { gate: gate.to_string(), vector: vector.clone(), elements, format })
        }
        None => Ok(()),
    }
}

/// The format of an element: f32, or that of the problem's matrices.
fn format_of(vector: &GateVector, problem: &Problem) -> OutputFormat {
    if vector.is_matrix() { problem.formats.matrix() } else { OutputFormat::F32 }
}

/// The elements as they are stored: 16 bits of a matrix in bf16 or f16, else f32.
fn rounded(format: OutputFormat) -> Option<ElementKind> {
    match format {
        OutputFormat::Bf16 => Some(ElementKind::Bf16),
        OutputFormat::F16 => Some(ElementKind::F16),
        OutputFormat::F32 | OutputFormat::E4m3 | OutputFormat::Nvfp4 | OutputFormat::Mxfp8 => None,
    }
}

/// Checks the size of a vector or a matrix.
///
/// # Errors
///
/// [`VectorError::Length`].
pub fn check_length(vector: &GateVector, problem: &Problem, found: u64) -> Result<(), VectorError> {
    let expected = vector.bytes(problem);
    if found == expected {
        return Ok(());
    }
    Err(VectorError::Length { vector: vector.clone(), found, expected, shape: problem.shape })
}

/// Elements of all vectors and matrices of a gate, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct GateVectors {
    /// Elements as f32; those of a matrix are rounded to its format.
    values: Vec<(GateVector, Vec<f32>)>,
    matrix: OutputFormat,
}

impl GateVectors {
    /// The vectors of `gate` with the given elements, by name. Those of a matrix are rounded to its format.
    ///
    /// # Errors
    ///
    /// A vector that is missing, unknown, given twice, or not as long as it has to be.
    pub fn new(gate: &Expr, problem: &Problem, given: &[(&str, &[f32])]) -> Result<Self, VectorError> {
        let known = gate.vectors();
        check_names(gate, &known, problem, given.iter().map(|(name, _)| *name))?;
        let mut values = Vec::new();
        for vector in known {
            let elements = given.iter().find(|(name, _)| *name == vector.name).map_or(&[][..], |(_, e)| *e);
            let bytes = format_of(&vector, problem).bytes();
            check_length(&vector, problem, u64::from(bytes) * elements.len() as u64)?;
            values.push(round(vector, elements.to_vec(), problem));
        }
        Ok(Self { values, matrix: problem.formats.matrix() })
    }

    /// Draws elements for `vectors`: of both signs, magnitudes uniform in [0.5, 1.5), so that they suit as factors,
    /// terms and divisors. The same arguments give the same bytes.
    #[must_use]
    pub fn draw(vectors: &[GateVector], problem: &Problem, seed: u64) -> Self {
        let draw = |(stream, vector): (u64, &GateVector)| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            // Beside the streams of the operands' rows.
            random.set_stream(u64::MAX - stream);
            let elements = (0..vector.elements(problem.shape)).map(|_| {
                let word = random.next_u32();
                let magnitude = 0.5 + (word >> 8) as f32 / (1 << 24) as f32;
                if word & 1 == 0 { magnitude } else { -magnitude }
            });
            round(vector.clone(), elements.collect(), problem)
        };
        Self { values: (0..).zip(vectors).map(draw).collect(), matrix: problem.formats.matrix() }
    }

    /// Each vector with its elements, in the order of [`Expr::vectors`].
    pub fn iter(&self) -> impl Iterator<Item = (&GateVector, &[f32])> {
        self.values.iter().map(|(vector, elements)| (vector, elements.as_slice()))
    }

    /// The bytes of each vector, as a kernel reads them.
    pub fn bytes(&self) -> impl Iterator<Item = (&str, Vec<u8>)> {
        self.iter().map(|(vector, elements)| {
            let bytes = match rounded(self.matrix).filter(|_| vector.is_matrix()) {
                Some(kind) => elements.iter().flat_map(|x| element::encode(kind, *x).to_le_bytes()).collect(),
                None => elements.iter().flat_map(|element| element.to_le_bytes()).collect(),
            };
            (vector.name.as_str(), bytes)
        })
    }
}

/// A vector with its elements, those of a matrix rounded to its format.
fn round(vector: GateVector, mut elements: Vec<f32>, problem: &Problem) -> (GateVector, Vec<f32>) {
    if let Some(kind) = rounded(problem.formats.matrix()).filter(|_| vector.is_matrix()) {
        elements.iter_mut().for_each(|x| *x = element::decode(kind, element::encode(kind, *x)));
    }
    (vector, elements)
}
