//! Views: layout operations become strides.
//!
//! Needs: a legalised graph. Produces: no layout operation but [`View`], whose operand is never itself a view; operands
//! of kernels that do not read strides are contiguous; every output is the packed result of a node, or the whole of
//! one under another shape.

mod strides;
#[cfg(test)]
mod tests;

use olivine_ir::op::{Fused, Region, View};
use olivine_ir::{Def, Error, Graph, Node, Shape, ValueId};

use crate::{Options, Pass, Rewriter};
pub(super) use strides::{compose, is_layout};

/// See the module.
pub(crate) struct Views;

impl Pass for Views {
    fn name(&self) -> &'static str {
        "views"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if is_done(graph) {
            return Ok(graph.clone());
        }
        let mut walk = Walk { out: Rewriter::new(graph)?, aliases: vec![None; graph.values().len()] };
        for node in graph.nodes() {
            walk.out.new.set_scope_of(&node.name);
            walk.node(graph, node)?;
        }
        for output in graph.outputs() {
            let value = walk.output(output.value)?;
            walk.out.bind(output.value, value);
        }
        walk.out.finish()
    }
}

/// Whether there is no layout operation and every output is a result of a node.
fn is_done(graph: &Graph) -> bool {
    let made = |id: ValueId| matches!(graph.values()[id.index()].def, Def::Node { .. });
    !graph.nodes().iter().any(|node| is_layout(&node.op)) && graph.outputs().iter().all(|o| made(o.value))
}

/// An old value as a strided alias of a new one that is no view, and the nodes that spell it out once they are needed.
#[derive(Clone)]
struct Alias {
    base: ValueId,
    view: View,
    /// Whether the view is the base as it is.
    whole: bool,
    /// The view node, once one was needed.
    strided: Option<ValueId>,
    /// The packed copy, once one was needed.
    packed: Option<ValueId>,
}

struct Walk<'a> {
    out: Rewriter<'a>,
    aliases: Vec<Option<Alias>>,
}

impl Walk<'_> {
    fn node(&mut self, graph: &Graph, node: &Node) -> Result<(), Error> {
        if is_layout(&node.op) {
            return self.layout(graph, node);
        }
        let inputs = (node.inputs.iter().enumerate())
            .map(|(i, id)| self.operand(*id, node.op.reads_strides(i)))
            .collect::<Result<Vec<_>, _>>()?;
        let results = self.out.new.add_named(node.name.clone(), node.op.clone(), &inputs)?;
        for (old, new) in node.outputs.iter().zip(results) {
            self.out.bind(*old, new);
        }
        Ok(())
    }

    fn layout(&mut self, graph: &Graph, node: &Node) -> Result<(), Error> {
        let results =
            node.outputs.iter().map(|id| Ok(graph.ty(*id)?.shape)).collect::<Result<Vec<Shape>, Error>>()?;
        let Some(&operand) = node.inputs.first() else { return Ok(()) };
        let x = self.alias(operand)?;
        let (base, views) = match compose(&node.op, &x.view, &results) {
            Some(views) => (x.base, views),
            None => {
                let base = self.packed(operand)?;
                let shape = self.out.new.ty(base)?.shape;
                let views = compose(&node.op, &View::packed(shape), &results).ok_or_else(|| {
                    let problem = format!("{} of a packed operand has no strides", node.op.name());
                    Error::Invalid { location: format!("node `{}`", node.name), problem }
                })?;
                (base, views)
            }
        };
        let of = self.out.new.ty(base)?.shape;
        for (id, view) in node.outputs.iter().zip(views) {
            let whole = view.shape == of && view.is_packed();
            self.aliases[id.index()] = Some(Alias { base, view, whole, strided: None, packed: None });
        }
        Ok(())
    }

    /// How an old value is read; a value that no layout operation made is read whole.
    fn alias(&mut self, id: ValueId) -> Result<Alias, Error> {
        if let Some(alias) = &self.aliases[id.index()] {
            return Ok(alias.clone());
        }
        let base = self.out.get(id)?;
        let view = View::packed(self.out.new.ty(base)?.shape);
        let alias = Alias { base, view, whole: true, strided: None, packed: None };
        self.aliases[id.index()] = Some(alias.clone());
        Ok(alias)
    }

    /// The new value for an operand, contiguous unless the reader takes strides.
    fn operand(&mut self, id: ValueId, takes_strides: bool) -> Result<ValueId, Error> {
        let alias = self.alias(id)?;
        match () {
            () if alias.whole => Ok(alias.base),
            () if takes_strides || strides::is_contiguous(&alias.view) => self.strided(id),
            () => self.packed(id),
        }
    }

    /// The value as a view node, or as its base when that is the same.
    fn strided(&mut self, id: ValueId) -> Result<ValueId, Error> {
        let alias = self.alias(id)?;
        if alias.whole {
            return Ok(alias.base);
        }
        if let Some(value) = alias.strided {
            return Ok(value);
        }
        let value = self.out.new.add1(alias.view.clone(), &[alias.base])?;
        self.aliases[id.index()] = Some(Alias { strided: Some(value), ..alias });
        Ok(value)
    }

    /// The value copied to a packed one of its own, even if it is one already.
    fn packed(&mut self, id: ValueId) -> Result<ValueId, Error> {
        if let Some(value) = self.alias(id)?.packed {
            return Ok(value);
        }
        let strided = self.strided(id)?;
        let copy = Fused { region: Region::identity() };
        let Some(&value) = self.out.new.add_named("copy", copy, &[strided])?.first() else {
            return Ok(strided);
        };
        let alias = self.alias(id)?;
        self.aliases[id.index()] = Some(Alias { packed: Some(value), ..alias });
        Ok(value)
    }

    /// The new value for an output: a result of a node, possibly the whole of it under another shape, or a copy.
    fn output(&mut self, id: ValueId) -> Result<ValueId, Error> {
        let alias = self.alias(id)?;
        let base = self.out.new.value(alias.base)?;
        let same_count = alias.view.shape.sizes().numel() == base.ty.shape.sizes().numel();
        let all = same_count && alias.view.is_packed();
        if all && matches!(base.def, Def::Node { .. }) { self.strided(id) } else { self.packed(id) }
    }
}
