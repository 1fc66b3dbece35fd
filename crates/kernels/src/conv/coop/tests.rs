//! Convolutions by cooperative matrices, run by the interpreter and held against sums.

use olivine_ir::op::{Conv, Window};
use olivine_ir::{Dim, Shape as IrShape, TensorType, ValueId};

use super::*;
use crate::conv::{as_matmul, conv};
use crate::matmul::coop::tests::{bits, card, number, others, run};
use crate::site::{Memory, Target};

/// A convolution of two axes.
struct Case {
    x: [usize; 4],
    filters: usize,
    kernel: [usize; 2],
    window: Window,
}

fn operand(dtype: DType, id: u32, dims: &[usize]) -> Operand {
    let ty = TensorType::new(dtype, IrShape::new(dims).unwrap());
    let strides = ty.shape.stride_sizes();
    Operand { ty, strides, offset: Dim::ZERO, memory: Memory::Value(ValueId::new(id)), stored: false }
}

/// The operation with a bias, and a place for it.
fn prepared<'c>(dtype: DType, case: &Case, caps: &'c DeviceCaps) -> (Conv, Site<'c>) {
    let Case { x: [images, channels, height, width], filters, kernel: [down, across], window } = case;
    let count = |axis, size, kernel| window.count(axis, size, kernel, false).unwrap();
    let (h, w) = (count(0, *height, *down), count(1, *width, *across));
    let operands = vec![
        operand(dtype, 0, &case.x),
        operand(dtype, 1, &[*filters, *channels, *down, *across]),
        operand(dtype, 2, &[*filters]),
    ];
    let shape = IrShape::new(&[*images, *filters, h, w]).unwrap();
    let target = Target { ty: TensorType::new(dtype, shape), memory: Memory::Value(ValueId::new(3)) };
    let op = Conv { window: window.clone(), groups: 1, bias: true, epilogue: None };
    (op, Site::new(caps, operands, vec![target]))
}

/// Runs what was emitted for a convolution; gives the kernels' names.
fn check(dtype: DType, case: &Case, site: &Site<'_>) -> Vec<String> {
    let Case { x: [_, channels, height, width], filters, kernel: [down, across], window } = case;
    let fill = |count: usize, skew: usize| -> Vec<u8> {
        (0..count).flat_map(|i| bits(dtype, number(i, skew))).collect()
    };
    let shape = site.targets[0].ty.shape;
    let [images, _, h, w] = *shape.dims() else { panic!("{shape}") };
    let given = [
        fill(case.x.iter().product(), 0),
        fill(filters * channels * down * across, 5),
        fill(*filters, 2),
        vec![0xff; 2 * shape.numel()],
    ];
    let memory = run(site, given);
    let found = &memory[&Memory::Value(ValueId::new(3))];
    let apart = |p: usize, sizes: [usize; 3]| {
        let (rest, c) = (p / sizes[2], p % sizes[2]);
        (rest / sizes[1] / sizes[0], rest / sizes[1] % sizes[0], rest % sizes[1], c)
    };
    for p in 0..images * filters * h * w {
        let (i, f, y, x) = apart(p, [*filters, h, w]);
        let mut sum = number(f, 2);
        for t in 0..channels * down * across {
            let (_, c, dy, dx) = apart(t, [*channels, *down, *across]);
            let at = |axis: usize, o: usize, tap: usize| {
                (o * window.strides[axis] + tap * window.dilations[axis]).checked_sub(window.pads[axis].0)
            };
            let (Some(row), Some(column)) = (at(0, y, dy), at(1, x, dx)) else { continue };
            if row < *height && column < *width {
                let of_x = ((i * channels + c) * height + row) * width + column;
                let of_w = ((f * channels + c) * down + dy) * across + dx;
                sum += number(of_x, 0) * number(of_w, 5);
            }
        }
        assert_eq!(found[2 * p..2 * p + 2], bits(dtype, sum), "image {i}, filter {f}, {y}, {x}");
    }
    site.emitted.iter().map(|e| e.kernel.name.clone()).collect()
}

/// The same as the library lowers it.
fn lowered(dtype: DType, case: &Case, caps: &DeviceCaps) -> Vec<String> {
    let (op, mut site) = prepared(dtype, case, caps);
    conv(&op, &mut site).unwrap();
    check(dtype, case, &site)
}

#[test]
fn windows_of_every_form_give_the_sums() {
    let by_matrices = ["conv_filters", "matmul_pack", "conv_pixels", "conv_coop"];
    let same = Case { x: [2, 12, 12, 11], filters: 40, kernel: [3, 3], window: Window::same(2, 1, 1) };
    assert_eq!(lowered(DType::F16, &same, &card()), by_matrices);
    let odd = Case {
        x: [1, 17, 40, 23],
        filters: 33,
        kernel: [2, 3],
        window: Window { strides: vec![2, 1], pads: vec![(1, 0), (0, 2)], dilations: vec![3, 2] },
    };
    assert_eq!(lowered(DType::BF16, &odd, &card()), by_matrices);
    let other = DeviceCaps { driver: "another".into(), ..card() };
    let through_panels = ["conv_filters", "conv_pixels", "conv_coop"];
    assert_eq!(lowered(DType::F16, &odd, &other), through_panels);
}

#[test]
fn matrices_of_other_forms_give_the_sums() {
    let odd = Case {
        x: [1, 17, 40, 23],
        filters: 33,
        kernel: [2, 3],
        window: Window { strides: vec![2, 1], pads: vec![(1, 0), (0, 2)], dilations: vec![3, 2] },
    };
    for caps in others() {
        let caps = DeviceCaps { driver: "another".into(), ..caps };
        assert_eq!(lowered(DType::F16, &odd, &caps), ["conv_filters", "conv_pixels", "conv_coop"]);
    }
}

#[test]
fn long_sums_of_few_pixels_are_split() {
    let deep = Case { x: [1, 128, 16, 16], filters: 32, kernel: [3, 3], window: Window::same(2, 1, 1) };
    let names = lowered(DType::F16, &deep, &card());
    assert_eq!(names.last().map(String::as_str), Some("matmul_split_k_sum"), "{names:?}");
}

#[test]
fn the_last_blocks_may_be_shared() {
    let caps = card();
    let case = Case { x: [2, 10, 12, 12], filters: 72, kernel: [3, 3], window: Window::same(2, 1, 1) };
    let (op, mut site) = prepared(DType::F16, &case, &caps);
    let (problem, extras) = as_matmul(&op, &site).unwrap();
    let taps = problem.taps.as_ref().unwrap();
    let chosen = choose(&problem, taps, &caps).unwrap();
    // 2 by 5 blocks of 5 steps.
    let stream_k = StreamK::among(7, 3, 5, 4);
    let choice = Choice {
        blocks: CoopTile { k_step: 32, ..MEDIUM },
        division: KDivision::StreamK(stream_k),
        ..chosen
    };
    lower(&problem, taps, &choice, &extras, &mut site).unwrap();
    let names = check(DType::F16, &case, &site);
    assert_eq!(names[2..], ["conv_pixels", "conv_stream_k", "conv_stream_k_fixup"]);
}
