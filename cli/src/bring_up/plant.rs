//! Plants one mistake in a kernel of a pack, to test that the report names it.

use std::error::Error;
use std::str::FromStr;

/// The kind of mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// One approximation in the gate is replaced by another, so that some elements of C are wrong.
    Wrong,
    /// A barrier misses one of its arrivals, so that the kernel never ends.
    Hang,
}

/// A kernel to damage, as `CASE` or `CASE:MISTAKE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plant {
    /// The kernel's id, such as `5a`.
    pub case: String,
    /// How.
    pub mistake: Mistake,
}

impl FromStr for Plant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (case, mistake) = text.split_once(':').unwrap_or((text, "wrong"));
        let mistake = match mistake {
            "wrong" => Mistake::Wrong,
            "hang" => Mistake::Hang,
            other => return Err(format!("`{other}` is no mistake that can be planted: wrong or hang")),
        };
        Ok(Plant { case: case.to_owned(), mistake })
    }
}

impl Plant {
    /// The PTX with the mistake.
    ///
    /// # Errors
    /// Nothing in the text can be damaged so.
    pub fn damage(&self, ptx: &str) -> Result<String, Box<dyn Error>> {
        let (from, to) = match self.mistake {
            Mistake::Wrong => ("rcp.approx", "ex2.approx"),
            Mistake::Hang => ("mbarrier.arrive.expect_tx", "mbarrier.expect_tx.relaxed.cta"),
        };
        let at = ptx.find(from).ok_or_else(|| format!("the kernel has no `{from}` to damage"))?;
        let mut line = ptx[at..].lines().next().unwrap_or_default().replace(from, to);
        if self.mistake == Mistake::Hang {
            // The form without an arrival has no result.
            line = line.replace(" _,", "");
        }
        let end = ptx[at..].find('\n').map_or(ptx.len(), |end| at + end);
        Ok(format!("{}{line}{}", &ptx[..at], &ptx[end..]))
    }
}
