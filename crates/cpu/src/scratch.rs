//! Memory that kernels need for themselves, as large as tensors are.
//!
//! Kernels return nothing and share their work out to other threads, so an error would have to pass through every one of
//! their loops. Where there is no memory, these functions unwind instead, with [`OutOfMemory`]: the pool hands it on to
//! the thread that leads, and [`guarded`] makes an error of it. The panic hook is not called.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bytemuck::Zeroable;
use olivine_ir::memory;

use crate::Error;

/// What unwinds where a kernel finds no memory.
struct OutOfMemory {
    bytes: usize,
}

/// Runs kernels; that they find no memory is an error.
pub(crate) fn guarded<R>(work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => match panic.downcast::<OutOfMemory>() {
            Ok(failure) => Err(Error::OutOfMemory { bytes: failure.bytes }),
            Err(other) => resume_unwind(other),
        },
    }
}

/// What was made, or an end to the run.
pub(crate) fn or_unwind<T>(made: Result<T, olivine_ir::Error>) -> T {
    made.unwrap_or_else(|error| {
        let bytes = if let olivine_ir::Error::OutOfMemory { bytes } = error { bytes } else { usize::MAX };
        resume_unwind(Box::new(OutOfMemory { bytes }))
    })
}

/// Zeros.
pub(crate) fn zeroed<T: Zeroable>(len: usize) -> Vec<T> {
    or_unwind(memory::zeroed(len))
}

/// One value, many times.
pub(crate) fn filled<T: Copy>(value: T, len: usize) -> Vec<T> {
    or_unwind(memory::filled(value, len))
}

/// Room for `len` elements.
pub(crate) fn with_room<T>(len: usize) -> Vec<T> {
    or_unwind(memory::with_room(len))
}

/// A copy of a slice.
pub(crate) fn copied<T: Copy>(from: &[T]) -> Vec<T> {
    or_unwind(memory::copied(from))
}

/// What an iterator that knows its length yields.
pub(crate) fn collected<T>(from: impl ExactSizeIterator<Item = T>) -> Vec<T> {
    or_unwind(memory::collected(from))
}

/// Makes sure that so many elements fit once more, for a function of the standard library that takes them itself.
pub(crate) fn probe<T>(len: usize) {
    drop(with_room::<T>(len));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread_pool::{self, ThreadPool};

    #[test]
    fn a_kernel_without_memory_is_an_error_also_on_other_threads() {
        let bytes = usize::MAX / 4;
        let failure = Err(Error::OutOfMemory { bytes });
        assert_eq!(guarded(|| Ok(zeroed::<u8>(bytes).len())), failure);
        let threads = ThreadPool::new(3).unwrap();
        for at in 0..4 {
            let work = || {
                thread_pool::share(4, &|i| {
                    if i == at {
                        with_room::<u8>(bytes);
                    }
                });
                Ok(0)
            };
            assert_eq!(threads.install(|| guarded(work)), failure);
        }
    }

    #[test]
    fn another_panic_goes_on() {
        let work =
            || guarded(|| if zeroed::<u8>(1).is_empty() { Ok(()) } else { resume_unwind(Box::new(7)) });
        assert!(catch_unwind(work).is_err_and(|panic| panic.downcast_ref() == Some(&7)));
    }
}
