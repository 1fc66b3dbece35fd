//! Products by cooperative matrices and of few rows, run by the kernel interpreter.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

mod common;

use common::Interpreter;
use olivine_cases::{Backend, Case, run_table, table};
use olivine_ir::{DType, Data, Graph, Tensor, ValueId};

/// An operand that lies along depths or not, and is stored or given.
#[derive(Clone, Copy, Debug)]
struct Lie {
    turned: bool,
    stored: bool,
}

fn operand(g: &mut Graph, name: &str, dtype: DType, dims: [usize; 2], lie: Lie) -> ValueId {
    let dims = if lie.turned { [dims[1], dims[0]] } else { dims };
    let x = match lie.stored {
        true => g.param(name, dtype, dims).unwrap(),
        false => g.input(name, dtype, dims).unwrap(),
    };
    if lie.turned { g.transpose(x, &[1, 0]).unwrap() } else { x }
}

/// Bytes over their whole range, the same for the same numbers.
fn noise(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let step = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(step).collect()
}

fn tensor(dtype: DType, dims: &[usize], bytes: &[u8]) -> Tensor {
    Tensor::from_data(dims, Data::from_bytes(dtype, bytes).unwrap()).unwrap()
}

fn number(dtype: DType, byte: u8) -> i64 {
    if dtype == DType::I8 { i64::from(byte as i8) } else { i64::from(byte) }
}

/// One product of bytes against integers on the host.
fn check([m, k, n]: [usize; 3], dtypes: [DType; 2], lies: [Lie; 2], zeros: [Option<usize>; 2]) {
    let device = Interpreter::with_matrices();
    let mut g = Graph::new("bytes");
    let a = operand(&mut g, "a", dtypes[0], [m, k], lies[0]);
    let b = operand(&mut g, "b", dtypes[1], [k, n], lies[1]);
    let dims = |count: usize| if count == 1 { vec![] } else { vec![count] };
    let mut zero = |name: &str, dtype, count: Option<usize>| {
        count.map(|c| g.input(name, dtype, dims(c).as_slice()).unwrap())
    };
    let (za, zb) = (zero("za", dtypes[0], zeros[0]), zero("zb", dtypes[1], zeros[1]));
    let y = g.qmatmul(a, b, za, zb).unwrap();
    g.output("y", y).unwrap();
    let program = device.lower(&g).unwrap();
    let names: Vec<&str> = program.run.iter().map(|d| program.kernel(d).name.as_str()).collect();
    assert!(names.contains(&"qmatmul_coop"), "{names:?}");

    let (a, b) = (noise(m * k, 1), noise(k * n, 2));
    let z = [noise(zeros[0].unwrap_or(0), 3), noise(zeros[1].unwrap_or(0), 4)];
    let turned = |bytes: &[u8], rows: usize, columns: usize, lie: Lie| match lie.turned {
        true => (0..rows * columns).map(|i| bytes[i % rows * columns + i / rows]).collect(),
        false => bytes.to_vec(),
    };
    let (mut inputs, mut params) = (Vec::new(), Vec::new());
    let sides = [("a", &a, m, k), ("b", &b, k, n)];
    for (i, (name, bytes, rows, columns)) in sides.into_iter().enumerate() {
        let dims = if lies[i].turned { [columns, rows] } else { [rows, columns] };
        let made = tensor(dtypes[i], &dims, &turned(bytes, rows, columns, lies[i]));
        let list = if lies[i].stored { &mut params } else { &mut inputs };
        list.push((name.to_string(), made));
    }
    for (i, name) in ["za", "zb"].into_iter().enumerate().filter(|(i, _)| zeros[*i].is_some()) {
        inputs.push((name.to_string(), tensor(dtypes[i], &dims(z[i].len()), &z[i])));
    }
    let out = device.run(&g, &inputs, &params).unwrap();
    let zero = |side: usize, line: usize| match zeros[side] {
        None => 0,
        Some(1) => number(dtypes[side], z[side][0]),
        Some(_) => number(dtypes[side], z[side][line]),
    };
    let want = |i: usize| {
        let (row, column) = (i / n, i % n);
        let (p, q) = (zero(0, row), zero(1, column));
        let term =
            |d: usize| (number(dtypes[0], a[row * k + d]) - p) * (number(dtypes[1], b[d * n + column]) - q);
        (0..k).map(term).sum::<i64>() as i32
    };
    let Data::I32(got) = out[0].data() else { panic!("{}", out[0].dtype()) };
    for (i, got) in got.iter().enumerate() {
        assert_eq!(*got, want(i), "{m}x{k}x{n} {dtypes:?} {lies:?} {zeros:?} at {i}");
    }
}

#[test]
fn bytes_of_every_sign_and_order_are_multiplied_exactly_by_matrices() {
    use DType::{I8, U8};
    let lie = |turned, stored| Lie { turned, stored };
    // As matrices want them; turned; stored and so packed at load; lines that are no whole slots; with zero points.
    check([64, 64, 64], [I8, I8], [lie(false, false), lie(true, false)], [None, None]);
    check([40, 96, 72], [U8, I8], [lie(false, false), lie(false, true)], [Some(1), None]);
    check([33, 37, 19], [I8, U8], [lie(true, true), lie(false, false)], [Some(33), Some(19)]);
    check([17, 80, 130], [U8, U8], [lie(false, false), lie(true, true)], [None, Some(1)]);
}

/// Halves that are small integers: sums of their products are exact in f32, whatever the order.
fn narrow_floats(dtype: DType, dims: &[usize], seed: u32) -> (Vec<f64>, Tensor) {
    let numbers: Vec<f64> =
        noise(dims.iter().product(), seed).iter().map(|b| f64::from(*b % 17) - 8.0).collect();
    let bits = |x: f64| match dtype {
        DType::F32 => (x as f32).to_le_bytes().to_vec(),
        DType::BF16 => (((x as f32).to_bits() >> 16) as u16).to_le_bytes().to_vec(),
        _ => half(x).to_le_bytes().to_vec(),
    };
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| bits(*x)).collect();
    (numbers, tensor(dtype, dims, &bytes))
}

/// The f16 of a small integer.
fn half(x: f64) -> u16 {
    let bits = (x as f32).to_bits();
    if x == 0.0 { 0 } else { (((bits >> 16) & 0x8000) + (((bits & 0x7fff_ffff) - 0x3800_0000) >> 13)) as u16 }
}

/// One product of few rows, in f32 sums, against the host; the kernel that made it.
fn few([m, k, n]: [usize; 3], dtype: DType, turned: bool) -> String {
    let device = Interpreter::with_matrices();
    let mut g = Graph::new("few");
    let a = g.input("a", dtype, [m, k]).unwrap();
    let b = operand(&mut g, "b", dtype, [k, n], Lie { turned, stored: false });
    let product = g.matmul(a, b).unwrap();
    let y = g.cast(product, DType::F32).unwrap();
    g.output("y", y).unwrap();
    let (x, a) = narrow_floats(dtype, &[m, k], 1);
    let (w, b) = narrow_floats(dtype, &if turned { [n, k] } else { [k, n] }, 2);
    let out = device.run(&g, &[("a".into(), a), ("b".into(), b)], &[]).unwrap();
    let at = |d: usize, column: usize| if turned { w[column * k + d] } else { w[d * n + column] };
    let got = out[0].to_f64();
    for (i, got) in got.iter().enumerate() {
        let (row, column) = (i / n, i % n);
        let want: f64 = (0..k).map(|d| x[row * k + d] * at(d, column)).sum();
        // The product is rounded to its dtype before the cast.
        let near = (want - got).abs() <= want.abs() * if dtype == DType::BF16 { 4e-3 } else { 5e-4 };
        assert!(near, "{m}x{k}x{n} {dtype} {turned} at {i}: {got}, not {want}");
    }
    let program = device.lower(&g).unwrap();
    program.kernel(&program.run[0]).name.clone()
}

#[test]
fn a_few_dozen_rows_of_f16_are_multiplied_by_subgroups_each_for_itself() {
    // Whole rounds and rounds that end early; rows and columns that fill no matrix.
    for (sizes, dtype, turned) in [
        ([16, 512, 512], DType::F16, false),
        ([9, 520, 520], DType::F16, true),
        ([33, 1032, 512], DType::BF16, false),
        ([17, 512, 1000], DType::BF16, true),
    ] {
        assert_eq!(few(sizes, dtype, turned), "matmul_small_m_coop", "{sizes:?}");
    }
}

#[test]
fn small_m_reads_the_weights_in_their_own_layout() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for sizes in [[1, 512, 512], [1, 72, 200], [3, 100, 40], [8, 264, 96], [2, 33, 17]] {
            assert_eq!(few(sizes, dtype, false), "matmul_gemv_axpy", "{sizes:?}");
            assert_eq!(few(sizes, dtype, true), "matmul_gemv_dot", "{sizes:?}");
        }
    }
}

/// The cases of matmuls and convolutions that matrices compute on Metal.
#[test]
fn cases_pass_by_the_matrices_of_metal() {
    let device = Interpreter::metal();
    let by_matrices = |case: &Case| {
        let ours = matches!(case.family, "contraction" | "conv" | "packed");
        let program = ours.then(|| device.lower(&case.graph().unwrap()).ok()).flatten();
        program.is_some_and(|program| program.kernels.iter().any(|kernel| kernel.name.contains("_coop")))
    };
    let cases: Vec<Case> = table().into_iter().filter(by_matrices).collect();
    assert!(cases.len() > 20, "{} cases", cases.len());
    let report = run_table(&device, &cases, "", 2);
    let failures: Vec<String> = report.failures().map(|f| format!("{}: {}", f.name, f.outcome)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
