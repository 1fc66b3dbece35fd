//! Sizes in the attributes of operations, which may be expressions.

use crate::op::Op;
use crate::{Dim, Error, Shape};

impl Op {
    /// The operation with every size of its attributes replaced.
    pub fn map_sizes(&self, mut size: impl FnMut(Dim) -> Result<Dim, Error>) -> Result<Op, Error> {
        let mut op = self.clone();
        let mut list = |sizes: &mut Vec<Dim>| -> Result<(), Error> {
            sizes.iter_mut().try_for_each(|dim| {
                *dim = size(*dim)?;
                Ok(())
            })
        };
        match &mut op {
            Op::Reshape(op) => list(&mut op.dims)?,
            Op::Slice(op) => {
                list(&mut op.starts)?;
                list(&mut op.ends)?;
            }
            Op::Split(op) => list(&mut op.sizes)?,
            Op::Resize(op) => list(&mut op.sizes)?,
            Op::Expand(op) => op.shape = shape(&op.shape, &mut list)?,
            Op::Fill(op) => op.shape = shape(&op.shape, &mut list)?,
            Op::RngUniform(op) => op.shape = shape(&op.shape, &mut list)?,
            Op::RngNormal(op) => op.shape = shape(&op.shape, &mut list)?,
            Op::Range(op) => {
                let mut count = vec![op.count];
                list(&mut count)?;
                op.count = count[0];
            }
            Op::View(op) => {
                op.shape = shape(&op.shape, &mut list)?;
                list(&mut op.strides)?;
                let mut offset = vec![op.offset];
                list(&mut offset)?;
                op.offset = offset[0];
            }
            _ => {}
        }
        Ok(op)
    }

    /// Whether a size of its attributes is an expression.
    pub fn has_open_sizes(&self) -> bool {
        let open = |sizes: &[Dim]| sizes.iter().any(|size| !size.is_constant());
        match self {
            Op::Reshape(op) => open(&op.dims),
            Op::Slice(op) => open(&op.starts) || open(&op.ends),
            Op::Split(op) => open(&op.sizes),
            Op::Resize(op) => open(&op.sizes),
            Op::Expand(op) => op.shape.is_symbolic(),
            Op::Fill(op) => op.shape.is_symbolic(),
            Op::RngUniform(op) => op.shape.is_symbolic(),
            Op::RngNormal(op) => op.shape.is_symbolic(),
            Op::Range(op) => open(&[op.count]),
            Op::View(op) => op.shape.is_symbolic() || open(&op.strides) || open(&[op.offset]),
            _ => false,
        }
    }
}

fn shape(of: &Shape, replace: &mut impl FnMut(&mut Vec<Dim>) -> Result<(), Error>) -> Result<Shape, Error> {
    let mut sizes = of.sizes().to_vec();
    replace(&mut sizes)?;
    Shape::of_sizes(&sizes)
}
