//! Results of an earlier survey, so that only survivors are run again.

use super::{Mutant, Verdict};
use crate::finding::FindingKind;
use std::collections::HashMap;

/// Verdicts of an earlier survey of an unchanged kernel.
#[derive(Clone, Debug, Default)]
pub struct Earlier(HashMap<(String, String, u64, String, String), Verdict>);

impl Earlier {
    /// Reads the output of [`super::json`] in addition to earlier ones. The latest verdict on a mutant counts.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn read(&mut self, text: &str) -> Result<(), String> {
        let surveys: serde_json::Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        for survey in surveys.as_array().ok_or("a list of surveys is needed")? {
            let word = |v: &serde_json::Value, key: &str| v[key].as_str().unwrap_or_default().to_owned();
            for o in survey["outcomes"].as_array().into_iter().flatten() {
                let detail = &o["detail"];
                let verdict = match o["verdict"].as_str() {
                    Some("refused") => Verdict::Refused(word(detail, "message")),
                    Some("output") => {
                        Verdict::Output { buffer: word(detail, "buffer"), schedule: word(detail, "schedule") }
                    }
                    Some("found") => match FindingKind::named(detail["kind"].as_str().unwrap_or_default()) {
                        Some(kind) => Verdict::Found {
                            kind,
                            finding: word(detail, "message"),
                            schedule: word(detail, "schedule"),
                        },
                        None => continue,
                    },
                    Some("explained") => Verdict::Explained(word(detail, "message")),
                    Some("survived") => Verdict::Survived,
                    _ => continue,
                };
                let line = o["line"].as_u64().unwrap_or_default();
                let key = (word(survey, "kernel"), word(o, "kind"), line, word(o, "was"), word(o, "change"));
                self.0.insert(key, verdict);
            }
        }
        Ok(())
    }

    /// The earlier verdict on a mutant of a kernel, if it was run.
    pub(super) fn verdict(&self, kernel: &str, m: &Mutant) -> Option<Verdict> {
        let key =
            (kernel.to_owned(), m.kind.name().to_owned(), u64::from(m.line), m.was.clone(), m.change.clone());
        self.0.get(&key).cloned()
    }
}
