//! What a product of `mma.sync` takes, from its PTX or from its machine code.

use super::Chip;
use crate::engine::fragment::Kind;
use crate::program::WarpMma;

/// A product of a warp, as far as its interval depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Product {
    elements: Elements,
    /// Its work relative to 16 x 8 elements times 256 bits of K.
    size: f64,
    /// Whether sums are in binary16 or integers.
    half: bool,
}

/// The elements of A and B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elements {
    /// 16 bits, or any that no other variant has.
    Wide,
    Bits8,
    Scaled8,
    Scaled4,
}

impl Product {
    /// The product of an instruction of PTX.
    pub fn of(m: &WarpMma) -> Product {
        let elements = match (m.scale.is_some(), m.kind) {
            (true, Kind::Packed4) => Elements::Scaled4,
            (true, _) => Elements::Scaled8,
            (false, kind) if kind.bits() == 8 && !m.widened => Elements::Bits8,
            (false, _) => Elements::Wide,
        };
        let half = match m.kind {
            Kind::Float { half, .. } => half,
            Kind::Integer { .. } => true,
            Kind::Packed4 | Kind::Bits { .. } | Kind::Double => false,
        };
        // A sparse A has half of the elements that K says, and takes as long as a dense one of so many.
        let k = m.shape.k as f64 / if m.sparse.is_some() { 2.0 } else { 1.0 };
        let bits = f64::from(m.kind.bits()) * if m.widened { 2.0 } else { 1.0 };
        Product { elements, size: size(m.shape.m as f64, m.shape.n as f64, k, bits), half }
    }

    /// The product of a machine instruction such as `QMMA.SF.16832.F32.E4M3.E4M3.E8`.
    pub fn of_machine(opcode: &str) -> Product {
        let parts: Vec<&str> = opcode.split('.').collect();
        let has = |part: &str| parts.contains(&part);
        let name = parts.first().copied().unwrap_or("");
        let (elements, bits) = match name {
            "OMMA" => (Elements::Scaled4, 4.0),
            "QMMA" if has("SF") => (Elements::Scaled8, 8.0),
            "IMMA" if has("S4") || has("U4") => (Elements::Bits8, 4.0),
            "QMMA" | "IMMA" => (Elements::Bits8, 8.0),
            "BMMA" => (Elements::Wide, 1.0),
            _ if has("TF32") => (Elements::Wide, 32.0),
            _ => (Elements::Wide, 16.0),
        };
        // 16 rows, 8 columns, then K.
        let k = parts.iter().find_map(|part| part.strip_prefix("168")?.parse::<f64>().ok());
        let half = has("F16") && !has("F32");
        let sparse = if has("SP") { 0.5 } else { 1.0 };
        let size = k.map_or(1.0, |k| size(16.0, 8.0, k * sparse, bits));
        Product { elements, size, half: half || name == "IMMA" }
    }

    /// Clocks for which it occupies a sub-core.
    pub fn interval(self, chip: &Chip) -> f64 {
        let whole = match self.elements {
            Elements::Wide => chip.mma_sync_interval,
            Elements::Bits8 => chip.mma_sync_8,
            Elements::Scaled8 => chip.mma_sync_scaled_8,
            Elements::Scaled4 => chip.mma_sync_scaled_4,
        };
        let sums = if self.half { chip.mma_sync_half.value } else { 1.0 };
        whole.value * self.size * sums
    }
}

/// Work relative to 16 x 8 elements times 256 bits of K. An instruction takes as long as half of that at least.
fn size(m: f64, n: f64, k: f64, bits: f64) -> f64 {
    (m * n * k * bits / (16.0 * 8.0 * 256.0)).max(0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clocks on two chips: one that adds up in binary32 at half the rate, and one that does not.
    #[test]
    fn machine_instructions_take_what_their_formats_take() {
        let geforce = Chip::named("rtx_5090").unwrap();
        let pro = Chip::named("rtx_pro_6000").unwrap();
        for (opcode, on_geforce, on_pro) in [
            ("HMMA.16816.F32.BF16", 32.0, 16.0),
            ("HMMA.1688.F32", 16.0, 8.0),
            ("HMMA.1688.F32.TF32", 32.0, 16.0),
            ("HMMA.SP.16832.F32", 32.0, 16.0),
            ("HMMA.16816.F16", 16.0, 16.0),
            ("QMMA.16832.F32.E4M3.E4M3", 32.0, 16.0),
            ("QMMA.16832.F16.E4M3.E4M3", 16.0, 16.0),
            ("QMMA.SF.16832.F32.E4M3.E4M3.E8", 16.0, 16.0),
            ("OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X", 16.0, 16.0),
            ("IMMA.16832.S8.S8", 16.0, 16.0),
        ] {
            let product = Product::of_machine(opcode);
            assert_eq!(product.interval(&geforce), on_geforce, "{opcode}");
            assert_eq!(product.interval(&pro), on_pro, "{opcode}");
        }
    }

    /// What is not known is taken as one product of 16 bits.
    #[test]
    fn an_unknown_product_is_one_of_16_bits() {
        let chip = Chip::named("b200").unwrap();
        assert_eq!(Product::of_machine("DMMA.8x8x4").interval(&chip), chip.mma_sync_interval.value);
        assert_eq!(Product::of_machine("").interval(&chip), chip.mma_sync_interval.value);
    }
}
