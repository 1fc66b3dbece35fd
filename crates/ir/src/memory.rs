//! Memory whose size comes from a model or a user: where there is not enough, that is an error, not an abort.

use bytemuck::{NoUninit, Zeroable};

use crate::Error;

/// Zeros.
pub fn zeroed<T: Zeroable>(len: usize) -> Result<Vec<T>, Error> {
    bytemuck::allocation::try_zeroed_vec(len).map_err(|()| out_of_memory::<T>(len))
}

/// Room for `len` elements.
pub fn with_room<T>(len: usize) -> Result<Vec<T>, Error> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len).map_err(|_| out_of_memory::<T>(len))?;
    Ok(vec)
}

/// One value, many times.
pub fn filled<T: Copy>(value: T, len: usize) -> Result<Vec<T>, Error> {
    let mut vec = with_room(len)?;
    vec.resize(len, value);
    Ok(vec)
}

/// A copy of a slice.
pub fn copied<T: Copy>(from: &[T]) -> Result<Vec<T>, Error> {
    let mut vec = with_room(from.len())?;
    vec.extend_from_slice(from);
    Ok(vec)
}

/// What an iterator that knows its length yields.
pub fn collected<T>(from: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, Error> {
    let mut vec = with_room(from.len())?;
    vec.extend(from);
    Ok(vec)
}

/// Elements from bytes of any alignment, as many as are whole.
pub(crate) fn from_bytes<T: bytemuck::AnyBitPattern + NoUninit>(bytes: &[u8]) -> Result<Vec<T>, Error> {
    let mut vec: Vec<T> = zeroed(bytes.len() / size_of::<T>().max(1))?;
    let to = bytemuck::cast_slice_mut::<T, u8>(&mut vec);
    to.copy_from_slice(&bytes[..to.len()]);
    Ok(vec)
}

fn out_of_memory<T>(len: usize) -> Error {
    Error::OutOfMemory { bytes: len.saturating_mul(size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_an_error() {
        let too_many = usize::MAX / 16;
        let bytes = too_many * 8;
        assert_eq!(zeroed::<u64>(too_many), Err(Error::OutOfMemory { bytes }));
        assert_eq!(with_room::<u64>(too_many), Err(Error::OutOfMemory { bytes }));
        assert_eq!(zeroed::<u64>(usize::MAX), Err(Error::OutOfMemory { bytes: usize::MAX }));
        let endless = (0..usize::MAX).map(|_| 1u8);
        assert_eq!(collected(endless), Err(Error::OutOfMemory { bytes: usize::MAX }));
    }

    #[test]
    fn what_fits_is_there() {
        assert_eq!(zeroed::<u16>(3), Ok(vec![0; 3]));
        assert_eq!(copied(&[1, 2]), Ok(vec![1, 2]));
        assert_eq!(collected([3, 4].iter().map(|x| x + 1)), Ok(vec![4, 5]));
        assert_eq!(from_bytes::<u16>(&[1, 0, 2, 0, 9][..]), Ok(vec![1, 2]));
    }
}
