//! What a launch is handed.

use silumin_codegen::plan::{Operand, TensorMapRecipe};

use crate::device::Buffer;

/// The tensors and scalars of one launch. Layouts are those of
/// [`problem`](silumin_codegen::problem); lengths are exactly [`Operand::bytes`], so slice a buffer
/// that is longer. B1 and B2 may be two slices of one allocation. Which tensors there are is the
/// formats' business: one that is missing or too many is an error of the launch that names it.
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
    /// Codes of A, `[M, K]`.
    pub a: &'a Buffer,
    /// Codes of B1, `[N, K]`.
    pub b1: &'a Buffer,
    /// Codes of B2, `[N, K]`.
    pub b2: &'a Buffer,
    /// Blocked scale factors of A, where its format has them.
    pub sfa: Option<&'a Buffer>,
    /// Blocked scale factors of B1, where its format has them.
    pub sfb1: Option<&'a Buffer>,
    /// Blocked scale factors of B2, where its format has them.
    pub sfb2: Option<&'a Buffer>,
    /// C, `[M, N]`: written whole, never read.
    pub c: &'a Buffer,
    /// Blocked scale factors of C, where its format has them: written whole, pads included, never read.
    pub sfc: Option<&'a Buffer>,
    /// The scale of the whole C, where its format has one: finite and above 0. An element of C stands
    /// for its code times its scale factor times this.
    pub c_scale: Option<f32>,
    /// D1 and D2, `[M, N]`, the products as the gate reads them, where they are kept
    /// ([`ProductFormat`](silumin_codegen::problem::ProductFormat)): written whole, never read.
    pub d1: Option<&'a Buffer>,
    /// See `d1`.
    pub d2: Option<&'a Buffer>,
    /// A value for each scalar of the gate, by name.
    pub scalars: &'a [(&'a str, f32)],
    /// Where each group's rows start, and where the last one's end: i32 `[G + 1]`, where there are groups of rows. Read
    /// on the device.
    pub offsets: Option<&'a Buffer>,
    /// A buffer for each vector of the gate, by name: M or N elements of f32, as many as
    /// [`Groups`](silumin_codegen::problem::Groups) says where there are several matrices.
    pub vectors: &'a [(&'a str, &'a Buffer)],
    /// Rows that `a` has, where those are fewer than the kernel computes: the rows that are not there count as zeros, and
    /// no byte of them is read. Everything else has the kernel's rows. See [`Args::rows`].
    pub rows: Option<u32>,
}

impl<'a> Args<'a> {
    /// Operands and C, without scale factors or scalars.
    #[must_use]
    pub fn new(a: &'a Buffer, b1: &'a Buffer, b2: &'a Buffer, c: &'a Buffer) -> Self {
        Args {
            a,
            b1,
            b2,
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
        }
    }

    /// The same with fewer rows in `a` than the kernel computes: a batch of 37 tokens goes through the kernel of the bucket for
    /// 64 as it is, without a copy. C, its scale factors, kept products, A's scale factors and vectors that have an element a row
    /// keep the kernel's size; what C holds from row `rows` on is of no use. For one matrix, not for batches or groups of rows.
    #[must_use]
    pub fn rows(self, rows: u32) -> Self {
        Args { rows: Some(rows), ..self }
    }

    /// The same with scale factors of the operands.
    #[must_use]
    pub fn scales(self, sfa: &'a Buffer, sfb1: &'a Buffer, sfb2: &'a Buffer) -> Self {
        Args { sfa: Some(sfa), sfb1: Some(sfb1), sfb2: Some(sfb2), ..self }
    }

    /// The same with scale factors of C.
    #[must_use]
    pub fn output_scales(self, sfc: &'a Buffer) -> Self {
        Args { sfc: Some(sfc), ..self }
    }

    /// The same with a scale of the whole C.
    #[must_use]
    pub fn output_scale(self, c_scale: f32) -> Self {
        Args { c_scale: Some(c_scale), ..self }
    }

    /// The same with row offsets of groups.
    #[must_use]
    pub fn offsets(self, offsets: &'a Buffer) -> Self {
        Args { offsets: Some(offsets), ..self }
    }

    /// The same with what the gate reads of both products.
    #[must_use]
    pub fn products(self, d1: &'a Buffer, d2: &'a Buffer) -> Self {
        Args { d1: Some(d1), d2: Some(d2), ..self }
    }

    /// The same with values for the gate's scalars.
    #[must_use]
    pub fn scalars(self, scalars: &'a [(&'a str, f32)]) -> Self {
        Args { scalars, ..self }
    }

    /// The tensor of one role, if it is given.
    #[must_use]
    pub fn operand(&self, operand: Operand) -> Option<&'a Buffer> {
        match operand {
            Operand::A => Some(self.a),
            Operand::B1 => Some(self.b1),
            Operand::B2 => Some(self.b2),
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

    /// A tensor map's recipe with the rows that there are.
    pub(crate) fn in_rows(&self, recipe: &TensorMapRecipe) -> TensorMapRecipe {
        match self.rows {
            Some(rows) if recipe.operand == Operand::A && recipe.workspace.is_none() => {
                TensorMapRecipe { dims: [recipe.dims[0], rows.into()], ..*recipe }
            }
            _ => *recipe,
        }
    }

    /// The tensors that are given, by role.
    pub(crate) fn given(&self) -> impl Iterator<Item = (Operand, &'a Buffer)> {
        Operand::ALL.into_iter().filter_map(|operand| Some((operand, self.operand(operand)?)))
    }
}
