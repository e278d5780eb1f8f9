//! What an author writes: declarations, and the gates in them.

pub mod declaration;
#[allow(clippy::wildcard_enum_match_arm)] // expressions, of which most are treated alike
pub mod gate;
