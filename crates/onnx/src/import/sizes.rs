//! Lists of sizes that stay expressions: what `Shape` returns, and arithmetic on it.
//!
//! A list of sizes is a constant of the graph, with the numbers of this import, and beside it the expressions. Import
//! functions that ask for expressions ([`Walk::sizes`]) hold for other sizes too. Everyone else who looks at the
//! numbers restricts the import to them: functions that ask for a fixed value, and nodes of the finished graph that
//! compute with the constant.

use olivine_ir::op::{ReduceKind, ScalarOp};
use olivine_ir::{Data, Def, Dim, Node, Op, Shape, Tensor, ValueId};

use super::fixed::GraphValue;
use super::ratio::{Outcome, Ratio, elementwise};
use super::walk::Walk;
use super::{Answer, TensorRef};
use crate::error::Error;

/// A value that is known, with expressions where it has any.
#[derive(Clone)]
pub(super) struct SizedTensor {
    pub(super) tensor: Tensor,
    pub(super) sizes: Option<Vec<Ratio>>,
}

impl SizedTensor {
    /// Elements as numbers that may be expressions; none for bools and other types that sizes are not computed in.
    fn numbers(&self) -> Option<Vec<Ratio>> {
        self.sizes.clone().or_else(|| Ratio::of_tensor(&self.tensor))
    }

    /// Elements as sizes; none for types that are not integers.
    fn dims(&self) -> Option<Vec<Dim>> {
        if !matches!(self.tensor.data(), Data::I64(_) | Data::I32(_)) {
            return None;
        }
        self.numbers()?.into_iter().map(Ratio::size).collect()
    }

    fn pin(&self) {
        self.sizes.iter().flatten().for_each(|size| {
            let _ = size.numerator.specialize_signed();
        });
    }
}

impl Walk<'_> {
    /// Notes that a list of integers is made of sizes.
    pub(crate) fn note_sizes(&mut self, at: TensorRef, sizes: Vec<Dim>) {
        self.set_sizes((at.frame, at.id), sizes.into_iter().map(Ratio::from).collect());
    }

    pub(super) fn set_sizes(&mut self, at: GraphValue, sizes: Vec<Ratio>) {
        if sizes.iter().all(|size| size.numerator.is_constant()) {
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
    pub(super) fn sizes_at(&self, at: GraphValue) -> Option<&Vec<Ratio>> {
        self.sizes.get(&at).or_else(|| self.outer(at).and_then(|outer| self.sizes_at(outer)))
    }

    /// The elements of a tensor, integers that decide shapes, as sizes; the answer may be what it takes to know it.
    pub(crate) fn fixed_sizes(&mut self, held: TensorRef, location: &str) -> Answer<Option<Vec<Dim>>> {
        let tensor = self.found(held, location)?;
        self.check_sizes((held.frame, held.id), location)?;
        let sizes = self.sizes_at((held.frame, held.id)).cloned();
        Ok(SizedTensor { tensor, sizes }.dims())
    }

    /// Refuses sizes that overflow. The numbers beside them have wrapped.
    pub(super) fn check_sizes(&self, at: GraphValue, location: &str) -> Answer<()> {
        let mut sizes = self.sizes_at(at).into_iter().flatten();
        match sizes.find_map(|size| size.numerator.check().err()) {
            None => Ok(()),
            Some(problem) => {
                let (location, problem) = (location.to_string(), problem.to_string());
                Err(Error::Size { location, problem }.into())
            }
        }
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
            && let Some(outcome) = self.computed_sizes(&node.op, &operands, result)
        {
            return match outcome {
                Outcome::Numbers(sizes) => self.set_sizes((frame, *id), sizes),
                Outcome::Decided => {}
            };
        }
        operands.iter().for_each(SizedTensor::pin);
    }

    fn computed_sizes(&self, op: &Op, operands: &[SizedTensor], result: &Tensor) -> Option<Outcome> {
        let outcome = match op {
            Op::ScalarOp(ScalarOp::Where) => Outcome::Numbers(chosen(operands, result)?),
            Op::ScalarOp(op) => {
                let lists = operands.iter().map(|operand| aligned(operand, result.shape()));
                let from = operands.first()?.tensor.dtype();
                elementwise(op, &lists.collect::<Option<Vec<_>>>()?, from, result.dtype())?
            }
            Op::Reduce(op) if result.shape().numel() == 1 => {
                let dims = operands.first()?.dims()?;
                let all = match op.kind {
                    ReduceKind::Prod => olivine_ir::product(&dims),
                    ReduceKind::Sum => dims.into_iter().sum(),
                    ReduceKind::Max => dims.into_iter().reduce(|a, b| a.max(b))?,
                    ReduceKind::Min => dims.into_iter().reduce(|a, b| a.min(b))?,
                    _ => return None,
                };
                Outcome::Numbers(vec![all.into()])
            }
            op => Outcome::Numbers(self.moved(op, operands, result)?),
        };
        // The expressions must be what the numbers are, unless these have wrapped.
        if let Outcome::Numbers(numbers) = &outcome {
            let values = result.to_f64();
            let agrees = |(of, value): (&Ratio, &f64)| of.overflows() || of.is(*value, result.dtype());
            (numbers.len() == values.len() && numbers.iter().zip(&values).all(agrees)).then_some(())?;
        }
        Some(outcome)
    }

    /// What an operation that only moves elements makes: it moves the numbers of elements in their stead.
    fn moved(&self, op: &Op, operands: &[SizedTensor], result: &Tensor) -> Option<Vec<Ratio>> {
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
        let mut all: Vec<Ratio> = Vec::new();
        let mut numbered = Vec::with_capacity(operands.len());
        for (i, operand) in operands.iter().enumerate() {
            if i >= data {
                numbered.push(operand.tensor.clone());
                continue;
            }
            let of_operand = operand.numbers()?;
            let first = all.len() as i64;
            let positions: Vec<i64> = (first..first + of_operand.len() as i64).collect();
            all.extend(of_operand);
            numbered.push(Tensor::new(*operand.tensor.shape(), positions).ok()?);
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

/// The elements that a condition chooses, which is no expression: what it was computed from is decided.
fn chosen(operands: &[SizedTensor], result: &Tensor) -> Option<Vec<Ratio>> {
    let [condition, a, b] = operands else { return None };
    let condition = (condition.sizes.is_none()).then(|| condition.tensor.to_f64())?;
    let condition = spread(&condition, operands[0].tensor.shape(), result.shape())?;
    let lists = aligned(a, result.shape())?.into_iter().zip(aligned(b, result.shape())?);
    Some(condition.iter().zip(lists).map(|(first, (a, b))| if *first != 0.0 { a } else { b }).collect())
}

/// An operand's elements as they broadcast to a shape.
fn aligned(operand: &SizedTensor, to: &Shape) -> Option<Vec<Ratio>> {
    spread(&operand.numbers()?, operand.tensor.shape(), to)
}

fn spread<T: Copy>(elements: &[T], from: &Shape, to: &Shape) -> Option<Vec<T>> {
    let strides = from.broadcast_strides(to)?;
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
    (0..to.numel()).map(|at| elements.get(index(at)).copied()).collect()
}
