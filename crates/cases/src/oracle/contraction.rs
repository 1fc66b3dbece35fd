//! Products that sum over axes, each as the sum its definition writes.

use olivine_ir::op::{DotGeneral, Einsum, LoraMatMul, MatMul};
use olivine_ir::{Shape, TensorType};

use super::region::apply_region;
use super::value::{Number, broadcast_flat, each, flat};
use super::{Numbers, Value};
use super::{meanings, one};

meanings! { |op, x, call|
    MatMul => one(matmul(op, x, call.ty())),
    DotGeneral => one(dot_general(op, x, call.ty())),
    Einsum => one(einsum(op, x, call.ty())),
    LoraMatMul => one(lora(op, x, call.ty())),
    GroupedMatMul => one(grouped(x, call.ty())),
}

/// Both operands' elements, of one kind.
macro_rules! on_pairs {
    ($a:expr, $b:expr, $ty:expr, ($x:ident, $y:ident) => $body:expr) => {
        match (&$a.data, &$b.data) {
            (Numbers::Floats($x), Numbers::Floats($y)) => Ok(Value::floats($ty, $body)),
            (Numbers::Ints($x), Numbers::Ints($y)) => Ok(Value::ints($ty, $body)),
            _ => Err("operands of two kinds".to_string()),
        }
    };
}

/// Σₖ over positions that a closure gives.
fn dot<T: Number>(n: usize, mut term: impl FnMut(usize) -> (T, T)) -> T {
    (0..n).fold(T::default(), |sum, k| {
        let (a, b) = term(k);
        sum.plus(a.times(b))
    })
}

pub(super) fn matmul(op: &MatMul, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let product = TensorType::new(x[0].ty.dtype, ty.shape);
    let y = on_pairs!(x[0], x[1], product, (a, b) => matmul_of(a, x[0].shape(), b, x[1].shape(), &ty.shape))?;
    apply_region(&op.epilogue, y, &x[2..], ty)
}

fn matmul_of<T: Number>(a: &[T], sa: &Shape, b: &[T], sb: &Shape, out: &Shape) -> Vec<T> {
    let k_size = sa[sa.rank() - 1];
    let (has_m, has_n) = (sa.rank() > 1, sb.rank() > 1);
    let n_size = if has_n { sb[sb.rank() - 1] } else { 1 };
    let (batch_a, batch_b) = (&sa[..sa.rank().saturating_sub(2)], &sb[..sb.rank().saturating_sub(2)]);
    let mut result = Vec::with_capacity(out.numel());
    each(out, |at| {
        let tail = usize::from(has_m) + usize::from(has_n);
        let (batch, tail) = at.split_at(at.len() - tail);
        let m = if has_m { tail[0] } else { 0 };
        let n = if has_n { tail[tail.len() - 1] } else { 0 };
        let m_size = if has_m { sa[sa.rank() - 2] } else { 1 };
        let from_a = (broadcast_flat(batch_a, batch) * m_size + m) * k_size;
        let from_b = broadcast_flat(batch_b, batch) * k_size * n_size + n;
        result.push(dot(k_size, |k| (a[from_a + k], b[from_b + k * n_size])));
    });
    result
}

pub(super) fn dot_general(op: &DotGeneral, x: &[Value], ty: TensorType) -> Result<Value, String> {
    on_pairs!(x[0], x[1], ty, (a, b) => general(op, a, x[0].shape(), b, x[1].shape(), &ty.shape))
}

fn general<T: Number>(op: &DotGeneral, a: &[T], sa: &Shape, b: &[T], sb: &Shape, out: &Shape) -> Vec<T> {
    let sizes: Vec<usize> = op.lhs_contract.iter().map(|i| sa[*i]).collect();
    let summed = Shape::new(&sizes).unwrap_or_default();
    let mut result = Vec::with_capacity(out.numel());
    each(out, |at| {
        let mut next = 0;
        let (mut ia, mut ib) = (vec![usize::MAX; sa.rank()], vec![usize::MAX; sb.rank()]);
        for (l, r) in op.lhs_batch.iter().zip(&op.rhs_batch) {
            (ia[*l], ib[*r]) = (at[next], at[next]);
            next += 1;
        }
        let mut free = |at_side: &mut Vec<usize>, contract: &[usize]| {
            for axis in 0..at_side.len() {
                if at_side[axis] == usize::MAX && !contract.contains(&axis) {
                    at_side[axis] = at[next];
                    next += 1;
                }
            }
        };
        free(&mut ia, &op.lhs_contract);
        free(&mut ib, &op.rhs_contract);
        let mut sum = T::default();
        each(&summed, |k| {
            for (i, (l, r)) in op.lhs_contract.iter().zip(&op.rhs_contract).enumerate() {
                (ia[*l], ib[*r]) = (k[i], k[i]);
            }
            sum = sum.plus(a[flat(sa, &ia)].times(b[flat(sb, &ib)]));
        });
        result.push(sum);
    });
    result
}

/// A label of an equation: a letter, or the n-th axis from the back under `...`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Label {
    Letter(char),
    Dots(usize),
}

/// The labels of a term; `hidden` axes stand under its `...`.
fn labels(term: &str, hidden: usize) -> Vec<Label> {
    let expanded = term.replace("...", ".");
    let mut out = Vec::new();
    for c in expanded.chars() {
        if c == '.' {
            out.extend((0..hidden).rev().map(Label::Dots));
        } else {
            out.push(Label::Letter(c));
        }
    }
    out
}

pub(super) fn einsum(op: &Einsum, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let text: String = op.equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((l, r)) => (l, Some(r)),
        None => (text.as_str(), None),
    };
    let letters_of = |t: &str| t.chars().filter(char::is_ascii_alphabetic).count();
    let hidden = |t: &str, v: &Value| if t.contains("...") { v.shape().rank() - letters_of(t) } else { 0 };
    let terms: Vec<Vec<Label>> = left.split(',').zip(x).map(|(t, v)| labels(t, hidden(t, v))).collect();
    let widest = left.split(',').zip(x).map(|(t, v)| hidden(t, v)).max().unwrap_or(0);
    let result = match right {
        Some(r) => labels(r, widest),
        None => {
            let mut once: Vec<char> =
                left.chars().filter(|c| c.is_ascii_alphabetic() && left.matches(*c).count() == 1).collect();
            once.sort_unstable();
            let dots = (0..widest).rev().map(Label::Dots);
            dots.chain(once.into_iter().map(Label::Letter)).collect()
        }
    };
    // Result labels first, then the summed ones in order of appearance.
    let mut order = result.clone();
    for label in terms.iter().flatten() {
        if !order.contains(label) {
            order.push(*label);
        }
    }
    let size = |label: &Label| {
        let of_axis = |(t, v): (&Vec<Label>, &Value)| {
            t.iter().zip(v.shape().iter()).filter(|(l, _)| *l == label).map(|(_, d)| *d).find(|d| *d != 1)
        };
        terms.iter().zip(x).find_map(of_axis).unwrap_or(1)
    };
    let sizes: Vec<usize> = order.iter().map(size).collect();
    match &x[0].data {
        Numbers::Floats(_) => {
            let all = x.iter().map(Value::as_floats).collect::<Result<Vec<_>, _>>()?;
            Ok(Value::floats(ty, sums(&all, x, &terms, &order, &sizes, result.len())))
        }
        Numbers::Ints(_) => {
            let all = x.iter().map(Value::as_ints).collect::<Result<Vec<_>, _>>()?;
            Ok(Value::ints(ty, sums(&all, x, &terms, &order, &sizes, result.len())))
        }
    }
}

/// For every assignment of the result's labels, the sum over the others of the product of all operands.
fn sums<T: Number>(
    all: &[&[T]],
    x: &[Value],
    terms: &[Vec<Label>],
    order: &[Label],
    sizes: &[usize],
    kept: usize,
) -> Vec<T> {
    let places: Vec<Vec<usize>> =
        terms.iter().map(|t| t.iter().filter_map(|l| order.iter().position(|o| o == l)).collect()).collect();
    let count = |dims: &[usize]| dims.iter().product::<usize>();
    let (outer, inner) = (count(&sizes[..kept]), count(&sizes[kept..]));
    let mut at = vec![0usize; sizes.len()];
    let unravel = |mut n: usize, dims: &[usize], at: &mut [usize]| {
        for i in (0..dims.len()).rev() {
            (at[i], n) = (n % dims[i], n / dims[i]);
        }
    };
    let mut out = Vec::with_capacity(outer);
    for o in 0..outer {
        unravel(o, &sizes[..kept], &mut at[..kept]);
        let mut sum = T::default();
        for i in 0..inner {
            unravel(i, &sizes[kept..], &mut at[kept..]);
            let mut product = T::ONE;
            for ((v, value), place) in all.iter().zip(x).zip(&places) {
                let dims = value.shape().dims();
                let flat =
                    dims.iter().zip(place).fold(0, |f, (d, p)| if *d == 1 { f } else { f * d + at[*p] });
                product = product.times(v[flat]);
            }
            sum = sum.plus(product);
        }
        out.push(sum);
    }
    out
}

/// x·W + scale·(x·A)·B.
pub(super) fn lora(op: &LoraMatMul, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let [xs, w, a, b] = [x[0].as_floats()?, x[1].as_floats()?, x[2].as_floats()?, x[3].as_floats()?];
    let (k, n, r) = (x[1].shape()[0], x[1].shape()[1], x[2].shape()[1]);
    let mut out = Vec::with_capacity(ty.shape.numel());
    for row in 0..ty.shape.numel().checked_div(n).unwrap_or(0) {
        let xs = &xs[row * k..(row + 1) * k];
        for j in 0..n {
            let low = dot(r, |i| (dot(k, |l| (xs[l], a[l * r + i])), b[i * n + j]));
            out.push(dot(k, |l| (xs[l], w[l * n + j])) + op.scale * low);
        }
    }
    Ok(Value::floats(ty, out))
}

/// out[i] = x[i]·W[expert[i]]; an expert out of range gives zeros.
pub(super) fn grouped(x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (xs, w, experts) = (x[0].as_floats()?, x[1].as_floats()?, x[2].as_ints()?);
    let [e, k, n] = [0, 1, 2].map(|i| x[1].shape()[i]);
    let mut out = Vec::with_capacity(ty.shape.numel());
    for (i, expert) in experts.iter().enumerate() {
        for j in 0..n {
            out.push(match usize::try_from(*expert) {
                Ok(id) if id < e => dot(k, |l| (xs[i * k + l], w[(id * k + l) * n + j])),
                _ => 0.0,
            });
        }
    }
    Ok(Value::floats(ty, out))
}
