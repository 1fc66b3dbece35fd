//! Random attentions, rotations and appends, over operands in every layout that a view can make.

use olivine_ir::DType::{self, BF16, Bool, F16, F32, F64, I32, I64};
use olivine_ir::op::{Attention, HeadLayout, MaskKind, Rope, RopeScaling, RopeStyle};
use olivine_ir::{Error, ValueId};

use crate::bound::Bound;
use crate::case::{Build, Case};
use crate::fill::{Fill, Rng, normal};

/// So many random cases from a seed on: attention mostly, then rotary positions and the key-value cache.
pub fn attention_cases(n: usize, seed: u64) -> Vec<Case> {
    (0..n as u64).map(|i| random_attention(seed.wrapping_add(i))).collect()
}

fn random_attention(seed: u64) -> Case {
    let mut rng = Rng::new(seed ^ 0x6174_7465_6e74_696f);
    let dtype = [F32, F32, F16, BF16, F64][rng.below(5)];
    let kind = rng.below(6);
    let name = |what: &str| format!("{what}/random-{seed}/{dtype}");
    match kind {
        0 => {
            let bound = Bound::Close { rel: 2e-6, abs: 2e-6 };
            Case::new("rope", name("rope"), dtype, normal(), bound, move |g| rope(g, &mut Rng::new(seed)))
        }
        1 => Case::new("attention", name("kv_append"), dtype, normal(), Bound::Bits, move |g| {
            append(g, &mut Rng::new(seed))
        }),
        _ => Case::new("attention", name("attention"), dtype, normal(), Bound::Scaled(32.0), move |g| {
            attention(g, &mut Rng::new(seed))
        }),
    }
}

fn one_of(rng: &mut Rng, sizes: &[usize]) -> usize {
    sizes[rng.below(sizes.len())]
}

fn layout(rng: &mut Rng) -> HeadLayout {
    if rng.below(2) == 0 { HeadLayout::Bshd } else { HeadLayout::Bhsd }
}

/// A tensor of rank 4 that is an input, or any view of one.
fn viewed(g: &mut Build, rng: &mut Rng, dims: [usize; 4], fill: &Fill) -> Result<ValueId, Error> {
    let fresh = |g: &mut Build, dims: [usize; 4]| g.like(dims, fill.clone());
    match rng.below(7) {
        // Another order of the axes.
        0 => {
            let perm = [[0, 2, 1, 3], [0, 1, 3, 2], [3, 2, 1, 0], [1, 0, 2, 3]][rng.below(4)];
            let mut before = [0; 4];
            (0..4).for_each(|i| before[perm[i]] = dims[i]);
            let x = fresh(g, before)?;
            g.transpose(x, &perm)
        }
        // A part of something wider, as of queries, keys and values side by side.
        1 | 2 => {
            let axis = one_of(rng, &[1, 2, 3, 3]);
            let (before, after) = (one_of(rng, &[0, 1, 3, 4, 8]), one_of(rng, &[0, 2, 4]));
            let mut wide = dims;
            wide[axis] += before + after;
            let x = fresh(g, wide)?;
            g.narrow(x, axis as isize, before, dims[axis])
        }
        // Backwards.
        3 => {
            let axis = 1 + rng.below(3);
            let x = fresh(g, dims)?;
            g.slice(x, axis as isize, -1, i64::MIN, -1)
        }
        // The same for all of an axis.
        4 => {
            let mut narrow = dims;
            narrow[rng.below(3)] = 1;
            let x = fresh(g, narrow)?;
            g.expand(x, dims)
        }
        _ => fresh(g, dims),
    }
}

fn attention(g: &mut Build, rng: &mut Rng) -> Result<ValueId, Error> {
    let layout = layout(rng);
    let (b, kv, group) = (1 + rng.below(3), 1 + rng.below(3), one_of(rng, &[1, 1, 2, 3, 5]));
    let h = kv * group;
    let sq = one_of(rng, &[1, 1, 2, 5, 16, 33, 70]);
    let sk = one_of(rng, &[1, 7, 32, 33, 64, 100, 300]);
    let d = one_of(rng, &[1, 4, 7, 8, 16, 20, 32, 33, 64, 72]);
    let dv = if rng.below(3) == 0 { one_of(rng, &[1, 3, 8, 24, 40, 130]) } else { d };
    let values = if rng.below(5) == 0 { Fill::Mixed(f64::NAN, 0.01) } else { normal() };
    // Pages of some positions, of which a sequence has as many as its keys need.
    let pages = rng.below(4) == 0;
    let positions = if pages { one_of(rng, &[1, 3, 4, 16, 32]) } else { sk };
    let table = sk.div_ceil(positions);
    let (sk, batches) = if pages { (table * positions, 1 + rng.below(b * table + 2)) } else { (sk, b) };
    let q = viewed(g, rng, layout.dims(b, h, sq, d), &normal())?;
    let k = viewed(g, rng, layout.dims(batches, kv, positions, d), &normal())?;
    let v = viewed(g, rng, layout.dims(batches, kv, positions, dv), &values)?;
    let mut extra = Vec::new();
    let mask = [MaskKind::None, MaskKind::None, MaskKind::Keep, MaskKind::Bias][rng.below(4)];
    if mask != MaskKind::None {
        let full = [b, h, sq, sk];
        let dims = full.map(|n| if rng.below(3) == 0 { 1 } else { n });
        let (dtype, fill) = match mask {
            MaskKind::Keep => (Bool, Fill::Chance(0.8)),
            _ => (g.dtype(), Fill::Mixed(f64::NEG_INFINITY, 0.1)),
        };
        extra.push(match rng.below(3) {
            0 => g.of(dtype, &dims[rng.below(3)..], fill)?,
            1 => {
                let x = g.of(dtype, [dims[0], dims[1], dims[3], dims[2]], fill)?;
                g.swap_last_axes(x)?
            }
            _ => g.of(dtype, dims, fill)?,
        });
    }
    let sinks = rng.below(4) == 0;
    if sinks {
        extra.push(g.w([h])?);
    }
    let lengths = rng.below(3) == 0;
    if lengths {
        let numbers: Vec<i64> = (0..b).map(|_| rng.below(sk + 3) as i64 - 1).collect();
        let index: DType = if rng.below(2) == 0 { I32 } else { I64 };
        let one = rng.below(2) == 0;
        extra.push(if one { g.ints(index, [], &numbers[..1])? } else { g.ints(index, [b], &numbers)? });
    }
    if pages {
        let numbers: Vec<i64> = (0..b * table).map(|_| rng.below(batches + 2) as i64 - 1).collect();
        extra.push(g.ints(if rng.below(2) == 0 { I32 } else { I64 }, [b, table], &numbers)?);
    }
    let spec = Attention {
        layout,
        scale: (rng.below(3) == 0).then_some(0.2),
        causal: rng.below(2) == 0,
        window: (rng.below(4) == 0).then(|| 1 + rng.below(60)),
        softcap: (rng.below(4) == 0).then_some(3.0),
        mask,
        sinks,
        lengths,
        pages,
    };
    g.attention(spec, q, k, v, &extra)
}

fn rope(g: &mut Build, rng: &mut Rng) -> Result<ValueId, Error> {
    let layout = layout(rng);
    let (b, h, s) = (1 + rng.below(3), 1 + rng.below(4), 1 + rng.below(9));
    let d = one_of(rng, &[2, 6, 8, 16, 24, 31, 64, 128]);
    let rotary = if rng.below(2) == 0 { d / 2 * 2 } else { d / 4 * 2 };
    let x = viewed(g, rng, layout.dims(b, h, s, d), &normal())?;
    let far = [60, 5000, 1 << 20, 1 << 30][rng.below(4)];
    let positions: Vec<i64> = (0..b * s).map(|_| rng.below(far) as i64 - rng.below(9) as i64).collect();
    let index: DType = if rng.below(2) == 0 { I32 } else { I64 };
    let positions = if rng.below(2) == 0 {
        g.ints(index, [b, s], &positions)?
    } else {
        g.ints(index, [s], &positions[..s])?
    };
    let scaling = match rng.below(3) {
        0 => RopeScaling::Yarn { factor: 4.0, original: 2048.0, beta_fast: 32.0, beta_slow: 1.0 },
        1 => RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 },
        _ => RopeScaling::None,
    };
    let style = if rng.below(2) == 0 { RopeStyle::NeoX } else { RopeStyle::GptJ };
    g.rope(Rope { layout, style, rotary, base: 10000.0, scaling, tables: false }, x, &[positions])
}

fn append(g: &mut Build, rng: &mut Rng) -> Result<ValueId, Error> {
    let layout = layout(rng);
    let (b, h, capacity, d) = (1 + rng.below(3), 1 + rng.below(3), 1 + rng.below(12), 1 + rng.below(12));
    let rows = rng.below(capacity + 1);
    // Each sequence has pages of its own, so that no two rows go to one place.
    let table = if rng.below(3) == 0 { 1 + rng.below(3) } else { 0 };
    let cache = g.x(layout.dims(if table > 0 { b * table } else { b }, h, capacity, d))?;
    let rows = viewed(g, rng, layout.dims(b, h, rows, d), &normal())?;
    let dtype = if rng.below(2) == 0 { I32 } else { I64 };
    let at: Vec<i64> = (0..b).map(|_| rng.below(capacity + 6) as i64 - 3).collect();
    let position = if rng.below(2) == 0 { g.ints(dtype, [], &at[..1])? } else { g.ints(dtype, [b], &at)? };
    if table == 0 {
        return g.kv_append(layout, cache, rows, position);
    }
    // Backwards; some are missing.
    let missing = |page: i64, rng: &mut Rng| if rng.below(4) == 0 { -1 } else { page };
    let pages: Vec<i64> = (0..(b * table) as i64).rev().map(|page| missing(page, rng)).collect();
    let pages = g.ints(I32, [b, table], &pages)?;
    g.kv_append_pages(layout, cache, rows, position, pages)
}
