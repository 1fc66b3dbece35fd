//! Key-value caches of packed blocks: rows that become blocks, and attention that reads them.

use olivine_ir::DType::{self, BF16, F16, F32, I32, I64};
use olivine_ir::op::{Attention, HeadLayout, KvAppend, MaskKind};
use olivine_ir::{Error, ValueId};

use super::PAIR;
use crate::bound::Bound::{Bits, Scaled};
use crate::case::{Build, Table};
use crate::fill::{Fill, normal, these, uniform};

/// What the rows of a packed cache may be.
const ROWS: &[DType] = &[F32, F16, BF16];
/// The result is a mean of v: its error is measured against the largest of them.
const FEW: crate::bound::Bound = Scaled(32.0);

pub(super) fn rows(t: &mut Table) {
    for layout in [HeadLayout::Bshd, HeadLayout::Bhsd] {
        appends(t, layout);
        attends(t, layout);
    }
    numbers(t);
    head_sizes(t);
}

impl Build {
    /// A packed cache as an input.
    fn cache(&mut self, dims: [usize; 4]) -> Result<ValueId, Error> {
        self.packed_input(KvAppend::FORMAT, dims)
    }
}

fn appends(t: &mut Table, layout: HeadLayout) {
    let name = layout.name();
    // Of 32 and 96 elements rows begin inside of words.
    for (d, positions) in [(64usize, [3i64, 0, 7]), (32, [-1, 11, 9]), (96, [8, 10, -2])] {
        t.case(&format!("kv_append/q8_0-{d}-{name}"), ROWS, normal(), Bits, move |g| {
            let (cache, rows) = (g.cache(layout.dims(3, 3, 11, d))?, g.x(layout.dims(3, 3, 3, d))?);
            let at = g.ints(I64, [3], &positions)?;
            g.kv_append(layout, cache, rows, at)
        });
        t.case(&format!("kv_append/q8_0-pages-{d}-{name}"), ROWS, normal(), Bits, move |g| {
            let (pool, rows) = (g.cache(layout.dims(6, 1, 4, d))?, g.x(layout.dims(3, 1, 5, d))?);
            let at = g.ints(I32, [3], &positions)?;
            // The last sequence has pages that do not exist.
            let table = g.ints(I32, [3, 3], &[5, 0, 2, 1, 4, 3, -1, 6, i64::from(i32::MAX)])?;
            g.kv_append_pages(layout, pool, rows, at, table)
        });
    }
    // Rows that are a view of others.
    t.case(&format!("kv_append/q8_0-view-{name}"), PAIR, normal(), Bits, move |g| {
        let (cache, x) = (g.cache(layout.dims(1, 2, 9, 64))?, g.x([1, 4, 192])?);
        let parts = g.split(x, -1, &[64, 128])?;
        let rows = g.reshape(parts[1], &[1, 4, 2, 64])?;
        let rows = if layout == HeadLayout::Bshd { rows } else { g.transpose(rows, &[0, 2, 1, 3])? };
        let at = g.ints(I64, [], &[4])?;
        g.kv_append(layout, cache, rows, at)
    });
}

/// Numbers that are hard to scale.
fn numbers(t: &mut Table) {
    let fills: [(&str, Fill); 7] = [
        ("zeros", these(&[0.0, -0.0])),
        ("tiny", Fill::Exponents(-45, -5)),
        ("huge", Fill::Exponents(0, 120)),
        ("special", Fill::Mixed(f64::NAN, 0.02)),
        ("infinite", Fill::Mixed(f64::NEG_INFINITY, 0.02)),
        ("halves", Fill::Whole(-254, 254)),
        ("wide", uniform(-60_000.0, 60_000.0)),
    ];
    for (what, fill) in fills {
        t.case(&format!("kv_append/q8_0-{what}"), ROWS, fill, Bits, move |g| {
            let (cache, rows) = (g.cache([1, 70, 2, 64])?, g.x([1, 64, 2, 64])?);
            let at = g.ints(I64, [], &[3])?;
            g.kv_append(HeadLayout::Bshd, cache, rows, at)
        });
    }
}

/// Sizes of an attention to pages: batch, heads, kv heads, queries, head dim, value dim.
#[derive(Clone, Copy)]
struct Sizes(usize, usize, usize, usize, usize, usize);

/// Attention to pools of 50 pages, whose numbers are out of order.
fn paged(
    g: &mut Build,
    spec: Attention,
    sizes: Sizes,
    positions: usize,
    lengths: &[i64],
) -> Result<ValueId, Error> {
    let (layout, Sizes(b, h, kv, sq, d, dv)) = (spec.layout, sizes);
    let q = g.x(layout.dims(b, h, sq, d))?;
    let k = g.cache(layout.dims(50, kv, positions, d))?;
    let v = g.cache(layout.dims(50, kv, positions, dv))?;
    let mut extra = Vec::new();
    if spec.sinks {
        extra.push(g.w([h])?);
    }
    extra.push(g.ints(I64, [b], lengths)?);
    let table: Vec<i64> = (0..b as i64 * 20).map(|i| (i * 29 + 7) % 53 - 1).collect();
    extra.push(g.ints(I32, [b, 20], &table)?);
    g.attention(Attention { lengths: true, pages: true, ..spec }, q, k, v, &extra)
}

fn attends(t: &mut Table, layout: HeadLayout) {
    let name = layout.name();
    let base = move || Attention { causal: true, ..Attention::new(layout) };
    let specs: [(&str, &[DType], Attention); 5] = [
        ("causal", ROWS, base()),
        ("window", PAIR, Attention { window: Some(19), ..base() }),
        ("softcap", PAIR, Attention { softcap: Some(2.0), ..base() }),
        ("sinks", PAIR, Attention { sinks: true, ..base() }),
        ("all-seen", &[F32], Attention { causal: false, ..base() }),
    ];
    for (what, dtypes, spec) in specs {
        for (queries, sq) in [("one", 1usize), ("some", 3), ("many", 70)] {
            let spec = spec.clone();
            t.case(&format!("q8_0-{what}-{queries}-{name}"), dtypes, normal(), FEW, move |g| {
                paged(g, spec.clone(), Sizes(3, 4, 2, sq, 64, 64), 32, &[611, 77, 129])
            });
        }
    }
    // Pages of an odd size, an empty sequence, values of other sizes than keys.
    t.case(&format!("q8_0-odd-{name}"), PAIR, normal(), FEW, move |g| {
        paged(g, base(), Sizes(3, 6, 3, 2, 96, 32), 13, &[250, 0, 31])
    });
    // Without pages.
    for (what, sq) in [("one", 1usize), ("many", 40)] {
        t.case(&format!("q8_0-plain-{what}-{name}"), PAIR, normal(), FEW, move |g| {
            let q = g.x(layout.dims(2, 4, sq, 32))?;
            let (k, v) = (g.cache(layout.dims(2, 2, 75, 32))?, g.cache(layout.dims(2, 2, 75, 96))?);
            let mask = g.like([4, sq, 75], Fill::Mixed(f64::NEG_INFINITY, 0.3))?;
            let spec = Attention { mask: MaskKind::Bias, ..Attention::new(layout) };
            g.attention(spec, q, k, v, &[mask])
        });
    }
    // Rows of a run and attention to them.
    t.case(&format!("q8_0-appended-{name}"), PAIR, normal(), FEW, move |g| {
        let [q, k, v] = [4, 2, 2].map(|h| g.x(layout.dims(2, h, 3, 64)));
        let at = g.ints(I64, [2], &[33, 5])?;
        let table = g.ints(I32, [2, 3], &[5, 0, 2, 1, 4, 3])?;
        let mut caches = Vec::new();
        for rows in [k?, v?] {
            let pool = g.cache(layout.dims(6, 2, 32, 64))?;
            caches.push(g.kv_append_pages(layout, pool, rows, at, table)?);
        }
        let lengths = g.ints(I64, [2], &[36, 8])?;
        let spec = Attention { lengths: true, pages: true, ..base() };
        g.attention(spec, q?, caches[0], caches[1], &[lengths, table])
    });
}

fn head_sizes(t: &mut Table) {
    let spec = Attention { causal: true, ..Attention::new(HeadLayout::Bshd) };
    for d in [32usize, 64, 96, 128, 256] {
        for (what, sq) in [("decode", 1usize), ("prefill", 17)] {
            let spec = spec.clone();
            t.case(&format!("q8_0-head-dim-{d}-{what}"), ROWS, normal(), FEW, move |g| {
                paged(g, spec.clone(), Sizes(2, 2, 1, sq, d, d), 32, &[70, 133])
            });
        }
    }
}
