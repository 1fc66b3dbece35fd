//! Speech synthesis as exporters write it: the phase of a spectrum by `atan(im / re)`, and the signal back from it.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use std::f64::consts::{PI, TAU};

use olivine::prelude::*;
use wire::{int_attribute, ints, node, tensor, value};

/// Samples, samples of a frame, samples from frame to frame, frequencies.
const SAMPLES: usize = 80;
const FRAME: usize = 20;
const STEP: usize = 5;
const BINS: usize = FRAME / 2 + 1;
const FRAMES: usize = (SAMPLES - FRAME) / STEP + 1;

/// Numbers in a dtype, as bytes and in a tensor of a file.
fn bytes(dtype: DType, values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|v| Tensor::scalar_of(dtype, *v).bytes().to_vec()).collect()
}

fn number_of(dtype: DType) -> i64 {
    if dtype == DType::F16 { 10 } else { 1 }
}

fn numbers(name: &str, dtype: DType, dims: &[i64], values: &[f64]) -> wire::Message {
    tensor(name, number_of(dtype), dims, &bytes(dtype, values))
}

fn window(i: usize) -> f64 {
    0.5 - 0.5 * (TAU * i as f64 / FRAME as f64).cos()
}

/// Frequencies by samples of a frame.
fn table(of: impl Fn(usize, f64) -> f64) -> Vec<f64> {
    let entry = |bin: usize, i: usize| of(bin, TAU * (bin * i % FRAME) as f64 / FRAME as f64);
    (0..BINS).flat_map(|bin| (0..FRAME).map(move |i| (bin, i))).map(|(bin, i)| entry(bin, i)).collect()
}

/// Frequencies x of every sample to y, the frames of their wave: through its spectrum, the spectrum's magnitude and phase,
/// and back.
fn model(dtype: DType, loudness: f64, by_convolution: bool) -> Model {
    let each = |name: &str, v: f64| numbers(name, dtype, &[], &[v]);
    let mut nodes = vec![
        node("CumSum", &["x", "one"], &["turns"]),
        node("Mul", &["turns", "tau"], &["angle"]),
        node("Sin", &["angle"], &["wave"]),
        node("Mul", &["wave", "loudness"], &["s"]),
    ];
    let mut initializers = vec![
        ints("one", &[], &[1]),
        ints("zero_index", &[], &[0]),
        ints("axis", &[1], &[if by_convolution { 1 } else { 2 }]),
        each("tau", TAU),
        each("loudness", loudness),
        each("zero", 0.0),
        each("pi", PI),
    ];
    nodes.push(node("Unsqueeze", &["s", "axis"], &["signal"]));
    if by_convolution {
        let windowed = |of: fn(f64) -> f64| -> Vec<f64> {
            let taps = table(|_, angle| of(angle));
            taps.iter().enumerate().map(|(i, v)| v * window(i % FRAME)).collect()
        };
        let dims = [BINS as i64, 1, FRAME as i64];
        initializers.push(numbers("cosines", dtype, &dims, &windowed(f64::cos)));
        initializers.push(numbers("sines", dtype, &dims, &windowed(|a| -a.sin())));
        for (taps, bins, part) in [("cosines", "re_bins", "re"), ("sines", "im_bins", "im")] {
            let strides = wire::ints_attribute("strides", &[STEP as i64]);
            nodes.push(node("Conv", &["signal", taps], &[bins]).inside(5, &strides));
            let turned = wire::ints_attribute("perm", &[0, 2, 1]);
            nodes.push(node("Transpose", &[bins], &[part]).inside(5, &turned));
        }
    } else {
        initializers.push(ints("step", &[], &[STEP as i64]));
        let taps: Vec<f64> = (0..FRAME).map(window).collect();
        initializers.push(numbers("window", dtype, &[FRAME as i64], &taps));
        nodes.push(
            node("STFT", &["signal", "step", "window"], &["spectrum"])
                .inside(5, &int_attribute("onesided", 1)),
        );
        for (index, part) in [("zero_index", "re"), ("one", "im")] {
            nodes.push(node("Gather", &["spectrum", index], &[part]).inside(5, &int_attribute("axis", 3)));
        }
    }
    nodes.extend([
        node("Mul", &["re", "re"], &["re2"]),
        node("Mul", &["im", "im"], &["im2"]),
        node("Add", &["re2", "im2"], &["power"]),
        node("Sqrt", &["power"], &["magnitude"]),
        node("Div", &["im", "re"], &["slope"]),
        node("Atan", &["slope"], &["right"]),
        node("Greater", &["im", "zero"], &["is_up"]),
        node("Add", &["right", "pi"], &["up"]),
        node("Sub", &["right", "pi"], &["down"]),
        node("Where", &["is_up", "up", "down"], &["left"]),
        node("Less", &["re", "zero"], &["is_left"]),
        node("Where", &["is_left", "left", "right"], &["phase"]),
        node("Cos", &["phase"], &["cos"]),
        node("Sin", &["phase"], &["sin"]),
        node("Mul", &["magnitude", "cos"], &["re_again"]),
        node("Mul", &["magnitude", "sin"], &["im_again"]),
        node("MatMul", &["re_again", "back_re"], &["from_re"]),
        node("MatMul", &["im_again", "back_im"], &["from_im"]),
        node("Add", &["from_re", "from_im"], &["y"]),
    ]);
    let weight = |bin: usize| if bin == 0 || bin == FRAME / 2 { 1.0 } else { 2.0 } / FRAME as f64;
    let dims = [BINS as i64, FRAME as i64];
    initializers.push(numbers("back_re", dtype, &dims, &table(|bin, a| weight(bin) * a.cos())));
    initializers.push(numbers("back_im", dtype, &dims, &table(|bin, a| -weight(bin) * a.sin())));
    let samples = SAMPLES.to_string();
    let graph = wire::Graph {
        nodes,
        initializers,
        inputs: vec![value("x", number_of(dtype), &["1", &samples])],
        outputs: vec![value("y", number_of(dtype), &["1", "frames", "samples"])],
        ..wire::Graph::default()
    };
    Model::from_onnx(graph.model()).unwrap()
}

#[test]
fn the_phase_of_a_spectrum_has_no_nan_and_the_signal_comes_back() {
    let session = Session::new(Device::Cpu).unwrap();
    let tone = [0.0625; SAMPLES];
    let silence = [0.0; SAMPLES];
    let begun_late: Vec<f64> = (0..SAMPLES).map(|i| if i < SAMPLES / 2 { 0.0 } else { 0.25 }).collect();
    for dtype in [DType::F32, DType::F16] {
        for by_convolution in [true, false] {
            for (x, loudness) in [(&tone[..], 1.0), (&silence, 1.0), (&begun_late, 1.0), (&tone, 1e-6)] {
                let executable = session.compile(&model(dtype, loudness, by_convolution)).unwrap();
                let data = olivine::ir::Data::from_bytes(dtype, &bytes(dtype, x)).unwrap();
                let x_tensor = Tensor::from_data([1, SAMPLES], data).unwrap();
                let outputs = executable.run([("x", &x_tensor)]).unwrap();
                let got = outputs.get("y").unwrap().to_f64();
                let mut turns = 0.0;
                let wave: Vec<f64> = x
                    .iter()
                    .map(|x| {
                        turns += x;
                        (TAU * turns).sin() * loudness
                    })
                    .collect();
                let frames = (0..FRAMES).flat_map(|f| (0..FRAME).map(move |i| (f * STEP + i, i)));
                let want: Vec<f64> = frames.map(|(at, i)| wave[at] * window(i)).collect();
                let off = got
                    .iter()
                    .zip(&want)
                    .map(|(a, b)| (a - b).abs())
                    .fold(0.0, |a: f64, b| if b.is_nan() { f64::INFINITY } else { a.max(b) });
                let most = if dtype == DType::F16 { 0.05 } else { 1e-5 };
                let case =
                    format!("{dtype}, convolution {by_convolution}, loudness {loudness}, x[0] {}", x[0]);
                assert!(got.len() == want.len() && off < most, "{case}: off by {off}");
            }
        }
    }
}
