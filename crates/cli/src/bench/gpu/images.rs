//! Operations on images: pools, resizes, samplings and convolutions.

use olivine::ir::op::{GridMode, GridPadding, ResizeMode, Window};
use olivine::ir::{DType, Error, Graph, ValueId};

use super::{Measurement, Unit, device};
use crate::answer::Failure;

/// Pools, resizes and samplings of images of 64 channels.
pub(super) fn movement(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let (batch, channels, side) = if quick { (1, 4, 16) } else { (32, 64, 112) };
    let elements = (batch * channels * side * side) as f64;
    let of_image = |name: &str,
                    dtype: DType,
                    parts: f64,
                    body: &dyn Fn(&mut Graph, ValueId) -> Result<ValueId, Error>| {
        let name = format!("{name} {dtype} b{batch} c{channels} {side}x{side}");
        let bytes = parts * dtype.size() as f64 * elements;
        device(name, Unit::Bytes(bytes), |g| {
            let x = g.input("x", dtype, [batch, channels, side, side])?;
            body(g, x)
        })
    };
    let twice = [batch, channels, 2 * side, 2 * side];
    let (f32, f16) = (DType::F32, DType::F16);
    // A half in each direction leaves a quarter of the elements, twice as many in each gives four times as many.
    let mut list = vec![
        of_image("max_pool 2x2/2", f32, 1.25, &|g, x| g.max_pool(x, &[2, 2], Window::same(2, 2, 0), false))?,
        of_image("avg_pool 2x2/2", f32, 1.25, &|g, x| {
            g.avg_pool(x, &[2, 2], Window::same(2, 2, 0), false, false)
        })?,
        of_image("avg_pool 3x3/2", f32, 1.25, &|g, x| {
            g.avg_pool(x, &[3, 3], Window::same(2, 2, 1), false, true)
        })?,
        of_image("resize nearest 2x", f32, 5.0, &|g, x| g.resize(x, &twice, ResizeMode::Nearest))?,
        of_image("resize cubic 2x", f32, 5.0, &|g, x| g.resize(x, &twice, ResizeMode::Cubic))?,
    ];
    for dtype in [f32, f16] {
        list.push(of_image("max_pool 3x3/2", dtype, 1.25, &|g, x| {
            g.max_pool(x, &[3, 3], Window::same(2, 2, 1), false)
        })?);
        list.push(of_image("resize linear 2x", dtype, 5.0, &|g, x| g.resize(x, &twice, ResizeMode::Linear))?);
    }
    // The grid is two numbers for every place of all channels.
    let parts = 2.0 + 2.0 / channels as f64;
    list.push(of_image("grid_sample linear", f32, parts, &|g, x| {
        let grid = g.input("grid", f32, [batch, side, side, 2])?;
        g.grid_sample(x, grid, GridMode::Linear, GridPadding::Zeros, false)
    })?);
    Ok(list)
}

/// Convolutions of every kind.
pub(super) fn convolutions(quick: bool) -> Result<Vec<Measurement>, Failure> {
    CONVOLUTIONS.iter().map(|row| row.measurement(quick)).collect()
}

/// A square convolution, padded so that a stride divides its sides.
struct Convolution {
    what: Kind,
    kernel: usize,
    stride: usize,
    batch: usize,
    channels: usize,
    filters: usize,
    side: usize,
    dtype: DType,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Dense,
    Depthwise,
    Transposed,
}

/// A square kernel over square images of f32.
const fn convolution(
    what: Kind,
    (kernel, stride): (usize, usize),
    (batch, channels, filters): (usize, usize, usize),
    side: usize,
) -> Convolution {
    Convolution { what, kernel, stride, batch, channels, filters, side, dtype: DType::F32 }
}

/// The same in f16.
const fn of_f16(convolution: Convolution) -> Convolution {
    Convolution { dtype: DType::F16, ..convolution }
}

const CONVOLUTIONS: [Convolution; 14] = [
    convolution(Kind::Dense, (3, 1), (32, 64, 64), 56),
    convolution(Kind::Dense, (3, 1), (1, 64, 64), 56),
    convolution(Kind::Dense, (1, 1), (32, 64, 256), 56),
    convolution(Kind::Dense, (7, 2), (32, 3, 64), 224),
    convolution(Kind::Dense, (3, 1), (8, 256, 256), 56),
    convolution(Kind::Depthwise, (3, 1), (32, 256, 256), 112),
    convolution(Kind::Depthwise, (3, 1), (32, 256, 256), 56),
    convolution(Kind::Transposed, (4, 2), (8, 256, 128), 32),
    of_f16(convolution(Kind::Dense, (3, 1), (8, 256, 256), 56)),
    of_f16(convolution(Kind::Dense, (3, 1), (32, 64, 64), 56)),
    of_f16(convolution(Kind::Dense, (3, 1), (1, 64, 64), 56)),
    of_f16(convolution(Kind::Dense, (3, 2), (32, 256, 512), 28)),
    of_f16(convolution(Kind::Dense, (3, 1), (32, 512, 512), 7)),
    of_f16(convolution(Kind::Dense, (7, 2), (32, 3, 64), 224)),
];

impl Convolution {
    fn measurement(&self, quick: bool) -> Result<Measurement, Failure> {
        let Convolution { what, kernel, stride, dtype, .. } = *self;
        let less = |size: usize, by: usize| if quick { size.div_ceil(by) } else { size };
        let (batch, side) = (less(self.batch, 16), less(self.side, 8));
        let (channels, filters) = (less(self.channels, 8), less(self.filters, 8));
        let (kind, groups) = match what {
            Kind::Dense => ("conv", 1),
            Kind::Depthwise => ("depthwise", channels),
            Kind::Transposed => ("conv_transpose", 1),
        };
        let suffix = if dtype == DType::F16 { " f16" } else { "" };
        let name =
            format!("{kind}{suffix} {kernel}x{kernel}/{stride} b{batch} {channels}-{filters} {side}x{side}");
        let window = Window::same(2, stride, (kernel - 1) / 2);
        let taps = (batch * channels / groups * filters * kernel * kernel) as f64;
        let out = if what == Kind::Transposed { side } else { side.div_ceil(stride) };
        let unit = match what {
            Kind::Depthwise => Unit::Bytes(4.0 * (batch * channels * (side * side + out * out)) as f64),
            _ => Unit::Flops(2.0 * taps * (out * out) as f64),
        };
        device(name, unit, |g| {
            let x = g.input("x", dtype, [batch, channels, side, side])?;
            let shape =
                if what == Kind::Transposed { [channels, filters] } else { [filters, channels / groups] };
            let w = g.param("w", dtype, [shape[0], shape[1], kernel, kernel])?;
            match what {
                Kind::Transposed => g.conv_transpose(x, w, None, window, 1, &[0, 0]),
                _ => g.conv(x, w, None, window, groups),
            }
        })
    }
}
