//! The oracle against numbers computed elsewhere: NumPy and the ONNX reference evaluator, in f64.

use olivine_cases::oracle::{Value, eval};
use olivine_ir::op::{
    Attention, Conv, ConvTranspose, CoordinateMode, Cumulative, CumulativeKind, DepthMode, DepthToSpace,
    Einsum, GatherNd, HeadLayout, LayerNorm, MaskKind, NearestMode, Pool, PoolKind, Reduce, ReduceKind,
    Resize, ResizeMode, Rope, RopeScaling, RopeStyle, ScatterMode, ScatterNd, Window,
};
use olivine_ir::{DType, Op, Shape, TensorType};

fn ty(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, Shape::new(dims).unwrap_or_default())
}

/// ((7·i) mod 11) − 5, divided.
fn ramp_over(dims: &[usize], divisor: f64) -> Value {
    let n: usize = dims.iter().product();
    Value::floats(ty(DType::F64, dims), (0..n).map(|i| (((i * 7) % 11) as f64 - 5.0) / divisor).collect())
}

fn ramp(dims: &[usize]) -> Value {
    ramp_over(dims, 1.0)
}

fn ints(dims: &[usize], numbers: &[i64]) -> Value {
    Value::ints(ty(DType::I64, dims), numbers.to_vec())
}

fn window(strides: &[usize], pads: &[(usize, usize)], dilations: &[usize]) -> Window {
    Window { strides: strides.to_vec(), pads: pads.to_vec(), dilations: dilations.to_vec() }
}

#[track_caller]
fn gives(op: impl Into<Op>, operands: &[Value], dims: &[usize], want: &[f64], tolerance: f64) {
    let op = op.into();
    let got = eval(&op, operands).unwrap_or_default();
    assert_eq!(got.len(), 1, "{}: {:?}", op.name(), eval(&op, operands).err());
    assert_eq!(got[0].shape().dims(), dims, "{}", op.name());
    for (i, (g, w)) in got[0].to_f64().iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance, "{} at {i}: got {g}, want {w}", op.name());
    }
}

#[test]
fn convolutions_agree_with_the_reference() {
    let conv = |window, groups, bias| Conv { window, groups, bias, epilogue: None };
    gives(
        conv(window(&[2, 1], &[(1, 0), (0, 1)], &[1, 2]), 1, true),
        &[ramp(&[1, 2, 4, 5]), ramp(&[2, 2, 2, 2]), ramp(&[2])],
        &[1, 2, 2, 4],
        &[7.0, 12.0, -16.0, -7.0, 20.0, -32.0, 15.0, 3.0, 27.0, -28.0, -28.0, 7.0, 0.0, -7.0, -25.0, 3.0],
        0.0,
    );
    gives(
        conv(window(&[2], &[(1, 1)], &[1]), 2, false),
        &[ramp(&[1, 4, 5]), ramp(&[4, 2, 3])],
        &[1, 4, 3],
        &[-29.0, 8.0, -40.0, -25.0, 20.0, 5.0, -38.0, -39.0, -2.0, -22.0, -31.0, 0.0],
        0.0,
    );
    gives(
        ConvTranspose {
            window: window(&[2, 2], &[(1, 0), (0, 1)], &[1, 1]),
            groups: 1,
            output_padding: vec![1, 0],
            bias: false,
        },
        &[ramp(&[1, 2, 2, 3]), ramp(&[2, 1, 3, 2])],
        &[1, 1, 5, 5],
        &[
            -6.0, -13.0, -4.0, 10.0, 20.0, -22.0, 5.0, -7.0, -4.0, -3.0, -22.0, 34.0, 2.0, 2.0, 26.0, 2.0,
            -30.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0,
        ],
        0.0,
    );
}

#[test]
fn a_transposed_convolution_is_the_adjoint_of_the_convolution() {
    // ⟨conv(z), x⟩ = ⟨z, convᵀ(x)⟩ for one weight [C, M/groups, ..] read both ways.
    for (groups, dilation, stride) in [(1, 1, 1), (2, 1, 2), (3, 2, 1), (6, 2, 3)] {
        let window = window(&[stride, 1], &[(1, 2), (0, 1)], &[dilation, 2]);
        let (x, w) = (ramp(&[2, 6, 4, 5]), ramp(&[6, 2, 3, 2]));
        let back = ConvTranspose { window: window.clone(), groups, output_padding: vec![0, 0], bias: false };
        let back = eval(&back.into(), &[x.clone(), w.clone()]).expect("a transposed convolution");
        let z = ramp(back[0].shape());
        let there = Conv { window, groups, bias: false, epilogue: None };
        let there = eval(&there.into(), &[z.clone(), w]).expect("a convolution");
        assert_eq!(there[0].shape(), x.shape());
        let dot = |a: &Value, b: &Value| a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| a * b).sum::<f64>();
        assert_eq!(dot(&there[0], &x), dot(&z, &back[0]), "{groups} groups");
    }
}

#[test]
fn pools_agree_with_the_reference() {
    let pool = |count_include_pad| Pool {
        kind: PoolKind::Average,
        kernel: vec![2, 3],
        window: window(&[2, 2], &[(1, 0), (0, 1)], &[1, 1]),
        ceil: true,
        count_include_pad,
        p: 2,
        indices: false,
    };
    let third = 1.0 / 3.0;
    gives(
        pool(true),
        &[ramp(&[1, 1, 4, 5])],
        &[1, 1, 3, 3],
        &[-2.5 * third, 2.0 * third, 0.25, -0.5, 2.0 * third, 2.0, 2.0 * third, 0.0, -2.0],
        1e-14,
    );
    gives(
        pool(false),
        &[ramp(&[1, 1, 4, 5])],
        &[1, 1, 3, 3],
        &[-5.0 * third, 4.0 * third, 1.0, -0.5, 2.0 * third, 4.0, 2.0 * third, 0.0, -4.0],
        1e-14,
    );
}

#[test]
fn resizes_agree_with_the_reference() {
    let resize = |sizes: &[usize], mode, coordinates| Resize {
        sizes: sizes.iter().map(|size| (*size).into()).collect(),
        scales: None,
        mode,
        coordinates,
        nearest: NearestMode::RoundPreferCeil,
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
    };
    let line = [ramp(&[1, 1, 1, 4])];
    let smooth =
        Resize { antialias: true, ..resize(&[1, 1, 3, 2], ResizeMode::Linear, CoordinateMode::HalfPixel) };
    gives(smooth, &[ramp(&[1, 1, 2, 4])], &[1, 1, 3, 2], &[-2.0, 2.0, -1.0625, 1.5625, -0.125, 1.125], 1e-12);
    let cubic = resize(&[1, 1, 1, 6], ResizeMode::Cubic, CoordinateMode::AlignCorners);
    gives(cubic, &line, &[1, 1, 1, 6], &[-5.0, -0.284, 1.8, -1.8, 0.284, 5.0], 1e-12);
    let inside = Resize {
        exclude_outside: true,
        cubic: -0.5,
        ..resize(&[1, 1, 1, 6], ResizeMode::Cubic, CoordinateMode::HalfPixel)
    };
    let want = [-5.46052444344, -1.47058823529, 1.84259034141, -1.84259034141, 1.47058823529, 5.46052444344];
    gives(inside, &line, &[1, 1, 1, 6], &want, 1e-5);
    let nearest = resize(&[1, 1, 1, 7], ResizeMode::Nearest, CoordinateMode::Asymmetric);
    gives(nearest, &line, &[1, 1, 1, 7], &[-5.0, 2.0, 2.0, -2.0, -2.0, 5.0, 5.0], 0.0);
}

#[test]
fn indexing_agrees_with_the_reference() {
    gives(
        GatherNd { batch_dims: 1 },
        &[ramp(&[2, 3, 2]), ints(&[2, 2, 1], &[2, -1, 0, 1])],
        &[2, 2, 2],
        &[1.0, -3.0, 1.0, -3.0, 4.0, 0.0, -4.0, 3.0],
        0.0,
    );
    gives(
        ScatterNd { mode: ScatterMode::Add },
        &[ramp(&[4, 2]), ints(&[3, 1], &[1, 1, -1]), ramp(&[3, 2])],
        &[4, 2],
        &[-5.0, 2.0, -9.0, 12.0, 1.0, -3.0, 5.0, -3.0],
        0.0,
    );
    gives(
        DepthToSpace { block: 2, mode: DepthMode::Crd },
        &[ramp(&[1, 4, 1, 2])],
        &[1, 1, 2, 4],
        &[-5.0, -2.0, 2.0, 5.0, 1.0, 4.0, -3.0, 0.0],
        0.0,
    );
}

#[test]
fn attention_and_rotary_positions_agree_with_the_reference() {
    let plain = Attention::new(HeadLayout::Bhsd);
    let (q, k, v) = (ramp_over(&[1, 2, 2, 2], 4.0), ramp_over(&[1, 1, 3, 2], 4.0), ramp(&[1, 1, 3, 2]));
    let sinks = Value::floats(ty(DType::F64, &[2]), vec![0.5, -1.0]);
    gives(
        Attention { causal: true, softcap: Some(2.0), sinks: true, ..plain.clone() },
        &[q.clone(), k.clone(), v.clone(), sinks],
        &[1, 2, 2, 2],
        &[
            -2.85178273434,
            2.50925282658,
            -2.28190409846,
            2.47267201543,
            -2.76302434859,
            2.49283043134,
            -0.886923590186,
            0.302429026619,
        ],
        1e-10,
    );
    gives(
        Attention { mask: MaskKind::Bias, ..plain },
        &[q, k, v, ramp_over(&[2, 3], 10.0)],
        &[1, 2, 2, 2],
        &[
            -2.89368010253,
            3.12509703487,
            -3.31262342208,
            3.22538891236,
            -0.784438518141,
            -0.0873308651315,
            -1.74007504876,
            1.10639282166,
        ],
        1e-10,
    );
    let angles = ramp(&[2, 2]);
    let table = |f: fn(f64) -> f64| Value::floats(angles.ty, angles.to_f64().into_iter().map(f).collect());
    let rope = Rope {
        layout: HeadLayout::Bhsd,
        style: RopeStyle::GptJ,
        rotary: 4,
        base: 10000.0,
        scaling: RopeScaling::None,
        tables: true,
    };
    gives(
        rope,
        &[ramp(&[1, 1, 2, 4]), table(f64::cos), table(f64::sin)],
        &[1, 1, 2, 4],
        &[
            -3.33615947664,
            -4.22729700239,
            -3.71419346103,
            -3.89932903639,
            -3.14403911702,
            0.339143082816,
            1.13464874185,
            -3.83569709865,
        ],
        1e-10,
    );
}

#[test]
fn norms_sums_and_scans_agree_with_the_reference() {
    gives(
        LayerNorm { axis: 1, eps: 1e-5, bias: true, prologue: None, emit_input: false },
        &[ramp(&[2, 4]), ramp(&[4]), ramp(&[4])],
        &[2, 4],
        &[
            1.56531937908,
            3.05045110065,
            -0.949548899347,
            11.5653193791,
            -5.9999992,
            -0.799997760003,
            -4.79999776,
            4.0000008,
        ],
        1e-9,
    );
    gives(
        Reduce { kind: ReduceKind::LogSumExp, axes: vec![1], keepdims: false },
        &[ramp(&[2, 3])],
        &[2],
        &[2.01904500788, 5.01847930259],
        1e-10,
    );
    gives(
        Cumulative { kind: CumulativeKind::Sum, axis: 0, exclusive: true, reverse: true },
        &[ramp(&[5])],
        &[5],
        &[6.0, 4.0, 6.0, 1.0, 0.0],
        0.0,
    );
    gives(
        Einsum { equation: "bij,bjj->ib".into() },
        &[ramp(&[2, 2, 3]), ramp(&[2, 3, 3])],
        &[2, 2],
        &[35.0, -4.0, -12.0, -9.0],
        0.0,
    );
}
