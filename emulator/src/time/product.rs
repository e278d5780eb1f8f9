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
        let size = ((m.a.len() + m.b.len()) as f64 / 6.0).max(0.5);
        Product { elements, size, half }
    }

    /// The product of a machine instruction such as `QMMA.SF.16832.F32.E4M3.E4M3.E8`.
    pub fn of_machine(opcode: &str) -> Product {
        let mut parts = opcode.split('.');
        let name = parts.next().unwrap_or("");
        let mut rest = parts.peekable();
        let scaled = rest.next_if_eq(&"SF").is_some();
        let shape = rest.find(|part| part.bytes().all(|b| b.is_ascii_digit())).unwrap_or("");
        let sums = rest.next().unwrap_or("");
        let (elements, bits) = match (name, scaled) {
            ("OMMA", _) => (Elements::Scaled4, 4.0),
            ("QMMA", true) => (Elements::Scaled8, 8.0),
            ("QMMA" | "IMMA", _) => (Elements::Bits8, 8.0),
            _ => (Elements::Wide, 16.0),
        };
        // 16 rows, 8 columns, then K.
        let k = shape.strip_prefix("168").and_then(|k| k.parse::<f64>().ok());
        let size = k.map_or(1.0, |k| (k * bits / 256.0).max(0.5));
        Product { elements, size, half: sums == "F16" || name == "IMMA" }
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
