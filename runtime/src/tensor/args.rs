//! Matrices as the arguments of a launch.

use silumin_codegen::plan::Operand;
use silumin_codegen::problem::{Groups, Operation};

use super::{Element, Matrix, TensorError};
use crate::gemm::{Args, LoadedKernel};

impl LoadedKernel {
    /// The arguments of a launch: A `[M, K]`, B1 and B2 `[N, K]`, C `[M, N]`. Shapes and formats are checked against the kernel.
    /// A may have fewer rows than the kernel computes: see [`Args::rows`]. Scale factors come along, and so does the scale of the
    /// whole C. Scalars and vectors of the gate are added with [`Args::scalars`] and [`Args::vectors`].
    ///
    /// # Errors
    ///
    /// [`TensorError::OperandFormat`], [`TensorError::OperandShape`], [`TensorError::Products`], [`TensorError::Groups`],
    /// [`TensorError::ReadOnly`]; [`TensorError::UnappliedScale`] if a matrix has a tensor scale other than 1 and the gate has no
    /// scalar.
    pub fn args<'a>(
        &self,
        a: &'a Matrix<impl Element>,
        b1: &'a Matrix<impl Element>,
        b2: &'a Matrix<impl Element>,
        c: &'a Matrix<impl Element>,
    ) -> Result<Args<'a>, TensorError> {
        self.check_preactivations(true)?;
        self.check_matrix(Operand::B2, b2)?;
        self.check_scale(a, Operand::B2, b2)?;
        let args = self.gemm_part(a, b1, c)?;
        Ok(Args { b2: Some(b2.buffer()), sfb2: b2.scales(), ..args })
    }

    /// The arguments of a launch of a GEMM: A `[M, K]`, B `[N, K]`, C `[M, N]`. As [`LoadedKernel::args`].
    ///
    /// # Errors
    ///
    /// As [`LoadedKernel::args`].
    pub fn gemm_args<'a>(
        &self,
        a: &'a Matrix<impl Element>,
        b: &'a Matrix<impl Element>,
        c: &'a Matrix<impl Element>,
    ) -> Result<Args<'a>, TensorError> {
        self.check_preactivations(false)?;
        self.gemm_part(a, b, c)
    }

    fn gemm_part<'a>(
        &self,
        a: &'a Matrix<impl Element>,
        b: &'a Matrix<impl Element>,
        c: &'a Matrix<impl Element>,
    ) -> Result<Args<'a>, TensorError> {
        let problem = self.kernel().problem;
        if problem.shape.groups != Groups::One {
            return Err(TensorError::Groups { problem });
        }
        self.check_matrix(Operand::A, a)?;
        self.check_matrix(Operand::B1, b)?;
        self.check_matrix(Operand::C, c)?;
        self.check_scale(a, Operand::B1, b)?;
        if c.is_read_only() {
            return Err(TensorError::ReadOnly);
        }
        let rows = (a.rows() < problem.shape.m as usize).then_some(a.rows() as u32);
        Ok(Args {
            sfa: a.scales(),
            sfb1: b.scales(),
            sfc: c.scales(),
            c_scale: problem.formats.c.has_tensor_scale().then_some(c.tensor_scale()),
            rows,
            ..Args::gemm(a.buffer(), b.buffer(), c.buffer())
        })
    }

    fn check_preactivations(&self, dual: bool) -> Result<(), TensorError> {
        let has_two = self.kernel().problem.operation == Operation::DualGemm;
        match has_two == dual {
            true => Ok(()),
            false => {
                Err(TensorError::Products { gate: self.dual_gemm().spec().gate.to_string(), dual: has_two })
            }
        }
    }

    fn check_matrix<T: Element>(&self, operand: Operand, matrix: &Matrix<T>) -> Result<(), TensorError> {
        let problem = self.kernel().problem;
        let (shape, formats) = (problem.shape, problem.formats);
        let (fits, expected, [expected_rows, expected_columns]) = match operand {
            Operand::C => (T::OUTPUT == formats.c, formats.c.name(), [shape.m, shape.n]),
            Operand::A => (T::OPERAND == Some(formats.a), formats.a.spec().name, [shape.m, shape.k]),
            _ => (T::OPERAND == Some(formats.b), formats.b.spec().name, [shape.n, shape.k]),
        };
        if !fits {
            return Err(TensorError::OperandFormat { operand, found: T::OUTPUT.name(), expected, problem });
        }
        let (rows, columns) = (matrix.rows(), matrix.columns());
        let fewer = operand == Operand::A && matrix.scales().is_none() && rows < expected_rows as usize;
        if columns != expected_columns as usize || rows != expected_rows as usize && !fewer {
            return Err(TensorError::OperandShape {
                operand,
                rows,
                columns,
                expected_rows,
                expected_columns,
                problem,
            });
        }
        Ok(())
    }

    fn check_scale(
        &self,
        a: &Matrix<impl Element>,
        b: Operand,
        weight: &Matrix<impl Element>,
    ) -> Result<(), TensorError> {
        let scale = a.tensor_scale() * weight.tensor_scale();
        let gate = &self.dual_gemm().spec().gate;
        match scale != 1.0 && gate.expr.scalars().is_empty() && gate.expr.vectors().is_empty() {
            true => Err(TensorError::UnappliedScale { gate: gate.to_string(), a: Operand::A, b, scale }),
            false => Ok(()),
        }
    }
}
