//! Keys of compiled kernels: a hash of everything that the machine code depends on.
//!
//! It includes no path, time or name, so no entry goes stale and none is confused with another.

use std::fmt;
use std::str::FromStr;

use super::compile::{Identity, Source};

/// Domains of the two hashes. Change them when the hashed fields change.
const KEY_CONTEXT: &str = "silumin 2026-11-20 cubin of PTX, target, compiler, options; format 1";
const SOURCE_CONTEXT: &str = "silumin 2026-11-20 PTX and target of a cubin; format 1";

/// The key of a compiled kernel: blake3 over its PTX, its target, and the compiler's name, version and options.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub(crate) [u8; 32]);

/// A key without the compiler. Bundles are searched by it, because they may have been made with another driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub(super) [u8; 32]);

impl Key {
    /// The key of the cubin that `compiler` makes of `source`.
    #[must_use]
    pub fn of(source: &Source<'_>, compiler: &Identity) -> Self {
        let Identity { name, version, options } = compiler;
        Key(hash(KEY_CONTEXT, &[source.ptx, source.arch.target(), name, version, options]))
    }
}

impl SourceId {
    /// The part of the key that depends on the kernel alone.
    #[must_use]
    pub fn of(source: &Source<'_>) -> Self {
        SourceId(hash(SOURCE_CONTEXT, &[source.ptx, source.arch.target()]))
    }
}

/// Hashes fields with their lengths: two lists that read the same when joined differ.
fn hash(context: &str, fields: &[&str]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for field in fields {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

macro_rules! hexadecimal {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    };
}
hexadecimal!(Key);
hexadecimal!(SourceId);

/// The text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 64 digits of 0-9 and a-f")]
pub struct NoKey;

impl FromStr for Key {
    type Err = NoKey;

    fn from_str(text: &str) -> Result<Self, NoKey> {
        let digits = text.as_bytes();
        let mut key = [0; 32];
        if digits.len() != 64 {
            return Err(NoKey);
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |c: u8| match c {
                b'0'..=b'9' => Ok(c - b'0'),
                b'a'..=b'f' => Ok(c - b'a' + 10),
                _ => Err(NoKey),
            };
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Key(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use silumin_codegen::arch::Arch;

    #[test]
    fn every_part_is_in_the_key() {
        let source = Source { name: "k", ptx: "text", arch: Arch::Sm100a, ptx_version: (8, 6) };
        let identity = Identity { name: "driver".into(), version: "580".into(), options: String::new() };
        let key = Key::of(&source, &identity);
        let id = SourceId::of(&source);
        let others = [
            (Source { ptx: "texts", ..source }, identity.clone(), false),
            (Source { arch: Arch::Sm103a, ..source }, identity.clone(), false),
            (source, Identity { name: "ptxas".into(), ..identity.clone() }, true),
            (source, Identity { version: "581".into(), ..identity.clone() }, true),
            (source, Identity { options: "-O1".into(), ..identity.clone() }, true),
            // The same letters, divided otherwise.
            (source, Identity { version: "58".into(), options: "0".into(), ..identity.clone() }, true),
        ];
        for (source, identity, same_source) in others {
            assert_ne!(Key::of(&source, &identity), key, "{source:?} {identity:?}");
            assert_eq!(SourceId::of(&source) == id, same_source);
        }
        // What the code does not depend on is not in it.
        assert_eq!(Key::of(&Source { name: "other", ..source }, &identity), key);
        assert_ne!(key.0, id.0);
    }

    #[test]
    fn a_key_is_read_back_and_nothing_else_is() {
        let source = Source { name: "k", ptx: "text", arch: Arch::Sm100a, ptx_version: (8, 6) };
        let key = Key::of(&source, &Identity { name: "n".into(), version: "1".into(), options: "".into() });
        let text = key.to_string();
        assert_eq!(text.parse(), Ok(key));
        for no_key in
            ["", &text[1..], &text.to_uppercase(), &format!("{text}0"), &text.replace(&text[..1], "é")]
        {
            assert_eq!(no_key.parse::<Key>(), Err(NoKey), "{no_key}");
        }
    }
}
