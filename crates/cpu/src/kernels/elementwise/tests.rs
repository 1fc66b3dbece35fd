//! Programs against plain loops over positions.

use half::{bf16, f16};
use olivine_ir::op::{Activation, Arg, Binary, Compare, Instr, InstrOp, Region, ScalarOp, Unary};
use olivine_ir::{DType, Shape, TensorType};

use super::{FusedRegion, Program, fused};
use crate::operand::{Operand, OperandSource, Target};

fn scalar_op(op: &ScalarOp, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let dtypes: Vec<_> = x.iter().map(|o| o.ty.dtype).collect();
    fused(&Program::single(*op, &dtypes), x, out);
}

fn ty(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, Shape::new(dims).unwrap())
}

fn packed<'a, T: bytemuck::Pod>(dtype: DType, dims: &[usize], data: &'a [T]) -> Operand<'a> {
    Operand::packed(ty(dtype, dims), bytemuck::cast_slice(data))
}

fn run1<T: bytemuck::Pod, U: bytemuck::Pod + Default>(
    op: ScalarOp,
    from: DType,
    to: DType,
    x: &[T],
) -> Vec<U> {
    let mut out = vec![U::default(); x.len()];
    let operand = packed(from, &[x.len()], x);
    let target = Target { ty: ty(to, &[x.len()]), bytes: bytemuck::cast_slice_mut(&mut out) };
    scalar_op(&op, &[operand], &mut [target]);
    out
}

fn run2<T: bytemuck::Pod + Default>(op: Binary, dtype: DType, a: &[T], b: &[T]) -> Vec<T> {
    let mut out = vec![T::default(); a.len()];
    let x = [packed(dtype, &[a.len()], a), packed(dtype, &[b.len()], b)];
    let target = Target { ty: ty(dtype, &[a.len()]), bytes: bytemuck::cast_slice_mut(&mut out) };
    scalar_op(&ScalarOp::Binary(op), &x, &mut [target]);
    out
}

fn instr(op: ScalarOp, args: &[Arg]) -> Instr {
    Instr { op: InstrOp::Scalar(op), args: args.to_vec() }
}

const ADD: ScalarOp = ScalarOp::Binary(Binary::Add);
const MUL: ScalarOp = ScalarOp::Binary(Binary::Mul);

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 2_654_435_761) % 1009) as f32 / 100.0 - 5.0).collect()
}

/// The element of an operand at the output's coordinates, by definition.
fn at(operand: &Operand<'_>, shape: &Shape, mut flat: usize) -> f32 {
    let lead = shape.rank() - operand.shape().rank();
    let mut position = operand.offset as isize;
    for axis in (0..shape.rank()).rev() {
        let i = flat % shape[axis];
        flat /= shape[axis];
        if axis >= lead && operand.shape()[axis - lead] != 1 {
            position += i as isize * operand.strides[axis - lead];
        }
    }
    operand.elements::<f32>()[position as usize]
}

fn check_add(a: Operand<'_>, b: Operand<'_>) {
    let shape = a.shape().broadcast(b.shape()).unwrap();
    let mut out = vec![0f32; shape.numel()];
    let target = Target { ty: TensorType::new(DType::F32, shape), bytes: bytemuck::cast_slice_mut(&mut out) };
    scalar_op(&ADD, &[a, b], &mut [target]);
    for (i, o) in out.iter().enumerate() {
        assert_eq!(*o, at(&a, &shape, i) + at(&b, &shape, i), "{} + {} at {i}", a.ty, b.ty);
    }
}

#[test]
fn operands_broadcast_on_leading_middle_and_trailing_axes() {
    let cases: &[(&[usize], &[usize])] = &[
        (&[], &[]),
        (&[5], &[]),
        (&[3, 1, 7], &[1, 5, 7]),
        (&[2, 1, 3, 1], &[1, 4, 1, 5]),
        (&[4, 1], &[1, 700]),
        (&[130, 3000], &[3000]),
        (&[130, 3000], &[130, 1]),
        (&[64, 2, 300], &[64, 1, 300]),
        (&[2, 1, 2, 1, 2, 1, 2, 3], &[1, 2, 1, 2, 1, 2, 1, 3]),
        (&[0, 3], &[1, 3]),
        (&[300, 9], &[9]),
        (&[1, 1], &[1, 1, 1]),
    ];
    let data = numbers(400_000);
    for (a, b) in cases {
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        let (na, nb) = (count(a), count(b));
        check_add(packed(DType::F32, a, &data[..na]), packed(DType::F32, b, &data[7..7 + nb]));
    }
}

#[test]
fn operands_are_read_through_any_strides() {
    let data = numbers(200_000);
    let strided = |dims: &[usize], strides: &[isize], offset| {
        let mut operand = packed(DType::F32, dims, &data);
        operand.strides[..strides.len()].copy_from_slice(strides);
        operand.offset = offset;
        operand
    };
    check_add(strided(&[400, 300], &[1, 400], 3), strided(&[400, 300], &[300, 1], 0));
    check_add(strided(&[40, 30], &[-30, -1], 1199), strided(&[40, 30], &[0, 2], 5));
    check_add(strided(&[8, 16, 5, 64], &[5120, 64, 1024, 1], 0), strided(&[8, 1, 5, 64], &[1, 0, 8, 40], 0));
    check_add(strided(&[1000], &[-1], 999), strided(&[1000], &[3], 1));
}

#[test]
fn an_operand_may_share_the_targets_bytes() {
    let (x, bias) = (numbers(5000 * 3), numbers(3));
    let region = Region {
        inputs: 2,
        instrs: vec![
            instr(ADD, &[Arg::Input(0), Arg::Input(1)]),
            instr(MUL, &[Arg::Instr(0), Arg::Input(0)]),
        ],
        outputs: vec![Arg::Instr(1)],
    };
    let program = Program::new(&region, &[DType::F32; 2]);
    let mut out = x.clone();
    let mut operand = packed::<f32>(DType::F32, &[5000, 3], &[]);
    operand.source = OperandSource::Target;
    let target = Target { ty: ty(DType::F32, &[5000, 3]), bytes: bytemuck::cast_slice_mut(&mut out) };
    fused(&program, &[operand, packed(DType::F32, &[3], &bias)], &mut [target]);
    for i in 0..x.len() {
        assert_eq!(out[i], (x[i] + bias[i % 3]) * x[i]);
    }
}

#[test]
fn regions_have_several_outputs_splats_and_shared_results() {
    let x = numbers(3000);
    let region = Region {
        inputs: 1,
        instrs: vec![
            Instr { op: InstrOp::Splat(DType::F32, 2.0), args: vec![] },
            instr(MUL, &[Arg::Input(0), Arg::Instr(0)]),
            instr(ADD, &[Arg::Instr(1), Arg::Instr(1)]),
            instr(ScalarOp::Compare(Compare::Gt), &[Arg::Instr(2), Arg::Instr(0)]),
            instr(ScalarOp::Cast(DType::I32), &[Arg::Instr(2)]),
        ],
        outputs: vec![Arg::Instr(1), Arg::Instr(3), Arg::Instr(4), Arg::Input(0), Arg::Instr(1)],
    };
    let program = Program::new(&region, &[DType::F32]);
    let (mut a, mut b, mut c) = (vec![0f32; 3000], vec![0u8; 3000], vec![0i32; 3000]);
    let (mut d, mut e) = (vec![0f32; 3000], vec![0f32; 3000]);
    let mut targets = [
        Target { ty: ty(DType::F32, &[3000]), bytes: bytemuck::cast_slice_mut(&mut a) },
        Target { ty: ty(DType::Bool, &[3000]), bytes: &mut b },
        Target { ty: ty(DType::I32, &[3000]), bytes: bytemuck::cast_slice_mut(&mut c) },
        Target { ty: ty(DType::F32, &[3000]), bytes: bytemuck::cast_slice_mut(&mut d) },
        Target { ty: ty(DType::F32, &[3000]), bytes: bytemuck::cast_slice_mut(&mut e) },
    ];
    fused(&program, &[packed(DType::F32, &[3000], &x)], &mut targets);
    for i in 0..3000 {
        assert_eq!((a[i], e[i], d[i]), (x[i] * 2.0, x[i] * 2.0, x[i]));
        assert_eq!((b[i], c[i]), (u8::from(x[i] * 4.0 > 2.0), (x[i] * 4.0) as i32));
    }
}

#[test]
fn half_regions_round_after_every_step() {
    let x: Vec<f16> = numbers(2500).into_iter().map(f16::from_f32).collect();
    let bias: Vec<f16> = numbers(50).into_iter().map(f16::from_f32).collect();
    let region = Region {
        inputs: 2,
        instrs: vec![
            instr(MUL, &[Arg::Input(0), Arg::Input(0)]),
            instr(ADD, &[Arg::Instr(0), Arg::Input(1)]),
            instr(ScalarOp::Cast(DType::F32), &[Arg::Instr(1)]),
        ],
        outputs: vec![Arg::Instr(1), Arg::Instr(2)],
    };
    let program = Program::new(&region, &[DType::F16; 2]);
    let (mut out, mut wide) = (vec![f16::ZERO; 2500], vec![0f32; 2500]);
    let mut targets = [
        Target { ty: ty(DType::F16, &[50, 50]), bytes: bytemuck::cast_slice_mut(&mut out) },
        Target { ty: ty(DType::F32, &[50, 50]), bytes: bytemuck::cast_slice_mut(&mut wide) },
    ];
    let operands = [packed(DType::F16, &[50, 50], &x), packed(DType::F16, &[50], &bias)];
    fused(&program, &operands, &mut targets);
    for i in 0..2500 {
        let square = f16::from_f32(x[i].to_f32() * x[i].to_f32());
        let expected = f16::from_f32(square.to_f32() + bias[i % 50].to_f32());
        assert_eq!((out[i], wide[i]), (expected, expected.to_f32()));
    }
}

#[test]
fn an_epilogue_computes_what_the_whole_region_computes() {
    let (m, n) = (37, 768);
    let (product, bias, residual) = (numbers(m * n), numbers(n), numbers(m * n + 1));
    let region = Region {
        inputs: 3,
        instrs: vec![
            instr(ADD, &[Arg::Input(0), Arg::Input(1)]),
            instr(ScalarOp::Unary(Unary::Gelu), &[Arg::Instr(0)]),
            instr(ADD, &[Arg::Instr(1), Arg::Input(2)]),
        ],
        outputs: vec![Arg::Instr(2)],
    };
    let program = Program::new(&region, &[DType::F32; 3]);
    assert_eq!(program.output_dtype(), Some(DType::F32));
    let shape = Shape::new(&[m, n]).unwrap();
    let extra = [packed(DType::F32, &[n], &bias), packed(DType::F32, &[m, n], &residual[1..])];
    let mut whole = vec![0f32; m * n];
    let target = Target { ty: ty(DType::F32, &[m, n]), bytes: bytemuck::cast_slice_mut(&mut whole) };
    fused(&program, &[packed(DType::F32, &[m, n], &product), extra[0], extra[1]], &mut [target]);
    let epilogue = FusedRegion::new(&program, &extra, &shape);
    let mut by_runs = vec![0f32; m * n];
    let mut in_place = product.clone();
    let mut start = 0;
    for len in [1, 768, 767, 100, 3000, 5, m * n].into_iter().cycle() {
        let end = (start + len).min(m * n);
        epilogue.apply(start, &product[start..end], &mut by_runs[start..end]);
        epilogue.apply_in_place(start, &mut in_place[start..end]);
        start = end;
        if start == m * n {
            break;
        }
    }
    assert_eq!(by_runs, whole);
    assert_eq!(in_place, whole);
}

#[test]
fn a_wide_accumulator_is_rounded_before_it_rides() {
    let region = Region {
        inputs: 1,
        instrs: vec![instr(ADD, &[Arg::Input(0), Arg::Input(0)])],
        outputs: vec![Arg::Instr(0)],
    };
    let program = Program::new(&region, &[DType::BF16]);
    let epilogue = FusedRegion::new(&program, &[], &Shape::new(&[3]).unwrap());
    let mut out = [bf16::ZERO; 3];
    epilogue.apply_wide(0, &[1.001, 3.0, -2.49], &mut out);
    let expected = [1.001, 3.0, -2.49].map(|x| bf16::from_f32(2.0 * bf16::from_f32(x).to_f32()));
    assert_eq!(out, expected);
}

#[test]
fn integers_wrap_and_division_by_zero_is_zero() {
    let (a, b) = ([7, -7, i32::MIN, 5, -8, 3], [2, 2, -1, 0, 3, -2]);
    assert_eq!(run2(Binary::Div, DType::I32, &a, &b), [3, -3, i32::MIN, 0, -2, -1]);
    assert_eq!(run2(Binary::Rem, DType::I32, &a, &b), [1, -1, 0, 0, -2, 1]);
    assert_eq!(run2(Binary::Mod, DType::I32, &a, &b), [1, 1, 0, 0, 1, -1]);
    assert_eq!(run2(Binary::Add, DType::I8, &[100i8, -128], &[100, -1]), [-56, 127]);
    assert_eq!(run2(Binary::Mul, DType::U8, &[16u8, 3], &[17, 3]), [16, 9]);
    let abs: Vec<i8> = run1(ScalarOp::Unary(Unary::Abs), DType::I8, DType::I8, &[i8::MIN, -3, 4]);
    assert_eq!(abs, [i8::MIN, 3, 4]);
}

#[test]
fn integer_powers_and_shifts_keep_their_rules() {
    let base = [2i64, -1, -1, 3, 0, 1, -2, 10];
    let exponent = [10i64, -3, -2, -1, -1, i64::MIN, 3, 0];
    assert_eq!(run2(Binary::Pow, DType::I64, &base, &exponent), [1024, -1, 1, 0, 0, 1, -8, 1]);
    assert_eq!(run2(Binary::Pow, DType::U8, &[3u8, 2, 0], &[5, 9, 0]), [243, 0, 1]);
    assert_eq!(run2(Binary::Shl, DType::I8, &[1i8, 3, -1], &[7, 8, 1]), [-128, 0, -2]);
    assert_eq!(run2(Binary::Shr, DType::I8, &[-128i8, -5, 127], &[7, 100, 8]), [-1, -1, 0]);
    assert_eq!(run2(Binary::Shr, DType::U32, &[u32::MAX, 8], &[32, 2]), [0, 2]);
}

#[test]
fn maximum_and_minimum_propagate_nan_from_either_side() {
    let (a, b) = ([f32::NAN, 1.0, 2.0, f32::NEG_INFINITY], [1.0, f32::NAN, 3.0, 0.0]);
    let max = run2(Binary::Max, DType::F32, &a, &b);
    let min = run2(Binary::Min, DType::F32, &a, &b);
    assert!(max[0].is_nan() && max[1].is_nan() && min[0].is_nan() && min[1].is_nan());
    assert_eq!((max[2], max[3], min[2], min[3]), (3.0, 0.0, 2.0, f32::NEG_INFINITY));
}

#[test]
fn float_remainders_take_the_sign_their_rule_says() {
    let (a, b) = ([5.5f32, -5.5, 5.5, -6.0, 1.0], [2.0f32, 2.0, -2.0, 2.0, f32::INFINITY]);
    assert_eq!(run2(Binary::Rem, DType::F32, &a, &b), [1.5, -1.5, 1.5, -0.0, 1.0]);
    assert_eq!(run2(Binary::Mod, DType::F32, &a, &b), [1.5, 0.5, -0.5, 0.0, 1.0]);
}

#[test]
fn powers_of_negative_bases_with_integral_exponents_are_right() {
    let (a, b) = ([-2f32, -2.0, -8.0, 0.0, 4.0], [3.0f32, -2.0, 0.5, 0.0, 0.5]);
    let out = run2(Binary::Pow, DType::F32, &a, &b);
    assert_eq!((out[0], out[1], out[3], out[4]), (-8.0, 0.25, 1.0, 2.0));
    assert!(out[2].is_nan());
    assert_eq!(run2(Binary::Pow, DType::F32, &[-3f32; 40], &[2.0; 40]), [9.0; 40]);
}

#[test]
fn casts_truncate_saturate_and_round_once() {
    let x = [1.9f32, -1.9, 300.0, -300.0, f32::NAN, f32::INFINITY];
    assert_eq!(
        run1::<_, i8>(ScalarOp::Cast(DType::I8), DType::F32, DType::I8, &x),
        [1, -1, 127, -128, 0, 127]
    );
    assert_eq!(run1::<_, u8>(ScalarOp::Cast(DType::Bool), DType::F32, DType::Bool, &x), [1; 6]);
    assert_eq!(run1::<_, u8>(ScalarOp::Cast(DType::Bool), DType::F32, DType::Bool, &[-0f32, 0.0]), [0, 0]);
    let big = [i64::MAX, (1 << 40) + 1, -3];
    let wide = run1::<_, f32>(ScalarOp::Cast(DType::F32), DType::I64, DType::F32, &big);
    assert_eq!(wide, big.map(|v| v as f32));
    // 257·2^20 + 1 is just above the middle of two bf16 numbers; through f32 it would fall on it.
    let near_tie = [(257i64 << 40) + 1, -(257i64 << 40) - 1];
    let half = run1::<_, bf16>(ScalarOp::Cast(DType::BF16), DType::I64, DType::BF16, &near_tie);
    assert_eq!(half[0].to_f64(), 258.0 * 2f64.powi(40));
    assert_eq!(half[1], -half[0]);
    assert_eq!(
        run1::<_, f16>(ScalarOp::Cast(DType::F16), DType::F64, DType::F16, &[65520f64]),
        [f16::INFINITY]
    );
}

#[test]
fn fma_rounds_once_in_every_float_dtype() {
    let fma = |dtype, x: [&[u8]; 3], n: usize, out: &mut [u8]| {
        let x = x.map(|bytes| Operand::packed(ty(dtype, &[n]), bytes));
        scalar_op(&ScalarOp::Fma, &x, &mut [Target { ty: ty(dtype, &[n]), bytes: out }]);
    };
    let (a, b, c) = ([1.0f32 + f32::EPSILON], [1.0f32 - f32::EPSILON], [-1.0f32]);
    let mut out = [0f32];
    fma(DType::F32, [&a, &b, &c].map(|v| bytemuck::cast_slice(v)), 1, bytemuck::cast_slice_mut(&mut out));
    assert_eq!(out[0], -f32::EPSILON * f32::EPSILON);
    // 9·29 = 261 is a tie of bf16; the tiny summand decides it.
    let bf = |x: f32| [bf16::from_f32(x)];
    for (tiny, expected) in [(1e-30f32, 262.0), (-1e-30, 260.0)] {
        let (a, b, c) = (bf(9.0), bf(29.0), bf(tiny));
        let mut out = bf(0.0);
        fma(
            DType::BF16,
            [&a, &b, &c].map(|v| bytemuck::cast_slice(v)),
            1,
            bytemuck::cast_slice_mut(&mut out),
        );
        assert_eq!(out[0].to_f32(), expected);
    }
}

#[test]
fn activations_hold_at_their_edges() {
    let x = [-f32::INFINITY, -100.0, -0.5, -0.0, 0.5, 100.0, f32::INFINITY];
    let run = |a| run1::<f32, f32>(ScalarOp::Activation(a), DType::F32, DType::F32, &x);
    assert_eq!(run(Activation::LeakyRelu { alpha: 0.5 })[1..3], [-50.0, -0.25]);
    assert_eq!(run(Activation::Elu { alpha: 2.0 })[..2], [-2.0, -2.0]);
    assert_eq!(run(Activation::Celu { alpha: 2.0 })[0], -2.0);
    assert_eq!(run(Activation::HardSigmoid { alpha: 0.2, beta: 0.5 }), [0.0, 0.0, 0.4, 0.5, 0.6, 1.0, 1.0]);
    let unary = |u| run1::<f32, f32>(ScalarOp::Unary(u), DType::F32, DType::F32, &x);
    for u in [Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Mish, Unary::HardSwish] {
        let y = unary(u);
        assert_eq!((y[0], y[6]), (0.0, f32::INFINITY), "{u:?}");
        assert_eq!(y[5], 100.0, "{u:?}");
    }
    assert_eq!((unary(Unary::Softsign)[0], unary(Unary::Softsign)[6]), (-1.0, 1.0));
    assert_eq!((unary(Unary::Sign)[3].to_bits(), unary(Unary::Sign)[1]), ((-0.0f32).to_bits(), -1.0));
    let f16s: Vec<u8> = run1(ScalarOp::Unary(Unary::IsNan), DType::F16, DType::Bool, &[f16::NAN, f16::ONE]);
    assert_eq!(f16s, [1, 0]);
}

#[test]
fn a_region_that_returns_its_input_copies_a_view() {
    let data = numbers(64 * 300 * 2);
    for (dims, strides) in [
        (vec![300, 64], vec![1, 300]),
        (vec![64, 2, 300], vec![300, 19200, 1]),
        (vec![2, 300, 64], vec![19200, 1, 300]),
        (vec![64, 300], vec![300, 1]),
        (vec![5, 64, 7], vec![0, 3, 0]),
    ] {
        let mut operand = packed(DType::F32, &dims, &data);
        operand.strides[..dims.len()].copy_from_slice(&strides);
        let shape = *operand.shape();
        let mut out = vec![0f32; shape.numel()];
        let target = Target { ty: operand.ty, bytes: bytemuck::cast_slice_mut(&mut out) };
        fused(&Program::new(&Region::identity(), &[DType::F32]), &[operand], &mut [target]);
        for (i, o) in out.iter().enumerate() {
            assert_eq!(*o, at(&operand, &shape, i), "{dims:?} by {strides:?} at {i}");
        }
    }
}
