//! Elementwise ops that feed each other run together, in one pass over memory.
//!
//! Needs: any graph. Produces: `Fused` nodes, each over a connected group of elementwise ops of one shape; values inside
//! that are read elsewhere become further results.
//!
//! A group must be convex: no path may leave it and come back. Every node has a level that rises along each edge
//! between groups; a group's exits (members read outside) all have its highest level. A path out of an exit only meets
//! higher levels, so it cannot end in the group.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use olivine_ir::op::{Binary, Fused, ScalarOp, Unary};
use olivine_ir::{Def, Error, Graph, NodeId, Op, Shape, ValueId};

use super::edit::{Facts, sweep};
use super::region::{MAX_INPUTS, MAX_INSTRS, RegionBuilder};
use crate::{Options, Pass, Rewriter};

/// Results a region may have.
const MAX_OUTPUTS: usize = 4;

/// Members a group of smaller shape may have to be computed again at every position of a larger one.
const MAX_REPEATED: usize = 3;

/// The pass.
pub(super) struct FuseRegions;

impl Pass for FuseRegions {
    fn name(&self) -> &'static str {
        "regions"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        // Without dead nodes every member of a region leads to one of its results.
        let graph = &sweep(graph)?;
        let facts = Facts::new(graph);
        let mut regions = Vec::new();
        for members in group(&facts) {
            split_to_fit(&facts, members, &mut regions);
        }
        if regions.iter().all(|r| r.len() < 2) {
            return Ok(graph.clone());
        }
        let Some(order) = schedule(&facts, &regions) else { return Ok(graph.clone()) };
        let mut out = Rewriter::new(graph)?;
        for unit in order {
            match unit {
                Unit::Node(id) => out.copy(facts.node(id))?,
                Unit::Region(region) => emit(&mut out, &facts, &regions[region])?,
            }
        }
        out.finish()
    }
}

/// A group while it grows.
struct Group {
    members: Vec<NodeId>,
    shape: Shape,
    level: usize,
    /// Reads of members' results by anything that is not a member.
    outside_reads: usize,
    /// Whether every member costs next to nothing.
    cheap: bool,
}

/// Ops that cost less than the memory traffic they save.
fn is_cheap(op: ScalarOp) -> bool {
    matches!(
        op,
        ScalarOp::Cast(_)
            | ScalarOp::Bitcast(_)
            | ScalarOp::Compare(_)
            | ScalarOp::Where
            | ScalarOp::Unary(Unary::Neg | Unary::Abs | Unary::Not | Unary::Square | Unary::Relu)
            | ScalarOp::Binary(
                Binary::Add
                    | Binary::Sub
                    | Binary::Mul
                    | Binary::Max
                    | Binary::Min
                    | Binary::And
                    | Binary::Or
            )
    )
}

/// The groups' members, each list in graph order.
fn group(facts: &Facts<'_>) -> Vec<Vec<NodeId>> {
    let graph = facts.graph;
    let mut groups: Vec<Option<Group>> = Vec::new();
    let mut group_of: Vec<Option<usize>> = vec![None; graph.nodes().len()];
    let mut level = vec![0usize; graph.values().len()];
    for (index, node) in graph.nodes().iter().enumerate() {
        let Op::ScalarOp(op) = node.op else {
            // Past any other node the level rises, whatever made the operands.
            let reached = node.inputs.iter().map(|x| level[x.index()] + 1).max().unwrap_or(0);
            for y in &node.outputs {
                level[y.index()] = reached;
            }
            continue;
        };
        let result = node.outputs[0];
        let (joined, reached) = joinable(facts, &groups, &group_of, &level, NodeId(index as u32));
        let mut merged = Group {
            members: Vec::new(),
            shape: facts.shape(result),
            level: reached,
            outside_reads: facts.uses[result.index()],
            cheap: is_cheap(op),
        };
        // The longest list stays where it is and the others are appended: that bounds how often a node moves by the
        // logarithm of the count.
        let length = |g: &usize| groups[*g].as_ref().map_or(0, |group| group.members.len());
        let target = joined.iter().copied().max_by_key(length).unwrap_or(groups.len());
        for g in std::iter::once(target).chain(joined.into_iter().filter(|g| *g != target)) {
            let Some(group) = groups.get_mut(g).and_then(Option::take) else { continue };
            merged.outside_reads += group.outside_reads;
            merged.cheap &= group.cheap;
            if g == target {
                merged.members = group.members;
            } else {
                for m in &group.members {
                    group_of[m.index()] = Some(target);
                }
                merged.members.extend(group.members);
            }
        }
        let inside = node.inputs.iter().filter(|x| producer_in(facts, &group_of, target, **x)).count();
        merged.outside_reads -= inside.min(merged.outside_reads);
        merged.members.push(NodeId(index as u32));
        group_of[index] = Some(target);
        level[result.index()] = reached;
        if target == groups.len() {
            groups.push(Some(merged));
        } else {
            groups[target] = Some(merged);
        }
    }
    let mut lists: Vec<Vec<NodeId>> = groups.into_iter().flatten().map(|g| g.members).collect();
    lists.iter_mut().for_each(|members| members.sort_unstable());
    lists
}

fn producer_in(facts: &Facts<'_>, group_of: &[Option<usize>], group: usize, x: ValueId) -> bool {
    matches!(facts.graph.values()[x.index()].def, Def::Node { node, .. } if group_of[node.index()] == Some(group))
}

/// The groups among a node's operands that it may join, and its level if it joins them.
fn joinable(
    facts: &Facts<'_>,
    groups: &[Option<Group>],
    group_of: &[Option<usize>],
    level: &[usize],
    id: NodeId,
) -> (Vec<usize>, usize) {
    let node = facts.node(id);
    let shape = facts.shape(node.outputs[0]);
    let mut candidates: Vec<usize> = Vec::new();
    for x in &node.inputs {
        let Def::Node { node: maker, .. } = facts.graph.values()[x.index()].def else { continue };
        if let Some(g) = group_of[maker.index()]
            && facts.at_load[maker.index()] == facts.at_load[id.index()]
            && !candidates.contains(&g)
        {
            candidates.push(g);
        }
    }
    let reads_of = |g: usize| node.inputs.iter().filter(|x| producer_in(facts, group_of, g, **x)).count();
    let ends_here = |g: usize, group: &Group| group.outside_reads == reads_of(g);
    candidates.retain(|g| {
        groups[*g].as_ref().is_some_and(|group| {
            group.shape == shape
                || (group.cheap && group.members.len() <= MAX_REPEATED && ends_here(*g, group))
        })
    });
    loop {
        let reached = node
            .inputs
            .iter()
            .map(|x| match facts.graph.values()[x.index()].def {
                Def::Node { node: maker, .. } => match group_of[maker.index()] {
                    Some(g) if candidates.contains(&g) => groups[g].as_ref().map_or(0, |group| group.level),
                    _ => level[x.index()] + 1,
                },
                _ => 0,
            })
            .max()
            .unwrap_or(0);
        let before = candidates.len();
        candidates.retain(|g| {
            groups[*g].as_ref().is_some_and(|group| group.level == reached || ends_here(*g, group))
        });
        if candidates.len() == before {
            return (candidates, reached);
        }
    }
}

/// The values of a group that something outside reads, in graph order.
fn exits(facts: &Facts<'_>, members: &[NodeId]) -> Vec<ValueId> {
    let read_outside = |y: &ValueId| {
        facts.uses[y.index()] > facts.reads_by_nodes(*y)
            || facts.readers(*y).iter().any(|reader| members.binary_search(reader).is_err())
    };
    members.iter().map(|m| facts.node(*m).outputs[0]).filter(read_outside).collect()
}

/// Whether a region can hold a group.
fn is_region(facts: &Facts<'_>, members: &[NodeId]) -> bool {
    // Every member is an instruction.
    if members.len() > MAX_INSTRS {
        return false;
    }
    let mut builder = RegionBuilder::new(facts.graph);
    for m in members {
        builder.push(facts.node(*m));
    }
    let results = exits(facts, members);
    let shapes_agree = results.windows(2).all(|w| facts.shape(w[0]) == facts.shape(w[1]));
    builder.fits() && results.len() <= MAX_OUTPUTS && shapes_agree
}

/// Halves a group until every part is within the limits; the first half of a graph-ordered list is convex too.
fn split_to_fit(facts: &Facts<'_>, members: Vec<NodeId>, out: &mut Vec<Vec<NodeId>>) {
    if members.len() > 1 && !is_region(facts, &members) {
        let (first, second) = members.split_at(members.len() / 2);
        split_to_fit(facts, first.to_vec(), out);
        split_to_fit(facts, second.to_vec(), out);
    } else {
        out.push(members);
    }
}

#[derive(Clone, Copy)]
enum Unit {
    Node(NodeId),
    Region(usize),
}

/// An order of regions and other nodes in which all can run, near the graph's own.
fn schedule(facts: &Facts<'_>, regions: &[Vec<NodeId>]) -> Option<Vec<Unit>> {
    let count = facts.graph.nodes().len();
    let mut unit_of: Vec<usize> = (0..count).collect();
    for members in regions {
        // A region is named by its last member and, when it can choose, runs where that one stood.
        let last = members.last()?.index();
        for m in members {
            unit_of[m.index()] = last;
        }
    }
    let mut region_at: Vec<Option<usize>> = vec![None; count];
    for (r, members) in regions.iter().enumerate() {
        if members.len() > 1 {
            region_at[members.last()?.index()] = Some(r);
        }
    }
    // The other units that read a node's results, once for each node and value.
    let fed_by = |id: NodeId| {
        let own = unit_of[id.index()];
        let readers = facts.node(id).outputs.iter().flat_map(|y| facts.readers(*y));
        readers.map(|reader| unit_of[reader.index()]).filter(move |unit| *unit != own)
    };
    let mut waits = vec![0usize; count];
    (0..count as u32).flat_map(|i| fed_by(NodeId(i))).for_each(|unit| waits[unit] += 1);
    let units = (0..count).filter(|i| unit_of[*i] == *i);
    let mut ready: BinaryHeap<Reverse<usize>> = units.filter(|i| waits[*i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(count);
    let mut placed = 0;
    while let Some(Reverse(unit)) = ready.pop() {
        let alone = [NodeId(unit as u32)];
        let members: &[NodeId] = match region_at[unit] {
            Some(r) => {
                order.push(Unit::Region(r));
                &regions[r]
            }
            None => {
                order.push(Unit::Node(alone[0]));
                &alone
            }
        };
        placed += members.len();
        for next in members.iter().flat_map(|m| fed_by(*m)) {
            waits[next] -= 1;
            if waits[next] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    (placed == count).then_some(order)
}

fn emit(out: &mut Rewriter<'_>, facts: &Facts<'_>, members: &[NodeId]) -> Result<(), Error> {
    let results = exits(facts, members);
    let (Some(first), Some(last)) = (results.first(), members.last()) else { return Ok(()) };
    let build = |mut builder: RegionBuilder<'_>| {
        for m in members {
            builder.push(facts.node(*m));
        }
        builder.finish(&results)
    };
    let shape = facts.shape(*first);
    let (mut region, mut inputs) = build(RegionBuilder::new(facts.graph));
    let common = inputs.iter().try_fold(Shape::SCALAR, |acc, x| acc.broadcast(&facts.shape(*x)));
    if common != Some(shape) {
        // Some constant gave the result its rank, so constants stay operands.
        (region, inputs) = build(RegionBuilder::new(facts.graph).without_splats());
        if inputs.len() > MAX_INPUTS {
            return members.iter().try_for_each(|m| out.copy(facts.node(*m)));
        }
    }
    let operands = inputs.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
    let new = out.new.add_named(facts.node(*last).name.clone(), Fused { region }, &operands)?;
    for (old, new) in results.iter().zip(new) {
        out.bind(*old, new);
    }
    Ok(())
}
