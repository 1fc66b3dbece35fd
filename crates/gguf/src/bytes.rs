//! A reader of little-endian numbers that cannot run past the end.

use crate::Error;

/// Where reading is in a file.
pub(crate) struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
    /// Version 1 has 32-bit lengths.
    pub(crate) short_lengths: bool,
}

/// A number of a file.
pub(crate) trait Number: Sized {
    /// Its bytes.
    const SIZE: usize;
    /// From exactly so many.
    fn of(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl Number for $ty {
            const SIZE: usize = size_of::<$ty>();
            fn of(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$ty>()];
                array.copy_from_slice(bytes);
                <$ty>::from_le_bytes(array)
            }
        }
    )*};
}

numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl<'a> Bytes<'a> {
    pub(crate) fn new(all: &'a [u8]) -> Self {
        Bytes { all, at: 0, short_lengths: false }
    }

    /// Bytes read so far.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.all.len() - self.at
    }

    pub(crate) fn take(&mut self, count: usize, what: &str) -> Result<&'a [u8], Error> {
        if count > self.left() {
            let problem = format!("it ends within {what}, at byte {}", self.all.len());
            return Err(Error::NotGguf { problem });
        }
        let bytes = &self.all[self.at..self.at + count];
        self.at += count;
        Ok(bytes)
    }

    pub(crate) fn number<N: Number>(&mut self, what: &str) -> Result<N, Error> {
        self.take(N::SIZE, what).map(N::of)
    }

    /// A length or count, which may not claim more things of a least size than bytes are left.
    pub(crate) fn count(&mut self, least: usize, what: &str) -> Result<usize, Error> {
        let count = self.length(what)?;
        match usize::try_from(count) {
            Ok(n) if n <= self.left() / least.max(1) => Ok(n),
            _ => {
                let problem = format!("{what} claims {count} entries, {} bytes are left", self.left());
                Err(Error::NotGguf { problem })
            }
        }
    }

    /// A length as it is written.
    pub(crate) fn length(&mut self, what: &str) -> Result<u64, Error> {
        if self.short_lengths { self.number::<u32>(what).map(u64::from) } else { self.number(what) }
    }

    pub(crate) fn string(&mut self, what: &str) -> Result<&'a str, Error> {
        let length = self.count(1, what)?;
        let bytes = self.take(length, what)?;
        std::str::from_utf8(bytes)
            .map_err(|e| Error::NotGguf { problem: format!("{what} is not UTF-8: {e}") })
    }
}
