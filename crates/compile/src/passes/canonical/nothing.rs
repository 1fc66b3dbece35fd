//! Operations that have nothing to do because a list or an axis of theirs is empty.

use olivine_ir::op::{Expand, ReduceKind};
use olivine_ir::{Dim, Graph, Op, Tensor, TensorType, ValueId};

use super::Simpler;

pub(super) fn simplify(g: &Graph, op: &Op, inputs: &[ValueId], ty: TensorType) -> Option<Simpler> {
    match (op, inputs) {
        (Op::ScatterElements(_) | Op::ScatterNd(_) | Op::Penalties(_), [x, list, ..]) => {
            is_empty(g, *list)?.then_some(Simpler::Value(*x))
        }
        (Op::Reduce(r), [x]) if is_empty(g, *x)? && !ty.shape.sizes().iter().any(is_zero) => {
            let of_nothing = match r.kind {
                ReduceKind::Sum | ReduceKind::Any => 0.0,
                ReduceKind::Prod | ReduceKind::All => 1.0,
                _ => return None,
            };
            let value = Tensor::scalar_of(ty.dtype, of_nothing);
            Some(Simpler::WithConstant(Expand { shape: ty.shape }.into(), vec![*x], 0, value))
        }
        _ => None,
    }
}

/// Whether a size is the number 0; an open size never is.
fn is_zero(size: &Dim) -> bool {
    size.as_constant() == Some(0)
}

fn is_empty(g: &Graph, x: ValueId) -> Option<bool> {
    Some(g.ty(x).ok()?.shape.sizes().iter().any(is_zero))
}

#[cfg(test)]
mod tests {
    use super::super::Canonicalise;
    use crate::{Options, Pass};
    use olivine_ir::op::{ReduceKind, ScatterMode};
    use olivine_ir::{DType, Error, Graph};

    #[test]
    fn empty_lists_change_nothing() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [2, 5])?;
        let tokens = g.input("tokens", DType::I64, [2, 0])?;
        let biases = g.input("biases", DType::F32, [2, 0])?;
        let masks = g.input("masks", DType::Bool, [0, 2, 5])?;
        let y = g.penalties(x, tokens, None, None, None)?;
        let y = g.scatter_elements(y, tokens, biases, 1, ScatterMode::Add)?;
        let allowed = g.reduce(ReduceKind::All, masks, &[0], false)?;
        let lowest = g.constant(olivine_ir::Tensor::scalar(f32::NEG_INFINITY));
        let y = g.select(allowed, y, lowest)?;
        g.output("y", y)?;
        let out = Canonicalise.run(&g, &Options::default())?;
        assert_eq!(out.output_named("y")?, x);
        Ok(())
    }

    #[test]
    fn a_reduction_of_nothing_is_known_where_numbers_have_a_neutral_one() -> Result<(), Error> {
        for (kind, known) in [
            (ReduceKind::Sum, Some(0.0)),
            (ReduceKind::Prod, Some(1.0)),
            (ReduceKind::Max, None),
            (ReduceKind::Mean, None),
        ] {
            let mut g = Graph::new("g");
            let x = g.input("x", DType::F32, [3, 0])?;
            let y = g.reduce(kind, x, &[1], true)?;
            g.output("y", y)?;
            let out = Canonicalise.run(&g, &Options::default())?;
            let result = out.output_named("y")?;
            assert_eq!(out.ty(result)?, g.ty(y)?);
            let made = out.producer(result).filter(|node| node.op.name() == "expand");
            let number = made.and_then(|node| out.as_const(node.inputs[0])?.to_f64().first().copied());
            assert_eq!(number, known, "{}", kind.name());
        }
        Ok(())
    }
}
