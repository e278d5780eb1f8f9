//! Buffers as a GPU left them after the corpus's kernels: `corpus/hardware/h200.txt`.

use std::collections::BTreeMap;

const TRUTH: &str = include_str!("../corpus/hardware/h200.txt");

/// FNV-1a of 64 bits.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn float(word: u32) -> f64 {
    f64::from(f32::from_bits(word))
}

/// Checks words whose values depend on the order of atomic operations.
fn words(rule: &[&str], bytes: &[u8]) -> Result<(), String> {
    let got: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|&b| u32::from_le_bytes(b)).collect();
    let (units, want) = match rule.split_first() {
        Some((first, rest)) if first.starts_with('~') => (first[1..].parse().map_err(|_| "units")?, rest),
        _ => (0f64, rule),
    };
    let largest = got.iter().map(|&w| float(w).abs()).fold(f64::MIN_POSITIVE, f64::max);
    let unit = 2f64.powi(largest.log2().floor() as i32 - 23);
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        if want == "*" {
            continue;
        }
        let want = u32::from_str_radix(want, 16).map_err(|e| e.to_string())?;
        let near = units > 0.0 && (float(got) - float(want)).abs() <= units * unit;
        if got != want && !near {
            return Err(format!("word {i} is {got:08x}, a GPU has {want:08x}"));
        }
    }
    if got.len() == want.len() { Ok(()) } else { Err(format!("{} words, not {}", got.len(), want.len())) }
}

/// Compares the buffers that kernel `name` left with those that the GPU left; how many were compared.
///
/// # Errors
/// The buffer, and what is wrong with it.
pub fn compare(name: &str, buffers: &BTreeMap<String, Vec<u8>>) -> Result<usize, String> {
    let mut count = 0;
    for line in TRUTH.lines().filter(|l| !l.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let &[kernel, buffer, size, what, ref rule @ ..] = &fields[..] else {
            return Err(format!("this line of the list has too few fields: {line}"));
        };
        if kernel != name {
            continue;
        }
        count += 1;
        if what == "stopped" || what == "opaque" {
            continue;
        }
        let bytes = buffers.get(buffer).ok_or_else(|| format!("there is no buffer {buffer}"))?;
        let same = match what {
            "words" => words(rule, bytes),
            _ if size != bytes.len().to_string() => Err(format!("{} bytes, not {size}", bytes.len())),
            _ if format!("{:016x}", hash(bytes)) == what => Ok(()),
            _ => Err("a GPU leaves something else".to_owned()),
        };
        same.map_err(|e| format!("{name}, buffer {buffer}: {e}"))?;
    }
    if count == 0 { Err(format!("no GPU ran {name}")) } else { Ok(count) }
}

/// The kernels that a GPU ran.
pub fn kernels() -> Vec<&'static str> {
    let mut out: Vec<&str> =
        TRUTH.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split(' ').next()).collect();
    out.dedup();
    out
}
