//! Weights of few bits: what they come to, and that they stay packed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is a failed test"
)]

#[allow(dead_code, reason = "tests share it, none uses all of it")]
mod wire;

use std::sync::Arc;

use half::{bf16, f16};
use olivine_compile::{Options, compile};
use olivine_cpu::{CpuEvaluator, Executable, Weights};
use olivine_ir::{DType, Shape, Tensor, TensorType};
use olivine_onnx::{Bindings, Bound, Model, Outcome};
use wire::{F32, Graph, Message, float_attribute, int_attribute, node, string_attribute, tensor, value};

const U8: i64 = 2;
const F16: i64 = 10;
const BF16: i64 = 16;
const I8: i64 = 3;
const F8E4M3FN: i64 = 17;
const F8E5M2: i64 = 19;
const U4: i64 = 21;
const I4: i64 = 22;

/// Numbers that look random, the same at every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// Floats of a type between two, and their bytes.
    fn floats(&mut self, element: i64, count: usize, from: f64, to: f64) -> (Vec<f64>, Vec<u8>) {
        let all = (0..count).map(|_| from + (to - from) * (self.next() % 4096) as f64 / 4096.0);
        let (mut values, mut bytes) = (Vec::new(), Vec::new());
        for v in all {
            let (value, raw) = match element {
                F16 => (f16::from_f64(v).to_f64(), f16::from_f64(v).to_le_bytes().to_vec()),
                BF16 => (bf16::from_f64(v).to_f64(), bf16::from_f64(v).to_le_bytes().to_vec()),
                _ => (f64::from(v as f32), (v as f32).to_le_bytes().to_vec()),
            };
            values.push(value);
            bytes.extend(raw);
        }
        (values, bytes)
    }
}

/// The values of `bits` bits in bytes, the lowest first.
fn codes(bytes: &[u8], bits: usize) -> Vec<u32> {
    let per_byte = 8 / bits;
    let all = bytes
        .iter()
        .flat_map(|b| (0..per_byte).map(move |i| (u32::from(*b) >> (i * bits)) & ((1 << bits) - 1)));
    all.collect()
}

fn dtype(element: i64) -> DType {
    match element {
        F16 => DType::F16,
        BF16 => DType::BF16,
        _ => DType::F32,
    }
}

/// A model of opset 21 with one input `a` and one output `y`.
struct Test {
    nodes: Vec<Message>,
    weights: Vec<Message>,
    element: i64,
    inputs: Vec<(&'static str, Vec<usize>, Vec<u8>)>,
}

impl Test {
    fn model(&self) -> Model {
        let graph = Graph {
            nodes: self.nodes.clone(),
            initializers: self.weights.clone(),
            inputs: self
                .inputs
                .iter()
                .map(|(name, dims, _)| {
                    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
                    value(name, self.element, &dims.iter().map(String::as_str).collect::<Vec<_>>())
                })
                .collect(),
            outputs: vec![value("y", self.element, &["p", "q"])],
            ..Graph::default()
        };
        let onnx = Message::new().int(2, 21);
        let microsoft = Message::new().text(1, "com.microsoft").int(2, 1);
        let model = Message::new().int(1, 10).all(8, &[onnx, microsoft]).inside(7, &graph.message());
        Model::from_bytes(model.0).unwrap()
    }

    /// The graph, as text, and the result on the CPU.
    fn run(&self) -> (String, Vec<f64>) {
        let model = self.model();
        let types = self.inputs.iter().map(|(name, dims, _)| {
            let ty = TensorType::new(dtype(self.element), Shape::new(dims).unwrap());
            (name.to_string(), Bound::Tensor { ty, value: None })
        });
        let bindings = Bindings { inputs: types.collect(), ..Bindings::default() };
        let Outcome::Whole(whole) = model.specialise(&bindings, &CpuEvaluator).unwrap() else {
            panic!("shapes are known");
        };
        let weights = Arc::new(Weights::new());
        for (name, id) in whole.graph.params() {
            let weight = model.weight(name).expect("a param is one of the weights");
            assert_eq!(weight.ty(), whole.graph.ty(id).unwrap(), "{name}");
            weights.set(name, weight);
        }
        let options = Options { evaluator: Some(&CpuEvaluator), integers: true, ..Options::default() };
        let compiled = compile(&whole.graph, &options).unwrap();
        let executable = Executable::new(&compiled, weights, true).unwrap();
        let inputs: Vec<Tensor> = self
            .inputs
            .iter()
            .map(|(_, dims, raw)| {
                let data = olivine_ir::Data::from_bytes(dtype(self.element), raw).unwrap();
                Tensor::from_data(dims.as_slice(), data).unwrap()
            })
            .collect();
        let views: Vec<_> = inputs.iter().map(Tensor::view).collect();
        let (_, ty) = executable.outputs()[0].clone();
        let mut out = Tensor::zeros(ty.dtype, ty.shape).unwrap();
        executable.run(&views, &mut [out.data_mut().unwrap().as_bytes_mut().unwrap()]).unwrap();
        (compiled.graph.to_string(), out.to_f64())
    }
}

#[track_caller]
fn close(what: &str, element: i64, got: &[f64], want: &[f64]) {
    let part = match element {
        F16 => 2e-3,
        BF16 => 1.6e-2,
        _ => 1e-5,
    };
    let largest = want.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= part * largest;
    assert!(got.len() == want.len() && got.iter().zip(want).all(near), "{what}: {got:?}, want {want:?}");
}

/// `x[m, k] · w[n, k]ᵀ`.
fn matmul(x: &[f64], w: &[f64], (m, n, k): (usize, usize, usize)) -> Vec<f64> {
    let dot = |i: usize, j: usize| (0..k).map(|l| x[i * k + l] * w[j * k + l]).sum();
    (0..m * n).map(|at| dot(at / n, at % n)).collect()
}

fn ints(of: Message, attributes: &[(&str, usize)]) -> Message {
    attributes.iter().fold(of, |m, (name, value)| m.inside(5, &int_attribute(name, *value as i64)))
}

#[test]
fn matmuls_with_blocks_of_every_kind_stay_packed_and_are_right() {
    let mut numbers = Numbers(1);
    let (m, n) = (2, 40);
    for bits in [2usize, 4, 8] {
        for (block, k) in [(16usize, 48usize), (32, 100), (64, 33), (128, 300)] {
            for zero in ["none", "packed", "float"] {
                for element in [F32, F16, BF16] {
                    let blocks = k.div_ceil(block);
                    let row = blocks * block * bits / 8;
                    let raw = numbers.bytes(n * row);
                    let (scales, scale_bytes) = numbers.floats(element, n * blocks, 0.01, 0.05);
                    let dims = |d: &[usize]| d.iter().map(|d| *d as i64).collect::<Vec<i64>>();
                    let mut weights = vec![
                        tensor("b", U8, &dims(&[n, blocks, block * bits / 8]), &raw),
                        tensor("s", element, &dims(&[n, blocks]), &scale_bytes),
                    ];
                    let zero_row = (blocks * bits).div_ceil(8);
                    let zeros: Vec<f64> = match zero {
                        "packed" => {
                            let bytes = numbers.bytes(n * zero_row);
                            weights.push(tensor("z", U8, &dims(&[n, zero_row]), &bytes));
                            let rows = bytes.chunks(zero_row);
                            rows.flat_map(|r| codes(r, bits)[..blocks].to_vec()).map(f64::from).collect()
                        }
                        "float" => {
                            let (zeros, bytes) =
                                numbers.floats(element, n * blocks, 0.0, f64::from(1 << bits));
                            weights.push(tensor("z", element, &dims(&[n, blocks]), &bytes));
                            zeros
                        }
                        _ => vec![f64::from(1 << (bits - 1)); n * blocks],
                    };
                    let (bias, bias_bytes) = numbers.floats(element, n, -1.0, 1.0);
                    weights.push(tensor("c", element, &[n as i64], &bias_bytes));
                    let all = codes(&raw, bits);
                    let w: Vec<f64> = (0..n * k)
                        .map(|i| {
                            let (r, c) = (i / k, i % k);
                            let at = r * blocks + c / block;
                            (f64::from(all[r * blocks * block + c]) - zeros[at]) * scales[at]
                        })
                        .collect();
                    let (x, x_bytes) = numbers.floats(element, m * k, -1.0, 1.0);
                    let inputs = ["a", "b", "s", if zero == "none" { "" } else { "z" }, "", "c"];
                    let attributes = [("K", k), ("N", n), ("block_size", block), ("bits", bits)];
                    let nodes = vec![ints(node("com.microsoft:MatMulNBits", &inputs, &["y"]), &attributes)];
                    let inputs = vec![("a", vec![m, k], x_bytes)];
                    let (graph, got) = Test { nodes, weights, element, inputs }.run();
                    let what =
                        format!("{bits} bits, blocks of {block}, K {k}, zero {zero}, element {element}");
                    let want = matmul(&x, &w, (m, n, k));
                    let want: Vec<f64> = want.iter().enumerate().map(|(i, y)| y + bias[i % n]).collect();
                    close(&what, element, &got, &want);
                    let packed = ["u2[", "u4[", "u8["][bits.ilog2() as usize - 1];
                    assert!(graph.contains("dequant_matmul") && graph.contains(packed), "{what}: {graph}");
                    assert!(!graph.contains("shr"), "{what} is unpacked: {graph}");
                }
            }
        }
    }
}

#[test]
fn weights_of_a_run_are_unpacked() {
    let mut numbers = Numbers(2);
    let (k, n) = (32, 8);
    let (_, scales) = numbers.floats(F32, n, 0.01, 0.05);
    let (a, b) = (value("a", F32, &["2", "32"]), value("b", U8, &["8", "1", "16"]));
    let attributes = [("K", k), ("N", n), ("block_size", 32), ("bits", 4)];
    let graph = Graph {
        nodes: vec![ints(node("com.microsoft:MatMulNBits", &["a", "b", "s"], &["y"]), &attributes)],
        initializers: vec![tensor("s", F32, &[n as i64, 1], &scales)],
        inputs: vec![a, b],
        outputs: vec![value("y", F32, &["2", "8"])],
        ..Graph::default()
    };
    let opsets = [Message::new().int(2, 21), Message::new().text(1, "com.microsoft").int(2, 1)];
    let model = Message::new().int(1, 10).all(8, &opsets).inside(7, &graph.message());
    let model = Model::from_bytes(model.0).unwrap();
    let bound = |dtype, dims: &[usize]| Bound::Tensor {
        ty: TensorType::new(dtype, Shape::new(dims).unwrap()),
        value: None,
    };
    let inputs = vec![("a".into(), bound(DType::F32, &[2, 32])), ("b".into(), bound(DType::U8, &[8, 1, 16]))];
    let outcome = model.specialise(&Bindings { inputs, ..Bindings::default() }, &CpuEvaluator).unwrap();
    let Outcome::Whole(whole) = outcome else { panic!("shapes are known") };
    assert!(!whole.graph.to_string().contains("dequant_matmul"));
}

#[test]
fn rows_of_packed_tables_are_gathered_and_indices_outside_give_zeros() {
    let mut numbers = Numbers(3);
    let (rows, indices) = (70usize, [0i64, 69, -1, -70, 12, 70]);
    for (element, bits) in [(U8, 2usize), (U8, 4), (U8, 8), (I4, 4), (U4, 4)] {
        for (block, k) in [(16, 64), (32, 80)] {
            for zero in [false, true] {
                for scale in [F32, F16] {
                    let blocks = usize::div_ceil(k, block);
                    let raw = numbers.bytes(rows * k * bits / 8);
                    let (scales, scale_bytes) = numbers.floats(scale, rows * blocks, 0.01, 0.05);
                    let signed = |c: u32| {
                        if element == I4 { f64::from((c as i32) << 28 >> 28) } else { f64::from(c) }
                    };
                    let of = if element == U8 { k * bits / 8 } else { k };
                    let mut weights = vec![
                        tensor("d", element, &[rows as i64, of as i64], &raw),
                        tensor("s", scale, &[rows as i64, blocks as i64], &scale_bytes),
                    ];
                    let middle = if element == U8 { f64::from(1 << (bits - 1)) } else { 0.0 };
                    let mut zeros = vec![middle; rows * blocks];
                    if zero {
                        let row = (blocks * bits).div_ceil(8);
                        let bytes = numbers.bytes(rows * row);
                        zeros = match element {
                            U8 => bytes
                                .chunks(row)
                                .flat_map(|r| codes(r, bits)[..blocks].to_vec())
                                .map(signed)
                                .collect(),
                            _ => codes(&bytes, 4)[..rows * blocks].iter().map(|c| signed(*c)).collect(),
                        };
                        let (count, dims) = match element {
                            U8 => (bytes.len(), [rows as i64, row as i64]),
                            _ => ((rows * blocks).div_ceil(2), [rows as i64, blocks as i64]),
                        };
                        weights.push(tensor("z", element, &dims, &bytes[..count]));
                    }
                    let all = codes(&raw, bits);
                    let mut want = Vec::new();
                    for i in indices {
                        let row = if i < 0 { i + rows as i64 } else { i };
                        let row = usize::try_from(row).ok().filter(|r| *r < rows);
                        want.extend((0..k).map(|c| {
                            let Some(r) = row else { return 0.0 };
                            let at = r * blocks + c / block;
                            (signed(all[r * k + c]) - zeros[at]) * scales[at]
                        }));
                    }
                    let raw: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
                    weights.push(tensor("i", wire::I64, &[indices.len() as i64], &raw));
                    let names: &[&str] = if zero { &["d", "i", "s", "z"] } else { &["d", "i", "s"] };
                    let mut gather = ints(
                        node("com.microsoft:GatherBlockQuantized", names, &["g"]),
                        &[("gather_axis", 0), ("quantize_axis", 1), ("block_size", block)],
                    );
                    if element == U8 {
                        gather = ints(gather, &[("bits", bits)]);
                    }
                    let nodes = vec![gather, node("Add", &["g", "a"], &["y"])];
                    let size = if scale == F16 { 2 } else { 4 };
                    let inputs = vec![("a", vec![1], vec![0u8; size])];
                    let (graph, got) = Test { nodes, weights, element: scale, inputs }.run();
                    let what = format!("{element} of {bits} bits, blocks of {block}, zero {zero}, {scale}");
                    close(&what, scale, &got, &want);
                    assert!(graph.contains("dequant_gather"), "{what}: {graph}");
                }
            }
        }
    }
}

/// What an 8-bit float says.
fn small_float(byte: u8, fraction: i32, bias: i32) -> f64 {
    let (sign, rest) = (if byte < 128 { 1.0 } else { -1.0 }, i32::from(byte & 127));
    let (exponent, part) = (rest >> fraction, f64::from(rest & ((1 << fraction) - 1)));
    let scale = f64::from(1 << fraction);
    match exponent {
        0 => sign * part / scale * 2f64.powi(1 - bias),
        _ => sign * (1.0 + part / scale) * 2f64.powi(exponent - bias),
    }
}

#[test]
fn dequantised_weights_stay_packed_in_every_layout() {
    let mut numbers = Numbers(4);
    let (m, n) = (3, 46);
    for element in [I4, U4, I8, U8, F8E4M3FN, F8E5M2] {
        for (k, block) in [(96usize, 32usize), (75, 16)] {
            for layout in ["columns", "transposed", "gemm"] {
                for scales_of in ["block", "row", "all"] {
                    for zero in [false, true] {
                        if zero && matches!(element, F8E4M3FN | F8E5M2) {
                            continue;
                        }
                        let dims = if layout == "columns" { [k, n] } else { [n, k] };
                        let axis = usize::from(layout != "columns");
                        let mut of = dims;
                        of[axis] = k.div_ceil(block);
                        let (count, shape) = match scales_of {
                            "block" => (of[0] * of[1], vec![of[0] as i64, of[1] as i64]),
                            "row" => (n, vec![n as i64]),
                            _ => (1, vec![]),
                        };
                        let bits = if matches!(element, I4 | U4) { 4 } else { 8 };
                        let number = |c: u32| match element {
                            I4 => f64::from((c as i32) << 28 >> 28),
                            I8 => f64::from(c as u8 as i8),
                            F8E4M3FN => small_float(c as u8, 3, 7),
                            F8E5M2 => small_float(c as u8, 2, 15),
                            _ => f64::from(c),
                        };
                        let mut raw = numbers.bytes((n * k * bits).div_ceil(8));
                        if matches!(element, F8E4M3FN | F8E5M2) {
                            // No NaN and nothing large.
                            raw.iter_mut().for_each(|b| *b &= 0b1011_1111);
                        }
                        let (scales, scale_bytes) = numbers.floats(F32, count, 0.01, 0.05);
                        let mut weights = vec![
                            tensor("w", element, &[dims[0] as i64, dims[1] as i64], &raw),
                            tensor("s", F32, &shape, &scale_bytes),
                        ];
                        let mut zeros = vec![0.0; count];
                        if zero {
                            let bytes = numbers.bytes((count * bits).div_ceil(8));
                            zeros = codes(&bytes, bits)[..count].iter().map(|c| number(*c)).collect();
                            weights.push(tensor("z", element, &shape, &bytes));
                        }
                        let all = codes(&raw, bits);
                        let w: Vec<f64> = (0..n * k)
                            .map(|i| {
                                let (r, c) = (i / k, i % k);
                                let stored = if axis == 0 { c * n + r } else { i };
                                let at = match (scales_of, axis) {
                                    ("block", 0) => c / block * n + r,
                                    ("block", _) => r * of[1] + c / block,
                                    ("row", _) => r,
                                    _ => 0,
                                };
                                (number(all[stored]) - zeros[at]) * scales[at]
                            })
                            .collect();
                        let names: &[&str] = if zero { &["w", "s", "z"] } else { &["w", "s"] };
                        let mut dequantize = node("DequantizeLinear", names, &["d"]);
                        dequantize = match scales_of {
                            "block" => ints(dequantize, &[("axis", axis), ("block_size", block)]),
                            "row" => ints(dequantize, &[("axis", 1 - axis)]),
                            _ => dequantize,
                        };
                        let nodes = match layout {
                            "columns" => vec![dequantize, node("MatMul", &["a", "d"], &["y"])],
                            "transposed" => vec![
                                dequantize,
                                node("Transpose", &["d"], &["t"]),
                                node("MatMul", &["a", "t"], &["y"]),
                            ],
                            _ => vec![dequantize, ints(node("Gemm", &["a", "d"], &["y"]), &[("transB", 1)])],
                        };
                        let (x, x_bytes) = numbers.floats(F32, m * k, -1.0, 1.0);
                        let inputs = vec![("a", vec![m, k], x_bytes)];
                        let test = Test { nodes, weights, element: F32, inputs };
                        let (graph, got) = test.run();
                        let what =
                            format!("{element}, K {k}, {layout}, a scale for each {scales_of}, {zero}");
                        close(&what, F32, &got, &matmul(&x, &w, (m, n, k)));
                        assert!(graph.contains("dequant_matmul"), "{what}: {graph}");
                    }
                }
            }
        }
    }
}

#[test]
fn large_weights_of_four_bits_are_shared_with_the_file() {
    let mut numbers = Numbers(5);
    let (k, n, block) = (512usize, 512usize, 128usize);
    let raw = numbers.bytes(n * k / 2);
    let (_, scales) = numbers.floats(F32, n * k / block, 0.01, 0.05);
    let dequantize =
        ints(node("DequantizeLinear", &["w", "s"], &["d"]), &[("axis", 1), ("block_size", block)]);
    let (_, x) = numbers.floats(F32, k, -1.0, 1.0);
    let test = Test {
        nodes: vec![dequantize, ints(node("Gemm", &["a", "d"], &["y"]), &[("transB", 1)])],
        weights: vec![
            tensor("w", I4, &[n as i64, k as i64], &raw),
            tensor("s", F32, &[n as i64, (k / block) as i64], &scales),
        ],
        element: F32,
        inputs: vec![("a", vec![1, k], x)],
    };
    let (graph, _) = test.run();
    assert!(graph.contains("param \"w as i4[512, 512]\": i4[512, 512]"), "{graph}");
    assert!(!graph.contains("param \"w\""), "{graph}");
    let model = test.model();
    let ty = TensorType::new(DType::F32, Shape::new(&[1, k]).unwrap());
    let inputs = vec![("a".to_string(), Bound::Tensor { ty, value: None })];
    model.specialise(&Bindings { inputs, ..Bindings::default() }, &CpuEvaluator).unwrap();
    let read = || model.weight("w as i4[512, 512]").unwrap();
    assert_eq!(read().bytes(), raw);
    assert_eq!(read().bytes().as_ptr(), read().bytes().as_ptr(), "nothing is copied");
    // As anything else reads it, it has a byte for each element.
    assert_eq!(model.weight("w").unwrap().ty().to_string(), "i8[512, 512]");
    let (elements, bytes) = model.parameters();
    assert_eq!((elements, bytes), (n * k + n * k / block, n * k / 2 + 4 * n * k / block));
}

#[test]
fn experts_of_few_bits_stay_packed_and_are_right() {
    let mut numbers = Numbers(6);
    let (experts, hidden, inner, tokens, k) = (3usize, 32usize, 48usize, 4usize, 2usize);
    for bits in [4usize, 8] {
        for block in [0usize, 16] {
            for zero in [false, true] {
                for (activation, fusion) in [("relu", 0), ("silu", 0), ("swiglu", 1), ("swiglu", 2)] {
                    let width = if fusion == 0 { inner } else { 2 * inner };
                    let mut weights = Vec::new();
                    let mut matrix = |name: [&str; 4], rows: usize, columns: usize| {
                        let size = if block == 0 { columns } else { block };
                        let blocks = columns / size;
                        let raw = numbers.bytes(experts * rows * columns * bits / 8);
                        let (e, r) = (experts as i64, rows as i64);
                        weights.push(tensor(name[0], U8, &[e, r, (columns * bits / 8) as i64], &raw));
                        let (scales, bytes) = numbers.floats(F32, experts * rows * blocks, 0.005, 0.02);
                        let dims = if block == 0 { vec![e, r] } else { vec![e, r, blocks as i64] };
                        weights.push(tensor(name[1], F32, &dims, &bytes));
                        let (bias, bytes) = numbers.floats(F32, experts * rows, -0.5, 0.5);
                        weights.push(tensor(name[2], F32, &[e, r], &bytes));
                        let mut zeros = vec![f64::from(1 << (bits - 1)); experts * rows * blocks];
                        if zero {
                            let (along, of) =
                                if block == 0 { (rows, experts) } else { (blocks, experts * rows) };
                            let row = (along * bits).div_ceil(8);
                            let bytes = numbers.bytes(of * row);
                            let each = bytes.chunks(row).flat_map(|z| codes(z, bits)[..along].to_vec());
                            zeros = each.map(f64::from).collect();
                            let dims = if block == 0 { vec![e, row as i64] } else { vec![e, r, row as i64] };
                            weights.push(tensor(name[3], U8, &dims, &bytes));
                        }
                        let all = codes(&raw, bits);
                        let w: Vec<f64> = (0..experts * rows * columns)
                            .map(|i| {
                                let at = i / columns * blocks + i % columns / size;
                                (f64::from(all[i]) - zeros[at]) * scales[at]
                            })
                            .collect();
                        (w, bias)
                    };
                    let (w1, b1) = matrix(["w1", "s1", "b1", "z1"], width, hidden);
                    let (w2, b2) = matrix(["w2", "s2", "b2", "z2"], hidden, inner);
                    let (x, x_bytes) = numbers.floats(F32, tokens * hidden, -1.0, 1.0);
                    let (router, router_bytes) = numbers.floats(F32, tokens * experts, -2.0, 2.0);
                    let mut want = vec![0.0; tokens * hidden];
                    for t in 0..tokens {
                        let scores = &router[t * experts..][..experts];
                        let mut best: Vec<usize> = (0..experts).collect();
                        best.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
                        let sum: f64 = best[..k].iter().map(|e| scores[*e].exp()).sum();
                        for e in &best[..k] {
                            let row = &x[t * hidden..][..hidden];
                            let y = matmul(row, &w1[e * width * hidden..], (1, width, hidden));
                            let y: Vec<f64> = y.iter().zip(&b1[e * width..]).map(|(y, b)| y + b).collect();
                            let silu = |v: f64, alpha: f64| v / (1.0 + (-alpha * v).exp());
                            let swiglu = |g: f64, l: f64| silu(g.min(7.0), 1.5) * (l.clamp(-7.0, 7.0) + 0.5);
                            let act = |i: usize| match (activation, fusion) {
                                ("relu", _) => y[i].max(0.0),
                                ("silu", _) => silu(y[i], 1.0),
                                (_, 1) => swiglu(y[2 * i], y[2 * i + 1]),
                                _ => swiglu(y[i], y[inner + i]),
                            };
                            let middle: Vec<f64> = (0..inner).map(act).collect();
                            let z = matmul(&middle, &w2[e * hidden * inner..], (1, hidden, inner));
                            for (i, z) in z.iter().enumerate() {
                                want[t * hidden + i] += (z + b2[e * hidden + i]) * scores[*e].exp() / sum;
                            }
                        }
                    }
                    let names = ["a", "r", "w1", "s1", "b1", "w2", "s2", "b2", "", "", "", "z1", "z2"];
                    let names = if zero { &names[..] } else { &names[..8] };
                    let attributes = [
                        ("k", k),
                        ("expert_weight_bits", bits),
                        ("swiglu_fusion", fusion),
                        ("block_size", block),
                    ];
                    let attributes = if block == 0 { &attributes[..3] } else { &attributes[..] };
                    let moe = ints(node("com.microsoft:QMoE", names, &["y"]), attributes)
                        .inside(5, &string_attribute("activation_type", activation))
                        .inside(5, &float_attribute("activation_alpha", 1.5))
                        .inside(5, &float_attribute("activation_beta", 0.5))
                        .inside(5, &float_attribute("swiglu_limit", 7.0));
                    let inputs = vec![
                        ("a", vec![tokens, hidden], x_bytes),
                        ("r", vec![tokens, experts], router_bytes),
                    ];
                    let (graph, got) = Test { nodes: vec![moe], weights, element: F32, inputs }.run();
                    let what = format!("{bits} bits, blocks of {block}, zero {zero}, {activation} {fusion}");
                    close(&what, F32, &got, &want);
                    assert!(graph.matches("= dequant_matmul").count() == 2, "{what}: {graph}");
                }
            }
        }
    }
}
