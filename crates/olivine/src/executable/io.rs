//! What goes into a run and what comes out.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use olivine_ir::{DType, Data, Recycler, Tensor, TensorType, memory, nearest};

use crate::cost::WatchedRun;
use crate::engine::{DeviceTensor, InFlight};
use crate::process::OfProcess;
use crate::{Error, Session};

/// An input of a run: borrowed from the host, or on the device already.
///
/// `&Tensor`, [`TensorView`](olivine_ir::TensorView) and [`&DeviceTensor`](DeviceTensor) become one by `into`.
pub type Input<'a> = olivine_gpu::Input<'a, DeviceTensor>;

impl<'a> From<&'a DeviceTensor> for Input<'a> {
    fn from(tensor: &'a DeviceTensor) -> Self {
        Input::Device(tensor)
    }
}

/// Inputs of a run, on the host and on the device mixed.
///
/// ```
/// use olivine::prelude::*;
/// # let session = Session::new(Device::Cpu)?;
/// # let mut g = Graph::new("sum");
/// # let (a, b) = (g.input("a", DType::F32, [2])?, g.input("b", DType::F32, [2])?);
/// # let sum = g.add(a, b)?;
/// # g.output("sum", sum)?;
/// # let model = session.compile(&g)?;
/// let a = Tensor::from([1.0f32, 2.0]);
/// let b = session.upload(&Tensor::from([10.0f32, 20.0]))?;
/// let out = model.run(inputs! { "a" => &a, "b" => &b })?;
/// assert_eq!(out["sum"].to_string(), "[11. 22.]");
/// # Ok::<(), olivine::Error>(())
/// ```
#[macro_export]
macro_rules! inputs {
    ($($name:expr => $value:expr),* $(,)?) => {
        [$(($name, $crate::Input::from($value))),*]
    };
}

/// Named results of a run, in the graph's order: tensors on the host, or tensors that stayed on the device
/// ([`ResidentOutputs`]).
///
/// ```
/// use olivine::prelude::*;
/// # let session = Session::new(Device::Cpu)?;
/// # let mut g = Graph::new("both");
/// # let x = g.input("x", DType::F32, [2])?;
/// # let (double, square) = (g.add(x, x)?, g.mul(x, x)?);
/// # g.output("double", double)?;
/// # g.output("square", square)?;
/// # let model = session.compile(&g)?;
/// let x = Tensor::from([1.0f32, 3.0]);
/// let mut out = model.run([("x", &x)])?;
/// assert_eq!(out["double"].to_vec::<f32>()?, [2.0, 6.0]);
/// assert_eq!(out[1], out["square"]);
/// for (name, tensor) in &out {
///     println!("{name}: {tensor}");
/// }
/// let square = out.take("square")?;
/// assert_eq!(square.to_string(), "[1. 9.]");
/// # Ok::<(), olivine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Outputs<T = Tensor> {
    named: Vec<(String, T)>,
}

/// Named results of a run that stayed on the device.
pub type ResidentOutputs = Outputs<DeviceTensor>;

impl<T> Outputs<T> {
    pub(crate) fn new(named: Vec<(String, T)>) -> Self {
        Outputs { named }
    }

    fn position(&self, name: &str) -> Result<usize, Error> {
        self.named.iter().position(|(n, _)| n == name).ok_or_else(|| Error::UnknownName {
            kind: "output",
            name: name.into(),
            nearest: nearest(name, self.named.iter().map(|(n, _)| n.as_str())),
        })
    }

    /// A result by name.
    pub fn get(&self, name: &str) -> Result<&T, Error> {
        self.position(name).map(|at| &self.named[at].1)
    }

    /// A result by its position among the model's outputs.
    pub fn at(&self, index: usize) -> Result<&T, Error> {
        let missing = || Error::UnknownName { kind: "output", name: index.to_string(), nearest: None };
        self.named.get(index).map(|(_, t)| t).ok_or_else(missing)
    }

    /// Takes a result out, to keep it without a copy; those after it move up by one position.
    pub fn take(&mut self, name: &str) -> Result<T, Error> {
        self.position(name).map(|at| self.named.remove(at).1)
    }

    /// How many results there are.
    pub fn len(&self) -> usize {
        self.named.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// All results with their names.
    pub fn iter(&self) -> OutputsIter<'_, T> {
        self.into_iter()
    }

    /// All results without their names.
    pub fn into_tensors(self) -> Vec<T> {
        self.named.into_iter().map(|(_, t)| t).collect()
    }
}

/// A result by name. Panics where there is none; [`Outputs::get`] is an error there.
impl<T> Index<&str> for Outputs<T> {
    type Output = T;

    #[allow(clippy::panic, reason = "an index that is not there panics, as in the standard library")]
    fn index(&self, name: &str) -> &T {
        self.get(name).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// A result by position. Panics where there is none; [`Outputs::at`] is an error there.
impl<T> Index<usize> for Outputs<T> {
    type Output = T;

    #[allow(clippy::panic, reason = "an index that is not there panics, as in the standard library")]
    fn index(&self, position: usize) -> &T {
        self.at(position).unwrap_or_else(|e| panic!("{e}"))
    }
}

impl<T> IntoIterator for Outputs<T> {
    type Item = (String, T);
    type IntoIter = std::vec::IntoIter<(String, T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.named.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Outputs<T> {
    type Item = (&'a str, &'a T);
    type IntoIter = OutputsIter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        OutputsIter(self.named.iter())
    }
}

/// Results of a run with their names; of [`Outputs::iter`].
#[derive(Clone, Debug)]
pub struct OutputsIter<'a, T = Tensor>(std::slice::Iter<'a, (String, T)>);

impl<'a, T> Iterator for OutputsIter<'a, T> {
    type Item = (&'a str, &'a T);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(name, tensor)| (name.as_str(), tensor))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<T> ExactSizeIterator for OutputsIter<'_, T> {}

/// A run in flight; several may be, of one executable and of many.
pub struct Pending {
    pub(super) run: OfProcess<Box<dyn InFlight>>,
    pub(super) outputs: Vec<HostOutput>,
    /// Where the memory of large results goes when they do.
    pub(super) home: Option<Arc<Recycler>>,
    pub(super) watched: Option<OfWatch>,
}

/// A run that is held against its prediction if somebody waits for its end.
pub(super) struct OfWatch {
    pub(super) session: Session,
    pub(super) run: WatchedRun,
}

/// Waits for a run. Of one that has ended nobody knows when.
fn wait(run: &mut dyn InFlight, watched: Option<OfWatch>) -> Result<Vec<Data>, Error> {
    let watched = match watched {
        Some(watched) if !run.is_done()? => Some(watched),
        _ => None,
    };
    let results = run.wait()?;
    if let Some(OfWatch { session, run }) = watched {
        run.end(&session);
    }
    Ok(results)
}

/// An output that comes to the host: its position among all outputs, its name and its type.
pub(super) struct HostOutput {
    at: usize,
    name: String,
    ty: TensorType,
}

/// The outputs at some positions.
pub(super) fn host_outputs(
    outputs: &[(String, TensorType)],
    is_given: impl Fn(usize) -> bool,
) -> Vec<HostOutput> {
    let all = outputs.iter().enumerate().filter(|(at, _)| is_given(*at));
    all.map(|(at, (name, ty))| HostOutput { at, name: name.clone(), ty: *ty }).collect()
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs: Vec<&str> = self.outputs.iter().map(|output| output.name.as_str()).collect();
        f.debug_struct("Pending").field("outputs", &outputs).finish_non_exhaustive()
    }
}

impl Pending {
    /// Waits for the outputs.
    pub fn wait(mut self) -> Result<Outputs, Error> {
        let results = wait(self.run.get_mut()?.as_mut(), self.watched.take())?;
        named(self.outputs, results, self.home.as_ref())
    }
}

/// A run in flight whose outputs stay on the device. Dropping it waits for its end.
pub struct ResidentRun {
    run: OfProcess<Box<dyn InFlight>>,
    /// Names of the outputs.
    outputs: Vec<String>,
    watched: Option<OfWatch>,
}

impl fmt::Debug for ResidentRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResidentRun").field("outputs", &self.outputs).finish_non_exhaustive()
    }
}

impl ResidentRun {
    pub(crate) fn new(run: Box<dyn InFlight>, outputs: Vec<String>) -> Self {
        ResidentRun { run: OfProcess::new(run), outputs, watched: None }
    }

    pub(super) fn watched(self, watched: Option<OfWatch>) -> Self {
        ResidentRun { watched, ..self }
    }

    pub(super) fn is_watched(&self) -> bool {
        self.watched.is_some()
    }

    /// The outputs in the graph's order; once. On a GPU they may be inputs of other runs before this one has ended; on the
    /// CPU this waits for the end.
    pub fn outputs(&mut self) -> Result<ResidentOutputs, Error> {
        let run = self.run.get_mut()?;
        let named = self.outputs.iter().enumerate().map(|(i, name)| Ok((name.clone(), run.output(i)?)));
        named.collect::<Result<_, Error>>().map(Outputs::new)
    }

    /// Whether it has ended, without waiting for that where other threads or a device do the work.
    pub fn is_done(&mut self) -> Result<bool, Error> {
        self.run.get_mut()?.is_done()
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> Result<(), Error> {
        wait(self.run.get_mut()?.as_mut(), self.watched.take()).map(drop)
    }
}

/// Zeroed results.
pub(crate) fn zeros(outputs: &[(String, TensorType)]) -> Result<Vec<Data>, Error> {
    outputs.iter().map(|(_, ty)| Ok(Data::zeros(ty.dtype, ty.shape.numel())?)).collect()
}

/// Results under their names, whose memory goes to a recycler when they go.
pub(super) fn named(
    outputs: Vec<HostOutput>,
    results: Vec<Data>,
    home: Option<&Arc<Recycler>>,
) -> Result<Outputs, Error> {
    let mut results: Vec<Option<Data>> = results.into_iter().map(Some).collect();
    let mut named = Vec::with_capacity(outputs.len());
    for HostOutput { at, name, ty } in outputs {
        let Some(data) = results.get_mut(at).and_then(Option::take) else { continue };
        let tensor = match home {
            Some(home) => Tensor::recycled(ty, data, home)?,
            None => Tensor::of_type(ty, data)?,
        };
        named.push((name, tensor));
    }
    Ok(Outputs::new(named))
}

/// Hands the results' bytes to `run`.
pub(crate) fn write_results(
    results: &mut [&mut Data],
    run: impl FnOnce(&mut [&mut [u8]]) -> Result<(), Error>,
) -> Result<(), Error> {
    // A bool cannot be lent as a byte that a kernel might set to 2, so bools pass through bytes of their own.
    let mut spare = results
        .iter()
        .map(|data| memory::zeroed(if data.dtype() == DType::Bool { data.len() } else { 0 }))
        .collect::<Result<Vec<Vec<u8>>, _>>()?;
    let mut targets: Vec<&mut [u8]> = results
        .iter_mut()
        .zip(&mut spare)
        .map(|(data, bytes)| data.as_bytes_mut().unwrap_or(bytes.as_mut_slice()))
        .collect();
    run(&mut targets)?;
    for (data, bytes) in results.iter_mut().zip(spare) {
        if let Data::Bool(bools) = data {
            bools.iter_mut().zip(bytes).for_each(|(b, byte)| *b = byte != 0);
        }
    }
    Ok(())
}
