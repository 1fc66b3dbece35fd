//! Convolutions over one to three axes, their transposes, and windows as columns.

use olivine_ir::DType::{BF16, F16, F32, F64, U8};
use olivine_ir::op::Window;

use super::{FLOATS, PAIR};
use crate::bound::{Bound, sum_of};
use crate::case::Table;
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
    transposed(t);
    columns(t);
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

fn transposed(t: &mut Table) {
    // The weight is [C, M / groups, ..]; the last list is the output padding.
    let rows: [(Row, &[usize]); 12] = [
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
