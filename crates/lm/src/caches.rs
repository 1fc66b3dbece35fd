//! Key-value caches on the device: for each layer a pool of pages, which all sequences share.

use olivine::CacheType;
use olivine::ir::{DType, Shape, Tensor, TensorType};
use olivine::{DeviceTensor, Session, State};

use crate::graph::{CHOSEN, Step};
use crate::{Error, recurrent};

/// Pages that pools begin with.
const FIRST_PAGES: usize = 8;

/// The pools of an engine.
pub(crate) struct Caches {
    session: Session,
    /// Names and rows of the pools, `[heads, dim]`.
    pools: Vec<(String, [usize; 2])>,
    elements: CacheType,
    pages: usize,
    /// Pages at most.
    most: usize,
    /// Bytes of states of fixed size.
    fixed: usize,
    state: State,
}

impl Caches {
    /// Pools of so many pages at most, all of them at once or as many as sequences need, and states of so many slots.
    pub(crate) fn new(
        step: &Step,
        rows: &[([usize; 2], [usize; 2])],
        elements: CacheType,
        (most, at_once): (usize, bool),
        slots: usize,
    ) -> Result<Self, Error> {
        let session = step.executable.session().clone();
        let pages = if at_once { most } else { FIRST_PAGES.min(most) };
        let rows = rows.iter().flat_map(|(keys, values)| [*keys, *values]);
        let pools: Vec<(String, [usize; 2])> = step.caches.iter().cloned().zip(rows).collect();
        let zeros = zeros(&pools, elements, pages)?;
        let fixed = recurrent::zeros(&step.recurrent, slots)?;
        let paged = step.caches.iter().map(String::as_str).zip(&zeros);
        let chosen = Tensor::zeros(DType::I64, [slots, 1, 1, 1])?;
        let decodes = step.executable.outputs().iter().any(|port| port.name == "next");
        let chosen = decodes.then_some((CHOSEN, &chosen));
        let all = paged.chain(fixed.iter().map(|(name, zeros)| (*name, zeros))).chain(chosen);
        let state = step.executable.state_from(all)?;
        let fixed = recurrent::bytes(&step.recurrent, slots);
        Ok(Caches { session, pools, elements, pages, most, fixed, state })
    }

    /// Pages that the pools have.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Pages that they may have.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        let pool = |rows: &[usize; 2]| self.elements.pool(self.pages, *rows).map_or(0, |ty| ty.bytes());
        self.pools.iter().map(|(_, rows)| pool(rows)).sum::<usize>() + self.fixed
    }

    pub(crate) fn state(&mut self) -> &mut State {
        &mut self.state
    }

    /// The last tokens that were chosen in the slots, on the device, as the tokens of a run.
    pub(crate) fn chosen(&self) -> Result<DeviceTensor, Error> {
        let chosen = self.state.get(CHOSEN)?;
        let shape = Shape::new(&[chosen.ty().shape[0], 1])?;
        Ok(chosen.reinterpret(TensorType::new(DType::I64, shape))?)
    }

    /// Makes the pools at least so large, if they may be: twice as large as before, or as much of that as the device has memory for.
    /// What they may have is less from then on if memory was short.
    pub(crate) fn grow(&mut self, pages: usize) -> Result<(), Error> {
        let mut wanted = pages.max(2 * self.pages).min(self.most);
        while wanted > self.pages {
            let Err(error) = self.resize(wanted) else {
                self.pages = wanted;
                return Ok(());
            };
            self.most = wanted - 1;
            self.shrink()?;
            if wanted <= pages {
                return Err(error);
            }
            // Half as much beyond what is needed.
            wanted = pages + (wanted - pages) / 2;
        }
        Ok(())
    }

    /// Makes pools that grew as small as the others.
    fn shrink(&mut self) -> Result<(), Error> {
        let zeros = zeros(&self.pools, self.elements, self.pages)?;
        for ((name, _), zeros) in self.pools.iter().zip(&zeros) {
            let mut ty = self.state.ty(name)?;
            if ty.shape[0] == self.pages {
                continue;
            }
            ty.shape.set_number(0, self.pages);
            let first = self.state.get(name)?.reinterpret(ty)?;
            // A copy holds no more memory than it needs; there may be none for it.
            let copy = self.session.upload(zeros).and_then(|zeros| zeros.with_prefix(&first));
            self.state.set(name, copy.as_ref().unwrap_or(&first))?;
        }
        Ok(())
    }

    fn resize(&mut self, pages: usize) -> Result<(), Error> {
        for ((name, _), zeros) in self.pools.iter().zip(zeros(&self.pools, self.elements, pages)?) {
            let grown = self.session.upload(&zeros)?.with_prefix(self.state.get(name)?)?;
            self.state.set(name, &grown)?;
        }
        Ok(())
    }
}

/// Zeros for pools of so many pages; those of the same size share memory.
pub(crate) fn zeros(
    pools: &[(String, [usize; 2])],
    elements: CacheType,
    pages: usize,
) -> Result<Vec<Tensor>, Error> {
    let mut made: Vec<([usize; 2], Tensor)> = Vec::new();
    for (_, [heads, dim]) in pools {
        if !made.iter().any(|(of, _)| of == &[*heads, *dim]) {
            made.push(([*heads, *dim], Tensor::zeros_of(elements.pool(pages, [*heads, *dim])?)?));
        }
    }
    let of = |rows: &[usize; 2]| made.iter().find(|(of, _)| of == rows).map(|(_, zeros)| zeros.clone());
    Ok(pools.iter().filter_map(|(_, rows)| of(rows)).collect())
}
