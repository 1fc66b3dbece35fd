//! Key-value caches of all slots on the device.
//!
//! A prompt is computed alone, in caches of one sequence, and its rows then move to its slot among all; so a prompt's
//! numbers do not depend on who else is there, and one run of many sequences has one token of each. With a single slot
//! there is nothing to move. Caches begin small and grow; the step is compiled with their capacity open.

use olivine::internals::models::CausalLm;
use olivine::ir::op::HeadLayout;
use olivine::ir::{DType, Graph, Shape, Tensor};
use olivine::{CompileOptions, Executable, Input, Session, State};

use crate::Error;
use crate::graph::{Step, empty_caches};

/// Rows that caches begin with.
const FIRST_CAPACITY: usize = 256;

/// The caches of an engine.
pub(crate) struct Caches {
    session: Session,
    rows: Vec<([usize; 2], [usize; 2])>,
    dtype: DType,
    names: Vec<String>,
    slots: usize,
    context: usize,
    capacity: usize,
    /// Of all slots.
    all: State,
    /// Of the prompt that is being computed, where there is more than one slot.
    prompt: Option<State>,
    /// Moves a prompt's rows to a slot.
    mover: Option<Executable>,
}

impl Caches {
    pub(crate) fn new(
        model: &CausalLm,
        step: &Step,
        dtype: DType,
        slots: usize,
        context: usize,
    ) -> Result<Self, Error> {
        let (rows, names) = (model.cache_rows(), step.caches.clone());
        let session = step.executable.session().clone();
        let capacity = FIRST_CAPACITY.min(context);
        let all = fresh(step, &rows, dtype, slots, capacity)?;
        let (mut prompt, mut mover) = (None, None);
        if slots > 1 {
            prompt = Some(fresh(step, &rows, dtype, 1, capacity)?);
            mover = Some(compile_mover(&session, &rows, &names, dtype, slots)?);
        }
        Ok(Caches { session, rows, dtype, names, slots, context, capacity, all, prompt, mover })
    }

    /// Rows that each slot has room for.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        let elements: usize =
            self.rows.iter().flat_map(|(keys, values)| [keys, values]).map(|[heads, dim]| heads * dim).sum();
        let sequences = self.slots + usize::from(self.prompt.is_some());
        elements * self.dtype.size() * sequences * self.capacity
    }

    /// The caches of all slots.
    pub(crate) fn all(&mut self) -> &mut State {
        &mut self.all
    }

    /// The caches that a prompt is computed in.
    pub(crate) fn prompt(&mut self) -> &mut State {
        self.prompt.as_mut().unwrap_or(&mut self.all)
    }

    /// Makes room for sequences of so many tokens.
    pub(crate) fn reserve(&mut self, step: &Step, length: usize) -> Result<(), Error> {
        if length <= self.capacity {
            return Ok(());
        }
        let capacity = length.max(2 * self.capacity).next_multiple_of(FIRST_CAPACITY).min(self.context);
        let resizer = compile_resizer(&self.session, self.dtype)?;
        self.all = self.grown(step, &resizer, &self.all, self.slots, capacity)?;
        if let Some(prompt) = &self.prompt {
            self.prompt = Some(self.grown(step, &resizer, prompt, 1, capacity)?);
        }
        self.capacity = capacity;
        Ok(())
    }

    fn grown(
        &self,
        step: &Step,
        resizer: &Executable,
        state: &State,
        sequences: usize,
        capacity: usize,
    ) -> Result<State, Error> {
        let zeros = empty_caches(&self.rows, self.dtype, sequences, capacity)?;
        let mut moved = Vec::with_capacity(self.names.len());
        for (name, zeros) in self.names.iter().zip(&zeros) {
            let inputs = [("room", Input::from(zeros)), ("rows", Input::from(state.get(name)?))];
            let mut out = resizer.run_resident(inputs)?;
            moved.push(out.pop().ok_or(Error::NoResult("cache"))?.1);
        }
        let parts = self.names.iter().map(String::as_str).zip(&moved);
        Ok(step.executable.state_from(parts)?)
    }

    /// Moves the rows of the prompt that was computed to a slot.
    pub(crate) fn adopt(&mut self, slot: usize) -> Result<(), Error> {
        let (Some(prompt), Some(mover)) = (&self.prompt, &self.mover) else { return Ok(()) };
        // Other slots' rows go past the end, where they are dropped.
        let starts = (0..self.slots).map(|i| if i == slot { 0 } else { self.capacity as i64 }).collect();
        let starts = Tensor::new([self.slots], starts)?;
        let names: Vec<String> = self.names.iter().map(|name| format!("prompt.{name}")).collect();
        let mut inputs = vec![("starts", Input::from(&starts))];
        for (input, name) in names.iter().zip(&self.names) {
            inputs.push((input, Input::from(prompt.get(name)?)));
        }
        mover.run_with_state(&mut self.all, inputs)?;
        Ok(())
    }
}

fn fresh(
    step: &Step,
    rows: &[([usize; 2], [usize; 2])],
    dtype: DType,
    sequences: usize,
    capacity: usize,
) -> Result<State, Error> {
    let zeros = empty_caches(rows, dtype, sequences, capacity)?;
    Ok(step.executable.state_from(step.caches.iter().map(String::as_str).zip(&zeros))?)
}

fn open(names: [&str; 4]) -> Vec<Option<String>> {
    names.iter().map(|name| (!name.is_empty()).then(|| name.to_string())).collect()
}

/// Appends the rows of a single sequence to one of many caches, in place.
fn compile_mover(
    session: &Session,
    rows: &[([usize; 2], [usize; 2])],
    names: &[String],
    dtype: DType,
    slots: usize,
) -> Result<Executable, Error> {
    let mut g = Graph::new("move to a slot");
    let starts = g.input("starts", DType::I64, [slots])?;
    let mut states = Vec::with_capacity(names.len());
    for (name, [heads, dim]) in names.iter().zip(rows.iter().flat_map(|(keys, values)| [keys, values])) {
        let sizes = |batch: usize| Shape::new(&[batch, 16, *heads, *dim]);
        let cache = g.input_with_dims(name, dtype, sizes(slots)?, open(["", "capacity", "", ""]))?;
        let prompt =
            g.input_with_dims(&format!("prompt.{name}"), dtype, sizes(1)?, open(["", "capacity", "", ""]))?;
        // Every slot is offered the rows, and one takes them.
        let offered = g.expand(prompt, [slots, 1, 1, 1])?;
        let next = g.kv_append(HeadLayout::Bshd, cache, offered, starts)?;
        let output = format!("{name}.next");
        g.output(&output, next)?;
        states.push((name.clone(), output));
    }
    Ok(session.compile_with(&g, &CompileOptions::new().states(states))?)
}

/// Rows in caches with more room.
fn compile_resizer(session: &Session, dtype: DType) -> Result<Executable, Error> {
    let mut g = Graph::new("grow");
    let dims = |capacity: &'static str| open(["batch", capacity, "heads", "dim"]);
    let room = g.input_with_dims("room", dtype, [1, 32, 2, 8], dims("capacity"))?;
    let rows = g.input_with_dims("rows", dtype, [1, 16, 2, 8], dims("rows"))?;
    let start = g.constant(Tensor::scalar(0i64));
    let grown = g.kv_append(HeadLayout::Bshd, room, rows, start)?;
    g.output("grown", grown)?;
    Ok(session.compile(&g)?)
}
