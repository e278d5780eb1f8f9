//! "Did you mean": the name that a wrong one is nearest to.

/// What goes behind a name that is none of `known`: " (did you mean `stages`?)", or nothing if none is near.
pub(crate) fn did_you_mean<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(given, known).map_or(String::new(), |name| format!(" (did you mean `{name}`?)"))
}

/// The name that `given` was most likely meant to be: one that it starts or is the start of, or one that is written with few
/// letters swapped, left out, put in or replaced. Names are compared up to their `(`, in lower case, `-` as `_`.
fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = |text: &str| text.split('(').next().unwrap_or(text).trim().to_lowercase().replace('-', "_");
    let has_argument = given.contains('(');
    let given = word(given);
    let rank = |name: &'a str| {
        let known = word(name);
        let distance = strsim::damerau_levenshtein(&given, &known);
        let few =
            distance <= known.len() / 4 + 1 && 2 * distance < given.len() && same_digits(&given, &known);
        let start =
            given.len() > 1 && !known.is_empty() && (known.starts_with(&given) || given.starts_with(&known));
        // A start counts behind all that are written alike.
        match (few, start) {
            (true, _) => Some((distance, has_argument != name.contains('('), name)),
            (false, true) => Some((usize::MAX, false, name)),
            (false, false) => None,
        }
    };
    let ranked = known.into_iter().filter_map(rank);
    ranked.min_by_key(|(distance, other, _)| (*distance, *other)).map(|(_, _, name)| name)
}

/// Whether the digits of one are among those of the other: `sm_80` is no slip for `sm_90a`, and `f61` is one for `f16`.
fn same_digits(one: &str, other: &str) -> bool {
    let count = |text: &str| {
        let mut digits = [0usize; 10];
        for digit in text.chars().filter_map(|letter| letter.to_digit(10)) {
            digits[digit as usize] += 1;
        }
        digits
    };
    let (one, other) = (count(one), count(other));
    let within = |few: &[usize; 10], many: &[usize; 10]| few.iter().zip(many).all(|(few, many)| few <= many);
    within(&one, &other) || within(&other, &one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;
    use crate::config::KNOBS;
    use crate::dsl::DSL_KNOBS;
    use crate::gate::functions::FUNCTIONS;
    use crate::problem::{OperandFormat, OutputFormat};

    /// All names of each kind.
    fn kinds() -> Vec<Vec<&'static str>> {
        let mut kinds = vec![
            KNOBS.iter().chain(&DSL_KNOBS).map(|knob| knob.name).collect(),
            OperandFormat::ALL.map(|format| format.spec().name).to_vec(),
            OutputFormat::ALL.map(OutputFormat::name).to_vec(),
            Arch::ALL.map(Arch::target).to_vec(),
            FUNCTIONS.iter().map(|function| function.name).collect(),
        ];
        let words = |spelling: &&str| spelling.starts_with(|first: char| first.is_ascii_lowercase());
        kinds.extend(KNOBS.iter().map(|knob| knob.spellings().filter(words).collect()));
        kinds
    }

    #[test]
    fn every_name_of_every_kind_is_found_with_two_letters_swapped_one_left_out_or_one_too_many() {
        let mut found = 0;
        for names in kinds() {
            for name in names.iter().filter(|name| name.len() > 4) {
                let letters: Vec<char> = name.split('(').next().unwrap_or(name).chars().collect();
                let mut swapped = letters.clone();
                swapped.swap(1, 2);
                let mut shorter = letters.clone();
                shorter.remove(letters.len() / 2);
                let mut longer = letters.clone();
                longer.insert(2, 'q');
                for wrong in [swapped, shorter, longer].map(String::from_iter) {
                    // What is left may be another name's, or as near to one.
                    let Some(near) = nearest(&wrong, names.iter().copied()) else {
                        panic!("{wrong}: nothing near, and {name} is");
                    };
                    let distance =
                        |known: &str| strsim::damerau_levenshtein(&wrong, known.split('(').next().unwrap());
                    assert!(distance(near) <= distance(name), "{wrong}: {near} instead of {name}");
                    found += 1;
                }
            }
        }
        assert!(found > 150, "{found}");
    }

    #[test]
    fn what_is_near_nothing_finds_nothing() {
        for names in kinds() {
            for wrong in ["", "x", "zzzz", "qqqqqqqqqqqq"] {
                assert_eq!(nearest(wrong, names.iter().copied()), None, "{wrong}");
            }
        }
        let knobs = || KNOBS.iter().map(|knob| knob.name);
        assert_eq!(nearest("k", knobs()), None);
        assert_eq!(nearest("cluster", knobs()), None);
        assert_eq!(nearest("acc", knobs()), Some("accumulators"));
        assert_eq!(nearest("Tmem-Column", knobs()), Some("tmem_columns"));
        // Another number is another chip, or another format.
        assert_eq!(nearest("sm_80", Arch::ALL.map(Arch::target)), None);
        assert_eq!(nearest("sm_100", Arch::ALL.map(Arch::target)), Some("sm_100a"));
        assert_eq!(nearest("direct(16)", ["direct", "direct(SHAPE)"]), Some("direct(SHAPE)"));
        assert_eq!(did_you_mean("stagse", knobs()), " (did you mean `stages`?)");
    }
}
