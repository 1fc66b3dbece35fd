//! Graphs with open sizes that several tests run.

use olivine_ir::op::{CumulativeKind, ReduceKind, Window};
use olivine_ir::{DType, Error, Graph};

/// Convolutions of every kind, reductions, running sums and batched matmuls over `[n, 3, h, w]`, with sizes open or
/// fixed.
pub(crate) fn vision(dtype: DType, [n, h, w]: [usize; 3], open: bool) -> Result<Graph, Error> {
    let mut g = Graph::new("vision");
    let name = |name: &str| open.then(|| name.to_string());
    let x = g.input_with_dims("x", dtype, [n, 3, h, w], vec![name("n"), None, name("h"), name("w")])?;
    let filters = |g: &mut Graph, name: &str, dims: &[usize]| g.param(name, dtype, dims);
    let (stem, bias) = (filters(&mut g, "stem", &[16, 3, 3, 3])?, filters(&mut g, "bias", &[16])?);
    let y = g.conv(x, stem, Some(bias), Window::same(2, 2, 1), 1)?;
    let y = g.relu(y)?;
    let depthwise = filters(&mut g, "depthwise", &[16, 1, 3, 3])?;
    let y = g.conv(y, depthwise, None, Window::same(2, 1, 1), 16)?;
    let pointwise = filters(&mut g, "pointwise", &[48, 16, 1, 1])?;
    let y = g.conv(y, pointwise, None, Window::unit(2), 1)?;
    let grouped = filters(&mut g, "grouped", &[48, 24, 3, 1])?;
    let window = Window { strides: vec![1, 1], pads: vec![(2, 2), (0, 0)], dilations: vec![2, 1] };
    let y = g.conv(y, grouped, None, window, 2)?;
    let pooled = g.reduce(ReduceKind::Mean, y, &[2, 3], true)?;
    let y = g.mul(y, pooled)?;
    let few = filters(&mut g, "few", &[2, 48, 3, 3])?;
    let map = g.conv(y, few, None, Window::same(2, 1, 1), 1)?;
    let line = g.reduce(ReduceKind::Max, y, &[2], false)?;
    let line_filters = filters(&mut g, "line", &[48, 48, 5])?;
    let line = g.conv(line, line_filters, None, Window::same(1, 1, 2), 1)?;
    let running = g.cumulative(CumulativeKind::Sum, line, 2, false, false)?;
    let turned = g.swap_last_axes(line)?;
    let scores = g.matmul(turned, line)?;
    let mixed = g.matmul(scores, turned)?;
    let total = g.reduce(ReduceKind::Sum, map, &[0, 1, 2, 3], false)?;
    for (name, value) in
        [("map", map), ("running", running), ("scores", scores), ("mixed", mixed), ("total", total)]
    {
        g.output(name, value)?;
    }
    Ok(g)
}
