//! Attention of few rows, as when a token is decoded: every key is read once, and reading is the work.
//!
//! ```text
//!   a lane holds some elements of all rows of q; several lanes share a key, neighbours read neighbouring bytes:
//!     k, v from memory to registers → dot products meet by shuffles, each lane keeps a few → masked, maxima, weights
//!     weights back to all lanes → accumulators = accumulators·shrink + weights·v
//!   the subgroups of a workgroup take keys in turn, and meet in workgroup memory at the end
//!   where keys are split, the workgroup that is done last combines what all have
//! ```

mod exchange;
mod kernel;
mod last;
mod rows;

use std::fmt;

use olivine_ir::Dim;
use olivine_ir::op::HeadLayout;
use olivine_kernel::{Elem, Scalar};
use olivine_program::{DeviceCaps, DeviceKind};

use super::problem::Problem;
use super::tile::fours;
use super::visible::KeyTiles;
use crate::launch::number;
use crate::math;
use crate::site::{Operand, class_of};

pub(super) use kernel::emit;
pub(super) use last::combined_by_last;

/// Rows above which other kernels serve better.
const MOST_ROWS: usize = 16;
/// Elements of q, and as many accumulators, that an invocation holds at most.
const MOST_HELD: u32 = 64;
/// Scores of a subgroup's lanes sharing a key that are computed at a time, at most.
const MOST_SCORES: u32 = 32;
/// Invocations of a workgroup.
const GROUP: u32 = 256;
/// The same where kernels should be short.
const GROUP_SHORT: u32 = 32;
/// Keys of an invocation at a time.
const KEYS_EACH: u32 = 4;
/// The same where kernels should be short.
const KEYS_EACH_SHORT: u32 = 2;
/// Keys that a range has at least, if keys are split.
const LEAST_KEYS: u32 = 128;
/// Ranges that are too few to pay for a second dispatch.
const UNSPLIT: u32 = 2;
/// Workgroups to a processor that keep a device busy.
const BUSY_EACH: usize = 2;

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Rows, a power of two; those past the last are not stored.
    pub(super) rows: u32,
    /// Elements that are loaded at a time.
    pub(super) unit: u32,
    /// Lanes that share a key.
    pub(super) lanes: u32,
    /// Loads of a lane for a key.
    pub(super) key_units: u32,
    /// Loads of a lane for a value.
    pub(super) value_units: u32,
    /// Keys of a lane at a time.
    pub(super) keys_each: u32,
    /// Subgroups of a workgroup.
    pub(super) subgroups: u32,
    /// Lanes of a subgroup.
    pub(super) subgroup: u32,
    /// The most ranges that keys are split into; as many as [`splits`] says where none are given.
    pub(super) splits: Option<usize>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { unit, lanes, keys_each, subgroups, .. } = self;
        write!(f, "decode {lanes}x{unit} k{keys_each} g{subgroups}")?;
        self.splits.map_or(Ok(()), |splits| write!(f, " s{splits}"))
    }
}

impl Plan {
    /// Keys that a subgroup takes at a time.
    pub(super) fn subgroup_keys(self) -> u32 {
        self.subgroup / self.lanes * self.keys_each
    }

    /// The plan as what keys are divided by.
    pub(super) fn key_tiles(self) -> KeyTiles {
        let keys = self.subgroup_keys() * self.subgroups;
        KeyTiles { rows: self.rows, keys, align: self.subgroup_keys(), least: LEAST_KEYS.div_ceil(keys) }
    }

    /// Bytes of workgroup memory.
    fn shared_bytes(self, value_dim: usize) -> u32 {
        self.subgroups * self.rows * (fours(value_dim) * 16 + 8)
    }
}

/// The default plan for a problem; `None` where other kernels serve it.
pub(super) fn choose(p: &Problem<'_>, caps: &DeviceCaps) -> Option<Plan> {
    let short = caps.wants_short_kernels();
    let (keys_each, group) = if short { (KEYS_EACH_SHORT, GROUP_SHORT) } else { (KEYS_EACH, GROUP) };
    plan(p, caps, keys_each, group)
}

/// All plans that compute the result.
pub(super) fn candidates(p: &Problem<'_>, caps: &DeviceCaps) -> Result<Vec<Plan>, String> {
    let mut all = Vec::new();
    for (keys_each, group) in [(4, 256), (2, 256), (4, 128), (8, 128), (1, 256), (2, 512)] {
        let Some(plan) = plan(p, caps, keys_each, group) else { continue };
        let usual = splits(p, plan, caps).value().map_err(|e| e.to_string())? as usize;
        for splits in [None, Some(1), Some(usual / 2), Some(usual * 2)] {
            let plan = Plan { splits, ..plan };
            if splits.is_none_or(|splits| splits > 0 && splits != usual) && !all.contains(&plan) {
                all.push(plan);
            }
        }
    }
    Ok(all)
}

fn plan(p: &Problem<'_>, caps: &DeviceCaps, keys_each: u32, group: u32) -> Option<Plan> {
    let subgroup = caps.target.subgroup.filter(|size| size.is_power_of_two())?;
    let group = group.min(caps.target.max_invocations);
    if p.scalar != Scalar::F32 || p.dim == 0 || p.value_dim == 0 || group < subgroup {
        return None;
    }
    let layout = p.op.layout;
    let width = p.dim.max(p.value_dim);
    let units: Vec<u32> = [8, 4]
        .into_iter()
        .filter(|unit| is_whole(&p.k, layout, *unit) && is_whole(&p.v, layout, *unit))
        .collect();
    if units.is_empty() || p.rows() > MOST_ROWS {
        return None;
    }
    let rows = (0..=MOST_ROWS.ilog2()).map(|n| 1 << n).find(|most| p.rows() <= *most)? as u32;
    let mut plan = units.into_iter().find_map(|unit| {
        let lanes = (width as u32).div_ceil(unit).next_power_of_two().min(subgroup);
        let units = |width: usize| (width as u32).div_ceil(unit * lanes);
        let (key_units, value_units) = (units(p.dim), units(p.value_dim));
        let held = rows * unit * key_units.max(value_units);
        let keys_each = keys_each.min(MOST_SCORES / rows);
        let subgroups = group / subgroup;
        let plan =
            Plan { rows, unit, lanes, key_units, value_units, keys_each, subgroups, subgroup, splits: None };
        (held <= MOST_HELD).then_some(plan)
    })?;
    while plan.shared_bytes(p.value_dim) > caps.target.shared_bytes && plan.subgroups > 1 {
        plan.subgroups /= 2;
    }
    (plan.shared_bytes(p.value_dim) <= caps.target.shared_bytes).then_some(plan)
}

/// Whether rows of k or v can be loaded `unit` elements at a time, in at most 16 bytes.
fn is_whole(operand: &Operand, layout: HeadLayout, unit: u32) -> bool {
    if operand.ty.packed.is_some() {
        // Blocks are whole runs of eight elements.
        return true;
    }
    let sizes = operand.sizes();
    let (_, _, _, width) = layout.sizes(&operand.ty.shape);
    let elem = math::elem(operand.ty.dtype);
    let bytes = matches!(elem, Elem::F16 | Elem::BF16 | Elem::F32).then_some(elem.size() * unit);
    let steps = operand.strides.iter().enumerate();
    // A dimension of size 1 is never stepped over.
    let stepped = |i: usize| i != 3 && sizes.get(i).is_none_or(|size| size.as_constant() != Some(1));
    bytes.is_some_and(|bytes| bytes <= 16)
        && operand.strides.get(3).is_some_and(|s| s.as_constant() == Some(1))
        && number(width).is_multiple_of(unit as usize)
        && operand.offset.is_multiple_of(i64::from(unit))
        && steps.filter(|(i, _)| stepped(*i)).all(|(_, s)| s.is_multiple_of(i64::from(unit)))
}

/// The most ranges that the keys are split into. Whether they are split at all is the one question about their number, so
/// that two plans serve any.
pub(super) fn splits(p: &Problem<'_>, plan: Plan, caps: &DeviceCaps) -> Dim {
    let tiles = plan.key_tiles();
    let least = tiles.least * tiles.keys;
    if let Some(splits) = plan.splits {
        return splits.into();
    }
    let each = if caps.kind == DeviceKind::Cpu { 1 } else { BUSY_EACH };
    let busy = caps.processor_count() as usize * each;
    let groups = p.groups(tiles.rows);
    if groups * 2 > busy || p.keys <= UNSPLIT * least {
        return Dim::ONE;
    }
    p.keys.div_ceil(least).min(busy / class_of(groups).max(1))
}
