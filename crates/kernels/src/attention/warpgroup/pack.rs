//! k and v as the slots that are copied whole: blocks of 8 positions with 16 bytes of each.
//!
//! ```text
//!   k: batch and kv head ─ 128 keys ─ 32 elements ─ 2 k-steps of 4 KiB: blocks of 8 keys, 256 bytes apart, 128 to the next 8 elements
//!   v: batch and kv head ─ 128 keys ─ 32 or 64 keys ─ k-steps of 16 keys: blocks of 8 columns, 256 bytes apart, 128 to the next 8 keys
//! ```
//! In every 32 elements of k, lane t of four has eight of a row of q: word 2s + h of them is its word in half h of k-step s. In every 16
//! columns of v, lane t has columns 4t to 4t + 3: column 4t + 2q + e is the accumulator's 8q + 2t + e. Elements and columns past
//! the last are zeros; keys past the last repeat it in k and are zeros in v.

use olivine_ir::Dim;
use olivine_kernel::{Access, Elem, SubgroupOp, Val};

use super::super::coop::operands::{OperandPrecision, not_finite};
use super::super::coop::staging::Slots;
use super::super::problem::Problem;
use super::super::visible::VisibleKeys;
use super::{Cut, KEYS, SLOT};
use crate::launch::Launch;
use crate::math;
use crate::site::{Memory, Operand, Site, linear_group};

/// Elements of 16 bytes.
const EIGHT: u32 = 8;
/// Words of 8 positions in a k-step.
const BLOCK: u32 = 64;
/// Invocations that pack a slot of v, and subgroups of them.
const V_GROUP: u32 = 64;
pub(super) const V_SUBGROUPS: u32 = V_GROUP / 32;

/// Packed operands.
pub(super) struct Packed {
    pub(super) k: Memory,
    pub(super) v: Memory,
    /// A word for each subgroup that packed a slot of v: not 0 if it met a number that is not finite. Where weights may be 0.
    pub(super) wild: Option<Memory>,
}

/// Tiles of keys.
pub(super) fn tiles(p: &Problem<'_>) -> Dim {
    p.keys.div_ceil(KEYS)
}

fn pairs(p: &Problem<'_>) -> Dim {
    p.batch * p.kv_heads
}

/// Bytes of the larger packed operand; none if kernels cannot count them.
pub(super) fn bytes(p: &Problem<'_>) -> Option<Dim> {
    let cut = Cut::of(p);
    let most = (cut.k_slots * SLOT).max(cut.v_slots() * cut.v_bytes());
    let bytes = pairs(p) * tiles(p) * most;
    (bytes / 4u32 <= u32::MAX).then_some(bytes)
}

/// Packs both.
pub(super) fn emit(p: &Problem<'_>, site: &mut Site<'_>) -> Result<Packed, String> {
    let (cut, blocks) = (Cut::of(p), pairs(p) * tiles(p));
    let k = site.scratch(blocks * cut.k_slots * SLOT);
    let v = site.scratch(blocks * cut.v_slots() * cut.v_bytes());
    let wild = p.masks_elements().then(|| site.scratch(blocks * cut.v_slots() * V_SUBGROUPS * 4u32));
    keys(p, cut, k, site)?;
    values(p, cut, (v, wild), site)?;
    Ok(Packed { k, v, wild })
}

/// Calls `pack` in the workgroup of every slot with keys, of `slots` in a tile.
fn each_slot<'k>(l: &Launch<'k>, p: &Problem<'_>, slots: u32, pack: impl FnOnce(Slot<'k>)) -> Dim {
    let k = l.k();
    let groups = pairs(p) * tiles(p) * slots;
    let (count, tiles, kv_heads) =
        (l.size("groups", groups), l.size("tiles", tiles(p)), l.size("kv_heads", p.kv_heads));
    let visible = VisibleKeys::declare(l, p);
    let number = linear_group(k);
    k.if_(number.lt(count), || {
        let (block, slot) = (number / slots, number % slots);
        let (pair, tile) = (block / tiles, block % tiles);
        let (batch, kv_head) = (pair / kv_heads, pair % kv_heads);
        let length = visible.length(batch);
        let first = tile * KEYS;
        // No one reads tiles past the last key.
        k.if_(first.lt(length), || pack(Slot { number, slot, batch, kv_head, first, length }));
    });
    groups
}

/// A workgroup's slot.
struct Slot<'k> {
    /// Among the slots of all tiles.
    number: Val<'k>,
    /// Among those of its tile.
    slot: Val<'k>,
    batch: Val<'k>,
    kv_head: Val<'k>,
    /// First key of its tile.
    first: Val<'k>,
    length: Val<'k>,
}

fn read<'k>(l: &Launch<'k>, name: &str, p: &Problem<'_>, operand: &Operand) -> (Slots<'k>, OperandPrecision) {
    let precision = OperandPrecision::Whole(math::elem(p.q.ty.dtype));
    (Slots::read(l, name, p.op.layout, operand, p.page_table(l), precision), precision)
}

/// An invocation to each key: 32 elements of it.
fn keys(p: &Problem<'_>, cut: Cut, to: Memory, site: &mut Site<'_>) -> Result<(), String> {
    let k = site.builder("attention_warpgroup_pack_k", KEYS);
    let l = Launch::new(&k);
    let (slots, _) = read(&l, "k", p, &p.k);
    let out = l.bind("packed", Elem::U32, Access::Write, to);
    let groups = each_slot(&l, p, cut.k_slots, |at| {
        let me = k.local_index();
        let start = slots.start(at.batch, at.kv_head);
        let row = slots.row(start, (at.first + me).min(at.length - 1));
        let words: Vec<_> = (0..4).map(|t| slots.load(row, at.slot * 4u32 + t, cut.k_slots * 4)).collect();
        let to = at.number * (SLOT / 4) + me / EIGHT * BLOCK + me % EIGHT * 4u32;
        for (step, half) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let line: Vec<Val<'_>> = words.iter().map(|of_lane| of_lane[2 * step + half]).collect();
            out.store_vec(to + (step as u32 * (SLOT / 8) + half as u32 * (BLOCK / 2)), &line);
        }
    });
    let bound = l.done();
    let moved = p.k.ty.size_bytes() + groups * SLOT;
    site.dispatch(k, bound, groups, (0, moved))
}

/// An invocation to each 8 keys of 8 columns, which it transposes.
fn values(
    p: &Problem<'_>,
    cut: Cut,
    (to, wild): (Memory, Option<Memory>),
    site: &mut Site<'_>,
) -> Result<(), String> {
    let k = site.builder("attention_warpgroup_pack_v", V_GROUP);
    let l = Launch::new(&k);
    let (slots, precision) = read(&l, "v", p, &p.v);
    let out = l.bind("packed", Elem::U32, Access::Write, to);
    let wild = wild.map(|memory| l.bind("wild", Elem::U32, Access::Write, memory));
    let groups = each_slot(&l, p, cut.v_slots(), |at| {
        let me = k.local_index();
        let across = cut.v_width / EIGHT;
        let (column, eight) = (me % across, me / across);
        let inside = eight.lt(cut.v_keys / EIGHT);
        let eight = eight.min(cut.v_keys / EIGHT - 1);
        let first = at.first + at.slot * cut.v_keys + eight * EIGHT;
        let start = slots.start(at.batch, at.kv_head);
        let rows: Vec<Vec<Val<'_>>> = (0..EIGHT)
            .map(|i| {
                let key = first + i;
                let words = slots.load(slots.row(start, key.min(at.length - 1)), column, across);
                let known = key.lt(at.length);
                words.into_iter().map(|word| known.select(word, k.u32(0))).collect()
            })
            .collect();
        if let Some(wild) = wild {
            let met = not_finite(precision.elem(), rows.iter().flatten().copied()).unwrap_or(k.bool(false));
            let met = met.subgroup(SubgroupOp::Any).select(k.u32(1), k.u32(0));
            let at = at.number * V_SUBGROUPS + k.subgroup_id();
            k.if_(k.lane().eq(0u32), || wild.store(at, met));
        }
        // In words: a k-step has two halves of 8 keys.
        let to = at.number * (cut.v_bytes() / 4)
            + eight / 2u32 * (cut.v_width * EIGHT)
            + eight % 2u32 * (BLOCK / 2)
            + column / 2u32 * (2 * BLOCK);
        k.if_(inside, || {
            for (i, line) in (0..EIGHT).zip(transposed(&rows)) {
                // Of 16 columns this is 8(column % 2) + i = 4t + 2q + e.
                let (t, q, e) = (column % 2u32 * 2u32 + i / 4, i / 2 % 2, i % 2);
                out.store_vec(to + t * 8u32 + (q * BLOCK + e * 4), &line);
            }
        });
    });
    let bound = l.done();
    let moved = p.v.ty.size_bytes() + groups * cut.v_bytes();
    site.dispatch(k, bound, groups, (0, moved))
}

/// The columns of eight rows of eight 16-bit elements.
fn transposed<'k>(rows: &[Vec<Val<'k>>]) -> Vec<Vec<Val<'k>>> {
    let column = |i: usize| {
        let pairs = rows.chunks_exact(2).map(|pair| (pair[0][i / 2], pair[1][i / 2]));
        let join = |(a, b): (Val<'k>, Val<'k>)| match i % 2 {
            0 => (a & 0xffffu32) | (b << 16u32),
            _ => (a >> 16u32) | (b & 0xffff_0000u32),
        };
        pairs.map(join).collect()
    };
    (0..EIGHT as usize).map(column).collect()
}
