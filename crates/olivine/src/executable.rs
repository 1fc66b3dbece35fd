//! A compiled model: params in, inputs in, outputs out.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use olivine_cpu::{StepTime, Weights};
use olivine_ir::{DType, Data, Def, Graph, Shape, Tensor, TensorType, TensorView, ValueId, nearest};

use crate::{Error, Session};

/// Shapes kept compiled at a time; the one that was compiled first goes when another comes.
const COMPILED_SHAPES: usize = 64;

/// A model compiled for a session's device. It may run from several threads at once.
///
/// Inputs may declare free sizes ([`Graph::input_with_dims`]); every combination of sizes is compiled once, when it
/// first comes, and all of them share the params.
pub struct Executable {
    session: Session,
    graph: Graph,
    weights: Arc<Weights>,
    compiled: RwLock<Shapes>,
}

#[derive(Default)]
struct Shapes {
    by_shape: HashMap<Vec<Shape>, Arc<olivine_cpu::Executable>>,
    order: Vec<Vec<Shape>>,
}

/// Named results of a run, in the graph's order.
#[derive(Clone, Debug)]
pub struct Outputs {
    named: Vec<(String, Tensor)>,
}

impl Outputs {
    /// A result by name.
    pub fn get(&self, name: &str) -> Result<&Tensor, Error> {
        self.named.iter().find(|(n, _)| n == name).map(|(_, t)| t).ok_or_else(|| Error::UnknownName {
            kind: "output",
            name: name.into(),
            nearest: nearest(name, self.named.iter().map(|(n, _)| n.as_str())),
        })
    }

    /// All results with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.named.iter().map(|(n, t)| (n.as_str(), t))
    }

    /// All results without their names.
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.named.into_iter().map(|(_, t)| t).collect()
    }
}

impl Executable {
    pub(crate) fn new(session: Session, graph: Graph) -> Result<Self, Error> {
        let executable =
            Executable { session, graph, weights: Arc::new(Weights::new()), compiled: RwLock::default() };
        executable.specialised(&executable.declared_shapes())?;
        Ok(executable)
    }

    /// The graph as it was given.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// How many combinations of input shapes are compiled now.
    pub fn compiled_shapes(&self) -> usize {
        self.compiled.read().unwrap_or_else(PoisonError::into_inner).by_shape.len()
    }

    /// Sets or replaces a param; the elements are shared, not copied.
    pub fn set_param(&self, name: &str, tensor: Tensor) -> Result<(), Error> {
        let Some((_, id)) = self.graph.params().find(|(n, _)| *n == name) else {
            let nearest = nearest(name, self.graph.params().map(|(n, _)| n));
            return Err(Error::UnknownName { kind: "param", name: name.into(), nearest });
        };
        let expected = self.ty(id);
        if expected != tensor.ty() {
            let (name, expected) = (name.into(), expected.to_string());
            return Err(Error::WrongType { kind: "param", name, expected, got: tensor.ty() });
        }
        self.weights.set(name, tensor);
        Ok(())
    }

    /// Sets several params.
    pub fn set_params(&self, params: impl IntoIterator<Item = (String, Tensor)>) -> Result<(), Error> {
        params.into_iter().try_for_each(|(name, tensor)| self.set_param(&name, tensor))
    }

    /// Packs params for the kernels now instead of at the first run.
    pub fn load(&self) -> Result<(), Error> {
        let executable = self.specialised(&self.declared_shapes())?;
        Ok(self.session.inner.threads.install(|| executable.load())?)
    }

    /// Runs on named inputs, which are borrowed, not copied; results come in new tensors.
    pub fn run<'a, V: Into<TensorView<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Outputs, Error> {
        let (executable, views) = self.prepare(inputs)?;
        let mut results = new_results(&executable);
        self.execute(&mut results.iter_mut().collect::<Vec<_>>(), |targets| executable.run(&views, targets))?;
        let named = executable
            .outputs()
            .iter()
            .zip(results)
            .map(|((name, ty), data)| Ok((name.clone(), Tensor::from_data(ty.shape, data)?)))
            .collect::<Result<_, Error>>()?;
        Ok(Outputs { named })
    }

    /// Runs and writes results into existing tensors, one for each output by name; nothing is allocated for them.
    pub fn run_into<'a, V: Into<TensorView<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
        outputs: &mut [(&str, &mut Tensor)],
    ) -> Result<(), Error> {
        let (executable, views) = self.prepare(inputs)?;
        let mut results: Vec<Option<&mut Data>> = executable.outputs().iter().map(|_| None).collect();
        for (name, tensor) in outputs.iter_mut() {
            let Some(i) = executable.outputs().iter().position(|(n, _)| n == name) else {
                let nearest = nearest(name, executable.outputs().iter().map(|(n, _)| n.as_str()));
                return Err(Error::UnknownName { kind: "output", name: name.to_string(), nearest });
            };
            let expected = executable.outputs()[i].1;
            if tensor.ty() != expected {
                let (name, expected) = (name.to_string(), expected.to_string());
                return Err(Error::WrongType { kind: "output", name, expected, got: tensor.ty() });
            }
            if results[i].replace(tensor.data_mut()).is_some() {
                return Err(Error::GivenTwice { kind: "output", name: name.to_string() });
            }
        }
        if let Some(i) = results.iter().position(Option::is_none) {
            let (name, expected) = executable.outputs()[i].clone();
            return Err(Error::Missing { kind: "output", name, expected });
        }
        self.execute(&mut results.into_iter().flatten().collect::<Vec<_>>(), |targets| {
            executable.run(&views, targets)
        })
    }

    /// Runs once and times every kernel.
    pub fn profile<'a, V: Into<TensorView<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Vec<StepTime>, Error> {
        let (executable, views) = self.prepare(inputs)?;
        let mut results = new_results(&executable);
        let mut times = Vec::new();
        self.execute(&mut results.iter_mut().collect::<Vec<_>>(), |targets| {
            times = executable.profile(&views, targets)?;
            Ok(())
        })?;
        Ok(times)
    }

    /// Hands the results' bytes to `run` on the session's threads.
    fn execute(
        &self,
        results: &mut [&mut Data],
        run: impl FnOnce(&mut [&mut [u8]]) -> Result<(), olivine_cpu::Error> + Send,
    ) -> Result<(), Error> {
        // A bool cannot be lent as a byte that a kernel might set to 2, so bools pass through bytes of their own.
        let mut spare: Vec<Vec<u8>> = results
            .iter()
            .map(|data| if data.dtype() == DType::Bool { vec![0; data.len()] } else { Vec::new() })
            .collect();
        let mut targets: Vec<&mut [u8]> = results
            .iter_mut()
            .zip(&mut spare)
            .map(|(data, bytes)| data.as_bytes_mut().unwrap_or(bytes.as_mut_slice()))
            .collect();
        self.session.inner.threads.install(|| run(&mut targets))?;
        for (data, bytes) in results.iter_mut().zip(spare) {
            if let Data::Bool(bools) = data {
                bools.iter_mut().zip(bytes).for_each(|(b, byte)| *b = byte != 0);
            }
        }
        Ok(())
    }

    /// Checks names and types and finds the executable for these shapes.
    fn prepare<'a, V: Into<TensorView<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<(Arc<olivine_cpu::Executable>, Vec<TensorView<'a>>), Error> {
        let declared: Vec<(&str, ValueId)> = self.graph.inputs().collect();
        let mut given: Vec<Option<TensorView<'a>>> = vec![None; declared.len()];
        for (name, view) in inputs {
            let Some(i) = declared.iter().position(|(n, _)| *n == name) else {
                let nearest = nearest(name, declared.iter().map(|(n, _)| *n));
                return Err(Error::UnknownName { kind: "input", name: name.into(), nearest });
            };
            let view = view.into();
            self.check_input(name, declared[i].1, view.ty())?;
            if given[i].replace(view).is_some() {
                return Err(Error::GivenTwice { kind: "input", name: name.into() });
            }
        }
        if let Some(i) = given.iter().position(Option::is_none) {
            let (name, id) = declared[i];
            return Err(Error::Missing { kind: "input", name: name.into(), expected: self.ty(id) });
        }
        let views: Vec<TensorView<'a>> = given.into_iter().flatten().collect();
        let shapes: Vec<Shape> = views.iter().map(|v| v.ty().shape).collect();
        Ok((self.specialised(&shapes)?, views))
    }

    fn check_input(&self, name: &str, id: ValueId, got: TensorType) -> Result<(), Error> {
        let expected = self.ty(id);
        let Def::Input { dims, .. } = &self.graph.values()[id.index()].def else { return Ok(()) };
        let fits = got.dtype == expected.dtype
            && got.shape.rank() == expected.shape.rank()
            && (0..dims.len()).all(|i| dims[i].is_some() || got.shape[i] == expected.shape[i]);
        if fits {
            return Ok(());
        }
        let sizes: Vec<String> = dims
            .iter()
            .zip(expected.shape.iter())
            .map(|(dim, size)| dim.clone().unwrap_or_else(|| size.to_string()))
            .collect();
        let expected = format!("{}[{}]", expected.dtype, sizes.join(", "));
        Err(Error::WrongType { kind: "input", name: name.into(), expected, got })
    }

    /// The executable for some input shapes, compiled now if it is the first time they come.
    fn specialised(&self, shapes: &[Shape]) -> Result<Arc<olivine_cpu::Executable>, Error> {
        if let Some(found) = self.compiled.read().unwrap_or_else(PoisonError::into_inner).by_shape.get(shapes)
        {
            return Ok(found.clone());
        }
        let named: Vec<(&str, Shape)> =
            self.graph.inputs().map(|(n, _)| n).zip(shapes.iter().copied()).collect();
        let graph = self.graph.specialise(&named)?;
        let session = &self.session.inner;
        let compiled = session.threads.install(|| session.compile(&graph, false))?;
        let executable =
            Arc::new(olivine_cpu::Executable::new(&compiled, self.weights.clone(), session.checked())?);
        let mut cache = self.compiled.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = cache.by_shape.get(shapes) {
            return Ok(found.clone());
        }
        if cache.order.len() == COMPILED_SHAPES {
            let oldest = cache.order.remove(0);
            cache.by_shape.remove(&oldest);
        }
        cache.order.push(shapes.to_vec());
        cache.by_shape.insert(shapes.to_vec(), executable.clone());
        Ok(executable)
    }

    fn ty(&self, id: ValueId) -> TensorType {
        self.graph.values()[id.index()].ty
    }

    fn declared_shapes(&self) -> Vec<Shape> {
        self.graph.inputs().map(|(_, id)| self.ty(id).shape).collect()
    }
}

/// Zeroed results of an executable.
fn new_results(executable: &olivine_cpu::Executable) -> Vec<Data> {
    executable.outputs().iter().map(|(_, ty)| Data::zeros(ty.dtype, ty.shape.numel())).collect()
}
