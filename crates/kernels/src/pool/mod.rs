//! Pools: one number from each window of a plane.
//!
//! ```text
//!   many windows of few elements ── tile: the window is baked, an invocation computes neighbouring rows
//!   others ───────────────────────── each: an invocation or a cluster of them to each window
//! ```
//!
//! Windows that are all of a plane were rewritten as reductions before.

mod fold;
mod tile;
mod window;
mod windows;

use olivine_ir::op::{AdaptivePool, Pool};

use crate::kernels;
use crate::reduce::admit;
use crate::site::Site;
use fold::Fold;
use windows::Windows;

kernels! { |op, site|
    Pool => pool(op, site),
    AdaptivePool => adaptive_pool(op, site),
}

/// Lowers a pool.
pub(crate) fn pool(op: &Pool, site: &mut Site<'_>) -> Result<(), String> {
    let (x, y) = (&site.operands[0].ty, &site.targets[0].ty);
    let fold = Fold { kind: op.kind, p: op.p, dtype: x.dtype, located: op.indices };
    let windows = Windows::of_pool(op, &x.shape.sizes()[2..], &y.shape.sizes()[2..])?;
    emit(fold, &windows, site)
}

/// Lowers a pool to given sizes.
pub(crate) fn adaptive_pool(op: &AdaptivePool, site: &mut Site<'_>) -> Result<(), String> {
    let x = &site.operands[0].ty;
    let fold = Fold { kind: op.kind, p: 1, dtype: x.dtype, located: false };
    let windows = Windows::of_adaptive(op, &x.shape.sizes()[2..])?;
    if windows.axes.iter().any(|a| a.output > a.input || !a.input.is_multiple_of(a.output)) {
        return window::emit(fold, &windows, site);
    }
    emit(fold, &windows, site)
}

fn emit(fold: Fold, windows: &Windows, site: &mut Site<'_>) -> Result<(), String> {
    admit(fold.dtype, site)?;
    if tile::fits(fold, windows, site.targets[0].ty.shape.sizes().numel()) {
        tile::emit(fold, windows, site)
    } else {
        window::emit(fold, windows, site)
    }
}
