//! Collector buffers of the tensor core: what `.collector::a` and `.collector::bN` of a `tcgen05.mma` keep and use
//! (PTX ISA 9.7.16.10.9.1 and 9.7.16.10.9.3).
//!
//! `fill` keeps the operand that the instruction reads. `use` and `lastuse` may use the kept operand instead of the
//! one that their own descriptor names, and need a fill that is still valid. `discard`, the default, and `lastuse`
//! drop it. If another operand is named than is kept, hardware may multiply by either, so the kept one is used here.
//! If nothing is kept, the named operand is read: public kernels give every product `lastuse` without any `fill`, and
//! are right on B200.

use super::idesc::{InstructionDescriptor, ScaleFactors};
use super::mma::MmaInstruction;

/// A buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// For A, of all forms but `.ws`.
    A,
    /// For B with `.ws`: 0 to 3.
    B(u8),
}

/// The effect of an instruction on its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Keeps the operand.
    Fill,
    /// Uses the kept operand.
    Use,
    /// Uses the kept operand and drops it.
    LastUse,
    /// Drops the kept operand.
    Discard,
}

/// `.collector_usage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Which buffer.
    pub buffer: Buffer,
    /// The action on the buffer.
    pub action: Action,
}

/// The collector is used wrongly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// Nothing is kept.
    Empty,
    /// The kept operand is another one, or was read differently.
    Other {
        /// Line of the fill.
        line: u32,
        /// What differs.
        what: &'static str,
        /// The instruction with the kept operand instead of its own, if it can be read the same way.
        kept: Option<Box<MmaInstruction>>,
    },
}

/// The buffers of a CTA's tensor core, or of a pair's.
#[derive(Clone, Debug, Default)]
pub struct Collectors {
    a: Option<(MmaInstruction, u32)>,
    b: [Option<(MmaInstruction, u32)>; 4],
}

impl Collectors {
    /// Applies an instruction on `line` to its buffer.
    ///
    /// # Errors
    /// [`Misuse`], for `use` and `lastuse`.
    pub fn take(&mut self, usage: Usage, m: &MmaInstruction, line: u32) -> Result<(), Misuse> {
        let slot = match usage.buffer {
            Buffer::A => &mut self.a,
            Buffer::B(n) => &mut self.b[n as usize % 4],
        };
        match usage.action {
            Action::Fill => *slot = Some((*m, line)),
            Action::Discard => *slot = None,
            Action::Use | Action::LastUse => {
                let kept = if usage.action == Action::LastUse { slot.take() } else { *slot };
                let Some((fill, line)) = kept else { return Err(Misuse::Empty) };
                if let Some((what, kept)) = difference(usage.buffer, &fill, m) {
                    return Err(Misuse::Other { line, what, kept: kept.map(Box::new) });
                }
            }
        }
        Ok(())
    }
}

/// The part of the scale factors that is A's.
fn scale_of_a(m: &MmaInstruction, factors: ScaleFactors) -> impl PartialEq {
    (m.scale_a & 0x3fff_ffff, factors.format, factors.vec, factors.a_id)
}

/// How the operand of a buffer is read.
fn reading(buffer: Buffer, i: &InstructionDescriptor) -> impl PartialEq {
    match buffer {
        Buffer::A => (i.kind, i.cta_group, i.m, i.a, i.a_major, i.negate_a, i.form),
        Buffer::B(_) => (i.kind, i.cta_group, i.n, i.b, i.b_major, i.negate_b, i.form),
    }
}

/// How the operand of `m` differs from that of `fill`, and `m` with the latter's operand. Illegal instruction
/// descriptors are reported by the product.
fn difference(
    buffer: Buffer,
    fill: &MmaInstruction,
    m: &MmaInstruction,
) -> Option<(&'static str, Option<MmaInstruction>)> {
    let (Ok(old), Ok(new)) = (fill.descriptor(), m.descriptor()) else { return None };
    if reading(buffer, &old) != reading(buffer, &new) {
        return Some(("kind, CTA group, shape, type, major dimension, sign or sparsity", None));
    }
    match buffer {
        Buffer::A if fill.a != m.a => {
            Some(("address or descriptor", Some(MmaInstruction { a: fill.a, ..*m })))
        }
        Buffer::A if fill.variant.shift_a != m.variant.shift_a => Some((".ashift", None)),
        Buffer::A => {
            let scales = |m, i: &InstructionDescriptor| i.scale.map(|s| scale_of_a(m, s));
            (scales(fill, &old) != scales(m, &new)).then_some(("scale factors", None))
        }
        Buffer::B(_) if fill.b != m.b => Some(("descriptor", Some(MmaInstruction { b: fill.b, ..*m }))),
        Buffer::B(_) => {
            (fill.variant.zero_columns != m.variant.zero_columns).then_some(("zero-column mask", None))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::idesc::{CtaGroup, MmaKind, ScaleVec};
    use crate::engine::mma::{OperandA, Variant};

    fn nvfp4(a: u64, idesc: u32, scale_a: u32) -> MmaInstruction {
        MmaInstruction {
            kind: MmaKind::Mxf4nvf4,
            scale_vec: Some(ScaleVec::X4),
            cta_group: CtaGroup::One,
            idesc,
            d: 0,
            a: OperandA::Smem(a),
            b: 7,
            scale_a,
            scale_b: 300,
            enable_input_d: false,
            scale_input_d: 0,
            disabled_lanes: [0; 8],
            variant: Variant::default(),
        }
    }

    fn of_a(action: Action) -> Usage {
        Usage { buffer: Buffer::A, action }
    }

    #[test]
    fn another_b_and_d_may_share_a() {
        let mut c = Collectors::default();
        let first = nvfp4(1, 0x0820_0480, 256);
        assert_eq!(c.take(of_a(Action::Fill), &first, 10), Ok(()));
        let second = MmaInstruction { b: 9, d: 128, scale_b: 308, enable_input_d: true, ..first };
        assert_eq!(c.take(of_a(Action::Use), &second, 11), Ok(()));
        // 256 columns instead of 128.
        assert_eq!(
            c.take(of_a(Action::LastUse), &MmaInstruction { idesc: 0x0840_0480, ..second }, 12),
            Ok(())
        );
        assert_eq!(c.take(of_a(Action::LastUse), &second, 13), Err(Misuse::Empty));
    }

    #[test]
    fn another_a_is_told_and_the_kept_one_taken() {
        let mut c = Collectors::default();
        let first = nvfp4(1, 0x0820_0480, 256);
        for (m, what, takes) in [
            (nvfp4(2, 0x0820_0480, 256), "address or descriptor", true),
            (nvfp4(1, 0x0820_0480, 260), "scale factors", false),
            (
                nvfp4(1, 0x0820_2480, 256),
                "kind, CTA group, shape, type, major dimension, sign or sparsity",
                false,
            ),
        ] {
            assert_eq!(c.take(of_a(Action::Fill), &first, 10), Ok(()));
            match c.take(of_a(Action::Use), &m, 11) {
                Err(Misuse::Other { line: 10, what: found, kept }) => {
                    assert_eq!(found, what);
                    assert_eq!(kept.map(|k| k.a), takes.then_some(first.a), "{what}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
        assert_eq!(c.take(of_a(Action::Discard), &first, 12), Ok(()));
        assert_eq!(c.take(of_a(Action::Use), &first, 13), Err(Misuse::Empty));
    }

    #[test]
    fn buffers_of_b_are_apart() {
        let mut c = Collectors::default();
        let of = |n, action| Usage { buffer: Buffer::B(n), action };
        let plain = |b| MmaInstruction {
            kind: MmaKind::F16,
            scale_vec: None,
            b,
            variant: Variant { stationary: true, ..Variant::default() },
            ..nvfp4(1, 0x0810_0490, 0)
        };
        assert_eq!(c.take(of(1, Action::Fill), &plain(5), 10), Ok(()));
        assert_eq!(c.take(of(2, Action::Use), &plain(5), 11), Err(Misuse::Empty));
        assert_eq!(c.take(of(1, Action::Use), &plain(5), 12), Ok(()));
        let other = c.take(of(1, Action::LastUse), &plain(6), 13);
        assert!(matches!(other, Err(Misuse::Other { what: "descriptor", kept: Some(k), .. }) if k.b == 5));
    }
}
