//! Operand types.

macro_rules! types {
    ($($name:ident $text:literal $bits:literal;)*) => {
        /// A PTX type, including the packed ones of `cvt`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the variants are the ISA's type names")]
        pub(crate) enum Ty { $($name,)* }
        impl Ty {
            /// The type named `text`, without its dot.
            pub(crate) fn parse(text: &str) -> Option<Ty> {
                match text { $($text => Some(Ty::$name),)* _ => None }
            }
            /// Size in bits (predicates count 1).
            pub(crate) const fn bits(self) -> u32 {
                match self { $(Ty::$name => $bits,)* }
            }
            /// The name without the dot.
            pub(crate) const fn text(self) -> &'static str {
                match self { $(Ty::$name => $text,)* }
            }
        }
    };
}

types! {
    Pred "pred" 1;
    B8 "b8" 8; B16 "b16" 16; B32 "b32" 32; B64 "b64" 64; B128 "b128" 128;
    U8 "u8" 8; U16 "u16" 16; U32 "u32" 32; U64 "u64" 64;
    S8 "s8" 8; S16 "s16" 16; S32 "s32" 32; S64 "s64" 64;
    U16x2 "u16x2" 32; S16x2 "s16x2" 32;
    F16 "f16" 16; F16x2 "f16x2" 32; Bf16 "bf16" 16; Bf16x2 "bf16x2" 32;
    F32 "f32" 32; F32x2 "f32x2" 64; F64 "f64" 64; Tf32 "tf32" 32;
    E4m3x2 "e4m3x2" 16; E5m2x2 "e5m2x2" 16;
    E2m1x2 "e2m1x2" 8; E2m3x2 "e2m3x2" 16; E3m2x2 "e3m2x2" 16; Ue8m0x2 "ue8m0x2" 16;
    E2m1x4 "e2m1x4" 16; E4m3x4 "e4m3x4" 32; S2f6x2 "s2f6x2" 16; E5m2x4 "e5m2x4" 32; E2m3x4 "e2m3x4" 32; E3m2x4 "e3m2x4" 32;
}

impl Ty {
    pub(crate) const fn signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }

    /// Whether the type is untyped bits (`.b8` to `.b128`).
    pub(crate) const fn bit(self) -> bool {
        matches!(self, Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64 | Ty::B128)
    }

    pub(crate) const fn integer(self) -> bool {
        matches!(
            self,
            Ty::B8
                | Ty::B16
                | Ty::B32
                | Ty::B64
                | Ty::U8
                | Ty::U16
                | Ty::U32
                | Ty::U64
                | Ty::S8
                | Ty::S16
                | Ty::S32
                | Ty::S64
        )
    }

    pub(crate) const fn float(self) -> bool {
        matches!(self, Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 | Ty::F32 | Ty::F32x2 | Ty::F64 | Ty::Tf32)
    }

    /// Bytes in memory.
    pub(crate) const fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }
}
