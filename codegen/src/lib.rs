//! Problem and configuration to plan to PTX: the code generator of silumin.

pub mod gate;
