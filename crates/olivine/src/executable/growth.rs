//! States that grow in place: a key-value cache that a run appends to.
//!
//! Such a state is in memory with room along the axis that it grows on. The graph is compiled with the capacity as
//! another open size, so that one plan serves all lengths and capacities, and a run writes the new rows alone. When the
//! room is used up, the state moves to larger memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use olivine_compile::{Growing, append_in_place, growing_states};
use olivine_ir::op::{Pad, PadMode};
use olivine_ir::size::{Bindings, Symbol, guards};
use olivine_ir::{DType, Def, Dim, Graph, Shape, Tensor, TensorType, open_symbol};

use super::graph::GraphExecutable;
use super::plans::SizeValues;
use super::state::Part;
use crate::engine::{DeviceTensor, Prepared};
use crate::{Error, Executable, Session};

/// Capacities are multiples of this.
const STEP: usize = 64;

/// What a state's memory has room for when it must be larger: half as much again.
fn room_for(size: usize) -> usize {
    size.saturating_add(size / 2).saturating_add(1).next_multiple_of(STEP)
}

/// What is compiled for a run that appends to states.
pub(super) struct Appending {
    pub(super) prepared: Arc<dyn Prepared>,
    pub(super) states: Arc<[Growing]>,
    sizes: Capacities,
}

/// Sizes of growing states for one run.
struct Capacities {
    /// All open sizes, with the capacities.
    bindings: Bindings,
    /// For every state its capacity, and its size after the run.
    states: Vec<(usize, usize)>,
    /// Each capacity once.
    distinct: Vec<usize>,
}

impl Capacities {
    /// States that grow on one open size share a capacity. `None` where the sizes do not fit the plan.
    fn new(
        states: &[Growing],
        values: &SizeValues,
        now: &dyn Fn(usize) -> Option<usize>,
    ) -> Result<Option<Self>, Error> {
        let mut groups: Vec<(Symbol, usize)> = Vec::new();
        let mut of_states = Vec::with_capacity(states.len());
        for state in states {
            let after =
                state.after.evaluate(values.bindings()).ok().and_then(|size| usize::try_from(size).ok());
            let (Some(after), Some(symbol)) = (after, state.before.as_symbol()) else { return Ok(None) };
            let capacity = now(state.input).filter(|capacity| *capacity > after);
            let capacity = capacity.unwrap_or_else(|| room_for(after));
            let group = match groups.iter().position(|(known, _)| *known == symbol) {
                Some(at) => at,
                None => {
                    groups.push((symbol, 0));
                    groups.len() - 1
                }
            };
            groups[group].1 = groups[group].1.max(capacity);
            of_states.push((group, after));
        }
        let mut bindings = values.bindings().clone();
        for (symbol, capacity) in &groups {
            let bound = bindings.bind(capacity_symbol(*symbol)?, *capacity as i64);
            bound.map_err(|e| olivine_ir::Error::BadData { problem: e.to_string() })?;
        }
        let states = of_states.into_iter().map(|(group, after)| (groups[group].1, after)).collect();
        let distinct = groups.into_iter().map(|(_, capacity)| capacity).collect();
        Ok(Some(Capacities { bindings, states, distinct }))
    }

    /// What a program for these sizes is known by.
    fn key(&self, shapes: &[Shape]) -> Result<Vec<Shape>, Error> {
        let mut key = shapes.to_vec();
        for capacity in &self.distinct {
            key.push(Shape::new(&[*capacity])?);
        }
        Ok(key)
    }
}

/// The open size that is the capacity of states that grow on another.
fn capacity_symbol(size: Symbol) -> Result<Symbol, Error> {
    Ok(open_symbol(&format!("{}.capacity", size.name()))?)
}

/// The open sizes that states grow on.
pub(super) fn grown_sizes(graph: &Graph, states: &[(String, String)]) -> Vec<Symbol> {
    if states.is_empty() {
        return Vec::new();
    }
    // A size of 0 is no symbol; what grows does not depend on the declared sizes.
    let shape = |(name, id): (&str, olivine_ir::ValueId)| {
        let value = &graph.values()[id.index()];
        let mut shape = value.ty.shape.values();
        if let Def::Input { dims, .. } = &value.def {
            for (axis, dim) in dims.iter().enumerate() {
                if dim.is_some() && shape[axis] == 0 {
                    shape.set_number(axis, 2);
                }
            }
        }
        (name.to_string(), shape)
    };
    let shapes: Vec<(String, Shape)> = graph.inputs().map(shape).collect();
    let shapes: Vec<(&str, Shape)> = shapes.iter().map(|(name, shape)| (name.as_str(), *shape)).collect();
    let Ok(graph) = graph.specialise_symbolic(&shapes) else { return Vec::new() };
    growing_states(&graph, states).iter().filter_map(|state| state.before.as_symbol()).collect()
}

impl GraphExecutable {
    /// What is compiled for a run of some sizes that appends to states with capacities; `None` where no state grows.
    pub(super) fn appending(
        &self,
        shapes: &[Shape],
        now: &dyn Fn(usize) -> Option<usize>,
    ) -> Result<Option<Appending>, Error> {
        self.appended.check()?;
        if self.grown.is_empty() {
            return Ok(None);
        }
        let values = self.open.values(shapes)?;
        if self.grown.iter().all(|symbol| values.is_zero(*symbol)) {
            return Ok(None);
        }
        let read = || self.appended.read().unwrap_or_else(PoisonError::into_inner);
        let write = || self.appended.write().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for plan in read().newest(&values) {
            let sizes = Capacities::new(&plan.states, &values, now)?;
            if let Some(sizes) = sizes.filter(|sizes| plan.guards.holds(&sizes.bindings)) {
                found = Some((plan.prepared.clone(), plan.states.clone(), sizes));
                break;
            }
        }
        if let Some((plan, states, sizes)) = found {
            let key = sizes.key(shapes)?;
            let known = read().get(&key).cloned();
            let prepared = match known {
                Some(known) => known,
                None => {
                    let program = plan.for_sizes(&sizes.bindings)?.unwrap_or_else(|| plan.clone());
                    write().add_program(&key, &plan, program)
                }
            };
            return Ok(Some(Appending { prepared, states, sizes }));
        }
        let (made, guards) = guards::record(|| self.prepare_appending(shapes, &values, now));
        let Some(made) = made? else { return Ok(None) };
        let mut plans = write();
        plans.add_plan(guards, &values, made.states.clone(), made.prepared.clone());
        plans.add_program(&made.sizes.key(shapes)?, &made.prepared, made.prepared.clone());
        drop(plans);
        Ok(Some(made))
    }

    fn prepare_appending(
        &self,
        shapes: &[Shape],
        values: &SizeValues,
        now: &dyn Fn(usize) -> Option<usize>,
    ) -> Result<Option<Appending>, Error> {
        let graph = self.specialised_graph(shapes)?;
        let states: Arc<[Growing]> = growing_states(&graph, &self.states).into();
        let Some(sizes) = Capacities::new(&states, values, now)?.filter(|_| !states.is_empty()) else {
            return Ok(None);
        };
        let mut capacities = Vec::with_capacity(states.len());
        for (state, (capacity, _)) in states.iter().zip(&sizes.states) {
            let Some(symbol) = state.before.as_symbol() else { return Ok(None) };
            let capacity = capacity_symbol(symbol)?.with_value(*capacity as i64);
            capacities.push(capacity.map_err(|e| olivine_ir::Error::BadData { problem: e.to_string() })?);
        }
        let graph = append_in_place(&graph, &states, &capacities)?;
        let prepared = self.prepare_graph(&graph)?;
        Ok(Some(Appending { prepared, states, sizes }))
    }
}

impl Appending {
    /// Moves states to memory of their capacity where they have less.
    pub(super) fn make_room(
        &self,
        session: &Session,
        movers: &Movers,
        inputs: &[&str],
        parts: &mut [Part],
    ) -> Result<(), Error> {
        for (state, (capacity, _)) in self.states.iter().zip(&self.sizes.states) {
            let Some(part) =
                parts.iter_mut().find(|part| inputs.get(state.input) == Some(&part.name.as_str()))
            else {
                continue;
            };
            part.set_capacity(state.axis, *capacity, session, movers)?;
        }
        Ok(())
    }

    /// For every growing state the position of its input, its axis and its size after the run.
    pub(super) fn after(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let sizes = self.sizes.states.iter().map(|(_, after)| *after);
        self.states.iter().zip(sizes).map(|(state, after)| (state.input, state.axis, after))
    }
}

/// Copies of tensors with another size along an axis: what serves all sizes of a kind of tensor is compiled once.
#[derive(Default)]
pub(super) struct Movers(Mutex<HashMap<(DType, usize, usize), Arc<Executable>>>);

impl Movers {
    /// The first `keep` positions of an axis, in a tensor of `size` positions; the others are zeros.
    pub(super) fn resized(
        &self,
        session: &Session,
        tensor: &DeviceTensor,
        axis: usize,
        keep: usize,
        size: usize,
    ) -> Result<DeviceTensor, Error> {
        let ty = tensor.ty();
        if keep == 0 || ty.shape.has_zero() {
            let mut to = ty;
            to.shape.set_number(axis, size);
            return session.upload(&Tensor::zeros_of(to)?);
        }
        let mover = {
            let mut compiled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match compiled.entry((ty.dtype, ty.shape.rank(), axis)) {
                Entry::Occupied(known) => known.get().clone(),
                Entry::Vacant(new) => {
                    let graph = mover(ty, axis, [keep, size])?;
                    new.insert(Arc::new(session.compile(&graph)?)).clone()
                }
            }
        };
        let nothing = |size: usize| session.upload(&Tensor::zeros(DType::U8, [size, 0])?);
        let (kept, room) = (nothing(keep)?, nothing(size)?);
        mover.run_resident([("x", tensor), ("kept", &kept), ("room", &room)])?.take("y")
    }
}

/// A copy of `x` for all sizes: the first `kept` positions of an axis, in a result of `room`. These two are sizes of inputs
/// without elements.
fn mover(ty: TensorType, axis: usize, [keep, size]: [usize; 2]) -> Result<Graph, Error> {
    let mut g = Graph::new("resize");
    let names = (0..ty.shape.rank()).map(|axis| Some(format!("size.{axis}"))).collect();
    let x = g.input_with_dims("x", ty.dtype, ty.shape.values(), names)?;
    let bound = |name: &str, size: usize| {
        let size = open_symbol(name)?.with_value(size as i64);
        size.map_err(|e| olivine_ir::Error::BadData { problem: e.to_string() })
    };
    for (name, size) in [("kept", keep), ("room", size)] {
        g.input_with_dims(name, DType::U8, [size, 0], vec![Some(name.to_string()), None])?;
    }
    let (kept, room) = (bound("kept", keep)?, bound("room", size)?);
    let start = g.slice(x, axis as isize, 0, kept, 1)?;
    let mut pads = vec![(Dim::ZERO, Dim::ZERO); ty.shape.rank()];
    pads[axis].1 = room - kept;
    let y = g.add_op(Pad { pads, mode: PadMode::Constant, value: 0.0 }, &[start])?;
    g.output("y", y[0])?;
    Ok(g)
}
