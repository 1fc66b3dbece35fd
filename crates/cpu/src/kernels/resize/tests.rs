//! Resizes against direct sums in f64, and against numbers of the ONNX reference implementation.

use olivine_ir::op::{CoordinateMode, NearestMode, Resize, ResizeMode, Rule};
use olivine_ir::{DType, Data, Tensor};

use super::resize;
use crate::operand::{Operand, Target};

fn run(op: &Resize, x: &Tensor) -> Tensor {
    let ty = op.infer(&[x.ty()]).unwrap()[0];
    let size = ty.shape.numel() * ty.dtype.size();
    let mut words = vec![u64::MAX; size.div_ceil(8)];
    let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..size];
    resize(op, &[Operand::packed(x.ty(), x.data().as_bytes())], &mut [Target { ty, bytes }]);
    let data = Data::from_bytes(ty.dtype, &bytemuck::cast_slice(&words)[..size]).unwrap();
    Tensor::from_data(ty.shape, data).unwrap()
}

fn plain(sizes: &[usize], mode: ResizeMode) -> Resize {
    Resize {
        sizes: sizes.iter().map(|size| (*size).into()).collect(),
        scales: None,
        mode,
        coordinates: CoordinateMode::HalfPixel,
        nearest: NearestMode::RoundPreferFloor,
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
    }
}

/// Multiples of 1/8, which f16 and bf16 hold exactly.
fn numbers(dims: &[usize], dtype: DType) -> Tensor {
    let values = (0..dims.iter().product::<usize>()).map(|i| ((i * 7919) % 127) as f64 / 8.0 - 7.0);
    let done = match dtype {
        DType::F64 => Tensor::new(dims, values.collect()),
        DType::F32 => Tensor::new(dims, values.map(|v| v as f32).collect()),
        DType::F16 => Tensor::new(dims, values.map(half::f16::from_f64).collect()),
        DType::BF16 => Tensor::new(dims, values.map(half::bf16::from_f64).collect()),
        DType::I8 => Tensor::new(dims, values.map(|v| v as i8).collect()),
        DType::Bool => Tensor::new(dims, values.map(|v| v > 0.0).collect()),
        DType::I16 => Tensor::new(dims, values.map(|v| v as i16).collect()),
        DType::U32 => Tensor::new(dims, values.map(|v| v.abs() as u32).collect()),
        _ => Tensor::new(dims, values.map(|v| v as i64).collect()),
    };
    done.unwrap()
}

fn size_of(op: &Resize, axis: usize) -> usize {
    op.sizes[axis].specialize().unwrap()
}

/// Where a position is in the operand, as the operation's documentation says.
fn source_coordinate(op: &Resize, input: usize, axis: usize, i: usize) -> f64 {
    let (n, out, i) = (input as f64, size_of(op, axis) as f64, i as f64);
    let scale = op.scales.as_ref().map_or(out / n, |s| s[axis]);
    match op.coordinates {
        CoordinateMode::HalfPixel => (i + 0.5) / scale - 0.5,
        CoordinateMode::PytorchHalfPixel => {
            if out > 1.0 {
                (i + 0.5) / scale - 0.5
            } else {
                0.0
            }
        }
        CoordinateMode::HalfPixelSymmetric => n / 2.0 * (1.0 - out / (scale * n)) + (i + 0.5) / scale - 0.5,
        CoordinateMode::AlignCorners => {
            if scale * n == 1.0 {
                0.0
            } else {
                i * (n - 1.0) / (scale * n - 1.0)
            }
        }
        CoordinateMode::Asymmetric => i / scale,
    }
}

/// The weight of every sample for one position of one axis.
fn weights(op: &Resize, input: usize, axis: usize, i: usize) -> Vec<f64> {
    let out = size_of(op, axis);
    let scale = op.scales.as_ref().map_or(out as f64 / input as f64, |s| s[axis]);
    let mut of = vec![0.0; input];
    if out == input && scale == 1.0 {
        of[i] = 1.0;
        return of;
    }
    let x = source_coordinate(op, input, axis, i);
    let (low, high) = (x.floor(), x.ceil());
    if op.mode == ResizeMode::Nearest {
        let at = match op.nearest {
            NearestMode::Floor => low,
            NearestMode::Ceil => high,
            NearestMode::RoundPreferFloor => {
                if high - x < x - low {
                    high
                } else {
                    low
                }
            }
            NearestMode::RoundPreferCeil => {
                if x - low < high - x {
                    low
                } else {
                    high
                }
            }
        };
        of[(at as i64).clamp(0, input as i64 - 1) as usize] = 1.0;
        return of;
    }
    let squeeze = if op.antialias { scale.min(1.0) } else { 1.0 };
    let a = op.cubic;
    let bell = |d: f64| match (op.mode, d) {
        (ResizeMode::Linear, d) => (1.0 - d).max(0.0),
        (_, d) if d <= 1.0 => (a + 2.0) * d.powi(3) - (a + 3.0) * d.powi(2) + 1.0,
        (_, d) if d < 2.0 => a * d.powi(3) - 5.0 * a * d.powi(2) + 8.0 * a * d - 4.0 * a,
        _ => 0.0,
    };
    let reach = (3.0 / squeeze) as i64 + 3;
    let mut total = 0.0;
    for at in (low as i64 - reach)..=(high as i64 + reach) {
        let inside = (0..input as i64).contains(&at);
        if inside || !op.exclude_outside {
            let w = bell(((at as f64 - x) * squeeze).abs());
            of[at.clamp(0, input as i64 - 1) as usize] += w;
            total += w;
        }
    }
    if op.exclude_outside || op.antialias {
        of.iter_mut().for_each(|w| *w /= total);
    }
    of
}

fn expected(op: &Resize, x: &Tensor) -> Vec<f64> {
    let mut sizes = x.shape().to_vec();
    let mut values = x.to_f64();
    for axis in 0..sizes.len() {
        let (input, output) = (sizes[axis], size_of(op, axis));
        let inner: usize = sizes[axis + 1..].iter().product();
        let outer: usize = sizes[..axis].iter().product();
        let mut next = vec![0.0; outer * output * inner];
        for o in 0..output {
            let w = weights(op, input, axis, o);
            for a in 0..outer {
                for b in 0..inner {
                    next[(a * output + o) * inner + b] =
                        (0..input).map(|i| w[i] * values[(a * input + i) * inner + b]).sum();
                }
            }
        }
        values = next;
        sizes[axis] = output;
    }
    values
}

fn compare(op: &Resize, x: &Tensor) {
    let found = run(op, x).to_f64();
    let bound = match x.dtype() {
        DType::F64 => 1e-11,
        DType::F32 => 2e-5,
        DType::F16 => 1e-2,
        _ => 8e-2,
    };
    for (i, (f, e)) in found.iter().zip(expected(op, x)).enumerate() {
        assert!(
            (f - e).abs() <= bound * (1.0 + e.abs() / 8.0),
            "{op:?} of {} at {i}: {f}, expected {e}",
            x.shape()
        );
    }
}

const MODES: [ResizeMode; 3] = [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic];
const COORDINATES: [CoordinateMode; 5] = [
    CoordinateMode::HalfPixel,
    CoordinateMode::HalfPixelSymmetric,
    CoordinateMode::PytorchHalfPixel,
    CoordinateMode::AlignCorners,
    CoordinateMode::Asymmetric,
];
const ROUNDINGS: [NearestMode; 4] =
    [NearestMode::RoundPreferFloor, NearestMode::RoundPreferCeil, NearestMode::Floor, NearestMode::Ceil];

#[test]
fn every_mode_matches_direct_sums() {
    let cases: [(&[usize], &[usize]); 9] = [
        (&[1, 2, 5, 7], &[1, 2, 9, 4]),
        (&[2, 3, 4, 4], &[2, 3, 8, 8]),
        (&[6], &[13]),
        (&[2, 3, 4], &[2, 3, 1]),
        (&[3, 5, 4], &[3, 2, 4]),
        (&[2, 3, 4, 3], &[4, 3, 4, 5]),
        (&[1, 2, 3, 4, 5], &[1, 2, 5, 2, 7]),
        (&[1, 1, 7, 1], &[1, 1, 3, 4]),
        (&[2, 2, 3, 3], &[3, 1, 4, 2]),
    ];
    for (from, sizes) in cases {
        for (mode, coordinates) in MODES.into_iter().flat_map(|m| COORDINATES.map(|c| (m, c))) {
            for nearest in ROUNDINGS {
                for (exclude_outside, antialias) in
                    [(false, false), (true, false), (false, true), (true, true)]
                {
                    let op =
                        Resize { coordinates, nearest, exclude_outside, antialias, ..plain(sizes, mode) };
                    let dtypes: &[DType] = match (mode, nearest) {
                        (ResizeMode::Nearest, _) => &[DType::F64],
                        (_, NearestMode::Floor) => &[DType::F32, DType::F64, DType::F16, DType::BF16],
                        _ => continue,
                    };
                    dtypes.iter().for_each(|&d| compare(&op, &numbers(from, d)));
                }
            }
        }
    }
}

#[test]
fn a_given_scale_rules_over_the_sizes() {
    for (mode, coordinates) in MODES.into_iter().flat_map(|m| COORDINATES.map(|c| (m, c))) {
        for (scales, sizes) in [([0.6, 0.8], [2, 4]), ([2.3, 1.0], [11, 6]), ([1.0, 2.5], [5, 15])] {
            let op = Resize {
                coordinates,
                scales: Some([&[1.0, 1.0][..], &scales].concat()),
                ..plain(&[[1, 2], sizes].concat(), mode)
            };
            compare(&op, &numbers(&[1, 2, 5, 6], DType::F64));
        }
    }
}

#[test]
fn large_planes_match_direct_sums() {
    for mode in MODES {
        for sizes in [[1, 3, 130, 200], [1, 3, 40, 350], [1, 3, 65, 200]] {
            compare(&plain(&sizes, mode), &numbers(&[1, 3, 65, 100], DType::F32));
        }
    }
}

#[test]
fn nearest_moves_elements_of_every_size() {
    for dtype in
        [DType::I8, DType::Bool, DType::I16, DType::F16, DType::U32, DType::F32, DType::I64, DType::F64]
    {
        let x = numbers(&[2, 3, 4, 5], dtype);
        for sizes in [[2, 3, 8, 10], [2, 3, 7, 9], [3, 2, 4, 5], [2, 6, 4, 5], [2, 3, 4, 5]] {
            let op = plain(&sizes, ResizeMode::Nearest);
            assert_eq!(run(&op, &x).to_f64(), expected(&op, &x), "{dtype:?} {sizes:?}");
        }
    }
}

#[test]
fn no_elements_resize_to_none() {
    for mode in MODES {
        let x = Tensor::zeros(DType::F32, [0, 3, 4, 4]).unwrap();
        assert_eq!(&run(&plain(&[0, 3, 8, 8], mode), &x).shape()[..], [0, 3, 8, 8]);
        let x = Tensor::zeros(DType::F32, [1, 3, 4, 4]).unwrap();
        assert_eq!(&run(&plain(&[1, 3, 0, 8], mode), &x).shape()[..], [1, 3, 0, 8]);
    }
}

#[test]
fn a_sample_outside_a_filter_does_not_touch_its_result() {
    let x = Tensor::new([1, 1, 4], vec![1f32, f32::INFINITY, 3.0, 4.0]).unwrap();
    let found = run(&plain(&[1, 1, 8], ResizeMode::Linear), &x);
    let found = found.as_slice::<f32>().unwrap();
    assert_eq!([found[0], found[5], found[7]], [1.0, 3.25, 4.0]);
    assert_eq!(found[1..5], [f32::INFINITY; 4]);
}

#[test]
fn extreme_scales_read_the_edges() {
    for mode in MODES {
        for (coordinates, antialias) in COORDINATES.into_iter().flat_map(|c| [(c, false), (c, true)]) {
            for scale in [1e-300, 1e-9, 1e9, 1e300] {
                let scales = Some(vec![scale]);
                let op = Resize { coordinates, antialias, scales, ..plain(&[5], mode) };
                let x = Tensor::new([3], vec![2f64; 3]).unwrap();
                let found = run(&op, &x).to_f64();
                assert!(found.iter().all(|v| (v - 2.0).abs() < 1e-9), "{op:?}: {found:?}");
            }
        }
    }
}

#[test]
fn numbers_of_the_onnx_reference_come_out() {
    let x = Tensor::new([1, 1, 4, 4], (1..=16).map(f64::from).collect()).unwrap();
    let check = |mode, coordinates, exclude_outside, antialias, side, scale: f32, numbers: &[f64]| {
        let scales = Some(vec![1.0, 1.0, f64::from(scale), f64::from(scale)]);
        let op =
            Resize { coordinates, exclude_outside, antialias, scales, ..plain(&[1, 1, side, side], mode) };
        for (f, e) in run(&op, &x).to_f64().iter().zip(numbers) {
            assert!((f - e).abs() < 1e-9, "{op:?}: {f}, expected {e}");
        }
    };
    check(
        ResizeMode::Linear,
        CoordinateMode::AlignCorners,
        false,
        false,
        2,
        0.6,
        &[1.0, 3.14285699689, 9.57142798755, 11.7142849844],
    );
    check(
        ResizeMode::Cubic,
        CoordinateMode::HalfPixel,
        true,
        false,
        3,
        0.8,
        &[
            1.43963550378,
            2.75600525576,
            4.08642020106,
            6.7051145117,
            8.02148426368,
            9.35189920898,
            12.0267742929,
            13.3431440449,
            14.6735589902,
        ],
    );
    check(
        ResizeMode::Linear,
        CoordinateMode::HalfPixel,
        false,
        true,
        2,
        0.6,
        &[2.87499993015, 4.49999987789, 9.37499972112, 10.9999996689],
    );
    check(
        ResizeMode::Cubic,
        CoordinateMode::HalfPixel,
        false,
        true,
        2,
        0.6,
        &[2.51807213534, 4.28588618102, 9.58932831805, 11.3571423637],
    );
    check(
        ResizeMode::Linear,
        CoordinateMode::HalfPixelSymmetric,
        false,
        false,
        2,
        0.6,
        &[4.3333334989, 6.00000009934, 10.9999999007, 12.6666665011],
    );
    check(
        ResizeMode::Cubic,
        CoordinateMode::Asymmetric,
        false,
        false,
        3,
        0.8,
        &[
            1.0,
            2.29687498254,
            3.59374996508,
            6.18749993015,
            7.48437491269,
            8.78124989523,
            11.3749998603,
            12.6718748428,
            13.9687498254,
        ],
    );
}
