//! Gated dual GEMMs for LLM inference.
