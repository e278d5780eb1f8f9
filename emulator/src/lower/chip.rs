//! Which instructions a `.target` and a `.version` have, from the "Target ISA notes" and "PTX ISA notes" of the
//! manual, release 9.1.
//!
//! The list has only features introduced with sm_80 or later, and whole instructions or modifiers, not every
//! combination. `tests/targets.rs` and `tests/damages.rs` compare it with the assembler.

/// Most threads of an SM of the chip with this number, from `sm_90` on. ptxas 13.5 applies `.minnctapersm` with 1,536 for `sm_110`,
/// which was `sm_101`, `sm_120` and `sm_121`.
pub(super) fn threads_of_an_sm(number: u32) -> u32 {
    if number == 101 || number >= 110 { 1536 } else { 2048 }
}

/// A target and a PTX version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chip {
    number: u32,
    kind: Suffix,
    version: (u32, u32),
}

/// Suffix of a target's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suffix {
    /// None: features of all later chips too.
    None,
    /// `f`: features of the chip's family.
    Family,
    /// `a`: features of this chip only.
    Arch,
}

/// Targets that have a feature.
#[derive(Clone, Copy, Debug)]
enum Who {
    /// Every chip from this number on.
    From(u32),
    /// `sm_90a`.
    Hopper,
    /// The `a` and `f` targets of chips with tensor memory: sm_100 to sm_119.
    Tensor,
    /// Only the `a` targets among `Tensor`.
    TensorArch,
    /// As `Tensor`, without those of sm_100 itself.
    TensorLater,
    /// The `a` and `f` targets of the sm_100 family: sm_100 to sm_109.
    Family100,
    /// Only the `a` targets among `Family100`.
    Family100Arch,
    /// `sm_100a`, `sm_101a` and `sm_110a`.
    Integer,
    /// As `Tensor`, and sm_120 and sm_121.
    Blackwell,
    /// The `a` and `f` targets of sm_120 and sm_121.
    Consumer,
    /// Only the `a` targets among `Consumer`.
    ConsumerArch,
    /// Only the `a` targets among `Blackwell`.
    BlackwellArch,
    /// `Tensor` and `ConsumerArch`.
    TensorOrConsumerArch,
    /// `sm_90a`, and everything in `Blackwell`.
    Registers,
}

use Who::{
    Blackwell, BlackwellArch, Consumer, ConsumerArch, Family100, Family100Arch, From, Hopper, Integer,
    Registers, Tensor, TensorArch, TensorLater, TensorOrConsumerArch,
};

/// Features: how the opcode begins, or a modifier that it contains, or both; the targets that have it; the PTX
/// version that introduced it. Every entry that matches an opcode must hold.
const FEATURES: &[(&str, Who, (u32, u32))] = &[
    ("tcgen05", Tensor, (8, 6)),
    ("wgmma", Hopper, (8, 0)),
    ("setmaxnreg", Registers, (8, 0)),
    ("clusterlaunchcontrol", From(100), (8, 6)),
    ("st.bulk", From(100), (8, 6)),
    ("tensormap.replace", Registers, (8, 3)),
    ("tensormap.replace .swizzle_atomicity", Blackwell, (8, 6)),
    ("multimem .e4m3", TensorOrConsumerArch, (8, 6)),
    ("multimem .e5m2", TensorOrConsumerArch, (8, 6)),
    ("multimem .e4m3x2", TensorOrConsumerArch, (8, 6)),
    ("multimem .e5m2x2", TensorOrConsumerArch, (8, 6)),
    ("multimem .e4m3x4", TensorOrConsumerArch, (8, 6)),
    ("multimem .e5m2x4", TensorOrConsumerArch, (8, 6)),
    ("tensormap", From(90), (8, 3)),
    ("fence.acquire", From(90), (8, 6)),
    ("fence.release", From(90), (8, 6)),
    (".cp_mask", From(100), (8, 6)),
    ("redux .f32", Family100, (8, 6)),
    ("ldmatrix .b8", Blackwell, (8, 6)),
    ("ldmatrix .b8x16", Blackwell, (8, 6)),
    ("ldmatrix .m8n16", Blackwell, (8, 6)),
    ("ldmatrix .m16n16", Blackwell, (8, 6)),
    ("stmatrix .b8", Blackwell, (8, 6)),
    ("st.async .global", From(100), (8, 7)),
    ("red.async .global", From(100), (8, 7)),
    ("ld .v8", From(100), (8, 8)),
    ("st .v8", From(100), (8, 8)),
    ("ld .v4 .b64", From(100), (8, 8)),
    ("ld .v4 .u64", From(100), (8, 8)),
    ("ld .v4 .s64", From(100), (8, 8)),
    ("ld .v4 .f64", From(100), (8, 8)),
    ("st .v4 .b64", From(100), (8, 8)),
    ("st .v4 .u64", From(100), (8, 8)),
    ("st .v4 .s64", From(100), (8, 8)),
    ("st .v4 .f64", From(100), (8, 8)),
    ("atom .b128", From(90), (8, 3)),
    ("mov .b128", From(70), (8, 3)),
    ("ld .b128", From(70), (8, 3)),
    ("st .b128", From(70), (8, 3)),
    ("atom .v2", From(90), (8, 1)),
    ("atom .v4", From(90), (8, 1)),
    ("red .v2", From(90), (8, 1)),
    ("red .v4", From(90), (8, 1)),
    ("prefetch .tensormap", From(90), (8, 0)),
    ("mma .e4m3", From(89), (8, 4)),
    ("mma .e5m2", From(89), (8, 4)),
    ("movmatrix", From(75), (7, 8)),
    (".mmio", From(70), (8, 2)),
    (".sp::ordered_metadata", From(80), (8, 5)),
    ("cvt .s2f6x2", BlackwellArch, (9, 1)),
    ("multimem.cp", From(90), (9, 1)),
    (".cta_group::1", Tensor, (8, 6)),
    (".cta_group::2", Tensor, (8, 6)),
    ("mma .block_scale", Consumer, (8, 7)),
    ("mma .kind::f8f6f4", Consumer, (8, 7)),
    ("mma .kind::mxf8f6f4", Consumer, (8, 7)),
    ("mma.sp::ordered_metadata .kind::mxf4", ConsumerArch, (8, 7)),
    ("mma.sp::ordered_metadata .kind::mxf4nvf4", ConsumerArch, (8, 7)),
    ("tcgen05 .kind::i8", Integer, (8, 6)),
    ("tcgen05.shift", TensorArch, (8, 6)),
    ("tcgen05.mma .scale_vec::1X", TensorArch, (8, 6)),
    ("tcgen05.mma .scale_vec::2X", TensorArch, (8, 6)),
    ("tcgen05.mma .scale_vec::4X", TensorArch, (8, 6)),
    ("tcgen05.ld.red", TensorLater, (8, 8)),
    (".tile::gather4", From(100), (8, 6)),
    (".shared::cluster .tile::gather4", Tensor, (8, 6)),
    (".tile::scatter4", Tensor, (8, 6)),
    (".im2col::w", From(100), (8, 6)),
    (".im2col::w::128", Tensor, (8, 6)),
    ("cp.async.bulk.prefetch .tile::gather4", Tensor, (8, 6)),
    ("cp.async.bulk.prefetch .im2col::w", Tensor, (8, 6)),
    (".shared::cluster .im2col::w", Tensor, (8, 6)),
    (".multicast::cluster::all", Blackwell, (8, 6)),
    ("cvt .e2m1x2", Blackwell, (8, 6)),
    ("cvt .e2m3x2", Blackwell, (8, 6)),
    ("cvt .e3m2x2", Blackwell, (8, 6)),
    ("cvt .ue8m0x2", Blackwell, (8, 6)),
    ("cvt .e4m3x2", From(89), (7, 8)),
    ("cvt .e5m2x2", From(89), (7, 8)),
    (".f32x2", From(100), (8, 6)),
    ("cvt .rs", Family100Arch, (8, 7)),
    ("multimem", From(90), (8, 1)),
    ("cp.async.bulk", From(90), (8, 0)),
    ("cp.reduce", From(90), (8, 0)),
    ("st.async", From(90), (8, 1)),
    ("red.async", From(90), (8, 1)),
    ("cp.async.mbarrier", From(80), (7, 0)),
    ("cp.async", From(80), (7, 0)),
    ("barrier.cluster", From(90), (7, 8)),
    ("mapa", From(90), (7, 8)),
    ("getctarank", From(90), (7, 8)),
    ("elect", From(90), (8, 0)),
    ("griddepcontrol", From(90), (7, 8)),
    ("stmatrix", From(90), (7, 8)),
    ("mbarrier.try_wait", From(90), (7, 8)),
    ("mbarrier.expect_tx", From(90), (8, 0)),
    ("mbarrier.complete_tx", From(90), (8, 0)),
    (".expect_tx", From(90), (8, 0)),
    ("mbarrier", From(80), (7, 0)),
    ("fence.mbarrier_init", From(90), (8, 0)),
    ("fence.proxy.async", From(90), (8, 0)),
    ("fence.proxy.tensormap::generic", From(90), (8, 3)),
    (".shared::cluster", From(90), (7, 8)),
    ("redux", From(80), (7, 0)),
    ("createpolicy", From(80), (7, 4)),
    (".L2::cache_hint", From(80), (7, 4)),
    ("discard", From(80), (7, 4)),
    ("applypriority", From(80), (7, 4)),
    ("alloca", From(52), (7, 3)),
    ("stacksave", From(52), (7, 3)),
];

impl Chip {
    /// The chip that a module's directives name; `None` if they name none.
    pub fn of(version: Option<(u32, u32)>, target: &[&str]) -> Option<Chip> {
        let text = target.iter().find_map(|t| t.strip_prefix("sm_"))?;
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let kind = match &text[digits.len()..] {
            "" => Suffix::None,
            "a" => Suffix::Arch,
            "f" => Suffix::Family,
            _ => return None,
        };
        Some(Chip { number: digits.parse().ok()?, kind, version: version? })
    }

    /// 90 of `sm_90a`.
    pub fn number(self) -> u32 {
        self.number
    }

    fn has(self, who: Who) -> bool {
        let special = self.kind != Suffix::None;
        let arch = self.kind == Suffix::Arch;
        let tensor = matches!(self.number, 100..=119);
        let family = matches!(self.number, 100..=109);
        let consumer = matches!(self.number, 120..=129);
        match who {
            From(n) => self.number >= n,
            Hopper => self.number == 90 && self.kind == Suffix::Arch,
            Tensor => special && tensor,
            TensorArch => arch && tensor,
            TensorLater => special && tensor && self.number > 100,
            Family100 => special && family,
            Family100Arch => arch && family,
            Integer => arch && matches!(self.number, 100 | 101 | 110),
            Consumer => special && consumer,
            ConsumerArch => arch && consumer,
            BlackwellArch => arch && (tensor || consumer),
            TensorOrConsumerArch => special && tensor || arch && consumer,
            Blackwell => special && (tensor || consumer),
            Registers => special && self.number >= 90,
        }
    }

    /// Checks that this target and version have an instruction.
    pub fn check(self, opcode: &str) -> Result<(), String> {
        let modifier = |m: &str| opcode.split('.').skip(1).any(|p| p == m);
        let start = |words: &str| {
            let rest = opcode.strip_prefix(words);
            rest.is_some_and(|r| r.is_empty() || r.starts_with('.') || r.starts_with(':'))
        };
        let fits = |feature: &str| {
            feature.split_whitespace().all(|word| match word.strip_prefix('.') {
                Some(m) => modifier(m),
                None => start(word),
            })
        };
        FEATURES.iter().filter(|(f, ..)| fits(f)).try_for_each(|&(name, who, version)| {
            self.feature(name, who, version).map_err(|e| format!("{e}, in `{opcode}`"))
        })
    }

    /// Checks that this target and version have minimum and maximum of three values.
    pub fn three_inputs(self) -> Result<(), String> {
        self.feature("a third operand of min or max", From(100), (8, 8))
    }

    /// Checks that this target and version have `scale-input-d` of `tcgen05.mma`.
    pub fn scale_input_d(self) -> Result<(), String> {
        self.feature("scale-input-d", Family100, (8, 6))
    }

    fn feature(self, name: &str, who: Who, version: (u32, u32)) -> Result<(), String> {
        if !self.has(who) {
            let who = match who {
                From(n) => format!("sm_{n} and later"),
                Hopper => "sm_90a".to_owned(),
                Tensor => "sm_100a and the other targets of its kind that end in `a` or `f`".to_owned(),
                TensorArch => "sm_100a and the other targets of its kind that end in `a`".to_owned(),
                TensorLater => "sm_103a, sm_110a and others of their kind that end in `a` or `f`".to_owned(),
                Family100 => "sm_100a, sm_103a and others of their family that end in `a` or `f`".to_owned(),
                Family100Arch => "sm_100a, sm_103a and others of their family that end in `a`".to_owned(),
                Integer => "sm_100a and sm_110a".to_owned(),
                Blackwell => "targets from sm_100 on that end in `a` or `f`".to_owned(),
                Consumer => "sm_120a, sm_120f and sm_121a".to_owned(),
                ConsumerArch => "sm_120a and sm_121a".to_owned(),
                BlackwellArch => "targets from sm_100 on that end in `a`".to_owned(),
                TensorOrConsumerArch => {
                    "sm_100a and others of its kind that end in `a` or `f`, sm_120a and sm_121a".to_owned()
                }
                Registers => "sm_90a and later targets that end in `a` or `f`".to_owned(),
            };
            return Err(format!("`{name}` is not of this .target, but of {who}"));
        }
        if self.version < version {
            let (major, minor) = version;
            return Err(format!("`{name}` came with .version {major}.{minor}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Chip, threads_of_an_sm};

    /// As ptxas 13.5 applies `.minnctapersm` (decision 0226).
    #[test]
    fn thor_and_consumer_chips_have_fewer_threads() {
        assert_eq!([90, 100, 103].map(threads_of_an_sm), [2048; 3]);
        assert_eq!([101, 110, 120, 121].map(threads_of_an_sm), [1536; 4]);
    }

    #[test]
    fn targets_are_read() {
        let check = |target: &str, opcode: &str| {
            Chip::of(Some((9, 1)), &[target, "debug"]).map(|c| c.check(opcode).is_ok())
        };
        assert_eq!(check("sm_100a", "tcgen05.fence::before_thread_sync"), Some(true));
        assert_eq!(check("sm_100f", "tcgen05.fence::before_thread_sync"), Some(true));
        assert_eq!(check("sm_100", "tcgen05.fence::before_thread_sync"), Some(false));
        assert_eq!(check("sm_90a", "wgmma.fence.sync.aligned"), Some(true));
        assert_eq!(check("sm_100a", "wgmma.fence.sync.aligned"), Some(false));
        assert_eq!(check("sm_75", "cp.async.wait_all"), Some(false));
        assert_eq!(check("sm_9x0", "tcgen05"), None);
        assert_eq!(Chip::of(None, &["sm_90"]), None);
    }
}
