//! Runs PTX text on the CPU: a functional model of one GPU.

pub mod engine;
