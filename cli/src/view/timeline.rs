//! What warps and engines of a CTA do over predicted time, from the simulator's bars.

use super::svg::Picture;
use silumin::runtime::predict::Prediction;
use silumin_emulator::time::{Bar, Track};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 950.0;
const ROW: f64 = 18.0;

/// What a bar stands for, by colour.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A warp waits at a barrier, or for an mbarrier.
    Wait,
    /// A warp's instructions.
    Work,
    /// A copy of the TMA into shared memory.
    Load,
    /// A copy of the TMA out of shared memory.
    Store,
    /// A copy of scale factors into tensor memory.
    Copy,
    /// Products.
    Math,
}

impl Kind {
    /// All of them, in the order of a legend.
    pub const ALL: [Kind; 6] = [Kind::Load, Kind::Math, Kind::Copy, Kind::Store, Kind::Work, Kind::Wait];

    /// What a bar is.
    pub fn of(bar: &Bar) -> Kind {
        match (bar.track, bar.name.as_str()) {
            (_, "wait") => Kind::Wait,
            (Track::Warp(_), _) => Kind::Work,
            (Track::Tma, "store") => Kind::Store,
            (Track::Tma, _) => Kind::Load,
            (Track::Tensor, "copy") => Kind::Copy,
            (Track::Tensor, _) => Kind::Math,
        }
    }

    /// Its fill.
    pub fn fill(self) -> &'static str {
        match self {
            Kind::Wait => "#e3e3e3",
            Kind::Work => "#7fb3d5",
            Kind::Load => "#f2a541",
            Kind::Store => "#d9a5c8",
            Kind::Copy => "#c9b458",
            Kind::Math => "#4f9d69",
        }
    }

    /// Its name in a legend.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Wait => "waits",
            Kind::Work => "instructions",
            Kind::Load => "TMA loads, from issue to arrival",
            Kind::Store => "TMA stores",
            Kind::Copy => "scale factors to tensor memory",
            Kind::Math => "MMAs",
        }
    }
}

/// Position of a row and its name; engines come first.
pub fn row(track: Track, role: &dyn Fn(u32) -> Option<&'static str>) -> (u32, String) {
    match track {
        Track::Tma => (0, "TMA".to_owned()),
        Track::Tensor => (1, "tensor core".to_owned()),
        Track::Warp(warp) => {
            (2 + warp, role(warp).map_or(format!("warp {warp}"), |role| format!("warp {warp}: {role}")))
        }
    }
}

/// A round number that is not smaller.
pub fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= value).unwrap_or(value)
}

/// Bars of one kind that touch at this scale, as one: start and end in ns.
fn merged(mut bars: Vec<(f64, f64)>, pixel: f64) -> Vec<(f64, f64)> {
    bars.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut all: Vec<(f64, f64)> = Vec::new();
    for (start, end) in bars {
        match all.last_mut() {
            Some(last) if start <= last.1 + 0.7 * pixel => last.1 = last.1.max(end),
            _ => all.push((start, end)),
        }
    }
    all
}

/// Draws rows of a CTA from `y` on in a picture that is 960 wide; where the next thing may start.
///
/// `role` says what a warp does, where that is known.
pub fn rows(
    picture: &mut Picture,
    y: f64,
    prediction: &Prediction,
    cta: [u32; 3],
    role: &dyn Fn(u32) -> Option<&'static str>,
) -> f64 {
    let bars: Vec<&Bar> = prediction.bars.iter().filter(|bar| bar.cta == cta).collect();
    let end = bars.iter().map(|bar| bar.start + bar.length).fold(1.0, f64::max);
    let mut names: Vec<(u32, String)> = bars.iter().map(|bar| row(bar.track, role)).collect();
    names.sort();
    names.dedup();
    picture.text(
        8.0,
        y + 12.0,
        &format!(
            "CTA {} over time, predicted on {} at {:.0} MHz: {:.2} us a launch, {:.2} us from its first instruction to its end",
            cta[0],
            prediction.chip,
            prediction.clock,
            prediction.time / 1e3,
            prediction.kernel / 1e3
        ),
    );
    let top = y + 22.0;
    let x = |ns: f64| LEFT + ns / end * (RIGHT - LEFT);
    let pixel = end / (RIGHT - LEFT);
    for (index, (id, name)) in names.iter().enumerate() {
        let y = top + ROW * index as f64;
        picture.text(8.0, y + 11.0, name);
        for kind in Kind::ALL.into_iter().rev() {
            let of = bars.iter().filter(|bar| row(bar.track, role).0 == *id && Kind::of(bar) == kind);
            for (start, end) in merged(of.map(|bar| (bar.start, bar.start + bar.length)).collect(), pixel) {
                let tip = format!("{}: {start:.0} to {end:.0} ns", kind.name());
                picture.bare([x(start), y, (x(end) - x(start)).max(0.4), ROW - 5.0], kind.fill(), &tip);
            }
        }
    }
    let bottom = top + ROW * names.len() as f64;
    let step = nice(end / 12.0);
    let mut tick = 0.0;
    while tick <= end {
        picture.line([x(tick), top, x(tick), bottom], true);
        picture.centred(x(tick), bottom + 13.0, &format!("{:.1} us", tick / 1e3), false);
        tick += step;
    }
    let present: Vec<Kind> =
        Kind::ALL.into_iter().filter(|kind| bars.iter().any(|bar| Kind::of(bar) == *kind)).collect();
    let (mut left, mut y) = (8.0, bottom + 22.0);
    for kind in present {
        let length = 32.0 + 6.4 * kind.name().len() as f64;
        if left + length > WIDTH {
            (left, y) = (8.0, y + 18.0);
        }
        picture.block([left, y, 12.0, 12.0], kind.fill(), kind.name(), "");
        picture.text(left + 17.0, y + 11.0, kind.name());
        left += length;
    }
    y + 20.0
}
