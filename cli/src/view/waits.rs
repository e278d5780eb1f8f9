//! Which role waits for which: an arrow for each mbarrier, from whoever arrives to whoever waits.

use super::svg::{FILLS, Picture};
use super::title;
use silumin::codegen::plan::{BarrierKind, Plan};

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

/// The wait of a barrier; `ordered` says whether helper warps bring a stage's activations into order before MMAs read them.
fn wait(kind: BarrierKind, ordered: bool) -> Wait {
    match kind {
        BarrierKind::Full if ordered => (Load, &[Helper, Mma], "a K tile has arrived"),
        BarrierKind::Full => (Load, &[Mma], "a K tile has arrived"),
        BarrierKind::Empty => (Mma, &[Load], "the stage has been read"),
        BarrierKind::Permuted => (Helper, &[Mma], "activations are in the order of the weights"),
        BarrierKind::PartKnown => (Helper, &[Mma], "it is known which of a tile's two CTAs started first"),
        BarrierKind::PeersRead => (Mma, &[Mma], "the other CTAs have read their last operands"),
        BarrierKind::SumsArrived => (Mma, &[Mma], "the other CTAs' sums have arrived"),
        BarrierKind::SfFull => (Load, &[Mma], "scale factors have arrived"),
        BarrierKind::SfEmpty => (Mma, &[Load], "the copies that read the slot are done"),
        BarrierKind::ProductsDone => (Mma, &[Epilogue], "both products are complete"),
        BarrierKind::Product1Done => (Mma, &[Epilogue], "product 1 is complete"),
        BarrierKind::Product2Done => (Mma, &[Epilogue], "product 2 is complete"),
        BarrierKind::AccumulatorsFree => (Epilogue, &[Mma], "the accumulators have been read"),
        BarrierKind::SharedFree => (Epilogue, &[Mma], "the shared columns have been read"),
        BarrierKind::AnswerFull => (Load, &[Mma, Epilogue], "the hardware has named the next tile"),
        BarrierKind::AnswerRead => (Epilogue, &[Load], "all roles have read the answer"),
    }
}

/// What the warp with an index in its CTA does, for plans whose warps have fixed roles.
pub fn warp(index: u32, plan: &Plan) -> Option<&'static str> {
    let [loads, mmas] = last_warps(plan);
    plan.tmem().is_some().then_some(match index {
        _ if index < loads => "epilogue",
        _ if index == loads => "loads",
        _ if index == mmas => "MMAs",
        _ => "helper",
    })
}

/// The warp that loads and the one that issues MMAs: the last two, where accumulators are in tensor memory.
fn last_warps(plan: &Plan) -> [u32; 2] {
    let warps = plan.threads / 32;
    [warps.saturating_sub(2), warps.saturating_sub(1)]
}

/// The warps of a role. Accumulators in tensor memory leave MMAs to one warp and the epilogue to others; accumulators in registers
/// are finished by the warpgroups that hold them.
fn named(role: Role, plan: &Plan) -> String {
    let pair = if plan.cta_group.ctas() > 1 { " of the leader" } else { "" };
    let [loads, mmas] = last_warps(plan);
    match (role, plan.tmem().is_some()) {
        (Load, true) => format!("warp {loads}: loads"),
        (Mma, true) => format!("warp {mmas}{pair}: MMAs"),
        (Epilogue, true) => format!("warps 0 to {}: epilogue", loads.saturating_sub(1)),
        (Load, false) => "load warp".into(),
        (Helper, _) => "warps beside the load warp".into(),
        (Mma | Epilogue, false) => "consumer warpgroups: MMAs, epilogue".into(),
    }
}

/// The waits of a plan, as an SVG.
pub fn draw(plan: &Plan) -> String {
    const LANE: f64 = 300.0;
    const BOX: f64 = 240.0;
    const STEP: f64 = 56.0;
    let ordered = plan.barriers.iter().any(|barrier| barrier.kind == BarrierKind::Permuted);
    let rows: Vec<_> = plan.barriers.iter().map(|barrier| (barrier, wait(barrier.kind, ordered))).collect();
    let used = |role: Role| rows.iter().any(|(_, (from, to, _))| *from == role || to.contains(&role));
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
    for (index, (barrier, (from, to, says))) in rows.into_iter().enumerate() {
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
        picture.centred(middle, y - 6.0, &format!("{}{count}, {arrivals}", barrier.kind), true);
        picture.centred(middle, y + 15.0, says, true);
    }
    picture.finish()
}
