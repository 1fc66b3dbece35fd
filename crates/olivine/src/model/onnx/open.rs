//! Imports that hold for more than one size: a model whose open sizes are symbols, imported once for each class of sizes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use olivine_ir::port::{Dim as PortDim, Kind};
use olivine_ir::size::guards::{self, GuardSet};
use olivine_ir::size::{Bindings as SizeBindings, Symbol};
use olivine_ir::{Shape, TensorType, open_symbol};
use olivine_onnx::Outcome;

use super::OnnxExecutable;
use super::plans::{Key, Subject, Whole};
use super::values::Values;
use crate::Error;
use crate::executable::Input;

/// Imports kept at a time; the least recently used goes when another comes.
const MOST_IMPORTS: usize = 128;

/// Sizes that an error names.
const MOST_NAMED: usize = 16;

/// Inputs whose values decide shapes, one after another, before an import gives up.
const STEPS: usize = 16;

/// Imports of one model, each with the sizes that it holds for.
#[derive(Default)]
pub(super) struct OpenPlans {
    /// The most recently used is the last.
    plans: Mutex<Vec<OpenPlan>>,
    /// Imports made so far.
    made: AtomicUsize,
    /// Whether the model runs graphs to find out sizes, or loops: it is imported for every combination of sizes then.
    refused: AtomicBool,
}

struct OpenPlan {
    key: OpenKey,
    guards: GuardSet,
    whole: Arc<Whole>,
}

/// Values of inputs that decide shapes.
pub(super) type InputValues = Vec<(String, Vec<u8>)>;

/// What an import depends on beside the values of open sizes.
#[derive(Clone, PartialEq)]
struct OpenKey {
    /// Inputs with the sizes that are not open.
    inputs: Vec<(String, olivine_ir::DType, Vec<Option<usize>>)>,
    values: InputValues,
}

/// The inputs of a run with open sizes as symbols.
struct OpenInputs {
    types: Vec<(String, TensorType)>,
    key: OpenKey,
    sizes: SizeBindings,
}

impl OnnxExecutable {
    /// The graph for some inputs, where an import serves more sizes than theirs, and the values of inputs that it holds
    /// for; `None` where each combination of sizes has its own.
    pub(super) fn open_plan(
        &self,
        types: &[(String, TensorType)],
        values: &Values<'_>,
    ) -> Result<Option<(Arc<Whole>, InputValues)>, Error> {
        if self.open.refused.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Some(mut open) = self.open_inputs(types)? else { return Ok(None) };
        let lock = || self.open.plans.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut plans = lock();
            if let Some(at) = known_plan(&plans, &open, values) {
                plans[at..].rotate_left(1);
                let plan = &plans[plans.len() - 1];
                return Ok(Some((plan.whole.clone(), plan.key.values.clone())));
            }
        }
        for _ in 0..STEPS {
            let key = Key { values: open.key.values.clone(), ..Key::of(open.types.clone()) };
            let (outcome, guards) = guards::record(|| self.outcome(Subject::Model, &key, &[]));
            let outcome = match outcome {
                Ok(outcome) => outcome,
                // Where sizes overflow, numbers would wrap.
                Err(error @ Error::Onnx(olivine_onnx::Error::Size { .. })) => return Err(error),
                // What does not fit is said by the import for exact sizes, in numbers.
                Err(_) => return Ok(None),
            };
            match outcome {
                Outcome::NeedsInputs(names) => {
                    for name in names {
                        // Where a value cannot be had without waiting, the import for exact sizes waits for it.
                        let Ok(Some(bytes)) = bytes_of(values, &name) else { return Ok(None) };
                        open.key.values.push((name.clone(), bytes));
                    }
                }
                Outcome::Whole(specialised) => {
                    let whole = self.whole(specialised)?;
                    let mut plans = lock();
                    if plans.len() == MOST_IMPORTS {
                        plans.remove(0);
                    }
                    self.open.made.fetch_add(1, Ordering::Relaxed);
                    let known = open.key.values.clone();
                    plans.push(OpenPlan { key: open.key, guards, whole: whole.clone() });
                    return Ok(Some((whole, known)));
                }
                Outcome::Stage(_) | Outcome::Loop(_) => break,
            }
        }
        self.open.refused.store(true, Ordering::Relaxed);
        Ok(None)
    }

    /// Imports and compiles what runs of some sizes need, unless something serves them; returns how many plans that took.
    pub(crate) fn prepare_for(&self, sizes: &[(&str, usize)]) -> Result<usize, Error> {
        let mut types = Vec::new();
        for port in self.model.inputs() {
            let Kind::Tensor { element, dims: Some(dims) } = &port.kind else { continue };
            let Some(dtype) = element.dtype() else { continue };
            let size = |dim: &PortDim| match dim {
                PortDim::Fixed(size) => Ok(*size),
                PortDim::Named(name) if sizes.iter().any(|(known, _)| known == name) => {
                    Ok(sizes.iter().find(|(known, _)| known == name).map_or(0, |(_, size)| *size))
                }
                dim => {
                    let (kind, name) = ("size", format!("{dim}` of `{}", port.name));
                    Err(Error::Missing { kind, name, expected: "a range of sizes".into() })
                }
            };
            let dims = dims.iter().map(size).collect::<Result<Vec<_>, _>>()?;
            types.push((port.name.clone(), TensorType::new(dtype, Shape::new(&dims)?)));
        }
        let imports = self.open.made.load(Ordering::Relaxed);
        let exact = match self.open_plan(&types, &Values::of_run(&[]))? {
            Some((whole, _)) => {
                // An import comes with a plan.
                let is_new = self.open.made.load(Ordering::Relaxed) != imports;
                let before = if is_new { 0 } else { whole.executable.plans_made() };
                whole.executable.prepare_for(sizes)?;
                return Ok(whole.executable.plans_made() - before);
            }
            None => self.outcome(Subject::Model, &Key::of(types.clone()), &[]),
        };
        match exact {
            Err(error) => Err(self.with_sizes(error, &types)),
            Ok(_) => Err(Error::Missing {
                kind: "value",
                name: "a run".into(),
                expected: "inputs: the model's sizes depend on their values".into(),
            }),
        }
    }

    /// A refusal by the import for exact sizes, with the names of these sizes.
    pub(super) fn with_sizes(&self, error: Error, types: &[(String, TensorType)]) -> Error {
        let ports = self.model.all_inputs();
        let mut sizes: Vec<(String, usize)> = Vec::new();
        for (name, ty) in types {
            let kind = ports.iter().find(|port| port.name == *name).map(|port| &port.kind);
            let Some(Kind::Tensor { dims: Some(dims), .. }) = kind else { continue };
            for (axis, (dim, size)) in dims.iter().zip(ty.shape.iter()).enumerate() {
                match dim {
                    PortDim::Fixed(_) => {}
                    PortDim::Named(_) => sizes.push((dim.to_string(), *size)),
                    PortDim::Free => sizes.push((format!("{name}.{axis}"), *size)),
                }
            }
        }
        sizes.sort();
        sizes.dedup();
        if sizes.is_empty() {
            return error;
        }
        let mut texts: Vec<String> =
            sizes.iter().take(MOST_NAMED).map(|(name, size)| format!("{name:.200} = {size}")).collect();
        texts.extend((sizes.len() > MOST_NAMED).then(|| "…".to_string()));
        let with = |problem: String| format!("{problem} ({})", texts.join(", "));
        match error {
            Error::Onnx(olivine_onnx::Error::Invalid { location, problem }) => {
                Error::Onnx(olivine_onnx::Error::Invalid { location, problem: with(problem) })
            }
            Error::Graph(olivine_ir::Error::Op { op, node, problem, operands }) => {
                Error::Graph(olivine_ir::Error::Op { op, node, problem: with(problem), operands })
            }
            other => other,
        }
    }

    /// The inputs with symbols for open sizes; `None` where there are none, and where one name has two values, which the
    /// import for exact sizes refuses.
    fn open_inputs(&self, types: &[(String, TensorType)]) -> Result<Option<OpenInputs>, Error> {
        let ports = self.model.all_inputs();
        let mut open = OpenInputs {
            types: Vec::with_capacity(types.len()),
            key: OpenKey { inputs: Vec::with_capacity(types.len()), values: Vec::new() },
            sizes: SizeBindings::new(),
        };
        let mut zeros: Vec<(Symbol, bool)> = Vec::new();
        for (name, ty) in types {
            let kind = ports.iter().find(|port| port.name == *name).map(|port| &port.kind);
            let Some(Kind::Tensor { dims: Some(dims), .. }) = kind else { return Ok(None) };
            if dims.len() != ty.shape.rank() {
                return Ok(None);
            }
            let mut sizes = ty.shape.sizes();
            let mut fixed = Vec::with_capacity(dims.len());
            for (axis, dim) in dims.iter().enumerate() {
                let size = ty.shape[axis];
                let symbol = match dim {
                    PortDim::Fixed(_) => None,
                    PortDim::Named(name) => Some(name.clone()),
                    PortDim::Free => Some(format!("{name}.{axis}")),
                };
                // A name that is no symbol's is no reason to refuse a model.
                let symbol: Option<Symbol> = symbol.and_then(|name| open_symbol(&name).ok());
                let Some(symbol) = symbol else {
                    fixed.push(Some(size));
                    continue;
                };
                // A size of 0 is a number, wherever its name stands.
                let zero = zeros.iter().find(|(known, _)| *known == symbol).map(|(_, zero)| *zero);
                if zero.is_some_and(|zero| zero != (size == 0)) {
                    return Ok(None);
                }
                zeros.push((symbol, size == 0));
                if size == 0 {
                    fixed.push(Some(0));
                    continue;
                }
                if open.sizes.bind(symbol, size as i64).is_err() {
                    return Ok(None);
                }
                let Ok(dim) = symbol.with_value(size as i64) else { return Ok(None) };
                sizes[axis] = dim;
                fixed.push(None);
            }
            open.types.push((name.clone(), TensorType { shape: Shape::of_sizes(&sizes)?, ..*ty }));
            open.key.inputs.push((name.clone(), ty.dtype, fixed));
        }
        open.key.inputs.sort_by(|a, b| a.0.cmp(&b.0));
        let is_open = open.key.inputs.iter().any(|(_, _, sizes)| sizes.contains(&None));
        Ok(is_open.then_some(open))
    }
}

impl OpenPlans {
    /// What each import assumes of the open sizes.
    pub(super) fn guards(&self) -> Vec<Vec<String>> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.iter().map(|plan| plan.guards.iter().map(|guard| format!("{guard:?}")).collect()).collect()
    }

    /// The graphs of all imports.
    pub(super) fn executables(&self) -> Vec<Arc<crate::executable::GraphExecutable>> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.iter().map(|plan| plan.whole.executable.clone()).collect()
    }
}

/// The position of an import that holds for the inputs.
fn known_plan(plans: &[OpenPlan], open: &OpenInputs, values: &Values<'_>) -> Option<usize> {
    let given = |(name, bytes): &(String, Vec<u8>)| {
        bytes_of(values, name).is_ok_and(|given| given.as_ref() == Some(bytes))
    };
    let holds = |plan: &OpenPlan| {
        plan.key.inputs == open.key.inputs
            && plan.guards.holds(&open.sizes)
            && plan.key.values.iter().all(given)
    };
    plans.iter().rposition(holds)
}

/// The bytes of an input.
fn bytes_of(values: &Values<'_>, name: &str) -> Result<Option<Vec<u8>>, Error> {
    Ok(match values.get(name) {
        None => None,
        Some(Input::Host(view)) => Some(view.bytes().to_vec()),
        Some(Input::Device(tensor)) => Some(tensor.to_tensor()?.bytes().to_vec()),
    })
}
