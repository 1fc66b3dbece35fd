//! Buffers: bytes on the device.

use rustler::{Binary, Encoder, Env, NifResult, OwnedBinary, Term};

use crate::call::{Errors, Failure, call, done, size};
use crate::device::context;
use crate::resource::{buffer, buffer_handle};

/// A buffer of zeros.
#[rustler::nif(schedule = "DirtyIo")]
fn buf_alloc<'a>(env: Env<'a>, device: &str, bytes: Term<'a>) -> NifResult<Term<'a>> {
    call(env, Errors::Contract, || {
        let bytes = size("the number of bytes", bytes)?;
        Ok(buffer_handle(context(device)?.alloc(bytes)?).encode(env))
    })
}

/// A buffer with a copy of a binary.
#[rustler::nif(schedule = "DirtyIo")]
fn buf_upload<'a>(env: Env<'a>, device: &str, data: Binary<'a>) -> NifResult<Term<'a>> {
    call(env, Errors::Contract, || Ok(buffer_handle(context(device)?.upload(&data)?).encode(env)))
}

/// Overwrites a buffer with a binary of its size.
#[rustler::nif(schedule = "DirtyIo")]
fn buf_upload_into<'a>(env: Env<'a>, handle: Term<'a>, data: Binary<'a>) -> NifResult<Term<'a>> {
    done(env, Errors::Contract, || Ok(buffer(handle)?.upload_into(&data)?))
}

/// The bytes of a buffer, after what was submitted to it.
#[rustler::nif(schedule = "DirtyIo")]
fn buf_download<'a>(env: Env<'a>, handle: Term<'a>) -> NifResult<Term<'a>> {
    call(env, Errors::Contract, || {
        let buffer = buffer(handle)?;
        // What fails is known before memory is taken for the result.
        buffer.wait()?;
        let mut bytes = zeroed(buffer.byte_size());
        buffer.download_into(&mut bytes)?;
        Ok(bytes.release(env).encode(env))
    })
}

/// A binary of zeros: memory that was never written must not be seen as bytes.
pub(crate) fn zeroed(bytes: usize) -> OwnedBinary {
    let mut binary = OwnedBinary::new(bytes);
    binary.as_mut_slice().fill(0);
    binary
}

/// The size of a buffer.
#[rustler::nif]
fn buf_byte_size<'a>(env: Env<'a>, handle: Term<'a>) -> NifResult<Term<'a>> {
    call(env, Errors::Contract, || Ok::<_, Failure>(buffer(handle)?.byte_size().encode(env)))
}
