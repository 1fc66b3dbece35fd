//! The copy between two strided layouts that all movement kernels share.
//!
//! Dimensions are first merged where both sides allow it; then runs are copied whole, transposes go through small
//! blocks that keep to whole cache lines, and the rest is a strided loop. Large copies split along the outermost dimension.

use bytemuck::Pod;

use crate::parallel;

/// Elements below which a copy stays on one thread.
const GRAIN: usize = 1 << 16;
/// Side of the blocks a transpose is cut into: a block's rows and columns stay in the first-level cache.
const TILE: usize = 64;
/// Side of the blocks a transpose turns at once: for 4-byte elements a whole cache line on both sides, which matters
/// when a power-of-two step makes lines evict each other.
const BLOCK: usize = 16;

/// One dimension of a copy: its size, and the steps in elements on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Dim {
    pub(crate) size: usize,
    pub(crate) from: isize,
    /// Steps of the written side are those of a row-major tensor or of a box inside one.
    pub(crate) to: usize,
}

/// The dimensions of a copy without those of size 1, neighbours merged where both sides step through them evenly.
struct Dims {
    dims: [Dim; 8],
    rank: usize,
}

impl Dims {
    fn collapse(dims: &[Dim]) -> Dims {
        let mut out = Dims { dims: [Dim::default(); 8], rank: 0 };
        for &dim in dims.iter().filter(|d| d.size != 1) {
            if let Some(last) = out.dims[..out.rank].last_mut()
                && last.from == dim.from * dim.size as isize
                && last.to == dim.to * dim.size
            {
                *last = Dim { size: last.size * dim.size, ..dim };
            } else {
                out.dims[out.rank] = dim;
                out.rank += 1;
            }
        }
        out
    }
}

/// Copies the box `dims` from `src`, starting at element `start`, to `dst`, starting at its first element.
pub(crate) fn copy<T: Pod + Send + Sync>(src: &[T], start: usize, dims: &[Dim], dst: &mut [T]) {
    if dims.iter().any(|d| d.size == 0) {
        return;
    }
    let dims = Dims::collapse(dims);
    split(src, start as isize, dims, dst);
}

/// Shares out the outermost dimension; where its parts are single rows, these are shared out in turn.
fn split<T: Pod + Send + Sync>(src: &[T], start: isize, mut dims: Dims, dst: &mut [T]) {
    let elements: usize = dims.dims[..dims.rank].iter().map(|d| d.size).product();
    if elements <= GRAIN || dims.rank == 0 {
        return block(src, start, &dims.dims[..dims.rank], dst);
    }
    let outer = dims.dims[0];
    if outer.size == 1 {
        dims.dims.copy_within(1.., 0);
        dims.rank -= 1;
        return split(src, start, dims, dst);
    }
    // Parts of whole tiles, a few for each thread.
    let parts = (4 * parallel::threads()).min(elements.div_ceil(GRAIN)).max(2);
    let rows = outer.size.div_ceil(parts);
    let rows = if rows > TILE { rows.next_multiple_of(TILE) } else { rows };
    let written = dst.len().min(outer.size * outer.to);
    parallel::parts(&mut dst[..written], rows * outer.to, &|i, dst| {
        let mut part = Dims { dims: dims.dims, rank: dims.rank };
        part.dims[0].size = rows.min(outer.size - i * rows);
        let start = start + (i * rows) as isize * outer.from;
        if part.dims[0].size == 1 {
            split(src, start, part, dst)
        } else {
            block(src, start, &part.dims[..part.rank], dst)
        }
    });
}

/// Copies a box on this thread.
fn block<T: Pod>(src: &[T], start: isize, dims: &[Dim], dst: &mut [T]) {
    let Some((inner, outer)) = dims.split_last() else {
        dst[0] = src[start as usize];
        return;
    };
    let n = inner.size;
    if inner.to == 1 && inner.from == 1 {
        walk(outer, start, 0, &mut |from, to| {
            dst[to..to + n].copy_from_slice(&src[from as usize..from as usize + n]);
        });
    } else if inner.to == 1 && inner.from == 0 {
        walk(outer, start, 0, &mut |from, to| dst[to..to + n].fill(src[from as usize]));
    } else if inner.to == 1
        && let Some(column) = outer.iter().position(|d| d.from == 1)
    {
        let mut rest = [Dim::default(); 8];
        let others = outer.iter().enumerate().filter(|(i, _)| *i != column);
        let mut rank = 0;
        for (_, dim) in others {
            rest[rank] = *dim;
            rank += 1;
        }
        walk(&rest[..rank], start, 0, &mut |from, to| {
            transpose(src, from, inner, &mut dst[to..], &outer[column]);
        });
    } else {
        walk(outer, start, 0, &mut |from, to| {
            let mut at = from;
            for i in 0..n {
                dst[to + i * inner.to] = src[at as usize];
                at += inner.from;
            }
        });
    }
}

/// Calls `f` with the start on both sides for every index of `dims`, in row-major order.
pub(crate) fn walk(dims: &[Dim], from: isize, to: usize, f: &mut impl FnMut(isize, usize)) {
    match dims {
        [] => f(from, to),
        [dim] => {
            for i in 0..dim.size {
                f(from + i as isize * dim.from, to + i * dim.to);
            }
        }
        [dim, rest @ ..] => {
            for i in 0..dim.size {
                walk(rest, from + i as isize * dim.from, to + i * dim.to, f);
            }
        }
    }
}

/// `dst[j·row.to + l] = src[start + j + l·along.from]`: the written rows are the read columns.
fn transpose<T: Pod>(src: &[T], start: isize, along: &Dim, dst: &mut [T], row: &Dim) {
    for j0 in (0..row.size).step_by(TILE) {
        let j1 = (j0 + TILE).min(row.size);
        for l0 in (0..along.size).step_by(TILE) {
            let l1 = (l0 + TILE).min(along.size);
            tile(src, start, along.from, dst, row.to, j0..j1, l0..l1);
        }
    }
}

fn tile<T: Pod>(
    src: &[T],
    start: isize,
    from: isize,
    dst: &mut [T],
    to: usize,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) {
    let whole_rows = rows.start + rows.len() / BLOCK * BLOCK;
    let whole_columns = columns.start + columns.len() / BLOCK * BLOCK;
    let single = |dst: &mut [T], j: usize, l: usize| {
        dst[j * to + l] = src[(start + l as isize * from) as usize + j];
    };
    for j in (rows.start..whole_rows).step_by(BLOCK) {
        for l in (columns.start..whole_columns).step_by(BLOCK) {
            let mut held = [[T::zeroed(); BLOCK]; BLOCK];
            for (i, row) in held.iter_mut().enumerate() {
                let at = (start + (l + i) as isize * from) as usize + j;
                row.copy_from_slice(&src[at..at + BLOCK]);
            }
            for i in 0..BLOCK {
                let at = (j + i) * to + l;
                let out = &mut dst[at..at + BLOCK];
                for k in 0..BLOCK {
                    out[k] = held[k][i];
                }
            }
        }
        for jj in j..j + BLOCK {
            (whole_columns..columns.end).for_each(|l| single(dst, jj, l));
        }
    }
    for j in whole_rows..rows.end {
        columns.clone().for_each(|l| single(dst, j, l));
    }
}
