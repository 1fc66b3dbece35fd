//! A plan as tapes.

use super::tape::{Body, Tape, Writer};
use crate::data::Layout;
use crate::expr::{Axes, Axis, Id, Node, Reduction};
use crate::plan::Plan;

/// A stage as tapes.
#[derive(Clone, Debug)]
pub(super) struct StageTapes {
    /// Over the coordinates.
    pub(super) coords: Option<Tape>,
    /// Reductions over the coordinates: which, how and of what.
    pub(super) coord_reductions: Vec<(Id, Reduction, Id)>,
    /// Values of coordinates to store, with the number of the store.
    pub(super) coord_stores: Vec<(usize, Id)>,
    /// Over the observations.
    pub(super) obs: Option<Tape>,
    pub(super) obs_reductions: Vec<(Id, Reduction, Id)>,
    pub(super) obs_stores: Vec<(usize, Id)>,
    pub(super) sums: Vec<CoordSum>,
}

/// A sum over the observations for each coordinate.
#[derive(Clone, Debug)]
pub(super) enum CoordSum {
    /// Of terms with both axes.
    Terms(Reduction, Body),
    /// Of a value of the observations, by the index at this element.
    Scatter(Id, usize),
}

/// A plan as tapes, for data of one layout.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(super) plan: Plan,
    pub(super) layout: Layout,
    pub(super) stages: Vec<StageTapes>,
    /// The gradient of each coordinate, where it is an expression over coordinates.
    pub(super) dense: Option<Tape>,
    /// Registers of each tape.
    pub(super) files: Vec<usize>,
}

impl Program {
    pub(crate) fn new(plan: &Plan, layout: &Layout) -> Self {
        let mut writer = Writer { plan, layout, files: Vec::new() };
        let (obs_stores, coord_stores) = (plan.stores(Axis::Obs), plan.stores(Axis::Coord));
        let number = |all: &[Id], ids: &[Id]| -> Vec<(usize, Id)> {
            ids.iter().filter_map(|id| Some((all.iter().position(|x| x == id)?, *id))).collect()
        };
        let reductions = |ids: &[Id]| -> Vec<(Id, Reduction, Id)> {
            let reduction = |id: &Id| match plan.graph.node(*id) {
                Node::Reduce(how, _, x) => Some((*id, *how, *x)),
                _ => None,
            };
            ids.iter().filter_map(reduction).collect()
        };
        let mut stages = Vec::new();
        for stage in &plan.stages {
            let coord_reductions = reductions(&stage.coord_reductions);
            let obs_reductions = reductions(&stage.obs_reductions);
            let mut sums: Vec<CoordSum> =
                stage.coord_sums.iter().map(|id| coord_sum(&mut writer, *id)).collect();
            let args = |all: &[(Id, Reduction, Id)]| all.iter().map(|(_, _, x)| *x).collect::<Vec<_>>();
            let coords = tape(&mut writer, &args(&coord_reductions), &stage.coord_stores, Axes::COORD);
            let mut outputs = args(&obs_reductions);
            for sum in &sums {
                match sum {
                    CoordSum::Terms(_, body) => outputs.extend(body.outer()),
                    CoordSum::Scatter(x, _) => outputs.push(*x),
                }
            }
            let has_sums = !sums.is_empty();
            let mut obs = tape(&mut writer, &outputs, &stage.obs_stores, Axes::OBS);
            if obs.is_none() && has_sums {
                obs = Some(writer.tape(&[], &[]));
            }
            for sum in &mut sums {
                if let (CoordSum::Terms(_, body), Some(tape)) = (sum, &obs) {
                    body.read_from(tape);
                }
            }
            stages.push(StageTapes {
                coords,
                coord_reductions,
                coord_stores: number(&coord_stores, &stage.coord_stores),
                obs,
                obs_reductions,
                obs_stores: number(&obs_stores, &stage.obs_stores),
                sums,
            });
        }
        let dense = plan.dense.and_then(|id| tape(&mut writer, &[id], &[], Axes::COORD));
        let files = writer.files;
        Program { plan: plan.clone(), layout: layout.clone(), stages, dense, files }
    }
}

/// The tape of one loop of a stage; `None` if there is nothing to compute.
fn tape(writer: &mut Writer<'_>, roots: &[Id], stores: &[Id], axes: Axes) -> Option<Tape> {
    let mut outputs: Vec<Id> = roots.iter().chain(stores).copied().collect();
    outputs.sort_unstable();
    outputs.dedup();
    if outputs.is_empty() {
        return None;
    }
    let nodes = writer.plan.closure(roots, stores, axes);
    Some(writer.tape(&nodes, &outputs))
}

fn coord_sum(writer: &mut Writer<'_>, id: Id) -> CoordSum {
    match *writer.plan.graph.node(id) {
        Node::Scatter(x, index) => CoordSum::Scatter(x, writer.layout.offset(index as usize)),
        Node::Reduce(how, _, x) => CoordSum::Terms(how, writer.body(x)),
        // A plan has no others.
        _ => CoordSum::Terms(Reduction::Sum, writer.body(id)),
    }
}
