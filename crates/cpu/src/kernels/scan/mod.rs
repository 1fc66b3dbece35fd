//! Along one axis: running accumulations, orders, positions of extremes.

mod arg;
mod cumulative;
mod key;
mod order;

/// Elements one task handles at least.
const GRAIN: usize = 1 << 15;

/// A shape seen from one axis.
#[derive(Clone, Copy)]
struct Axis {
    outer: usize,
    size: usize,
    inner: usize,
}

impl Axis {
    fn new(dims: &[usize], axis: usize) -> Axis {
        Axis {
            outer: dims[..axis].iter().product(),
            size: dims[axis],
            inner: dims[axis + 1..].iter().product(),
        }
    }
}

#[cfg(test)]
mod tests;
