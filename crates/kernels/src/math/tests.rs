//! The functions run on the host, on devices of several kinds: the elementwise cases of the common table, and sweeps
//! over all magnitudes against f64.

use olivine_cases::oracle::special;
use olivine_cases::{Backend, Denormals, Outcome, run_table, table};
use olivine_ir::op::{Arg, Binary, Instr, InstrOp, Region, ScalarOp, Unary};
use olivine_ir::{DType, Data, Def, Graph, Op, Tensor, TensorType};
use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::{Access, Builder, Kernel, Target};

use super::{Typed, elem, region};

const FLUSHING: Device = Device { flush: true, unfused: true, off_by: 2 };

const GROUP: u32 = 64;

/// A kernel that applies a region to contiguous elements, for a device that computes in f16 or not.
fn kernel(program: &Region, inputs: &[DType], outputs: &[DType], halves: bool) -> Kernel {
    let target = Target { i64: true, f64: true, f16: halves, exact_f16: halves, ..Target::plain() };
    let k = Builder::new("elementwise", GROUP, &target);
    let at = k.group_id(0) * GROUP + k.local_index();
    let args: Vec<Typed<'_>> = inputs
        .iter()
        .map(|d| Typed { val: k.arg("x", elem(*d), Access::Read).load(at), dtype: *d })
        .collect();
    for (value, dtype) in region(program, &args).into_iter().zip(outputs) {
        assert_eq!(value.dtype, *dtype);
        k.arg("y", elem(*dtype), Access::Write).store(at, value.val);
    }
    k.finish().expect("the kernel is valid")
}

/// Runs a region over operands of one length, given as bytes.
fn run(program: &Region, inputs: &[(DType, Vec<u8>)], outputs: &[DType], device: Device) -> Vec<Vec<u8>> {
    let (dtype, bytes) = &inputs[0];
    let n = bytes.len() / dtype.size();
    let padded = n.next_multiple_of(GROUP as usize);
    let dtypes: Vec<DType> = inputs.iter().map(|(d, _)| *d).collect();
    let kernel = kernel(program, &dtypes, outputs, !device.flush);
    let mut buffers: Vec<Vec<u8>> = inputs.iter().map(|(_, b)| b.clone()).collect();
    buffers.extend(outputs.iter().map(|_| Vec::new()));
    for (buffer, dtype) in buffers.iter_mut().zip(dtypes.iter().chain(outputs)) {
        buffer.resize(padded * dtype.size(), 1);
    }
    let groups = [padded as u32 / GROUP, 1, 1];
    interpret(&kernel, 1, groups, &mut buffers, &[], device).expect("it runs");
    let results = buffers.split_off(inputs.len());
    results.into_iter().zip(outputs).map(|(mut b, d)| (b.truncate(n * d.size()), b).1).collect()
}

fn single(op: ScalarOp) -> Region {
    let args = (0..op.arity()).map(Arg::Input).collect();
    let instrs = vec![Instr { op: InstrOp::Scalar(op), args }];
    Region { inputs: op.arity(), instrs, outputs: vec![Arg::Instr(0)] }
}

/// Runs graphs of elementwise operations by the interpreter; others are refused.
struct Interpreter(Device);

impl Interpreter {
    fn node(&self, op: &Op, operands: &[Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, String> {
        let program = match op {
            Op::ScalarOp(op) => single(*op),
            Op::Fused(fused) => fused.region.clone(),
            _ => return Err("not elementwise".into()),
        };
        let shape = results[0].shape;
        if shape.numel() == 0 {
            return results
                .iter()
                .map(|t| Tensor::zeros(t.dtype, t.shape).map_err(|e| e.to_string()))
                .collect();
        }
        let inputs: Vec<_> = operands.iter().map(|t| (t.dtype(), expanded(t, results[0]))).collect();
        let dtypes: Vec<DType> = results.iter().map(|t| t.dtype).collect();
        let made = run(&program, &inputs, &dtypes, self.0);
        made.iter()
            .zip(dtypes)
            .map(|(bytes, dtype)| Tensor::from_data(shape, Data::from_bytes(dtype, bytes)?))
            .collect::<Result<_, _>>()
            .map_err(|e: olivine_ir::Error| e.to_string())
    }
}

/// A tensor's bytes, repeated as broadcasting says.
fn expanded(t: &Tensor, to: TensorType) -> Vec<u8> {
    let strides = t.shape().broadcast_strides(&to.shape).expect("it broadcasts");
    let (size, bytes) = (t.dtype().size(), t.data().as_bytes());
    let mut out = Vec::with_capacity(to.shape.numel() * size);
    for flat in 0..to.shape.numel() {
        let (mut rest, mut at) = (flat, 0);
        for (d, s) in to.shape.dims().iter().zip(&strides).rev() {
            at += (rest % d) * *s as usize;
            rest /= d;
        }
        out.extend_from_slice(&bytes[at * size..(at + 1) * size]);
    }
    out
}

impl Backend for Interpreter {
    fn name(&self) -> &str {
        "interpreter"
    }

    fn denormals(&self) -> Denormals {
        if self.0.flush { Denormals::Flushed } else { Denormals::Kept }
    }

    fn run(
        &self,
        graph: &Graph,
        inputs: &[(String, Tensor)],
        params: &[(String, Tensor)],
    ) -> Result<Vec<Tensor>, String> {
        let fed = |name: &str| inputs.iter().chain(params).find(|(n, _)| n == name).map(|(_, t)| t.clone());
        let mut values: Vec<Option<Tensor>> = graph
            .values()
            .iter()
            .map(|v| match &v.def {
                Def::Input { name, .. } | Def::Param { name } => fed(name),
                Def::Const(t) => Some(t.clone()),
                Def::Node { .. } => None,
            })
            .collect();
        let find = |values: &[Option<Tensor>], id: usize| values[id].clone().ok_or("a value is missing");
        for node in graph.nodes() {
            let operands: Vec<Tensor> =
                node.inputs.iter().map(|i| find(&values, i.index())).collect::<Result<_, _>>()?;
            let types: Vec<TensorType> = node.outputs.iter().map(|o| graph.values()[o.index()].ty).collect();
            for (id, t) in node.outputs.iter().zip(self.node(&node.op, &operands, &types)?) {
                values[id.index()] = Some(t);
            }
        }
        Ok(graph.outputs().iter().map(|o| find(&values, o.value.index())).collect::<Result<_, _>>()?)
    }
}

/// Runs the table's elementwise cases and tells which failed.
fn table_on(device: Device, keep: impl Fn(&olivine_cases::Case) -> bool) -> (usize, Vec<String>) {
    let families = ["unary", "cast", "binary", "select", "fused"];
    // Cases about shapes alone say nothing of the functions, and those over whole ranges are long: sweeps here do that.
    let long = ["length-", "broadcast-", "whole-range"];
    let shapes = |c: &olivine_cases::Case| long.iter().any(|what| c.name.contains(what));
    let chosen = |c: &olivine_cases::Case| families.contains(&c.family) && !shapes(c) && keep(c);
    let cases: Vec<_> = table().into_iter().filter(chosen).collect();
    let report = run_table(&Interpreter(device), &cases, "", 2);
    let wrong = report.failures().filter(|r| !matches!(r.outcome, Outcome::Refused(_)));
    (report.passed(), wrong.map(|r| format!("{}: {}", r.name, r.outcome)).collect())
}

#[test]
fn every_elementwise_case_of_the_table_passes_on_an_exact_and_on_a_rough_device() {
    for device in [Device::EXACT, Device::ROUGH] {
        let (passed, wrong) = table_on(device, |_| true);
        assert!(wrong.is_empty(), "{device:?}: {passed} passed, wrong:\n{}", wrong.join("\n"));
        assert!(passed > 800, "{passed}");
    }
}

/// All magnitudes of f32 and the places where functions change.
fn sweep() -> Vec<f32> {
    let special =
        [0.0, f32::INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-45, 1.0, f32::MAX, 88.72, 88.73, 103.9, 104.0];
    let dense = (0..=u32::MAX).step_by(400_009).map(f32::from_bits);
    // Most functions do most between 2^-8 and 2^7.
    let middle =
        (0x3b80_0000u32..0x4300_0000).step_by(20_011).flat_map(|b| [f32::from_bits(b), -f32::from_bits(b)]);
    dense.chain(middle).chain(special).chain(special.map(|x| -x)).collect()
}

fn bytes_of(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Distance from the true value in units of the last place.
fn ulps(ours: f32, truth: f64) -> f64 {
    let nearest = truth as f32;
    if ours.is_nan() && truth.is_nan() || ours == nearest {
        return 0.0;
    }
    if !ours.is_finite() || !nearest.is_finite() {
        let (a, b) = (ours.to_bits().cast_signed(), nearest.to_bits().cast_signed());
        return f64::from(a.wrapping_sub(b)).abs();
    }
    let magnitude = nearest.abs().max(f32::MIN_POSITIVE);
    let ulp = f64::from(f32::from_bits(magnitude.to_bits() + 1)) - f64::from(magnitude);
    (f64::from(ours) - truth).abs() / ulp
}

fn apply(op: ScalarOp, args: &[&[f32]], device: Device) -> Vec<f32> {
    let inputs: Vec<_> = args.iter().map(|x| (DType::F32, bytes_of(x))).collect();
    floats_of(&run(&single(op), &inputs, &[DType::F32], device)[0])
}

/// The true value of a function in f64, where the standard library and the oracle's error function give one.
fn truth(u: Unary, x: f64) -> Option<f64> {
    let sigmoid = |x: f64| if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) };
    let softplus = |x: f64| if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() };
    let gated = |x: f64, y: f64| if x == f64::NEG_INFINITY { -0.0 } else { x * y };
    Some(match u {
        Unary::Reciprocal => 1.0 / x,
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Log2 => x.log2(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Asinh if x.abs() > 1e9 => (x.abs().ln() + std::f64::consts::LN_2).copysign(x),
        Unary::Asinh => (x.abs() + x * x / (1.0 + (x * x + 1.0).sqrt())).ln_1p().copysign(x),
        Unary::Acosh if x < 1.0 => f64::NAN,
        Unary::Acosh if x > 1e9 => x.ln() + std::f64::consts::LN_2,
        Unary::Acosh => (x - 1.0 + ((x - 1.0) * (x + 1.0)).sqrt()).ln_1p(),
        Unary::Atanh => (0.5 * (2.0 * x.abs() / (1.0 - x.abs())).ln_1p()).copysign(x),
        Unary::Erf => special::erf(x),
        Unary::Sigmoid => sigmoid(x),
        Unary::Silu => special::gated(x, x, 0.0),
        Unary::Gelu => special::times_normal_below(x),
        Unary::GeluTanh => special::times_sigmoid_of_cubic(x),
        Unary::Softplus => softplus(x),
        Unary::LogSigmoid => -softplus(-x),
        Unary::Mish => gated(x, softplus(x).tanh()),
        Unary::Softsign if x.is_infinite() => x.signum(),
        Unary::Softsign => x / (1.0 + x.abs()),
        _ => return None,
    })
}

/// The worst error of a function over the sweep, in ulp.
fn worst(u: Unary, device: Device, keep: impl Fn(f32, f64) -> bool) -> (f64, f32, f32) {
    let x = sweep();
    let y = apply(ScalarOp::Unary(u), &[&x], device);
    let mut worst = (0.0, 0.0, 0.0);
    for (x, y) in x.iter().zip(&y) {
        let want = truth(u, f64::from(*x)).expect("a true value");
        let error = ulps(*y, want);
        if keep(*x, want) && error > worst.0 {
            worst = (error, *x, *y);
        }
    }
    worst
}

#[test]
fn every_function_is_within_its_bound_over_all_magnitudes_on_every_device() {
    use Unary as U;
    let bounds = [
        (0.5, vec![U::Reciprocal, U::Sqrt]),
        (2.0, vec![U::Rsqrt]),
        (4.0, vec![U::Exp, U::Expm1, U::Log, U::Log1p, U::Log2, U::Tanh, U::Erf, U::Gelu, U::GeluTanh]),
        (4.0, vec![U::Sigmoid, U::Silu, U::Softplus, U::LogSigmoid, U::Mish, U::Softsign, U::Sin, U::Cos]),
        (4.0, vec![U::Asin, U::Acos, U::Atan, U::Sinh, U::Cosh, U::Asinh, U::Acosh, U::Atanh]),
        (6.0, vec![U::Tan]),
    ];
    let mut wrong = Vec::new();
    for (bound, functions) in bounds {
        for u in functions {
            for device in [Device::EXACT, Device::ROUGH] {
                let (error, x, y) = worst(u, device, |_, _| true);
                println!("{u:?}: {error:.2} ulp at {x:e}");
                if error > bound {
                    wrong.push(format!("{u:?}({x:e}) = {y:e} on {device:?}: {error} ulp"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn flushed_denormals_change_nothing_but_activations_that_fade_below_the_normal_numbers() {
    use Unary as U;
    let nearly_linear = [
        (
            4.0,
            vec![
                U::Reciprocal,
                U::Sqrt,
                U::Exp,
                U::Expm1,
                U::Log,
                U::Log1p,
                U::Log2,
                U::Tanh,
                U::Erf,
                U::Sin,
            ],
        ),
        (4.0, vec![U::Asin, U::Atan, U::Sinh, U::Asinh, U::Atanh, U::Softsign, U::Softplus, U::LogSigmoid]),
        (6.0, vec![U::Tan]),
    ];
    for (bound, functions) in nearly_linear {
        for u in functions {
            let (error, x, y) = worst(u, FLUSHING, |_, _| true);
            assert!(error <= bound, "{u:?}({x:e}) = {y:e}: {error} ulp");
        }
    }
    let list = [U::Gelu, U::GeluTanh, U::Silu, U::Mish, U::Sigmoid];
    for u in list {
        let kept = |x: f32, want: f64| x.abs() < 1.0 || (want as f32).is_normal();
        let (error, x, y) = worst(u, FLUSHING, kept);
        assert!(error <= 4.0, "{u:?}({x:e}) = {y:e}: {error} ulp");
    }
}

/// Pairs of numbers of all magnitudes, specials among them.
fn pairs(n: usize) -> (Vec<f32>, Vec<f32>) {
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state >> 32) as u32;
        match state >> 28 & 15 {
            0 => f32::from_bits(bits & 0x807f_ffff),
            1 => [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NAN, f32::MAX, 3.0][bits as usize % 8],
            2..8 => f32::from_bits((bits & 0x83ff_ffff) | 0x3c00_0000),
            _ => f32::from_bits(bits),
        }
    };
    (0..n).map(|_| (next(), next())).unzip()
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn quotients_remainders_and_fma_are_exact_even_on_a_device_that_flushes() {
    let (a, b) = pairs(20_000);
    let c: Vec<f32> =
        a.iter().zip(&b).rev().enumerate().map(|(i, (x, y))| if i % 3 == 0 { -x * y } else { *y }).collect();
    let reversed: Vec<f32> = c.iter().rev().copied().collect();
    for device in [Device::EXACT, Device::ROUGH, FLUSHING] {
        let q = apply(ScalarOp::Binary(Binary::Div), &[&a, &b], device);
        let r = apply(ScalarOp::Binary(Binary::Rem), &[&a, &b], device);
        let root = apply(ScalarOp::Unary(Unary::Sqrt), &[&a], device);
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            assert!(same(q[i], a / b), "{a:e} / {b:e} = {:e}, not {:e} on {device:?}", q[i], a / b);
            assert!(same(r[i], a % b), "{a:e} % {b:e} = {:e}, not {:e} on {device:?}", r[i], a % b);
            assert!(same(root[i], a.sqrt()), "root of {a:e} = {:e} on {device:?}", root[i]);
        }
        for c in [&c, &reversed] {
            let f = apply(ScalarOp::Fma, &[&a, &b, c], device);
            for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                let want = a.mul_add(*b, c[i]);
                assert!(
                    same(f[i], want),
                    "{a:e}·{b:e} + {:e} = {:e}, not {want:e} on {device:?}",
                    c[i],
                    f[i]
                );
            }
        }
    }
}

#[test]
fn powers_and_angles_are_close_over_all_magnitudes() {
    let (a, b) = pairs(20_000);
    for device in [Device::EXACT, Device::ROUGH] {
        let p = apply(ScalarOp::Binary(Binary::Pow), &[&a, &b], device);
        let t = apply(ScalarOp::Binary(Binary::Atan2), &[&a, &b], device);
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            let (x, y) = (f64::from(*a), f64::from(*b));
            assert!(ulps(p[i], x.powf(y)) <= 6.0, "{a:e}^{b:e} = {:e}, {:e} {device:?}", p[i], x.powf(y));
            assert!(ulps(t[i], x.atan2(y)) <= 4.0, "atan2({a:e}, {b:e}) = {:e}, {:e}", t[i], x.atan2(y));
        }
    }
}

#[test]
fn narrowing_and_fma_of_f16_round_once_to_nearest_even() {
    use olivine_ir::half::{bf16, f16};
    let (a, b) = pairs(20_000);
    for device in [Device::EXACT, FLUSHING] {
        let cast = |to| run(&single(ScalarOp::Cast(to)), &[(DType::F32, bytes_of(&a))], &[to], device);
        let (short, brain) = (cast(DType::F16), cast(DType::BF16));
        for (i, x) in a.iter().enumerate() {
            let at = |bytes: &[u8]| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
            let (f, g) = (f16::from_bits(at(&short[0])), bf16::from_bits(at(&brain[0])));
            assert!(same(f.to_f32(), f16::from_f32(*x).to_f32()), "{x:e} as f16: {f}");
            assert!(same(g.to_f32(), bf16::from_f32(*x).to_f32()), "{x:e} as bf16: {g}");
        }
        let halves = |x: &[f32]| -> Vec<f16> { x.iter().map(|x| f16::from_f32(*x)).collect() };
        let (p, q) = (halves(&a), halves(&b));
        let r: Vec<f16> = q.iter().rev().copied().collect();
        let bytes = |x: &[f16]| (DType::F16, x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        let y = run(&single(ScalarOp::Fma), &[bytes(&p), bytes(&q), bytes(&r)], &[DType::F16], device);
        for (i, y) in y[0].chunks_exact(2).enumerate() {
            let y = f16::from_le_bytes([y[0], y[1]]);
            // The sum of f16 numbers and products spans less than f64's 53 bits unless one is all that matters.
            let want =
                f16::from_f32(olivine_ir::round_to_odd(p[i].to_f64().mul_add(q[i].to_f64(), r[i].to_f64())));
            assert!(same(y.to_f32(), want.to_f32()), "{}·{} + {} = {y}, not {want}", p[i], q[i], r[i]);
        }
    }
}

#[test]
fn odd_functions_keep_the_sign_of_zero() {
    use Unary as U;
    for u in
        [U::Erf, U::Tanh, U::Expm1, U::Log1p, U::Gelu, U::Silu, U::Sin, U::Tan, U::Asin, U::Atan, U::Sinh]
    {
        let y = apply(ScalarOp::Unary(u), &[&[0.0, -0.0]], Device::ROUGH);
        assert_eq!([y[0].to_bits(), y[1].to_bits()], [0, 0x8000_0000], "{u:?}");
    }
}

#[test]
fn kernels_of_the_functions_stay_small() {
    for u in Unary::ALL.iter().filter(|u| **u != Unary::Not) {
        let out = if matches!(u, Unary::IsNan | Unary::IsInf) { DType::Bool } else { DType::F32 };
        let kernel = kernel(&single(ScalarOp::Unary(*u)), &[DType::F32], &[out], false);
        println!("{u:?}: {} values", kernel.values.len());
        assert!(kernel.values.len() < 450, "{u:?}: {} values", kernel.values.len());
    }
}

/// Runs an operation over f64 numbers.
fn apply64(op: ScalarOp, args: &[&[f64]], device: Device) -> Vec<f64> {
    let bytes = |x: &[f64]| x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let inputs: Vec<_> = args.iter().map(|x| (DType::F64, bytes(x))).collect();
    let made = run(&single(op), &inputs, &[DType::F64], device);
    made[0].chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("eight bytes"))).collect()
}

fn ulps64(ours: f64, want: f64) -> f64 {
    if ours.is_nan() && want.is_nan() || ours == want {
        return 0.0;
    }
    if !ours.is_finite() || !want.is_finite() {
        return f64::INFINITY;
    }
    let magnitude = want.abs().max(f64::MIN_POSITIVE);
    (ours - want).abs() / (magnitude.next_up() - magnitude)
}

#[test]
fn functions_of_f64_are_within_sixteen_ulp_of_the_standard_library() {
    use Unary as U;
    let wide = (0..=u64::MAX).step_by(0x0006_1234_5678_9abc).map(f64::from_bits);
    let middle = (0x3f00u64 << 48..0x4090 << 48).step_by(0x0000_1654_3210_1357).map(f64::from_bits);
    let special = [0.0, f64::INFINITY, f64::NAN, f64::MIN_POSITIVE, 5e-324, 1.0, f64::MAX, 709.7, 745.1];
    let x: Vec<f64> =
        wide.chain(middle.flat_map(|x| [x, -x])).chain(special.iter().flat_map(|x| [*x, -x])).collect();
    let list = [
        U::Exp,
        U::Expm1,
        U::Log,
        U::Log1p,
        U::Log2,
        U::Sin,
        U::Cos,
        U::Tan,
        U::Asin,
        U::Acos,
        U::Atan,
        U::Sinh,
        U::Cosh,
        U::Tanh,
        U::Asinh,
        U::Acosh,
        U::Atanh,
        U::Erf,
        U::Sigmoid,
        U::Gelu,
        U::Softplus,
        U::Softsign,
    ];
    let mut wrong = Vec::new();
    for u in list {
        for device in [Device::EXACT, Device::ROUGH] {
            let y = apply64(ScalarOp::Unary(u), &[&x], device);
            let mut worst = (0.0, 0.0, 0.0);
            for (x, y) in x.iter().zip(&y) {
                let error = ulps64(*y, truth(u, *x).expect("a true value"));
                if error > worst.0 {
                    worst = (error, *x, *y);
                }
            }
            println!("{u:?}: {:.0} ulp at {:e}", worst.0, worst.1);
            if worst.0 > 16.0 {
                wrong.push(format!("{u:?}({:e}) = {:e} on {device:?}: {} ulp", worst.1, worst.2, worst.0));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn powers_remainders_angles_and_fma_of_f64_agree_with_the_standard_library() {
    let mut state = 0x0fed_cba9_8765_4321u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = state ^ (state >> 29);
        match state >> 40 & 7 {
            0 => [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NAN, 2.0, 3.0][bits as usize % 8],
            1 => f64::from_bits(bits),
            _ => f64::from_bits((bits & 0x80ff_ffff_ffff_ffff) | 0x3f80_0000_0000_0000),
        }
    };
    let (a, b): (Vec<f64>, Vec<f64>) = (0..15_000).map(|_| (next(), next())).unzip();
    let c: Vec<f64> = a.iter().zip(&b).map(|(x, y)| if next() > 0.0 { -x * y } else { next() }).collect();
    for device in [Device::EXACT, Device::ROUGH] {
        let binary = |op| apply64(ScalarOp::Binary(op), &[&a, &b], device);
        let (p, r, t) = (binary(Binary::Pow), binary(Binary::Rem), binary(Binary::Atan2));
        let f = apply64(ScalarOp::Fma, &[&a, &b, &c], device);
        for i in 0..a.len() {
            let (x, y) = (a[i], b[i]);
            assert!(ulps64(p[i], x.powf(y)) <= 16.0, "{x:e}^{y:e} = {:e}, {:e}", p[i], x.powf(y));
            assert!(ulps64(r[i], x % y) == 0.0, "{x:e} % {y:e} = {:e}, {:e}", r[i], x % y);
            assert!(ulps64(t[i], x.atan2(y)) <= 8.0, "atan2({x:e}, {y:e}) = {:e}", t[i]);
            let want = x.mul_add(y, c[i]);
            let exact = f[i] == want
                || want.is_nan() && f[i].is_nan()
                || want.abs() < 1e-300 && ulps64(f[i], want) <= 1.0;
            assert!(exact, "{x:e}·{y:e} + {:e} = {:e}, not {want:e}", c[i], f[i]);
        }
    }
}

#[test]
fn a_device_that_flushes_denormals_passes_the_table_by_what_it_may_return() {
    let (passed, wrong) = table_on(FLUSHING, |_| true);
    assert!(wrong.is_empty(), "{passed} passed, wrong:\n{}", wrong.join("\n"));
    assert!(passed > 800, "{passed}");
}
