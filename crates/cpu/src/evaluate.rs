//! One operation on tensors: how the compiler folds constants.

use std::sync::Arc;

use olivine_compile::{Compiled, Evaluate, Options, compile};
use olivine_ir::{Data, Graph, Op, Tensor, TensorType, TensorView};

use crate::arena::Buffer;
use crate::{Error, Executable, Weights};

/// Computes single operations on the CPU.
pub struct CpuEvaluator;

impl Evaluate for CpuEvaluator {
    fn evaluate(&self, op: &Op, operands: &[Tensor]) -> Result<Vec<Tensor>, String> {
        evaluate(op, operands).map_err(|e| e.to_string())
    }
}

/// The results of one operation.
pub fn evaluate(op: &Op, operands: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let mut graph = Graph::new("evaluate");
    let graph_error = |e: olivine_ir::Error| Error::Compile(e.to_string());
    let mut inputs = Vec::with_capacity(operands.len());
    for (i, tensor) in operands.iter().enumerate() {
        inputs.push(graph.input(&i.to_string(), tensor.dtype(), tensor.shape()).map_err(graph_error)?);
    }
    let results = graph.add_op(op.clone(), &inputs).map_err(graph_error)?;
    for (i, value) in results.iter().enumerate() {
        graph.output(&i.to_string(), *value).map_err(graph_error)?;
    }
    let compiled = compile(&graph, &Options::default()).map_err(|e| Error::Compile(e.to_string()))?;
    run_once(&compiled, operands)
}

/// Runs a compiled graph without params on tensors in declaration order.
fn run_once(compiled: &Compiled, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let executable = Executable::new(compiled, Arc::new(Weights::new()), false)?;
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    let mut results =
        executable.outputs().iter().map(|(_, ty)| Buffer::new(ty.bytes())).collect::<Result<Vec<_>, _>>()?;
    executable.run(&views, &mut results.iter_mut().map(Buffer::bytes_mut).collect::<Vec<_>>())?;
    let tensor = |((_, ty), buffer): (&(String, TensorType), &Buffer)| {
        Data::from_bytes(ty.dtype, buffer.bytes())
            .and_then(|data| Tensor::from_data(ty.shape, data))
            .map_err(|e| Error::Compile(e.to_string()))
    };
    executable.outputs().iter().zip(&results).map(tensor).collect()
}
