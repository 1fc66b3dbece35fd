//! Lists of sizes that stay expressions: what `Shape` returns, and arithmetic on it.
//!
//! A list of sizes is a constant of the graph, with the numbers of this import, and beside it the expressions. Import
//! functions that ask for expressions ([`Walk::sizes`]) hold for other sizes too. Everyone else who looks at the
//! numbers restricts the import to them: functions that ask for a fixed value, and nodes of the finished graph that
//! compute with the constant.

use olivine_ir::op::{Binary, ReduceKind, ScalarOp};
use olivine_ir::{DType, Data, Def, Dim, Node, Op, Shape, Tensor, ValueId};

use super::fixed::GraphValue;
use super::walk::Walk;
use super::{Answer, TensorRef};

/// A value that is known, with expressions where it has any.
#[derive(Clone)]
pub(super) struct SizedTensor {
    pub(super) tensor: Tensor,
    pub(super) sizes: Option<Vec<Dim>>,
}

impl SizedTensor {
    /// Elements as sizes; none for types that are not integers.
    fn dims(&self) -> Option<Vec<Dim>> {
        if let Some(sizes) = &self.sizes {
            return Some(sizes.clone());
        }
        match self.tensor.data() {
            Data::I64(v) => Some(v.iter().map(|v| Dim::from(*v)).collect()),
            Data::I32(v) => Some(v.iter().map(|v| Dim::from(*v)).collect()),
            _ => None,
        }
    }

    fn pin(&self) {
        self.sizes.iter().flatten().for_each(|size| {
            let _ = size.specialize_signed();
        });
    }
}

impl Walk<'_> {
    /// Notes that a list of integers is made of sizes.
    pub(crate) fn note_sizes(&mut self, at: TensorRef, sizes: Vec<Dim>) {
        self.set_sizes((at.frame, at.id), sizes);
    }

    pub(super) fn set_sizes(&mut self, at: GraphValue, sizes: Vec<Dim>) {
        if sizes.iter().all(|size| size.is_constant()) {
            return;
        }
        // Graphs inside others are built for the sizes of this import.
        if at.0 > 0 {
            SizedTensor { tensor: Tensor::scalar(0i64), sizes: Some(sizes) }.pin();
            return;
        }
        self.sizes.insert(at, sizes);
    }

    /// The expressions of a value that was found out, if it has any.
    pub(super) fn sizes_at(&self, at: GraphValue) -> Option<&Vec<Dim>> {
        self.sizes.get(&at).or_else(|| self.outer(at).and_then(|outer| self.sizes_at(outer)))
    }

    /// The elements of a tensor, integers that decide shapes, as sizes; the answer may be what it takes to know it.
    pub(crate) fn fixed_sizes(&mut self, held: TensorRef, location: &str) -> Answer<Option<Vec<Dim>>> {
        let tensor = self.found(held, location)?;
        let sizes = self.sizes_at((held.frame, held.id)).cloned();
        Ok(SizedTensor { tensor, sizes }.dims())
    }

    /// Restricts the import to the numbers of a value.
    pub(super) fn pin(&self, at: GraphValue) {
        if let Some(sizes) = self.sizes_at(at) {
            SizedTensor { tensor: Tensor::scalar(0i64), sizes: Some(sizes.clone()) }.pin();
        }
    }

    /// Notes what a node makes of sizes, or restricts the import to the numbers of its operands.
    pub(super) fn follow_sizes(&mut self, frame: usize, node: &Node, results: &[Tensor]) {
        let operands: Vec<SizedTensor> = (node.inputs.iter())
            .filter_map(|id| {
                let sizes = self.sizes_at((frame, *id)).cloned();
                Some(SizedTensor { tensor: self.known((frame, *id))?, sizes })
            })
            .collect();
        if operands.len() != node.inputs.len() || operands.iter().all(|operand| operand.sizes.is_none()) {
            return;
        }
        if let ([id], [result]) = (node.outputs.as_slice(), results)
            && let Some(sizes) = self.computed_sizes(&node.op, &operands, result)
        {
            return self.set_sizes((frame, *id), sizes);
        }
        operands.iter().for_each(SizedTensor::pin);
    }

    fn computed_sizes(&self, op: &Op, operands: &[SizedTensor], result: &Tensor) -> Option<Vec<Dim>> {
        let sizes = match op {
            Op::ScalarOp(op) => elementwise(op, operands, result)?,
            Op::Reduce(op) if op.kind == ReduceKind::Prod && result.shape().numel() == 1 => {
                vec![olivine_ir::product(&operands.first()?.dims()?)]
            }
            op => self.moved(op, operands, result)?,
        };
        // The expressions must be what the numbers are.
        let numbers: Vec<i64> = match result.data() {
            Data::I64(v) => v.clone(),
            Data::I32(v) => v.iter().map(|v| i64::from(*v)).collect(),
            _ => return None,
        };
        let agrees = |(size, number): (&Dim, &i64)| size.value().ok() == Some(*number);
        (sizes.len() == numbers.len() && sizes.iter().zip(&numbers).all(agrees)).then_some(sizes)
    }

    /// What an operation that only moves elements makes: it moves the numbers of elements in their stead.
    fn moved(&self, op: &Op, operands: &[SizedTensor], result: &Tensor) -> Option<Vec<Dim>> {
        let data = match op {
            Op::Concat(_) => operands.len(),
            Op::Gather(_) | Op::GatherElements(_) => 1,
            Op::Reshape(_)
            | Op::Slice(_)
            | Op::Expand(_)
            | Op::Transpose(_)
            | Op::Fill(_)
            | Op::Tile(_)
            | Op::Reverse(_)
            | Op::View(_) => 1,
            _ => return None,
        };
        if operands.iter().skip(data).any(|operand| operand.sizes.is_some()) {
            return None;
        }
        let mut all: Vec<Dim> = Vec::new();
        let mut numbered = Vec::with_capacity(operands.len());
        for (i, operand) in operands.iter().enumerate() {
            if i >= data {
                numbered.push(operand.tensor.clone());
                continue;
            }
            let dims = operand.dims()?;
            let first = all.len() as i64;
            let numbers: Vec<i64> = (first..first + dims.len() as i64).collect();
            all.extend(dims);
            numbered.push(Tensor::new(*operand.tensor.shape(), numbers).ok()?);
        }
        let places = self.evaluator.evaluate(op, &numbered).ok()?;
        let [places] = places.as_slice() else { return None };
        if places.shape() != result.shape() {
            return None;
        }
        let places = places.as_slice::<i64>().ok()?;
        places.iter().map(|at| all.get(usize::try_from(*at).ok()?).copied()).collect()
    }

    /// Restricts the import to the numbers of constants that the finished graph computes with.
    pub(super) fn pin_live_constants(&self, outputs: &[ValueId]) {
        let Some(graph) = self.frames.first().map(|frame| &frame.graph) else { return };
        if self.sizes.is_empty() {
            return;
        }
        let mut live = vec![false; graph.values().len()];
        outputs.iter().for_each(|id| live[id.index()] = true);
        for node in graph.nodes().iter().rev() {
            if node.outputs.iter().any(|id| live[id.index()]) {
                node.inputs.iter().for_each(|id| live[id.index()] = true);
            }
        }
        for (frame, id) in self.sizes.keys().filter(|(frame, _)| *frame == 0) {
            let is_const = graph.value(*id).is_ok_and(|value| matches!(value.def, Def::Const(_)));
            if is_const && live.get(id.index()) == Some(&true) {
                self.pin((*frame, *id));
            }
        }
    }
}

/// Arithmetic on sizes; comparisons are questions, whose answers are recorded.
fn elementwise(op: &ScalarOp, operands: &[SizedTensor], result: &Tensor) -> Option<Vec<Dim>> {
    let lists =
        operands.iter().map(|operand| aligned(operand, result.shape())).collect::<Option<Vec<_>>>()?;
    match (op, lists.as_slice()) {
        (ScalarOp::Cast(DType::I64 | DType::I32), [x]) => Some(x.clone()),
        (ScalarOp::Binary(op), [a, b]) => a.iter().zip(b).map(|(a, b)| binary(*op, *a, *b)).collect(),
        _ => None,
    }
}

fn binary(op: Binary, a: Dim, b: Dim) -> Option<Dim> {
    match op {
        Binary::Add => Some(a + b),
        Binary::Sub => Some(a - b),
        Binary::Mul => Some(a * b),
        // Integer division rounds towards zero: the same where neither is negative.
        Binary::Div if a >= 0 && b > 0 => Some(a.div_floor(b)),
        Binary::Min => Some(a.min(b)),
        Binary::Max => Some(a.max(b)),
        _ => None,
    }
}

/// An operand's sizes as they broadcast to a shape.
fn aligned(operand: &SizedTensor, to: &Shape) -> Option<Vec<Dim>> {
    let dims = operand.dims()?;
    let strides = operand.tensor.shape().broadcast_strides(to)?;
    let packed = to.strides();
    let index = |at: usize| {
        let mut rest = at;
        let mut index = 0;
        for (stride, step) in strides.iter().zip(&packed) {
            let step = *step as usize;
            index += rest / step * *stride as usize;
            rest %= step;
        }
        index
    };
    (0..to.numel()).map(|at| dims.get(index(at)).copied()).collect()
}
