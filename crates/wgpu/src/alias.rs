//! Bytes that one dispatch has in two bindings. Browsers refuse that, even of bytes that are only read, because every
//! binding may write. Buffers that are bound to the same bytes become one argument of the kernel; of ranges that overlap
//! in another way, one is a copy.

use std::sync::Arc;

use olivine_program::{Addressing, Error};

use crate::Device;
use crate::memory::Buffer;
use crate::pipeline::Pipeline;

/// A bound range: the buffer, its first byte and bytes.
pub(crate) type Bound = (Arc<Buffer>, u64, u64);

/// Bytes that are copied before a dispatch.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) from: Arc<Buffer>,
    pub(crate) offset: u64,
    pub(crate) to: Arc<Buffer>,
    pub(crate) bytes: u64,
}

/// What a dispatch is bound to, without a byte in two bindings.
pub(crate) struct Unaliased {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) bound: Vec<Bound>,
    pub(crate) copies: Vec<Copied>,
}

impl Device {
    /// The pipeline and bindings of a dispatch as the device takes them.
    pub(crate) fn unaliased(&self, pipeline: &Arc<Pipeline>, bound: Vec<Bound>) -> Result<Unaliased, Error> {
        let allowed = !matches!(self.caps.addressing, Addressing::Bindings { overlap: false, .. });
        if allowed || !(1..bound.len()).any(|j| (0..j).any(|i| overlap(&bound[i], &bound[j]))) {
            return Ok(Unaliased { pipeline: pipeline.clone(), bound, copies: Vec::new() });
        }
        let (pipeline, mut bound) = self.merged(pipeline, bound)?;
        let mut copies = Vec::new();
        let writes = |at: usize| pipeline.kernel.args.get(at).is_some_and(|arg| arg.access.writes());
        for j in 0..bound.len() {
            for i in 0..j {
                // Of two that are written neither can be a copy; the device says so by itself.
                if !overlap(&bound[i], &bound[j]) || (writes(i) && writes(j)) {
                    continue;
                }
                let at = if writes(j) { i } else { j };
                let (from, offset, bytes) = bound[at].clone();
                let to = self.allocate_for(bytes, "a copy of an operand", wgpu::BufferUsages::empty())?;
                copies.push(Copied { from, offset, to: to.clone(), bytes });
                bound[at] = (to, 0, bytes);
            }
        }
        Ok(Unaliased { pipeline, bound, copies })
    }

    /// The kernel in which arguments that are read from the same bytes are one.
    fn merged(
        &self,
        pipeline: &Arc<Pipeline>,
        mut bound: Vec<Bound>,
    ) -> Result<(Arc<Pipeline>, Vec<Bound>), Error> {
        let kernel = &pipeline.kernel;
        let same = |i: usize, j: usize| match (kernel.args.get(i), kernel.args.get(j)) {
            (Some(a), Some(b)) => {
                let range = |(buffer, offset, bytes): &Bound| (Arc::as_ptr(buffer), *offset, *bytes);
                let read = !a.access.writes() && !b.access.writes();
                read && a.elem == b.elem && range(&bound[i]) == range(&bound[j])
            }
            _ => false,
        };
        let same_as: Vec<usize> =
            (0..bound.len()).map(|j| (0..j).find(|i| same(*i, j)).unwrap_or(j)).collect();
        // A user's finished code cannot be changed.
        if kernel.foreign.is_some() || same_as.iter().enumerate().all(|(j, i)| *i == j) {
            return Ok((pipeline.clone(), bound));
        }
        let merged = Arc::new(kernel.with_merged_args(&same_as));
        let built = self.pipelines(&[merged], pipeline.interface.checked)?;
        let mut at = 0..;
        bound.retain(|_| at.next().is_some_and(|j: usize| same_as[j] == j));
        Ok((built.into_iter().next().unwrap_or_else(|| pipeline.clone()), bound))
    }
}

fn overlap(a: &Bound, b: &Bound) -> bool {
    Arc::ptr_eq(&a.0, &b.0) && a.1 < b.1 + b.2 && b.1 < a.1 + a.2
}
