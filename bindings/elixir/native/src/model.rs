//! Models: loaded, compiled and run.

use std::path::Path;
use std::sync::Arc;

use olivine::ir::port::{Dim, Kind, Port};
use olivine::ir::{Data, Tensor};
use olivine::{Executable, Model};
use rustler::{Atom, Binary, Encoder, Env, NifResult, OwnedBinary, Term};

use crate::array::dtype_of;
use crate::call::{Errors, Failure, call, size};
use crate::device::context;
use crate::resource::{model, model_handle};

/// A compiled model; clones share it.
#[derive(Clone)]
pub(crate) struct Loaded(Arc<Executable>);

mod atoms {
    rustler::atoms! { nil }
}

/// Loads a model's file, whatever its format, and compiles it.
#[rustler::nif(schedule = "DirtyIo")]
fn model_load<'a>(env: Env<'a>, device: &str, path: Binary<'a>) -> NifResult<Term<'a>> {
    call(env, Errors::All, || {
        let model = Model::load(path_of(&path)?)?;
        let executable = context(device)?.session().compile(&model)?;
        executable.load()?;
        Ok(model_handle(Loaded(Arc::new(executable))).encode(env))
    })
}

/// A path of bytes, as the system has it.
pub(crate) fn path_of(bytes: &[u8]) -> Result<&Path, Failure> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        Ok(Path::new(std::ffi::OsStr::from_bytes(bytes)))
    }
    #[cfg(not(unix))]
    {
        std::str::from_utf8(bytes).map(Path::new).map_err(|_| Failure::bad("the path is not UTF-8"))
    }
}

/// The inputs and outputs: `{:ok, {inputs, outputs}}`, each `{name, dtype, sizes}`; a size is an integer, a name or
/// `nil`, and `sizes` is `nil` where not even their number is declared.
#[rustler::nif]
fn model_ports<'a>(env: Env<'a>, handle: Term<'a>) -> NifResult<Term<'a>> {
    call(env, Errors::All, || {
        let Loaded(executable) = model(handle)?;
        let inputs = ports(env, executable.inputs())?;
        let outputs = ports(env, executable.outputs())?;
        Ok((inputs, outputs).encode(env))
    })
}

fn ports(env: Env<'_>, ports: Vec<Port>) -> Result<Vec<Term<'_>>, Failure> {
    ports.into_iter().map(|port| described(env, port)).collect()
}

fn described(env: Env<'_>, port: Port) -> Result<Term<'_>, Failure> {
    let nil = atoms::nil().encode(env);
    let mut kind = port.kind;
    while let Kind::Optional(inner) = kind {
        kind = *inner;
    }
    let (dtype, dims) = match kind {
        Kind::Tensor { element, dims } => (element.dtype(), dims),
        _ => (None, None),
    };
    let dtype = match dtype {
        Some(dtype) => Atom::from_str(env, dtype.name())?.encode(env),
        None => nil,
    };
    let dims = match dims {
        None => nil,
        Some(dims) => dims
            .into_iter()
            .map(|dim| match dim {
                Dim::Fixed(size) => size.encode(env),
                Dim::Named(name) => name.encode(env),
                Dim::Free => nil,
            })
            .collect::<Vec<_>>()
            .encode(env),
    };
    Ok((port.name, dtype, dims).encode(env))
}

/// One input: name, dtype, sizes and elements.
type Input<'a> = (String, Atom, Vec<Term<'a>>, Binary<'a>);

/// Runs a model: `{:ok, [{name, dtype, sizes, binary}]}`, one for each output, in the model's order.
#[rustler::nif(schedule = "DirtyIo")]
fn model_run<'a>(env: Env<'a>, handle: Term<'a>, inputs: Vec<Input<'a>>) -> NifResult<Term<'a>> {
    call(env, Errors::All, || {
        let Loaded(executable) = model(handle)?;
        let inputs = inputs.into_iter().map(|input| tensor(env, input)).collect::<Result<Vec<_>, _>>()?;
        let outputs = executable.run(inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
        let outputs = outputs.iter().map(|(name, tensor)| output(env, name, tensor));
        Ok(outputs.collect::<Result<Vec<_>, _>>()?.encode(env))
    })
}

fn tensor(env: Env<'_>, (name, dtype, shape, data): Input<'_>) -> Result<(String, Tensor), Failure> {
    let dtype = dtype_of(env, dtype)?;
    let shape = shape.into_iter().map(|size_| size("a size", size_)).collect::<Result<Vec<_>, _>>()?;
    let elements = Data::from_bytes(dtype, &data)?;
    let tensor = Tensor::from_data(&shape[..], elements);
    let given = || format!("input {name}: {} bytes for {dtype}{shape:?}", data.len());
    let tensor = tensor.map_err(|_| Failure::mismatch(given()))?;
    Ok((name, tensor))
}

fn output<'a>(env: Env<'a>, name: &str, tensor: &Tensor) -> Result<Term<'a>, Failure> {
    let dtype = Atom::from_str(env, tensor.dtype().name())?;
    let bytes = OwnedBinary::from_slice(tensor.bytes()).release(env);
    Ok((name, dtype, tensor.shape().to_vec(), bytes).encode(env))
}
