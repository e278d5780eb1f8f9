//! Tracing the instructions of a warp.

use crate::launch::{Launch, Step, product};
use std::io::Write;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

/// A warp of a launch: `WARP` of the first CTA, `CTA:WARP`, or `X,Y,Z:WARP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceTarget {
    cta: Cta,
    warp: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cta {
    /// Counted along x, then y, then z.
    Linear(u64),
    At([u32; 3]),
}

/// Why a warp cannot be traced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceTargetError {
    /// The text names no warp.
    #[error("`{text}` is not a warp: write WARP, CTA:WARP or X,Y,Z:WARP, e.g. 4 or 0,1,0:4")]
    Text {
        /// The text.
        text: String,
    },
    /// The launch has no such CTA.
    #[error("--trace: there is no CTA {cta}: the grid is {grid:?}, its last CTA is {last:?} ({} CTAs)", product(*.grid))]
    Cta {
        /// The CTA asked for.
        cta: String,
        /// The grid.
        grid: [u32; 3],
        /// Its last CTA.
        last: [u32; 3],
    },
    /// The block has no such warp.
    #[error("--trace: there is no warp {warp}: a CTA of this launch has {warps}, from 0 on")]
    Warp {
        /// The warp asked for.
        warp: u32,
        /// Number of warps in a CTA.
        warps: u64,
    },
}

impl FromStr for TraceTarget {
    type Err = TraceTargetError;

    fn from_str(text: &str) -> Result<Self, TraceTargetError> {
        let bad = || TraceTargetError::Text { text: text.to_owned() };
        let (cta, warp) = text.split_once(':').unwrap_or(("0", text));
        let warp = warp.trim().parse().map_err(|_| bad())?;
        let parts: Result<Vec<u32>, _> = cta.split(',').map(|p| p.trim().parse()).collect();
        let cta = match *parts.map_err(|_| bad())?.as_slice() {
            [n] => Cta::Linear(u64::from(n)),
            [x, y, z] => Cta::At([x, y, z]),
            _ => return Err(bad()),
        };
        Ok(TraceTarget { cta, warp })
    }
}

impl TraceTarget {
    /// The CTA and warp, if the launch has them.
    pub(super) fn resolve(self, launch: &Launch) -> Result<([u32; 3], u32), TraceTargetError> {
        let grid = launch.grid;
        let last = grid.map(|n| n.saturating_sub(1));
        let missing = |cta: String| TraceTargetError::Cta { cta, grid, last };
        let cta = match self.cta {
            Cta::Linear(n) if n < product(grid) => {
                let [x, y] = [u64::from(grid[0]), u64::from(grid[1])];
                [n % x, n / x % y, n / x / y].map(|v| v as u32)
            }
            Cta::Linear(n) => return Err(missing(n.to_string())),
            Cta::At(c) if (0..3).all(|i| c[i] < grid[i]) => c,
            Cta::At(c) => return Err(missing(format!("{c:?}"))),
        };
        let warps = product(launch.block).div_ceil(32);
        if u64::from(self.warp) >= warps {
            return Err(TraceTargetError::Warp { warp: self.warp, warps });
        }
        Ok((cta, self.warp))
    }
}

/// Prints steps from any thread.
pub(super) struct Printer<'a>(Mutex<&'a mut (dyn Write + Send)>);

impl<'a> Printer<'a> {
    pub fn new(out: &'a mut (dyn Write + Send)) -> Self {
        Printer(Mutex::new(out))
    }

    pub fn title(&self, text: &str) {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A trace that nobody can read does not stop the run.
        let _ = writeln!(out, "{text}:");
    }

    pub fn print(&self, step: &Step<'_>) {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "{:08x} {:>6}: {}", step.active, step.line, step.text);
    }
}
