//! References of `matrices.cu`.
