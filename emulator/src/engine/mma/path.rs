//! Which instructions of the host do the arithmetic.

/// A set of host instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// AVX-512 (F, DQ, VL) with VNNI.
    Avx512,
    /// AVX2.
    Avx2,
    /// Plain code, vectorised by the compiler for the crate's target.
    Portable,
}

impl Path {
    /// Whether the processor has it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            Self::Portable => true,
        }
    }

    /// The paths this machine has, the fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        [Self::Avx512, Self::Avx2, Self::Portable].into_iter().filter(|path| path.is_available())
    }

    /// The fastest path this machine has.
    pub fn best() -> Self {
        Self::available().next().unwrap_or(Self::Portable)
    }

    /// Itself if the machine has it.
    pub(super) fn or_portable(self) -> Self {
        if self.is_available() { self } else { Self::Portable }
    }
}
