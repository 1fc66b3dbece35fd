//! Attention, rotary positions and the key-value cache by the kernel interpreter: devices that are not here, and
//! arithmetic as poor as devices may have it.
#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

mod common;

use common::Interpreter;
use olivine_cases::{Case, attention_cases, run_table, table};
use olivine_ir::op::{Attention, HeadLayout};
use olivine_ir::{BlockFormat, DType, Graph, TensorType};
use olivine_ptx::Order;

/// Every third case of the families, from one of the first three on; devices run the whole table.
fn cases(from: usize) -> Vec<Case> {
    let ours = |c: &Case| ["attention", "rope"].contains(&c.family);
    table().into_iter().filter(ours).skip(from).step_by(3).collect()
}

fn pass(backend: &Interpreter, cases: &[Case]) {
    let report = run_table(backend, cases, "", 2);
    let wrong: Vec<String> = report.failures().map(|r| format!("{}: {}", r.name, r.outcome)).collect();
    assert!(!report.results.is_empty());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), report.results.len(), wrong.join("\n"));
}

fn without_doubles(mut cases: Vec<Case>) -> Vec<Case> {
    cases.retain(|c| !c.name.ends_with("/f64"));
    cases
}

#[test]
fn subgroups_of_eight_that_are_narrower_than_some_rows() {
    pass(&Interpreter::rich(8), &cases(0));
}

#[test]
fn subgroups_of_thirty_two() {
    pass(&Interpreter::rich(32), &cases(1));
}

#[test]
fn the_workgroup_that_is_last_combines_ranges_of_keys() {
    let device = || Interpreter::with_matrices().with_fences();
    assert_eq!(kernels(&device(), DType::F32, 1, 5000, 64), ["attention_decode_split"]);
    let splits = |device: &Interpreter, case: &Case| {
        let program = case.graph().ok().and_then(|graph| device.lower(&graph).ok());
        program.is_some_and(|program| program.kernels.iter().any(|k| k.name == "attention_decode_split"))
    };
    for device in
        [Interpreter::rich(8).with_fences(), device(), Interpreter::ptx(Order::Descending).with_fences()]
    {
        let mut cases = without_doubles(decoding_cases());
        cases.retain(|case| splits(&device, case));
        assert!(cases.len() > 5, "{} cases", cases.len());
        pass(&device, &cases);
    }
}

/// Attention of few rows.
fn decoding_cases() -> Vec<Case> {
    let decoding = |c: &Case| c.name.contains("attention/decode") || c.name.contains("attention/pages");
    table().into_iter().filter(decoding).collect()
}

/// The kernels of one attention of 2 heads with one key-value head.
fn kernels(device: &Interpreter, dtype: DType, queries: usize, keys: usize, dim: usize) -> Vec<String> {
    let mut g = Graph::new("attention");
    let mut input = |name: &str, heads, rows| g.input(name, dtype, [1, heads, rows, dim]);
    let operands = input("q", 2, queries).and_then(|q| Ok((q, input("k", 1, keys)?, input("v", 1, keys)?)));
    let (q, k, v) = operands.expect("inputs");
    let y = g.attention(Attention::new(HeadLayout::Bhsd), q, k, v, &[]).expect("an attention");
    g.output("y", y).expect("an output");
    let program = device.lower(&g).expect("a program");
    program.run.iter().map(|d| program.kernel(d).name.clone()).collect()
}

#[test]
fn many_rows_go_to_matrices_where_their_elements_are_known() {
    let device = Interpreter::with_matrices();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        assert_eq!(kernels(&device, dtype, 40, 50, 64), ["attention_coop"], "{dtype}");
        let split = ["attention_coop_split", "attention_combine"];
        assert_eq!(kernels(&device, dtype, 40, 5000, 64), split, "{dtype}");
        // One query, and rows too wide for registers.
        assert!(kernels(&device, dtype, 1, 50, 64).iter().all(|k| !k.contains("coop")), "{dtype}");
        assert!(kernels(&device, dtype, 40, 50, 320).iter().all(|k| !k.contains("coop")), "{dtype}");
        assert_eq!(kernels(&Interpreter::rich(32), dtype, 40, 50, 64), ["attention"], "{dtype}");
    }
    assert_eq!(kernels(&device, DType::F64, 40, 50, 64), ["attention"]);
}

#[test]
fn few_rows_are_decoded_and_many_keys_split() {
    for device in [Interpreter::rich(32), Interpreter::with_matrices()] {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            assert_eq!(kernels(&device, dtype, 1, 50, 64), ["attention_decode"], "{dtype}");
            let split = ["attention_decode_split", "attention_combine"];
            assert_eq!(kernels(&device, dtype, 8, 5000, 128), split, "{dtype}");
        }
        // Rows that cannot be read in whole units, and more than an invocation holds.
        assert_eq!(kernels(&device, DType::F16, 1, 50, 30), ["attention"]);
        assert_eq!(kernels(&device, DType::F32, 8, 50, 256), ["attention"]);
    }
    assert_eq!(kernels(&Interpreter::plain(), DType::F16, 1, 50, 64), ["attention"]);
}

#[test]
fn decoding() {
    let cases = decoding_cases();
    assert!(cases.len() > 50, "{}", cases.len());
    pass(&Interpreter::rich(32), &cases);
    let half =
        |from: usize| without_doubles(cases.clone()).into_iter().skip(from).step_by(2).collect::<Vec<_>>();
    pass(&Interpreter::rich(8), &half(0));
    pass(&Interpreter::with_matrices(), &half(1));
}

#[test]
fn cooperative_matrices() {
    let device = Interpreter::with_matrices();
    let ours = without_doubles(cases(0)).into_iter().filter(|c| c.family == "attention").step_by(2);
    pass(&device, &ours.collect::<Vec<_>>());
    let wild = |c: &Case| c.name.contains("infinite-values") || c.name.contains("attention/nan");
    pass(&device, &table().into_iter().filter(wild).collect::<Vec<_>>());
    let paged = |c: &Case| c.name.contains("pages-prefill") || c.name.contains("pages-many");
    pass(&device, &table().into_iter().filter(paged).collect::<Vec<_>>());
    pass(&device, &attention_cases(10, 51));
}

#[test]
fn packed_caches() {
    let cases = |from: usize, step: usize| -> Vec<Case> {
        table().into_iter().filter(|c| c.family == "packed_cache").skip(from).step_by(step).collect()
    };
    pass(&Interpreter::rich(8), &cases(0, 5));
    pass(&Interpreter::rich(32), &cases(1, 5));
    pass(&Interpreter::plain(), &cases(2, 7));
    let attends = |c: &Case| !c.name.contains("kv_append");
    let matrices: Vec<Case> = cases(0, 1).into_iter().filter(attends).step_by(3).collect();
    pass(&Interpreter::with_matrices(), &matrices);
}

#[test]
fn packed_caches_are_read_by_every_kernel() {
    let kernels = |device: &Interpreter, dtype: DType, queries: usize| -> Vec<String> {
        let mut g = Graph::new("attention");
        let q = g.input("q", dtype, [1, 2, queries, 64]).expect("an input");
        let ty = TensorType::packed(BlockFormat::Q8_0, [1, 1, 50, 64]).expect("a type");
        let caches = ["k", "v"].map(|name| g.input_of(name, ty, vec![None; 4]).expect("a cache"));
        let spec = Attention::new(HeadLayout::Bhsd);
        let y = g.attention(spec, q, caches[0], caches[1], &[]).expect("an attention");
        g.output("y", y).expect("an output");
        let program = device.lower(&g).expect("a program");
        program.run.iter().map(|d| program.kernel(d).name.clone()).collect()
    };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        assert_eq!(kernels(&Interpreter::with_matrices(), dtype, 40), ["attention_coop"], "{dtype}");
        assert_eq!(kernels(&Interpreter::rich(32), dtype, 1), ["attention_decode"], "{dtype}");
        assert_eq!(kernels(&Interpreter::rich(32), dtype, 40), ["attention"], "{dtype}");
    }
}

#[test]
fn no_subgroups_and_the_least_memory() {
    pass(&Interpreter::plain(), &without_doubles(cases(2)));
}

#[test]
fn random_shapes_and_views_agree_with_the_oracle() {
    pass(&Interpreter::rich(32), &attention_cases(25, 1));
    pass(&Interpreter::plain(), &without_doubles(attention_cases(25, 26)));
}
