//! What stays behind when a process is forked: threads, and what drivers hold.

use std::ops::Deref;

use olivine_cpu::fork::generation;

use crate::Error;

/// Something that works in the process that made it alone. In a process forked from that one it is an error to use it, and
/// it is not dropped: its destructors would wait for threads that are not there.
pub(crate) struct OfProcess<T> {
    /// Always there, until this is dropped.
    value: Option<T>,
    born: u64,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        OfProcess { value: Some(value), born: generation() }
    }

    /// An error in a forked process.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Whether this is the process that made it.
    pub(crate) fn is_here(&self) -> bool {
        self.born == generation()
    }

    /// For changing, in the process that made it.
    pub(crate) fn get_mut(&mut self) -> Result<&mut T, Error> {
        self.check()?;
        self.value.as_mut().ok_or(Error::Forked)
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.value {
            Some(value) => value,
            None => unreachable!("the value goes when its owner does"),
        }
    }
}

impl<T: Clone> Clone for OfProcess<T> {
    fn clone(&self) -> Self {
        OfProcess { value: self.value.clone(), born: self.born }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}
