//! Matmuls with packed weights on a device with cooperative matrices, run by the interpreter and held against sums in
//! f64.

use olivine_cases::{Rng, normal, uniform};
use olivine_ir::op::{Arg, Binary, DequantMatMul, Instr, InstrOp, Region, ScalarOp, Scaling};
use olivine_ir::{BlockFormat, DType, Op, Shape, Tensor, TensorType, ValueId};

use olivine_program::{Decision, Record};

use crate::matmul::coop::tests::{card, run};
use crate::site::{Memory, Operand, Site, Target};

fn operand(id: u32, ty: TensorType) -> Operand {
    Target { ty, memory: Memory::Value(ValueId::new(id)) }.as_operand()
}

/// The kernels of a matmul `[m, k]` by a weight `[n, k]`, or one of several where rows have experts; the result is
/// compared with sums of the decoded elements.
fn check(format: BlockFormat, dtype: DType, sizes: [usize; 3], experts: Option<usize>) -> Vec<String> {
    check_tuned((format, false), dtype, sizes, experts, &Record::new()).0
}

/// The same with a record of measured choices; and the choice that was made.
fn check_tuned(
    (format, fast): (BlockFormat, bool),
    dtype: DType,
    [m, n, k]: [usize; 3],
    experts: Option<usize>,
    tuning: &Record,
) -> (Vec<String>, Option<Decision>) {
    let (caps, mut rng) = (card(), Rng::new(3));
    let count = experts.unwrap_or(1);
    let bare = format.ggml_id().is_none();
    let x_ty = TensorType::new(dtype, Shape::new(&[m, k]).unwrap());
    let dims: &[usize] = if experts.is_some() { &[count, n, k] } else { &[n, k] };
    let w_ty = TensorType::packed(format, dims).unwrap();
    let ids_ty = TensorType::new(DType::I32, Shape::new(&[m]).unwrap());
    let scale_dims = [&dims[..dims.len() - 1], &[k.div_ceil(32)]].concat();
    let scale_ty = TensorType::new(DType::F32, Shape::new(&scale_dims).unwrap());
    let x = uniform(-1.0, 1.0).tensor(x_ty, &mut rng).unwrap();
    let w = normal().tensor(w_ty, &mut rng).unwrap();
    let scales = uniform(0.1, 0.2).tensor(scale_ty, &mut rng).unwrap();
    // Some rows have no expert.
    let ids: Vec<i32> = (0..m).map(|i| if i % 7 == 3 { -1 } else { (i * i % count) as i32 }).collect();
    let target = Target {
        ty: TensorType::new(dtype, Shape::new(&[m, n]).unwrap()),
        memory: Memory::Value(ValueId::new(4)),
    };
    let mut operands = vec![operand(0, x_ty), operand(1, w_ty)];
    operands.extend(experts.map(|_| operand(2, ids_ty)));
    operands.extend(bare.then(|| operand(3, scale_ty)));
    let scaling = if bare { Scaling { block: 32, zero: false, offset: 1 } } else { Scaling::NONE };
    let op = DequantMatMul { grouped: experts.is_some(), fast, ..DequantMatMul::scaled(scaling) };
    let mut site = Site::new(&caps, operands, vec![target]);
    site.tuning = tuning;
    crate::lower(&Op::DequantMatMul(op), &mut site).unwrap();

    let bytes = |t: &Tensor| t.data().as_bytes().to_vec();
    let ids_bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let size = m * n * dtype.size();
    let memory =
        run(&site, [padded(bytes(&x)), padded(bytes(&w)), ids_bytes, bytes(&scales), vec![0xff; size]]);
    let found = &memory[&Memory::Value(ValueId::new(4))];
    let found = olivine_ir::Data::from_bytes(dtype, &found[..size]).unwrap();
    let found = Tensor::from_data([m, n], found).unwrap().to_f64();

    let mut values = vec![0.0; count * n * k];
    olivine_quant::decode(format, w.data().as_bytes(), &mut values).unwrap();
    let (x, scales) = (x.to_f64(), scales.to_f64());
    let value = |line: usize, l: usize| {
        let value = f64::from(values[line * k + l]);
        if bare { (value - 1.0) * scales[line * k.div_ceil(32) + l / 32] } else { value }
    };
    let mut wanted = Vec::new();
    for i in 0..m {
        let expert = if experts.is_some() { usize::try_from(ids[i]).ok() } else { Some(0) };
        for j in 0..n {
            let term = |e: usize, l: usize| x[i * k + l] * value(e * n + j, l);
            wanted.push(expert.map_or(0.0, |e| (0..k).map(|l| term(e, l)).sum::<f64>()));
        }
    }
    let largest = wanted.iter().fold(0f64, |a, b| a.max(b.abs()));
    let bound = if dtype == DType::F32 && !fast {
        2e-6
    } else if dtype != DType::BF16 {
        2e-3
    } else {
        1.2e-2
    };
    for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        let error = (found - wanted).abs() / largest;
        assert!(error < bound, "{format} {dtype} {m}x{n}x{k}: element {i} is {found}, not {wanted}");
    }
    (site.emitted.iter().map(|e| e.kernel.name.clone()).collect(), site.decisions.pop())
}

/// Buffers end where a word does.
fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[test]
fn every_format_is_decoded_on_its_way_to_cooperative_matrices() {
    for format in BlockFormat::ALL {
        let k = format.elements().max(32);
        let kernels = check(*format, DType::F16, [66, 21, k], None);
        assert!(kernels.iter().any(|name| name == "matmul_coop"), "{format}: {kernels:?}");
    }
    check(BlockFormat::Q4_K, DType::BF16, [83, 40, 512], None);
    check(BlockFormat::Q8_0, DType::F16, [90, 35, 96], None);
}

#[test]
fn lanes_decode_every_format_into_matrices_for_a_few_dozen_rows() {
    let by = ["pack_rows", "dequant_matmul_coop"];
    for format in BlockFormat::ALL {
        let k = 2 * format.elements().max(32) + if format.elements() == 1 { 8 } else { 0 };
        assert_eq!(check(*format, DType::F16, [18, 21, k], None)[..2], by, "{format}");
    }
    assert_eq!(check(BlockFormat::Q4_K, DType::BF16, [33, 40, 512], None)[..2], by);
    assert_eq!(check(BlockFormat::Q8_0, DType::F16, [64, 35, 96], None)[..2], by);
    check(BlockFormat::U4, DType::F16, [7, 35, 74], None);
}

#[test]
fn every_cut_of_matrices_for_a_few_dozen_rows_gives_the_sums() {
    for (format, sizes) in [(BlockFormat::Q4_K, [9, 70, 1536]), (BlockFormat::Q6_K, [20, 33, 768])] {
        let (_, decision) = check_tuned((format, true), DType::F32, sizes, None, &Record::new());
        let decision = decision.unwrap();
        assert!(decision.candidates.len() > 8, "{decision:?}");
        for cut in &decision.candidates {
            let mut record = Record::new();
            record.set(decision.family, &decision.class, cut);
            let (kernels, chosen) = check_tuned((format, true), DType::F32, sizes, None, &record);
            assert_eq!(&chosen.unwrap().chosen, cut);
            assert_eq!(kernels[..2], ["pack_rows", "dequant_matmul_coop"]);
        }
    }
}

#[test]
fn every_format_has_a_gemv_and_every_cut_of_it_gives_the_sums() {
    for format in BlockFormat::ALL {
        check(*format, DType::F32, [1, 5, 512], None);
    }
    for (format, m) in
        [(BlockFormat::Q4_K, 1), (BlockFormat::Q5_K, 2), (BlockFormat::Q4_0, 1), (BlockFormat::U4, 1)]
    {
        let sizes = [m, 5, 768];
        let (_, decision) = check_tuned((format, false), DType::F32, sizes, None, &Record::new());
        let decision = decision.unwrap();
        assert!(decision.candidates.len() > 8, "{decision:?}");
        for cut in decision.candidates.iter().filter(|cut| !cut.contains("/32")) {
            let mut record = Record::new();
            record.set(decision.family, &decision.class, cut);
            let chosen = check_tuned((format, false), DType::F32, sizes, None, &record).1.unwrap().chosen;
            assert_eq!(&chosen, cut);
        }
    }
}

#[test]
fn small_m_and_f32_need_no_cooperative_matrices() {
    for (format, k) in [(BlockFormat::Q4_K, 512), (BlockFormat::Q6_K, 256), (BlockFormat::MXFP4, 96)] {
        for m in [1, 3, 8] {
            assert_eq!(check(format, DType::F32, [m, 21, k], None), ["dequant_gemv"]);
        }
        assert_eq!(check(format, DType::F32, [17, 21, k], None)[0], "matmul_tiled");
    }
    check(BlockFormat::U4, DType::F16, [2, 9, 160], None);
}

#[test]
fn x_of_f32_that_may_be_rounded_goes_through_matrices_of_f16() {
    let kernels = |m: usize, experts| {
        check_tuned((BlockFormat::Q4_K, true), DType::F32, [m, 21, 512], experts, &Record::new()).0
    };
    assert_eq!(kernels(2, None), ["dequant_gemv"]);
    assert_eq!(kernels(18, None)[..2], ["pack_rows", "dequant_matmul_coop"]);
    let many = kernels(66, None);
    assert!(many.iter().any(|name| name == "matmul_coop"), "{many:?}");
    let grouped = kernels(40, Some(3));
    assert!(grouped.iter().any(|name| name == "grouped_matmul_coop"), "{grouped:?}");
}

#[test]
fn digits_of_much_of_x_are_made_once_for_all_workgroups() {
    for format in [BlockFormat::Q4_K, BlockFormat::Q6_K, BlockFormat::Q8_0, BlockFormat::U4] {
        for dtype in [DType::F32, DType::F16] {
            let kernels = check(format, dtype, [2, 5, 16384], None);
            assert_eq!(kernels, ["quantize_rows", "dequant_gemv"], "{format} {dtype}");
        }
    }
}

#[test]
fn rows_of_any_expert_and_of_none_get_their_sums() {
    let few = check(BlockFormat::Q4_0, DType::F32, [5, 13, 64], Some(3));
    assert_eq!(few, ["dequant_gemv"]);
    check(BlockFormat::Q4_K, DType::F32, [30, 13, 256], Some(3));
    let many = check(BlockFormat::Q8_0, DType::F16, [40, 24, 64], Some(3));
    assert!(many.iter().any(|name| name == "grouped_matmul_coop"), "{many:?}");
}

#[test]
fn a_gate_and_what_it_multiplies_are_one_dispatch_of_matrices() {
    for (format, [m, n, k]) in [(BlockFormat::Q4_K, [9, 37, 512]), (BlockFormat::IQ4_XS, [33, 20, 256])] {
        let (caps, mut rng) = (card(), Rng::new(5));
        let ty = |dims: &[usize]| TensorType::new(DType::F32, Shape::new(dims).unwrap());
        let (x_ty, out_ty) = (ty(&[m, k]), ty(&[m, n]));
        let w_ty = TensorType::packed(format, [n, k]).unwrap();
        let x = uniform(-1.0, 1.0).tensor(x_ty, &mut rng).unwrap();
        let weights = [0, 1].map(|_| normal().tensor(w_ty, &mut rng).unwrap());
        let product = Instr {
            op: InstrOp::Scalar(ScalarOp::Binary(Binary::Mul)),
            args: vec![Arg::Input(0), Arg::Input(1)],
        };
        let region = Region { inputs: 2, instrs: vec![product], outputs: vec![Arg::Instr(0)] };
        let gate = DequantMatMul { fast: true, ..DequantMatMul::scaled(Scaling::NONE) };
        let other = DequantMatMul { epilogue: Some(region), ..gate.clone() };
        let target = |id| Target { ty: out_ty, memory: Memory::Value(ValueId::new(id)) };
        let operands = [(0, x_ty), (1, w_ty), (0, x_ty), (2, w_ty), (3, out_ty)];
        let operands = operands.map(|(id, ty)| operand(id, ty)).to_vec();
        let mut site = Site::new(&caps, operands, vec![target(3), target(4)]);
        let ops = [Op::DequantMatMul(gate), Op::DequantMatMul(other)];
        super::together(&[(&ops[0], 2), (&ops[1], 3)], &mut site).unwrap();
        let names: Vec<&str> = site.emitted.iter().map(|e| e.kernel.name.as_str()).collect();
        assert_eq!(names, ["pack_rows", "dequant_matmul_coop"]);

        let bytes = |t: &Tensor| padded(t.data().as_bytes().to_vec());
        let empty = || vec![0xff; 4 * m * n];
        let [first, second] = weights.each_ref().map(bytes);
        let memory = run(&site, [bytes(&x), first, second, empty(), empty()]);
        let found = olivine_ir::Data::from_bytes(DType::F32, &memory[&target(4).memory]).unwrap();
        let found = Tensor::from_data([m, n], found).unwrap().to_f64();
        let x = x.to_f64();
        let sums = weights.map(|w| {
            let mut values = vec![0.0; n * k];
            olivine_quant::decode(format, w.data().as_bytes(), &mut values).unwrap();
            let dot = |i: usize| -> f64 {
                (0..k).map(|l| x[i / n * k + l] * f64::from(values[i % n * k + l])).sum()
            };
            (0..m * n).map(dot).collect::<Vec<f64>>()
        });
        let wanted: Vec<f64> = sums[0].iter().zip(&sums[1]).map(|(a, b)| a * b).collect();
        let largest = wanted.iter().fold(0f64, |a, b| a.max(b.abs()));
        for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert!(
                (found - wanted).abs() / largest < 2e-3,
                "{format}: element {i} is {found}, not {wanted}"
            );
        }
    }
}
