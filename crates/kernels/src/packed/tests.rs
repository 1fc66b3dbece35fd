//! Matmuls with packed weights on a device with cooperative matrices, run by the interpreter and held against sums in
//! f64.

use olivine_cases::{Rng, normal, uniform};
use olivine_ir::op::{DequantMatMul, Scaling};
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
    check_tuned(format, dtype, sizes, experts, &Record::new()).0
}

/// The same with a record of measured choices; and the choice that was made.
fn check_tuned(
    format: BlockFormat,
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
    let op = DequantMatMul { grouped: experts.is_some(), ..DequantMatMul::scaled(scaling) };
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
    let bound = if dtype == DType::F32 {
        2e-6
    } else if dtype == DType::F16 {
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
        let kernels = check(*format, DType::F16, [18, 21, k], None);
        assert!(kernels.iter().any(|name| name == "matmul_coop"), "{format}: {kernels:?}");
    }
    check(BlockFormat::Q4_K, DType::BF16, [33, 40, 512], None);
    check(BlockFormat::Q8_0, DType::F16, [40, 35, 96], None);
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
        let (_, decision) = check_tuned(format, DType::F32, sizes, None, &Record::new());
        let decision = decision.unwrap();
        assert!(decision.candidates.len() > 8, "{decision:?}");
        for cut in decision.candidates.iter().filter(|cut| !cut.contains("/32")) {
            let mut record = Record::new();
            record.set(decision.family, &decision.class, cut);
            let chosen = check_tuned(format, DType::F32, sizes, None, &record).1.unwrap().chosen;
            assert_eq!(&chosen, cut);
        }
    }
}

#[test]
fn small_m_and_f32_need_no_cooperative_matrices() {
    for (format, k) in [(BlockFormat::Q4_K, 512), (BlockFormat::Q6_K, 256), (BlockFormat::MXFP4, 96)] {
        for m in [1, 3, 8] {
            let kernels = check(format, DType::F32, [m, 21, k], None);
            assert_eq!(kernels, ["quantize_rows", "dequant_gemv"]);
        }
        assert_eq!(check(format, DType::F32, [17, 21, k], None)[0], "matmul_tiled");
    }
    check(BlockFormat::U4, DType::F16, [2, 9, 160], None);
}

#[test]
fn rows_of_any_expert_and_of_none_get_their_sums() {
    let few = check(BlockFormat::Q4_0, DType::F32, [5, 13, 64], Some(3));
    assert_eq!(few, ["quantize_rows", "dequant_gemv"]);
    check(BlockFormat::Q4_K, DType::F32, [30, 13, 256], Some(3));
    let many = check(BlockFormat::Q8_0, DType::F16, [40, 24, 64], Some(3));
    assert!(many.iter().any(|name| name == "grouped_matmul_coop"), "{many:?}");
}
