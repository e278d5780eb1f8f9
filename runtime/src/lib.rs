//! Devices, launches, scale-factor layouts and reference mathematics for silumin kernels.
