//! The arguments of one launch.

use silumin_codegen::plan::{Operand, TensorMapRecipe};
use silumin_codegen::problem::Problem;

use super::Buffer;

/// The tensors and scalars of one launch. Layouts are those of [`problem`](silumin_codegen::problem). Lengths are
/// exactly [`Operand::bytes`], so slice a buffer that is longer. B1 and B2 may be two slices of one allocation. The
/// formats decide which tensors there are: a missing or superfluous one is an error that names it.
///
/// ```
/// use silumin_codegen::arch::Arch;
/// use silumin_runtime::{device::Device, gemm::Args};
/// # fn main() -> Result<(), silumin_runtime::device::DeviceError> {
/// let device = Device::emulated(Arch::Sm100a);
/// let [a, b1, b2, c] = [32, 32, 32, 8].map(|bytes| device.alloc(bytes));
/// let (a, b1, b2, c) = (a?, b1?, b2?, c?);
/// let plain = Args::new(&a, &b1, &b2, &c);
/// let [sfa, sfb] = [device.alloc(512)?, device.alloc(512)?];
/// let scaled = plain.scales(&sfa, &sfb, &sfb).scalars(&[("alpha", 0.5)]);
/// # let _ = scaled;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// Codes of A, `[M, K]`, K contiguous.
    pub a: &'a Buffer,
    /// Codes of B1, `[N, K]`, K contiguous.
    pub b1: &'a Buffer,
    /// Codes of B2, `[N, K]`, K contiguous; `None` for a GEMM.
    pub b2: Option<&'a Buffer>,
    /// Scale factors of A in the blocked layout, if its format has them.
    pub sfa: Option<&'a Buffer>,
    /// Scale factors of B1 in the blocked layout, if its format has them.
    pub sfb1: Option<&'a Buffer>,
    /// Scale factors of B2 in the blocked layout, if its format has them.
    pub sfb2: Option<&'a Buffer>,
    /// C, `[M, N]`, row-major. The kernel writes all of it and reads none.
    pub c: &'a Buffer,
    /// Scale factors of C in the blocked layout, if its format has them. The kernel writes all of them, padding
    /// included, and reads none.
    pub sfc: Option<&'a Buffer>,
    /// The scale of the whole C, if its format has one: finite and above 0. An element of C is its code times its
    /// scale factor times this.
    pub c_scale: Option<f32>,
    /// D1, `[M, N]`: product 1 as the gate reads it, if it is kept
    /// ([`PreactivationFormat`](silumin_codegen::problem::PreactivationFormat)). The kernel writes all of it and reads none.
    pub d1: Option<&'a Buffer>,
    /// D2, `[M, N]`: product 2 as the gate reads it, if it is kept.
    pub d2: Option<&'a Buffer>,
    /// The value of each scalar of the gate, by name.
    pub scalars: &'a [(&'a str, f32)],
    /// Row offsets of groups, i32 `[G + 1]` in device memory: group g has the rows from `offsets[g]` up to `offsets[g
    /// + 1]`. Only for groups of rows.
    pub offsets: Option<&'a Buffer>,
    /// The buffer of each vector and matrix of the gate, by name. A vector is f32 and has M or N elements, a matrix has
    /// C's shape, in the format that [`Formats::matrix`](silumin_codegen::problem::Formats::matrix) says.
    /// [`Groups`](silumin_codegen::problem::Groups) says how many elements there are with several matrices.
    pub vectors: &'a [(&'a str, &'a Buffer)],
    /// Rows of A that count, if fewer than the kernel computes. See [`Args::rows`].
    pub rows: Option<u32>,
    /// The scales of the whole B1 and B2, if whoever made the arguments knows them. Kernels do not read them: the gate
    /// applies them through its scalars. A launch refuses scales other than 1 if the gate has no scalar. Set it to
    /// `None` if something else applies them, as a vector of the gate.
    pub weight_scales: Option<[f32; 2]>,
}

impl<'a> Args<'a> {
    /// The arguments of a launch without scale factors, scalars or vectors.
    #[must_use]
    pub fn new(a: &'a Buffer, b1: &'a Buffer, b2: &'a Buffer, c: &'a Buffer) -> Self {
        Args {
            a,
            b1,
            b2: Some(b2),
            sfa: None,
            sfb1: None,
            sfb2: None,
            c,
            sfc: None,
            c_scale: None,
            offsets: None,
            d1: None,
            d2: None,
            scalars: &[],
            vectors: &[],
            rows: None,
            weight_scales: None,
        }
    }

    /// The arguments of a GEMM without scale factors, scalars or vectors.
    #[must_use]
    pub fn gemm(a: &'a Buffer, b: &'a Buffer, c: &'a Buffer) -> Self {
        Args { b2: None, ..Args::new(a, b, b, c) }
    }

    /// Sets the scale factors of a GEMM's A and B.
    #[must_use]
    pub fn gemm_scales(self, sfa: &'a Buffer, sfb: &'a Buffer) -> Self {
        Args { sfa: Some(sfa), sfb1: Some(sfb), sfb2: None, ..self }
    }

    /// Sets the buffers of the gate's vectors and matrices, by name.
    #[must_use]
    pub fn vectors(self, vectors: &'a [(&'a str, &'a Buffer)]) -> Self {
        Args { vectors, ..self }
    }

    /// Sets the number of rows that count to fewer than the kernel computes. So a batch of 37 tokens uses the kernel of
    /// the bucket for 64 without a copy, and 1,100 tokens in the bucket for 2,048 take about 0.6 of its time: a kernel with several rows
    /// of tiles leaves out items of work behind the rows that count, unless parts of K are shared out (`split_k`, `stream_k`) or the
    /// gate has a kernel of its own (`two_pass`). An item is a tile, or those that a cluster computes together.
    ///
    /// `a` has these rows, or all of the kernel's, of which the last do not matter: Hopper reads rows that a buffer has faster than
    /// rows that it lacks. C, its scale factors, kept pre-activations, A's scale factors and vectors along M keep the kernel's size. What C,
    /// its scale factors and kept pre-activations hold from row `rows` on is meaningless; it may be what was there before. A's scale factors and
    /// vectors along M are still read in the last tile. Only for one matrix, not for batches or groups of rows.
    #[must_use]
    pub fn rows(self, rows: u32) -> Self {
        Args { rows: Some(rows), ..self }
    }

    /// Sets the scale factors of A, B1 and B2.
    #[must_use]
    pub fn scales(self, sfa: &'a Buffer, sfb1: &'a Buffer, sfb2: &'a Buffer) -> Self {
        Args { sfa: Some(sfa), sfb1: Some(sfb1), sfb2: Some(sfb2), ..self }
    }

    /// Sets the scale factors of C.
    #[must_use]
    pub fn output_scales(self, sfc: &'a Buffer) -> Self {
        Args { sfc: Some(sfc), ..self }
    }

    /// Sets the scale of the whole C.
    #[must_use]
    pub fn output_scale(self, c_scale: f32) -> Self {
        Args { c_scale: Some(c_scale), ..self }
    }

    /// Sets the row offsets of groups.
    #[must_use]
    pub fn offsets(self, offsets: &'a Buffer) -> Self {
        Args { offsets: Some(offsets), ..self }
    }

    /// Sets the buffers of D1 and D2.
    #[must_use]
    pub fn preactivations(self, d1: &'a Buffer, d2: &'a Buffer) -> Self {
        Args { d1: Some(d1), d2: Some(d2), ..self }
    }

    /// Sets the values of the gate's scalars.
    #[must_use]
    pub fn scalars(self, scalars: &'a [(&'a str, f32)]) -> Self {
        Args { scalars, ..self }
    }

    /// The tensor of an operand, if it is given.
    #[must_use]
    pub fn operand(&self, operand: Operand) -> Option<&'a Buffer> {
        match operand {
            Operand::A => Some(self.a),
            Operand::B1 => Some(self.b1),
            Operand::B2 => self.b2,
            Operand::Sfa => self.sfa,
            Operand::Sfb1 => self.sfb1,
            Operand::Sfb2 => self.sfb2,
            Operand::C => Some(self.c),
            Operand::Sfc => self.sfc,
            Operand::Offsets => self.offsets,
            Operand::D1 => self.d1,
            Operand::D2 => self.d2,
        }
    }

    /// The rows of a problem's A, if it has fewer than the kernel computes.
    pub(crate) fn rows_of_a(&self, problem: &Problem) -> Option<u32> {
        self.rows.filter(|_| (self.a.len() as u64) < Operand::A.bytes(problem))
    }

    /// The recipe of a tensor map for the rows that A has.
    pub(crate) fn in_rows(&self, recipe: &TensorMapRecipe, problem: &Problem) -> TensorMapRecipe {
        match self.rows_of_a(problem) {
            Some(rows) if recipe.operand == Operand::A && recipe.workspace.is_none() => {
                TensorMapRecipe { dims: [recipe.dims[0], rows.into()], ..*recipe }
            }
            _ => *recipe,
        }
    }

    /// The tensors that are given, by operand.
    pub(crate) fn given(&self) -> impl Iterator<Item = (Operand, &'a Buffer)> {
        Operand::ALL.into_iter().filter_map(|operand| Some((operand, self.operand(operand)?)))
    }
}
