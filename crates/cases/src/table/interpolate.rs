//! Sampling at computed places: every interpolation and padding, places inside, at the edges, far away and nowhere.

use olivine_ir::DType::{self, F16, F32, F64, I32, I64};
use olivine_ir::op::{GridMode, GridPadding, RoiAlign, RoiCoordinates, RoiMode};

use super::{FLOATS, PAIR};
use crate::bound::Bound::{self, Exact, Scaled};
use crate::case::Table;
use crate::fill::Fill;
use crate::fill::{normal, these, uniform};

pub(super) fn rows(t: &mut Table) {
    grids(t);
    special_coordinates(t);
    regions(t);
}

/// Places are rounded to f32 before they are weights, at a cost that grows with the distance.
const ROUNDED: Bound = Scaled(64.0);

fn grids(t: &mut Table) {
    let shapes: [(&str, &[usize], &[usize]); 6] = [
        ("image", &[2, 3, 5, 7], &[2, 6, 4, 2]),
        ("many-channels", &[1, 9, 4, 4], &[1, 3, 5, 2]),
        ("one-sample", &[1, 2, 1, 1], &[1, 3, 3, 2]),
        ("row", &[1, 4, 1, 9], &[1, 2, 33, 2]),
        ("volume", &[2, 3, 3, 4, 5], &[2, 2, 3, 4, 3]),
        ("none", &[1, 2, 3, 4], &[1, 0, 4, 2]),
    ];
    for mode in GridMode::ALL {
        for padding in GridPadding::ALL {
            for align in [false, true] {
                for (name, x, grid) in shapes {
                    if *mode == GridMode::Cubic && x.len() == 5 {
                        continue;
                    }
                    let aligned = if align { "-aligned" } else { "" };
                    let what = format!("grid/{}-{}{aligned}-{name}", mode.name(), padding.name());
                    // Sixteenths fall on samples, halfway between them and beyond the ends.
                    let nearest = *mode == GridMode::Nearest;
                    let fill = if nearest { Fill::Whole(-40, 40) } else { uniform(-1.6, 1.6) };
                    let bound = if nearest { Exact } else { ROUNDED };
                    let dtypes: &[DType] = if name == "image" { FLOATS } else { &[F32] };
                    t.case(&what, dtypes, normal(), bound, move |g| {
                        let image = g.x(x)?;
                        let mut places = g.of(F32, grid, fill.clone())?;
                        if nearest {
                            places = g.binary_scalar(olivine_ir::op::Binary::Mul, places, 1.0 / 16.0)?;
                        }
                        g.grid_sample(image, places, *mode, *padding, align)
                    });
                }
            }
        }
    }
}

fn special_coordinates(t: &mut Table) {
    let nowhere = [0.25, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.5, 1e30, -7.25, -1e30, 3.5];
    for mode in GridMode::ALL {
        for padding in GridPadding::ALL {
            // Where mirrors are far apart, rounding decides which sample is seen.
            let numbers: Vec<f64> = match padding {
                GridPadding::Reflection => nowhere.iter().copied().filter(|x| x.abs() != 1e30).collect(),
                _ => nowhere.to_vec(),
            };
            let what = format!("grid/{}-{}-nowhere", mode.name(), padding.name());
            t.case(&what, PAIR, normal(), ROUNDED, move |g| {
                let image = g.x([1, 2, 4, 8])?;
                let places = g.of(F32, [1, 5, 9, 2], these(&numbers))?;
                g.grid_sample(image, places, *mode, *padding, false)
            });
        }
    }
    // Halves of even and odd samples, exactly.
    t.case("grid/nearest-halves", FLOATS, normal(), Exact, |g| {
        let image = g.x([1, 1, 1, 8])?;
        let halves: Vec<f64> = (0..20).flat_map(|i| [f64::from(i - 10) / 8.0, 0.0]).collect();
        let places = g.of(F32, [1, 1, 20, 2], these(&halves))?;
        g.grid_sample(image, places, GridMode::Nearest, GridPadding::Zeros, false)
    });
    for (x, grid) in [(F16, F16), (F32, F16), (F32, F64), (F64, F32), (F64, F64)] {
        t.case(&format!("grid/linear-of-{grid}"), &[x], normal(), ROUNDED, move |g| {
            let image = g.x([1, 2, 6, 5])?;
            let places = g.of(grid, [1, 7, 3, 2], uniform(-1.2, 1.2))?;
            g.grid_sample(image, places, GridMode::Linear, GridPadding::Reflection, true)
        });
    }
    for mode in [GridMode::Linear, GridMode::Cubic] {
        t.case(&format!("grid/{}-large", mode.name()), PAIR, normal(), Scaled(1024.0), move |g| {
            let image = g.x([1, 6, 40, 50])?;
            let places = g.of(F32, [1, 60, 70, 2], uniform(-1.1, 1.1))?;
            g.grid_sample(image, places, mode, GridPadding::Border, false)
        });
    }
}

fn roi(mode: RoiMode, bins: [usize; 2], sampling_ratio: usize, scale: f64, half: bool) -> RoiAlign {
    let coordinates = if half { RoiCoordinates::HalfPixel } else { RoiCoordinates::OutputHalfPixel };
    RoiAlign { mode, height: bins[0], width: bins[1], sampling_ratio, scale, coordinates }
}

/// Regions inside, over the edges, outside, upside down, of no size and of no place.
const CORNERS: [f64; 32] = [
    1.0, 2.25, 9.5, 7.0, //
    -3.0, -2.0, 4.0, 3.0, //
    6.0, 5.0, 19.5, 18.0, //
    40.0, 40.0, 60.0, 50.0, //
    7.0, 6.0, 3.0, 2.0, //
    4.0, 4.0, 4.0, 4.0, //
    0.0, 0.0, 11.0, 9.0, //
    -30.0, -20.0, 45.0, 33.0,
];

fn regions(t: &mut Table) {
    for mode in RoiMode::ALL {
        for half in [true, false] {
            for ratio in [0usize, 1, 2, 3] {
                for (name, bins) in [("5x3", [5usize, 3]), ("1x1", [1, 1])] {
                    let op = roi(*mode, bins, ratio, 0.75, half);
                    let what = format!("roi/{}-{name}-{ratio}-{}", mode.name(), op.coordinates.name());
                    let dtypes: &[DType] = if ratio == 2 { FLOATS } else { &[F32] };
                    t.case(&what, dtypes, normal(), ROUNDED, move |g| {
                        let x = g.x([2, 5, 9, 11])?;
                        let corners = g.like([8, 4], these(&CORNERS))?;
                        let batch = g.ints(I64, [8], &[0, 1, 1, 0, -1, -2, 1, 0])?;
                        g.roi_align(op.clone(), x, corners, batch)
                    });
                }
            }
        }
        let name = mode.name();
        let op = roi(*mode, [2, 2], 2, 1.0, true);
        let same = op.clone();
        t.case(&format!("roi/{name}-outside-clamps"), PAIR, normal(), ROUNDED, move |g| {
            let x = g.x([3, 2, 6, 6])?;
            let corners = g.like([4, 4], these(&CORNERS))?;
            let batch = g.ints(I32, [4], &[3, -4, 99, -99])?;
            g.roi_align(same.clone(), x, corners, batch)
        });
        let same = op.clone();
        t.case(&format!("roi/{name}-nowhere"), PAIR, normal(), ROUNDED, move |g| {
            let x = g.x([1, 2, 6, 6])?;
            let nowhere = [f64::NAN, 1.0, 3.0, 4.0, 1.0, f64::INFINITY, 3.0, 4.0, 1.0, 1.0, 3.0, 4.0];
            let corners = g.like([3, 4], these(&nowhere))?;
            let batch = g.ints(I64, [3], &[0, 0, 0])?;
            g.roi_align(same.clone(), x, corners, batch)
        });
        let same = op.clone();
        t.case(&format!("roi/{name}-nan"), PAIR, Fill::Mixed(f64::NAN, 0.05), ROUNDED, move |g| {
            let x = g.x([1, 2, 6, 6])?;
            let corners = g.like([8, 4], these(&CORNERS))?;
            let batch = g.ints(I64, [8], &[0])?;
            g.roi_align(same.clone(), x, corners, batch)
        });
        t.case(&format!("roi/{name}-none"), PAIR, normal(), Exact, move |g| {
            let x = g.x([1, 2, 6, 6])?;
            let (corners, batch) = (g.x([0, 4])?, g.ints(I64, [0], &[0])?);
            g.roi_align(op.clone(), x, corners, batch)
        });
        let large = roi(*mode, [1, 2], 0, 1.0, false);
        t.case(&format!("roi/{name}-large"), &[F32, F64], normal(), Scaled(1024.0), move |g| {
            let x = g.x([1, 3, 33, 40])?;
            let corners = g.like([2, 4], these(&[1.0, 2.0, 38.5, 31.0, -100.0, -90.0, 100.0, 100.0]))?;
            let batch = g.ints(I64, [2], &[0, 0])?;
            g.roi_align(large.clone(), x, corners, batch)
        });
    }
}
