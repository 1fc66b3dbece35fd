//! Strided copies of elements of any size, from any strides to any strides.
//!
//! Elements that are contiguous in source and target are moved as words and vectors of words. Where the contiguous
//! dimension differs, [`transpose`](super::transpose) turns tiles in workgroup memory, or
//! [`interleave`](super::interleave) runs of a few planes.

use olivine_ir::Dim;
use olivine_ir::op::{Arg, Region};
use olivine_kernel::Access;
use olivine_program::Addressing;

use super::cells::{CellBuf, Cells};
use super::{interleave, transpose};
use crate::launch::Launch;
use crate::site::{Memory, Operand, Site, Target, linear_group};
use crate::walk::Walk;

/// Copies of one dispatch at most: each has its own buffer.
const MOST_TOGETHER: usize = 8;

/// Strides and offset, in elements, of the source or the target of a copy.
#[derive(Clone, Debug)]
pub struct CopyLayout {
    /// The memory.
    pub memory: Memory,
    /// One stride per dimension.
    pub strides: Vec<Dim>,
    /// Its first element.
    pub offset: Dim,
}

/// One strided copy.
#[derive(Clone, Debug)]
pub struct StridedCopy {
    /// The shape that is copied.
    pub dims: Vec<Dim>,
    /// What is read.
    pub from: CopyLayout,
    /// What is written.
    pub to: CopyLayout,
    /// Whether it fills its target from the first element to the last, so that vectors may reach into the padding.
    pub whole: bool,
}

impl StridedCopy {
    /// All of an operand, broadcast to the target's shape.
    pub(crate) fn all(operand: &Operand, target: &Target) -> Result<Self, String> {
        let dims = target.ty.shape.sizes();
        let strides = operand
            .broadcast_to(&dims)
            .ok_or_else(|| format!("{} does not broadcast to {}", operand.ty, target.ty.shape))?;
        let to = target.as_operand();
        Ok(StridedCopy {
            dims: dims.to_vec(),
            from: CopyLayout { memory: operand.memory, strides, offset: operand.offset },
            to: CopyLayout { memory: to.memory, strides: to.strides, offset: Dim::ZERO },
            whole: true,
        })
    }
}

/// Emits a region that computes nothing: every result is an operand.
pub(crate) fn region(
    name: &str,
    region: &Region,
    operands: &[Operand],
    targets: &[Target],
    site: &mut Site<'_>,
) -> Result<(), String> {
    for (output, target) in region.outputs.iter().zip(targets) {
        let operand = match output {
            Arg::Input(i) => operands.get(*i),
            Arg::Instr(_) => None,
        };
        let operand = operand.ok_or("a result that is neither operand nor instruction")?;
        emit(name, target.ty.dtype.size(), &[StridedCopy::all(operand, target)?], site)?;
    }
    Ok(())
}

/// Emits copies of elements of `bytes` bytes to disjoint parts of one target, several in a dispatch.
pub fn emit(name: &str, bytes: usize, moves: &[StridedCopy], site: &mut Site<'_>) -> Result<(), String> {
    let most = match site.caps.addressing {
        Addressing::Pointers => MOST_TOGETHER,
        // One binding for the target and one for params.
        Addressing::Bindings { max_count, .. } => {
            MOST_TOGETHER.min((max_count as usize).saturating_sub(2)).max(1)
        }
    };
    let mut plain = Vec::new();
    for m in moves.iter().filter(|m| !m.dims.iter().any(|d| *d == 0)) {
        let run = MergedCopy::new(m);
        let few = interleave::axes(&run.walk).filter(|axes| interleave::fits(&run.walk, *axes, bytes, site));
        match (transpose::axes(&run.walk), few) {
            (Some(axes), _) => transpose::emit(bytes, m, &run.walk, axes, site)?,
            (None, Some(axes)) => interleave::emit(bytes, m, &run.walk, axes, site)?,
            (None, None) => plain.push((m, run)),
        }
    }
    for together in plain.chunks(most) {
        dispatch(name, bytes, together, site)?;
    }
    Ok(())
}

/// A copy with merged dimensions, counted in cells.
#[derive(Clone, Debug)]
struct MergedCopy {
    walk: Walk,
    offsets: [Dim; 2],
    whole: bool,
}

impl MergedCopy {
    fn new(m: &StridedCopy) -> Self {
        let walk = Walk::new(&m.dims, &[m.from.strides.clone(), m.to.strides.clone()]);
        MergedCopy { walk, offsets: [m.from.offset, m.to.offset], whole: m.whole }
    }

    /// Whether every `lanes` neighbours are contiguous and aligned, in source and target.
    fn groups_by(&self, lanes: usize) -> bool {
        let Some(last) = self.walk.dims.last() else { return false };
        let padded = self.whole && self.walk.dims.len() == 1;
        (0..2).all(|side| self.walk.steps_by(side, 1))
            && (padded || last.is_multiple_of(lanes))
            && (0..2).all(|side| {
                let strides = &self.walk.strides[side];
                self.offsets[side].is_multiple_of(lanes)
                    && strides[..strides.len() - 1].iter().all(|s| s.is_multiple_of(lanes))
            })
    }

    /// The same with `lanes` neighbours as one cell.
    fn grouped(mut self, lanes: usize) -> Self {
        if let Some(last) = self.walk.dims.last_mut() {
            *last = last.div_ceil(lanes);
        }
        for strides in &mut self.walk.strides {
            let outer = strides.len().saturating_sub(1);
            strides[..outer].iter_mut().for_each(|s| *s = s.div_floor(lanes));
        }
        self.offsets = self.offsets.map(|o| o.div_floor(lanes));
        self
    }

    /// Whether one element is read for all neighbours, which are contiguous in the target.
    fn spreads(&self, lanes: usize) -> bool {
        let Some(last) = self.walk.dims.last() else { return false };
        let strides = &self.walk.strides[1];
        let padded = self.whole && self.walk.dims.len() == 1;
        self.walk.steps_by(0, 0)
            && self.walk.steps_by(1, 1)
            && (padded || last.is_multiple_of(lanes))
            && self.offsets[1].is_multiple_of(lanes)
            && strides[..strides.len() - 1].iter().all(|s| s.is_multiple_of(lanes))
    }

    /// Neighbouring cells for one invocation.
    fn lanes(&self, cells: Cells) -> usize {
        let fits = |l: &usize| *l <= cells.most_lanes() && (self.groups_by(*l) || self.spreads(*l));
        [4, 2].into_iter().find(fits).unwrap_or(1)
    }
}

fn dispatch(
    name: &str,
    bytes: usize,
    moves: &[(&StridedCopy, MergedCopy)],
    site: &mut Site<'_>,
) -> Result<(), String> {
    let Some((first, _)) = moves.first() else { return Ok(()) };
    // The target is bound once, so all copies move cells of one size.
    let widens = |f: &usize| bytes * f <= 4 && moves.iter().all(|(_, run)| run.groups_by(*f));
    let factor = [4, 2].into_iter().find(widens).unwrap_or(1);
    let cells = Cells::new(bytes * factor, site.caps);
    let runs: Vec<MergedCopy> = moves.iter().map(|(_, r)| r.clone().grouped(factor)).collect();

    let group = site.group_size(256);
    let k = site.builder(name, group);
    let l = Launch::new(&k);
    let source = |(i, (m, _)): (usize, &(&StridedCopy, MergedCopy))| {
        cells.bind(&l, &format!("x{i}"), Access::Read, m.from.memory)
    };
    let sources: Vec<CellBuf<'_>> = moves.iter().enumerate().map(source).collect();
    let sink = cells.bind(&l, "y", Access::Write, first.to.memory);

    let work = linear_group(&k) * group + k.local_index();
    let (mut start, mut moved) = (Dim::ZERO, Dim::ZERO);
    for (run, source) in runs.iter().zip(&sources) {
        let lanes = run.lanes(cells);
        let items = run.walk.numel().div_ceil(lanes);
        let walker = run.walk.declare(&l, &run.offsets);
        let end = l.size("end", start + items);
        let (inside, item) = if start.as_constant() == Some(0) {
            (work.lt(end), work)
        } else {
            let begin = l.size("begin", start);
            (work.ge(begin) & work.lt(end), work - begin)
        };
        k.if_(inside, || {
            let at = walker.at(item * lanes);
            let cells = if run.walk.steps_by(0, 0) {
                vec![source.load(at[0]); lanes]
            } else {
                source.load_many(at[0], lanes)
            };
            sink.store(at[1], &cells);
        });
        start += items;
        moved += 2 * run.walk.numel() * cells.bytes();
    }
    let bound = l.done();
    site.dispatch(k, bound, start.div_ceil(group), (0, moved))
}
