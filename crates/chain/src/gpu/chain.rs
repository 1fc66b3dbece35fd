//! The integrator as a kernel.
//!
//! Iteration `s` finishes evaluation `s − 1`, writes its row and moves the state, then evaluates at the new position:
//! the gradient at the end of a step is that at the beginning of the next. There are K + 1 evaluations, and one more
//! iteration that only finishes.

use std::collections::BTreeMap;

use olivine_kernel::{Builder, Elem, Scalar, Shared, Val, Var};
use olivine_kernels::float;

use super::memory::{Io, Memory, Values, reductions};
use super::node::At;
use crate::expr::{Axes, Axis, Id, Reduction};
use crate::plan::Plan;

/// Writes a chain's kernel.
pub(crate) struct Writer<'k, 'p> {
    pub(super) k: &'k Builder,
    pub(super) plan: &'p Plan,
    pub(super) scalar: Scalar,
    pub(super) io: Io<'k>,
    /// Scalar reductions of the last evaluation.
    pub(super) sums: BTreeMap<Id, Var<'k>>,
    /// Memory of reductions over the workgroup.
    pub(super) shared: Option<Shared<'k>>,
    /// Lanes that share the sum over coordinates of one observation.
    pub(super) lanes: u32,
    /// Where there are fewer coordinates than threads: a power of two that is not less, and memory to share sums.
    pub(super) coord_lanes: Option<(Shared<'k>, u32)>,
}

impl<'k, 'p> Writer<'k, 'p> {
    /// A writer for a kernel of f32 or f64.
    pub(crate) fn new(k: &'k Builder, plan: &'p Plan, scalar: Scalar, io: Io<'k>) -> Self {
        let mut writer =
            Writer { k, plan, scalar, io, sums: BTreeMap::new(), shared: None, lanes: 1, coord_lanes: None };
        let zero = writer.number(0.0);
        writer.sums = reductions(plan).into_iter().map(|(id, _)| (id, k.var(zero))).collect();
        let together = |s: &crate::plan::Stage| s.coord_reductions.len().max(s.obs_reductions.len());
        let most = plan.stages.iter().map(together).max().unwrap_or(0);
        let several = matches!(&writer.io.memory, Memory::Work(work) if work.groups > 1);
        let most = if several { most.max(writer.sums.len()) } else { most };
        writer.shared = writer.reduction_memory(most as u32);
        writer
    }

    /// Says that positions have about so many coordinates: who shares loops over them.
    pub(crate) fn for_coords(mut self, d: usize) -> Self {
        let group = self.k.group();
        if let Some(size) = self.k.target().subgroup
            && size <= group
            && d as u64 * 2 >= u64::from(size)
        {
            self.lanes = size;
        }
        let width = d.next_power_of_two() as u32;
        if width < group && !super::memory::sums_in_memory(self.plan).is_empty() {
            self.coord_lanes = Some((self.k.shared(self.elem(), 1, group), width));
        }
        self
    }

    pub(super) fn elem(&self) -> Elem {
        if self.scalar == Scalar::F64 { Elem::F64 } else { Elem::F32 }
    }

    /// Writes the iterations from `first` below `end`.
    pub(crate) fn write(&self, first: Val<'k>, end: Val<'k>) {
        let k = self.k();
        if matches!(self.io.memory, Memory::Work(_)) {
            k.if_(first.gt(0), || self.load_sums(first - 1));
        }
        k.for_(first, end, k.u32(1), |s| {
            k.if_else(s.eq(0), || self.begin(s), || self.finish(s));
            k.barrier();
            k.if_(s.le(self.io.steps), || {
                self.evaluate(s);
                k.barrier();
            });
        });
        self.store_sums(end - 1);
    }

    fn each_coord(&self, write: impl FnOnce(Val<'k>)) {
        let k = self.k;
        k.for_(k.local_index(), self.io.d, k.u32(k.group()), write);
    }

    /// The state at the beginning.
    fn begin(&self, s: Val<'k>) {
        self.each_coord(|c| {
            let ((q, first_q), (p, first_p)) = (self.io.q, self.io.p);
            self.store_state(0, s, c, q.load(first_q + c));
            self.store_state(1, s, c, p.load(first_p + c));
        });
    }

    /// The results of evaluation `s − 1`, and the state for evaluation `s`.
    fn finish(&self, s: Val<'k>) {
        let (k, io, plan) = (self.k, &self.io, self.plan);
        let before = s - 1;
        let at = At { evaluation: before, obs: None, coord: None };
        let nodes = plan.dense.map_or(Vec::new(), |id| plan.closure(&[id], &[], Axes::COORD));
        let mut values = Values::new();
        let mut needed = nodes.clone();
        needed.push(plan.value);
        needed.extend(plan.at.iter().map(|(_, id)| *id));
        needed.extend(plan.dense.filter(|id| plan.graph.axes(*id) == Axes::NONE));
        self.scalars(&needed, at, &mut values);
        let density = self.value(plan.value, at, &mut values);
        let single: Vec<(u32, Val<'k>)> =
            plan.at.iter().map(|(i, id)| (*i, self.value(*id, at, &mut values))).collect();
        // All have read the position before anyone moves it.
        k.barrier();
        let has_row = s.gt(1) & io.writes;
        k.if_(has_row & k.local_index().eq(0), || {
            io.rows.density.store(io.rows.first_density + s - 2, density);
        });
        let half = io.step_size * self.number(0.5);
        self.each_coord(|c| {
            let mut values = values.clone();
            let at = At { coord: Some(c), ..at };
            self.compute(&nodes, at, &mut values);
            let mut gradient = plan.dense.map_or(self.number(0.0), |id| self.value(id, at, &mut values));
            for (i, part) in &single {
                let here = float::pick(c.eq(*i), *part, self.number(0.0));
                gradient = gradient + here;
            }
            let (q, p) = (self.load_state(0, before, c), self.load_state(1, before, c));
            let kick = half * gradient;
            // The first evaluation begins a step and ends none.
            let p = float::pick(s.eq(1), p, p + kick);
            k.if_(has_row, || {
                let at = io.rows.first + (s - 2) * io.d + c;
                io.rows.q.store(at, q);
                io.rows.p.store(at, p);
                io.rows.gradient.store(at, gradient);
            });
            k.if_(s.le(io.steps), || {
                let p = p + kick;
                let (masses, first) = io.inverse_mass;
                self.store_state(1, s, c, p);
                self.store_state(0, s, c, q + io.step_size * (masses.load(first + c) * p));
            });
        });
    }

    /// The reductions of an evaluation of an earlier dispatch: the sum of all workgroups' over observations, the
    /// workgroup's own over coordinates.
    fn load_sums(&self, evaluation: Val<'k>) {
        let Memory::Work(work) = &self.io.memory else { return };
        let all = reductions(self.plan);
        if all.is_empty() {
            return;
        }
        let (k, count) = (self.k, all.len() as u32);
        let first = work.partials_at(evaluation);
        let own = |i: u32| work.buf.load(first + work.group * count + i);
        let shared: Vec<(u32, Id, Reduction)> = (0u32..)
            .zip(&all)
            .filter(|(_, (_, axis))| *axis == Axis::Obs && work.groups > 1)
            .map(|(i, (id, _))| (i, *id, self.how(*id)))
            .collect();
        for (i, (id, _)) in (0u32..).zip(&all) {
            if !shared.iter().any(|(j, ..)| *j == i)
                && let Some(sum) = self.sums.get(id)
            {
                sum.set(own(i));
            }
        }
        if shared.is_empty() {
            return;
        }
        let parts: Vec<Var<'k>> = shared.iter().map(|(_, _, how)| k.var(self.identity(*how))).collect();
        k.for_(k.local_index(), k.u32(work.groups), k.u32(k.group()), |group| {
            for ((i, _, how), part) in shared.iter().zip(&parts) {
                part.set(self.combine(*how, part.get(), work.buf.load(first + group * count + *i)));
            }
        });
        let parts: Vec<(Reduction, Val<'k>)> =
            shared.iter().zip(&parts).map(|((_, _, how), part)| (*how, part.get())).collect();
        for ((_, id, _), total) in shared.iter().zip(self.reduce(&parts)) {
            if let Some(sum) = self.sums.get(id) {
                sum.set(total);
            }
        }
    }

    fn how(&self, id: Id) -> Reduction {
        match self.plan.graph.node(id) {
            crate::expr::Node::Reduce(how, ..) => *how,
            _ => Reduction::Sum,
        }
    }

    /// Hands the reductions of the last evaluation to the next dispatch.
    fn store_sums(&self, evaluation: Val<'k>) {
        let Memory::Work(work) = &self.io.memory else { return };
        let all = reductions(self.plan);
        let first = work.partials_at(evaluation) + work.group * all.len();
        self.k.if_(self.k.local_index().eq(0), || {
            for (i, (id, _)) in (0u32..).zip(&all) {
                if let Some(sum) = self.sums.get(id) {
                    work.buf.store(first + i, sum.get());
                }
            }
        });
    }
}
