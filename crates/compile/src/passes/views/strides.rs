//! Layout operations as arithmetic on shape, strides and offset.

use olivine_ir::op::{Lowering, Slice, Split, Unfold, View};
use olivine_ir::{Op, Shape, for_each_layout};

/// What a layout operation reads of its operand.
trait Layout {
    /// The readings of the results when the operand is itself the reading `x`; `to` are the results' shapes, at least
    /// one of which has elements. `None` when no strides can say it.
    fn compose(&self, x: &View, to: &[Shape]) -> Option<Vec<View>>;
}

/// True for the operations that only rename positions and so can become a view.
pub(crate) fn is_layout(op: &Op) -> bool {
    op.lowering() == Lowering::Layout
}

/// What a layout operation reads when its operand is itself the reading `x`; `results` are its results' shapes.
///
/// `None` when no strides can say it and the operand has to be packed first, or when `op` is no layout operation.
/// A packed operand always has an answer.
pub(crate) fn compose(op: &Op, x: &View, results: &[Shape]) -> Option<Vec<View>> {
    if is_layout(op) && results.iter().all(Shape::has_zero) {
        return Some(results.iter().map(|s| View::packed(*s)).collect());
    }
    macro_rules! compose {
        ($($name:ident,)*) => {
            match op {
                $(Op::$name(op) => op.compose(x, results),)*
                _ => None,
            }
        };
    }
    for_each_layout!(compose)
}

/// Implements [`Layout`] for operations of one result: `|op, x, to| Reshape => reshape(x, &to)`.
macro_rules! layouts {
    (|$op:ident, $x:ident, $to:ident| $($name:ident => $view:expr,)*) => {$(
        impl Layout for olivine_ir::op::$name {
            #[allow(unused_variables, reason = "not every operation needs all")]
            fn compose(&self, $x: &View, to: &[Shape]) -> Option<Vec<View>> {
                let ($op, $to) = (self, *to.first()?);
                Some(vec![$view?])
            }
        }
    )*};
}

layouts! { |op, x, to|
    Reshape => reshape(x, &to),
    Transpose => Some(View {
        shape: to,
        strides: op.perm.iter().map(|a| x.strides[*a]).collect(),
        offset: x.offset,
    }),
    Slice => slice(x, op, to),
    Expand => Some(expand(x, to)),
    Reverse => reverse(x, &op.axes),
    Unfold => Some(unfold(x, op, to)),
    View => through(x, op),
}

impl Layout for Split {
    fn compose(&self, x: &View, to: &[Shape]) -> Option<Vec<View>> {
        Some(parts(x, self.axis, to))
    }
}

fn reverse(x: &View, axes: &[usize]) -> Option<View> {
    let mut out = x.clone();
    let mut first = x.offset as i64;
    for axis in axes {
        first += (x.shape[*axis] as i64 - 1) * x.strides[*axis];
        out.strides[*axis] = -x.strides[*axis];
    }
    out.offset = usize::try_from(first).ok()?;
    Some(out)
}

fn unfold(x: &View, op: &Unfold, to: Shape) -> View {
    let mut strides = x.strides.clone();
    let along = strides[op.axis];
    // With one window the distance to the next is never used, and could overflow.
    strides[op.axis] = if to[op.axis] > 1 { along * op.step as i64 } else { along };
    strides.push(along);
    View { shape: to, strides, offset: x.offset }
}

/// Another shape for the same reading order, if strides can express it.
pub(crate) fn reshape(x: &View, to: &Shape) -> Option<View> {
    if to.has_zero() {
        return Some(View::packed(*to));
    }
    // Runs of axes that step through memory like one axis: (size, stride), outermost first.
    let mut runs: Vec<(usize, i64)> = Vec::new();
    for (&d, &s) in x.shape.iter().zip(&x.strides).filter(|(d, _)| **d != 1) {
        match runs.last_mut() {
            Some((size, stride)) if *stride == s * d as i64 => (*size, *stride) = (*size * d, s),
            _ => runs.push((d, s)),
        }
    }
    let (mut rest, mut stride) = (1, 1);
    let mut strides = vec![0; to.rank()];
    for (axis, &d) in to.iter().enumerate().rev() {
        if d != 1 && rest == 1 {
            (rest, stride) = runs.pop()?;
        }
        if rest % d != 0 {
            return None;
        }
        strides[axis] = stride;
        stride *= d as i64;
        rest /= d;
    }
    (rest == 1 && runs.is_empty()).then_some(View { shape: *to, strides, offset: x.offset })
}

fn slice(x: &View, op: &Slice, to: Shape) -> Option<View> {
    let mut first = x.offset as i64;
    let mut strides = x.strides.clone();
    for (axis, (start, step, count)) in op.ranges(&x.shape).ok()?.into_iter().enumerate() {
        first += start as i64 * x.strides[axis];
        // A step past the end is legal where one element is taken; its stride is never used.
        if count > 1 {
            strides[axis] *= step;
        }
    }
    Some(View { shape: to, strides, offset: usize::try_from(first).ok()? })
}

fn expand(x: &View, to: Shape) -> View {
    let lead = to.rank() - x.shape.rank();
    let strides = (0..to.rank())
        .map(|i| if i < lead || x.shape[i - lead] != to[i] { 0 } else { x.strides[i - lead] })
        .collect();
    View { shape: to, strides, offset: x.offset }
}

fn parts(x: &View, axis: usize, results: &[Shape]) -> Vec<View> {
    let mut start = 0;
    results
        .iter()
        .map(|shape| {
            let first = x.offset as i64 + start * x.strides[axis];
            start += shape[axis] as i64;
            if shape.has_zero() {
                return View::packed(*shape);
            }
            // Every position of a non-empty part is within the operand, so it is not negative.
            View { shape: *shape, strides: x.strides.clone(), offset: first.max(0) as usize }
        })
        .collect()
}

/// A view of `x`'s elements in their reading order; possible when those have one stride.
fn through(x: &View, v: &View) -> Option<View> {
    let flat = reshape(x, &Shape::new(&[x.shape.numel()]).ok()?)?;
    let step = *flat.strides.first()?;
    let offset = usize::try_from(flat.offset as i64 + v.offset as i64 * step).ok()?;
    let strides = v.shape.iter().zip(&v.strides).map(|(d, s)| if *d > 1 { s * step } else { *s }).collect();
    Some(View { shape: v.shape, strides, offset })
}

/// True when elements are read in order without gaps, from any element on.
pub(crate) fn is_contiguous(view: &View) -> bool {
    View { offset: 0, ..view.clone() }.is_packed()
}
