//! Legalised products computed on small integers, against a loop over all labels.

use olivine_ir::op::{Einsum, Reduce, ReduceKind, ScalarOp};
use olivine_ir::{Error, Graph, Op, Shape, Tensor};
use proptest::prelude::*;

use super::super::fold::Fold;
use super::Legalise;
use crate::{Evaluate, Options, Pass};

fn positions(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for d in dims {
        all = all.iter().flat_map(|p| (0..*d).map(move |i| [p.as_slice(), &[i]].concat())).collect();
    }
    all
}

/// The element at a position, aligned from the right; axes of size 1 stretch.
fn at(shape: &Shape, elements: &[i64], position: &[usize]) -> i64 {
    let own = &position[position.len() - shape.rank()..];
    elements[own.iter().zip(shape.iter()).fold(0, |acc, (i, d)| acc * d + i.min(&(d - 1)))]
}

/// Computes i64 `matmul`, `mul` and `reduce_sum`.
struct Integers;

impl Evaluate for Integers {
    fn evaluate(&self, op: &Op, operands: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let types: Vec<_> = operands.iter().map(Tensor::ty).collect();
        let shape = op.infer(&types)?[0].shape;
        let read = |i: usize, p: &[usize]| {
            at(operands[i].shape(), operands[i].as_slice::<i64>().unwrap_or_default(), p)
        };
        let elements: Vec<i64> = match op {
            Op::ScalarOp(ScalarOp::Binary(olivine_ir::op::Binary::Mul)) => {
                positions(&shape).iter().map(|p| read(0, p) * read(1, p)).collect()
            }
            Op::MatMul(_) => {
                let product = |p: &Vec<usize>| {
                    let (batch, cell) = p.split_at(p.len() - 2);
                    let inner = types[0].shape[types[0].shape.rank() - 1];
                    let term = |k: usize| {
                        read(0, &[batch, &[cell[0], k]].concat()) * read(1, &[batch, &[k, cell[1]]].concat())
                    };
                    (0..inner).map(term).sum()
                };
                positions(&shape).iter().map(product).collect()
            }
            Op::Reduce(Reduce { kind: ReduceKind::Sum, axes, keepdims: false }) => {
                let mut sums = vec![0; shape.numel()];
                for p in positions(&types[0].shape) {
                    let left = (0..p.len()).filter(|i| !axes.contains(i));
                    let to = left.fold(0, |acc, i| acc * types[0].shape[i] + p[i]);
                    sums[to] += read(0, &p);
                }
                sums
            }
            other => return Err(format!("no {}", other.name())),
        };
        Ok(vec![Tensor::new(shape, elements).map_err(|e| e.to_string())?])
    }
}

/// The definition: for every assignment of all labels, the product of all operands, summed by result position.
fn by_definition(op: &Einsum, operands: &[Tensor]) -> Result<Vec<i64>, String> {
    let shapes: Vec<Shape> = operands.iter().map(|t| *t.shape()).collect();
    let plan = op.plan(&shapes)?;
    let all: Vec<usize> = plan.sizes.iter().map(|size| size.specialize().unwrap()).collect();
    let sizes: Vec<usize> = plan.result.iter().map(|l| all[*l]).collect();
    let mut sums = vec![0; sizes.iter().product()];
    for labels in positions(&all) {
        let mut product = 1;
        for (tensor, axes) in operands.iter().zip(&plan.operands) {
            let position: Vec<usize> = axes.iter().map(|l| labels[*l]).collect();
            product *= at(tensor.shape(), tensor.as_slice::<i64>().unwrap_or_default(), &position);
        }
        sums[plan.result.iter().fold(0, |acc, l| acc * all[*l] + labels[*l])] += product;
    }
    Ok(sums)
}

fn numbers(dims: &[usize]) -> Result<Tensor, Error> {
    let count = dims.iter().product::<usize>() as i64;
    Tensor::new(dims, (0..count).map(|i| (i * 7 + 3) % 11 - 5).collect())
}

/// Legalised and folded, the operation is a constant with the elements that its definition gives.
fn check(equation: &str, shapes: &[Vec<usize>]) -> Result<(), Error> {
    let operands = shapes.iter().map(|s| numbers(s)).collect::<Result<Vec<_>, _>>()?;
    let mut g = Graph::new("g");
    let inputs: Vec<_> = operands.iter().map(|t| g.constant(t.clone())).collect();
    let y = g.einsum(equation, &inputs)?;
    g.output("y", y)?;
    let out = Legalise.run(&g, &Options::default())?;
    let out = Fold.run(&out, &Options { evaluator: Some(&Integers), ..Options::default() })?;
    let folded =
        out.as_const(out.output_named("y")?).map(|t| t.as_slice::<i64>().unwrap_or_default().to_vec());
    let expected = by_definition(&Einsum { equation: equation.into() }, &operands);
    assert_eq!(Ok(folded), expected.map(Some), "{equation} of {shapes:?}");
    Ok(())
}

#[test]
fn einsum_of_known_forms_is_the_sum_over_its_labels() -> Result<(), Error> {
    let cases: [(&str, &[&[usize]]); 14] = [
        ("ij,jk->ik", &[&[2, 3], &[3, 4]]),
        ("bhqd,bhkd->bhqk", &[&[2, 2, 3, 4], &[2, 2, 5, 4]]),
        ("bqhd,bkhd->bhqk", &[&[2, 3, 2, 4], &[2, 5, 2, 4]]),
        ("...ij,...jk->...ik", &[&[2, 1, 3, 2], &[4, 2, 3]]),
        ("ii->i", &[&[3, 3]]),
        ("iij->j", &[&[3, 3, 2]]),
        ("ij->", &[&[3, 4]]),
        (",->", &[&[], &[]]),
        ("i,i", &[&[4], &[4]]),
        ("ik,kj->ij", &[&[2, 0], &[0, 3]]),
        ("ik,kj->ij", &[&[2, 1], &[4, 3]]),
        ("bn,anm,bm->ba", &[&[2, 3], &[5, 3, 4], &[2, 4]]),
        ("abcde,fghij,abcfgh->deij", &[&[2, 1, 2, 1, 2], &[1, 2, 1, 2, 1], &[2, 1, 2, 1, 2, 1]]),
        ("abcdefgh,abcdefgh->abcdefg", &[&[1, 2, 1, 2, 1, 2, 1, 2], &[1, 2, 1, 2, 1, 2, 1, 2]]),
    ];
    for (equation, shapes) in cases {
        check(equation, &shapes.iter().map(|s| s.to_vec()).collect::<Vec<_>>())?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Each operand is a list of (letter, whether the axis has size 1); the result takes the letters that it can.
    #[test]
    fn einsum_of_random_equations_is_the_sum_over_its_labels(
        terms in prop::collection::vec(prop::collection::vec((0usize..5, prop::bool::weighted(0.2)), 0..5), 1..5),
        sizes in prop::collection::vec(0usize..4, 5),
        wanted in Just((0..5).collect::<Vec<usize>>()).prop_shuffle(),
        kept in 0usize..6,
    ) {
        let letter = |l: usize| (b'a' + l as u8) as char;
        let left: Vec<String> = terms.iter().map(|t| t.iter().map(|(l, _)| letter(*l)).collect()).collect();
        let used = |l: &usize| terms.iter().flatten().any(|(used, _)| used == l);
        let right: String = wanted.iter().copied().take(kept).filter(used).map(letter).collect();
        // A letter that stands twice in one term is a diagonal: both axes have the size of the first.
        let is_one = |t: &[(usize, bool)], l: usize| t.iter().any(|(other, one)| *other == l && *one);
        let shape = |t: &Vec<(usize, bool)>| t.iter().map(|(l, _)| if is_one(t, *l) { 1 } else { sizes[*l] }).collect();
        let shapes: Vec<Vec<usize>> = terms.iter().map(shape).collect();
        let outcome = check(&format!("{}->{right}", left.join(",")), &shapes);
        prop_assert!(outcome.is_ok(), "{:?}", outcome);
    }
}
