//! One operation on tensors: how the compiler folds constants.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use olivine_compile::{Evaluate, Options, compile};
use olivine_ir::{DType, Data, Graph, Op, Tensor, TensorType, TensorView};

use crate::arena::Buffer;
use crate::{Error, Executable, Weights};

/// Computes single operations on the CPU.
pub struct CpuEvaluator;

impl Evaluate for CpuEvaluator {
    fn evaluate(&self, op: &Op, operands: &[Tensor]) -> Result<Vec<Tensor>, String> {
        evaluate(op, operands).map_err(|e| e.to_string())
    }

    fn keeps(&self, op: &Op) -> bool {
        repeats(op)
    }
}

/// Compiled operations that are cached.
const CACHED: usize = 256;

/// Operations with larger operands are not cached: they are computed once, not in a loop.
const SMALL: usize = 1 << 12;

thread_local! {
    /// Small operations that were computed lately, by operation and operand types: arithmetic on shapes repeats itself.
    static RECENT: RefCell<HashMap<String, Rc<Executable>>> = RefCell::default();
}

/// The results of one operation.
pub fn evaluate(op: &Op, operands: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    if !repeats(op) || operands.iter().map(|t| t.ty().bytes()).sum::<usize>() > SMALL {
        return run_once(&executable(op, operands)?, operands);
    }
    let types: Vec<TensorType> = operands.iter().map(Tensor::ty).collect();
    let key = format!("{op:?} {types:?}");
    let found = RECENT.with_borrow(|recent| recent.get(&key).cloned());
    let executable = match found {
        Some(executable) => executable,
        None => {
            let made = Rc::new(executable(op, operands)?);
            RECENT.with_borrow_mut(|recent| {
                if recent.len() == CACHED {
                    recent.clear();
                }
                recent.insert(key, made.clone());
            });
            made
        }
    };
    run_once(&executable, operands)
}

/// Whether shapes are computed with an operation; none of these is random.
fn repeats(op: &Op) -> bool {
    matches!(
        op,
        Op::ScalarOp(_)
            | Op::Reshape(_)
            | Op::Slice(_)
            | Op::Concat(_)
            | Op::Gather(_)
            | Op::Transpose(_)
            | Op::Expand(_)
            | Op::Reduce(_)
            | Op::Range(_)
            | Op::Tile(_)
    )
}

/// One operation, compiled.
fn executable(op: &Op, operands: &[Tensor]) -> Result<Executable, Error> {
    let mut graph = Graph::new("evaluate");
    let graph_error = |e: olivine_ir::Error| Error::Compile(e.to_string());
    let (mut inputs, weights) = (Vec::with_capacity(operands.len()), Weights::new());
    for (i, tensor) in operands.iter().enumerate() {
        let (name, ty) = (i.to_string(), tensor.ty());
        // Inputs can be packed in one format alone.
        inputs.push(match ty.packed {
            Some(_) => {
                weights.set(&name, tensor.clone());
                graph.param_of(&name, ty).map_err(graph_error)?
            }
            None => graph.input(&name, ty.dtype, ty.shape).map_err(graph_error)?,
        });
    }
    let results = graph.add_op(op.clone(), &inputs).map_err(graph_error)?;
    for (i, value) in results.iter().enumerate() {
        graph.output(&i.to_string(), *value).map_err(graph_error)?;
    }
    // One operation has nothing to be fused with; but the operations it decomposes into may, which saves f16 and bf16 a rounding.
    let narrow = |ty: TensorType| matches!(ty.dtype, DType::F16 | DType::BF16);
    let plain = op.bodies().is_empty() && !operands.iter().any(|t| narrow(t.ty()));
    let options = Options { no_fusion: plain, ..Options::default() };
    let compiled = compile(&graph, &options).map_err(|e| Error::Compile(e.to_string()))?;
    Executable::new(&compiled, Arc::new(weights), false)
}

/// Runs a compiled operation on its operands; packed ones are its params.
fn run_once(executable: &Executable, operands: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let inputs = operands.iter().filter(|tensor| tensor.ty().packed.is_none());
    let views: Vec<TensorView<'_>> = inputs.map(Tensor::view).collect();
    let mut results =
        executable.outputs().iter().map(|(_, ty)| Buffer::new(ty.bytes())).collect::<Result<Vec<_>, _>>()?;
    executable.run(&views, &mut results.iter_mut().map(Buffer::bytes_mut).collect::<Vec<_>>())?;
    let tensor = |((_, ty), buffer): (&(String, TensorType), &Buffer)| {
        Data::from_bytes(ty.dtype, buffer.bytes())
            .and_then(|data| Tensor::of_type(*ty, data))
            .map_err(|e| Error::Compile(e.to_string()))
    };
    executable.outputs().iter().zip(&results).map(tensor).collect()
}
