//! Widen: f16 and bf16 are computed in f32 and stay f32 from one operation to the next.
//!
//! Needs: nothing; comes first, so that later passes see f32. Produces: a graph of the same inputs, params and outputs.
//!
//! ```text
//!   input f16 ─ cast ─┐
//!   param f16 ─ cast ─┴─ matmul f32 ─ add f32 ─ … ─ cast ─ output f16
//! ```
//!
//! A result that is declared f16 or bf16 is rounded where it leaves the graph, where the model casts it to an integer or
//! a bool, and where an operation still computes in the declared dtype. A cast to f16 or bf16 that the model asks for
//! always rounds.
//!
//! What only moves elements keeps them as they are stored, so an embedding is gathered in f16 and its rows are cast.
//! Casts of params run at load; what would exceed [`Widen::weight_bytes`] is computed in the declared dtype instead.

#[cfg(test)]
mod tests;

use olivine_ir::op::ScalarOp;
use olivine_ir::{DType, Data, Def, Error, Graph, Node, Op, Tensor, TensorType, ValueId};

use crate::{Options, Pass, Rewriter, at_load};

/// How f16 and bf16 are computed in f32.
#[derive(Clone, Copy, Debug)]
pub struct Widen {
    /// The most bytes that weights may take as f32.
    pub weight_bytes: usize,
}

/// See the module.
pub(crate) struct WidenFloats(pub(crate) Widen);

impl Pass for WidenFloats {
    fn name(&self) -> &'static str {
        "widen"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if !graph.values().iter().any(|v| is_narrow(v.ty.dtype)) {
            return Ok(graph.clone());
        }
        let mut widening = Widening::new(graph, self.0.weight_bytes)?;
        for node in graph.nodes() {
            widening.out.new.set_scope_of(&node.name);
            widening.visit(node)?;
        }
        for output in graph.outputs() {
            widening.declared(output.value)?;
        }
        widening.out.finish()
    }
}

/// Whether numbers of a dtype are computed in f32.
pub(crate) fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// The graph while it is rebuilt. A narrow value of the old graph is held in its dtype, as f32, or both.
struct Widening<'g> {
    old: &'g Graph,
    out: Rewriter<'g>,
    /// For every old value the new f32 value that stands for it.
    wide: Vec<Option<ValueId>>,
    /// For every old value whether the new graph holds it in its own dtype.
    declared: Vec<bool>,
    /// For every old value whether it is known at load.
    fixed: Vec<bool>,
    /// Bytes of weights that may still become f32.
    weight_bytes: usize,
}

impl<'g> Widening<'g> {
    fn new(old: &'g Graph, weight_bytes: usize) -> Result<Self, Error> {
        let loaded = at_load(old);
        let fixed = old.values().iter().map(|v| match v.def {
            Def::Param { .. } | Def::Const(_) => true,
            Def::Input { .. } => false,
            Def::Node { node, .. } => loaded[node.index()],
        });
        Ok(Widening {
            old,
            out: Rewriter::new(old)?,
            wide: vec![None; old.values().len()],
            declared: old.values().iter().map(|v| !matches!(v.def, Def::Node { .. })).collect(),
            fixed: fixed.collect(),
            weight_bytes,
        })
    }

    fn ty(&self, id: ValueId) -> TensorType {
        self.old.values()[id.index()].ty
    }

    /// Whether a value is held narrow alone.
    fn is_stored_narrow(&self, id: ValueId) -> bool {
        is_narrow(self.ty(id).dtype) && self.wide[id.index()].is_none()
    }

    /// The new value in the old one's dtype, rounded if need be.
    fn declared(&mut self, id: ValueId) -> Result<ValueId, Error> {
        if let (Some(wide), false) = (self.wide[id.index()], self.declared[id.index()]) {
            let rounded = self.out.new.cast(wide, self.ty(id).dtype)?;
            self.bind_declared(id, rounded);
        }
        self.out.get(id)
    }

    /// The new value, as f32 if the old one is narrow.
    fn widened(&mut self, id: ValueId) -> Result<ValueId, Error> {
        if !is_narrow(self.ty(id).dtype) {
            return self.out.get(id);
        }
        if let Some(wide) = self.wide[id.index()] {
            return Ok(wide);
        }
        if self.fixed[id.index()] {
            self.weight_bytes = self.weight_bytes.saturating_sub(self.wide_bytes(id));
        }
        let wide = match self.old.as_const(id).map(as_f32).transpose()? {
            Some(tensor) => self.out.new.constant(tensor),
            None => {
                let x = self.out.get(id)?;
                self.out.new.cast(x, DType::F32)?
            }
        };
        self.wide[id.index()] = Some(wide);
        Ok(wide)
    }

    fn wide_bytes(&self, id: ValueId) -> usize {
        self.ty(id).shape.numel().saturating_mul(DType::F32.size())
    }

    fn bind_declared(&mut self, old: ValueId, new: ValueId) {
        self.out.bind(old, new);
        self.declared[old.index()] = true;
    }

    fn visit(&mut self, node: &Node) -> Result<(), Error> {
        if let (Op::ScalarOp(ScalarOp::Cast(to)), [x], [y]) =
            (&node.op, node.inputs.as_slice(), node.outputs.as_slice())
        {
            return self.cast(node, *to, *x, *y);
        }
        if self.stays(node) { self.copy(node) } else { self.widen(node) }
    }

    /// Whether a node is computed in the dtypes it declares. `fma` rounds once: by way of f32 it would round twice. Sums,
    /// products and quotients of two narrow numbers come out the same either way.
    fn stays(&self, node: &Node) -> bool {
        if !node.inputs.iter().any(|x| is_narrow(self.ty(*x).dtype)) {
            return true;
        }
        let own = !node.op.bodies().is_empty()
            || has_region(&node.op)
            || matches!(node.op, Op::Custom(_) | Op::ScalarOp(ScalarOp::Bitcast(_) | ScalarOp::Fma));
        own || self.moves_narrow(node) || !self.fits(node) || !self.infers(node)
    }

    /// Whether a node only moves, or attends to, elements that are mostly stored narrow.
    fn moves_narrow(&self, node: &Node) -> bool {
        let numel = |id: &ValueId| self.ty(*id).shape.numel();
        let of = |narrow: bool| {
            let all = node.inputs.iter().filter(|x| is_narrow(self.ty(**x).dtype));
            all.filter(|x| self.is_stored_narrow(**x) == narrow).map(numel).fold(0, usize::saturating_add)
        };
        match &node.op {
            // Kernels convert keys and values as they read them, so a long cache is not copied at every step.
            Op::Attention(_) => node.inputs[1..3].iter().all(|x| self.is_stored_narrow(*x)),
            op if op.moves_elements() => {
                let made = node.outputs.iter().map(numel).fold(0, usize::saturating_add);
                // What repeats its operand is cast before that: there is less of it.
                of(true) > of(false) && made <= of(true).saturating_add(of(false))
            }
            _ => false,
        }
    }

    /// Whether the weights that a node reads may become f32.
    fn fits(&self, node: &Node) -> bool {
        let weights = node.inputs.iter().filter(|x| self.fixed[x.index()] && self.is_stored_narrow(**x));
        let bytes = weights.map(|x| self.wide_bytes(*x)).fold(0, usize::saturating_add);
        bytes <= self.weight_bytes
    }

    /// Whether the operation takes f32 in place of narrow operands and gives f32, or what it declares, for each result.
    fn infers(&self, node: &Node) -> bool {
        let wide = |ty: TensorType| match ty.dtype {
            dtype if is_narrow(dtype) => TensorType::new(DType::F32, ty.shape),
            _ => ty,
        };
        let operands: Vec<TensorType> = node.inputs.iter().map(|x| wide(self.ty(*x))).collect();
        let Ok(results) = node.op.infer(&operands) else { return false };
        let declared = node.outputs.iter().map(|y| self.ty(*y));
        results.len() == node.outputs.len() && declared.zip(results).all(|(d, r)| r == d || r == wide(d))
    }

    fn copy(&mut self, node: &Node) -> Result<(), Error> {
        let operands = node.inputs.iter().map(|x| self.declared(*x)).collect::<Result<Vec<_>, _>>()?;
        self.add(node, &operands)
    }

    fn widen(&mut self, node: &Node) -> Result<(), Error> {
        let operands = node.inputs.iter().map(|x| self.widened(*x)).collect::<Result<Vec<_>, _>>()?;
        self.add(node, &operands)
    }

    fn add(&mut self, node: &Node, operands: &[ValueId]) -> Result<(), Error> {
        let results = self.out.new.add_named(node.name.clone(), node.op.clone(), operands)?;
        for (old, new) in node.outputs.iter().zip(results) {
            if self.out.new.ty(new)?.dtype == self.ty(*old).dtype {
                self.bind_declared(*old, new);
            } else {
                self.wide[old.index()] = Some(new);
                if self.fixed[old.index()] {
                    self.weight_bytes = self.weight_bytes.saturating_sub(self.wide_bytes(*old));
                }
            }
        }
        Ok(())
    }

    /// A cast that the model asks for.
    fn cast(&mut self, node: &Node, to: DType, x: ValueId, y: ValueId) -> Result<(), Error> {
        let from = self.ty(x).dtype;
        match self.wide[x.index()] {
            Some(wide) if to == from => self.wide[y.index()] = Some(wide),
            Some(wide) if to == DType::F32 => self.bind_declared(y, wide),
            Some(wide) if to.is_float() => {
                let result = self.out.new.add_named(node.name.clone(), node.op.clone(), &[wide])?;
                self.bind_declared(y, result[0]);
            }
            // An integer is made of the number that the model's dtype can hold.
            _ => self.copy(node)?,
        }
        Ok(())
    }
}

/// Whether an operation has a region, whose instructions round as they are written.
fn has_region(op: &Op) -> bool {
    match op {
        Op::Fused(_) => true,
        Op::MatMul(op) => op.epilogue.is_some(),
        Op::DequantMatMul(op) => op.epilogue.is_some(),
        Op::Conv(op) => op.epilogue.is_some(),
        Op::LayerNorm(op) => op.prologue.is_some(),
        Op::RmsNorm(op) => op.prologue.is_some(),
        _ => false,
    }
}

/// The elements as f32.
fn as_f32(tensor: &Tensor) -> Result<Tensor, Error> {
    let elements = match tensor.data() {
        Data::F16(x) => x.iter().map(|x| x.to_f32()).collect(),
        Data::BF16(x) => x.iter().map(|x| x.to_f32()).collect(),
        _ => return Ok(tensor.clone()),
    };
    Tensor::from_data(*tensor.shape(), Data::F32(elements))
}
