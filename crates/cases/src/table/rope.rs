//! Rotary positions over styles, layouts, partial rotation and frequency scalings.

use olivine_ir::DType::{F32, I32, I64};
use olivine_ir::op::{HeadLayout, Rope, RopeScaling, RopeStyle};

use super::{FLOATS, PAIR};
use crate::bound::Bound::{self, Near};
use crate::case::Table;
use crate::fill::{Fill, normal, uniform};

pub(super) fn rows(t: &mut Table) {
    for layout in [HeadLayout::Bshd, HeadLayout::Bhsd] {
        for style in [RopeStyle::NeoX, RopeStyle::GptJ] {
            styles(t, layout, style);
        }
    }
    scalings(t);
}

fn dims(layout: HeadLayout) -> [usize; 4] {
    match layout {
        HeadLayout::Bshd => [2, 5, 3, 16],
        HeadLayout::Bhsd => [2, 3, 5, 16],
    }
}

fn spec(layout: HeadLayout, style: RopeStyle, rotary: usize) -> Rope {
    Rope { layout, style, rotary, base: 10000.0, scaling: RopeScaling::None, tables: false }
}

/// Two products and their sum; angles are computed in f64, so that far positions are as good as near ones.
const TURNED: Bound = Near(4.0, 8.0);

fn styles(t: &mut Table, layout: HeadLayout, style: RopeStyle) {
    let name = format!("{}-{}", style.name(), layout.name());
    for rotary in [16usize, 8, 2, 0] {
        t.case(&format!("rotary-{rotary}-{name}"), FLOATS, normal(), TURNED, move |g| {
            let x = g.x(dims(layout))?;
            let positions = g.ints(I64, [5], &[0, 1, 2, 3, 4])?;
            g.rope(spec(layout, style, rotary), x, &[positions])
        });
    }
    t.case(&format!("positions-per-batch-{name}"), PAIR, normal(), TURNED, move |g| {
        let x = g.x(dims(layout))?;
        let positions = g.of(I32, [2, 5], Fill::Index(60, false))?;
        g.rope(spec(layout, style, 16), x, &[positions])
    });
    for (what, table) in [("tables", &[5usize, 4] as &'static [usize]), ("tables-per-batch", &[2, 5, 4])] {
        t.case(&format!("{what}-{name}"), FLOATS, normal(), Near(4.0, 4.0), move |g| {
            let x = g.x(dims(layout))?;
            let (cos, sin) = (g.like(table, uniform(-1.0, 1.0))?, g.like(table, uniform(-1.0, 1.0))?);
            g.rope(Rope { tables: true, ..spec(layout, style, 8) }, x, &[cos, sin])
        });
    }
    t.case(&format!("far-{name}"), &[F32], normal(), TURNED, move |g| {
        let x = g.x(dims(layout))?;
        let positions = g.ints(I64, [5], &[4000, 4001, 1999, 8191, 1024])?;
        g.rope(spec(layout, style, 16), x, &[positions])
    });
}

fn scalings(t: &mut Table) {
    let rows = [
        ("linear", RopeScaling::Linear { factor: 4.0 }),
        ("ntk", RopeScaling::Ntk { factor: 8.0 }),
        ("yarn", RopeScaling::Yarn { factor: 4.0, original: 64.0, beta_fast: 32.0, beta_slow: 1.0 }),
        ("yarn-long", RopeScaling::Yarn { factor: 16.0, original: 4096.0, beta_fast: 32.0, beta_slow: 1.0 }),
        (
            "yarn-below-one",
            RopeScaling::Yarn { factor: 0.5, original: 64.0, beta_fast: 32.0, beta_slow: 1.0 },
        ),
        ("llama3", RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 }),
        ("llama3-long", RopeScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 }),
    ];
    for (what, scaling) in rows {
        for (tail, rotary, base) in [("", 16usize, 10000.0), ("-partial", 12, 500000.0)] {
            t.case(&format!("{what}{tail}"), PAIR, normal(), TURNED, move |g| {
                let x = g.x([1, 6, 2, 16])?;
                let positions = g.ints(I64, [6], &[0, 3, 17, 29, 40, 63])?;
                let plain = spec(HeadLayout::Bshd, RopeStyle::NeoX, rotary);
                g.rope(Rope { scaling, base, ..plain }, x, &[positions])
            });
        }
    }
}
