//! What transformers' files do, on constants: results are known while a model is imported.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is a failed test"
)]

#[allow(dead_code, reason = "tests share it, none uses all of it")]
mod wire;

use olivine_cpu::CpuEvaluator;
use olivine_ir::{DType, Shape, TensorType};
use olivine_onnx::{Bindings, Bound, Model, Outcome};
use wire::{
    BOOL, F32, Graph, Message, float_attribute, floats, graph_attribute, int_attribute, node,
    string_attribute, tensor, value,
};

const U8: i64 = 2;

/// The result `y` of one node of constants, in an opset.
fn result(opset: i64, node: Message, constants: &[Message]) -> Vec<f64> {
    let graph = Graph {
        nodes: vec![node],
        initializers: constants.to_vec(),
        outputs: vec![value("y", F32, &["a"])],
        ..Graph::default()
    };
    let onnx = Message::new().int(2, opset);
    let microsoft = Message::new().text(1, "com.microsoft").int(2, 1);
    let preview = Message::new().text(1, "ai.onnx.preview").int(2, 1);
    let opsets = [onnx, microsoft, preview];
    let model = Message::new().int(1, 10).all(8, &opsets).inside(7, &graph.message());
    let model = Model::from_bytes(model.0).unwrap();
    let Outcome::Whole(whole) = model.specialise(&Bindings::default(), &CpuEvaluator).unwrap() else {
        panic!("constants leave nothing open");
    };
    let y = whole.graph.output_named("y").unwrap();
    whole.graph.as_const(y).expect("a small result of constants is one").to_f64()
}

#[track_caller]
fn close(got: &[f64], want: &[f64]) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5;
    assert!(got.len() == want.len() && got.iter().zip(want).all(near), "got {got:?}, want {want:?}");
}

#[test]
fn an_if_may_name_its_branches_results_like_its_own() {
    let branch = |op: &str| {
        let nodes = vec![node(op, &["x"], &["y"])];
        Graph { nodes, outputs: vec![value("y", F32, &["2"])], ..Graph::default() }.message()
    };
    let choose = node("If", &["c"], &["y"])
        .inside(5, &graph_attribute("then_branch", &branch("Abs")))
        .inside(5, &graph_attribute("else_branch", &branch("Neg")));
    let graph = Graph {
        nodes: vec![choose],
        inputs: vec![value("x", F32, &["2"]), value("c", BOOL, &[])],
        outputs: vec![value("y", F32, &["2"])],
        ..Graph::default()
    };
    let model = Model::from_bytes(graph.model()).unwrap();
    let bound = |dtype, dims: &[usize]| Bound::Tensor {
        ty: TensorType::new(dtype, Shape::new(dims).unwrap()),
        value: None,
    };
    let inputs = vec![("x".into(), bound(DType::F32, &[2])), ("c".into(), bound(DType::Bool, &[]))];
    let outcome = model.specialise(&Bindings { inputs, ..Bindings::default() }, &CpuEvaluator);
    assert!(outcome.is_ok(), "{outcome:?}");
}

#[test]
fn softmax_spans_all_axes_from_its_own_on_up_to_opset_12() {
    let x = [floats("x", &[1, 2, 2], &[0.0; 4])];
    let softmax = || node("Softmax", &["x"], &["y"]);
    close(&result(12, softmax(), &x), &[0.25; 4]);
    close(&result(13, softmax(), &x), &[0.5; 4]);
}

#[test]
fn a_query_without_keys_gets_zeros() {
    let (q, k) = (floats("q", &[1, 1, 2, 1], &[1.0, 1.0]), floats("k", &[1, 1, 2, 1], &[1.0, 1.0]));
    let (v, mask) = (floats("v", &[1, 1, 2, 1], &[2.0, 4.0]), tensor("m", BOOL, &[2, 2], &[0, 0, 1, 1]));
    let attention = node("Attention", &["q", "k", "v", "m"], &["y"]);
    close(&result(23, attention, &[q, k, v, mask]), &[0.0, 3.0]);
}

#[test]
fn causal_queries_stand_after_the_keys_of_the_past() {
    let (q, k) = (floats("q", &[1, 1, 2, 1], &[0.0, 0.0]), floats("k", &[1, 1, 2, 1], &[0.0, 0.0]));
    let (v, past) = (floats("v", &[1, 1, 2, 1], &[3.0, 5.0]), floats("p", &[1, 1, 1, 1], &[1.0]));
    let attention =
        node("Attention", &["q", "k", "v", "", "p", "p"], &["y"]).inside(5, &int_attribute("is_causal", 1));
    close(&result(23, attention, &[q, k, v, past]), &[2.0, 3.0]);
}

#[test]
fn a_lone_query_sees_all_keys_of_the_cache_that_it_is_given() {
    let y = |queries: i64| {
        let mut constants = vec![floats("q", &[1, queries, 1], &vec![0.0; queries as usize])];
        constants.extend([floats("k", &[1, 1, 2, 1], &[0.0; 2]), floats("v", &[1, 1, 2, 1], &[2.0, 4.0])]);
        let attention = node("com.microsoft:MultiHeadAttention", &["q", "k", "v"], &["y"])
            .inside(5, &int_attribute("num_heads", 1))
            .inside(5, &int_attribute("unidirectional", 1));
        result(21, attention, &constants)
    };
    close(&y(1), &[3.0]);
    close(&y(2), &[2.0, 3.0]);
}

/// Two queries, keys 0.5, −1 and 2 of which the first may be the past, all of one head of one element.
#[test]
fn every_score_that_attention_hands_out_is_that_of_its_step() {
    let (q, k, v) = ([3.0, -2.0], [0.5, -1.0, 2.0], [1.0, 2.0, 4.0]);
    let column = |name: &str, x: &[f32]| floats(name, &[1, 1, x.len() as i64, 1], x);
    let float_mask = [0.25f32, 1.0, -0.5, 0.75, -1.0, 0.5];
    let bool_mask = [1u8, 1, 0, 1, 0, 1];
    for case in 0..48u32 {
        let bit = |i: u32| case >> i & 1 == 1;
        let (opset, softcap, causal, past) = (if bit(0) { 24 } else { 23 }, bit(1), bit(2), bit(3));
        let mask = case >> 4;
        // The past is the first key: with it a causal query stands one further.
        let keep = |i: usize, j: usize| {
            let near = !causal || j <= i + usize::from(past);
            near && (mask != 2 || bool_mask[3 * i + j] != 0)
        };
        let mut steps = [const { Vec::new() }; 4];
        for i in 0..2 {
            let product: Vec<f64> = k.iter().map(|k| f64::from(q[i] * k)).collect();
            let capped: Vec<f64> =
                product.iter().map(|s| if softcap { 2.0 * (s / 2.0).tanh() } else { *s }).collect();
            let biased =
                |j: usize| capped[j] + if mask == 1 { f64::from(float_mask[3 * i + j]) } else { 0.0 };
            let masked: Vec<f64> =
                (0..3).map(|j| if keep(i, j) { biased(j) } else { f64::NEG_INFINITY }).collect();
            let sum: f64 = masked.iter().map(|s| s.exp()).sum();
            steps[3].extend(masked.iter().map(|s| s.exp() / sum));
            steps[0].extend(product);
            steps[1].extend(capped);
            steps[2].extend(masked);
        }
        let before = usize::from(past);
        let mut constants = vec![column("q", &q), column("k", &k[before..]), column("v", &v[before..])];
        constants.extend([column("pk", &k[..1]), column("pv", &v[..1])]);
        let raw: Vec<u8> = float_mask.iter().flat_map(|v| v.to_le_bytes()).collect();
        constants.push(if mask == 1 {
            tensor("m", F32, &[2, 3], &raw)
        } else {
            tensor("m", BOOL, &[2, 3], &bool_mask)
        });
        let mask_name = if mask == 0 { "" } else { "m" };
        let inputs =
            if past { vec!["q", "k", "v", mask_name, "pk", "pv"] } else { vec!["q", "k", "v", mask_name] };
        for (mode, want) in steps.iter().enumerate() {
            let attention = node("Attention", &inputs, &["", "", "", "y"])
                .inside(5, &int_attribute("qk_matmul_output_mode", mode as i64))
                .inside(5, &int_attribute("is_causal", i64::from(causal)))
                .inside(5, &float_attribute("softcap", if softcap { 2.0 } else { 0.0 }));
            let got = result(opset, attention, &constants);
            let near = |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-5;
            assert!(got.iter().zip(want).all(near), "case {case}, mode {mode}: got {got:?}, want {want:?}");
        }
    }
}

#[test]
fn the_scores_and_weights_of_flexible_attention_go_through_its_graphs() {
    let body = |op: &str, other: &str| Graph {
        nodes: vec![node(op, &["s", other], &["t"])],
        inputs: vec![value("s", F32, &["1", "1", "2", "2"])],
        outputs: vec![value("t", F32, &["1", "1", "2", "2"])],
        ..Graph::default()
    };
    let (q, k) = (floats("q", &[1, 1, 2, 1], &[0.0, 0.0]), floats("k", &[1, 1, 2, 1], &[1.0, 1.0]));
    let (v, low) = (floats("v", &[1, 1, 2, 1], &[2.0, 4.0]), f32::NEG_INFINITY);
    let (bias, twice) = (floats("bias", &[2, 2], &[0.0, low, 0.0, 0.0]), floats("twice", &[1], &[2.0]));
    let constants = [q, k, v, bias, twice];
    let flex = || node("ai.onnx.preview:FlexAttention", &["q", "k", "v"], &["y"]);
    let scores = graph_attribute("score_mod", &body("Add", "bias").message());
    let weights = graph_attribute("prob_mod", &body("Mul", "twice").message());
    close(&result(26, flex(), &constants), &[3.0, 3.0]);
    close(&result(26, flex().inside(5, &scores), &constants), &[2.0, 3.0]);
    close(&result(26, flex().inside(5, &scores).inside(5, &weights), &constants), &[4.0, 6.0]);
}

/// Two steps of two query heads that share a head of keys of two elements and values of one.
#[test]
fn linear_attention_follows_its_rule_with_decays_of_heads_and_of_elements() {
    let (q, k, v) = ([1.0, 0.5, -1.0, 2.0, 0.25, 1.0, 1.5, -0.5], [0.6, 0.8, 1.0, 0.0], [2.0, -1.0]);
    let (past, beta) = ([0.5, -0.25], [0.5, 0.75]);
    for (rule, gated, delta) in [
        ("linear", false, false),
        ("gated", true, false),
        ("delta", false, true),
        ("gated_delta", true, true),
    ] {
        for decay in [&[-0.5, -0.1] as &[f64], &[-0.5, -0.2, -0.1, -0.3]] {
            let (mut state, mut want) = (past, Vec::new());
            for t in 0..2 {
                let g = |d: usize| if decay.len() == 2 { decay[t] } else { decay[2 * t + d] };
                if gated {
                    state = std::array::from_fn(|d| state[d] * f64::exp(g(d)));
                }
                let held: f64 = (0..2).map(|d| state[d] * k[2 * t + d]).sum();
                let new = if delta { beta[t] * (v[t] - held) } else { v[t] };
                state = std::array::from_fn(|d| state[d] + k[2 * t + d] * new);
                let head = |h: usize| (0..2).map(|d| q[4 * t + 2 * h + d] * state[d]).sum::<f64>() * 0.5;
                want.extend([head(0), head(1)]);
            }
            let of = |name: &str, dims: &[i64], x: &[f64]| {
                floats(name, dims, &x.iter().map(|x| *x as f32).collect::<Vec<_>>())
            };
            let constants = [
                of("q", &[1, 2, 4], &q),
                of("k", &[1, 2, 2], &k),
                of("v", &[1, 2, 1], &v),
                of("p", &[1, 1, 2, 1], &past),
                of("d", &[1, 2, decay.len() as i64 / 2], decay),
                of("b", &[1, 2, 1], &beta),
            ];
            let inputs = ["q", "k", "v", "p", if gated { "d" } else { "" }, if delta { "b" } else { "" }];
            let attention = |outputs: &[&str]| {
                node("LinearAttention", &inputs, outputs)
                    .inside(5, &int_attribute("q_num_heads", 2))
                    .inside(5, &int_attribute("kv_num_heads", 1))
                    .inside(5, &float_attribute("scale", 0.5))
                    .inside(5, &string_attribute("update_rule", rule))
            };
            close(&result(27, attention(&["y", "s"]), &constants), &want);
            close(&result(27, attention(&["", "y"]), &constants), &state);
        }
    }
}

#[test]
fn packed_weights_have_their_first_value_in_the_lowest_bits() {
    let mut a = [0.0; 16];
    (a[0], a[1]) = (1.0, 10.0);
    let constants =
        [floats("a", &[1, 16], &a), tensor("b", U8, &[1, 1, 8], &[0x21; 8]), floats("s", &[1], &[0.5])];
    let product = [("K", 16), ("N", 1), ("block_size", 16), ("bits", 4)]
        .iter()
        .fold(node("com.microsoft:MatMulNBits", &["a", "b", "s"], &["y"]), |m, (name, value)| {
            m.inside(5, &int_attribute(name, *value))
        });
    // (1 − 8 + 10·(2 − 8))·0.5
    close(&result(20, product, &constants), &[-33.5]);
}
