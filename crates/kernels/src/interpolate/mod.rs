//! Sampling at computed places. An invocation finds the samples of one place and reads them in several channels;
//! neighbouring invocations have neighbouring places.

mod grid;
mod roi;

use olivine_ir::{DType, Dim};
use olivine_kernel::{Scalar, Val};

use super::reduce::admit;
use crate::site::Site;

/// Loads of one invocation that are unrolled.
const LOADS: usize = 16;

/// Channels of one invocation at most.
const CHANNELS: usize = 4;

/// Channels that share their places, given the samples of each.
fn channels(count: Dim, samples: usize, site: &Site<'_>) -> usize {
    let unrolled = if site.caps.wants_short_kernels() { LOADS / 2 } else { LOADS };
    let most = (unrolled / samples.max(1)).clamp(1, CHANNELS);
    [4, 2].into_iter().find(|c| *c <= most && count >= *c).unwrap_or(1)
}

/// The type places and sums are computed in: f64 where an operand is, else f32.
fn working(dtypes: &[DType], site: &Site<'_>) -> Result<Scalar, String> {
    if dtypes.contains(&DType::F64) {
        admit(DType::F64, site)?;
        return Ok(Scalar::F64);
    }
    Ok(Scalar::F32)
}

/// Whether a number is infinite or NaN.
fn not_finite(x: Val<'_>) -> Val<'_> {
    crate::math::is_nan(x) | crate::math::is_inf(x)
}
