//! Attention by tiles with an online softmax: the matrix of scores never exists.
//!
//! A workgroup takes a tile of rows, which are the queries of all heads that share keys, and walks over the keys that
//! causality, window and length leave. Where that gives few workgroups the keys are split, and a second dispatch
//! combines the parts.

mod combine;
mod kernel;
mod problem;
mod rows;
mod softmax;
mod tile;

use olivine_ir::op::{Attention, HeadLayout};
use olivine_kernel::Val;

use crate::lower::site::Site;
use kernel::Sink;
use problem::Problem;
pub(crate) use softmax::exp2_below;
use tile::{Need, Tile, fours};

/// Workgroups that keep a large device busy.
const BUSY: usize = 512;
/// Tiles of keys that a split has at least.
const LEAST_TILES: usize = 2;

/// Lowers attention.
pub(crate) fn attention(op: &Attention, site: &mut Site<'_>) -> Result<(), String> {
    let p = Problem::new(op, site)?;
    if p.target.ty.shape.has_zero() {
        return Ok(());
    }
    let bytes = p.partial().size() as u32;
    let need = Need { rows: p.rows(), dim: p.dim, value_dim: p.value_dim, bytes };
    let tile = Tile::choose(need, &site.caps.target).ok_or_else(|| {
        let shared = site.caps.target.shared_bytes;
        format!("head dims {} and {} do not fit {shared} bytes of workgroup memory", p.dim, p.value_dim)
    })?;
    let groups = p.batch * p.kv_heads * p.rows().div_ceil(tile.rows() as usize);
    let splits = splits(groups, p.keys.div_ceil(tile.keys() as usize));
    let parts = (p.batch * p.kv_heads * p.rows()) as u64 * splits as u64;
    let numbers = parts * u64::from(fours(p.value_dim) * 4);
    if splits == 1 || numbers > u64::from(u32::MAX) {
        return kernel::emit(&p, &tile, &Sink::Target, site);
    }
    let values = site.scratch(numbers * u64::from(bytes));
    let sums = site.scratch(parts * u64::from(2 * bytes));
    let sink = Sink::Partial { values, sums, splits };
    kernel::emit(&p, &tile, &sink, site)?;
    combine::emit(&p, &sink, site)
}

/// Ranges that the keys are split into, given the workgroups there are without and the tiles of keys.
fn splits(groups: usize, tiles: usize) -> usize {
    (BUSY / groups.max(1)).min(tiles / LEAST_TILES).max(1)
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
        assert_eq!(splits(1000, 100), 1);
        assert_eq!(splits(8, 3), 1);
        assert_eq!(splits(8, 64), 32);
        assert_eq!(splits(96, 16), 5);
        assert_eq!(splits(1, 1 << 20), 512);
        assert_eq!(splits(1, 0), 1);
    }
}
