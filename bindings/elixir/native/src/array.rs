//! Lazy arrays.

use olivine_array::{Array, DType};
use rustler::{Atom, Binary, Encoder, Env, NifResult, Term};

use crate::buffer::zeroed;
use crate::call::{Errors, Failure, call, done, size};
use crate::device::context;
use crate::resource::{array, array_handle};

/// Arrays that wait for more operations than this are run by `array_settle`.
const LONG: usize = 256;

/// An array of a binary's elements.
#[rustler::nif(schedule = "DirtyIo")]
fn array_from_binary<'a>(
    env: Env<'a>,
    device: &str,
    dtype: Atom,
    shape: Vec<Term<'a>>,
    data: Binary<'a>,
) -> NifResult<Term<'a>> {
    call(env, Errors::All, || {
        let shape = shape.into_iter().map(|size_| size("a size", size_)).collect::<Result<Vec<_>, _>>()?;
        let array = Array::from_bytes(&context(device)?, dtype_of(env, dtype)?, &shape[..], &data)?;
        Ok(array_handle(array).encode(env))
    })
}

pub(crate) fn dtype_of(env: Env<'_>, dtype: Atom) -> Result<DType, Failure> {
    let name = dtype.to_term(env).atom_to_string()?;
    name.parse().map_err(|problem: String| Failure::bad(problem))
}

/// The results of an operation in its text form: `{:ok, {[{array, dtype, shape}], long}}`. Nothing runs; `long` says
/// that so much waits that the caller should call `array_settle`.
#[rustler::nif]
fn array_apply<'a>(env: Env<'a>, device: &str, text: &str, operands: Vec<Term<'a>>) -> NifResult<Term<'a>> {
    call(env, Errors::All, || {
        let operands = operands.into_iter().map(array).collect::<Result<Vec<_>, _>>()?;
        let context = match operands.first() {
            Some(first) => first.context().clone(),
            None => context(device)?,
        };
        let results = Array::apply_text_in(&context, text, &operands.iter().collect::<Vec<_>>())?;
        let long = results.first().is_some_and(|result| result.waiting() > LONG);
        let results =
            results.into_iter().map(|result| described(env, result)).collect::<Result<Vec<_>, _>>()?;
        Ok((results, long).encode(env))
    })
}

fn described(env: Env<'_>, array: Array) -> Result<Term<'_>, Failure> {
    let dtype = Atom::from_str(env, array.dtype().name())?;
    let shape = array.shape().to_vec();
    Ok((array_handle(array), dtype, shape).encode(env))
}

/// Submits an array if it really waits for many operations; what operands share is counted once here.
#[rustler::nif(schedule = "DirtyIo")]
fn array_settle<'a>(env: Env<'a>, handle: Term<'a>) -> NifResult<Term<'a>> {
    done(env, Errors::All, || Ok(array(handle)?.settle(LONG)?))
}

/// Submits what an array needs, without waiting for it.
#[rustler::nif(schedule = "DirtyIo")]
fn array_eval<'a>(env: Env<'a>, handle: Term<'a>) -> NifResult<Term<'a>> {
    done(env, Errors::All, || Ok(array(handle)?.eval()?))
}

/// Waits until an array is computed.
#[rustler::nif(schedule = "DirtyIo")]
fn array_wait<'a>(env: Env<'a>, handle: Term<'a>) -> NifResult<Term<'a>> {
    done(env, Errors::All, || Ok(array(handle)?.wait()?))
}

/// The elements of an array.
#[rustler::nif(schedule = "DirtyIo")]
fn array_to_binary<'a>(env: Env<'a>, handle: Term<'a>) -> NifResult<Term<'a>> {
    call(env, Errors::All, || {
        let array = array(handle)?;
        array.wait()?;
        let mut bytes = zeroed(array.ty().bytes());
        array.read_bytes(&mut bytes)?;
        Ok(bytes.release(env).encode(env))
    })
}
