//! Matmuls with few rows, near the speed at which B is read.

pub(crate) mod coop;
pub(crate) mod gemv;
