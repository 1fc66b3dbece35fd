//! Numbers that the backends share, so that all of them compute the same.
//!
//! ```text
//!   polynomial ── coefficients of exp, log, erf and the normal distribution's tail, f32 and f64
//!   philox ────── random words, and what becomes of them as normal numbers
//!   fft ───────── factors of a length, roots of unity and tables for GPUs
//!   resample ──── which samples, with which weights, make each position of a resized axis
//! ```
//!
//! ```
//! use olivine_numerics::philox::philox;
//! assert_eq!(philox([0; 4], [0; 2])[0], 0x6627_e8d5);
//! ```
#![forbid(unsafe_code)]

pub mod fft;
pub mod philox;
pub mod polynomial;
pub mod resample;
