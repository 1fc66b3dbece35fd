//! Results, errors and panics as terms.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use olivine_array::ErrorKind;
use rustler::{Atom, Encoder, Env, NifResult, Term};

mod atoms {
    rustler::atoms! {
        ok, error,
        size_mismatch, bad_input, spv_read_failed, dispatch_failed, out_of_memory,
        unsupported, device_lost, unavailable,
    }
}

/// Why a call has no result.
pub(crate) enum Failure {
    /// An error with its kind and message.
    Error(ErrorKind, String),
    /// An argument of a type that no call could take: the caller gets an `ArgumentError`.
    BadArgument,
}

impl Failure {
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Failure::Error(ErrorKind::BadInput, message.into())
    }

    pub(crate) fn mismatch(message: impl Into<String>) -> Self {
        Failure::Error(ErrorKind::SizeMismatch, message.into())
    }
}

impl From<olivine_array::Error> for Failure {
    fn from(error: olivine_array::Error) -> Self {
        Failure::Error(error.kind(), error.message().to_string())
    }
}

impl From<olivine::Error> for Failure {
    fn from(error: olivine::Error) -> Self {
        olivine_array::Error::from(error).into()
    }
}

impl From<olivine::ir::Error> for Failure {
    fn from(error: olivine::ir::Error) -> Self {
        olivine_array::Error::from(error).into()
    }
}

impl From<rustler::Error> for Failure {
    fn from(_: rustler::Error) -> Self {
        Failure::BadArgument
    }
}

/// Which kinds of errors a caller can see.
#[derive(Clone, Copy)]
pub(crate) enum Errors {
    /// The five of `Olivine.NativeV`; a size mismatch has no message.
    Contract,
    /// All kinds, each with a message.
    All,
}

/// `:ok`, or `{:ok, result}` of what `work` returns, or the term of its error.
pub(crate) fn call<'a>(
    env: Env<'a>,
    errors: Errors,
    work: impl FnOnce() -> Result<Term<'a>, Failure>,
) -> NifResult<Term<'a>> {
    // Whatever a panic leaves behind is behind locks whose poison the library clears.
    let ended = catch_unwind(AssertUnwindSafe(work));
    match ended {
        Ok(Ok(result)) => Ok((atoms::ok(), result).encode(env)),
        Ok(Err(Failure::BadArgument)) => Err(rustler::Error::BadArg),
        Ok(Err(Failure::Error(kind, message))) => Ok(term(env, errors, kind, message)),
        Err(panic) => Ok(term(env, errors, ErrorKind::DispatchFailed, panic_message(&*panic))),
    }
}

/// As [`call`], for work without a result.
pub(crate) fn done<'a>(
    env: Env<'a>,
    errors: Errors,
    work: impl FnOnce() -> Result<(), Failure>,
) -> NifResult<Term<'a>> {
    let ok = atoms::ok();
    let result = call(env, errors, || work().map(|()| ok.encode(env)))?;
    // `{:ok, :ok}` is `:ok`.
    let is_done = result.decode::<(Atom, Atom)>().is_ok_and(|pair| pair == (ok, ok));
    Ok(if is_done { ok.encode(env) } else { result })
}

fn term(env: Env<'_>, errors: Errors, kind: ErrorKind, message: String) -> Term<'_> {
    let name = match (errors, kind) {
        (Errors::Contract, ErrorKind::SizeMismatch) => {
            return (atoms::error(), atoms::size_mismatch()).encode(env);
        }
        (_, ErrorKind::SizeMismatch) => atoms::size_mismatch(),
        (_, ErrorKind::BadInput) | (Errors::Contract, ErrorKind::Unsupported) => atoms::bad_input(),
        (_, ErrorKind::SpvReadFailed) => atoms::spv_read_failed(),
        (_, ErrorKind::OutOfMemory) => atoms::out_of_memory(),
        (Errors::All, ErrorKind::Unsupported) => atoms::unsupported(),
        (Errors::All, ErrorKind::DeviceLost) => atoms::device_lost(),
        (Errors::All, ErrorKind::Unavailable) => atoms::unavailable(),
        _ => atoms::dispatch_failed(),
    };
    (atoms::error(), name, message).encode(env)
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the library panicked: {}", text.as_deref().unwrap_or("no message"))
}

/// A size: an integer that is negative or too large is an error, what is no integer a bad argument.
pub(crate) fn size(name: &str, term: Term<'_>) -> Result<usize, Failure> {
    if !term.is_integer() {
        return Err(Failure::BadArgument);
    }
    term.decode().map_err(|_| Failure::bad(format!("{name} is {}, not a size", shown(term))))
}

/// An op code.
pub(crate) fn code(term: Term<'_>) -> Result<u32, Failure> {
    if !term.is_integer() {
        return Err(Failure::BadArgument);
    }
    term.decode().map_err(|_| Failure::bad(format!("{} is not an op code", shown(term))))
}

/// A term as text, shortened: an integer can have any number of digits.
fn shown(term: Term<'_>) -> String {
    let text = format!("{term:?}");
    if text.chars().count() <= 40 { text } else { text.chars().take(40).chain("…".chars()).collect() }
}
