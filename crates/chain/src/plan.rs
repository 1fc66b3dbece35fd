//! When every value of a gradient is computed, and which ones go through memory. The CPU's tapes and the GPU's kernels
//! follow the same plan.
//!
//! ```text
//!   for each stage:   scalars ─ coordinates ─ observations ─ sums over observations for each coordinate
//!   then:             the density, the gradient
//! ```
//!
//! A scalar reduction ends a stage. What has both axes lives inside the inner loop of a reduction only.

use std::collections::BTreeSet;

use crate::Error;
use crate::expr::{Axes, Axis, Graph, Id, Node};
use crate::gradient::Gradient;

/// Scalar reductions of one stage, which are registers of a GPU's invocation.
const MAX_REDUCTIONS: usize = 512;

/// What happens between two meetings of all threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stage {
    /// Scalars to compute first, operands before users.
    pub(crate) scalars: Vec<Id>,
    /// Reductions over coordinates that give scalars.
    pub(crate) coord_reductions: Vec<Id>,
    /// Values of coordinates to store.
    pub(crate) coord_stores: Vec<Id>,
    /// Reductions over observations that give scalars.
    pub(crate) obs_reductions: Vec<Id>,
    /// Values of observations to store.
    pub(crate) obs_stores: Vec<Id>,
    /// Reductions over observations, and scatters, that give a value for each coordinate.
    pub(crate) coord_sums: Vec<Id>,
}

impl Stage {
    /// Whether it goes through the observations.
    pub(crate) fn is_pass(&self) -> bool {
        !(self.obs_reductions.is_empty() && self.obs_stores.is_empty() && self.coord_sums.is_empty())
    }
}

/// A gradient in stages.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) graph: Graph,
    pub(crate) stages: Vec<Stage>,
    /// Scalars to compute after the last stage.
    pub(crate) last_scalars: Vec<Id>,
    pub(crate) value: Id,
    pub(crate) dense: Option<Id>,
    pub(crate) at: Vec<(u32, Id)>,
    /// The stage in which a value can be computed, by node.
    times: Vec<usize>,
    stored: Vec<bool>,
}

impl Plan {
    pub(crate) fn new(gradient: &Gradient) -> Result<Self, Error> {
        let graph = gradient.graph.clone();
        let mut roots = vec![gradient.value];
        roots.extend(gradient.dense);
        roots.extend(gradient.at.iter().map(|(_, id)| *id));
        let needed = graph.reachable(&roots);
        let mut plan = Plan {
            times: times(&graph, &needed),
            stored: vec![false; graph.nodes().len()],
            graph,
            stages: Vec::new(),
            last_scalars: Vec::new(),
            value: gradient.value,
            dense: gradient.dense,
            at: gradient.at.clone(),
        };
        plan.choose_stores(&needed);
        plan.fill(&needed);
        for stage in &plan.stages {
            if stage.obs_reductions.len() > MAX_REDUCTIONS || stage.coord_reductions.len() > MAX_REDUCTIONS {
                return Err(Error::TooLarge { what: "sums that scalars depend on", limit: MAX_REDUCTIONS });
            }
        }
        Ok(plan)
    }

    /// Passes over the observations that one evaluation takes.
    pub(crate) fn passes(&self) -> usize {
        self.stages.iter().filter(|s| s.is_pass()).count()
    }

    pub(crate) fn is_stored(&self, id: Id) -> bool {
        self.stored[id.index()]
    }

    /// Whether a value can be loaded wherever it is needed: it is data, stored, or summed for each coordinate.
    pub(crate) fn is_loaded(&self, id: Id) -> bool {
        self.stored[id.index()] || is_leaf(&self.graph, id) || is_coord_sum(&self.graph, id)
    }

    /// Values that are stored and have an axis, in order.
    pub(crate) fn stores(&self, axis: Axis) -> Vec<Id> {
        let of = |s: &Stage| if axis == Axis::Obs { s.obs_stores.clone() } else { s.coord_stores.clone() };
        self.stages.iter().flat_map(of).collect()
    }

    /// Sums for each coordinate, in order.
    pub(crate) fn coord_sums(&self) -> Vec<Id> {
        self.stages.iter().flat_map(|s| s.coord_sums.clone()).collect()
    }

    /// What must be computed with one axis for these roots, operands first: no scalars, nothing that is loaded except
    /// what this stage itself stores, and not the bodies of inner reductions.
    pub(crate) fn closure(&self, roots: &[Id], stores: &[Id], axes: Axes) -> Vec<Id> {
        let mut seen = BTreeSet::new();
        let mut open: Vec<Id> = roots.iter().chain(stores).copied().collect();
        while let Some(id) = open.pop() {
            let loaded = self.is_loaded(id) && !stores.contains(&id);
            if self.graph.axes(id) != axes || loaded || !seen.insert(id) {
                continue;
            }
            match self.graph.node(id) {
                // The operands of the body that have this axis are needed before.
                Node::Reduce(_, _, x) => open.extend(self.frontier(*x, axes)),
                node => open.extend(node.operands()),
            }
        }
        seen.into_iter().collect()
    }

    /// The scalars that nodes depend on, and those that these depend on, operands first; no reductions.
    pub(crate) fn scalars_of(&self, nodes: impl IntoIterator<Item = Id>) -> Vec<Id> {
        let mut seen = BTreeSet::new();
        let is_scalar = |id: &Id| self.graph.axes(*id) == Axes::NONE;
        let operands = |id: Id| match self.graph.node(id) {
            Node::Reduce(_, _, x) if self.graph.axes(*x) == Axes::BOTH => {
                self.body(*x).into_iter().flat_map(|b| self.graph.node(b).operands()).collect()
            }
            node => node.operands(),
        };
        let mut open: Vec<Id> = Vec::new();
        for id in nodes {
            if is_scalar(&id) {
                open.push(id)
            } else {
                open.extend(operands(id).into_iter().filter(is_scalar))
            }
        }
        while let Some(id) = open.pop() {
            if !matches!(self.graph.node(id), Node::Reduce(..)) && seen.insert(id) {
                open.extend(self.graph.node(id).operands());
            }
        }
        seen.into_iter().collect()
    }

    /// The values of these axes that a body with both axes reads.
    pub(crate) fn frontier(&self, body: Id, axes: Axes) -> Vec<Id> {
        let mut found = BTreeSet::new();
        let (mut seen, mut open) = (BTreeSet::new(), vec![body]);
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            match self.graph.axes(id) {
                Axes::BOTH => open.extend(self.graph.node(id).operands()),
                a if a == axes => {
                    found.insert(id);
                }
                _ => {}
            }
        }
        found.into_iter().collect()
    }

    /// The nodes with both axes that a body is made of, operands first.
    pub(crate) fn body(&self, root: Id) -> Vec<Id> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![root]);
        while let Some(id) = open.pop() {
            if self.graph.axes(id) == Axes::BOTH && seen.insert(id) {
                open.extend(self.graph.node(id).operands());
            }
        }
        seen.into_iter().collect()
    }

    /// Values that inner loops read from memory because another loop made them.
    fn choose_stores(&mut self, needed: &[Id]) {
        for id in needed {
            match *self.graph.node(*id) {
                Node::Reduce(_, axis, x) if self.graph.axes(x) == Axes::BOTH => {
                    for c in self.frontier(x, Axes::COORD) {
                        self.stored[c.index()] |= !is_leaf(&self.graph, c) && !is_coord_sum(&self.graph, c);
                    }
                    if axis == Axis::Obs {
                        for o in self.frontier(x, Axes::OBS) {
                            self.stored[o.index()] |= !is_leaf(&self.graph, o);
                        }
                    }
                }
                Node::Scatter(x, _) if self.graph.axes(x) == Axes::OBS => {
                    self.stored[x.index()] |= !is_leaf(&self.graph, x);
                }
                _ => {}
            }
        }
        // A reduction over coordinates for each observation is dear: later stages read it.
        for id in needed {
            for x in self.graph.node(*id).operands() {
                let inner = matches!(self.graph.node(x), Node::Reduce(_, Axis::Coord, _))
                    && self.graph.axes(x) == Axes::OBS;
                if inner && self.times[id.index()] > self.times[x.index()] {
                    self.stored[x.index()] = true;
                }
            }
        }
    }

    fn fill(&mut self, needed: &[Id]) {
        let last = needed.iter().map(|id| self.times[id.index()]).max().unwrap_or(0);
        let mut stages = vec![Stage::default(); last + 1];
        for &id in needed {
            let time = self.times[id.index()];
            let axes = self.graph.axes(id);
            let stage = &mut stages[time];
            if self.stored[id.index()] {
                if axes == Axes::OBS { stage.obs_stores.push(id) } else { stage.coord_stores.push(id) }
            }
            match *self.graph.node(id) {
                Node::Reduce(_, axis, x) if axes == Axes::NONE => {
                    let stage = &mut stages[self.times[x.index()]];
                    match axis {
                        Axis::Obs => stage.obs_reductions.push(id),
                        Axis::Coord => stage.coord_reductions.push(id),
                    }
                }
                _ if is_coord_sum(&self.graph, id) => {
                    // Its time is the stage after the one that sums.
                    stages[time - 1].coord_sums.push(id);
                }
                _ if axes == Axes::NONE => stage.scalars.push(id),
                _ => {}
            }
        }
        let idle = |s: &Stage| !s.is_pass() && s.coord_reductions.is_empty() && s.coord_stores.is_empty();
        while stages.last().is_some_and(idle) {
            if let Some(stage) = stages.pop() {
                self.last_scalars.splice(0..0, stage.scalars);
            }
        }
        self.stages = stages;
    }
}

/// Whether a value with one axis is there from the beginning.
fn is_leaf(graph: &Graph, id: Id) -> bool {
    graph.node(id).operands().is_empty()
}

/// Whether a value of coordinates is summed over observations.
pub(crate) fn is_coord_sum(graph: &Graph, id: Id) -> bool {
    match graph.node(id) {
        Node::Scatter(..) => true,
        Node::Reduce(_, Axis::Obs, _) => graph.axes(id) == Axes::COORD,
        _ => false,
    }
}

/// The first stage in which each value can be computed.
fn times(graph: &Graph, needed: &[Id]) -> Vec<usize> {
    let mut times = vec![0; graph.nodes().len()];
    for id in needed {
        let node = graph.node(*id);
        let latest = node.operands().iter().map(|x| times[x.index()]).max().unwrap_or(0);
        let ends_stage =
            is_coord_sum(graph, *id) || (matches!(node, Node::Reduce(..)) && graph.axes(*id) == Axes::NONE);
        times[id.index()] = latest + usize::from(ends_stage);
    }
    times
}
