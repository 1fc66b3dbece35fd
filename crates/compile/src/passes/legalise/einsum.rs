//! Einstein summation: diagonals, sums over labels of one operand, then contractions of pairs.

use olivine_ir::op::{Einsum, EinsumPlan, ReduceKind, View};
use olivine_ir::{DType, Dim, Error, Graph, MAX_RANK, Shape, ValueId};

use super::contraction::{ContractionOperand, dot};
use super::{cast, reshape, rewrites, transpose};

rewrites! { |g, op, to|
    Einsum [operands @ ..] => einsum(g, op, operands),
}

/// An operand, or the contraction of several, with one label per axis, each once.
struct Term {
    value: ValueId,
    labels: Vec<usize>,
}

impl Term {
    fn position(&self, label: usize) -> Option<usize> {
        self.labels.iter().position(|l| *l == label)
    }

    fn has(&self, label: usize) -> bool {
        self.labels.contains(&label)
    }

    /// The axes of some of its labels.
    fn axes(&self, labels: &[usize]) -> Vec<usize> {
        labels.iter().filter_map(|l| self.position(*l)).collect()
    }
}

fn einsum(g: &mut Graph, op: &Einsum, operands: &[ValueId]) -> Result<ValueId, Error> {
    let types = operands.iter().map(|id| g.ty(*id)).collect::<Result<Vec<_>, _>>()?;
    let shapes: Vec<Shape> = types.iter().map(|t| t.shape).collect();
    let plan = op.plan(&shapes).map_err(|problem| Error::Invalid { location: "einsum".into(), problem })?;
    let dtype = types.first().map_or(DType::F32, |t| t.dtype);

    let mut terms = Vec::with_capacity(operands.len());
    for (value, labels) in operands.iter().zip(&plan.operands) {
        terms.push(distinct_labels(g, *value, labels, &plan)?);
    }
    if matches!(dtype, DType::F16 | DType::BF16) && takes_several_steps(&terms, &plan.result) {
        for term in &mut terms {
            term.value = cast(g, term.value, DType::F32)?;
        }
    }
    while terms.len() > 1 {
        let (i, j) = next_pair(&terms, &plan.result);
        let right = terms.remove(j);
        let left = terms.remove(i);
        let product = {
            let kept = |l: usize| plan.result.contains(&l) || terms.iter().any(|t| t.has(l));
            join(g, left, right, kept)?
        };
        terms.insert(0, product);
    }
    let Some(last) = terms.pop() else {
        return Err(Error::Invalid { location: "einsum".into(), problem: "no operand".into() });
    };
    let last = sum_out(g, last, |l| !plan.result.contains(&l))?;
    let value = transpose(g, last.value, &last.axes(&plan.result))?;
    cast(g, value, dtype)
}

/// Takes the diagonal of labels that an operand has twice, and drops axes of size 1 whose label is larger elsewhere: they
/// broadcast.
fn distinct_labels(
    g: &mut Graph,
    value: ValueId,
    labels: &[usize],
    plan: &EinsumPlan,
) -> Result<Term, Error> {
    let shape = g.ty(value)?.shape;
    let own = View::packed(shape).strides;
    let stretched = |axis: usize| shape.size(axis) == 1 && plan.sizes[labels[axis]] != 1;
    let (mut kept, mut dims, mut strides) = (Vec::new(), Vec::new(), Vec::<Dim>::new());
    for axis in (0..shape.rank()).filter(|a| !stretched(*a)) {
        let step = own[axis];
        match kept.iter().position(|l| *l == labels[axis]) {
            Some(i) => strides[i] += step,
            None => {
                kept.push(labels[axis]);
                dims.push(shape.size(axis));
                strides.push(step);
            }
        }
    }
    let dropped = (0..shape.rank()).filter(|a| stretched(*a)).count();
    let value = if kept.len() + dropped == shape.rank() {
        reshape(g, value, &dims)?
    } else {
        g.add1(View { shape: Shape::of_sizes(&dims)?, strides, offset: Dim::ZERO }, &[value])?
    };
    Ok(Term { value, labels: kept })
}

/// Whether the result would be rounded more than once.
fn takes_several_steps(terms: &[Term], result: &[usize]) -> bool {
    let lone = |l: usize| !result.contains(&l) && terms.iter().filter(|t| t.has(l)).count() == 1;
    terms.len() > 2 || (terms.len() == 2 && terms.iter().flat_map(|t| &t.labels).any(|l| lone(*l)))
}

/// The first two terms, unless their contraction has too many axes; then the pair whose contraction has the fewest.
fn next_pair(terms: &[Term], result: &[usize]) -> (usize, usize) {
    let rank = |i: usize, j: usize| {
        let elsewhere = |l: usize| {
            result.contains(&l) || terms.iter().enumerate().any(|(t, term)| t != i && t != j && term.has(l))
        };
        let fresh = terms[j].labels.iter().filter(|l| !terms[i].has(**l));
        terms[i].labels.iter().chain(fresh).filter(|l| elsewhere(**l)).count()
    };
    if rank(0, 1) <= MAX_RANK {
        return (0, 1);
    }
    (1..terms.len())
        .flat_map(|j| (0..j).map(move |i| (i, j)))
        .min_by_key(|p| rank(p.0, p.1))
        .unwrap_or((0, 1))
}

/// The contraction of two terms, summed over the labels that nothing else needs.
fn join(g: &mut Graph, a: Term, b: Term, kept: impl Fn(usize) -> bool) -> Result<Term, Error> {
    let a = sum_out(g, a, |l| !b.has(l) && !kept(l))?;
    let b = sum_out(g, b, |l| !a.has(l) && !kept(l))?;
    let shared: Vec<usize> = a.labels.iter().copied().filter(|l| b.has(*l)).collect();
    let (batch, contract): (Vec<usize>, Vec<usize>) = shared.iter().copied().partition(|l| kept(*l));
    let only = |t: &Term| t.labels.iter().copied().filter(|l| !shared.contains(l)).collect::<Vec<_>>();
    let labels = [batch.clone(), only(&a), only(&b)].concat();
    if contract.is_empty() {
        let left = spread(g, &a, &labels)?;
        let right = spread(g, &b, &labels)?;
        return Ok(Term { value: g.mul(left, right)?, labels });
    }
    let left = ContractionOperand { value: a.value, batch: &a.axes(&batch), contract: &a.axes(&contract) };
    let right = ContractionOperand { value: b.value, batch: &b.axes(&batch), contract: &b.axes(&contract) };
    Ok(Term { value: dot(g, &left, &right)?, labels })
}

/// A term's axes in the order of `labels`, with size 1 for those it does not have; leading ones broadcasting adds.
fn spread(g: &mut Graph, term: &Term, labels: &[usize]) -> Result<ValueId, Error> {
    let shape = g.ty(term.value)?.shape;
    let value = transpose(g, term.value, &term.axes(labels))?;
    let dims: Vec<Dim> = (labels.iter())
        .skip_while(|l| !term.has(**l))
        .map(|l| term.position(*l).map_or(Dim::ONE, |axis| shape.size(axis)))
        .collect();
    reshape(g, value, &dims)
}

fn sum_out(g: &mut Graph, term: Term, gone: impl Fn(usize) -> bool) -> Result<Term, Error> {
    let axes: Vec<isize> =
        (0..term.labels.len()).filter(|i| gone(term.labels[*i])).map(|i| i as isize).collect();
    if axes.is_empty() {
        return Ok(term);
    }
    let value = g.reduce(ReduceKind::Sum, term.value, &axes, false)?;
    Ok(Term { value, labels: term.labels.into_iter().filter(|l| !gone(*l)).collect() })
}
