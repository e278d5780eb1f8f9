//! Suggestions for misspelt names.

/// Number of names that an error suggests.
const OFFERED: usize = 3;

/// The names most similar to `wanted`, the likeliest first; none if all differ much.
pub(super) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut near: Vec<(usize, &str)> = names
        .filter_map(|name| {
            let likeness = likeness(wanted.as_bytes(), name.as_bytes());
            (2 * likeness >= wanted.len()).then_some((likeness, name))
        })
        .collect();
    near.sort_by(|(one, first), (other, second)| {
        other
            .cmp(one)
            .then(first.len().cmp(&second.len()))
            .then_with(|| by_number(first).cmp(&by_number(second)))
    });
    near.into_iter().take(OFFERED).map(|(_, name)| name.to_owned()).collect()
}

/// Length of the common prefix plus that of the common suffix: names of tensors usually differ in one part in the
/// middle or at the end.
fn likeness(one: &[u8], other: &[u8]) -> usize {
    let equal = |pairs: &mut dyn Iterator<Item = (&u8, &u8)>| pairs.take_while(|(a, b)| a == b).count();
    let start = equal(&mut one.iter().zip(other));
    let end = equal(&mut one[start..].iter().rev().zip(other[start..].iter().rev()));
    start + end
}

/// A sort key by which `layers.10` follows `layers.9`.
pub(super) fn by_number(name: &str) -> Vec<(String, u64)> {
    name.split('.')
        .map(|part| (part.trim_matches(|c: char| c.is_ascii_digit()).to_owned(), part.parse().unwrap_or(0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_strangers_not_at_all() {
        let names = [
            "lm_head.weight",
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.mlp.gate_proj.weight_scale",
            "model.layers.1.mlp.gate_proj.weight_scale_2",
            "model.layers.0.mlp.up_proj.weight_scale_2",
        ];
        let near = nearest("model.layers.0.mlp.gate_proj.weight_scale_2", names.into_iter());
        assert_eq!(near[0], "model.layers.1.mlp.gate_proj.weight_scale_2");
        assert_eq!(near.len(), 3);
        assert!(!near.contains(&names[0].to_owned()));
        assert!(nearest("x", names.into_iter()).is_empty());
        assert!(nearest("", ["é", ""].into_iter()).len() == 2);
    }

    #[test]
    fn numbers_ascend() {
        let mut names = ["layers.10.mlp", "layers.9.mlp", "layers.9.experts.11", "layers.9.experts.2"];
        names.sort_by_cached_key(|name| by_number(name));
        assert_eq!(names, ["layers.9.experts.2", "layers.9.experts.11", "layers.9.mlp", "layers.10.mlp"]);
    }
}
