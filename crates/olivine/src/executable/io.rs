//! What goes into a run and what comes out.

use std::sync::Arc;

use olivine_ir::{DType, Data, Recycler, Tensor, TensorType, TensorView, memory, nearest};

use crate::Error;
use crate::engine::{DeviceTensor, Given, InFlight};
use crate::process::OfProcess;

/// An input of a run: borrowed from the host, or on the device already.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// Elements of the host.
    Host(TensorView<'a>),
    /// A tensor on the executable's device.
    Device(&'a DeviceTensor),
}

impl Input<'_> {
    /// Its type.
    pub fn ty(&self) -> TensorType {
        match self {
            Input::Host(view) => view.ty(),
            Input::Device(tensor) => tensor.ty(),
        }
    }
}

impl<'a> From<TensorView<'a>> for Input<'a> {
    fn from(view: TensorView<'a>) -> Self {
        Input::Host(view)
    }
}

impl<'a> From<&'a Tensor> for Input<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Input::Host(tensor.view())
    }
}

impl<'a> From<&'a DeviceTensor> for Input<'a> {
    fn from(tensor: &'a DeviceTensor) -> Self {
        Input::Device(tensor)
    }
}

impl<'a> From<Input<'a>> for Given<'a> {
    fn from(input: Input<'a>) -> Self {
        match input {
            Input::Host(view) => Given::View(view),
            Input::Device(tensor) => Given::Resident(tensor.clone()),
        }
    }
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

    /// All results with their names, to keep.
    pub(crate) fn into_named(self) -> Vec<(String, Tensor)> {
        self.named
    }

    /// All results without their names.
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.named.into_iter().map(|(_, t)| t).collect()
    }
}

/// A run in flight; several may be, of one executable and of many.
pub struct Pending {
    pub(super) run: OfProcess<Box<dyn InFlight>>,
    pub(super) outputs: Vec<(String, TensorType)>,
    /// Where the memory of large results goes when they do.
    pub(super) home: Option<Arc<Recycler>>,
}

impl Pending {
    /// Waits for the outputs.
    pub fn wait(mut self) -> Result<Outputs, Error> {
        let results = self.run.get_mut()?.wait()?;
        named(&self.outputs, results, self.home.as_ref())
    }
}

/// Zeroed results.
pub(crate) fn zeros(outputs: &[(String, TensorType)]) -> Result<Vec<Data>, Error> {
    outputs.iter().map(|(_, ty)| Ok(Data::zeros(ty.dtype, ty.shape.numel())?)).collect()
}

/// Results under their names, whose memory goes to a recycler when they go.
pub(super) fn named(
    outputs: &[(String, TensorType)],
    results: Vec<Data>,
    home: Option<&Arc<Recycler>>,
) -> Result<Outputs, Error> {
    let tensor = |ty: &TensorType, data: Data| match home {
        Some(home) => Tensor::recycled(ty.shape, data, home),
        None => Tensor::from_data(ty.shape, data),
    };
    let named = outputs
        .iter()
        .zip(results)
        .map(|((name, ty), data)| Ok((name.clone(), tensor(ty, data)?)))
        .collect::<Result<_, Error>>()?;
    Ok(Outputs { named })
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
