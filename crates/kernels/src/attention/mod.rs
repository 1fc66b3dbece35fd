//! Attention by tiles with an online softmax: the matrix of scores never exists.
//!
//! A workgroup takes a tile of rows, which are the queries of all heads that share keys, and walks over the keys that
//! causality, window and length leave. Where these are few workgroups the keys are split, and a second dispatch
//! combines the parts.

mod args;
mod combine;
mod coop;
mod decode;
mod kernel;
mod problem;
mod rows;
mod softmax;
mod tile;
mod visible;
mod warpgroup;

use olivine_ir::Dim;
use std::fmt;

use olivine_ir::op::{Attention, HeadLayout, MaskKind};
use olivine_kernel::Val;
use olivine_program::{DeviceCaps, DeviceKind};

use crate::kernels;
use crate::site::{Site, recorded_class, rounded};
use args::AttentionTarget;
use problem::Problem;
pub(crate) use softmax::exp2_below;
use tile::{Need, Tile, fours};
use visible::Split;

kernels! { |op, site|
    Attention => attention(op, site),
}

/// Workgroups that keep a large device busy.
const BUSY: usize = 512;
/// The same for a software GPU.
const BUSY_PROCESSOR: usize = 16;
/// The same for workgroups with matrices.
const BUSY_MATRICES: usize = 128;
/// Tiles of keys that a split has at least.
const LEAST_TILES: usize = 2;
/// Tiles of keys that splitting must take off every workgroup: below that a second dispatch takes longer. So it does
/// where two or three times the workgroups would not be many more than the device runs at once.
const WORTH_TILES: usize = 4;
/// Ranges of keys that are too few to be worth it.
const MOST_UNSPLIT: usize = 3;
/// Multiply-adds that make up for the wait for a long kernel on a software GPU.
const LONG_WORK: usize = 1 << 22;

/// Lowers attention.
pub(crate) fn attention(op: &Attention, site: &mut Site<'_>) -> Result<(), String> {
    let p = Problem::new(op, site)?;
    if p.target.ty.shape.has_zero() {
        return Ok(());
    }
    if let Some(default) = decode::choose(&p, site.caps) {
        let class = class(&p, site.is_tuned(FAMILY))?;
        let candidates = decode::candidates(&p, site.caps)?;
        let plan = site.tuned(FAMILY, class, default, candidates);
        let most = decode::splits(&p, plan, site.caps);
        let sink = sink(&p, Split { most, tiles: plan.key_tiles() }, site);
        let sink = decode::combined_by_last(&p, sink, site)?;
        decode::emit(&p, plan, &sink, site)?;
        return combine::emit(&p, &sink, site);
    }
    let bytes = p.partial().size() as u32;
    if let Some(plan) = coop::choose(&p, site.caps) {
        if warpgroup::serves(&p, site.caps) && by_warpgroups(&p, site)? {
            return warpgroup::emit(&p, site);
        }
        let most = p.splits(BUSY_MATRICES, plan.rows(), plan.keys);
        let sink = sink(&p, Split { most, tiles: plan.key_tiles() }, site);
        coop::emit(&p, plan, &sink, site)?;
        return combine::emit(&p, &sink, site);
    }
    let need = Need {
        rows: p.row_class(),
        dim: p.dim,
        value_dim: p.value_dim,
        bytes,
        short: site.caps.wants_short_kernels() && p.cost().0 < 2 * LONG_WORK,
    };
    let tile = Tile::choose(need, &site.caps.target).ok_or_else(|| {
        let shared = site.caps.target.shared_bytes;
        format!("head dims {} and {} do not fit {shared} bytes of workgroup memory", p.dim, p.value_dim)
    })?;
    let default = Plan { tile, splits: None };
    let class = class(&p, site.is_tuned(FAMILY))?;
    let candidates = candidates(&p, need, site.caps)?;
    let Plan { tile, splits } = site.tuned(FAMILY, class, default, candidates);
    let splits = match splits {
        Some(splits) => splits.into(),
        None => p.splits(busy(site.caps), tile.rows(), tile.keys()),
    };
    let sink = sink(&p, Split { most: splits, tiles: tile.key_tiles() }, site);
    kernel::emit(&p, &tile, &sink, site)?;
    combine::emit(&p, &sink, site)
}

/// Whether warpgroups compute it, which can: only where the device's record says so.
fn by_warpgroups(p: &Problem<'_>, site: &mut Site<'_>) -> Result<bool, String> {
    use warpgroup::Method::{CooperativeMatrices, Warpgroups};
    let class = class(p, site.is_tuned(FAMILY))?;
    let candidates = vec![CooperativeMatrices, Warpgroups];
    Ok(site.tuned(FAMILY, class, CooperativeMatrices, candidates) == Warpgroups)
}

/// Where results go when the keys are split so; unsplit if the parts are more than kernels count.
fn sink(p: &Problem<'_>, split: Split, site: &mut Site<'_>) -> AttentionTarget {
    let bytes = p.partial().size();
    let parts = p.batch * p.kv_heads * p.rows() * split.most;
    let numbers = parts * (fours(p.value_dim) * 4);
    if split.most == 1 || numbers > u32::MAX {
        return AttentionTarget::Target;
    }
    AttentionTarget::Partial {
        values: site.scratch(numbers * bytes),
        sums: site.scratch(parts * 2 * bytes),
        split,
        arrivals: None,
    }
}

/// A tile, and the ranges that the keys are split into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    tile: Tile,
    /// As many as [`Problem::splits`] says where none are given.
    splits: Option<usize>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.splits {
            Some(splits) => write!(f, "{} s{splits}", self.tile),
            None => write!(f, "{}", self.tile),
        }
    }
}

/// The name of the family in records.
const FAMILY: &str = "attention";

/// Attentions that one measurement serves.
fn class(p: &Problem<'_>, matters: bool) -> Result<String, String> {
    let number =
        |size: Dim| size.check().map(|size| recorded_class(size, matters)).map_err(|e| e.to_string());
    let pairs = rounded(number(p.batch * p.kv_heads)?);
    let sizes = [number(p.rows())?, number(p.keys)?].map(|size| rounded(size).to_string()).join("x");
    let sees = if p.looks_back() { " causal" } else { "" };
    let mask = if p.op.mask == MaskKind::None { "" } else { " mask" };
    let cache = p.k.ty.packed.map(|format| format!(" of {format}")).unwrap_or_default();
    Ok(format!("{}{cache} {sizes} d{}x{} b{pairs}{sees}{mask}", p.q.ty.dtype, p.dim, p.value_dim))
}

/// Every plan that computes the result.
fn candidates(p: &Problem<'_>, need: Need, caps: &DeviceCaps) -> Result<Vec<Plan>, String> {
    let number = |size: Dim| size.value().map(|value| value as usize).map_err(|e| e.to_string());
    let mut all = Vec::new();
    for tile in Tile::candidates(need, &caps.target) {
        let (groups, tiles) = (number(p.groups(tile.rows()))?, number(p.keys.div_ceil(tile.keys()))?);
        // The number that keeps a large device busy, its neighbours, and none.
        let usual = number(splits(busy(caps), groups, tiles.into()))?;
        all.push(Plan { tile, splits: None });
        for splits in [1, usual / 2, usual * 2] {
            let plan = Plan { tile, splits: Some(splits) };
            if splits > 0 && splits != usual && splits <= tiles.max(1) && !all.contains(&plan) {
                all.push(plan);
            }
        }
    }
    Ok(all)
}

/// Workgroups that keep a device busy.
fn busy(caps: &DeviceCaps) -> usize {
    if caps.kind == DeviceKind::Cpu { BUSY_PROCESSOR } else { BUSY }
}

/// Ranges that the keys are split into, given the workgroups there are without and the tiles of keys. Whether they are
/// split at all is the one question about the tiles, so that two plans serve any number of keys.
fn splits(busy: usize, groups: usize, tiles: Dim) -> Dim {
    let most = busy / groups.max(1);
    let pays = |tiles: usize| {
        let splits = most.min(tiles / LEAST_TILES);
        splits > MOST_UNSPLIT && tiles - tiles.div_ceil(splits) >= WORTH_TILES
    };
    // More tiles never make it pay less.
    let limit = (MOST_UNSPLIT + 1) * LEAST_TILES + 2 * WORTH_TILES;
    match (1..=limit).find(|tiles| pays(*tiles)) {
        Some(least) if tiles >= least => tiles.div_floor(LEAST_TILES).min(most),
        _ => Dim::ONE,
    }
}

/// The position of a query's row in a packed result.
fn target_row<'k>(
    layout: HeadLayout,
    batch: Val<'k>,
    head: Val<'k>,
    query: Val<'k>,
    heads: Val<'k>,
    queries: Val<'k>,
) -> Val<'k> {
    match layout {
        HeadLayout::Bshd => (batch * queries + query) * heads + head,
        HeadLayout::Bhsd => (batch * heads + head) * queries + query,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_split_only_where_workgroups_are_few_and_keys_many() {
        let splits = |groups: usize, tiles: usize| splits(BUSY, groups, tiles.into()).as_constant();
        assert_eq!(splits(1000, 100), Some(1));
        assert_eq!(splits(8, 3), Some(1));
        assert_eq!(splits(24, 4), Some(1));
        assert_eq!(splits(8, 64), Some(32));
        assert_eq!(splits(96, 16), Some(5));
        assert_eq!(splits(1, 1 << 20), Some(512));
        assert_eq!(splits(1, 0), Some(1));
    }
}
