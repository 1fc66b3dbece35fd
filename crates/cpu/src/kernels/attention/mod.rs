//! Attention by tiles with an online softmax: the matrix of scores never exists.
//!
//! ```text
//!   tile of queries ─ for each tile of keys: q·kᵀ → softcap → mask → exp, running maximum and sum → acc += w·v
//! ```
//! Heads that share keys form one tile when each has few queries, so that a step of decoding reads its keys once.

mod blocks;
mod cache;
mod float;
mod pages;
mod rows;
mod tile;

use std::ops::Range;

use half::{bf16, f16};
use olivine_ir::DType;
use olivine_ir::op::{Attention, AttentionOperands, HeadLayout, MaskKind};

use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target};
use crate::parallel;
use crate::scratch;
use crate::simd::run;
use blocks::DecodeRows;
use pages::{Pages, integer};
use tile::{Tile, attend};

pub(crate) use float::{Acc, Real};

kernels! { |op, x, out, call|
    Attention => attention(op, x, out),
}

/// Rows of a tile of queries, where that leaves enough tiles for every thread.
const QUERIES: usize = 128;
/// Multiplications below which a call stays on one thread.
const SMALL: usize = 1 << 17;
/// The same for one query of each sequence, in pages: threads are awake while a model decodes.
const SMALL_DECODE: usize = 1 << 14;

/// The elements of q, k or v.
#[derive(Clone, Copy)]
enum Elements<'a, T> {
    Plain(&'a [T]),
    /// Bytes of blocks; steps are in bytes then.
    Blocks(&'a [u8]),
}

/// q, k or v as `[batch, head, sequence, dim]` with any steps.
struct Strided<'a, T> {
    data: Elements<'a, T>,
    offset: usize,
    batch: isize,
    head: isize,
    sequence: isize,
    dim: isize,
}

impl<'a, T: Real> Strided<'a, T> {
    fn new(layout: HeadLayout, x: &Operand<'a>) -> Self {
        let s = &x.strides;
        let (head, sequence) = match layout {
            HeadLayout::Bshd => (s[2], s[1]),
            HeadLayout::Bhsd => (s[1], s[2]),
        };
        let data = match x.ty.packed {
            Some(_) => Elements::Blocks(x.bytes()),
            None => Elements::Plain(x.elements()),
        };
        Strided { data, offset: x.offset, batch: s[0], head, sequence, dim: s[3] }
    }

    fn at(&self, batch: usize, head: usize, sequence: usize) -> usize {
        let steps =
            batch as isize * self.batch + head as isize * self.head + sequence as isize * self.sequence;
        (self.offset as isize + steps) as usize
    }

    /// Widens rows of `dim` elements, the first of which begins at `start`.
    fn read(&self, start: usize, dim: usize, out: &mut [T::Acc]) {
        let data = match self.data {
            Elements::Plain(data) => data,
            Elements::Blocks(blocks) => {
                return run(DecodeRows { blocks, start, stride: self.sequence, dim, out });
            }
        };
        for (row, out) in out.chunks_mut(dim).enumerate() {
            let start = (start as isize + row as isize * self.sequence) as usize;
            if self.dim == 1 || dim == 1 {
                T::widen(&data[start..start + dim], out);
            } else {
                for (i, o) in out.iter_mut().enumerate() {
                    *o = data[(start as isize + i as isize * self.dim) as usize].wide();
                }
            }
        }
    }

    /// The elements, if rows of `dim` can be read where they are.
    fn in_place(&self, dim: usize) -> Option<&'a [T::Acc]> {
        match self.data {
            Elements::Plain(data) => T::as_acc(data).filter(|_| self.dim == 1 || dim == 1),
            Elements::Blocks(_) => None,
        }
    }
}

/// The mask operand; steps over `[batch, head, query, key]`, 0 where it is broadcast.
enum Mask<'a, T> {
    None,
    Keep { data: &'a [u8], strides: [isize; 4], offset: usize },
    Bias { data: &'a [T], strides: [isize; 4], offset: usize },
}

/// Everything a tile needs to know.
struct Problem<'a, T: Real> {
    q: Strided<'a, T>,
    k: Strided<'a, T>,
    v: Strided<'a, T>,
    mask: Mask<'a, T>,
    sinks: Option<Operand<'a>>,
    lengths: Option<Operand<'a>>,
    pages: Option<Pages<'a>>,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    dim: usize,
    value_dim: usize,
    scale: T::Acc,
    softcap: Option<T::Acc>,
    causal: bool,
    window: Option<usize>,
}

impl<'a, T: Real> Problem<'a, T> {
    fn new(op: &Attention, x: &[Operand<'a>]) -> Self {
        let (_, heads, queries, dim) = op.layout.numbers(x[0].shape());
        let (pool, kv_heads, positions, value_dim) = op.layout.numbers(&x[2].ty.elements());
        let AttentionOperands { mask, sinks, lengths, pages } = op.optional_operands();
        let pages = pages.map(|i| Pages::new(x[i], pool, positions));
        let keys = pages.as_ref().map_or(positions, Pages::keys);
        let mask = match (op.mask, mask.map(|i| &x[i])) {
            (MaskKind::Keep, Some(m)) => {
                Mask::Keep { data: m.elements(), strides: broadcast(m), offset: m.offset }
            }
            (MaskKind::Bias, Some(m)) => {
                Mask::Bias { data: m.elements(), strides: broadcast(m), offset: m.offset }
            }
            _ => Mask::None,
        };
        Problem {
            q: Strided::new(op.layout, &x[0]),
            k: Strided::new(op.layout, &x[1]),
            v: Strided::new(op.layout, &x[2]),
            mask,
            sinks: sinks.map(|i| x[i]),
            lengths: lengths.map(|i| x[i]),
            pages,
            heads,
            kv_heads,
            queries,
            keys,
            dim,
            value_dim,
            scale: Number::from_f64(op.scale_for(dim)),
            softcap: op.softcap.map(Number::from_f64),
            causal: op.causal,
            window: op.window,
        }
    }

    /// How many keys of a batch count.
    fn length(&self, batch: usize) -> usize {
        let Some(x) = &self.lengths else { return self.keys };
        let step = if x.shape().rank() == 0 { 0 } else { x.strides[0] };
        let at = (x.offset as isize + batch as isize * step) as usize;
        integer(x, at).clamp(0, self.keys as i64) as usize
    }

    /// The keys a query may see by length, causality and window.
    fn visible(&self, length: usize, query: usize) -> Range<usize> {
        let end = (length + query + 1).saturating_sub(self.queries).min(length);
        match self.window {
            Some(window) => {
                // The window ends at the query's own position, which is before key 0 when length < queries.
                (length + query + 1).saturating_sub(self.queries).saturating_sub(window).min(end)..end
            }
            None if self.causal => 0..end,
            None => 0..length,
        }
    }

    /// Maximum and sum with which a row of a head begins: those of its sink.
    fn start(&self, head: usize) -> (T::Acc, T::Acc) {
        let Some(x) = &self.sinks else { return (Number::LOWEST, Number::ZERO) };
        let sink = x.elements::<T>()[(x.offset as isize + head as isize * x.strides[0]) as usize].wide();
        let top = sink;
        // An infinite or NaN sink makes its rows NaN, as the softmax over it would.
        (top, if top == T::Acc::LOWEST { Number::ZERO } else { (sink - top).exp_below::<false>() })
    }
}

/// Steps of a mask over `[batch, head, query, key]`.
fn broadcast(mask: &Operand<'_>) -> [isize; 4] {
    let mut out = [0; 4];
    let lead = 4usize.saturating_sub(mask.shape().rank());
    for (i, (size, stride)) in mask.shape().iter().zip(mask.strides()).enumerate() {
        out[lead + i] = if *size == 1 { 0 } else { *stride };
    }
    out
}

/// `softmax(scale·q·kᵀ masked)·v` per head.
pub(crate) fn attention(op: &Attention, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    if target.ty.shape.has_zero() {
        return;
    }
    if x[1].shape().has_zero() {
        target.bytes.fill(0);
        return;
    }
    match target.ty.dtype {
        DType::F16 => solve::<f16>(op, x, target),
        DType::BF16 => solve::<bf16>(op, x, target),
        DType::F64 => solve::<f64>(op, x, target),
        _ => solve::<f32>(op, x, target),
    }
}

fn solve<T: Real>(op: &Attention, x: &[Operand<'_>], target: &mut Target<'_>) {
    let p = Problem::<T>::new(op, x);
    let (dim, queries) = (p.value_dim, p.queries);
    let out = target.elements::<T>();
    if op.layout == HeadLayout::Bhsd || queries == 1 {
        return share(&p, out, dim, &|rows, r, result| T::narrow(result, &mut rows[r * dim..(r + 1) * dim]));
    }
    // Rows of a head are apart in this layout: hand each tile the slices it owns, in [batch, head, sequence] order.
    let mut given: Vec<Option<&mut [T]>> = scratch::collected(out.chunks_mut(dim).map(Some));
    let mut owned: Vec<&mut [T]> = scratch::with_room(given.len());
    for batch in given.chunks_mut(queries * p.heads) {
        for head in 0..p.heads {
            owned.extend(batch.iter_mut().skip(head).step_by(p.heads).filter_map(Option::take));
        }
    }
    share(&p, &mut owned, 1, &|rows, r, result| T::narrow(result, rows[r]));
}

/// Puts a row's result in its place among a tile's items.
type Write<'a, R, A> = &'a (dyn Fn(&mut [R], usize, &[A]) + Sync);

/// Cuts the result, rows in `[batch, head, sequence]` order of `width` items each, into tiles and computes them.
fn share<T: Real, R: Send>(p: &Problem<'_, T>, out: &mut [R], width: usize, write: Write<'_, R, T::Acc>) {
    let group = p.heads / p.kv_heads;
    // Pages have room for more keys than count.
    let batches = out.len() / (p.heads * p.queries * width);
    let (keys, small) = match p.pages {
        Some(_) if p.queries == 1 => ((0..batches).map(|batch| p.length(batch)).sum(), SMALL_DECODE),
        _ => (batches * p.keys, SMALL),
    };
    let work = p.heads * p.queries * keys * (p.dim + p.value_dim);
    let threads = if work < small { 1 } else { parallel::threads() };
    let groups = out.len() / (group * p.queries * width);
    // Few queries: several heads of a group in a tile, but not so many that threads stay idle.
    let heads = (QUERIES / p.queries).clamp(1, group).min(group.div_ceil(threads.div_ceil(groups)));
    let queries = match p.queries {
        few if heads > 1 => few,
        // Taller tiles pack keys less often; shorter ones keep more threads busy.
        many if groups * group * many.div_ceil(QUERIES) >= 2 * threads => QUERIES.min(many),
        many => (QUERIES / 2).min(many),
    };

    each(threads > 1, out, group * p.queries * width, &|pair, out| {
        let (batch, kv_head) = (pair / p.kv_heads, pair % p.kv_heads);
        each(threads > 1, out, heads * p.queries * width, &|h, out| {
            let in_tile = out.len() / (p.queries * width);
            each(threads > 1, out, in_tile * queries * width, &|q, out| {
                let tile = Tile {
                    batch,
                    kv_head,
                    head: kv_head * group + h * heads,
                    heads: in_tile,
                    query: q * queries,
                    queries: out.len() / (in_tile * width),
                };
                attend(p, tile, &mut |r, result| write(out, r, result));
            });
        });
    });
}

/// Runs `f` on every chunk with its number, in parallel if asked and there are several.
fn each<R: Send>(parallel: bool, items: &mut [R], size: usize, f: parallel::Task<'_, R>) {
    if parallel && items.len() > size {
        parallel::parts(items, size, f);
    } else {
        items.chunks_mut(size).enumerate().for_each(|(i, part)| f(i, part));
    }
}

#[cfg(test)]
mod tests;
