//! Layout operations as arithmetic on shape, strides and offset.

use olivine_ir::op::{Lowering, Slice, Split, Unfold, View};
use olivine_ir::{Dim, Op, Shape, for_each_layout};

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
    for axis in axes {
        out.offset += (x.shape.size(*axis) - 1) * x.strides[*axis];
        out.strides[*axis] = -x.strides[*axis];
    }
    Some(out)
}

fn unfold(x: &View, op: &Unfold, to: Shape) -> View {
    let mut strides = x.strides.clone();
    let along = strides[op.axis];
    // With one window the distance to the next is never used, and could overflow.
    strides[op.axis] = if to.size(op.axis) > 1 { along * op.step } else { along };
    strides.push(along);
    View { shape: to, strides, offset: x.offset }
}

/// Whether a size is the number 1. An expression may be 1 too: it then counts as any other size, which is right as well.
fn is_one(size: Dim) -> bool {
    size.as_constant() == Some(1)
}

/// Another shape for the same reading order, if strides can express it.
pub(crate) fn reshape(x: &View, to: &Shape) -> Option<View> {
    if to.has_zero() {
        return Some(View::packed(*to));
    }
    // Runs of axes that step through memory like one axis: (size, stride), outermost first.
    let mut runs: Vec<(Dim, Dim)> = Vec::new();
    for (&d, &s) in x.shape.sizes().iter().zip(&x.strides).filter(|(d, _)| !is_one(**d)) {
        match runs.last_mut() {
            Some((size, stride)) if *stride == s * d => (*size, *stride) = (*size * d, s),
            _ => runs.push((d, s)),
        }
    }
    let (mut rest, mut stride) = (Dim::ONE, Dim::ONE);
    let mut strides = vec![Dim::ZERO; to.rank()];
    for (axis, &d) in to.sizes().iter().enumerate().rev() {
        if !is_one(d) && is_one(rest) {
            match runs.pop() {
                Some(run) => (rest, stride) = run,
                // Nothing is left but a size that is 1 now.
                None if d == 1 => {}
                None => return None,
            }
        }
        strides[axis] = stride;
        if is_one(rest) {
            continue;
        }
        if !rest.is_multiple_of(d) {
            return None;
        }
        stride *= d;
        rest = rest.div_floor(d);
    }
    let all = rest == 1 && runs.iter().all(|(size, _)| *size == 1);
    all.then_some(View { shape: *to, strides, offset: x.offset })
}

fn slice(x: &View, op: &Slice, to: Shape) -> Option<View> {
    let mut offset = x.offset;
    let mut strides = x.strides.clone();
    for (axis, (start, step, count)) in op.ranges(&x.shape).ok()?.into_iter().enumerate() {
        offset += start * x.strides[axis];
        // A step past the end is legal where one element is taken; its stride is never used.
        if step != 1 && count > 1 {
            strides[axis] *= step;
        }
    }
    Some(View { shape: to, strides, offset })
}

fn expand(x: &View, to: Shape) -> View {
    let lead = to.rank() - x.shape.rank();
    let repeats = |from: Dim, to: Dim| {
        is_one(from) && !is_one(to) || from.structural() != to.structural() && from != to
    };
    let strides = (0..to.rank())
        .map(|i| match i < lead || repeats(x.shape.size(i - lead), to.size(i)) {
            true => Dim::ZERO,
            false => x.strides[i - lead],
        })
        .collect();
    View { shape: to, strides, offset: x.offset }
}

fn parts(x: &View, axis: usize, results: &[Shape]) -> Vec<View> {
    let mut start = Dim::ZERO;
    results
        .iter()
        .map(|shape| {
            let offset = x.offset + start * x.strides[axis];
            start += shape.size(axis);
            if shape.has_zero() {
                return View::packed(*shape);
            }
            View { shape: *shape, strides: x.strides.clone(), offset }
        })
        .collect()
}

/// A view of `x`'s elements in their reading order; possible when those have one stride.
fn through(x: &View, v: &View) -> Option<View> {
    let flat = reshape(x, &Shape::of_sizes(&[x.shape.sizes().numel()]).ok()?)?;
    let step = *flat.strides.first()?;
    let offset = flat.offset + v.offset * step;
    let scaled = |(d, s): (&Dim, &Dim)| if is_one(step) || *d <= 1 { *s } else { *s * step };
    let strides = v.shape.sizes().iter().zip(&v.strides).map(scaled).collect();
    Some(View { shape: v.shape, strides, offset })
}

/// True when elements are read in order without gaps, from any element on.
pub(crate) fn is_contiguous(view: &View) -> bool {
    View { offset: Dim::ZERO, ..view.clone() }.is_packed()
}
