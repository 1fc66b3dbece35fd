//! Elementwise operations and fused regions over operands of any strides.
//!
//! ```text
//!   Region ── Program::new ──> steps over registers        (program.rs; once, at load)
//!   output in blocks ─┬─ operands of the block             (layout.rs: a slice, a number, or a gather)
//!                     ├─ each step one vector loop         (exec.rs → float.rs, int.rs, cast.rs)
//!                     └─ the last step writes the target
//!   a region that is the identity ── copy.rs: runs, or tiles where axes are swapped
//! ```
//!
//! f16 and bf16 live in registers as f32 numbers, rounded after every step.

mod cast;
mod chain;
mod copy;
mod epilogue;
mod exec;
mod float;
mod int;
mod layout;
mod program;
#[cfg(test)]
mod tests;

use crate::kernel::kernels;
use crate::operand::{Operand, Target};
use crate::parallel;
use exec::{Scratch, Sweep};

pub(crate) use chain::{Chain, Link, apply};
pub(crate) use copy::copy;
pub(crate) use epilogue::FusedRegion;
pub(crate) use program::Program;

kernels! { |op, x, out, call|
    ScalarOp => call.program().into_iter().for_each(|p| fused(p, x, out)),
    Fused => call.program().into_iter().for_each(|p| fused(p, x, out)),
}

/// Elements a task should have at least, for threads to be worth their cost.
const TASK: usize = 16 << 10;

/// A region at every position of the operands' common shape; a target may share its bytes with operands of its layout.
pub(crate) fn fused(program: &Program, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(first) = out.first() else { return };
    let shape = first.ty.shape;
    let numel = shape.numel();
    if numel == 0 {
        return;
    }
    if let (true, [operand], [target]) = (program.is_copy(), x, &mut *out) {
        copy(operand, target);
        return;
    }
    let (dims, readers) = layout::readers(&shape, x);
    let sweep = Sweep::new(program, &readers, &dims, numel, out.iter().map(|t| t.ty.bytes()).max());
    let work = numel.saturating_mul(program.cost());
    let threads = parallel::threads();
    if work < 2 * TASK || threads == 1 {
        return Scratch::with(|scratch| match out {
            [target] => sweep.run(0, numel, None, &mut [&mut *target.bytes], scratch),
            _ => {
                let mut runs: Vec<&mut [u8]> = out.iter_mut().map(|t| &mut *t.bytes).collect();
                sweep.run(0, numel, None, &mut runs, scratch);
            }
        });
    }
    // A few tasks per thread even out unequal cores; whole steps keep blocks from being cut.
    let tasks = (work / TASK).min(threads * 4).max(1);
    let per_task = numel.div_ceil(tasks).next_multiple_of(sweep.step());
    let sizes: Vec<usize> = out.iter().map(|t| t.ty.dtype.size()).collect();
    let mut chunks: Vec<(usize, Vec<&mut [u8]>)> =
        (0..numel.div_ceil(per_task)).map(|i| (i * per_task, Vec::with_capacity(sizes.len()))).collect();
    for (target, size) in out.iter_mut().zip(&sizes) {
        for (chunk, bytes) in chunks.iter_mut().zip(target.bytes.chunks_mut(per_task * size)) {
            chunk.1.push(bytes);
        }
    }
    parallel::parts(&mut chunks, 1, &|_, part| {
        for (start, runs) in part {
            let len = per_task.min(numel - *start);
            Scratch::with(|scratch| sweep.run(*start, len, None, runs, scratch));
        }
    });
}
