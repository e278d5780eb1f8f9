//! Special registers by name (ISA chapter 10).

use crate::program::{Clock, Special};

/// A special register that counts.
pub(super) fn clock(name: &str) -> Option<Clock> {
    Some(match name {
        "%clock" => Clock::Low,
        "%clock_hi" => Clock::High,
        "%clock64" => Clock::Wide,
        "%globaltimer" => Clock::Globaltimer,
        "%globaltimer_lo" => Clock::GlobaltimerLo,
        "%globaltimer_hi" => Clock::GlobaltimerHi,
        _ => return None,
    })
}

/// A special register that is constant for a thread during a launch.
pub(super) fn special(name: &str) -> Option<Special> {
    let (stem, axis) = match name.rsplit_once('.') {
        Some((stem, "x")) => (stem, Some(0)),
        Some((stem, "y")) => (stem, Some(1)),
        Some((stem, "z")) => (stem, Some(2)),
        Some((_, "w")) => return Some(Special::Zero),
        _ => (name, None),
    };
    if let Some(i) = axis {
        return Some(match stem {
            "%tid" => Special::Tid(i),
            "%ntid" => Special::Ntid(i),
            "%ctaid" => Special::Ctaid(i),
            "%nctaid" => Special::Nctaid(i),
            "%clusterid" => Special::Clusterid(i),
            "%nclusterid" => Special::Nclusterid(i),
            "%cluster_ctaid" => Special::ClusterCtaid(i),
            "%cluster_nctaid" => Special::ClusterNctaid(i),
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => Special::Laneid,
        "%warpid" => Special::Warpid,
        "%nwarpid" => Special::Nwarpid,
        "%smid" => Special::Smid,
        "%nsmid" => Special::Nsmid,
        "%gridid" => Special::Gridid,
        "%cluster_ctarank" => Special::ClusterCtarank,
        "%cluster_nctarank" => Special::ClusterNctarank,
        "%is_explicit_cluster" => Special::IsExplicitCluster,
        "%lanemask_eq" => Special::LanemaskEq,
        "%lanemask_le" => Special::LanemaskLe,
        "%lanemask_lt" => Special::LanemaskLt,
        "%lanemask_ge" => Special::LanemaskGe,
        "%lanemask_gt" => Special::LanemaskGt,
        "%dynamic_smem_size" => Special::DynamicSmemSize,
        "%total_smem_size" => Special::TotalSmemSize,
        "%aggr_smem_size" => Special::AggrSmemSize,
        // What a driver may set and ours does not.
        "%current_graph_exec" | "%reserved_smem_offset_begin" => Special::Zero,
        _ if name.strip_prefix("%envreg").and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n < 32) => {
            Special::Zero
        }
        _ => return None,
    })
}
