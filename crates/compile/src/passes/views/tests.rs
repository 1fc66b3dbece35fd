//! The views pass against a reading of layout operations one position at a time.

use std::collections::HashMap;

use olivine_ir::op::{Concat, Reverse, Slice, Split, Transpose};
use olivine_ir::{DType, Op, Tensor};
use proptest::prelude::*;

use super::*;

/// Position in the operand that a layout operation's result `k` reads at `index`.
fn source(op: &Op, x: &Shape, out: &[Shape], k: usize, index: &[usize]) -> usize {
    let flat = |s: &Shape, i: &[usize]| i.iter().zip(s.iter()).fold(0, |acc, (i, d)| acc * d + i);
    let mut at = index.to_vec();
    match op {
        Op::Reshape(_) => return flat(&out[k], index),
        Op::View(v) => {
            let reach: i64 =
                index.iter().zip(&v.strides).map(|(i, s)| *i as i64 * s.as_constant().unwrap()).sum();
            return (v.offset.as_constant().unwrap() + reach) as usize;
        }
        Op::Transpose(t) => {
            for (i, a) in t.perm.iter().enumerate() {
                at[*a] = index[i];
            }
        }
        Op::Slice(s) => {
            for (i, (start, step, _)) in s.ranges(x).unwrap_or_default().into_iter().enumerate() {
                at[i] = (start.as_constant().unwrap() + index[i] as i64 * step) as usize;
            }
        }
        Op::Expand(_) => {
            at.drain(..out[k].rank() - x.rank());
            for (i, d) in at.iter_mut().zip(x.iter()) {
                *i = (*i).min(d - 1);
            }
        }
        Op::Split(s) => {
            at[s.axis] += s.sizes[..k].iter().sum::<olivine_ir::Dim>().as_constant().unwrap() as usize
        }
        Op::Reverse(r) => r.axes.iter().for_each(|a| at[*a] = x[*a] - 1 - at[*a]),
        Op::Unfold(u) => {
            let inside = at.pop().unwrap_or(0);
            at[u.axis] = at[u.axis] * u.step + inside;
        }
        other => panic!("{} moves nothing", other.name()),
    }
    flat(x, &at)
}

fn positions(shape: &Shape) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for d in shape.iter() {
        all = all.iter().flat_map(|p| (0..*d).map(move |i| [p.as_slice(), &[i]].concat())).collect();
    }
    all
}

/// Outputs of a graph of layout operations and copies; every input counts its elements from 0.
fn interpret(g: &Graph) -> HashMap<String, Vec<usize>> {
    let shape = |id: ValueId| g.values()[id.index()].ty.shape;
    let mut values: HashMap<ValueId, Vec<usize>> =
        g.inputs().map(|(_, id)| (id, (0..shape(id).numel()).collect())).collect();
    for node in g.nodes() {
        let x = values[&node.inputs[0]].clone();
        let out: Vec<Shape> = node.outputs.iter().map(|id| shape(*id)).collect();
        for (k, id) in node.outputs.iter().enumerate() {
            let y = match &node.op {
                Op::Fused(f) if f.region == Region::identity() => x.clone(),
                op => positions(&out[k])
                    .iter()
                    .map(|p| x[source(op, &shape(node.inputs[0]), &out, k, p)])
                    .collect(),
            };
            values.insert(*id, y);
        }
    }
    g.outputs().iter().map(|o| (o.name.clone(), values[&o.value].clone())).collect()
}

fn run(g: &Graph) -> Graph {
    Views.run(g, &Options::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// What the pass promises of its result.
fn assert_promises(g: &Graph) {
    for node in g.nodes() {
        for (i, id) in node.inputs.iter().enumerate() {
            let Some(Op::View(view)) = g.producer(*id).map(|n| &n.op) else { continue };
            assert!(!matches!(node.op, Op::View(_)), "a view of a view");
            assert!(node.op.reads_strides(i) || strides::is_contiguous(view), "{} needs a copy", node.name);
        }
        assert!(!is_layout(&node.op) || matches!(node.op, Op::View(_)), "{} is left", node.op.name());
    }
    for output in g.outputs() {
        match g.producer(output.value).map(|n| (&n.op, n.inputs[0])) {
            Some((Op::View(view), base)) => {
                assert!(view.is_packed() && g.producer(base).is_some());
            }
            producer => assert!(producer.is_some(), "{} is not a node's result", output.name),
        }
    }
}

/// Numbers out of a list that repeats, as the choices of a random walk.
struct Choices(Vec<u32>, usize);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        let seed = self.0[self.1 % self.0.len()];
        (seed.rotate_left(self.1 as u32) as usize).wrapping_mul(2_654_435_761) % 1_000_003 % n.max(1)
    }
}

/// Adds one random layout operation that is legal for `x`.
fn step(g: &mut Graph, x: ValueId, c: &mut Choices) -> Result<ValueId, Error> {
    let shape = g.ty(x)?.shape;
    let rank = shape.rank();
    match (c.below(8), rank) {
        (0, _) => {
            let mut factors = Vec::new();
            let mut rest = shape.numel();
            while rest > 1 && factors.len() < 5 {
                let f = (2..=rest).find(|f| rest % f == 0).unwrap_or(rest);
                let f = if c.below(2) == 0 { f } else { rest / f };
                factors.push(f as i64);
                rest /= f;
            }
            factors.push(rest as i64);
            factors.insert(c.below(factors.len()), 1);
            if shape.has_zero() { Ok(x) } else { g.reshape(x, &factors) }
        }
        (1 | 2, 1..) => {
            let mut perm: Vec<usize> = (0..rank).collect();
            (1..rank).for_each(|i| perm.swap(i, c.below(i + 1)));
            g.add1(Transpose { perm }, &[x])
        }
        (3, 1..) => {
            let axis = c.below(rank);
            let step = [1, 2, -1, -2, i64::MAX][c.below(5)];
            let (first, last) = (c.below(shape[axis].max(1)) as i64, c.below(shape[axis] + 2) as i64);
            let (starts, ends) = if step > 0 { (first / 2, last + 1) } else { (last, first / 2 - 1) };
            let ends = if ends < 0 { i64::MIN } else { ends };
            g.add1(
                Slice {
                    axes: vec![axis],
                    starts: vec![starts.into()],
                    ends: vec![ends.into()],
                    steps: vec![step],
                },
                &[x],
            )
        }
        (4, _) if rank < 6 && shape.numel() < 2000 => {
            let mut dims: Vec<usize> =
                shape.iter().map(|d| if *d == 1 { 1 + c.below(3) } else { *d }).collect();
            if c.below(2) == 0 {
                dims.insert(0, 1 + c.below(3));
            }
            g.expand(x, &dims)
        }
        (5, 1..) => {
            let axis = c.below(rank);
            let cut = c.below(shape[axis] + 1);
            let parts =
                g.add_op(Split { axis, sizes: vec![cut.into(), (shape[axis] - cut).into()] }, &[x])?;
            Ok(parts[c.below(2)])
        }
        (6, 1..) => g.add1(Reverse { axes: (0..rank).filter(|_| c.below(2) == 0).collect() }, &[x]),
        (7, 1..=5) if shape.numel() < 2000 => {
            let axis = c.below(rank);
            let size = c.below(shape[axis] + 1);
            g.unfold(x, axis as isize, size, 1 + c.below(3))
        }
        _ => Ok(x),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_chains_of_layout_operations_keep_their_meaning(
        dims in prop::collection::vec(0usize..5, 0..5),
        length in 1usize..9,
        choices in prop::collection::vec(any::<u32>(), 24),
    ) {
        let mut choices = Choices(choices, 0);
        let mut g = Graph::new("g");
        let built = (|| {
            let mut x = g.input("x", DType::I32, &dims)?;
            for i in 0..length {
                x = step(&mut g, x, &mut choices)?;
                g.output(&format!("y{i}"), x)?;
            }
            Ok::<(), Error>(())
        })();
        prop_assert!(built.is_ok(), "{:?}", built);
        let out = run(&g);
        assert_promises(&out);
        prop_assert_eq!(interpret(&g), interpret(&out));
    }
}

#[test]
fn a_split_head_transpose_is_one_view_for_attention() -> Result<(), Error> {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [2, 5, 12])?;
    let h = g.reshape(x, &[2, 5, 3, 4])?;
    let h = g.transpose(h, &[0, 2, 1, 3])?;
    let y = g.matmul_nt(h, h)?;
    g.output("y", y)?;
    let out = run(&g);
    let names: Vec<&str> = out.nodes().iter().map(|n| n.op.name()).collect();
    assert_eq!(names, ["view", "view", "matmul"]);
    assert_promises(&out);
    Ok(())
}

#[test]
fn a_merge_that_strides_cannot_say_costs_one_copy() -> Result<(), Error> {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [2, 3, 4])?;
    let t = g.transpose(x, &[0, 2, 1])?;
    let flat = g.reshape(t, &[2, 12])?;
    let again = g.reshape(t, &[24])?;
    let (a, b) = (g.neg(flat)?, g.softmax(again, 0)?);
    g.output("a", a)?;
    g.output("b", b)?;
    let out = run(&g);
    assert_eq!(out.nodes().iter().filter(|n| matches!(n.op, Op::Fused(_))).count(), 1);
    assert_promises(&out);
    Ok(())
}

#[test]
fn kernels_that_need_packed_operands_get_a_copy_and_contiguous_views_pass() -> Result<(), Error> {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [4, 6])?;
    let rows = g.slice(x, 0, 1, 3, 1)?;
    let columns = g.slice(x, 1, 1, 3, 1)?;
    let (a, b) = (g.softmax(rows, 1)?, g.softmax(columns, 1)?);
    g.output("a", a)?;
    g.output("b", b)?;
    let out = run(&g);
    let names: Vec<&str> = out.nodes().iter().map(|n| n.op.name()).collect();
    assert_eq!(names, ["view", "softmax", "view", "fused", "softmax"]);
    Ok(())
}

#[test]
fn outputs_are_results_of_nodes() -> Result<(), Error> {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [4, 6])?;
    let c = g.constant(Tensor::scalar(1i64));
    let y = g.neg(x)?;
    let (flat, part) = (g.reshape(y, &[24])?, g.slice(y, 0, 0, 2, 1)?);
    for (name, value) in [("x", x), ("c", c), ("flat", flat), ("part", part), ("again", x)] {
        g.output(name, value)?;
    }
    let out = run(&g);
    assert_promises(&out);
    assert_eq!(out.nodes().iter().filter(|n| matches!(n.op, Op::Fused(_))).count(), 3);
    Ok(())
}

#[test]
fn strided_parts_reach_concat_without_a_copy() -> Result<(), Error> {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [4, 6])?;
    let parts = g.split(x, 1, &[2, 4])?;
    let y = g.add1(Concat { axis: 1 }, &[parts[1], parts[0]])?;
    g.output("y", y)?;
    assert!(run(&g).nodes().iter().all(|n| !matches!(n.op, Op::Fused(_))));
    Ok(())
}
