//! Weights that stay packed: constants and params that nodes read as elements of few bits.

use std::collections::HashMap;

use olivine_ir::op::Granularity;
use olivine_ir::{BlockFormat, Def, Graph, Op, Tensor, TensorType, ValueId};

use super::walk::Walk;
use super::{Answer, TensorRef};
use crate::error::Error;
use crate::stored::{PackedView, packed};

/// A weight of the model's, as it is stored.
#[derive(Clone)]
pub(crate) enum Stored {
    /// A constant of the graph.
    Const(Tensor),
    /// A weight by name.
    Weight(String),
}

/// A matrix of few bits behind reals: `(element − zero)·scale`.
#[derive(Clone)]
pub(crate) struct Dequantised {
    pub(crate) stored: Stored,
    pub(crate) format: BlockFormat,
    /// Its sizes, as it is stored.
    pub(crate) dims: [usize; 2],
    pub(crate) scales: ValueId,
    pub(crate) zero: Option<ValueId>,
    pub(crate) granularity: Granularity,
    /// Whether the reals have the axes the other way round.
    pub(crate) transposed: bool,
}

impl Walk<'_> {
    /// Notes what stands behind a value of the graph that nodes are added to now.
    pub(crate) fn note_dequantised(&mut self, id: ValueId, matrix: Dequantised) {
        let frame = self.depth();
        self.dequantised.insert((frame, id), matrix);
    }

    /// The matrix of few bits behind a value.
    pub(crate) fn dequantised(&self, held: TensorRef) -> Option<&Dequantised> {
        let here = held.frame == self.depth();
        self.dequantised.get(&(held.frame, held.id)).filter(|_| here)
    }

    /// The constant or weight whose elements a value has, in the same order.
    ///
    /// Bodies take what is large as inputs, which cannot be packed: there, a weight is none.
    pub(crate) fn stored(&self, held: TensorRef) -> Option<Stored> {
        let graph = &self.frames.get(held.frame)?.graph;
        let mut id = held.id;
        loop {
            match &graph.value(id).ok()?.def {
                Def::Const(tensor) => return Some(Stored::Const(tensor.clone())),
                Def::Param { name } if self.depth() == 0 => return Some(Stored::Weight(name.clone())),
                Def::Node { .. } => match graph.producer(id) {
                    Some(node) if matches!(node.op, Op::Reshape(_)) => id = *node.inputs.first()?,
                    _ => return None,
                },
                Def::Param { .. } | Def::Input { .. } => return None,
            }
        }
    }

    /// A weight as a value of a packed type in the graph that nodes are added to now; `None` where its elements cannot be
    /// read so.
    pub(crate) fn packed(
        &mut self,
        stored: &Stored,
        ty: TensorType,
        transposed: bool,
    ) -> Answer<Option<ValueId>> {
        let name = match stored {
            Stored::Const(tensor) => {
                let tensor = packed(tensor, ty, transposed).ok();
                return Ok(tensor.map(|tensor| self.graph().constant(tensor)));
            }
            Stored::Weight(name) => name.clone(),
        };
        let Some(name) = self.model.packed_view(PackedView { source: name, ty, transposed }) else {
            return Ok(None);
        };
        let graph = self.graph();
        let known = graph.param_named(&name);
        let param = known.map_or_else(|| graph.param_of(&name, ty), Ok);
        param.map(Some).map_err(|e| Error::invalid(format!("weight `{name}`"), e.to_string()).into())
    }
}

/// A graph without the params that no output follows from: a weight that is read packed need not be there as it was
/// declared.
pub(super) fn with_read_params(graph: Graph) -> Result<Graph, olivine_ir::Error> {
    let mut is_read = vec![false; graph.values().len()];
    graph.outputs().iter().for_each(|output| is_read[output.value.index()] = true);
    for node in graph.nodes().iter().rev().filter(|node| !node.outputs.is_empty()) {
        if node.outputs.iter().any(|id| is_read[id.index()]) {
            node.inputs.iter().for_each(|id| is_read[id.index()] = true);
        }
    }
    if graph.params().all(|(_, id)| is_read[id.index()]) {
        return Ok(graph);
    }
    let mut new = Graph::new(graph.name());
    let mut there: HashMap<ValueId, ValueId> = HashMap::new();
    for id in graph.ids() {
        let value = graph.value(id)?;
        let copy = match &value.def {
            Def::Input { name, dims } => new.input_of(name, value.ty, dims.clone())?,
            Def::Param { name } if is_read[id.index()] => new.param_of(name, value.ty)?,
            Def::Const(tensor) if is_read[id.index()] => new.constant(tensor.clone()),
            _ => continue,
        };
        there.insert(id, copy);
    }
    let lost = || olivine_ir::Error::Invalid {
        location: "import".into(),
        problem: "a value that is read is not there".into(),
    };
    for node in graph.nodes().iter().filter(|node| node.outputs.iter().any(|id| is_read[id.index()])) {
        let operands = node.inputs.iter().map(|id| there.get(id).copied().ok_or_else(lost));
        let operands = operands.collect::<Result<Vec<_>, _>>()?;
        let results = new.add_named(node.name.clone(), node.op.clone(), &operands)?;
        there.extend(node.outputs.iter().copied().zip(results));
    }
    for output in graph.outputs() {
        new.output(&output.name, there.get(&output.value).copied().ok_or_else(lost)?)?;
    }
    Ok(new)
}
