//! What the tests of several devices share.

pub mod bars;
pub mod draws;
pub mod tensors;
