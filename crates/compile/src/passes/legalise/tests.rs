//! What composite operations become.

use olivine_ir::op::{Concat, DepthMode, DotGeneral, MatMul, PoolKind, Region, Window};

use olivine_ir::Tensor;

use super::super::fold::Fold;
use super::super::views::Views;
use super::*;
use crate::Evaluate;

type Build = fn(&mut Graph) -> Result<ValueId, Error>;

/// Legalises a graph of one composite operation; its type must stay, and views must finish what is left.
fn legalise(build: Build) -> Result<Graph, Error> {
    let mut g = Graph::new("g");
    let y = build(&mut g)?;
    g.output("y", y)?;
    let out = Legalise.run(&g, &Options::default())?;
    assert_eq!(out.ty(out.output_named("y")?)?, g.ty(y)?);
    for node in out.nodes() {
        assert!(!is_composite(&out, &node.op, &node.inputs)?, "{} is left", node.op.name());
    }
    Views.run(&out, &Options::default())?;
    Ok(out)
}

fn names(build: Build) -> Result<Vec<&'static str>, Error> {
    Ok(legalise(build)?.nodes().iter().map(|n| n.op.name()).collect())
}

fn f32s<const N: usize>(g: &mut Graph, shapes: [&[usize]; N]) -> Result<[ValueId; N], Error> {
    let mut out = [ValueId::new(0); N];
    for (i, shape) in shapes.into_iter().enumerate() {
        out[i] = g.input(&format!("x{i}"), DType::F32, shape)?;
    }
    Ok(out)
}

#[test]
fn vectors_in_a_matmul_become_matrices() -> Result<(), Error> {
    let build: Build = |g| {
        let [a, b] = f32s(g, [&[4], &[2, 4, 3]])?;
        g.matmul(a, b)
    };
    assert_eq!(names(build)?, ["reshape", "matmul", "reshape"]);
    let dot: Build = |g| {
        let [a, b] = f32s(g, [&[4], &[4]])?;
        g.matmul(a, b)
    };
    assert_eq!(names(dot)?, ["reshape", "reshape", "matmul", "reshape"]);
    let plain: Build = |g| {
        let [a, b] = f32s(g, [&[2, 1, 5, 4], &[3, 4, 3]])?;
        g.matmul(a, b)
    };
    assert_eq!(names(plain)?, ["matmul"]);
    Ok(())
}

#[test]
fn region_operands_follow_a_vector_matmul_into_its_new_axes() -> Result<(), Error> {
    let build: Build = |g| {
        let [a, b, c] = f32s(g, [&[4], &[2, 4, 3], &[2, 1]])?;
        let mut region = Region::identity();
        region.inputs = 2;
        g.add1(MatMul { epilogue: Some(region) }, &[a, b, c])
    };
    let out = legalise(build)?;
    let matmul = out.nodes().iter().find(|n| n.op.name() == "matmul");
    let extra = matmul.and_then(|n| n.inputs.get(2)).map(|id| out.ty(*id)).transpose()?;
    assert_eq!(extra.map(|t| t.shape.to_vec()), Some(vec![2, 1, 1]));
    Ok(())
}

#[test]
fn general_contractions_keep_batch_axes_apart_and_rows_unmerged() -> Result<(), Error> {
    let attention: Build = |g| {
        let [a, b] = f32s(g, [&[2, 5, 3, 4], &[2, 6, 3, 4]])?;
        let dims = DotGeneral {
            lhs_batch: vec![0, 2],
            rhs_batch: vec![0, 2],
            lhs_contract: vec![3],
            rhs_contract: vec![3],
        };
        g.dot_general(a, b, dims)
    };
    assert_eq!(names(attention)?, ["transpose", "transpose", "matmul"]);
    assert_eq!(
        names(|g| {
            let [a, b] = f32s(g, [&[2, 5, 4], &[4, 6]])?;
            g.einsum("bsk,kn->bsn", &[a, b])
        })?,
        ["matmul"]
    );
    let many_batches: Build = |g| {
        let [a, b] = f32s(g, [&[2, 1, 2, 1, 2, 1, 2, 3], &[2, 1, 2, 1, 2, 1, 2, 3]])?;
        g.einsum("abcdefgk,abcdefgk->abcdefg", &[a, b])
    };
    assert_eq!(names(many_batches)?.iter().filter(|n| **n == "matmul").count(), 1);
    Ok(())
}

#[test]
fn einsum_covers_diagonals_lone_sums_broadcasts_and_many_operands() -> Result<(), Error> {
    let cases: [(&[&str], Build); 8] = [
        (&["view", "reduce_sum"], |g| {
            let [a] = f32s(g, [&[3, 3]])?;
            g.einsum("ii->", &[a])
        }),
        (&["view"], |g| {
            let [a] = f32s(g, [&[3, 3]])?;
            g.einsum("ii->i", &[a])
        }),
        (&["transpose"], |g| {
            let [a] = f32s(g, [&[3, 2]])?;
            g.einsum("ba", &[a])
        }),
        (&["reshape", "mul"], |g| {
            let [a, b] = f32s(g, [&[2], &[3]])?;
            g.einsum("i,j->ij", &[a, b])
        }),
        (&["reduce_sum", "reshape", "mul"], |g| {
            let [a, b] = f32s(g, [&[2, 4], &[3]])?;
            g.einsum("ik,j->ij", &[a, b])
        }),
        // The size-1 k of the left stands for a k of 4.
        (&["reshape", "reduce_sum", "reshape", "mul"], |g| {
            let [a, b] = f32s(g, [&[2, 1], &[4, 3]])?;
            g.einsum("ik,kj->ij", &[a, b])
        }),
        (&["matmul", "matmul"], |g| {
            let [a, b, c] = f32s(g, [&[2, 3], &[3, 4], &[4, 5]])?;
            g.einsum("ij,jk,kl->il", &[a, b, c])
        }),
        (&["mul"], |g| {
            let [a, b] = f32s(g, [&[2, 3], &[2, 3]])?;
            g.einsum("...,...->...", &[a, b])
        }),
    ];
    for (i, (expected, build)) in cases.into_iter().enumerate() {
        assert_eq!(names(build)?, expected, "case {i}");
    }
    Ok(())
}

#[test]
fn einsum_orders_contractions_so_that_no_intermediate_has_too_many_axes() -> Result<(), Error> {
    let build: Build = |g| {
        let [a, b, c] = f32s(g, [&[2, 2, 2, 2, 2], &[2, 2, 2, 2, 2], &[2, 2, 2, 2, 2, 2]])?;
        g.einsum("abcde,fghij,abcfgh->deij", &[a, b, c])
    };
    legalise(build).map(drop)
}

#[test]
fn einsum_of_f16_rounds_once() -> Result<(), Error> {
    let build: Build = |g| {
        let a = g.input("a", DType::F16, [2, 3])?;
        let b = g.input("b", DType::F16, [3, 4])?;
        let c = g.input("c", DType::F16, [4, 5])?;
        g.einsum("ij,jk,kl->il", &[a, b, c])
    };
    let out = legalise(build)?;
    let matmuls = out.nodes().iter().filter(|n| n.op.name() == "matmul");
    for node in matmuls {
        assert_eq!(out.ty(node.outputs[0])?.dtype, DType::F32);
    }
    Ok(())
}

#[test]
fn sums_over_nothing_are_still_computed() -> Result<(), Error> {
    let build: Build = |g| {
        let [a, b] = f32s(g, [&[2, 0], &[0, 3]])?;
        g.einsum("ik,kj->ij", &[a, b])
    };
    assert_eq!(names(build)?, ["matmul"]);
    let vector: Build = |g| {
        let [a, b] = f32s(g, [&[0], &[0, 3]])?;
        g.matmul(a, b)
    };
    assert_eq!(names(vector)?, ["view", "matmul", "reshape"]);
    Ok(())
}

#[test]
fn norms_become_kernels_and_weight_only_steps() -> Result<(), Error> {
    let instance: Build = |g| {
        let [x, a, b] = f32s(g, [&[2, 3, 4, 5], &[3], &[3]])?;
        g.instance_norm(x, a, b, 1e-5)
    };
    assert_eq!(names(instance)?, ["group_norm"]);
    let channels: Build = |g| {
        let [x, a, b] = f32s(g, [&[2, 3, 4, 5], &[3], &[3]])?;
        g.layer_norm2d(x, a, b, 1e-5)
    };
    assert_eq!(names(channels)?, ["transpose", "layer_norm", "transpose"]);
    let adaptive: Build = |g| {
        let [x, a, b] = f32s(g, [&[2, 4, 3], &[2, 1, 3], &[3]])?;
        g.ada_layer_norm(x, a, b, 1e-5)
    };
    assert_eq!(names(adaptive)?, ["layer_norm", "add", "mul", "add"]);
    let batch: Build = |g| {
        let x = g.input("x", DType::BF16, [2, 3, 4])?;
        let [a, b, m, v] = ["a", "b", "m", "v"].map(|n| g.param(n, DType::BF16, [3]));
        g.batch_norm(x, a?, b?, [m?, v?], 1e-5)
    };
    let out = legalise(batch)?;
    let at_run = crate::at_load(&out).iter().filter(|once| !**once).count();
    assert_eq!(at_run, 5, "cast, subtract, multiply, add, cast");
    Ok(())
}

#[test]
fn f16_is_squared_in_f32_for_its_length() -> Result<(), Error> {
    let build: Build = |g| {
        let x = g.input("x", DType::F16, [2, 3])?;
        g.l2_norm(x, 1, 1e-12)
    };
    assert_eq!(names(build)?, ["cast", "reduce_l2", "max", "div", "cast"]);
    Ok(())
}

#[test]
fn windows_that_are_all_of_a_plane_or_large_parts_of_it_become_reductions() -> Result<(), Error> {
    let whole: Build = |g| {
        let [x] = f32s(g, [&[2, 3, 7, 7]])?;
        g.avg_pool(x, &[7, 7], Window::unit(2), false, false)
    };
    assert_eq!(names(whole)?, ["reduce_mean"]);
    let padded: Build = |g| {
        let [x] = f32s(g, [&[2, 3, 7, 7]])?;
        g.max_pool(x, &[7, 7], Window::same(2, 1, 1), false)
    };
    assert_eq!(names(padded)?, ["pool"]);
    let parts: Build = |g| {
        let [x] = f32s(g, [&[2, 3, 64, 96]])?;
        g.adaptive_pool(PoolKind::Max, x, &[2, 3])
    };
    assert_eq!(names(parts)?, ["reshape", "reduce_max"]);
    for build in [
        (|g| {
            let [x] = f32s(g, [&[2, 3, 64, 96]])?;
            g.adaptive_pool(PoolKind::Max, x, &[32, 48])
        }) as Build,
        |g| {
            let [x] = f32s(g, [&[2, 3, 65, 96]])?;
            g.adaptive_pool(PoolKind::Max, x, &[2, 3])
        },
    ] {
        assert_eq!(names(build)?, ["adaptive_pool"]);
    }
    Ok(())
}

#[test]
fn global_pools_become_reductions() -> Result<(), Error> {
    let cases: [(&[&str], Build); 3] = [
        (&["reduce_mean"], |g| {
            let [x] = f32s(g, [&[2, 3, 4, 5]])?;
            g.global_pool(PoolKind::Average, x)
        }),
        (&["reduce_l2"], |g| {
            let [x] = f32s(g, [&[2, 3, 4, 5]])?;
            g.global_pool(PoolKind::Lp, x)
        }),
        (&["abs", "pow", "reduce_sum", "pow"], |g| {
            let [x] = f32s(g, [&[2, 3, 4, 5]])?;
            g.add1(olivine_ir::op::GlobalPool { kind: PoolKind::Lp, p: 3 }, &[x])
        }),
    ];
    for (expected, build) in cases {
        assert_eq!(names(build)?, expected);
    }
    Ok(())
}

/// The elements of x, an i64 count, after a movement: legalised, made views, and read off by folding.
fn moved(
    shape: &[usize],
    build: fn(&mut Graph, ValueId) -> Result<ValueId, Error>,
) -> Result<Vec<f64>, Error> {
    let mut g = Graph::new("g");
    let count = Shape::new(shape)?.numel() as i64;
    let x = g.constant(Tensor::new(shape, (0..count).collect())?);
    let y = build(&mut g, x)?;
    g.output("y", y)?;
    let out = Legalise.run(&g, &Options::default())?;
    let out = Fold.run(&out, &Options { evaluator: Some(&Concatenate), ..Options::default() })?;
    let value = out.output_named("y")?;
    assert_eq!(out.ty(value)?, g.ty(y)?);
    Ok(out.as_const(value).map(Tensor::to_f64).unwrap_or_default())
}

/// Joins vectors, which is all that movements need of a backend.
struct Concatenate;

impl Evaluate for Concatenate {
    fn evaluate(&self, op: &Op, operands: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let Op::Concat(Concat { axis: 0 }) = op else { return Err("only concat".into()) };
        let types: Vec<_> = operands.iter().map(Tensor::ty).collect();
        let mut all = Vec::new();
        for t in operands {
            all.extend_from_slice(t.as_slice::<i64>().map_err(|e| e.to_string())?);
        }
        let shape = op.infer(&types)?[0].shape;
        Ok(vec![Tensor::new(shape, all).map_err(|e| e.to_string())?])
    }
}

#[test]
fn movements_put_every_element_where_it_belongs() -> Result<(), Error> {
    assert_eq!(moved(&[2], |g, x| g.tile(x, &[3]))?, [0., 1., 0., 1., 0., 1.]);
    assert_eq!(moved(&[1, 2], |g, x| g.tile(x, &[2, 2]))?, [0., 1., 0., 1., 0., 1., 0., 1.]);
    assert_eq!(moved(&[2], |g, x| g.repeat(x, 0, 2))?, [0., 0., 1., 1.]);
    assert_eq!(moved(&[5], |g, x| g.roll(x, 0, 2))?, [3., 4., 0., 1., 2.]);
    assert_eq!(moved(&[5], |g, x| g.roll(x, 0, -1))?, [1., 2., 3., 4., 0.]);
    assert_eq!(moved(&[], |g, x| g.fill(x, [3]))?, [0., 0., 0.]);
    assert_eq!(moved(&[], |g, x| g.stack(&[x, x], 0))?, [0., 0.]);
    assert_eq!(moved(&[], |g, x| g.tile(x, &[]))?, [0.]);
    assert_eq!(moved(&[2, 1], |g, x| g.tile(x, &[1, 0]))?, []);
    // ONNX: channels 0..8 of one pixel; DCR puts the depth innermost, CRD outermost.
    let dcr = [0., 2., 4., 6., 1., 3., 5., 7.];
    assert_eq!(moved(&[1, 8, 1, 1], |g, x| g.depth_to_space(x, 2, DepthMode::Dcr))?, dcr);
    let crd = [0., 1., 2., 3., 4., 5., 6., 7.];
    assert_eq!(moved(&[1, 8, 1, 1], |g, x| g.depth_to_space(x, 2, DepthMode::Crd))?, crd);
    let blocks = [0., 4., 1., 5., 2., 6., 3., 7.];
    assert_eq!(moved(&[1, 2, 2, 2], |g, x| g.space_to_depth(x, 2))?, blocks);
    Ok(())
}

#[test]
fn repeats_of_rank_8_give_what_lower_ranks_give() -> Result<(), Error> {
    let low = moved(&[2, 3, 2], |g, x| g.tile(x, &[2, 3, 2]))?;
    assert_eq!(low.len(), 144);
    let high = moved(&[1, 2, 1, 1, 3, 1, 2, 1], |g, x| g.tile(x, &[1, 2, 1, 1, 3, 1, 2, 1]))?;
    assert_eq!(high, low);
    let low = moved(&[2, 3, 2], |g, x| g.repeat(x, 1, 2))?;
    assert_eq!(moved(&[1, 1, 2, 1, 1, 3, 2, 1], |g, x| g.repeat(x, 5, 2))?, low);
    Ok(())
}
