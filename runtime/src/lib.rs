//! Devices, launches, scale-factor layouts and reference mathematics for silumin kernels.

pub mod format;
pub mod layout;
