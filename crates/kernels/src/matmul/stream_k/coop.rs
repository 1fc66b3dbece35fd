//! Matmuls by cooperative matrices whose last wave of tiles is split ([`super`]).

use olivine_kernel::{Access, Elem, MatrixUse};

use crate::launch::Launch;
use crate::math;
use crate::matmul::coop::block_store::{leave, store_block};
use crate::matmul::coop::blocks::CoopTile;
use crate::matmul::coop::multiply;
use crate::matmul::coop::operands::{DeclaredOperand, KLoop, OperandLoader, PreparedOperand, SubgroupSpan};
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue};
use crate::matmul::problem::Problem;
use crate::matmul::stream_k::{Segment, StreamK, TileOrigin, keep};
use crate::matmul::tiled::panel::TileSpan;
use crate::matmul::tiled::{TileCoord, tile_coord_by};
use crate::site::Site;

/// Emits a matmul by cooperative matrices in whole and split tiles.
pub(crate) fn emit(
    problem: &Problem<'_>,
    blocks: CoopTile,
    stream_k: StreamK,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let (a_sizes, b_sizes) = ((problem.m, problem.k), (problem.n, problem.k));
    let a_given = PreparedOperand::new(blocks.ways.0, &problem.a, a_sizes, MatrixUse::A, site)?;
    let b_given = PreparedOperand::of_b(blocks.ways.1, problem, b_sizes, site)?;
    let parts = site.scratch(stream_k.bytes(blocks));

    let k = site.builder("matmul_stream_k", blocks.group());
    let l = Launch::new(&k);
    let jumps = &problem.batch.strides;
    let a = DeclaredOperand::declare(&l, "a", &a_given, &problem.a, a_sizes, &jumps[0]);
    let b = DeclaredOperand::declare(&l, "b", &b_given, &problem.b, b_sizes, &jumps[1]);
    let kept = l.bind("parts", Elem::F32, Access::Write, parts);
    let (m, n, all) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", problem.k));
    let declared = stream_k.declare(&l);
    let epilogue = Epilogue::declare(&l, problem, &Destination::Target, n);
    let walker = problem.batch.declare(&l, &problem.offsets());
    let (step, tail) = (blocks.k_step, !problem.k.is_multiple_of(blocks.k_step));

    declared.segments(&k, (all, step), |Segment { block, start, end, is_whole, slot }| {
        let TileCoord { first, rest, .. } =
            tile_coord_by(block, (m, n, all), (blocks.m, blocks.n), blocks.band, None);
        let at = walker.at(rest);
        let subgroups = blocks.m / blocks.rows * (blocks.n / blocks.columns);
        let (slice, subgroup) = (k.subgroup_id() / subgroups, k.subgroup_id() % subgroups);
        let across = blocks.n / blocks.columns;
        let span = |first, end| TileSpan { first, end, order: None };
        let (rows, columns) = (blocks.rows, blocks.columns);
        let down = SubgroupSpan {
            span: span(first.0, m),
            mine: subgroup / across * rows,
            block: blocks.m,
            part: rows,
        };
        let wide = SubgroupSpan {
            span: span(first.1, n),
            mine: subgroup % across * columns,
            block: blocks.n,
            part: columns,
        };
        let (own, form) = (step / blocks.slices, blocks.form);
        let from = slice * own;
        let past = if tail { (end + (step - 1)) / step * step } else { end };
        let k_loop = KLoop { start, end, past, all, step, from, own, ahead: blocks.ahead, tail, form };
        let elem = math::elem(problem.dtype());
        let a = OperandLoader::new(&k, &a, form.matrix(elem, MatrixUse::A), &down, &k_loop, at[0]);
        let b = OperandLoader::new(&k, &b, form.matrix(elem, MatrixUse::B), &wide, &k_loop, at[1]);
        let sums = multiply(&k, (&a, &b), (rows / form.side, columns / form.side), &k_loop);
        let base = BatchOffset { out: rest * m * n, extras: at[2..].to_vec() };
        let out = leave(&k, form, [&a, &b], (subgroup, slice), (subgroups, blocks.slices));
        let (row, column) = (first.0 + down.mine, first.1 + wide.mine);
        let sums = (sums.as_slice(), columns / form.side);
        k.if_else(
            is_whole,
            || {
                store_block(&out, sums, (row, m), column, epilogue.is_heavy(), |row, column, sums| {
                    epilogue.store(&base, row, column, sums);
                });
            },
            || {
                store_block(&out, sums, (row, m), column, false, |row, column, sums| {
                    keep(kept, blocks, slot, (row - first.0, column - first.1), sums);
                });
            },
        );
    });
    let bound = l.done();
    site.dispatch(k, bound, stream_k.groups() as u64, problem.cost())?;

    let group = site.group_size(256);
    let k = site.builder("matmul_stream_k_fixup", group);
    let l = Launch::new(&k);
    let (m, n) = (l.size("m", problem.m), l.size("n", problem.n));
    let epilogue = Epilogue::declare(&l, problem, &Destination::Target, n);
    let walker = problem.batch.declare(&l, &problem.offsets());
    stream_k.join(&l, blocks, parts, &epilogue, |block| {
        let TileCoord { first, rest, .. } =
            tile_coord_by(block, (m, n, n), (blocks.m, blocks.n), blocks.band, None);
        TileOrigin {
            first,
            end: m,
            base: BatchOffset { out: rest * m * n, extras: walker.at(rest)[2..].to_vec() },
        }
    });
    let bound = l.done();
    let groups = stream_k.fixup_groups(blocks, group);
    site.dispatch(k, bound, groups, (0, stream_k.bytes(blocks)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]
mod tests {
    use olivine_ir::{DType, Shape, TensorType, ValueId};

    use super::*;
    use crate::matmul::coop::blocks::OperandPath;
    use crate::matmul::coop::tests::{SMALL, bits, card, number, operand, run};
    use crate::site::{Memory, Target};

    /// Runs `[m, k] · [k, n]`, blocks from the `whole`-th on in pieces of `each` steps.
    fn check([m, n, k]: [usize; 3], blocks: CoopTile, whole: usize, each: usize) {
        let (caps, dtype) = (card(), DType::F16);
        let a = operand(dtype, 0, [m, k], [k as i64, 1]);
        let b = operand(dtype, 1, [k, n], [n as i64, 1]);
        let ty = TensorType::new(dtype, Shape::new(&[m, n]).unwrap());
        let target = Target { ty, memory: Memory::Value(ValueId::new(2)) };
        let mut site = Site::new(&caps, vec![a.clone(), b.clone()], vec![target.clone()]);
        let problem = Problem::new(&[a, b], &target, None).unwrap();
        let count = m.div_ceil(blocks.m as usize) * n.div_ceil(blocks.n as usize);
        let steps = k.div_ceil(blocks.k_step as usize);
        emit(&problem, blocks, StreamK::among(whole, count - whole, steps, each), &mut site).unwrap();
        let fill = |count: usize, skew: usize| -> Vec<u8> {
            (0..count).flat_map(|i| bits(dtype, number(i, skew))).collect()
        };
        let memory = run(&site, [fill(m * k, 0), fill(k * n, 5), vec![0xff; 2 * m * n]]);
        let found = &memory[&Memory::Value(ValueId::new(2))];
        for (i, j) in (0..m * n).map(|at| (at / n, at % n)) {
            let sum: f32 = (0..k).map(|l| number(i * k + l, 0) * number(l * n + j, 5)).sum();
            let at = 2 * (i * n + j);
            assert_eq!(
                found[at..at + 2],
                bits(dtype, sum),
                "row {i}, column {j}: {whole} whole, {each} each"
            );
        }
    }

    #[test]
    fn whole_tiles_and_partial_tiles_of_any_length_add_up() {
        for (whole, each) in [(0, 1), (2, 3), (3, 4), (1, 5)] {
            check([72, 104, 150], SMALL, whole, each);
        }
        let packed = CoopTile { ways: (OperandPath::Packed, OperandPath::Packed), ..SMALL };
        check([72, 104, 100], packed, 1, 3);
        check([40, 72, 200], CoopTile { m: 32, n: 32, slices: 2, ..SMALL }, 2, 3);
    }

    #[test]
    fn stream_k_is_for_long_k_whose_last_wave_is_not_full() {
        let caps = card();
        for (count, steps) in [(272, 128), (144, 128), (576, 128), (324, 72)] {
            assert!(StreamK::new(count, steps, &caps).is_some(), "{count} blocks of {steps} steps");
        }
        for (count, steps) in [(256, 128), (196, 128), (192, 96), (272, 12), (528, 128), (4000, 128)] {
            assert_eq!(StreamK::new(count, steps, &caps), None, "{count} blocks of {steps} steps");
        }
    }
}
