use olivine_ir::op::{GridMode, GridPadding, GridSample, RoiAlign, RoiCoordinates, RoiMode};
use olivine_ir::{Op, Tensor};

use crate::CpuEvaluator;
use olivine_compile::Evaluate;

fn run(op: impl Into<Op>, operands: &[Tensor]) -> Vec<f32> {
    let results = CpuEvaluator.evaluate(&op.into(), operands).expect("runs");
    results[0].to_f64().iter().map(|x| *x as f32).collect()
}

fn grid(mode: GridMode, padding: GridPadding, x: &[f32], places: &[f32]) -> Vec<f32> {
    let image = Tensor::new([1, 1, 1, x.len()], x.to_vec()).expect("an image");
    let places: Vec<f32> = places.iter().flat_map(|p| [*p, 0.0]).collect();
    let grid = Tensor::new([1, 1, places.len() / 2, 2], places).expect("a grid");
    run(GridSample { mode, padding, align_corners: false }, &[image, grid])
}

#[test]
fn halves_go_to_the_even_sample() {
    // Places 0.5, 1.5 and 2.5 of four samples.
    let places = [-0.5, 0.0, 0.5];
    assert_eq!(grid(GridMode::Nearest, GridPadding::Zeros, &[1.0, 2.0, 3.0, 4.0], &places), [1.0, 3.0, 3.0]);
}

#[test]
fn what_lies_outside_is_zero_the_edge_or_mirrored() {
    let x = [1.0, 2.0, 4.0, 8.0];
    // Places -1.5, 5.5 and far away.
    let places = [-1.5, 1.75, 1e30];
    assert_eq!(grid(GridMode::Nearest, GridPadding::Zeros, &x, &places), [0.0; 3]);
    assert_eq!(grid(GridMode::Linear, GridPadding::Border, &x, &places), [1.0, 8.0, 8.0]);
    let mirrored = grid(GridMode::Linear, GridPadding::Reflection, &x, &places);
    assert_eq!(mirrored[..2], [1.5, 4.0 + 0.0]);
    assert!(x.iter().fold(0.0f32, |a, b| a.max(*b)) >= mirrored[2]);
}

#[test]
fn a_place_that_is_none_gives_nan_and_an_infinite_one_what_lies_outside() {
    let x = [1.0, 2.0];
    let places = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for mode in GridMode::ALL {
        let zeros = grid(*mode, GridPadding::Zeros, &x, &places);
        assert!(zeros[0].is_nan() && zeros[1..] == [0.0, 0.0], "{mode:?}: {zeros:?}");
        let border = grid(*mode, GridPadding::Border, &x, &places);
        assert!(border[0].is_nan() && border[1..] == [2.0, 1.0], "{mode:?}: {border:?}");
        assert!(grid(*mode, GridPadding::Reflection, &x, &places).iter().all(|y| y.is_nan()));
    }
}

fn regions(mode: RoiMode, ratio: usize, corners: [f32; 4]) -> Vec<f32> {
    let image = Tensor::new([1, 1, 4, 4], (0..16).map(|i| i as f32).collect()).expect("an image");
    let region = Tensor::new([1, 4], corners.to_vec()).expect("a region");
    let batch = Tensor::new([1], vec![0i64]).expect("an index");
    let coordinates = RoiCoordinates::HalfPixel;
    let op = RoiAlign { mode, height: 1, width: 1, sampling_ratio: ratio, scale: 1.0, coordinates };
    run(op, &[image, region, batch])
}

#[test]
fn a_bin_is_the_mean_of_its_samples_and_of_none_zero() {
    assert_eq!(regions(RoiMode::Average, 1, [0.0, 0.0, 4.0, 4.0]), [7.5]);
    assert_eq!(regions(RoiMode::Average, 0, [0.0, 0.0, 4.0, 4.0]), [7.5]);
    assert_eq!(regions(RoiMode::Average, 0, [3.0, 3.0, 1.0, 1.0]), [0.0]);
    assert!(regions(RoiMode::Average, 0, [0.0, f32::NAN, 4.0, 4.0])[0].is_nan());
    // The largest weighted neighbour, not the largest sample: a quarter of 10.
    assert_eq!(regions(RoiMode::Max, 1, [0.0, 0.0, 4.0, 4.0]), [2.5]);
}

#[test]
fn a_region_far_larger_than_the_image_counts_the_samples_that_it_does_not_read() {
    let all = regions(RoiMode::Average, 0, [-1e4, -1e4, 1e4, 1e4])[0];
    // The image fills about 16 of 4e8 pixels; samples up to a pixel outside read its edge.
    assert!(all > 0.0 && all < 1e-5, "{all}");
    assert_eq!(regions(RoiMode::Max, 0, [1e30, 1e30, 2e30, 2e30]), [0.0]);
}
