//! The gated delta net on keys and queries of length one.

use olivine_ir::op::{Binary, GatedDeltaNet, ReduceKind};
use olivine_ir::{Error, Graph, Shape, ValueId};

use super::{Composite, cast, working_dtype};

/// Normalises q and k in front of the rule itself.
impl Composite for GatedDeltaNet {
    fn decompose(&self, g: &mut Graph, x: &[ValueId], _: Shape) -> Result<Vec<ValueId>, Error> {
        let mut inputs = x.to_vec();
        if let Some(eps) = self.normalise {
            for rows in inputs.iter_mut().take(2) {
                *rows = of_length_one(g, *rows, eps)?;
            }
        }
        g.add_op(GatedDeltaNet { normalise: None, ..self.clone() }, &inputs)
    }
}

/// x / √(Σx² + eps) along the last axis; what is narrower than f32 stays there.
fn of_length_one(g: &mut Graph, x: ValueId, eps: f64) -> Result<ValueId, Error> {
    let work = working_dtype(g.ty(x)?.dtype);
    let x = cast(g, x, work)?;
    let squares = g.reduce(ReduceKind::SumSquare, x, &[-1], true)?;
    let sum = g.binary_scalar(Binary::Add, squares, eps)?;
    let length = g.rsqrt(sum)?;
    g.mul(x, length)
}
