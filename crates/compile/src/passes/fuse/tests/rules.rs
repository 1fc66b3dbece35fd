//! Each pass on the smallest graphs that show what it takes and what it leaves.

use olivine_ir::op::{Binary, MaskKind, ReduceKind, Window};
use olivine_ir::{DType, Error, Graph, Node, Op, Tensor, ValueId};

use super::interpreter::difference;
use super::{Outcome, fuse, kernels};

const F32: DType = DType::F32;

fn same(g: &Graph, fused: &Graph) {
    let d = difference(g, fused);
    assert!(d < 1e-7, "differ by {d}\n{g}\n{fused}");
}

/// q, k, v of the given dims, and `body` between the matmuls.
fn attention_graph(
    dims: &[usize],
    body: impl FnOnce(&mut Graph, ValueId) -> Result<ValueId, Error>,
) -> Result<Graph, Error> {
    let mut g = Graph::new("attention");
    let [q, k, v] = [g.input("q", F32, dims)?, g.input("k", F32, dims)?, g.input("v", F32, dims)?];
    let kt = g.swap_last_axes(k)?;
    let scores = g.matmul(q, kt)?;
    let weights = body(&mut g, scores)?;
    let y = g.matmul(weights, v)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn attention_is_found_in_ranks_two_to_four() -> Outcome {
    for dims in [&[5, 4][..], &[3, 5, 4], &[2, 3, 5, 4]] {
        let g = attention_graph(dims, |g, s| {
            let s = g.binary_scalar(Binary::Mul, s, 0.5)?;
            g.softmax(s, -1)
        })?;
        let fused = fuse(&g)?;
        assert_eq!(kernels(&fused), ["attention"], "{fused}");
        same(&g, &fused);
    }
    Ok(())
}

#[test]
fn masks_softcaps_and_casts_of_scores_are_taken_in() -> Outcome {
    let dims = [2, 3, 5, 4];
    let added = attention_graph(&[6, 5, 4], |g, s| {
        let m = g.input("m", F32, [6, 1, 5])?;
        let s = g.add(m, s)?;
        g.softmax(s, -1)
    })?;
    let dropped = attention_graph(&dims, |g, s| {
        let m = g.input("m", DType::Bool, [5, 5])?;
        let low = g.constant(Tensor::scalar(f32::NEG_INFINITY));
        let s = g.select(m, low, s)?;
        g.softmax(s, -1)
    })?;
    let capped = attention_graph(&dims, |g, s| {
        let s = g.binary_scalar(Binary::Mul, s, 0.7)?;
        let s = g.binary_scalar(Binary::Div, s, 2.0)?;
        let s = g.tanh(s)?;
        let s = g.binary_scalar(Binary::Mul, s, 2.0)?;
        g.softmax(s, -1)
    })?;
    for g in [&added, &capped] {
        let fused = fuse(g)?;
        assert_eq!(kernels(&fused), ["attention"], "{fused}");
        same(g, &fused);
    }
    let fused = fuse(&dropped)?;
    assert_eq!(kernels(&fused), ["not", "attention"], "{fused}");
    Ok(())
}

#[test]
fn a_scale_on_q_and_k_moves_into_the_attention() -> Outcome {
    let mut g = Graph::new("scaled");
    let [q, k, v] = [
        g.input("q", F32, [1, 2, 5, 4])?,
        g.input("k", F32, [1, 2, 5, 4])?,
        g.input("v", F32, [1, 2, 5, 4])?,
    ];
    let q = g.binary_scalar(Binary::Mul, q, 0.7)?;
    let kt = g.transpose(k, &[0, 1, 3, 2])?;
    let kt = g.binary_scalar(Binary::Div, kt, 2.0)?;
    let s = g.matmul(q, kt)?;
    let w = g.softmax(s, -1)?;
    let y = g.matmul(w, v)?;
    g.output("y", y)?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["attention"]);
    same(&g, &fused);
    Ok(())
}

#[test]
fn attention_whose_weights_or_scores_are_read_elsewhere_is_left() -> Outcome {
    for shared in 0..2 {
        let g = attention_graph(&[2, 3, 5, 4], |g, s| {
            let w = g.softmax(s, -1)?;
            g.output("shared", if shared == 0 { s } else { w })?;
            Ok(w)
        })?;
        assert!(!kernels(&fuse(&g)?).contains(&"attention"));
    }
    Ok(())
}

#[test]
fn a_mask_value_that_is_not_low_or_a_scale_after_the_mask_is_left() -> Outcome {
    let high = attention_graph(&[2, 3, 5, 4], |g, s| {
        let m = g.input("m", DType::Bool, [5, 5])?;
        let zero = g.constant(Tensor::scalar(0.0f32));
        let s = g.select(m, s, zero)?;
        g.softmax(s, -1)
    })?;
    let late = attention_graph(&[2, 3, 5, 4], |g, s| {
        let m = g.input("m", F32, [5, 5])?;
        let s = g.add(s, m)?;
        let s = g.binary_scalar(Binary::Mul, s, 0.5)?;
        g.softmax(s, -1)
    })?;
    for g in [high, late] {
        let fused = fuse(&g)?;
        assert!(!kernels(&fused).contains(&"attention"));
        same(&g, &fused);
    }
    Ok(())
}

#[test]
fn a_mask_that_enlarges_the_scores_is_left() -> Outcome {
    let mut g = Graph::new("enlarged");
    let q = g.input("q", F32, [1, 2, 5, 4])?;
    let v = g.input("v", F32, [3, 2, 5, 4])?;
    let kt = g.swap_last_axes(q)?;
    let s = g.matmul(q, kt)?;
    let m = g.input("m", F32, [3, 1, 5, 5])?;
    let s = g.add(s, m)?;
    let w = g.softmax(s, -1)?;
    let y = g.matmul(w, v)?;
    g.output("y", y)?;
    assert!(!kernels(&fuse(&g)?).contains(&"attention"));
    Ok(())
}

#[test]
fn keys_that_come_transposed_or_with_one_head_are_taken() -> Outcome {
    let mut g = Graph::new("keys");
    let q = g.input("q", F32, [2, 4, 5, 3])?;
    let kt = g.input("kt", F32, [2, 1, 3, 6])?;
    let v = g.input("v", F32, [2, 1, 6, 7])?;
    let s = g.matmul(q, kt)?;
    let w = g.softmax(s, -1)?;
    let y = g.matmul(w, v)?;
    g.output("y", y)?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["attention"]);
    same(&g, &fused);
    Ok(())
}

fn two_matmuls(activate: bool, bias: [bool; 2]) -> Result<Graph, Error> {
    let mut g = Graph::new("two");
    let x = g.input("x", F32, [2, 3, 4])?;
    for (i, width) in [4usize, 6].into_iter().enumerate() {
        let w = g.param(&format!("w{i}"), F32, [4, width])?;
        let mut y = g.matmul(x, w)?;
        if bias[i] {
            let b = g.param(&format!("b{i}"), F32, [width])?;
            y = g.add(b, y)?;
        }
        if activate {
            y = g.relu(y)?;
        }
        let y = g.reshape(y, &[6, width as i64])?;
        g.output(&format!("y{i}"), y)?;
    }
    Ok(g)
}

#[test]
fn matmuls_of_one_operand_join_with_or_without_biases() -> Outcome {
    for bias in [[false, false], [true, true], [true, false]] {
        let g = two_matmuls(false, bias)?;
        let fused = fuse(&g)?;
        assert_eq!(kernels(&fused), ["matmul"], "{fused}");
        same(&g, &fused);
    }
    Ok(())
}

#[test]
fn matmuls_that_feed_activations_or_have_run_time_weights_stay_apart() -> Outcome {
    assert_eq!(kernels(&fuse(&two_matmuls(true, [true, true])?)?), ["matmul", "matmul"]);
    let mut g = Graph::new("run time");
    let x = g.input("x", F32, [3, 4])?;
    for i in 0..2 {
        let w = g.input(&format!("w{i}"), F32, [4, 4])?;
        let y = g.matmul(x, w)?;
        let y = g.reshape(y, &[-1])?;
        g.output(&format!("y{i}"), y)?;
    }
    assert_eq!(kernels(&fuse(&g)?), ["matmul", "matmul"]);
    Ok(())
}

#[test]
fn a_matmul_absorbs_bias_activation_residual_and_cast() -> Outcome {
    let mut g = Graph::new("epilogue");
    let x = g.input("x", F32, [3, 4])?;
    let r = g.input("r", F32, [3, 4])?;
    let w = g.param("w", F32, [4, 4])?;
    let b = g.param("b", F32, [4])?;
    let y = g.matmul(x, w)?;
    let y = g.add(y, b)?;
    let y = g.gelu(y)?;
    let y = g.mul(y, y)?;
    let y = g.add(r, y)?;
    let y = g.cast(y, DType::F16)?;
    g.output("y", y)?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["matmul"]);
    same(&g, &fused);
    Ok(())
}

#[test]
fn a_matmul_stops_at_a_reader_that_enlarges_it_or_when_others_read_it() -> Outcome {
    let mut g = Graph::new("stops");
    let x = g.input("x", F32, [3, 4])?;
    let w = g.param("w", F32, [4, 4])?;
    let big = g.input("big", F32, [2, 3, 4])?;
    let y = g.matmul(x, w)?;
    let y = g.add(y, big)?;
    g.output("y", y)?;
    assert_eq!(kernels(&fuse(&g)?), ["matmul", "add"]);

    let mut g = Graph::new("shared");
    let x = g.input("x", F32, [3, 4])?;
    let w = g.param("w", F32, [4, 4])?;
    let y = g.matmul(x, w)?;
    let z = g.relu(y)?;
    g.output("y", y)?;
    g.output("z", z)?;
    assert_eq!(kernels(&fuse(&g)?), ["matmul", "relu"]);
    Ok(())
}

#[test]
fn a_convolution_absorbs_its_batch_norm_and_activation() -> Outcome {
    let mut g = Graph::new("conv");
    let x = g.input("x", F32, [1, 2, 6, 6])?;
    let w = g.param("w", F32, [3, 2, 3, 3])?;
    let (scale, shift) = (g.param("s", F32, [3, 1, 1])?, g.param("t", F32, [3, 1, 1])?);
    let conv = olivine_ir::op::Conv { window: Window::same(2, 1, 1), groups: 1, bias: false, epilogue: None };
    let y = g.add1(conv, &[x, w])?;
    let y = g.mul(y, scale)?;
    let y = g.add(y, shift)?;
    let y = g.relu(y)?;
    g.output("y", y)?;
    assert_eq!(kernels(&fuse(&g)?), ["conv"]);
    Ok(())
}

#[test]
fn a_sum_of_two_matmuls_is_the_epilogue_of_one_of_them() -> Outcome {
    let mut g = Graph::new("sum");
    let (x, z) = (g.input("x", F32, [3, 4])?, g.input("z", F32, [3, 4])?);
    let (w, u) = (g.param("w", F32, [4, 4])?, g.param("u", F32, [4, 4])?);
    let (a, b) = (g.matmul(x, w)?, g.matmul(z, u)?);
    let y = g.add(a, b)?;
    g.output("y", y)?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["matmul", "matmul"]);
    same(&g, &fused);
    Ok(())
}

#[test]
fn a_gate_and_what_it_lets_through_are_one_matmul() -> Outcome {
    let gated = |width: usize, read_twice: bool| -> Result<Graph, Error> {
        let mut g = Graph::new("gate");
        let x = g.input("x", F32, [3, 4])?;
        let (w, u) = (g.param("w", F32, [4, 5])?, g.param("u", F32, [4, width])?);
        let (a, b) = (g.matmul(x, w)?, g.matmul(x, u)?);
        let gate = g.silu(a)?;
        let y = g.mul(gate, b)?;
        g.output("y", y)?;
        if read_twice {
            g.output("gate", gate)?;
        }
        Ok(g)
    };
    let g = gated(5, false)?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["matmul", "fused"]);
    assert!(difference(&g, &fused) < 1e-6, "differ by {}", difference(&g, &fused));
    // Weights of two shapes, and a gate that is read elsewhere, stay apart.
    for g in [gated(1, false)?, gated(5, true)?] {
        assert_eq!(fuse(&g)?.nodes().iter().filter(|n| n.op.name() == "matmul").count(), 2);
    }
    Ok(())
}

#[test]
fn elementwise_ops_join_with_several_results_and_numbers_inside() -> Outcome {
    let mut g = Graph::new("region");
    let x = g.input("x", F32, [3, 4])?;
    let row = g.input("row", F32, [4])?;
    let a = g.add(x, row)?;
    let b = g.binary_scalar(Binary::Mul, a, 0.1)?;
    let c = g.tanh(b)?;
    let d = g.sub(a, c)?;
    g.output("b", b)?;
    g.output("d", d)?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["fused"]);
    assert_eq!(fused.nodes()[0].inputs.len(), 2, "the number is inside");
    same(&g, &fused);
    Ok(())
}

#[test]
fn a_region_never_waits_for_itself() -> Outcome {
    // a feeds both the reduction and the sum that reads it: joining a and the sum would close a circle.
    let mut g = Graph::new("circle");
    let x = g.input("x", F32, [3, 4])?;
    let a = g.tanh(x)?;
    let r = g.reduce(ReduceKind::Sum, a, &[-1], true)?;
    let y = g.add(a, r)?;
    let y = g.tanh(y)?;
    g.output("y", y)?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["tanh", "reduce_sum", "fused"]);
    same(&g, &fused);
    Ok(())
}

#[test]
fn a_small_value_read_elsewhere_or_costly_stays_outside_a_larger_region() -> Outcome {
    let mut g = Graph::new("small");
    let x = g.input("x", F32, [3, 4])?;
    let row = g.input("row", F32, [4])?;
    let cheap = g.binary_scalar(Binary::Add, row, 1.0)?;
    let costly = g.tanh(row)?;
    let y = g.mul(x, cheap)?;
    let y = g.add(y, costly)?;
    g.output("y", y)?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["tanh", "fused"], "{fused}");
    same(&g, &fused);
    Ok(())
}

#[test]
fn load_time_and_run_time_ops_do_not_mix() -> Outcome {
    let mut g = Graph::new("times");
    let x = g.input("x", F32, [4])?;
    let w = g.param("w", F32, [4])?;
    let w = g.exp(w)?;
    let w = g.tanh(w)?;
    let y = g.mul(x, w)?;
    let y = g.tanh(y)?;
    g.output("y", y)?;
    let fused = fuse(&g)?;
    assert_eq!(fused.nodes().len(), 2);
    assert_eq!(kernels(&fused), ["fused"]);
    same(&g, &fused);
    Ok(())
}

#[test]
fn long_chains_are_cut_to_the_limits() -> Outcome {
    let mut g = Graph::new("long");
    let mut y = g.input("x", F32, [4])?;
    for i in 0..200 {
        let other = g.input(&format!("x{i}"), F32, [4])?;
        y = g.add(y, other)?;
        y = g.tanh(y)?;
    }
    g.output("y", y)?;
    let fused = fuse(&g)?;
    assert!(fused.nodes().iter().all(|n| n.inputs.len() <= 16));
    assert!(fused.nodes().len() < 40);
    same(&g, &fused);
    Ok(())
}

#[test]
fn a_constant_that_gives_the_rank_stays_an_operand() -> Outcome {
    let mut g = Graph::new("rank");
    let x = g.input("x", F32, [4])?;
    let one = g.constant(Tensor::new([1, 1], vec![1.0f32])?);
    let y = g.add(x, one)?;
    let y = g.tanh(y)?;
    g.output("y", y)?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["fused"]);
    same(&g, &fused);
    Ok(())
}

fn residual_norm(shared: bool) -> Result<Graph, Error> {
    let mut g = Graph::new("norm");
    let row = g.input("row", F32, [4])?;
    let x = g.input("x", F32, [3, 4])?;
    let gamma = g.param("gamma", F32, [4])?;
    let gamma = g.exp(gamma)?;
    let sum = g.sub(row, x)?;
    let early = g.reduce(ReduceKind::Sum, sum, &[-1], true)?;
    let n = g.layer_norm(sum, gamma, None, 1e-5)?;
    g.output("n", n)?;
    if shared {
        g.output("early", early)?;
    }
    Ok(g)
}

#[test]
fn a_norm_makes_its_own_input_and_gives_it_out_when_others_read_it() -> Outcome {
    let g = residual_norm(false)?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["layer_norm"]);
    same(&g, &fused);

    let g = residual_norm(true)?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["layer_norm", "reduce_sum"]);
    let emits = |n: &Node| matches!(&n.op, Op::LayerNorm(norm) if norm.emit_input);
    assert!(fused.nodes().iter().any(emits));
    same(&g, &fused);
    Ok(())
}

#[test]
fn a_norm_of_a_value_broadcast_from_small_operands_is_left() -> Outcome {
    let mut g = Graph::new("outer");
    let (row, column) = (g.input("row", F32, [4])?, g.input("column", F32, [3, 1])?);
    let gamma = g.param("gamma", F32, [4])?;
    let sum = g.add(row, column)?;
    let n = g.layer_norm(sum, gamma, None, 1e-5)?;
    g.output("n", n)?;
    assert_eq!(kernels(&fuse(&g)?), ["add", "layer_norm"]);
    Ok(())
}

#[test]
fn the_kinds_of_masks_are_told_apart() -> Outcome {
    let g = attention_graph(&[2, 3, 5, 4], |g, s| {
        let m = g.input("m", DType::Bool, [5, 5])?;
        let low = g.constant(Tensor::scalar(-1e9f32));
        let s = g.select(m, s, low)?;
        g.softmax(s, -1)
    })?;
    let fused = fuse(&g)?;
    let kept = |n: &Node| matches!(&n.op, Op::Attention(a) if a.mask == MaskKind::Keep);
    assert!(fused.nodes().iter().any(kept), "{fused}");
    same(&g, &fused);
    Ok(())
}

#[test]
fn a_causal_mask_and_a_padding_mask_become_one() -> Outcome {
    let g = attention_graph(&[2, 3, 5, 4], |g, s| {
        let causal = g.input("causal", DType::Bool, [1, 1, 5, 5])?;
        let padding = g.input("padding", F32, [2, 1, 1, 5])?;
        let alibi = g.input("alibi", F32, [3, 1, 5])?;
        let low = g.constant(Tensor::scalar(-1e9f32));
        let s = g.add(s, alibi)?;
        let s = g.select(causal, s, low)?;
        let s = g.add(s, padding)?;
        g.softmax(s, -1)
    })?;
    let fused = fuse(&g)?;
    assert_eq!(kernels(&fused), ["fused", "attention"], "{fused}");
    same(&g, &fused);
    Ok(())
}

#[test]
fn a_guard_against_nan_weights_is_taken_in() -> Outcome {
    let g = attention_graph(&[2, 3, 5, 4], |g, s| {
        let w = g.softmax(s, -1)?;
        let nan = g.isnan(w)?;
        let zero = g.constant(Tensor::scalar(0.0f32));
        g.select(nan, zero, w)
    })?;
    assert_eq!(kernels(&fuse(&g)?), ["attention"]);
    Ok(())
}

#[test]
fn attention_of_nothing_stays_as_it_is_written() -> Outcome {
    for dims in [[2, 3, 0, 4], [0, 3, 5, 4]] {
        let g = attention_graph(&dims, |g, s| g.softmax(s, -1))?;
        fuse(&g)?;
    }
    Ok(())
}
