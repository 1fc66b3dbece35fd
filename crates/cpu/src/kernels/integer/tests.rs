//! Integer matmuls and convolutions against plain loops, which wrap as i32 does.

use olivine_ir::op::{QConv, QMatMul, Rule, Window};
use olivine_ir::{DType, Tensor};

use super::conv::qconv;
use super::micro::{ColumnTerms, PANEL, RowTerms, STEP, Strip};
use super::{filters_packing, panels_packing, qmatmul};
use crate::kernel::Packing;
use crate::operand::{Operand, Target};

/// Numbers of a dtype, its extremes often among them.
fn numbers(dims: &[usize], dtype: DType, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let bytes: Vec<u8> = (0..dims.iter().product())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match state >> 60 {
                0..3 => 0,
                3..5 => 255,
                5 => 127,
                6 => 128,
                _ => (state >> 40) as u8,
            }
        })
        .collect();
    match dtype {
        DType::I8 => Tensor::new(dims, bytemuck::cast_slice::<u8, i8>(&bytes).to_vec()),
        _ => Tensor::new(dims, bytes),
    }
    .unwrap()
}

/// Elements as i32.
fn whole(x: &Tensor) -> Vec<i32> {
    x.to_f64().into_iter().map(|v| v as i32).collect()
}

/// Aligned memory for what a packing writes.
fn packed(packing: &Packing, op: &olivine_ir::Op, x: &Operand<'_>) -> Vec<u64> {
    let mut words = vec![u64::MAX; packing.bytes.div_ceil(8)];
    (packing.pack)(op, x, &mut bytemuck::cast_slice_mut(&mut words)[..packing.bytes]);
    words
}

#[test]
fn every_instruction_set_multiplies_strips_alike() {
    let fill = |seed: u64, len: usize| numbers(&[len], DType::U8, seed).data().as_bytes().to_vec();
    for (rows, width, steps) in [
        (1usize, 64usize, 9),
        (2, 1, 1),
        (3, 17, 5),
        (5, 33, 7),
        (6, 48, 3),
        (7, 16, 0),
        (13, 63, 2),
        (96, 40, 4),
    ] {
        let (k_len, panels) = (steps * STEP, width.div_ceil(PANEL));
        let (left, right) = (fill(1, rows * (k_len + 3)), fill(2, panels * PANEL * k_len));
        let terms: Vec<RowTerms> = (0..rows as i32)
            .map(|r| RowTerms { zero: r * 77 - 300, sum: (i32::MAX / 3).wrapping_mul(r) })
            .collect();
        let columns = ColumnTerms {
            sums: std::array::from_fn(|c| c as i32 * 1_000_003),
            zeros: std::array::from_fn(|c| 128 - c as i32),
        };
        let strip = Strip {
            steps,
            left: &left,
            pitch: k_len + 3,
            rows: &terms,
            panels: &right,
            columns: &columns,
            width,
        };
        let mut want = vec![7; rows * (width + 5)];
        for (r, want) in want.chunks_mut(width + 5).enumerate() {
            for (c, want) in want[..width].iter_mut().enumerate() {
                *want = terms[r].zero.wrapping_mul(columns.sums[c]);
                *want = want.wrapping_add(terms[r].sum.wrapping_mul(columns.zeros[c]));
                for k in 0..k_len {
                    let at =
                        c / PANEL * PANEL * k_len + k / STEP * STEP * PANEL + c % PANEL * STEP + k % STEP;
                    let product = i32::from(left[r * (k_len + 3) + k]) * i32::from(right[at] as i8);
                    *want = want.wrapping_add(product);
                }
            }
        }
        let check = |what: &str, multiply: &dyn Fn(*mut i32)| {
            let mut out = vec![7; rows * (width + 5)];
            multiply(out.as_mut_ptr());
            assert_eq!(out, want, "{what}: {rows} rows, {width} columns, {steps} steps");
        };
        // Safety: `out` has all rows, and each path runs only where the processor has its instructions.
        unsafe {
            check("chosen", &|out| strip.multiply(out, width + 5));
            check("portable", &|out| strip.portable(panels, out, width + 5));
            #[cfg(target_arch = "x86_64")]
            check("narrow pairs", &|out| super::x86::narrow_pairs(&strip, panels, out, width + 5));
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                check("pairs", &|out| super::x86::pairs(&strip, panels, out, width + 5));
            }
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni") {
                check("dot products", &|out| super::x86::dot_products(&strip, panels, out, width + 5));
            }
        }
    }
}

/// Multiplies operands of given sizes, packed and not, read in order and transposed.
fn check_matmul(a: &[usize], b: &[usize], types: [DType; 2], zeros: [Option<usize>; 2]) {
    let (at, bt) = (numbers(a, types[0], 3), numbers(b, types[1], 5));
    let zero = |i: usize| {
        zeros[i].map(|n| {
            let dims: &[usize] = if n == 0 { &[] } else { &[n] };
            numbers(dims, types[i], 7 + i as u64)
        })
    };
    let (za, zb) = (zero(0), zero(1));
    let op = QMatMul { a_zero: za.is_some(), b_zero: zb.is_some() };
    let tensors: Vec<&Tensor> = [&at, &bt].into_iter().chain(&za).chain(&zb).collect();
    let ty = op.infer(&tensors.iter().map(|t| t.ty()).collect::<Vec<_>>()).unwrap()[0];
    let (m, k, n) = (a[a.len() - 2], a[a.len() - 1], b[b.len() - 1]);
    let (av, bv) = (whole(&at), whole(&bt));
    let point = |z: &Option<Vec<i32>>, line: usize| match z.as_deref() {
        None => 0,
        Some([one]) => *one,
        Some(many) => many[line],
    };
    let (pa, pb) = (za.as_ref().map(whole), zb.as_ref().map(whole));
    let matrix = |dims: &[usize], mut number: usize| {
        let (mut at, mut step) = (0, 1);
        for (i, size) in ty.shape[..ty.shape.rank() - 2].iter().enumerate().rev() {
            if let Some(axis) = (i + dims.len()).checked_sub(ty.shape.rank()) {
                at += if dims[axis] == 1 { 0 } else { number % size * step };
                step *= dims[axis];
            }
            number /= size;
        }
        at
    };
    let mut want = Vec::new();
    for number in 0..ty.shape[..ty.shape.rank() - 2].iter().product() {
        let (a, b) = (&av[matrix(a, number) * m * k..], &bv[matrix(b, number) * k * n..]);
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let products = (0..k).map(|l| (a[i * k + l] - point(&pa, i)) * (b[l * n + j] - point(&pb, j)));
            want.push(products.fold(0, i32::wrapping_add));
        }
    }
    let operands: Vec<Operand<'_>> =
        tensors.iter().map(|t| Operand::packed(t.ty(), t.data().as_bytes())).collect();
    let check = |what: &str, operands: &[Operand<'_>]| {
        let mut out = vec![7i32; ty.shape.numel()];
        qmatmul(&op, operands, &mut [Target { ty, bytes: bytemuck::cast_slice_mut(&mut out) }]);
        assert!(out == want, "{what}: {a:?} x {b:?} of {types:?}, zeros {zeros:?}");
    };
    check("as it is", &operands);
    let mut given = operands.clone();
    let words = packed(&panels_packing(&bt.ty()), &op.clone().into(), &operands[1]);
    given[1].packed = Some(bytemuck::cast_slice(&words));
    check("packed", &given);
    // Both sides turned in memory, and read back through strides.
    let turned: Vec<Vec<u8>> = [(&at, a), (&bt, b)]
        .map(|(x, dims)| {
            let (rows, columns) = (dims[dims.len() - 2], dims[dims.len() - 1]);
            let bytes = x.data().as_bytes();
            let each = rows * columns;
            let at = |i: usize| i / each.max(1) * each + i % each % rows * columns + i % each / rows;
            (0..bytes.len()).map(|i| bytes[at(i)]).collect()
        })
        .into();
    let mut given = operands.clone();
    for (operand, bytes) in given.iter_mut().zip(&turned) {
        let rank = operand.shape().rank();
        let rows = operand.shape()[rank - 2];
        *operand = Operand { source: crate::operand::OperandSource::Bytes(bytes), ..*operand };
        (operand.strides[rank - 2], operand.strides[rank - 1]) = (1, rows as isize);
    }
    check("transposed", &given);
    let words = packed(&panels_packing(&bt.ty()), &op.clone().into(), &given[1]);
    given[1].packed = Some(bytemuck::cast_slice(&words));
    check("transposed and packed", &given);
}

const TYPES: [[DType; 2]; 4] =
    [[DType::U8, DType::I8], [DType::U8, DType::U8], [DType::I8, DType::I8], [DType::I8, DType::U8]];

#[test]
fn matmuls_of_all_types_and_zero_points_are_exact() {
    for types in TYPES {
        check_matmul(&[7, 9], &[9, 21], types, [None, None]);
        check_matmul(&[5, 16], &[16, 64], types, [Some(0), Some(0)]);
        check_matmul(&[13, 30], &[30, 70], types, [Some(13), Some(70)]);
        check_matmul(&[1, 1], &[1, 1], types, [Some(1), Some(1)]);
        check_matmul(&[3, 0], &[0, 5], types, [Some(0), Some(5)]);
        check_matmul(&[0, 4], &[4, 5], types, [None, None]);
        check_matmul(&[4, 4], &[4, 0], types, [None, None]);
    }
}

#[test]
fn large_and_batched_matmuls_are_exact() {
    let types = TYPES[0];
    check_matmul(&[230, 132], &[132, 200], types, [Some(230), Some(200)]);
    check_matmul(&[2, 700], &[700, 1030], types, [Some(0), Some(0)]);
    check_matmul(&[3, 5, 8], &[8, 6], types, [Some(0), Some(6)]);
    check_matmul(&[3, 5, 8], &[8, 6], types, [Some(5), None]);
    check_matmul(&[2, 1, 5, 9], &[3, 9, 6], types, [Some(5), Some(6)]);
    check_matmul(&[1, 5, 9], &[4, 9, 20], types, [None, Some(0)]);
    check_matmul(&[3, 60, 128], &[3, 128, 90], TYPES[1], [Some(0), Some(0)]);
    check_matmul(&[20, 30_000], &[30_000, 3], TYPES[1], [None, None]);
}

fn check_conv(x: &[usize], w: &[usize], window: Window, groups: usize, types: [DType; 2], zeros: [bool; 2]) {
    let (xt, wt) = (numbers(x, types[0], 11), numbers(w, types[1], 13));
    let zx = zeros[0].then(|| numbers(&[], types[0], 17));
    let zw = zeros[1].then(|| numbers(&[w[0]], types[1], 19));
    let op = QConv { window: window.clone(), groups, x_zero: zeros[0], w_zero: zeros[1] };
    let tensors: Vec<&Tensor> = [&xt, &wt].into_iter().chain(&zx).chain(&zw).collect();
    let ty = op.infer(&tensors.iter().map(|t| t.ty()).collect::<Vec<_>>()).unwrap()[0];
    let (xv, wv) = (whole(&xt), whole(&wt));
    let x_zero = zx.as_ref().map_or(0, |z| whole(z)[0]);
    let w_zeros = zw.as_ref().map(whole);
    // Every spatial rank as three axes.
    let three = |sizes: &[usize], fill: usize| {
        let mut out = [fill; 3];
        out[3 - sizes.len()..].copy_from_slice(sizes);
        out
    };
    let (xs, ws, os) = (three(&x[2..], 1), three(&w[2..], 1), three(&ty.shape[2..], 1));
    let (strides, dilations) = (three(&window.strides, 1), three(&window.dilations, 1));
    let before: Vec<usize> = window.pads.iter().map(|p| p.0).collect();
    let before = three(&before, 0);
    let position = |i: usize, dims: [usize; 3]| [i / (dims[1] * dims[2]), i / dims[2] % dims[1], i % dims[2]];
    let mut want = Vec::new();
    for flat in 0..ty.shape.numel() {
        let windows = os.iter().product::<usize>();
        let (filter, at) = (flat / windows % w[0], position(flat % windows, os));
        let image = flat / windows / w[0];
        let mut sum = 0i32;
        for k in 0..w[1..].iter().product::<usize>() {
            let taps = ws.iter().product::<usize>();
            let (channel, tap) = (k / taps, position(k % taps, ws));
            let channel = filter / (w[0] / groups) * w[1] + channel;
            let from: [Option<usize>; 3] = std::array::from_fn(|i| {
                (at[i] * strides[i] + tap[i] * dilations[i]).checked_sub(before[i]).filter(|p| *p < xs[i])
            });
            if let [Some(z), Some(y), Some(c)] = from {
                let value = xv[((image * x[1] + channel) * xs[0] + z) * xs[1] * xs[2] + y * xs[2] + c];
                let weight = wv[filter * w[1..].iter().product::<usize>() + k];
                let zero = w_zeros.as_ref().map_or(0, |z| z[filter]);
                sum = sum.wrapping_add((value - x_zero) * (weight - zero));
            }
        }
        want.push(sum);
    }
    let mut operands: Vec<Operand<'_>> =
        tensors.iter().map(|t| Operand::packed(t.ty(), t.data().as_bytes())).collect();
    let check = |what: &str, operands: &[Operand<'_>]| {
        let mut out = vec![7i32; ty.shape.numel()];
        qconv(&op, operands, &mut [Target { ty, bytes: bytemuck::cast_slice_mut(&mut out) }]);
        assert!(out == want, "{what}: {x:?} with {w:?} of {types:?}, {groups} groups, zeros {zeros:?}");
    };
    check("as it is", &operands);
    let words = packed(&filters_packing(&wt.ty()), &op.clone().into(), &operands[1]);
    operands[1].packed = Some(bytemuck::cast_slice(&words));
    check("packed", &operands);
}

#[test]
fn convolutions_of_all_types_are_exact() {
    let odd = Window { strides: vec![2, 1], pads: vec![(1, 2), (0, 3)], dilations: vec![1, 2] };
    let far = Window { strides: vec![1, 3], pads: vec![(2, 0), (7, 5)], dilations: vec![2, 4] };
    for types in TYPES {
        check_conv(&[2, 6, 9, 11], &[8, 6, 3, 3], Window::same(2, 1, 1), 1, types, [true, true]);
        check_conv(&[1, 6, 9, 11], &[6, 1, 3, 3], Window::same(2, 1, 1), 6, types, [true, true]);
        check_conv(&[1, 4, 10, 12], &[10, 2, 2, 3], odd.clone(), 2, types, [true, true]);
        check_conv(&[1, 4, 10, 12], &[4, 2, 2, 3], odd.clone(), 2, types, [true, false]);
        check_conv(&[2, 3, 10, 80], &[3, 1, 3, 5], far.clone(), 3, types, [true, true]);
        check_conv(&[1, 2, 7, 150], &[4, 1, 3, 3], Window::same(2, 2, 1), 2, types, [true, true]);
    }
}

#[test]
fn convolutions_of_one_to_three_axes_are_exact() {
    let types = TYPES[1];
    let line = Window { strides: vec![2], pads: vec![(1, 1)], dilations: vec![1] };
    check_conv(&[1, 20, 301], &[30, 20, 3], line.clone(), 1, types, [true, true]);
    check_conv(&[1, 3, 4000], &[3, 1, 3], line, 3, types, [true, true]);
    let plain = |n: usize| Window { strides: vec![1; n], pads: vec![(0, 0); n], dilations: vec![1; n] };
    check_conv(&[1, 33, 40, 17], &[70, 33, 1, 1], plain(2), 1, types, [true, true]);
    check_conv(&[2, 3, 4, 5, 6], &[5, 3, 2, 3, 2], plain(3), 1, types, [false, true]);
    check_conv(&[2, 3, 4, 5, 6], &[3, 1, 2, 3, 2], plain(3), 3, types, [true, true]);
    check_conv(&[1, 1, 3, 2], &[1, 1, 1, 1], Window::same(2, 5, 4), 1, types, [true, true]);
    check_conv(&[0, 3, 4], &[5, 3, 2], plain(1), 1, types, [false, false]);
    check_conv(&[1, 64, 8, 8], &[96, 64, 3, 3], Window::same(2, 1, 1), 1, types, [true, false]);
}
