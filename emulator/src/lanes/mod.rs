//! Arithmetic on the 32 lanes of a warp: one function per operation and type.
//!
//! A register is `[u64; 32]`, zero-extended to 64 bits for every type. The functions compute all lanes, inactive ones
//! too, so that the loops vectorise; the caller stores results under the active mask. No function here may panic,
//! whatever its input.

pub(crate) mod atomic;
pub(crate) mod convert;
pub(crate) mod double;
pub(crate) mod float;
pub(crate) mod int;
pub(crate) mod mufu;
pub(crate) mod narrow;
pub(crate) mod round;
pub(crate) mod simd;
pub(crate) mod video;

/// One register's values in the 32 lanes.
pub(crate) type Lanes = [u64; 32];
/// One-source operation.
pub(crate) type F1 = fn(&Lanes, &mut Lanes);
/// Two-source operation.
pub(crate) type F2 = fn(&Lanes, &Lanes, &mut Lanes);
/// Three-source operation.
pub(crate) type F3 = fn(&Lanes, &Lanes, &Lanes, &mut Lanes);
/// A comparison, with one result bit per lane.
pub(crate) type Cmp = fn(&Lanes, &Lanes) -> u32;

/// A function of up to three words, applied lane by lane, for operations too rare to need vectorised code.
#[derive(Clone)]
pub(crate) struct Pure(std::sync::Arc<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>);

impl Pure {
    pub fn new(f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static) -> Self {
        Pure(std::sync::Arc::new(f))
    }

    pub fn apply(&self, a: u64, b: u64, c: u64) -> u64 {
        (self.0)(a, b, c)
    }
}

impl std::fmt::Debug for Pure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pure")
    }
}

/// Lifts a `u64 -> u64` expression to 32 lanes.
macro_rules! l1 {
    (|$a:ident| $e:expr) => {{
        fn op(x: &$crate::lanes::Lanes, d: &mut $crate::lanes::Lanes) {
            for i in 0..32 {
                let $a: u64 = x[i];
                d[i] = $e;
            }
        }
        op as $crate::lanes::F1
    }};
}
/// Lifts a `(u64, u64) -> u64` expression to 32 lanes.
macro_rules! l2 {
    (|$a:ident, $b:ident| $e:expr) => {{
        fn op(x: &$crate::lanes::Lanes, y: &$crate::lanes::Lanes, d: &mut $crate::lanes::Lanes) {
            for i in 0..32 {
                let $a: u64 = x[i];
                let $b: u64 = y[i];
                d[i] = $e;
            }
        }
        op as $crate::lanes::F2
    }};
}
/// Lifts a `(u64, u64, u64) -> u64` expression to 32 lanes.
macro_rules! l3 {
    (|$a:ident, $b:ident, $c:ident| $e:expr) => {{
        fn op(
            x: &$crate::lanes::Lanes,
            y: &$crate::lanes::Lanes,
            z: &$crate::lanes::Lanes,
            d: &mut $crate::lanes::Lanes,
        ) {
            for i in 0..32 {
                let $a: u64 = x[i];
                let $b: u64 = y[i];
                let $c: u64 = z[i];
                d[i] = $e;
            }
        }
        op as $crate::lanes::F3
    }};
}
/// Lifts a `(u64, u64) -> bool` expression to a lane mask.
macro_rules! lc {
    (|$a:ident, $b:ident| $e:expr) => {{
        fn op(x: &$crate::lanes::Lanes, y: &$crate::lanes::Lanes) -> u32 {
            let mut m = 0u32;
            for i in 0..32 {
                let $a: u64 = x[i];
                let $b: u64 = y[i];
                m |= u32::from($e) << i;
            }
            m
        }
        op as $crate::lanes::Cmp
    }};
}
pub(crate) use {l1, l2, l3, lc};
