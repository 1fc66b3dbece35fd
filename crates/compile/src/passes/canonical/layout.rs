//! Identities of operations that move or reduce whole axes.

use olivine_ir::op::{Concat, Expand, ReduceKind, Reshape, Transpose};
use olivine_ir::{Dim, Graph, Op, Shape, TensorType, ValueId};

use super::Simpler;

pub(super) fn simplify(g: &Graph, op: &Op, inputs: &[ValueId], ty: TensorType) -> Option<Simpler> {
    let &x = inputs.first()?;
    let shape = g.ty(x).ok()?.shape;
    let same = |is: bool| is.then_some(Simpler::Value(x));
    match op {
        Op::Reshape(_) if shape == ty.shape => Some(Simpler::Value(x)),
        Op::Reshape(r) => {
            let inner = operand_of(g, x, |op| matches!(op, Op::Reshape(_)));
            let spelled_out = explicit(&ty.shape)?;
            let is_spelled_out = r.dims.len() == spelled_out.len()
                && r.dims.iter().zip(&spelled_out).all(|(a, b)| a.structural() == b.structural());
            (inner.is_some() || !is_spelled_out)
                .then(|| Simpler::Node(Reshape { dims: spelled_out }.into(), vec![inner.unwrap_or(x)]))
        }
        Op::Transpose(t) if t.perm.iter().enumerate().all(|(i, a)| i == *a) => Some(Simpler::Value(x)),
        Op::Transpose(t) => {
            let before = g.producer(x)?;
            let (Op::Transpose(first), [inner]) = (&before.op, before.inputs.as_slice()) else { return None };
            let perm = t.perm.iter().map(|a| first.perm.get(*a).copied()).collect::<Option<Vec<_>>>()?;
            Some(Simpler::Node(Transpose { perm }.into(), vec![*inner]))
        }
        Op::Slice(s) => {
            let ranges = s.ranges(&shape).ok()?;
            let all = |((start, step, count), d): (&(Dim, i64, Dim), &Dim)| {
                *start == 0 && same_size(*count, *d) && (*step == 1 || *count <= 1)
            };
            same(ranges.iter().zip(shape.sizes().iter()).all(all))
        }
        Op::Expand(_) if shape == ty.shape => Some(Simpler::Value(x)),
        Op::Expand(e) => {
            let inner = operand_of(g, x, |op| matches!(op, Op::Expand(_)));
            (inner.is_some() || e.shape != ty.shape)
                .then(|| Simpler::Node(Expand { shape: ty.shape }.into(), vec![inner.unwrap_or(x)]))
        }
        Op::Reverse(r) => same(r.axes.iter().all(|a| shape.sizes().get(*a).is_some_and(|d| *d <= 1))),
        Op::Pad(p) => same(p.pads.iter().all(|(before, after)| *before == 0 && *after == 0)),
        Op::Tile(t) => same(t.repeats.iter().all(|r| *r == 1)),
        Op::Repeat(r) => same(r.repeats == 1),
        Op::Roll(r) => {
            let shifted = |d: Dim| d != 0 && Dim::from(r.shift).rem_floor(d) != 0;
            same(shape.sizes().get(r.axis).is_some_and(|d| !shifted(*d)))
        }
        Op::Split(s) => same(s.sizes.len() == 1),
        Op::Concat(c) => concat(g, c, inputs),
        Op::Reduce(r) => {
            // Of a single element each of these is that element.
            let keeps = matches!(
                r.kind,
                ReduceKind::Sum
                    | ReduceKind::Mean
                    | ReduceKind::Max
                    | ReduceKind::Min
                    | ReduceKind::Prod
                    | ReduceKind::Any
                    | ReduceKind::All
            ) && r.axes.iter().all(|a| shape.sizes().get(*a).is_some_and(|d| *d == 1));
            match keeps {
                true if shape == ty.shape => Some(Simpler::Value(x)),
                true => Some(Simpler::Node(Reshape { dims: explicit(&ty.shape)? }.into(), vec![x])),
                false => None,
            }
        }
        _ => None,
    }
}

/// The operand of the node that makes `x`, if that node's operation is `wanted`.
fn operand_of(g: &Graph, x: ValueId, wanted: impl Fn(&Op) -> bool) -> Option<ValueId> {
    let node = g.producer(x)?;
    if wanted(&node.op) { node.inputs.first().copied() } else { None }
}

/// Reshape's spelling of a shape; none for zero sizes, which it would take for "copy".
fn explicit(shape: &Shape) -> Option<Vec<Dim>> {
    (!shape.has_zero()).then(|| shape.sizes().to_vec())
}

/// Whether two sizes are equal, without a question where they are so for all values.
fn same_size(a: Dim, b: Dim) -> bool {
    a.structural() == b.structural() || a == b
}

/// A concat of one operand is that operand; operands that add nothing are left out.
fn concat(g: &Graph, op: &Concat, inputs: &[ValueId]) -> Option<Simpler> {
    let adds = |id: &ValueId| g.ty(*id).is_ok_and(|t| t.shape.sizes().get(op.axis).is_some_and(|d| *d > 0));
    let kept: Vec<ValueId> = inputs.iter().copied().filter(adds).collect();
    match kept.as_slice() {
        [one] => Some(Simpler::Value(*one)),
        [_, ..] if kept.len() < inputs.len() => Some(Simpler::Node(op.clone().into(), kept)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Canonicalise;
    use crate::{Options, Pass};
    use olivine_ir::op::{PadMode, ReduceKind};
    use olivine_ir::{DType, Error, Graph, ValueId};

    type Build = fn(&mut Graph, ValueId) -> Result<ValueId, Error>;

    /// The names of what is left of a chain on `x: f32[2, 3, 1]`.
    fn left_of(build: Build) -> Result<Vec<&'static str>, Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [2, 3, 1])?;
        let y = build(&mut g, x)?;
        g.output("y", y)?;
        let out = Canonicalise.run(&g, &Options::default())?;
        assert_eq!(out.ty(out.output_named("y")?)?, g.ty(y)?);
        let out = crate::passes::dce::Dce.run(&out, &Options::default())?;
        Ok(out.nodes().iter().map(|n| n.op.name()).collect())
    }

    #[test]
    fn what_does_nothing_vanishes() -> Result<(), Error> {
        let chains: [(&str, Build); 13] = [
            ("reshape to the same shape", |g, x| g.reshape(x, &[0, -1, 1])),
            ("reshape there and back", |g, x| {
                let y = g.reshape(x, &[6])?;
                g.reshape(y, &[2, 3, 1])
            }),
            ("transpose there and back", |g, x| {
                let y = g.transpose(x, &[1, 2, 0])?;
                g.transpose(y, &[2, 0, 1])
            }),
            ("slice of everything", |g, x| g.slice(x, 1, 0, i64::MAX, 1)),
            ("backwards over one element", |g, x| g.slice(x, 2, -1, i64::MIN, -1)),
            ("expand to the same shape", |g, x| g.expand(x, [3, 1])),
            ("reverse of one element", |g, x| g.reverse(x, &[2])),
            ("pad by nothing", |g, x| g.pad(x, &[(0, 0); 3], PadMode::Constant, 1.0)),
            ("tile once", |g, x| g.tile(x, &[1, 1, 1])),
            ("roll all the way", |g, x| g.roll(x, 1, -6)),
            ("concat of one", |g, x| g.concat(&[x], 0)),
            ("concat with nothing", |g, x| {
                let none = g.slice(x, 1, 0, 0, 1)?;
                g.concat(&[none, x, none], 1)
            }),
            ("sum of one element", |g, x| g.reduce(ReduceKind::Sum, x, &[2], true)),
        ];
        for (what, build) in chains {
            assert!(left_of(build)?.is_empty(), "{what}: {:?}", left_of(build)?);
        }
        Ok(())
    }

    #[test]
    fn chains_of_one_kind_become_one_and_what_does_something_stays() -> Result<(), Error> {
        let chains: [(&[&str], Build); 6] = [
            (&["reshape"], |g, x| {
                let y = g.reshape(x, &[3, 2])?;
                g.reshape(y, &[6])
            }),
            (&["transpose"], |g, x| {
                let y = g.transpose(x, &[1, 0, 2])?;
                g.transpose(y, &[0, 2, 1])
            }),
            (&["expand"], |g, x| {
                let y = g.expand(x, [2, 3, 4])?;
                g.expand(y, [5, 2, 3, 4])
            }),
            (&["slice"], |g, x| g.slice(x, 1, -1, i64::MIN, -1)),
            (&["reduce_l1"], |g, x| g.reduce(ReduceKind::L1, x, &[2], true)),
            (&["reshape"], |g, x| g.reduce(ReduceKind::Max, x, &[2], false)),
        ];
        for (left, build) in chains {
            assert_eq!(left_of(build)?, left);
        }
        Ok(())
    }

    #[test]
    fn empty_reshapes_keep_their_spelling() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [0, 3])?;
        let y = g.reshape(x, &[0, 1, 3])?;
        let y = g.reshape(y, &[0, 3, 1])?;
        g.output("y", y)?;
        let out = Canonicalise.run(&g, &Options::default())?;
        assert_eq!(out.ty(out.output_named("y")?)?, g.ty(y)?);
        Ok(())
    }
}
