//! What to write instead of what is refused.

use super::ConfigError;
use crate::config::Strategy;
use crate::legalize::F32_SCALES;

impl ConfigError {
    /// A way out.
    pub fn hint(&self) -> String {
        use ConfigError::*;
        match self {
            Size { limit, .. } => format!("use a size in 1..={limit}"),
            Formats(_) => "use a format that goes with A's for B1 and B2".into(),
            NotOnChip { .. } | Decoded { .. } => "leave the knob out".into(),
            FormatsOnChip { reason, .. } if *reason == F32_SCALES => "use mxfp8 operands".into(),
            FormatsOnChip { .. } => {
                "use nvfp4, mxfp4, bf16, f16, e4m3 or e5m2 operands, or e4m3_1x128 by e4m3_128x128, and C in bf16, f16, f32 or e4m3"
                    .into()
            }
            Promotion { scaled: true, .. } => "write auto".into(),
            Promotion { scaled: false, .. } => "write auto, or off".into(),
            WarpgroupTile { .. } => "write auto, or a tile of 128 x 128".into(),
            Registers { scales: true, .. } => {
                "use a smaller tile M, at most 64 with two products, or write auto".into()
            }
            Registers { scales: false, .. } => "use a smaller tile N, or M = 128 with two warpgroups, or write auto".into(),
            NMultiple { n, multiple, .. } => {
                format!("pad N with zeros to {}", u64::from(*n).next_multiple_of(u64::from(*multiple)))
            }
            RowBlocks { n } => {
                format!("pad N with zeros to {}", u64::from(*n).next_multiple_of(128))
            }
            KMultiple { k, multiple, .. } => {
                format!("pad K with zeros to {}", u64::from(*k).next_multiple_of(u64::from(*multiple)))
            }
            Count { .. } => "use a larger tile, or several launches".into(),
            NotInterleaved { strategy: Strategy::Single, .. } => "leave the knob out".into(),
            StrategyProducts { .. } => "leave the strategy out".into(),
            NotInterleaved { .. } => "use strategy = interleaved, or leave the knob out".into(),
            WholeTiles { .. } => "use schedule = persistent, or another value".into(),
            ClusterSplitK { .. } => "use cluster_split_k(2) with tile N = 64 or 128, or split_k".into(),
            SplitK { k_tiles, .. } => format!("use split_k({}), or one_tile", 2.min(*k_tiles)),
            AccumulatorBuffers { .. } => "write auto: two where they fit and help".into(),
            OverlapAll { .. } => "write auto, or use a smaller tile N".into(),
            NothingToOverlap { .. } => "use schedule = persistent, or write auto".into(),
            Multicast { .. } => "use none, a(2) or b(2)".into(),
            SwapAb { .. } => "write swap_ab = off, or leave the other knob out".into(),
            SwapAbRows { .. } => "write swap_ab = off or auto".into(),
            Name { .. } => "choose a short name of letters and digits".into(),
            OutputScales { knob: "swap_ab", .. } => "write swap_ab = off or auto".into(),
            OutputScales { knob: "strategy", .. } => "use strategy = interleaved".into(),
            OutputScales { .. } => "use tile N = 64 or 128, or swap_ab = on".into(),
            NoScales { .. } => "leave the knob out".into(),
            GroupsOfRows { knob: "schedule", .. } => "use persistent, dynamic or split_k".into(),
            GroupsOfRows { knob: "strategy", .. } => "use interleaved, sequential or second_fused".into(),
            GroupsOfRows { .. } => "write auto".into(),
            SfLoadPair => "write auto, or tensor_map".into(),
            SfLoadAlone => "write auto, or bulk".into(),
            Sms { .. } => "write auto: all of the chip".into(),
            RasterGroup => "use swizzled(8), or along_m".into(),
            TileM { given: 256, wanted: 128, .. } => "write cta_group = 2 beside it, or tile M = 128".into(),
            TileM { wanted, .. } => format!("write {wanted}; rows beyond M cost no memory traffic"),
            TileN { .. } => "use 64, 128 or 192".into(),
            TileNStart { .. } => "use a multiple of 64, or one tile that covers it".into(),
            TileK { given, multiple } => {
                let up = u64::from(*given).max(1).next_multiple_of(u64::from(*multiple));
                format!("use {up}, or the usual 256: one 128-byte swizzle span of a row")
            }
            Stages { .. } => "write auto: as many as fit".into(),
            StagesInFlight { least, .. } => format!("write auto, or at least {least}"),
            PingPong { .. } => "use schedule = persistent or auto, or consumers = cooperative".into(),
            Smem { knob: "sf_preload", .. } => {
                "use per_stage or ahead(1), which hold only what is in flight".into()
            }
            Smem { knob: "shape", .. } => "use fewer groups, or several launches".into(),
            Smem { knob: "stages", .. } => "write stages = auto, or fewer".into(),
            Smem { .. } => "use a smaller tile N or K".into(),
            Tmem { knob: "accumulator_buffers", .. } => {
                "write overlapped: the two share what is missing; or use a smaller tile N".into()
            }
            Tmem { limit, sum, .. } if sum.first() >= u64::from(*limit) => {
                "use a smaller tile N: its accumulators alone take all columns, and MMAs that write them read scale factors"
                    .into()
            }
            Tmem { .. } => {
                "use a smaller tile N, or a smaller tile K (scale factors take columns for every K block)"
                    .into()
            }
            TmemColumns { .. } => "write auto: the least that fits".into(),
            TmemColumnsTooFew { sum, .. } => {
                format!("write auto, or at least {}", sum.total().next_power_of_two())
            }
            SplitTailLength { k_tiles, .. } => format!("use split_tail({}), or forward", 2.min(*k_tiles)),
            SplitTailStages { stages, .. } => format!("use split_tail({stages}) or less, or a smaller tile"),
            SplitTailSideBySide => "use accumulators = separate".into(),
            Ahead { .. } => "use per_stage for none ahead, or ahead(1)".into(),
            SideBySideScales { .. } => "use tile N = 128, or accumulators = separate".into(),
            SideBySideWidth { .. } => "use tile N = 128, or accumulators = separate".into(),
            NothingToReuse { .. } => "write a_reuse = auto or none".into(),
            EpilogueWarps { .. } => "use epilogue_warps = 4, or write auto".into(),
            StoreLoad { .. } => "use store = direct, which goes with everything".into(),
            StoreTma { .. } | StoreTmaTile { .. } => "use store = direct, which takes any N".into(),
        }
    }
}
