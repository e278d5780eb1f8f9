//! Which role waits for which: an arrow for each mbarrier, from whoever arrives to whoever waits.

use super::svg::{FILLS, Picture};
use super::title;
use silumin::codegen::arch::TensorCore;
use silumin::codegen::plan::Plan;

/// What a warp does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Load,
    /// Beside the load warp on Hopper: brings activations into order, decodes them, or sees to sums of two parts.
    Helper,
    Mma,
    Epilogue,
}

use Role::{Epilogue, Helper, Load, Mma};

/// The role that arrives at a barrier, the roles that wait for it, and what a completed phase means.
type Wait = (Role, &'static [Role], &'static str);

fn wait(name: &str, target: TensorCore, helper_reads: bool) -> Option<Wait> {
    Some(match (target, name) {
        (TensorCore::Wgmma, "full") if helper_reads => (Load, &[Helper, Mma], "a K tile has arrived"),
        (_, "full") => (Load, &[Mma], "a K tile has arrived"),
        (_, "empty") => (Mma, &[Load], "the stage has been read"),
        (TensorCore::Tcgen05, "sf_full") => (Load, &[Mma], "scale factors have arrived"),
        (TensorCore::Tcgen05, "sf_empty") => (Mma, &[Load], "the copies that read the slot are done"),
        (TensorCore::Tcgen05, "products_done") => (Mma, &[Epilogue], "both products are complete"),
        (TensorCore::Tcgen05, "product1_done") => (Mma, &[Epilogue], "product 1 is complete"),
        (TensorCore::Tcgen05, "product2_done") => (Mma, &[Epilogue], "product 2 is complete"),
        (TensorCore::Tcgen05, "accumulators_free") => (Epilogue, &[Mma], "the accumulators have been read"),
        (TensorCore::Tcgen05, "shared_free") => (Epilogue, &[Mma], "the shared columns have been read"),
        (TensorCore::Tcgen05, "answer_full") => {
            (Load, &[Mma, Epilogue], "the hardware has named the next tile")
        }
        (TensorCore::Tcgen05, "answer_read") => (Epilogue, &[Load], "all roles have read the answer"),
        (TensorCore::Wgmma, "ordered") => (Helper, &[Mma], "activations are in the order of the weights"),
        (TensorCore::Wgmma, "part_known") => {
            (Helper, &[Mma], "it is known which of a tile's two CTAs started first")
        }
        _ => return None,
    })
}

/// What the warp with an index in its CTA does, for plans whose warps have fixed roles.
pub fn warp(index: u32, plan: &Plan) -> Option<&'static str> {
    (plan.arch.tensor_core() == TensorCore::Tcgen05).then_some(match index {
        0..=3 => "epilogue",
        4 => "loads",
        5 => "MMAs",
        _ => "helper",
    })
}

fn named(role: Role, plan: &Plan) -> String {
    let blackwell = plan.arch.tensor_core() == TensorCore::Tcgen05;
    let pair = if plan.cta_group.ctas() > 1 { " of the leader" } else { "" };
    match (role, blackwell) {
        (Load, true) => "warp 4: loads".into(),
        (Mma, true) => format!("warp 5{pair}: MMAs"),
        (Epilogue, true) => "warps 0 to 3: epilogue".into(),
        (Load, false) => "load warp".into(),
        (Helper, _) => "warps beside the load warp".into(),
        (Mma | Epilogue, false) => "consumer warpgroups: MMAs, epilogue".into(),
    }
}

/// The waits of a plan.
///
/// # Errors
/// A barrier that this picture knows nothing of.
pub fn draw(plan: &Plan) -> Result<String, String> {
    const LANE: f64 = 300.0;
    const BOX: f64 = 240.0;
    const STEP: f64 = 56.0;
    let target = plan.arch.tensor_core();
    let names: Vec<String> = plan.barriers.iter().map(|barrier| barrier.kind.to_string()).collect();
    let helper_reads = names.iter().any(|name| name == "ordered");
    let mut rows = Vec::new();
    for (barrier, name) in plan.barriers.iter().zip(&names) {
        let known = wait(name, target, helper_reads);
        let known =
            known.ok_or_else(|| format!("`{name}`: a barrier that the picture of waits does not know"))?;
        rows.push((barrier, name, known));
    }
    let used = |role: Role| rows.iter().any(|(_, _, (from, to, _))| *from == role || to.contains(&role));
    let lanes: Vec<Role> = [Load, Helper, Mma, Epilogue].into_iter().filter(|role| used(*role)).collect();
    let mut picture = Picture::new(40.0 + LANE * lanes.len() as f64, &title(plan, "Waits"));
    picture.text(
        8.0,
        36.0,
        "an arrow goes from the role that arrives at an mbarrier to the role that waits for it",
    );
    let centre = |role: Role| {
        let index = lanes.iter().position(|lane| *lane == role).unwrap_or(0);
        20.0 + LANE * (index as f64 + 0.5)
    };
    let top = 50.0;
    let bottom = top + 36.0 + STEP * rows.len() as f64;
    for (index, lane) in lanes.iter().enumerate() {
        let x = centre(*lane);
        picture.line([x, top + 24.0, x, bottom], true);
        picture.block([x - BOX / 2.0, top, BOX, 24.0], FILLS[index], "", &named(*lane, plan));
    }
    for (index, (barrier, name, (from, to, says))) in rows.into_iter().enumerate() {
        let y = top + 62.0 + STEP * index as f64;
        for role in to {
            picture.arrow(centre(from), centre(*role), y);
        }
        let far = to.iter().map(|role| centre(*role)).fold(centre(from), |far, x| {
            if (x - centre(from)).abs() > (far - centre(from)).abs() { x } else { far }
        });
        let middle = (centre(from) + far) / 2.0;
        let count = if barrier.count > 1 { format!(" x {}", barrier.count) } else { String::new() };
        let arrivals = match barrier.arrivals {
            1 => "1 arrival per phase".to_owned(),
            several => format!("{several} arrivals per phase"),
        };
        picture.centred(middle, y - 6.0, &format!("{name}{count}, {arrivals}"), true);
        picture.centred(middle, y + 15.0, says, true);
    }
    Ok(picture.finish())
}
