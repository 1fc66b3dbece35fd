//! Convolutions over one to three axes, their transposes, windows as columns, and columns as images.

use olivine_ir::DType::{BF16, F16, F32, F64, U8};
use olivine_ir::op::Window;

use super::{FLOATS, INTS, PAIR};
use crate::bound::Bound::{self, Peak};
use crate::bound::sum_of;
use crate::case::{Build, Table};
use crate::fill::Fill::Anything;
use crate::fill::{normal, whole};

/// One convolution: x, w, strides, pads, dilations, groups.
struct Row(
    &'static str,
    &'static [usize],
    &'static [usize],
    &'static [usize],
    &'static [(usize, usize)],
    &'static [usize],
    usize,
);

impl Row {
    fn window(&self) -> Window {
        Window { strides: self.3.to_vec(), pads: self.4.to_vec(), dilations: self.5.to_vec() }
    }
}

pub(super) fn rows(t: &mut Table) {
    forward(t);
    shapes(t);
    epilogues(t);
    f16_rows(t);
    transposed(t);
    columns(t);
    images(t);
}

fn forward(t: &mut Table) {
    let rows = [
        Row("1d", &[2, 3, 17], &[5, 3, 3], &[1], &[(0, 0)], &[1], 1),
        Row("1d-causal", &[2, 4, 11], &[4, 1, 4], &[1], &[(3, 0)], &[1], 4),
        Row("1d-stride", &[1, 80, 30], &[16, 80, 3], &[2], &[(1, 1)], &[1], 1),
        Row("2d-1x1", &[2, 8, 5, 7], &[6, 8, 1, 1], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("2d-1x1-stride", &[1, 8, 6, 7], &[4, 8, 1, 1], &[2, 2], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("2d-3x3", &[2, 3, 9, 11], &[8, 3, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("2d-3x3-valid", &[1, 3, 9, 9], &[4, 3, 3, 3], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("2d-stride", &[1, 3, 12, 10], &[6, 3, 3, 3], &[2, 2], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("2d-asymmetric", &[1, 3, 8, 9], &[4, 3, 3, 2], &[2, 1], &[(0, 1), (2, 0)], &[1, 1], 1),
        Row("2d-7x7", &[1, 3, 20, 20], &[8, 3, 7, 7], &[2, 2], &[(3, 3), (3, 3)], &[1, 1], 1),
        Row("2d-patches", &[1, 3, 16, 16], &[10, 3, 8, 8], &[8, 8], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("2d-dilated", &[1, 2, 13, 13], &[3, 2, 3, 3], &[1, 1], &[(2, 2), (2, 2)], &[2, 2], 1),
        Row("2d-dilated-uneven", &[1, 2, 13, 11], &[3, 2, 2, 3], &[2, 1], &[(0, 1), (3, 2)], &[3, 2], 1),
        Row("2d-groups", &[2, 6, 7, 7], &[9, 2, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 3),
        Row("2d-depthwise", &[2, 6, 9, 9], &[6, 1, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 6),
        Row("2d-depthwise-multiplier", &[1, 4, 7, 7], &[8, 1, 5, 5], &[2, 2], &[(2, 2), (2, 2)], &[1, 1], 4),
        Row("2d-large-padding", &[1, 2, 3, 3], &[2, 2, 3, 3], &[1, 1], &[(4, 4), (5, 3)], &[1, 1], 1),
        Row("2d-no-batch", &[0, 2, 5, 5], &[3, 2, 3, 3], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("2d-channels-33", &[1, 33, 6, 6], &[17, 33, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("2d-one-row", &[1, 5, 1, 30], &[7, 5, 1, 5], &[1, 1], &[(0, 0), (2, 2)], &[1, 1], 1),
        Row("3d", &[1, 3, 5, 6, 7], &[4, 3, 2, 3, 3], &[1, 1, 1], &[(0, 0), (1, 1), (1, 1)], &[1, 1, 1], 1),
        Row(
            "3d-stride-groups",
            &[2, 4, 5, 6, 7],
            &[4, 2, 3, 3, 3],
            &[2, 1, 2],
            &[(1, 1), (0, 1), (1, 0)],
            &[1, 2, 1],
            2,
        ),
    ];
    for row in rows {
        let (window, x, w, groups) = (row.window(), row.1, row.2, row.6);
        let k: usize = w[1..].iter().product();
        let exact = window.clone();
        t.case(&format!("{}/whole", row.0), &[F32], whole(-4, 4), Bound::Exact, move |g| {
            let (x, w) = (g.x(x)?, g.weight(w, whole(-4, 4))?);
            g.conv(x, w, None, exact.clone(), groups)
        });
        t.case(&format!("{}/bias", row.0), FLOATS, normal(), sum_of(k), move |g| {
            let (bias, x) = (g.w([w[0]])?, g.x(x)?);
            let w = g.w(w)?;
            g.conv(x, w, Some(bias), window.clone(), groups)
        });
    }
}

/// Lengths, sizes and shares of channels at which kernels change.
fn shapes(t: &mut Table) {
    let rows = [
        Row("1d-length-1", &[2, 5, 1], &[6, 5, 3], &[1], &[(1, 1)], &[1], 1),
        Row("1d-length-31", &[2, 6, 31], &[10, 3, 5], &[2], &[(2, 1)], &[3], 2),
        Row("1d-length-33", &[3, 7, 33], &[40, 7, 4], &[1], &[(3, 0)], &[1], 1),
        Row("1d-length-1000", &[1, 4, 1000], &[5, 4, 3], &[3], &[(0, 2)], &[2], 1),
        Row("1d-long-kernel", &[1, 2, 20], &[6, 2, 41], &[1], &[(20, 20)], &[1], 1),
        Row("1d-depthwise-1000", &[1, 3, 1000], &[3, 1, 4], &[1], &[(3, 0)], &[1], 3),
        Row("1d-depthwise-dilated", &[2, 3, 33], &[6, 1, 3], &[2], &[(5, 4)], &[4], 3),
        Row("1d-no-filters", &[2, 3, 9], &[0, 3, 3], &[1], &[(0, 0)], &[1], 1),
        Row("1d-no-channels", &[2, 0, 9], &[4, 0, 3], &[1], &[(1, 1)], &[1], 1),
        Row("1d-only-padding", &[2, 3, 0], &[4, 3, 3], &[1], &[(2, 3)], &[1], 1),
        Row("2d-1x1-groups", &[2, 8, 12, 12], &[12, 4, 1, 1], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 2),
        Row("2d-1x1-one-pixel", &[3, 20, 1, 1], &[10, 20, 1, 1], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("2d-1x1-one-filter", &[1, 16, 13, 20], &[1, 16, 1, 1], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("2d-1x1-padded", &[1, 3, 5, 6], &[5, 3, 1, 1], &[1, 2], &[(1, 0), (2, 1)], &[1, 1], 1),
        Row("2d-64-filters", &[2, 4, 16, 17], &[64, 4, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("2d-100-filters", &[2, 2, 20, 18], &[100, 2, 3, 3], &[1, 1], &[(1, 1), (0, 0)], &[1, 1], 1),
        Row("2d-three-filters", &[1, 9, 13, 21], &[3, 9, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("2d-long-sum", &[1, 120, 5, 7], &[20, 120, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("2d-large-kernel", &[1, 2, 9, 8], &[5, 2, 19, 17], &[1, 1], &[(9, 9), (8, 8)], &[1, 1], 1),
        Row("2d-depthwise-large", &[1, 2, 9, 8], &[2, 1, 9, 8], &[1, 1], &[(5, 4), (3, 4)], &[1, 1], 2),
        Row("2d-depthwise-wide", &[2, 24, 20, 20], &[24, 1, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 24),
        Row("2d-depthwise-even", &[2, 24, 21, 18], &[24, 1, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 24),
        Row("2d-depthwise-stride", &[2, 24, 39, 40], &[24, 1, 3, 3], &[2, 2], &[(1, 1), (0, 1)], &[1, 1], 24),
        Row(
            "2d-depthwise-dilated",
            &[1, 20, 30, 36],
            &[20, 1, 5, 3],
            &[1, 1],
            &[(4, 4), (3, 3)],
            &[2, 3],
            20,
        ),
        Row(
            "3d-depthwise",
            &[1, 4, 4, 5, 6],
            &[8, 1, 2, 3, 3],
            &[1, 1, 2],
            &[(0, 1), (1, 1), (1, 1)],
            &[1, 1, 1],
            4,
        ),
        Row(
            "3d-dilated",
            &[1, 2, 6, 7, 8],
            &[9, 2, 2, 3, 2],
            &[1, 2, 1],
            &[(1, 1), (2, 0), (0, 3)],
            &[2, 1, 3],
            1,
        ),
    ];
    for row in rows {
        let (window, x, w, groups) = (row.window(), row.1, row.2, row.6);
        let k: usize = w[1..].iter().product();
        // What the narrow types change is the layout of elements, which depthwise kernels load as vectors.
        let dtypes = if row.0.ends_with("depthwise-wide") { FLOATS } else { &[F32] };
        t.case(&format!("{}/bias", row.0), dtypes, normal(), sum_of(k), move |g| {
            let (bias, x) = (g.w([w[0]])?, g.x(x)?);
            let w = g.w(w)?;
            g.conv(x, w, Some(bias), window.clone(), groups)
        });
    }
}

/// Elementwise operations that a convolution takes along: what is added broadcasts in every way to the result.
fn epilogues(t: &mut Table) {
    let rows = [
        Row("tiles", &[2, 5, 8, 9], &[40, 5, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("tiles-groups", &[2, 6, 5, 9], &[24, 3, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 2),
        Row("long-sum", &[1, 120, 4, 6], &[20, 120, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("few", &[1, 6, 7, 8], &[2, 6, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("1x1", &[2, 16, 12, 12], &[20, 16, 1, 1], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("1x1-small", &[3, 16, 3, 4], &[20, 16, 1, 1], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("1x1-one-pixel", &[3, 16, 1, 1], &[20, 16, 1, 1], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("depthwise", &[2, 6, 7, 8], &[6, 1, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 6),
        Row("no-channels", &[2, 0, 3, 4], &[5, 0, 1, 1], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
    ];
    for row in rows {
        let (name, x, w, groups) = (row.0, row.1, row.2, row.6);
        let (m, height, width) = (w[0], x[2], x[3]);
        let window = row.window();
        let dtypes: &[_] = if name == "tiles" { FLOATS } else { &[F32] };
        t.case(&format!("{name}/relu-residual"), dtypes, normal(), Peak(64.0), move |g| {
            let (data, bias) = (g.x(x)?, g.w([m])?);
            let (w, residual) = (g.w(w)?, g.x([x[0], m, height, width])?);
            let y = g.conv(data, w, Some(bias), window.clone(), groups)?;
            let y = g.relu(y)?;
            g.add(y, residual)
        });
        let window = row.window();
        t.case(&format!("{name}/silu-broadcast"), &[F32], normal(), Peak(96.0), move |g| {
            let (data, w, scale) = (g.x(x)?, g.w(w)?, g.w([m, 1, 1])?);
            let (rows, columns, images) = (g.x([height, 1])?, g.x([width])?, g.x([x[0], 1, 1, 1])?);
            let y = g.conv(data, w, None, window.clone(), groups)?;
            let y = g.mul(y, scale)?;
            let y = g.silu(y)?;
            let y = g.add(y, rows)?;
            let y = g.add(y, columns)?;
            g.add(y, images)
        });
    }
}

/// Enough filters and pixels for matrices, where a device has them.
fn f16_rows(t: &mut Table) {
    let rows = [
        Row("1d", &[2, 24, 300], &[40, 24, 3], &[1], &[(1, 1)], &[1], 1),
        Row("2d", &[3, 19, 14, 15], &[72, 19, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("2d-uneven", &[1, 40, 45, 33], &[33, 40, 2, 3], &[2, 1], &[(1, 0), (0, 2)], &[3, 2], 1),
        Row("2d-deep", &[1, 128, 16, 16], &[32, 128, 3, 3], &[1, 1], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("3d", &[1, 16, 5, 8, 9], &[32, 16, 3, 3, 3], &[1; 3], &[(1, 1); 3], &[1; 3], 1),
    ];
    for row in rows {
        let (window, x, w) = (row.window(), row.1, row.2);
        let k: usize = w[1..].iter().product();
        let dtypes: &[_] = if row.0 == "2d" { &[F16, BF16] } else { &[F16] };
        t.case(&format!("f16-{}", row.0), dtypes, normal(), sum_of(k), move |g| {
            let (bias, x) = (g.w([w[0]])?, g.x(x)?);
            let w = g.w(w)?;
            g.conv(x, w, Some(bias), window.clone(), 1)
        });
    }
    t.case("f16-epilogue", &[F16], normal(), Peak(96.0), |g| {
        let (x, w, bias) = (g.x([2, 12, 12, 13])?, g.w([40, 12, 3, 3])?, g.w([40])?);
        let (columns, residual) = (g.x([13])?, g.x([2, 40, 12, 13])?);
        let y = g.conv(x, w, Some(bias), Window::same(2, 1, 1), 1)?;
        let y = g.silu(y)?;
        let y = g.add(y, columns)?;
        g.add(y, residual)
    });
}

fn transposed(t: &mut Table) {
    // The weight is [C, M / groups, ..]; the last list is the output padding.
    let rows: [(Row, &[usize]); 21] = [
        (Row("1d", &[2, 3, 7], &[3, 4, 3], &[1], &[(0, 0)], &[1], 1), &[0]),
        (Row("1d-stride", &[1, 4, 7], &[4, 2, 4], &[2], &[(1, 1)], &[1], 1), &[0]),
        (Row("1d-output-padding", &[1, 2, 5], &[2, 3, 3], &[3], &[(1, 0)], &[1], 1), &[2]),
        (Row("2d", &[1, 3, 5, 4], &[3, 2, 3, 3], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1), &[0, 0]),
        (Row("2d-stride", &[1, 3, 5, 4], &[3, 2, 3, 3], &[2, 2], &[(1, 1), (1, 1)], &[1, 1], 1), &[1, 1]),
        (Row("2d-upsample", &[2, 4, 3, 3], &[4, 4, 2, 2], &[2, 2], &[(0, 0), (0, 0)], &[1, 1], 1), &[0, 0]),
        (Row("2d-gaps", &[1, 2, 3, 3], &[2, 2, 2, 2], &[3, 4], &[(0, 0), (0, 0)], &[1, 1], 1), &[1, 0]),
        (Row("2d-dilated", &[1, 2, 5, 4], &[2, 3, 3, 2], &[1, 2], &[(1, 0), (0, 1)], &[2, 3], 1), &[1, 2]),
        (Row("2d-groups", &[1, 6, 4, 4], &[6, 2, 3, 3], &[2, 1], &[(1, 1), (1, 1)], &[1, 1], 3), &[0, 0]),
        (Row("2d-depthwise", &[1, 4, 4, 4], &[4, 1, 4, 4], &[2, 2], &[(1, 1), (1, 1)], &[1, 1], 4), &[0, 0]),
        (Row("2d-asymmetric", &[1, 2, 4, 5], &[2, 2, 3, 3], &[2, 2], &[(0, 2), (1, 0)], &[1, 1], 1), &[0, 1]),
        (Row("1d-length-1", &[2, 3, 1], &[3, 2, 4], &[3], &[(1, 0)], &[1], 1), &[1]),
        (Row("1d-length-33", &[1, 4, 33], &[4, 20, 5], &[2], &[(2, 2)], &[1], 1), &[1]),
        (Row("1d-length-1000", &[1, 2, 1000], &[2, 1, 3], &[1], &[(1, 1)], &[1], 1), &[0]),
        (Row("1d-empty", &[2, 3, 0], &[3, 4, 3], &[4], &[(0, 0)], &[1], 1), &[3]),
        (Row("1d-no-batch", &[0, 3, 5], &[3, 4, 3], &[1], &[(0, 0)], &[1], 1), &[0]),
        (Row("1d-no-channels", &[2, 0, 5], &[0, 4, 3], &[2], &[(0, 0)], &[1], 1), &[0]),
        (Row("2d-filters", &[2, 24, 9, 8], &[24, 40, 4, 4], &[2, 2], &[(1, 1), (1, 1)], &[1, 1], 1), &[0, 0]),
        (
            Row("2d-long-sum", &[1, 160, 4, 5], &[160, 12, 3, 3], &[1, 2], &[(1, 1), (1, 1)], &[1, 1], 1),
            &[0, 1],
        ),
        (
            Row(
                "3d-groups",
                &[1, 4, 3, 2, 4],
                &[4, 3, 3, 2, 3],
                &[1, 2, 2],
                &[(1, 0), (0, 1), (1, 1)],
                &[1, 2, 1],
                2,
            ),
            &[0, 1, 1],
        ),
        (
            Row(
                "3d",
                &[1, 2, 3, 4, 3],
                &[2, 3, 2, 3, 2],
                &[2, 1, 2],
                &[(0, 1), (1, 1), (0, 0)],
                &[1, 1, 1],
                1,
            ),
            &[1, 0, 0],
        ),
    ];
    for (row, padding) in rows {
        let (window, x, w, groups) = (row.window(), row.1, row.2, row.6);
        let k: usize = w[0] / groups * w[2..].iter().product::<usize>();
        for bias in [false, true] {
            let (tail, window) = (if bias { "-bias" } else { "" }, window.clone());
            let dtypes: &[_] = if bias { FLOATS } else { PAIR };
            t.case(&format!("transpose-{}{tail}", row.0), dtypes, normal(), sum_of(k), move |g| {
                let b = if bias { Some(g.w([w[1] * groups])?) } else { None };
                let (x, w) = (g.x(x)?, g.w(w)?);
                g.conv_transpose(x, w, b, window.clone(), groups, padding)
            });
        }
    }
}

fn columns(t: &mut Table) {
    let rows = [
        Row("1d", &[2, 3, 9], &[3], &[1], &[(0, 0)], &[1], 1),
        Row("2d", &[2, 3, 6, 7], &[3, 2], &[1, 2], &[(1, 0), (0, 1)], &[1, 1], 1),
        Row("2d-dilated", &[1, 2, 8, 9], &[2, 3], &[2, 1], &[(1, 1), (2, 2)], &[3, 2], 1),
        Row("1d-length-1000", &[1, 2, 1000], &[5], &[1], &[(2, 2)], &[1], 1),
        Row("2d-larger-than-input", &[1, 2, 3, 4], &[5, 6], &[1, 1], &[(2, 2), (3, 3)], &[1, 1], 1),
        Row("2d-no-batch", &[0, 2, 5, 5], &[3, 3], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("1d-only-padding", &[2, 3, 0], &[3], &[1], &[(2, 2)], &[1], 1),
        Row("3d", &[1, 2, 4, 5, 4], &[2, 2, 3], &[1, 2, 1], &[(0, 0), (1, 1), (1, 0)], &[1, 1, 1], 1),
    ];
    for row in rows {
        let (window, x, kernel) = (row.window(), row.1, row.2);
        t.case(&format!("im2col-{}", row.0), &[F32, F16, BF16, F64, U8], Anything, Bound::Exact, move |g| {
            let x = g.x(x)?;
            g.im2col(x, kernel, window.clone())
        });
    }
}

/// Columns added up as images; a row's second list is the image.
fn images(t: &mut Table) {
    let rows = [
        Row("1d", &[2, 3, 9], &[3], &[1], &[(0, 0)], &[1], 1),
        Row("1d-apart", &[2, 3, 11], &[2], &[4], &[(0, 1)], &[1], 1),
        Row("1d-length-70000", &[1, 1, 70_000], &[3], &[1], &[(1, 1)], &[1], 1),
        Row("2d", &[2, 3, 6, 7], &[3, 2], &[1, 2], &[(1, 0), (0, 1)], &[1, 1], 1),
        Row("2d-stride", &[1, 20, 12, 14], &[4, 4], &[2, 2], &[(1, 1), (1, 1)], &[1, 1], 1),
        Row("2d-dilated", &[1, 2, 8, 9], &[2, 3], &[2, 1], &[(1, 1), (2, 2)], &[3, 2], 1),
        Row("2d-larger-than-image", &[1, 2, 3, 4], &[5, 6], &[1, 1], &[(2, 2), (3, 3)], &[1, 1], 1),
        Row("2d-no-batch", &[0, 2, 5, 5], &[3, 3], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("2d-no-channels", &[2, 0, 5, 5], &[3, 3], &[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        Row("1d-only-padding", &[2, 3, 0], &[3], &[1], &[(2, 2)], &[1], 1),
        Row("3d", &[1, 2, 4, 5, 4], &[2, 2, 3], &[1, 2, 1], &[(0, 0), (1, 1), (1, 0)], &[1, 1, 1], 1),
        Row("4d", &[1, 2, 3, 4, 3, 5], &[2, 1, 2, 3], &[1, 2, 1, 2], &[(1, 0); 4], &[1, 1, 2, 1], 1),
    ];
    for row in rows {
        let (window, channels, image, kernel) = (row.window(), &row.1[..2], &row.1[2..], row.2);
        let area: usize = kernel.iter().product();
        let build = move |g: &mut Build| {
            let mut windows = 1;
            for (i, (size, kernel)) in image.iter().zip(kernel).enumerate() {
                // An error is the operation's to tell.
                windows *= window.count(i, *size, *kernel, false).unwrap_or(0);
            }
            let x = g.x([channels[0], channels[1] * area, windows])?;
            g.col2im(x, image, kernel, window.clone())
        };
        let dtypes = if row.0 == "1d-length-70000" { PAIR } else { FLOATS };
        t.case(&format!("col2im-{}", row.0), dtypes, normal(), sum_of(area), build.clone());
        if row.0.starts_with("2d") {
            t.case(&format!("col2im-{}", row.0), INTS, Anything, Bound::Exact, build);
        }
    }
}
