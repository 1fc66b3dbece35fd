//! The loops of a stage.

use olivine_kernel::{Val, Var};

use super::memory::{Memory, Values, sums_in_memory};
use super::node::At;
use crate::expr::{Axes, Axis, Id, Node, Reduction};
use crate::gpu::Writer;
use crate::plan::Stage;

impl<'k> Writer<'k, '_> {
    /// Computes what an evaluation sums and stores; its scalar reductions end in their variables.
    pub(super) fn evaluate(&self, evaluation: Val<'k>) {
        let mut values = Values::new();
        let at = At { evaluation, obs: None, coord: None };
        for stage in &self.plan.stages {
            self.coords(stage, at, &mut values);
            if stage.is_pass() {
                self.observations(stage, at, &mut values);
                self.k.barrier();
                stage.coord_sums.iter().for_each(|id| self.coord_sum(*id, at, &mut values));
            }
        }
    }

    /// Computes the scalars that nodes need and that are not there yet.
    pub(super) fn scalars(&self, nodes: &[Id], at: At<'k>, values: &mut Values<'k>) {
        self.compute(&self.plan.scalars_of(nodes.iter().copied()), at, values);
        // Reductions are in their variables; they are read here, outside of the loops.
        for id in nodes.iter().flat_map(|id| self.plan.graph.node(*id).operands()) {
            if self.sums.contains_key(&id) {
                self.value(id, at, values);
            }
        }
    }

    fn reduction(&self, id: Id) -> (Reduction, Id) {
        match self.plan.graph.node(id) {
            Node::Reduce(how, _, x) => (*how, *x),
            _ => (Reduction::Sum, id),
        }
    }

    fn accumulators(&self, reductions: &[Id]) -> Vec<(Reduction, Id, Var<'k>)> {
        let accumulator = |id: &Id| {
            let (how, x) = self.reduction(*id);
            (how, x, self.k.var(self.identity(how)))
        };
        reductions.iter().map(accumulator).collect()
    }

    /// Combines accumulators over the workgroup into the variables of their reductions.
    fn finish_reductions(&self, reductions: &[Id], accumulators: &[(Reduction, Id, Var<'k>)]) {
        let parts: Vec<(Reduction, Val<'k>)> =
            accumulators.iter().map(|(how, _, var)| (*how, var.get())).collect();
        for (id, total) in reductions.iter().zip(self.reduce(&parts)) {
            if let Some(sum) = self.sums.get(id) {
                sum.set(total);
            }
        }
    }

    fn coords(&self, stage: &Stage, at: At<'k>, values: &mut Values<'k>) {
        if stage.coord_reductions.is_empty() && stage.coord_stores.is_empty() {
            return;
        }
        let k = self.k;
        let roots: Vec<Id> = stage.coord_reductions.iter().map(|id| self.reduction(*id).1).collect();
        let nodes = self.plan.closure(&roots, &stage.coord_stores, Axes::COORD);
        self.scalars(&nodes, at, values);
        let accumulators = self.accumulators(&stage.coord_reductions);
        let stores = self.plan.stores(Axis::Coord);
        k.for_(k.local_index(), self.io.d, k.u32(k.group()), |c| {
            let mut values = values.clone();
            let at = At { coord: Some(c), ..at };
            self.compute(&nodes, at, &mut values);
            for (how, x, total) in &accumulators {
                total.set(self.combine(*how, total.get(), self.value(*x, at, &mut values)));
            }
            for id in &stage.coord_stores {
                if let (Memory::Work(work), Some(i)) = (&self.io.memory, stores.iter().position(|x| x == id))
                {
                    work.buf.store(work.coord_stores + self.io.d * i + c, self.value(*id, at, &mut values));
                }
            }
        });
        self.finish_reductions(&stage.coord_reductions, &accumulators);
        k.barrier();
    }

    fn observations(&self, stage: &Stage, at: At<'k>, values: &mut Values<'k>) {
        if stage.obs_reductions.is_empty() && stage.obs_stores.is_empty() {
            return;
        }
        let k = self.k;
        let roots: Vec<Id> = stage.obs_reductions.iter().map(|id| self.reduction(*id).1).collect();
        let nodes = self.plan.closure(&roots, &stage.obs_stores, Axes::OBS);
        self.scalars(&nodes, at, values);
        for id in &nodes {
            if let Node::Reduce(_, _, x) = *self.plan.graph.node(*id) {
                self.scalars(&self.plan.body(x), at, values);
            }
        }
        let accumulators = self.accumulators(&stage.obs_reductions);
        let stores = self.plan.stores(Axis::Obs);
        // A subgroup for each observation where sums over many coordinates are inside.
        let inner = nodes.iter().any(|id| matches!(self.plan.graph.node(*id), Node::Reduce(..)));
        let together = inner && self.lanes > 1;
        let (first, step) = match together {
            true => (k.subgroup_id(), k.group() / self.lanes),
            false => (k.local_index(), k.group()),
        };
        let (begin, end) = self.io.obs;
        k.for_(begin + first, end, k.u32(step), |n| {
            let mut values = values.clone();
            let at = At { obs: Some(n), ..at };
            self.compute(&nodes, at, &mut values);
            let results: Vec<Val<'k>> =
                accumulators.iter().map(|(_, x, _)| self.value(*x, at, &mut values)).collect();
            let stored: Vec<Val<'k>> =
                stage.obs_stores.iter().map(|id| self.value(*id, at, &mut values)).collect();
            let take = || {
                for ((how, _, total), value) in accumulators.iter().zip(&results) {
                    total.set(self.combine(*how, total.get(), *value));
                }
                for (id, value) in stage.obs_stores.iter().zip(&stored) {
                    if let (Memory::Work(work), Some(i)) =
                        (&self.io.memory, stores.iter().position(|x| x == id))
                    {
                        work.buf.store(work.stores_at(at.evaluation) + self.io.n_obs * i + n, *value);
                    }
                }
            };
            if together {
                k.if_(k.lane().eq(0), take);
            } else {
                take();
            }
        });
        self.finish_reductions(&stage.obs_reductions, &accumulators);
    }

    /// A sum over the workgroup's observations for each coordinate. Several threads share a coordinate where there are
    /// fewer coordinates than threads.
    fn coord_sum(&self, id: Id, at: At<'k>, values: &mut Values<'k>) {
        let Node::Reduce(how, _, body) = *self.plan.graph.node(id) else { return };
        let (k, io) = (self.k, &self.io);
        let sums = sums_in_memory(self.plan);
        let (Memory::Work(work), Some(i)) = (&io.memory, sums.iter().position(|x| *x == id)) else { return };
        self.scalars(&self.plan.body(body), at, values);
        let values = &*values;
        let (begin, end) = io.obs;
        let sum = |c: Val<'k>, first: Val<'k>, step: u32| {
            let total = k.var(self.identity(how));
            k.for_(begin + first, end, k.u32(step), |n| {
                let mut inner = values.clone();
                let at = At { obs: Some(n), coord: Some(c), ..at };
                self.compute(&self.plan.body(body), at, &mut inner);
                total.set(self.combine(how, total.get(), self.value(body, at, &mut inner)));
            });
            total
        };
        let to = work.sums_at(at.evaluation) + (work.group * sums.len() + i) * io.d;
        let Some((shared, width)) = self.coord_lanes else {
            k.for_(k.local_index(), io.d, k.u32(k.group()), |c| {
                let total = sum(c, k.u32(0), 1);
                work.buf.store(to + c, total.get());
            });
            return;
        };
        let me = k.local_index();
        let (c, lane, lanes) = (me % width, me / width, k.group() / width);
        // Threads past the last coordinate sum it too, and drop the result.
        let last = io.d - 1;
        let total = sum(c.min(last), lane, lanes);
        k.barrier();
        shared.store(me, total.get());
        k.barrier();
        k.if_(me.lt(io.d), || {
            let mut total = shared.load(me);
            for lane in 1..lanes {
                total = self.combine(how, total, shared.load(me + lane * width));
            }
            work.buf.store(to + me, total);
        });
    }
}
