//! Group norm of `[N, C, ..]`: rows of some channels and all their positions.

use olivine_ir::op::GroupNorm;

use super::norm::{Norm, Weights};
use crate::kernels;
use crate::site::Site;

kernels! { |op, site|
    GroupNorm => group_norm(op, site),
}

/// Lowers a group norm.
pub(crate) fn group_norm(op: &GroupNorm, site: &mut Site<'_>) -> Result<(), String> {
    let dims = site.targets[0].ty.shape.dims();
    let (Some(all), Some(rest)) = (dims.get(1), dims.get(2..)) else {
        return Err("needs a batch and channels".into());
    };
    let positions = rest.iter().product();
    let channels = all.checked_div(op.groups).ok_or("has no groups")?;
    let weights = Weights::Channels { groups: op.groups, channels, positions };
    Norm { name: "group_norm", centred: true, eps: op.eps, weights, prologue: None }
        .rows(channels * positions, site)
}
