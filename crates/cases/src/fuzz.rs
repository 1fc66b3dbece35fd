//! Random graphs over random shapes, whole numbers throughout, so that every backend must agree to the bit.

use olivine_ir::op::{Binary, CumulativeKind, PadMode, ReduceKind, ScalarOp, Slice};
use olivine_ir::{DType, Error, Shape, ValueId};

use crate::bound::Bound;
use crate::case::{Build, Case};
use crate::fill::{Fill, Rng};

/// No tensor of a random graph holds more elements.
const MOST: usize = 4096;

/// A random chain of elementwise, select, reduce, matmul, scan and movement steps; the seed is the case.
pub fn random_case(seed: u64) -> Case {
    let mut rng = Rng::new(seed ^ 0x6f6c_6976_696e_6521);
    let dtypes = [
        DType::F32,
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::I64,
        DType::I8,
        DType::U8,
    ];
    let dtype = dtypes[rng.below(dtypes.len())];
    let name = format!("fuzz/{seed}/{dtype}");
    Case::new("fuzz", name, dtype, Fill::Whole(-3, 3), Bound::Exact, move |g| {
        let mut rng = Rng::new(seed);
        let shape = random_shape(&mut rng);
        let mut x = g.x(&shape)?;
        let mut all = vec![x];
        for _ in 0..1 + rng.below(5) {
            x = step(g, x, &mut rng)?;
            all.push(x);
        }
        // An inner value as a second output keeps it from being fused away.
        let other = all[rng.below(all.len())];
        Ok(if rng.below(3) == 0 && other != x { vec![x, other] } else { vec![x] })
    })
}

/// So many random cases from a seed on.
pub fn fuzz_cases(n: usize, seed: u64) -> Vec<Case> {
    (0..n as u64).map(|i| random_case(seed.wrapping_add(i))).collect()
}

/// Rank 0 to 8, zeros and ones often, at most 256 elements so that products stay small.
fn random_shape(rng: &mut Rng) -> Vec<usize> {
    let rank = rng.below(9);
    let mut dims = Vec::with_capacity(rank);
    let mut room = 256usize;
    for _ in 0..rank {
        let d = match rng.below(20) {
            0 => 0,
            1..=6 => 1,
            _ => 1 + rng.below(9),
        };
        let d = d.min(room);
        room /= d.max(1);
        dims.push(d);
    }
    dims
}

/// A shape that broadcasts with another: some axes 1, some leading axes missing, and sometimes a 1 made wider.
fn partner(rng: &mut Rng, shape: &Shape) -> Vec<usize> {
    let mut room = (MOST / shape.numel().max(1)).max(1);
    let mut dims: Vec<usize> = shape
        .iter()
        .map(|&d| match rng.below(4) {
            0 => 1,
            1 if d == 1 && room >= 4 => {
                room /= 4;
                1 + rng.below(4)
            }
            _ => d,
        })
        .collect();
    if rng.below(3) == 0 && !dims.is_empty() {
        dims.drain(..rng.below(dims.len() + 1));
    }
    dims
}

/// Keeps numbers small, so that products of products stay exact in f32.
fn settle(g: &mut Build, x: ValueId) -> Result<ValueId, Error> {
    g.clamp(x, -8.0, 8.0)
}

fn step(g: &mut Build, x: ValueId, rng: &mut Rng) -> Result<ValueId, Error> {
    let shape = g.ty(x)?.shape;
    let rank = shape.rank();
    match rng.below(16) {
        0 | 1 => {
            let other = partner(rng, &shape);
            let y = g.x(&other)?;
            let op = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min][rng.below(5)];
            let pair = if rng.below(2) == 0 { [x, y] } else { [y, x] };
            let z = g.add1(ScalarOp::Binary(op), &pair)?;
            settle(g, z)
        }
        2 => {
            let (a, b) = (partner(rng, &shape), partner(rng, &shape));
            // Both partners may widen the same axis differently; only one is asked to.
            let a: Vec<usize> =
                a.iter().rev().zip(shape.iter().rev()).map(|(p, d)| (*p).min(*d)).rev().collect();
            let (y, c) = (g.x(&a)?, g.of(DType::Bool, &b, Fill::Chance(0.5))?);
            g.select(c, x, y)
        }
        3 => {
            let y = g.neg(x)?;
            if rng.below(2) == 0 { g.relu(y) } else { g.abs(y) }
        }
        4 if rank > 0 => {
            let axes: Vec<isize> = (0..rank as isize).filter(|_| rng.below(2) == 0).collect();
            let keep = rng.below(2) == 0;
            let kind = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min][rng.below(3)];
            let y = g.reduce(kind, x, &axes, keep)?;
            settle(g, y)
        }
        5 if rank > 0 => {
            let n = 1 + rng.below(7);
            let y = if rng.below(4) == 0 { g.x([shape[rank - 1]])? } else { g.x([shape[rank - 1], n])? };
            if shape.numel() / shape[rank - 1].max(1) * n > MOST {
                return g.neg(x);
            }
            let z = g.matmul(x, y)?;
            settle(g, z)
        }
        6 if rank > 0 => random_slice(g, x, rng),
        7 if rank > 0 => {
            let axis = rng.below(rank);
            let mut dims = shape.to_vec();
            dims[axis] = rng.below(4);
            if shape.numel() + dims.iter().product::<usize>() > MOST {
                return g.neg(x);
            }
            let y = g.x(&dims)?;
            let order = if rng.below(2) == 0 { [x, y] } else { [y, x] };
            g.concat(&order, axis as isize)
        }
        8 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            for i in (1..rank).rev() {
                perm.swap(i, rng.below(i + 1));
            }
            g.transpose(x, &perm)
        }
        9 => g.reshape(x, &[-1]).or_else(|_| g.neg(x)),
        10 if rank > 0 => {
            let (exclusive, reverse) = (rng.below(2) == 0, rng.below(2) == 0);
            let y = g.cumulative(CumulativeKind::Sum, x, rng.below(rank) as isize, exclusive, reverse)?;
            settle(g, y)
        }
        11 if rank > 0 => {
            let axis = rng.below(rank);
            if shape[axis] == 0 {
                return g.neg(x);
            }
            let i = g.index([rng.below(shape[axis] + 1)], shape[axis])?;
            g.gather(x, i, axis as isize)
        }
        12 if rank > 0 && shape.numel() < MOST / 8 => {
            let mut pads = vec![(0, 0); rank];
            pads[rng.below(rank)] = (rng.below(3) as i64, rng.below(3) as i64);
            g.pad(x, &pads, PadMode::Constant, 2.0)
        }
        13 if rank > 0 => g.reverse(x, &[rng.below(rank) as isize]),
        14 if rank > 0 && shape.numel() <= MOST / 2 => g.repeat(x, rng.below(rank) as isize, 2),
        15 if rank > 0 => g.roll(x, rng.below(rank) as isize, rng.below(7) as i64 - 3),
        _ => g.neg(x),
    }
}

fn random_slice(g: &mut Build, x: ValueId, rng: &mut Rng) -> Result<ValueId, Error> {
    let shape = g.ty(x)?.shape;
    let axes: Vec<usize> = (0..shape.rank()).filter(|_| rng.below(2) == 0).collect();
    let edge = |axis: usize, rng: &mut Rng| rng.below(2 * shape[axis] + 5) as i64 - shape[axis] as i64 - 2;
    let starts = axes.iter().map(|a| edge(*a, rng).into()).collect();
    let ends = axes.iter().map(|a| edge(*a, rng).into()).collect();
    let steps = axes.iter().map(|_| [1, 1, 2, 3, -1, -2][rng.below(6)]).collect();
    g.add1(Slice { axes, starts, ends, steps }, &[x])
}
