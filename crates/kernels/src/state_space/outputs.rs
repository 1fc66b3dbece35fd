//! A chunk's results: what its queries see of the state it begins with, and of the changes up to their own step.

use olivine_kernel::{Access, Val};

use super::decay::Exponents;
use super::heads::{GROUP, Heads, Kind, Sizes};
use super::tile_matmul::{ContiguousAxis, PanelSource, ThreadTile, Tile};
use crate::launch::Launch;
use crate::site::{Memory, Site, linear_group};

/// Values of a workgroup.
const VALUES: u32 = 64;
/// Indices along K of a panel.
const K_STEP: u32 = 8;

fn tiles(p: &Heads) -> (Tile, Tile) {
    (Tile::new(p.chunk, p.chunk, GROUP, K_STEP), Tile::new(p.chunk, VALUES, GROUP, K_STEP))
}

/// Bytes of workgroup memory.
pub(super) fn shared_bytes(p: &Heads) -> u32 {
    let (scores, results) = tiles(p);
    let panels = results.left_numbers() + scores.right_numbers().max(results.right_numbers());
    let separate = if scores.columns == results.columns { 0 } else { scores.right_numbers() };
    (p.chunk * results.left_pitch() * 4 + panels + separate) * p.elem.size()
}

/// Emits all results; `starts` are the states that chunks begin with, `changes` those of the delta rule.
pub(super) fn emit(
    p: &Heads,
    exponents: Memory,
    starts: Memory,
    changes: Option<Memory>,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let across = p.dv.div_ceil(VALUES as usize);
    let groups = p.batch * p.heads * p.chunks() * across;

    let k = site.builder("state_outputs", GROUP);
    let l = Launch::new(&k);
    write(&l, p, (exponents, starts, changes), (groups, across));
    let bound = l.done();
    let (flops, moved) = p.cost(2);
    let states = (p.batch * p.heads * p.chunks() * p.dk * p.dv) as u64 * u64::from(p.elem.size());
    site.dispatch(k, bound, groups as u64, (flops, moved + states))
}

fn write<'k>(
    l: &Launch<'k>,
    p: &Heads,
    (exponents, starts, changes): (Memory, Memory, Option<Memory>),
    (groups, across): (usize, usize),
) {
    let k = l.k();
    let (scores_tile, tile) = tiles(p);
    let (queries, keys) = (l.read("queries", &p.queries), l.read("keys", &p.keys));
    let exponents = Exponents::read(l, p.elem, exponents);
    let starts = l.bind("starts", p.elem, Access::Read, starts);
    let out = l.write("out", &p.out);
    let changes = changes.map(|m| l.bind("changes", p.elem, Access::Read, m));
    let (scale, mamba) = match &p.kind {
        Kind::Delta { scale, .. } => {
            let scale = match p.scalar {
                olivine_kernel::Scalar::F64 => k.f64(*scale),
                _ => l.f32("scale", *scale as f32),
            };
            (Some(scale), None)
        }
        Kind::Mamba { skip, .. } => {
            let (values, steps) = (l.read("values", &p.values), l.read("steps", &p.steps));
            (None, Some((values, steps, skip.as_ref().map(|s| l.read("skip", s)))))
        }
    };
    let sizes = Sizes::declare(l, p);
    let (count, chunks) = (l.size("groups", groups), l.size("chunks", p.chunks()));
    let (across, width) = (l.size("across", across), l.size("width", p.dk + p.dv));
    let (score, place) = (ThreadTile::new(k, scores_tile), ThreadTile::new(k, tile));
    let (left, right) = (place.left_panel(p.elem), place.right_panel(p.elem));
    let score_right = if scores_tile.columns == tile.columns { right } else { score.right_panel(p.elem) };
    let weights = score.left_memory(p.elem, p.chunk);

    let number = linear_group(k);
    k.if_(number.lt(count), || {
        let (whole, first_value) = (number / across, number % across * VALUES);
        let head = sizes.head(whole / chunks);
        let first = whole % chunks * p.chunk;
        let row = whole * p.chunk;
        let zero = k.number(p.scalar, 0.0);
        let last = sizes.length - 1;
        let element = |rows: olivine_kernel::Buf<'k>, t: Val<'k>, d: Val<'k>| {
            let loaded = rows.load(head.key((first + t).min(last)) + d.min(sizes.dk - 1));
            ((first + t).lt(sizes.length) & d.lt(sizes.dk)).select(loaded, zero)
        };
        let query = |t, d| element(queries, t, d);
        let key = |t, d| element(keys, t, d);
        let sums = score.sums(zero);
        score.multiply(
            &sums,
            sizes.dk,
            &PanelSource::Staged { panel: left, along: ContiguousAxis::K, load: &query },
            &PanelSource::Staged { panel: score_right, along: ContiguousAxis::K, load: &key },
        );
        let columns = score.columns();
        let earlier: Vec<_> = columns.iter().map(|j| exponents.at(row + *j)).collect();
        let mut numbers = Vec::with_capacity(sums.len());
        for (i, sums) in score.rows().into_iter().zip(sums.chunks(columns.len())) {
            let now = exponents.at(row + i);
            for ((j, earlier), sum) in columns.iter().zip(&earlier).zip(sums) {
                numbers.push(j.le(i).select(sum.get() * now.since(*earlier), zero));
            }
        }
        score.put_left(weights, &numbers, tile.left_pitch());

        let sums = place.sums(zero);
        let start = |v, d: Val<'k>| {
            let v = first_value + v;
            let known = v.lt(sizes.dv) & d.lt(sizes.dk);
            let at = (whole * sizes.dk + d.min(sizes.dk - 1)) * sizes.dv + v.min(sizes.dv - 1);
            known.select(starts.load(at), zero)
        };
        place.multiply(
            &sums,
            sizes.dk,
            &PanelSource::Staged { panel: left, along: ContiguousAxis::K, load: &query },
            &PanelSource::Staged { panel: right, along: ContiguousAxis::Outer, load: &start },
        );
        let columns = place.columns();
        let rows = place.rows();
        for (t, sums) in rows.iter().zip(sums.chunks(columns.len())) {
            let decay = exponents.at(row + *t).decay();
            sums.iter().for_each(|sum| sum.set(sum.get() * decay));
        }
        let change = |v, t: Val<'k>| {
            let v = first_value + v;
            let known = v.lt(sizes.dv) & t.lt(p.chunk) & (first + t).lt(sizes.length);
            let (t, v) = ((first + t).min(last), v.min(sizes.dv - 1));
            let number = match (changes, mamba) {
                (Some(changes), _) => changes.load((row + (t - first)) * width + v),
                (None, Some((values, steps, _))) => values.load(head.value(t) + v) * steps.load(head.step(t)),
                (None, None) => zero,
            };
            known.select(number, zero)
        };
        place.multiply(
            &sums,
            k.u32(p.chunk),
            &PanelSource::Resident(weights),
            &PanelSource::Staged { panel: right, along: ContiguousAxis::Outer, load: &change },
        );
        for (t, sums) in rows.iter().zip(sums.chunks(columns.len())) {
            let t = first + *t;
            for (v, sum) in columns.iter().zip(sums) {
                let v = first_value + *v;
                k.if_(t.lt(sizes.length) & v.lt(sizes.dv), || {
                    let at = head.value(t) + v;
                    let mut result = sum.get();
                    if let Some(scale) = scale {
                        result = result * scale;
                    }
                    if let Some((values, _, Some(skip))) = mamba {
                        result = skip.load(head.head).fma(values.load(at), result);
                    }
                    out.store(at, result);
                });
            }
        }
    });
}
