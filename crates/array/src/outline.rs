//! A graph before it is built: operations that wait, numbered as the graph's values will be. Most graphs ran before, and an
//! outline finds their executable without building them again.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use olivine_ir::op::ScalarOp;
use olivine_ir::{Def, Graph, Op, TensorType, ValueId};

use crate::Error;
use crate::node::{Node, Operand, Work};

/// Operations in the order in which a graph will have them.
pub(crate) struct Outline<'a> {
    order: &'a [(Arc<Node>, Arc<Work>)],
    /// The values' types, in the order of their numbers: inputs come where they are first read.
    types: Vec<TensorType>,
    /// The numbers of all operands, one operation after another.
    operands: Vec<ValueId>,
    /// The numbers of the inputs, and what they hold.
    input_ids: Vec<ValueId>,
    inputs: Vec<Operand>,
    outputs: Vec<ValueId>,
}

impl<'a> Outline<'a> {
    /// Numbers operations whose order puts operands first; all results of `kept` are outputs.
    pub(crate) fn new(order: &'a [(Arc<Node>, Arc<Work>)], kept: &[Arc<Node>]) -> Result<Self, Error> {
        let mut outline = Outline {
            order,
            types: Vec::with_capacity(2 * order.len()),
            operands: Vec::with_capacity(2 * order.len()),
            input_ids: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::with_capacity(kept.len()),
        };
        let mut numbers: HashMap<(*const Node, usize), ValueId> = HashMap::with_capacity(2 * order.len());
        for (node, work) in order {
            for (operand, result) in &work.inputs {
                let key = (Arc::as_ptr(operand), *result);
                let id = match numbers.get(&key) {
                    Some(id) => *id,
                    None => {
                        let id = outline.input(operand, *result)?;
                        numbers.insert(key, id);
                        id
                    }
                };
                outline.operands.push(id);
            }
            for (result, ty) in node.types().iter().enumerate() {
                numbers.insert((Arc::as_ptr(node), result), outline.value(*ty));
            }
        }
        for node in kept {
            let results = (0..node.types().len()).filter_map(|i| numbers.get(&(Arc::as_ptr(node), i)));
            outline.outputs.extend(results);
        }
        Ok(outline)
    }

    fn value(&mut self, ty: TensorType) -> ValueId {
        self.types.push(ty);
        ValueId::new(self.types.len() as u32 - 1)
    }

    fn input(&mut self, node: &Arc<Node>, result: usize) -> Result<ValueId, Error> {
        let ty = node.types().get(result).ok_or_else(|| Error::bad("an operand has no such result"))?;
        let id = self.value(*ty);
        self.input_ids.push(id);
        self.inputs.push((node.clone(), result));
        Ok(id)
    }

    /// What the inputs hold, in order; [`input_name`] has their names.
    pub(crate) fn inputs(&self) -> &[Operand] {
        &self.inputs
    }

    /// The operations with their operands and results.
    fn steps(&self) -> impl Iterator<Item = (&Arc<Node>, &Work, &[ValueId])> {
        let mut next = 0;
        self.order.iter().map(move |(node, work)| {
            let first = next;
            next += work.inputs.len();
            (node, &**work, &self.operands[first..next])
        })
    }

    /// A number for the content; equal outlines have equal ones.
    pub(crate) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.types.hash(&mut hasher);
        for (_, work, operands) in self.steps() {
            work.op.name().hash(&mut hasher);
            operands.iter().for_each(|id| id.index().hash(&mut hasher));
            if has_attributes(&work.op) {
                // Writing to a hasher never fails.
                let _ = write!(Text(&mut hasher), "{}", work.op.attrs());
            }
        }
        self.outputs.iter().for_each(|id| id.index().hash(&mut hasher));
        hasher.finish()
    }

    /// Whether a graph is what [`Outline::build`] would build.
    pub(crate) fn describes(&self, graph: &Graph) -> bool {
        let (values, nodes) = (graph.values(), graph.nodes());
        values.len() == self.types.len()
            && nodes.len() == self.order.len()
            && values.iter().zip(&self.types).all(|(value, ty)| value.ty == *ty)
            && self.input_ids.iter().all(|id| matches!(values[id.index()].def, Def::Input { .. }))
            && graph.outputs().iter().map(|output| output.value).eq(self.outputs.iter().copied())
            && self
                .steps()
                .zip(nodes)
                .all(|((_, work, operands), node)| node.inputs == operands && node.op == work.op)
    }

    /// The graph.
    pub(crate) fn build(&self) -> Result<Graph, Error> {
        let mut graph = Graph::new("array");
        let mut inputs = self.input_ids.iter().enumerate().peekable();
        for (node, work, operands) in self.steps() {
            while let Some((i, id)) = inputs.next_if(|(_, id)| id.index() == graph.values().len()) {
                let ty = self.types[id.index()];
                graph.input(&input_name(i), ty.dtype, ty.shape)?;
            }
            let types = node.types().iter().copied();
            graph.add_typed(work.op.name().to_string(), work.op.clone(), operands.to_vec(), types);
        }
        for (i, id) in self.outputs.iter().enumerate() {
            graph.output(&format!("o{i}"), *id)?;
        }
        Ok(graph)
    }
}

/// The name of the i-th input.
pub(crate) fn input_name(i: usize) -> String {
    format!("i{i}")
}

/// Whether an operation's name is not all of it.
fn has_attributes(op: &Op) -> bool {
    use ScalarOp as S;
    !matches!(op, Op::ScalarOp(S::Unary(_) | S::Binary(_) | S::Compare(_) | S::Where | S::Fma | S::Clamp))
}

/// Text that goes into a hash.
struct Text<'a>(&'a mut DefaultHasher);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
