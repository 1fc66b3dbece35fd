//! One file or folder per kernel family. A kernel reads strided [`Operand`](crate::operand::Operand)s and writes
//! packed [`Target`](crate::operand::Target)s.

pub(crate) mod attention;
pub(crate) mod contraction;
pub(crate) mod conv;
pub(crate) mod create;
pub(crate) mod elementwise;
pub(crate) mod fft;
pub(crate) mod gemm;
pub(crate) mod index;
pub(crate) mod integer;
pub(crate) mod interpolate;
pub(crate) mod movement;
pub(crate) mod packed;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod resize;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod sample;
pub(crate) mod scan;
mod small_m;
pub(crate) mod state_space;
