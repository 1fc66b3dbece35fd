//! States of fixed size, of layers without attention: a pool with a place for every slot.
//!
//! A sequence keeps its place as long as it has its slot, and begins with zeros at position 0. What such a state has read cannot be
//! taken back or shared with a sequence that goes on differently, so that engines of these models neither share prefixes nor draft.

use olivine::internals::models::RecurrentState;
use olivine::ir::{DType, Tensor};

use crate::Error;

/// Inputs and outputs of all states.
pub(crate) fn pairs(states: &[RecurrentState]) -> impl Iterator<Item = (String, String)> {
    states.iter().map(|state| (state.input.clone(), state.output.clone()))
}

/// Zeros for the pools of so many slots.
pub(crate) fn zeros(states: &[RecurrentState], slots: usize) -> Result<Vec<(&str, Tensor)>, Error> {
    let one = |state: &RecurrentState| Tensor::zeros(DType::F32, [slots, 1, state.dims[0], state.dims[1]]);
    states.iter().map(|state| Ok((state.input.as_str(), one(state)?))).collect()
}

/// Bytes of the pools of so many slots.
pub(crate) fn bytes(states: &[RecurrentState], slots: usize) -> usize {
    states.iter().map(|state| state.dims[0] * state.dims[1]).sum::<usize>() * DType::F32.size() * slots
}

/// The input that has the slot of each row; rows without a sequence have none.
pub(crate) fn slot_input(slots: impl Iterator<Item = Option<usize>>) -> Result<Tensor, Error> {
    let slots_of_rows: Vec<i32> =
        slots.map(|slot| slot.and_then(|slot| i32::try_from(slot).ok()).unwrap_or(-1)).collect();
    Ok(Tensor::new([slots_of_rows.len(), 1], slots_of_rows)?)
}
