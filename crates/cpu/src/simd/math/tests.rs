//! Every function against f64 over a sweep of all f32 bit patterns, with and without fused multiply-add.

use olivine_ir::op::Unary;

use super::*;

/// Distance from the true value in units of the last place, measured at the rounded true value.
fn ulps(ours: f32, truth: f64) -> f64 {
    let nearest = truth as f32;
    if ours.is_nan() && truth.is_nan() || ours == nearest {
        return 0.0;
    }
    if !ours.is_finite() || !nearest.is_finite() {
        // An overflow in the last place is as good as the largest number.
        let (a, b) = (ours.to_bits().cast_signed(), nearest.to_bits().cast_signed());
        return f64::from(a.wrapping_sub(b)).abs();
    }
    let magnitude = nearest.abs().max(f32::MIN_POSITIVE);
    let ulp = f64::from(f32::from_bits(magnitude.to_bits() + 1)) - f64::from(magnitude);
    (f64::from(ours) - truth).abs() / ulp
}

fn sweep() -> impl Iterator<Item = f32> {
    let special =
        [0.0, f32::INFINITY, f32::NAN, f32::MIN_POSITIVE, 1.0, f32::MAX, 88.72, 88.73, 103.9, 104.0];
    (0..=u32::MAX).step_by(2003).map(f32::from_bits).chain(special).chain(special.map(|x| -x))
}

fn check(name: &str, bound: f64, f: impl Fn(f32) -> f32, truth: impl Fn(f64) -> f64) {
    let (mut worst, mut at) = (0.0, 0.0);
    for x in sweep() {
        let error = ulps(f(x), truth(f64::from(x)));
        assert!(!error.is_nan(), "{name}({x})");
        if error > worst {
            (worst, at) = (error, x);
        }
    }
    println!("{name}: {worst:.2} ulp at {at:e}");
    assert!(worst <= bound, "{name}({at:e}) = {:e}, {:e}: {worst} ulp", f(at), truth(f64::from(at)));
}

/// A function of the table, one number at a time.
fn single(op: Unary) -> impl Fn(f32) -> f32 {
    move |x| {
        let mut y = [0.0];
        unary_f32(op, &[x], &mut y);
        y[0]
    }
}

#[test]
fn rsqrt_is_accurate_everywhere() {
    check("rsqrt", 1.5, single(Unary::Rsqrt), |x| unary_f64(Unary::Rsqrt, x));
}

macro_rules! accuracy {
    ($($test:ident: $f:ident => $variant:ident within $bound:literal;)*) => {$(
        #[test]
        fn $test() {
            let truth = |x| unary_f64(Unary::$variant, x);
            check(stringify!($f), $bound, $f::<true>, truth);
            check(concat!(stringify!($f), " without fma"), $bound, $f::<false>, truth);
        }
    )*};
}

accuracy! {
    exp_is_accurate_everywhere: exp => Exp within 1.5;
    expm1_is_accurate_everywhere: expm1 => Expm1 within 2.5;
    log_is_accurate_everywhere: log => Log within 2.0;
    log1p_is_accurate_everywhere: log1p => Log1p within 2.5;
    log2_is_accurate_everywhere: log2 => Log2 within 2.5;
    tanh_is_accurate_everywhere: tanh => Tanh within 3.0;
    erf_is_accurate_everywhere: erf => Erf within 3.0;
    gelu_is_accurate_everywhere: gelu => Gelu within 4.0;
    gelu_tanh_is_accurate_everywhere: gelu_tanh => GeluTanh within 4.0;
    sigmoid_is_accurate_everywhere: sigmoid => Sigmoid within 3.0;
    silu_is_accurate_everywhere: silu => Silu within 4.0;
    softplus_is_accurate_everywhere: softplus => Softplus within 3.0;
    log_sigmoid_is_accurate_everywhere: log_sigmoid => LogSigmoid within 3.0;
    mish_is_accurate_everywhere: mish => Mish within 4.0;
    selu_is_accurate_everywhere: selu => Selu within 4.0;
    softsign_is_accurate_everywhere: softsign => Softsign within 2.0;
}

#[test]
fn sine_cosine_and_tangent_are_accurate_even_for_huge_arguments() {
    type Block = fn(&[f32], &mut [f32]);
    type Truth = fn(f64) -> f64;
    let cases: [(&str, Block, Truth); 3] =
        [("sin", sin_block, f64::sin), ("cos", cos_block, f64::cos), ("tan", tan_block, f64::tan)];
    let x: Vec<f32> = sweep().collect();
    for (name, block, truth) in cases {
        let mut out = vec![0.0; x.len()];
        block(&x, &mut out);
        for (x, y) in x.iter().zip(&out) {
            let error = ulps(*y, truth(f64::from(*x)));
            assert!(error < 1.0, "{name}({x:e}) = {y:e}: {error} ulp");
        }
    }
}

#[test]
fn inverse_and_hyperbolic_functions_are_accurate_everywhere() {
    // The standard library's are other code than ours where ours is not theirs.
    check("asin", 0.51, single(Unary::Asin), f64::asin);
    check("acos", 0.51, single(Unary::Acos), f64::acos);
    check("atan", 0.51, single(Unary::Atan), f64::atan);
    check("sinh", 0.51, single(Unary::Sinh), f64::sinh);
    check("cosh", 0.51, single(Unary::Cosh), f64::cosh);
    check("asinh", 0.51, single(Unary::Asinh), f64::asinh);
    check("acosh", 0.51, single(Unary::Acosh), f64::acosh);
    check("atanh", 0.51, single(Unary::Atanh), f64::atanh);
}

#[test]
fn functions_of_f64_are_nan_outside_their_domain_and_finite_within() {
    use Unary as U;
    let finite = |x: &f64| x.is_finite();
    let sweep = || (0..=u64::MAX).step_by((1 << 50) + 12_345_678_901).map(f64::from_bits).filter(finite);
    let apply = unary_f64;
    let all = [-1.0, 1.0, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 0.0, 5e-324, -5e-324];
    for x in sweep().chain(all) {
        for (op, inside) in [
            (U::Acosh, x >= 1.0),
            (U::Asin, x.abs() <= 1.0),
            (U::Acos, x.abs() <= 1.0),
            (U::Atanh, x.abs() < 1.0),
            (U::Log, x > 0.0),
            (U::Log2, x > 0.0),
            (U::Log1p, x > -1.0),
            (U::Sqrt, x >= 0.0),
            (U::Rsqrt, x > 0.0),
        ] {
            let y = apply(op, x);
            // At the very end of the domain some are infinite.
            let end = match op {
                U::Atanh => x.abs() == 1.0,
                U::Log1p => x == -1.0,
                _ => x == 0.0,
            };
            assert!(if inside { y.is_finite() } else { y.is_nan() || end }, "{op:?}({x:e}) = {y:e}");
        }
        for op in [U::Asinh, U::Atan, U::Tanh, U::Erf, U::Sin, U::Cos, U::Tan, U::Sigmoid, U::Softsign] {
            assert!(apply(op, x).is_finite(), "{op:?}({x:e}) = {:e}", apply(op, x));
        }
        for op in [U::Silu, U::Gelu, U::GeluTanh, U::Softplus, U::Mish, U::HardSwish, U::LogSigmoid] {
            assert!(apply(op, x).is_finite(), "{op:?}({x:e}) = {:e}", apply(op, x));
        }
        let (up, down) = (apply(U::Asinh, x), apply(U::Asinh, -x));
        assert_eq!(up, -down, "asinh is odd at {x:e}");
    }
}

#[test]
fn odd_functions_keep_the_sign_of_zero() {
    let negative = (-0.0f32).to_bits();
    for f in [erf::<true>, tanh::<true>, expm1::<true>, log1p::<true>, gelu::<true>, silu::<true>] {
        assert_eq!(f(-0.0).to_bits(), negative);
        assert_eq!(f(0.0).to_bits(), 0);
    }
    let mut out = [1.0];
    sin_block(&[-0.0], &mut out);
    assert_eq!(out[0].to_bits(), negative);
}

#[test]
fn softmax_weights_are_accurate_and_vanish_far_below() {
    for x in sweep().filter(|x| *x <= 0.0 && *x >= -87.0) {
        assert!(ulps(exp_below::<true>(x), f64::from(x).exp()) < 1.5, "{x}");
    }
    assert_eq!(exp_below::<true>(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp_below::<true>(-90.0), 0.0);
    assert!(exp_below::<true>(f32::NAN).is_nan());
}

#[test]
fn the_f64_error_function_has_fifteen_digits() {
    // Digits from the series in 40-digit arithmetic.
    let known = [
        (1e-9, 1.1283791670955126e-9),
        (0.1, 0.1124629160182849),
        (0.5, 0.5204998778130465),
        (1.0, 0.8427007929497149),
        (1.9, 0.9927904292352575),
        (2.0, 0.9953222650189527),
        (3.0, 0.9999779095030014),
        (5.0, 0.9999999999984626),
    ];
    for (x, y) in known {
        assert!((double_gates::erf(x) / y - 1.0).abs() < 1e-15, "{x}: {}", double_gates::erf(x));
        assert_eq!(double_gates::erf(-x), -double_gates::erf(x));
    }
    let tails = [
        (0.6, 0.396_143_909_152_074_1),
        (1.0, 0.15729920705028513),
        (2.0, 0.004677734981047266),
        (10.0, 2.088487583762545e-45),
        (26.0, 5.663192408856143e-296),
    ];
    for (x, y) in tails {
        assert!((double_gates::erfc(x) / y - 1.0).abs() < 2e-15, "{x}: {:e}", double_gates::erfc(x));
    }
}
