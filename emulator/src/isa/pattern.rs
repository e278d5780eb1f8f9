//! Matching an opcode and its modifiers against the forms of the instruction table.

use super::Ty;
use std::collections::HashMap;

/// The modifier classes that forms name, with their members.
const CLASSES: &[(&str, &[&str])] = &[
    ("sem", &["weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "sc"]),
    ("scope", &["cta", "cluster", "gpu", "sys"]),
    (
        "space",
        &[
            "global",
            "shared",
            "shared::cta",
            "shared::cluster",
            "local",
            "param",
            "param::entry",
            "param::func",
            "const",
        ],
    ),
    ("shared", &["shared", "shared::cta", "shared::cluster"]),
    ("cop", &["ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified"]),
    (
        "evict",
        &[
            "L1::evict_normal",
            "L1::evict_unchanged",
            "L1::evict_first",
            "L1::evict_last",
            "L1::no_allocate",
            "L2::evict_normal",
            "L2::evict_first",
            "L2::evict_last",
            "L2::evict_unchanged",
            "L2::64B",
            "L2::128B",
            "L2::256B",
            "level::eviction_priority",
        ],
    ),
    ("hint", &["L2::cache_hint"]),
    ("vec", &["v2", "v4", "v8"]),
    (
        "type",
        &[
            "pred", "b8", "b16", "b32", "b64", "b128", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64",
            "u16x2", "s16x2", "f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64", "tf32", "e4m3x2",
            "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2", "e2m1x4", "e4m3x4", "e5m2x4", "e2m3x4",
            "e3m2x4", "s2f6x2",
        ],
    ),
    ("small_float", &["e4m3", "e5m2", "e4m3x2", "e5m2x2"]),
    ("rnd", &["rn", "rz", "rm", "rp", "rna", "rs"]),
    ("irnd", &["rni", "rzi", "rmi", "rpi"]),
    ("ftz", &["ftz"]),
    ("sat", &["sat"]),
    ("satfinite", &["satfinite"]),
    ("nan", &["NaN"]),
    ("approx", &["approx", "full"]),
    (
        "cmp",
        &[
            "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
            "geu", "num", "nan",
        ],
    ),
    ("bool", &["and", "or", "xor"]),
    ("level", &["L1", "L2"]),
    ("dim", &["1d", "2d", "3d", "4d", "5d"]),
    ("group", &["cta_group::1", "cta_group::2"]),
    (
        "kind",
        &[
            "kind::f16",
            "kind::tf32",
            "kind::f8f6f4",
            "kind::i8",
            "kind::mxf8f6f4",
            "kind::mxf4",
            "kind::mxf4nvf4",
        ],
    ),
    ("scalevec", &["scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32"]),
    (
        "collector",
        &[
            "collector::a::fill",
            "collector::a::use",
            "collector::a::lastuse",
            "collector::a::discard",
            "collector::b0::fill",
            "collector::b0::use",
            "collector::b0::lastuse",
            "collector::b0::discard",
            "collector::b1::fill",
            "collector::b1::use",
            "collector::b1::lastuse",
            "collector::b1::discard",
            "collector::b2::fill",
            "collector::b2::use",
            "collector::b2::lastuse",
            "collector::b2::discard",
            "collector::b3::fill",
            "collector::b3::use",
            "collector::b3::lastuse",
            "collector::b3::discard",
        ],
    ),
    ("tshape", &["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"]),
    ("tnum", &["x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"]),
    ("cpshape", &["128x256b", "4x256b", "128x128b", "64x128b", "32x128b"]),
    ("cpmcast", &["warpx2::02_13", "warpx2::01_23", "warpx4"]),
    ("cpfmt", &["b8x16.b4x16_p64", "b8x16.b6x16_p32", "b8x16", "b4x16_p64", "b6x16_p32"]),
    ("atomop", &["and", "or", "xor", "exch", "cas", "add", "inc", "dec", "min", "max"]),
    ("axis", &["x", "y", "z"]),
    (
        "mma",
        &[
            "m8n8k4",
            "m16n16k16",
            "m8n32k16",
            "m32n8k16",
            "m16n16k8",
            "m8n8k16",
            "m8n8k32",
            "m8n8k128",
            "m16n8k4",
            "m16n8k8",
            "m16n8k16",
            "m16n8k32",
            "m16n8k64",
            "m16n8k128",
            "m16n8k256",
        ],
    ),
    (
        "mapfield",
        &[
            "global_address",
            "rank",
            "box_dim",
            "global_dim",
            "global_stride",
            "element_stride",
            "elemtype",
            "interleave_layout",
            "swizzle_mode",
            "swizzle_atomicity",
            "fill_mode",
        ],
    ),
    ("small", &["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"]),
    ("wgmma", &["m64n#k8", "m64n#k16", "m64n#k32", "m64n#k64", "m64n#k256"]),
    (
        "element",
        &[
            "f16", "bf16", "tf32", "f32", "f64", "s32", "s8", "u8", "s4", "u4", "b1", "e4m3", "e5m2", "e2m1",
            "e2m3", "e3m2",
        ],
    ),
];

/// How often a modifier slot may match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    One,
    Optional,
    Many,
}

#[derive(Debug)]
struct Slot {
    name: &'static str,
    choices: Vec<&'static str>,
    count: Count,
}

/// A row of the instruction table: a form, its ISA section, and the function that lowers it.
pub(crate) struct Form<L: 'static> {
    /// Opcode head and modifier slots, as the folder's documentation describes them.
    pub form: &'static str,
    /// Sections of the PTX ISA manual, release 9.1.
    pub section: &'static str,
    /// Lowers a matched instruction.
    pub lower: L,
}

struct Row<L: 'static> {
    head: Vec<&'static str>,
    slots: Vec<Slot>,
    form: &'static Form<L>,
}

/// The matched modifiers of one opcode.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mods {
    found: Vec<(&'static str, &'static str)>,
}

impl Mods {
    /// The `n`-th match of a class.
    pub fn nth(&self, class: &str, n: usize) -> Option<&'static str> {
        self.found.iter().filter(|(c, _)| *c == class).nth(n).map(|(_, v)| *v)
    }

    /// Adds a modifier that the form implies.
    pub fn add(&mut self, class: &'static str, value: &'static str) {
        self.found.push((class, value));
    }

    /// The first match of a class.
    pub fn get(&self, class: &str) -> Option<&'static str> {
        self.nth(class, 0)
    }

    /// Whether this exact modifier was written.
    pub fn has(&self, text: &str) -> bool {
        self.found.iter().any(|(_, v)| *v == text)
    }

    /// The `n`-th type modifier.
    pub fn ty(&self, n: usize) -> Option<Ty> {
        self.nth("type", n).and_then(Ty::parse)
    }
}

/// All forms, indexed by the first part of the opcode.
pub(crate) struct Table<L: 'static> {
    rows: HashMap<&'static str, Vec<Row<L>>>,
}

impl<L> Table<L> {
    /// Compiles the forms.
    pub fn new(parts: &[&'static [Form<L>]]) -> Self {
        let mut rows: HashMap<&'static str, Vec<Row<L>>> = HashMap::new();
        for form in parts.iter().flat_map(|p| p.iter()) {
            let mut words = form.form.split_whitespace();
            let head: Vec<&'static str> = words.next().unwrap_or("").split('.').collect();
            let slots = words.map(slot).collect();
            rows.entry(head[0]).or_default().push(Row { head, slots, form });
        }
        for list in rows.values_mut() {
            list.sort_by_key(|r| std::cmp::Reverse(r.head.len()));
        }
        Table { rows }
    }

    /// All forms.
    #[cfg(test)]
    pub fn forms(&self) -> impl Iterator<Item = &'static Form<L>> {
        self.rows.values().flatten().map(|r| r.form)
    }

    /// The form of an opcode, or which part of the opcode is unknown.
    pub fn find(&self, opcode: &str) -> Result<(&'static Form<L>, Mods), String> {
        let parts: Vec<&str> = opcode.split('.').collect();
        let Some(rows) = self.rows.get(parts[0]) else {
            return Err(format!("unknown instruction `{opcode}`"));
        };
        let mut complaint: Option<(usize, String)> = None;
        let mut note = |depth: usize, text: String| {
            if complaint.as_ref().is_none_or(|(d, _)| depth > *d) {
                complaint = Some((depth, text));
            }
        };
        for row in rows {
            if parts.len() < row.head.len() || parts[..row.head.len()] != row.head[..] {
                continue;
            }
            match match_slots(&row.slots, &parts[row.head.len()..]) {
                Ok(mods) => return Ok((row.form, mods)),
                Err((matched, text)) => note(row.head.len() * 100 + matched, text),
            }
        }
        Err(match complaint {
            Some((_, text)) => format!("{text} in `{opcode}`"),
            None => format!("unknown instruction `{opcode}`"),
        })
    }
}

/// Whether a part of an opcode is one of the choices; `#` in a choice stands for a number.
fn fits(choice: &str, part: &str) -> bool {
    match choice.split_once('#') {
        None => choice == part,
        Some((before, after)) => part
            .strip_prefix(before)
            .and_then(|p| p.strip_suffix(after))
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())),
    }
}

fn slot(word: &'static str) -> Slot {
    let (name, count) = if let Some(w) = word.strip_suffix('?') {
        (w, Count::Optional)
    } else if let Some(w) = word.strip_suffix('*') {
        (w, Count::Many)
    } else {
        (word, Count::One)
    };
    if name.starts_with('.') {
        let choices = name.split('|').map(|c| c.trim_start_matches('.')).collect();
        return Slot { name, choices, count };
    }
    let choices = CLASSES.iter().find(|(n, _)| *n == name).map(|(_, c)| c.to_vec()).unwrap_or_default();
    debug_assert!(!choices.is_empty(), "modifier class {name} does not exist");
    Slot { name, choices, count }
}

fn match_slots(slots: &[Slot], parts: &[&str]) -> Result<Mods, (usize, String)> {
    let mut used = vec![false; slots.len()];
    let mut mods = Mods::default();
    for (n, part) in parts.iter().enumerate() {
        let hit = slots.iter().enumerate().find_map(|(i, s)| {
            if used[i] && s.count != Count::Many {
                return None;
            }
            s.choices.iter().find(|c| fits(c, part)).map(|c| (i, s.name, *c))
        });
        let Some((i, name, choice)) = hit else {
            return Err((n, format!("unknown or unsupported modifier `.{part}`")));
        };
        used[i] = true;
        mods.found.push((name, choice));
    }
    for (s, used) in slots.iter().zip(&used) {
        if s.count == Count::One && !used {
            return Err((parts.len(), format!("missing modifier ({})", s.choices.join(", "))));
        }
    }
    Ok(mods)
}
