//! Attention over layouts, masks, head counts and head sizes; the key-value cache.

use olivine_ir::DType::{BF16, Bool, F16, F32, F64, I32, I64};
use olivine_ir::op::{Attention, HeadLayout, MaskKind};
use olivine_ir::{Error, ValueId};

use super::{FLOATS, PAIR};
use crate::bound::Bound::{Bits, Scaled};
use crate::case::{Build, Table};
use crate::fill::{Fill, normal};

/// Sizes of one attention: batch, heads, kv heads, queries, keys, head dim, value dim.
#[derive(Clone, Copy)]
struct Sizes(usize, usize, usize, usize, usize, usize, usize);

const SMALL: Sizes = Sizes(2, 4, 2, 5, 7, 16, 16);
/// The result is a mean of v: its error is measured against the largest of them.
const FEW: crate::bound::Bound = Scaled(32.0);

impl Sizes {
    fn qkv(self, g: &mut Build, layout: HeadLayout) -> Result<[ValueId; 3], Error> {
        let Sizes(b, h, kv, sq, sk, d, dv) = self;
        let dims = |h, s, d| match layout {
            HeadLayout::Bshd => [b, s, h, d],
            HeadLayout::Bhsd => [b, h, s, d],
        };
        Ok([g.x(dims(h, sq, d))?, g.x(dims(kv, sk, d))?, g.x(dims(kv, sk, dv))?])
    }
}

fn plain(t: &mut Table, what: &str, dtypes: &[olivine_ir::DType], sizes: Sizes, spec: Attention) {
    t.case(what, dtypes, normal(), FEW, move |g| {
        let [q, k, v] = sizes.qkv(g, spec.layout)?;
        g.attention(spec.clone(), q, k, v, &[])
    });
}

pub(super) fn rows(t: &mut Table) {
    for layout in [HeadLayout::Bshd, HeadLayout::Bhsd] {
        shapes(t, layout);
        masks(t, layout);
        lengths(t, layout);
        cache(t, layout);
        pages(t, layout);
        decoding(t, layout);
    }
    head_sizes(t);
    not_finite(t);
}

fn shapes(t: &mut Table, layout: HeadLayout) {
    let name = layout.name();
    let base = || Attention::new(layout);
    let rows = [
        ("grouped", SMALL),
        ("multi-query", Sizes(2, 6, 1, 5, 7, 16, 16)),
        ("equal-heads", Sizes(2, 3, 3, 9, 9, 8, 8)),
        ("sequence-equals-heads", Sizes(2, 4, 4, 4, 4, 8, 8)),
        ("one-query", Sizes(1, 8, 2, 1, 33, 32, 32)),
        ("one-key", Sizes(1, 2, 2, 5, 1, 8, 8)),
        ("more-queries", Sizes(1, 2, 2, 12, 5, 8, 8)),
        ("value-dim", Sizes(2, 4, 2, 5, 7, 16, 24)),
        ("small-value-dim", Sizes(2, 4, 2, 5, 7, 16, 5)),
        ("long", Sizes(1, 2, 1, 70, 130, 16, 16)),
        ("no-keys", Sizes(1, 2, 2, 3, 0, 8, 8)),
        ("no-queries", Sizes(1, 2, 2, 0, 3, 8, 8)),
        ("no-batch", Sizes(0, 2, 2, 3, 3, 8, 8)),
    ];
    for (what, sizes) in rows {
        plain(t, &format!("{what}-{name}"), PAIR, sizes, base());
        plain(t, &format!("{what}-causal-{name}"), PAIR, sizes, Attention { causal: true, ..base() });
    }
    plain(t, &format!("every-dtype-{name}"), FLOATS, SMALL, Attention { causal: true, ..base() });
    plain(t, &format!("scale-{name}"), PAIR, SMALL, Attention { scale: Some(0.05), ..base() });
    plain(t, &format!("softcap-{name}"), FLOATS, SMALL, Attention { softcap: Some(2.0), ..base() });
    for window in [1usize, 3, 64] {
        let spec = Attention { window: Some(window), ..base() };
        plain(t, &format!("window-{window}-{name}"), PAIR, Sizes(1, 2, 1, 11, 11, 8, 8), spec.clone());
        plain(
            t,
            &format!("window-{window}-decode-{name}"),
            &[F32],
            Sizes(1, 2, 1, 3, 20, 8, 8),
            spec.clone(),
        );
        let spec = Attention { causal: true, ..spec };
        plain(t, &format!("window-{window}-causal-{name}"), &[F32], Sizes(2, 2, 2, 9, 9, 8, 8), spec);
    }
    t.case(&format!("large-scores-{name}"), PAIR, Fill::Normal(0.0, 12.0), Scaled(16.0), move |g| {
        let [q, k, v] = SMALL.qkv(g, layout)?;
        g.attention(Attention::new(layout), q, k, v, &[])
    });
}

fn masks(t: &mut Table, layout: HeadLayout) {
    let name = layout.name();
    let shapes: [(&str, &[usize]); 6] = [
        ("full", &[2, 4, 5, 7]),
        ("per-batch", &[2, 1, 1, 7]),
        ("per-head", &[4, 1, 7]),
        ("square", &[5, 7]),
        ("per-query", &[2, 1, 5, 1]),
        ("scalar", &[]),
    ];
    for (what, mask) in shapes {
        for causal in [false, true] {
            let tail = if causal { "-causal" } else { "" };
            t.case(&format!("keep-{what}{tail}-{name}"), PAIR, normal(), FEW, move |g| {
                let [q, k, v] = SMALL.qkv(g, layout)?;
                let mask = g.keep(mask)?;
                let spec = Attention { mask: MaskKind::Keep, causal, ..Attention::new(layout) };
                g.attention(spec, q, k, v, &[mask])
            });
            t.case(&format!("bias-{what}{tail}-{name}"), PAIR, normal(), FEW, move |g| {
                let [q, k, v] = SMALL.qkv(g, layout)?;
                let mask = g.x(mask)?;
                let spec = Attention { mask: MaskKind::Bias, causal, ..Attention::new(layout) };
                g.attention(spec, q, k, v, &[mask])
            });
        }
    }
    t.case(&format!("fully-masked-rows-{name}"), FLOATS, normal(), FEW, move |g| {
        let [q, k, v] = SMALL.qkv(g, layout)?;
        let mask = g.of(Bool, [2, 1, 5, 1], Fill::These(vec![1.0, 0.0, 1.0, 0.0, 0.0]))?;
        let spec = Attention { mask: MaskKind::Keep, ..Attention::new(layout) };
        g.attention(spec, q, k, v, &[mask])
    });
    t.case(&format!("bias-of-minus-infinity-{name}"), PAIR, normal(), FEW, move |g| {
        let [q, k, v] = SMALL.qkv(g, layout)?;
        let mask = g.like([2, 1, 5, 7], Fill::Mixed(f64::NEG_INFINITY, 0.4))?;
        let spec = Attention { mask: MaskKind::Bias, ..Attention::new(layout) };
        g.attention(spec, q, k, v, &[mask])
    });
    t.case(&format!("softcap-before-bias-{name}"), PAIR, normal(), FEW, move |g| {
        let [q, k, v] = SMALL.qkv(g, layout)?;
        let mask = g.like([4, 5, 7], Fill::Normal(0.0, 3.0))?;
        let spec =
            Attention { mask: MaskKind::Bias, softcap: Some(1.5), causal: true, ..Attention::new(layout) };
        g.attention(spec, q, k, v, &[mask])
    });
    t.case(&format!("sinks-{name}"), FLOATS, normal(), FEW, move |g| {
        let [q, k, v] = SMALL.qkv(g, layout)?;
        let sinks = g.w([4])?;
        let spec = Attention { sinks: true, causal: true, ..Attention::new(layout) };
        g.attention(spec, q, k, v, &[sinks])
    });
    t.case(&format!("sinks-large-{name}"), PAIR, normal(), FEW, move |g| {
        let [q, k, v] = SMALL.qkv(g, layout)?;
        let (mask, sinks) = (g.keep([5, 7])?, g.weight([4], Fill::Normal(8.0, 1.0))?);
        let spec = Attention { sinks: true, mask: MaskKind::Keep, ..Attention::new(layout) };
        g.attention(spec, q, k, v, &[mask, sinks])
    });
}

fn lengths(t: &mut Table, layout: HeadLayout) {
    let name = layout.name();
    let rows: [(&str, &[usize], &[i64]); 6] = [
        ("scalar", &[], &[5]),
        ("per-batch", &[2], &[7, 3]),
        ("zero", &[2], &[0, 7]),
        ("past-the-end", &[], &[99]),
        ("below-queries", &[2], &[2, 6]),
        ("negative", &[], &[-3]),
    ];
    for (what, shape, numbers) in rows {
        for causal in [false, true] {
            let tail = if causal { "-causal" } else { "" };
            let index = if causal { I32 } else { I64 };
            t.case(&format!("lengths-{what}{tail}-{name}"), &[F32, BF16], normal(), FEW, move |g| {
                let [q, k, v] = SMALL.qkv(g, layout)?;
                let lengths = g.ints(index, shape, numbers)?;
                let spec = Attention { lengths: true, causal, ..Attention::new(layout) };
                g.attention(spec, q, k, v, &[lengths])
            });
        }
    }
    t.case(&format!("everything-{name}"), &[F32, F16, F64], normal(), FEW, move |g| {
        let [q, k, v] = SMALL.qkv(g, layout)?;
        let (mask, sinks) = (g.x([2, 1, 5, 7])?, g.w([4])?);
        let lengths = g.ints(I64, [2], &[6, 7])?;
        let spec = Attention {
            layout,
            scale: Some(0.3),
            causal: true,
            window: Some(4),
            softcap: Some(5.0),
            mask: MaskKind::Bias,
            sinks: true,
            lengths: true,
            pages: false,
        };
        g.attention(spec, q, k, v, &[mask, sinks, lengths])
    });
}

/// Few rows and many keys, of which lengths and windows leave none, some or all.
fn decoding(t: &mut Table, layout: HeadLayout) {
    let name = layout.name();
    let base = move || Attention { causal: true, ..Attention::new(layout) };
    let paged = |sq: usize, d: usize, lengths: [i64; 2]| Paged {
        sizes: Sizes(2, 8, 2, sq, 0, d, d),
        positions: 32,
        pool: 23,
        table: (0..2 * 20).map(|i| (i * 29 + 7) % 25 - 1).collect(),
        lengths: lengths.to_vec(),
    };
    let specs: [(&str, &[olivine_ir::DType], Attention); 4] = [
        ("causal", FLOATS, base()),
        ("window", PAIR, Attention { window: Some(100), ..base() }),
        ("sinks-softcap", PAIR, Attention { sinks: true, softcap: Some(3.0), ..base() }),
        ("all-seen", &[F16], Attention { causal: false, ..base() }),
    ];
    for (what, dtypes, spec) in specs {
        for (lengths, numbers) in [("long", [640, 37]), ("short", [129, 0])] {
            let spec = spec.clone();
            t.case(&format!("decode-{what}-{lengths}-{name}"), dtypes, normal(), FEW, move |g| {
                paged(1, 64, numbers).attention(g, spec.clone())
            });
        }
        t.case(&format!("decode-{what}-some-queries-{name}"), &[F16], normal(), FEW, move |g| {
            paged(3, 128, [301, 514]).attention(g, spec.clone())
        });
    }
    plain(t, &format!("decode-long-{name}"), PAIR, Sizes(1, 4, 2, 1, 1400, 32, 32), base());
    plain(t, &format!("decode-value-dim-{name}"), PAIR, Sizes(2, 3, 1, 2, 300, 48, 80), base());
    plain(t, &format!("decode-one-head-{name}"), PAIR, Sizes(2, 3, 3, 1, 300, 8, 8), base());
    t.case(&format!("decode-bias-{name}"), PAIR, normal(), FEW, move |g| {
        let [q, k, v] = Sizes(2, 4, 2, 2, 300, 32, 32).qkv(g, layout)?;
        let mask = g.like([4, 2, 300], Fill::Mixed(f64::NEG_INFINITY, 0.4))?;
        let spec = Attention { mask: MaskKind::Bias, ..Attention::new(layout) };
        g.attention(spec, q, k, v, &[mask])
    });
    t.case(&format!("decode-infinite-values-{name}"), PAIR, normal(), FEW, move |g| {
        let sizes = Sizes(1, 4, 1, 2, 400, 16, 16);
        let [q, k, _] = sizes.qkv(g, layout)?;
        let v = g.like(layout.dims(1, 1, 400, 16), Fill::Mixed(f64::INFINITY, 0.002))?;
        g.attention(Attention { window: Some(37), ..base() }, q, k, v, &[])
    });
}

/// Values that are not finite reach the queries that see them, and no others.
fn not_finite(t: &mut Table) {
    let sizes = Sizes(1, 2, 1, 24, 40, 16, 16);
    for (what, number) in [("infinite", f64::INFINITY), ("nan", f64::NAN)] {
        t.case(&format!("{what}-values-causal"), PAIR, normal(), FEW, move |g| {
            let [q, k, _] = sizes.qkv(g, HeadLayout::Bhsd)?;
            let v = g.like([1, 1, 40, 16], Fill::Mixed(number, 0.004))?;
            g.attention(Attention { causal: true, ..Attention::new(HeadLayout::Bhsd) }, q, k, v, &[])
        });
    }
    t.case("nan-keys", PAIR, normal(), FEW, move |g| {
        let [q, _, v] = sizes.qkv(g, HeadLayout::Bhsd)?;
        let k = g.like([1, 1, 40, 16], Fill::Mixed(f64::NAN, 0.002))?;
        g.attention(Attention { causal: true, ..Attention::new(HeadLayout::Bhsd) }, q, k, v, &[])
    });
}

fn head_sizes(t: &mut Table) {
    for d in [1usize, 7, 8, 32, 64, 80, 96, 128, 256, 512] {
        let spec = Attention { causal: true, ..Attention::new(HeadLayout::Bhsd) };
        plain(t, &format!("head-dim-{d}"), &[F32, BF16], Sizes(1, 2, 1, 9, 9, d, d), spec.clone());
        let spec = Attention { layout: HeadLayout::Bshd, ..spec };
        plain(t, &format!("head-dim-{d}-decode"), PAIR, Sizes(2, 2, 1, 1, 20, d, d), spec);
    }
}

fn cache(t: &mut Table, layout: HeadLayout) {
    let positions =
        [("start", 0i64), ("middle", 4), ("end", 8), ("overflow", 9), ("outside", 50), ("negative", -2)];
    for (what, position) in positions {
        let index = if position % 2 == 0 { I64 } else { I32 };
        t.case(&format!("kv_append/{what}-{}", layout.name()), &[F32, F16, BF16], normal(), Bits, move |g| {
            let dims = |s| match layout {
                HeadLayout::Bshd => [2, s, 3, 5],
                HeadLayout::Bhsd => [2, 3, s, 5],
            };
            let (cache, rows) = (g.x(dims(11))?, g.x(dims(3))?);
            let at = g.ints(index, [], &[position])?;
            g.kv_append(layout, cache, rows, at)
        });
    }
    // Sequences of a batch at positions of their own, of which some are outside.
    for (what, d, positions) in [("inside", 8, [3i64, 0, 7]), ("outside", 5, [-1, 11, 9])] {
        let name = format!("kv_append/each-{what}-{}", layout.name());
        let index = if d == 8 { I64 } else { I32 };
        t.case(&name, &[F32, F16, BF16], normal(), Bits, move |g| {
            let (cache, rows) = (g.x(layout.dims(3, 2, 11, d))?, g.x(layout.dims(3, 2, 3, d))?);
            let at = g.ints(index, [3], &positions)?;
            g.kv_append(layout, cache, rows, at)
        });
    }
}

/// Pools of pages: sizes of the problem, positions of a page, pages of the pool, and each sequence's pages.
struct Paged {
    sizes: Sizes,
    positions: usize,
    pool: usize,
    table: Vec<i64>,
    lengths: Vec<i64>,
}

impl Paged {
    fn attention(&self, g: &mut Build, spec: Attention) -> Result<ValueId, Error> {
        let Sizes(b, h, kv, sq, _, d, dv) = self.sizes;
        let layout = spec.layout;
        let q = g.x(layout.dims(b, h, sq, d))?;
        let k = g.x(layout.dims(self.pool, kv, self.positions, d))?;
        let v = g.x(layout.dims(self.pool, kv, self.positions, dv))?;
        let mut extra = Vec::new();
        if spec.sinks {
            extra.push(g.w([h])?);
        }
        extra.push(g.ints(I64, [b], &self.lengths)?);
        extra.push(g.ints(I32, [b, self.table.len() / b], &self.table)?);
        g.attention(Attention { lengths: true, pages: true, ..spec }, q, k, v, &extra)
    }
}

fn pages(t: &mut Table, layout: HeadLayout) {
    let name = layout.name();
    let base = move || Attention { causal: true, ..Attention::new(layout) };
    // Three sequences of different lengths: one ends within a page, one is empty, two share their first page; -1 and 99 are not
    // read, or clamped.
    let three = |sq: usize, d: usize| Paged {
        sizes: Sizes(3, 4, 2, sq, 0, d, d),
        positions: 4,
        pool: 7,
        table: vec![5, 0, 3, -1, 99, 99, 5, 6, 1],
        lengths: vec![11, 0, 9],
    };
    let specs: [(&str, &[olivine_ir::DType], Attention); 5] = [
        ("causal", FLOATS, base()),
        ("window", &[F32], Attention { window: Some(3), ..base() }),
        ("softcap", &[F32], Attention { softcap: Some(2.0), ..base() }),
        ("sinks", &[F32, F16], Attention { sinks: true, ..base() }),
        ("all-seen", &[F32], Attention { causal: false, ..base() }),
    ];
    for (what, dtypes, spec) in specs {
        for (queries, sq) in [("one", 1usize), ("some", 3)] {
            let spec = spec.clone();
            t.case(&format!("pages-{what}-{queries}-{name}"), dtypes, normal(), FEW, move |g| {
                three(sq, 16).attention(g, spec.clone())
            });
        }
    }
    // Many keys in pages of an odd size, out of order, with numbers outside that are clamped.
    t.case(&format!("pages-many-{name}"), &[F32, BF16], normal(), FEW, move |g| {
        let table: Vec<i64> = (0..2 * 24).map(|i| (i * 29 + 7) % 53 - 1).collect();
        let sizes = Sizes(2, 6, 2, 5, 0, 24, 40);
        let paged = Paged { sizes, positions: 13, pool: 50, table, lengths: vec![24 * 13, 170] };
        paged.attention(g, base())
    });
    t.case(&format!("pages-prefill-{name}"), PAIR, normal(), FEW, move |g| {
        let table: Vec<i64> = (0..6).map(|i| (i * 5 + 2) % 6).collect();
        let sizes = Sizes(1, 2, 1, 70, 0, 64, 64);
        Paged { sizes, positions: 16, pool: 6, table, lengths: vec![90] }.attention(g, base())
    });
    for (what, at) in [("inside", [3i64, 5, 0]), ("outside", [-2, 11, 7])] {
        t.case(&format!("kv_append/pages-{what}-{name}"), &[F32, F16], normal(), Bits, move |g| {
            let (pool, rows) = (g.x(layout.dims(6, 2, 4, 8))?, g.x(layout.dims(3, 2, 5, 8))?);
            let at = g.ints(I64, [3], &at)?;
            // The last sequence has pages that do not exist.
            let table = g.ints(I32, [3, 3], &[5, 0, 2, 1, 4, 3, -1, 6, i64::from(i32::MAX)])?;
            g.kv_append_pages(layout, pool, rows, at, table)
        });
    }
    t.case(&format!("kv_append/pages-one-position-{name}"), &[F32, BF16], normal(), Bits, move |g| {
        let (pool, rows) = (g.x(layout.dims(5, 3, 3, 5))?, g.x(layout.dims(2, 3, 2, 5))?);
        let at = g.ints(I32, [], &[2])?;
        let table = g.ints(I64, [2, 2], &[4, 0, 1, 3])?;
        g.kv_append_pages(layout, pool, rows, at, table)
    });
}
