//! Branches, loops and scans: taken and not, ended early, by count and not begun, nested, with captures.

use olivine_ir::DType::{self, BF16, Bool, F16, F32, F64, I32, I64};
use olivine_ir::op::Scan;
use olivine_ir::{Error, Graph, SubGraph, Tensor, ValueId};

use crate::bound::Bound::Exact;
use crate::case::{Build, Table};
use crate::fill::Fill::Chance;
use crate::fill::whole;

const DTYPES: &[DType] = &[F32, F16, BF16, F64, I32, I64];

/// A graph of inputs `(dtype, dims)`; `build` names its outputs in order.
fn inner(
    inputs: &[(DType, &[usize])],
    build: impl FnOnce(&mut Graph, &[ValueId]) -> Result<Vec<ValueId>, Error>,
) -> Result<Graph, Error> {
    let mut g = Graph::new("inner");
    let declare = |(i, (dtype, dims)): (usize, &(DType, &[usize]))| g.input(&format!("i{i}"), *dtype, *dims);
    let ids = inputs.iter().enumerate().map(declare).collect::<Result<Vec<_>, _>>()?;
    for (i, id) in build(&mut g, &ids)?.into_iter().enumerate() {
        g.output(&format!("o{i}"), id)?;
    }
    Ok(g)
}

fn bool_of(g: &mut Build, set: bool) -> Result<ValueId, Error> {
    g.of(Bool, [], Chance(if set { 1.0 } else { 0.0 }))
}

/// Flags of so many iterations, the first `set` of them true: what a body reads to know whether to go on, without arithmetic
/// on the iteration's number, for which not every device has registers.
const FLAGS: usize = 12;

fn flags(set: usize) -> Result<Tensor, Error> {
    Tensor::new([FLAGS], (0..FLAGS).map(|iteration| iteration < set).collect())
}

/// `x = x + step`, go on while the iteration's flag is set, and the row `x · x`.
fn adding(dtype: DType, dims: &[usize]) -> Result<Graph, Error> {
    inner(&[(I64, &[]), (dtype, dims), (dtype, dims), (Bool, &[FLAGS])], |g, x| {
        let next = g.add(x[1], x[2])?;
        let row = g.mul(x[1], x[1])?;
        let go = g.gather(x[3], x[0], 0)?;
        Ok(vec![go, next, row])
    })
}

pub(super) fn rows(t: &mut Table) {
    branches(t);
    loops(t);
    scans(t);
}

fn branches(t: &mut Table) {
    for (name, set) in [("then", true), ("else", false)] {
        t.case(&format!("if/{name}"), DTYPES, whole(-8, 8), Exact, move |g| {
            let d = g.dtype();
            let c = bool_of(g, set)?;
            let (x, y) = (g.x([4, 33])?, g.x([33])?);
            let inputs: &[(DType, &[usize])] = &[(d, &[4, 33]), (d, &[33])];
            let then = inner(inputs, |g, x| Ok(vec![g.add(x[0], x[1])?, x[1]]))?;
            let other = inner(inputs, |g, x| {
                let y = g.mul(x[0], x[1])?;
                let first = g.slice(y, 0, 1, 2, 1)?;
                Ok(vec![y, g.reshape(first, &[33])?])
            })?;
            g.if_(c, then, other, &[x, y])
        });
        // What is captured is no packed value, and what comes out is a view, an operand and twice the same.
        t.case(&format!("if/views/{name}"), &[F32, F16], whole(-8, 8), Exact, move |g| {
            let d = g.dtype();
            let c = bool_of(g, set)?;
            let x = g.x([5, 7])?;
            let part = g.slice(x, 0, 1, 5, 1)?;
            let turned = g.transpose(part, &[1, 0])?;
            let inputs: &[(DType, &[usize])] = &[(d, &[7, 4]), (d, &[4, 7])];
            let then = inner(inputs, |g, x| {
                let y = g.transpose(x[0], &[1, 0])?;
                Ok(vec![y, y, x[0]])
            })?;
            let other = inner(inputs, |g, x| {
                let y = g.neg(x[1])?;
                let z = g.constant(Tensor::zeros(d, [7, 4])?);
                Ok(vec![y, x[1], z])
            })?;
            g.if_(c, then, other, &[turned, part])
        });
        for (inside, second) in [("then", true), ("else", false)] {
            t.case(&format!("if/nested/{name}/{inside}"), &[F32, I32], whole(-8, 8), Exact, move |g| {
                let d = g.dtype();
                let (a, b) = (bool_of(g, set)?, bool_of(g, second)?);
                let x = g.x([65])?;
                let leaf = |by: f64| {
                    inner(&[(d, &[65])], |g, x| {
                        let k = g.constant(Tensor::scalar_of(d, by));
                        Ok(vec![g.mul(x[0], k)?])
                    })
                };
                let (two, three) = (leaf(2.0)?, leaf(3.0)?);
                let inputs: &[(DType, &[usize])] = &[(Bool, &[]), (d, &[65])];
                let then = inner(inputs, |g, x| g.if_(x[0], two.clone(), three.clone(), &[x[1]]))?;
                let other = inner(inputs, |g, x| {
                    let y = g.if_(x[0], three.clone(), two.clone(), &[x[1]])?;
                    Ok(vec![g.neg(y[0])?])
                })?;
                g.if_(a, then, other, &[b, x])
            });
        }
    }
    t.case("if/empty", &[F32], whole(-8, 8), Exact, |g| {
        let c = bool_of(g, true)?;
        let x = g.x([0, 3])?;
        let then = inner(&[(F32, &[0, 3])], |g, x| Ok(vec![g.neg(x[0])?]))?;
        let other = inner(&[(F32, &[0, 3])], |g, x| Ok(vec![g.abs(x[0])?]))?;
        g.if_(c, then, other, &[x])
    });
}

fn loops(t: &mut Table) {
    // Iterations asked for, whether it begins, how many iterations' flags are set, the bound.
    let cases: [(&str, i64, bool, usize, usize); 7] = [
        ("by-count", 5, true, FLAGS, 9),
        ("by-condition", 100, true, 3, 9),
        ("by-bound", 100, true, FLAGS, 6),
        ("full", 9, true, FLAGS, 9),
        ("not-begun", 5, false, FLAGS, 9),
        ("no-iterations", 0, true, FLAGS, 9),
        ("negative", -3, true, FLAGS, 9),
    ];
    for (name, iterations, begin, last, most) in cases {
        let dtypes = if name == "by-condition" { DTYPES } else { &[F32, I32] };
        t.case(&format!("loop/{name}"), dtypes, whole(-3, 3), Exact, move |g| {
            let d = g.dtype();
            let iterations = g.ints(I64, [], &[iterations])?;
            let begin = bool_of(g, begin)?;
            let (x, step) = (g.x([3, 11])?, g.x([3, 11])?);
            let last = g.constant(flags(last)?);
            g.loop_(iterations, begin, &[x], &[step, last], Some(most), adding(d, &[3, 11])?)
        });
    }
    t.case("loop/swaps", &[F32, I64], whole(-3, 3), Exact, |g| {
        let d = g.dtype();
        let iterations = g.ints(I64, [], &[7])?;
        let begin = bool_of(g, true)?;
        let (x, y) = (g.x([5])?, g.x([5])?);
        let body = inner(&[(I64, &[]), (d, &[5]), (d, &[5])], |g, x| {
            let go = g.constant(Tensor::scalar(true));
            Ok(vec![go, x[2], x[1]])
        })?;
        g.loop_(iterations, begin, &[x, y], &[], Some(10), body)
    });
    t.case("loop/if-inside", &[F32, I32], whole(-3, 3), Exact, |g| {
        let d = g.dtype();
        let iterations = g.ints(I64, [], &[7])?;
        let begin = bool_of(g, true)?;
        let (x, middle) = (g.x([40])?, g.constant(flags(3)?));
        let body = inner(&[(I64, &[]), (d, &[40]), (Bool, &[FLAGS])], |g, x| {
            let early = g.gather(x[2], x[0], 0)?;
            let then = inner(&[(d, &[40])], |g, x| Ok(vec![g.add(x[0], x[0])?]))?;
            let other = inner(&[(d, &[40])], |g, x| {
                let one = g.constant(Tensor::scalar_of(d, 1.0));
                Ok(vec![g.add(x[0], one)?])
            })?;
            let y = g.if_(early, then, other, &[x[1]])?;
            let go = g.constant(Tensor::scalar(true));
            Ok(vec![go, y[0], y[0]])
        })?;
        g.loop_(iterations, begin, &[x], &[middle], Some(8), body)
    });
    for (name, set) in [("taken", true), ("passed", false)] {
        t.case(&format!("loop/loop-in-loop-in-if/{name}"), &[F32], whole(-3, 3), Exact, move |g| {
            let d = g.dtype();
            let c = bool_of(g, set)?;
            let (x, step, outer) = (g.x([9])?, g.x([9])?, g.ints(I64, [], &[3])?);
            let inputs: &[(DType, &[usize])] = &[(d, &[9]), (d, &[9]), (I64, &[])];
            let then = inner(inputs, |g, x| {
                let begin = g.constant(Tensor::scalar(true));
                let body = inner(&[(I64, &[]), (d, &[9]), (d, &[9])], |g, x| {
                    // As many iterations inside as the outer iteration's number.
                    let begin = g.constant(Tensor::scalar(true));
                    let last = g.constant(flags(FLAGS)?);
                    let y = g.loop_(x[0], begin, &[x[1]], &[x[2], last], Some(4), adding(d, &[9])?)?;
                    let go = g.constant(Tensor::scalar(true));
                    Ok(vec![go, y[0], y[1], y[2]])
                })?;
                let y = g.loop_(x[2], begin, &[x[0]], &[x[1]], Some(5), body)?;
                Ok(y)
            })?;
            let other = inner(inputs, |g, x| {
                let rows = g.constant(Tensor::zeros(d, [5, 4, 9])?);
                let counts = g.constant(Tensor::zeros(I64, [5])?);
                let zero = g.constant(Tensor::scalar(7i64));
                Ok(vec![x[1], rows, counts, zero])
            })?;
            g.if_(c, then, other, &[x, step, outer])
        });
    }
}

fn scans(t: &mut Table) {
    // Slices, whether read and stacked from the back.
    for (name, length, back) in [
        ("short", 5, false),
        ("long", 70, false),
        ("long-back", 70, true),
        ("none", 0, false),
        ("one", 1, true),
    ] {
        let dtypes = if name == "long" { DTYPES } else { &[F32] };
        t.case(&format!("scan/{name}"), dtypes, whole(-2, 2), Exact, move |g| {
            let d = g.dtype();
            let (s, x, k) = (g.x([3])?, g.x([3, length])?, g.x([3])?);
            let body = inner(&[(d, &[3]), (d, &[3]), (d, &[3])], |g, x| {
                let next = g.add(x[0], x[1])?;
                let row = g.mul(x[1], x[2])?;
                Ok(vec![next, next, row])
            })?;
            let op = Scan {
                states: 1,
                axes: vec![1],
                reverse: vec![back],
                out_axes: vec![1, 0],
                out_reverse: vec![back, !back],
                body: SubGraph::new(body)?,
            };
            g.add_op(op, &[s, x, k])
        });
    }
}
