//! Tests of the engines outside the tensor core, one file for each.

mod boxes;
mod descriptors;
mod formats;
mod tmem;
mod wgmma_sparse;
