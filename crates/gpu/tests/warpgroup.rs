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
use olivine_ir::{DType, Data, Error, Graph, Shape, Tensor, ValueId, open_symbol};
use olivine_program::{DeviceCaps, Dispatch, Program};
use olivine_ptx::Order;

const WARPGROUP: &str = "matmul_warpgroup";
/// The tuner's configuration of matmuls by warpgroups whose operands are packed.
const PACKED: &str = "warpgroup packed";

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
    for (dtype, sizes) in [
        (DType::F32, [128, 768, 768]),
        (DType::F32, [1, 4096, 4096]),
        (DType::F16, [128, 768, 768]),
        (DType::F16, [1, 4096, 4096]),
    ] {
        let with = kernels(&ptx, dtype, sizes, true);
        assert_eq!(with, kernels(&spirv, dtype, sizes, true), "{dtype} {sizes:?}");
    }
}

#[test]
fn large_matmuls_of_f32_may_be_by_warpgroups_and_by_tiles_where_parts_serve_badly() {
    let mut g = Graph::new("matmul");
    let x = g.input("x", DType::F32, [4096, 4096]).unwrap();
    let w = g.param("w", DType::F32, [4096, 4096]).unwrap();
    let y = g.matmul(x, w).unwrap();
    g.output("y", y).unwrap();
    let found = |device: Interpreter| {
        let program = device.lower(&g).unwrap();
        [names(&program, &program.load), names(&program, &program.run)]
    };
    let [load, run] = found(Interpreter::hopper(132, None).preferring(PACKED));
    assert_eq!(load.last().unwrap(), "matmul_warpgroup_pack_b");
    assert_eq!(run, ["split_f32_rows", "matmul_warpgroup_outliers", WARPGROUP, "matmul_tiled"]);
    let [_, run] = found(Interpreter::hopper(132, None));
    assert!(!run.contains(&WARPGROUP.to_string()), "without a record: {run:?}");
}

/// `x · w` of integers, w a weight, with those zero points; both are one for all.
fn integers(g: &mut Graph, dtypes: [DType; 2], [m, n, k]: [usize; 3], zeros: [bool; 2]) -> ValueId {
    let x = g.input("x", dtypes[0], [m, k]).unwrap();
    let w = g.param("w", dtypes[1], [k, n]).unwrap();
    let [p, q] =
        [("p", 0), ("q", 1)].map(|(name, i)| zeros[i].then(|| g.input(name, dtypes[i], []).unwrap()));
    g.qmatmul(x, w, p, q).unwrap()
}

#[test]
fn large_matmuls_of_integers_are_by_warpgroups_where_the_trial_of_them_was_right() {
    let kernels = |caps: &DeviceCaps, sizes: [usize; 3], zeros: [bool; 2]| {
        let mut g = Graph::new("integers");
        let y = integers(&mut g, [DType::U8, DType::I8], sizes, zeros);
        g.output("y", y).unwrap();
        let program = lowered(&g, caps);
        [names(&program, &program.load), names(&program, &program.run)]
    };
    let large = [4096, 4096, 4096];
    let [load, run] = kernels(&h200_ptx(), large, [false; 2]);
    assert_eq!((load, run), (vec!["matmul_warpgroup_pack_b".into()], vec![WARPGROUP.to_string()]));
    // The sums of B's columns are for A's zero point.
    let [load, run] = kernels(&h200_ptx(), large, [true; 2]);
    assert_eq!(load, ["matmul_warpgroup_pack_b", "matmul_warpgroup_sums"]);
    assert_eq!(run, [WARPGROUP]);
    let [_, run] = kernels(&h200_ptx(), [4096, 4096, 768], [true, false]);
    assert_eq!(run, [WARPGROUP]);
    let [_, run] = kernels(&h200_ptx(), [4096, 4096, 770], [true, false]);
    assert_eq!(run, ["matmul_warpgroup_pack_a", WARPGROUP]);
    let (mut floats, mut none) = (h200_ptx(), h200_ptx());
    floats.target.int8_warpgroups = false;
    none.target.warpgroups = false;
    for (caps, sizes) in [(floats, large), (h200_ptx(), [64, 768, 768])] {
        let [_, run] = kernels(&caps, sizes, [true, false]);
        assert!(!run.contains(&WARPGROUP.to_string()), "{run:?}");
        assert_eq!(run, kernels(&none, sizes, [true, false])[1]);
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
    few_plans(&g, 12);
}

#[test]
fn a_few_plans_serve_all_rows_of_integers() {
    let mut g = Graph::new("rows");
    let open = vec![Some("m".to_string()), None];
    let x = g.input_with_dims("x", DType::U8, Shape::new(&[96, 1024]).unwrap(), open).unwrap();
    let w = g.param("w", DType::I8, [1024, 4096]).unwrap();
    let p = g.input("p", DType::U8, []).unwrap();
    let y = g.qmatmul(x, w, Some(p), None).unwrap();
    g.output("y", y).unwrap();
    few_plans(&g, 12);
}

/// Every number of rows has the program that it has with fixed sizes; most have warpgroups.
fn few_plans(g: &Graph, most: usize) {
    let caps = h200_ptx();
    let mut plans = Plans::new(g, &caps);
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
    assert!(plans.plans.len() <= most, "{} plans", plans.plans.len());
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

#[test]
fn integers_with_zero_points_are_exact() {
    let [m, n, k] = [150, 600, 520];
    let byte = |i: usize, skew: usize| ((i * 71 + i / 256 * 13 + skew * 29) % 256) as u8;
    let bytes = |count: usize, skew: usize| (0..count).map(|i| byte(i, skew)).collect::<Vec<u8>>();
    let dtypes = [DType::U8, DType::I8];
    let tensor = |dtype, dims: &[usize], bytes: &[u8]| {
        Tensor::from_data(dims, Data::from_bytes(dtype, bytes).unwrap()).unwrap()
    };
    let (x, w) = (bytes(m * k, 0), bytes(k * n, 1));
    let mut g = Graph::new("integers");
    let y = integers(&mut g, dtypes, [m, n, k], [true; 2]);
    g.output("y", y).unwrap();
    let inputs = [
        ("x".to_string(), tensor(dtypes[0], &[m, k], &x)),
        ("p".to_string(), tensor(dtypes[0], &[], &[131])),
        ("q".to_string(), tensor(dtypes[1], &[], &[0xfd])),
    ];
    let params = [("w".to_string(), tensor(dtypes[1], &[k, n], &w))];
    for device in [Interpreter::hopper(2, None), Interpreter::hopper(1, Some(Order::Descending))] {
        let program = device.lower(&g).unwrap();
        let found = names(&program, &program.run);
        assert!(found.contains(&WARPGROUP.to_string()), "{found:?}");
        let outputs = device.run(&g, &inputs, &params).unwrap_or_else(|e| panic!("{}: {e}", device.name()));
        let Data::I32(got) = outputs[0].data() else { panic!("{}", outputs[0].dtype()) };
        for (i, got) in got.iter().enumerate() {
            let (row, column) = (i / n, i % n);
            let term =
                |l: usize| (i32::from(x[row * k + l]) - 131) * (i32::from(w[l * n + column] as i8) + 3);
            assert_eq!(*got, (0..k).map(term).sum::<i32>(), "{}, {row}, {column}", device.name());
        }
    }
}

#[test]
fn f32_has_the_precision_of_single_precision() {
    let [m, n, k] = [600, 264, 264];
    let number = |i: usize, skew: usize| {
        let mixed = (i as u64 * 0x9e37_79b9 + skew as u64 * 77).wrapping_mul(0x85eb_ca6b_1234_5679);
        ((mixed >> 40) as f64 / f64::from(1 << 23) - 1.0) as f32
    };
    let numbers = |count: usize, skew: usize| (0..count).map(|i| number(i, skew)).collect::<Vec<f32>>();
    let (x, w, b) = (numbers(m * k, 0), numbers(k * n, 1), numbers(n, 2));
    let mut g = Graph::new("f32");
    let in_x = g.input("x", DType::F32, [m, k]).unwrap();
    let (in_w, in_b) = (g.param("w", DType::F32, [k, n]).unwrap(), g.param("b", DType::F32, [n]).unwrap());
    let y = g.linear(in_x, in_w, in_b).unwrap();
    let y = g.relu(y).unwrap();
    g.output("y", y).unwrap();
    let tensor = |dims: &[usize], x: &[f32]| Tensor::new(Shape::new(dims).unwrap(), x.to_vec()).unwrap();
    let inputs = [("x".to_string(), tensor(&[m, k], &x))];
    let params = [("w".to_string(), tensor(&[k, n], &w)), ("b".to_string(), tensor(&[n], &b))];
    for device in [Interpreter::hopper(2, None), Interpreter::hopper(1, Some(Order::Ascending))] {
        let device = device.preferring(PACKED);
        let program = device.lower(&g).unwrap();
        let found = names(&program, &program.run);
        assert!(found.contains(&WARPGROUP.to_string()), "{found:?}");
        let outputs = device.run(&g, &inputs, &params).unwrap_or_else(|e| panic!("{}: {e}", device.name()));
        let Data::F32(got) = outputs[0].data() else { panic!("{}", outputs[0].dtype()) };
        let (mut error, mut of_single, mut all) = (0.0f64, 0.0f64, 0.0f64);
        for (i, got) in got.iter().enumerate() {
            let (row, column) = (i / n, i % n);
            let pairs = (0..k).map(|l| (x[row * k + l], w[l * n + column]));
            let exact: f64 = pairs.clone().map(|(x, w)| f64::from(x) * f64::from(w)).sum();
            let exact = (exact + f64::from(b[column])).max(0.0);
            let single = pairs.fold(0f32, |sum, (x, w)| x.mul_add(w, sum));
            let single = (single + b[column]).max(0.0);
            error += (f64::from(*got) - exact).powi(2);
            of_single += (f64::from(single) - exact).powi(2);
            all += exact * exact;
        }
        assert!(
            error <= of_single,
            "{}: {} {}",
            device.name(),
            (error / all).sqrt(),
            (of_single / all).sqrt()
        );
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
