//! Penalties of repeated tokens as counts and elementwise steps.

use olivine_ir::op::{Compare, ScalarOp, ScatterMode};
use olivine_ir::{DType, Dim, Error, Graph, Tensor, ValueId};

use super::{cast, reshape, rewrites};

rewrites! { |g, op, to|
    Penalties [operands @ ..] => penalties(g, operands),
}

/// Counts the tokens of every row by a scatter, then changes the logits of those that occur.
fn penalties(g: &mut Graph, operands: &[ValueId]) -> Result<ValueId, Error> {
    let &[logits, tokens, repetition, frequency, presence] = operands else {
        return Err(Error::Invalid {
            location: "penalties".into(),
            problem: format!("{} operands", operands.len()),
        });
    };
    let ty = g.ty(logits)?;
    let working = if ty.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let counts = counts(g, tokens, ty.shape)?;
    // One number for each row stands before its tokens.
    let number = |g: &mut Graph, x: ValueId| {
        let dims: Vec<Dim> = g.ty(x)?.shape.sizes().iter().copied().chain([Dim::ONE]).collect();
        let x = if dims.len() == 1 { x } else { reshape(g, x, &dims)? };
        cast(g, x, working)
    };
    let [repetition, frequency, presence] = [repetition, frequency, presence];
    let (repetition, frequency, presence) =
        (number(g, repetition)?, number(g, frequency)?, number(g, presence)?);
    let x = cast(g, logits, working)?;
    let none = g.constant(Tensor::scalar_of(working, 0.0));
    let positive = g.add1(ScalarOp::Compare(Compare::Gt), &[x, none])?;
    let (less, more) = (g.div(x, repetition)?, g.mul(x, repetition)?);
    let repeated = g.select(positive, less, more)?;
    let count = g.cast(counts, working)?;
    let often = g.mul(frequency, count)?;
    let repeated = g.sub(repeated, often)?;
    let repeated = g.sub(repeated, presence)?;
    let zero = g.constant(Tensor::scalar(0i32));
    let occurs = g.add1(ScalarOp::Compare(Compare::Gt), &[counts, zero])?;
    let y = g.select(occurs, repeated, x)?;
    cast(g, y, ty.dtype)
}

/// How often each token stands in its row, as i32 of the logits' shape; negative tokens are padding.
fn counts(g: &mut Graph, tokens: ValueId, shape: olivine_ir::Shape) -> Result<ValueId, Error> {
    let ty = g.ty(tokens)?;
    let zero = g.constant(Tensor::scalar(0i32));
    let none = g.constant(Tensor::scalar_of(ty.dtype, 0.0));
    let real = g.add1(ScalarOp::Compare(Compare::Ge), &[tokens, none])?;
    let ones = g.cast(real, DType::I32)?;
    let tokens = g.max(tokens, none)?;
    let nothing = g.expand(zero, shape)?;
    let axis = shape.rank() as isize - 1;
    g.scatter_elements(nothing, tokens, ones, axis, ScatterMode::Add)
}
