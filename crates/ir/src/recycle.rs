//! Memory of large tensors that are gone, for those to come.
//!
//! Fresh memory of many pages costs more to get than to fill; a caller that drops a run's results before the next run
//! gets the same memory again.

use std::sync::{Arc, Mutex, TryLockError};

use crate::{DType, Data, Error, TensorType};

/// Tensors of fewer bytes are not worth keeping.
const LARGE: usize = 1 << 20;

/// Keeps the elements of one gone tensor for each of some types.
#[derive(Debug)]
pub struct Recycler {
    slots: Mutex<Vec<Slot>>,
}

#[derive(Debug)]
struct Slot {
    dtype: DType,
    len: usize,
    spare: Option<Data>,
}

impl Recycler {
    /// Room for one tensor of each large type.
    pub fn new(types: impl IntoIterator<Item = TensorType>) -> Arc<Self> {
        let slot = |ty: TensorType| Slot { dtype: ty.dtype, len: ty.shape.numel(), spare: None };
        let slots = types.into_iter().filter(|ty| ty.bytes() >= LARGE).map(slot).collect();
        Arc::new(Recycler { slots: Mutex::new(slots) })
    }

    /// Elements of a type: those of a tensor that is gone, whatever they were, else zeros.
    pub fn take(&self, ty: TensorType) -> Result<Data, Error> {
        let len = ty.shape.numel();
        let found =
            self.slot(|slot| slot.dtype == ty.dtype && slot.len == len && slot.spare.is_some(), Option::take);
        found.flatten().map_or_else(|| Data::zeros(ty.dtype, len), Ok)
    }

    /// Keeps elements if there is room for their type.
    pub(crate) fn put_back(&self, data: Data) {
        let (dtype, len) = (data.dtype(), data.len());
        self.slot(
            |slot| slot.dtype == dtype && slot.len == len && slot.spare.is_none(),
            |spare| *spare = Some(data),
        );
    }

    /// Does something with the first slot that fits.
    fn slot<R>(&self, fits: impl Fn(&Slot) -> bool, with: impl FnOnce(&mut Option<Data>) -> R) -> Option<R> {
        // Another thread's being at it is no reason to wait, and in a forked process that thread is not there.
        let mut slots = match self.slots.try_lock() {
            Ok(slots) => slots,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        slots.iter_mut().find(|slot| fits(slot)).map(|slot| with(&mut slot.spare))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, Tensor};

    #[test]
    fn a_gone_tensors_memory_comes_again_once() -> Result<(), Error> {
        let ty = TensorType::new(DType::F32, Shape::new(&[1 << 18])?);
        let recycler = Recycler::new([ty]);
        let tensor = Tensor::recycled(ty, recycler.take(ty)?, &recycler)?;
        let (first, copy) = (tensor.bytes().as_ptr(), tensor.clone());
        drop(tensor);
        assert_ne!(recycler.take(ty)?.as_bytes().as_ptr(), first, "it is still held");
        drop(copy);
        let again = recycler.take(ty)?;
        assert_eq!(again.as_bytes().as_ptr(), first);
        assert!(recycler.take(ty)?.as_bytes().iter().all(|b| *b == 0));
        Ok(())
    }

    #[test]
    fn a_tensor_that_is_written_keeps_its_memory_and_small_ones_are_not_kept() -> Result<(), Error> {
        let ty = TensorType::new(DType::F32, Shape::new(&[1 << 18])?);
        let recycler = Recycler::new([ty]);
        let mut tensor = Tensor::recycled(ty, recycler.take(ty)?, &recycler)?;
        let first = tensor.bytes().as_ptr();
        tensor.as_mut_slice::<f32>()?[0] = 1.0;
        assert_eq!(tensor.bytes().as_ptr(), first);
        drop(recycler);
        drop(tensor);
        let small = TensorType::new(DType::U8, Shape::new(&[8])?);
        let recycler = Recycler::new([small]);
        drop(Tensor::recycled(small, Data::U8(vec![7; 8]), &recycler)?);
        assert_eq!(recycler.take(small)?, Data::U8(vec![0; 8]));
        Ok(())
    }
}
