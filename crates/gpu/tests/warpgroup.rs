//! Matmuls by warpgroups from graph to numbers: which nodes get them on a card that takes PTX, what they compute, and one plan
//! for all sizes of a class.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

mod common;
mod devices;

use common::Interpreter;
use devices::{Plans, difference, h200, h200_ptx, lowered};
use olivine_cases::Backend as _;
use olivine_ir::half::f16;
use olivine_ir::size::Bindings;
use olivine_ir::{DType, Error, Graph, Shape, Tensor, ValueId, open_symbol};
use olivine_program::{DeviceCaps, Dispatch, Program};
use olivine_ptx::Order;

const WARPGROUP: &str = "matmul_warpgroup";

fn names(program: &Program, dispatches: &[Dispatch]) -> Vec<String> {
    dispatches.iter().map(|d| program.kernel(d).name.clone()).collect()
}

/// The kernels at load and at every run of `x · w`, w a weight or an input.
fn kernels(caps: &DeviceCaps, dtype: DType, [m, n, k]: [usize; 3], weight: bool) -> [Vec<String>; 2] {
    let mut g = Graph::new("matmul");
    let x = g.input("x", dtype, [m, k]).unwrap();
    let w = if weight { g.param("w", dtype, [k, n]) } else { g.input("w", dtype, [k, n]) };
    let y = g.matmul(x, w.unwrap()).unwrap();
    g.output("y", y).unwrap();
    let program = lowered(&g, caps);
    [names(&program, &program.load), names(&program, &program.run)]
}

#[test]
fn large_matmuls_of_16_bits_are_by_warpgroups_where_ptx_is_launched() {
    let (ptx, spirv) = (h200_ptx(), h200());
    let large = [4096, 4096, 4096];
    for dtype in [DType::F16, DType::BF16] {
        let [load, run] = kernels(&ptx, dtype, large, true);
        assert_eq!((load, run), (vec!["matmul_warpgroup_pack_b".into()], vec![WARPGROUP.into()]), "{dtype}");
        let [_, run] = kernels(&ptx, dtype, large, false);
        assert_eq!(run, ["matmul_warpgroup_pack_b", WARPGROUP], "{dtype}");
        let [_, run] = kernels(&ptx, dtype, [4096, 4096, 4001], true);
        assert_eq!(run, ["matmul_warpgroup_pack_a", WARPGROUP], "{dtype}");
        let [_, run] = kernels(&spirv, dtype, large, true);
        assert!(run.iter().all(|name| name.starts_with("matmul_coop") || name == "matmul_pack"), "{run:?}");
    }
    for (dtype, sizes) in [(DType::F32, large), (DType::F16, [128, 768, 768]), (DType::F16, [1, 4096, 4096])]
    {
        let with = kernels(&ptx, dtype, sizes, true);
        assert_eq!(with, kernels(&spirv, dtype, sizes, true), "{dtype} {sizes:?}");
    }
}

#[test]
fn branches_whose_workgroups_are_counted_on_the_device_have_none() {
    let branch = |name: &str| {
        let mut g = Graph::new(name);
        let x = g.input("x", DType::F16, [4096, 4096]).unwrap();
        let y = g.matmul(x, x).unwrap();
        g.output("y", y).unwrap();
        g
    };
    let mut g = Graph::new("branches");
    let c = g.input("c", DType::Bool, [1]).unwrap();
    let x = g.input("x", DType::F16, [4096, 4096]).unwrap();
    let y = g.if_(c, branch("then"), branch("else"), &[x]).unwrap();
    g.output("y", y[0]).unwrap();
    let program = lowered(&g, &h200_ptx());
    assert!(program.kernels.iter().any(|kernel| kernel.name.starts_with("matmul")));
    assert!(!program.kernels.iter().any(|kernel| kernel.has_warpgroups()));
}

#[test]
fn a_few_plans_serve_all_rows() {
    let mut g = Graph::new("rows");
    let open = vec![Some("m".to_string()), None];
    let x = g.input_with_dims("x", DType::F16, Shape::new(&[96, 1024]).unwrap(), open).unwrap();
    let w = g.param("w", DType::F16, [1024, 4096]).unwrap();
    let b = g.param("b", DType::F16, [4096]).unwrap();
    let y = g.linear(x, w, b).unwrap();
    let y = g.gelu(y).unwrap();
    g.output("y", y).unwrap();
    let caps = h200_ptx();
    let mut plans = Plans::new(&g, &caps);
    let mut by_warpgroups = 0;
    for i in 0..40 {
        let m = 1 + (i * 7919) % 9001;
        let mut values = Bindings::new();
        values.bind(open_symbol("m").unwrap(), m as i64).unwrap();
        let shapes = [("x", Shape::new(&[m, 1024]).unwrap())];
        let program = plans.program(&shapes, &values);
        assert_eq!(difference(&program, &lowered(&g.specialise(&shapes).unwrap(), &caps)), None, "{m} rows");
        by_warpgroups += usize::from(names(&program, &program.run).contains(&WARPGROUP.to_string()));
    }
    assert!(by_warpgroups > 20, "{by_warpgroups} of 40");
    assert!(plans.plans.len() <= 12, "{} plans", plans.plans.len());
}

/// Multiples of 1/8 that differ from their neighbours, small enough that sums of products are exact in f32.
fn number(i: usize, skew: usize) -> f64 {
    (((i * 7 + i / 5 * 3 + skew * 5) % 9) as f64 - 4.0) / 8.0
}

fn tensor(dims: &[usize], skew: usize) -> Tensor {
    let count = dims.iter().product();
    let numbers: Vec<f16> = (0..count).map(|i| f16::from_f64(number(i, skew))).collect();
    Tensor::new(Shape::new(dims).unwrap(), numbers).unwrap()
}

fn halves(tensor: &Tensor) -> Vec<f64> {
    let bytes = tensor.data().as_bytes();
    bytes.as_chunks::<2>().0.iter().map(|b| f64::from(f16::from_le_bytes(*b).to_f32())).collect()
}

/// A block of a transformer: x · w + b through gelu, back by another matmul, and x added.
fn block(g: &mut Graph, [m, k, n]: [usize; 3]) -> Result<ValueId, Error> {
    let x = g.input("x", DType::F16, [m, k])?;
    let (w, b) = (g.param("w", DType::F16, [k, n])?, g.param("b", DType::F16, [n])?);
    let v = g.param("v", DType::F16, [k, n])?;
    let hidden = g.linear(x, w, b)?;
    let hidden = g.gelu(hidden)?;
    // K is the inner axis of this one's weight.
    let back = g.matmul_nt(hidden, v)?;
    g.add(back, x)
}

#[test]
fn a_block_of_a_transformer_is_near_the_sums_of_f64() {
    let [m, k, n] = [150, 520, 600];
    let mut g = Graph::new("block");
    let y = block(&mut g, [m, k, n]).unwrap();
    g.output("y", y).unwrap();
    let (x, w, v, b) = (tensor(&[m, k], 0), tensor(&[k, n], 1), tensor(&[k, n], 2), tensor(&[n], 3));
    let (xs, ws, vs, bs) = (halves(&x), halves(&w), halves(&v), halves(&b));
    let rounded = |x: f64| f64::from(f16::from_f64(x).to_f32());
    let gelu = |x: f64| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2));
    let mut expected = Vec::with_capacity(m * k);
    for i in 0..m {
        let hidden: Vec<f64> = (0..n)
            .map(|j| rounded((0..k).map(|l| xs[i * k + l] * ws[l * n + j]).sum::<f64>()) + bs[j])
            .map(|sum| rounded(gelu(rounded(sum))))
            .collect();
        for j in 0..k {
            let sum: f64 = (0..n).map(|l| hidden[l] * vs[j * n + l]).sum();
            expected.push(sum + xs[i * k + j]);
        }
    }
    let params = [("w".to_string(), w), ("v".to_string(), v), ("b".to_string(), b)];
    let inputs = [("x".to_string(), x)];
    for device in [
        Interpreter::hopper(2, None),
        Interpreter::hopper(3, Some(Order::Ascending)),
        Interpreter::hopper(1, Some(Order::Descending)),
    ] {
        let program = device.lower(&g).unwrap();
        let found = names(&program, &program.run);
        assert_eq!(found.iter().filter(|name| *name == WARPGROUP).count(), 2, "{found:?}");
        let outputs = device.run(&g, &inputs, &params).unwrap_or_else(|e| panic!("{}: {e}", device.name()));
        for (i, (got, want)) in halves(&outputs[0]).into_iter().zip(&expected).enumerate() {
            let near = (got - want).abs() <= 2e-3 * want.abs().max(4.0);
            assert!(near, "{}: {got} instead of {want} at {}, {}", device.name(), i / k, i % k);
        }
    }
}

/// The error function, by its series and its continued fraction.
fn erf(x: f64) -> f64 {
    if x.abs() < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..60 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let z = x.abs();
    let fraction = (1..60).rev().fold(z, |below, n| z + f64::from(n) / 2.0 / below);
    x.signum() * (1.0 - (-z * z).exp() / fraction / std::f64::consts::PI.sqrt())
}
