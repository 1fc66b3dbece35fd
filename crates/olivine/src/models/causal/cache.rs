//! What key-value caches are made of.

use std::fmt;
use std::str::FromStr;

use olivine_ir::op::KvAppend;
use olivine_ir::{DType, Shape, TensorType, nearest};

use super::PAGE;
use super::config::{Config, Key, Mixer};
use super::source::Source;
use crate::Error;

/// The elements of key-value caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheType {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit floats with the range of f32.
    BF16,
    /// Blocks of 32 elements of a head: 8 bits for each and an f16 scale for all, 34 bytes. Head dims are multiples of 32.
    Q8_0,
}

impl CacheType {
    /// All of them.
    pub const ALL: [CacheType; 4] = [CacheType::F32, CacheType::F16, CacheType::BF16, CacheType::Q8_0];

    /// Its name: `q8_0`.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::Q8_0 => KvAppend::FORMAT.name(),
            plain => plain.rows().name(),
        }
    }

    /// The dtype of rows on their way to caches, and of what is attended with.
    pub fn rows(self) -> DType {
        match self {
            CacheType::F32 | CacheType::Q8_0 => DType::F32,
            CacheType::F16 => DType::F16,
            CacheType::BF16 => DType::BF16,
        }
    }

    /// The type of a pool of so many pages, for rows of these heads and dims.
    pub fn pool(self, pages: usize, [heads, dim]: [usize; 2]) -> Result<TensorType, Error> {
        let elements = Shape::new(&[pages, PAGE, heads, dim])?;
        Ok(match self {
            CacheType::Q8_0 => TensorType::packed(KvAppend::FORMAT, elements)?,
            plain => TensorType::new(plain.rows(), elements),
        })
    }

    /// Checks that heads are whole blocks.
    pub(super) fn check(self, config: &Config, source: &Source) -> Result<(), Error> {
        let attends = config.mixers.iter().any(|mixer| matches!(mixer, Mixer::Attention { .. }));
        if self != CacheType::Q8_0 || !attends {
            return Ok(());
        }
        let block = KvAppend::FORMAT.elements();
        let dims = [("attention.key_length", config.key_dim), ("attention.value_length", config.value_dim)];
        match dims.into_iter().find(|(_, dim)| !dim.is_multiple_of(block)) {
            None => Ok(()),
            Some((gguf, dim)) => Err(source.bad_key(
                Key { gguf, json: "head_dim" },
                format!("caches of {self} need heads of a multiple of {block} elements, these have {dim}"),
            )),
        }
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CacheType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let unknown = || Error::UnknownName {
            kind: "type of caches",
            name: name.into(),
            nearest: nearest(name, CacheType::ALL.map(CacheType::name)),
        };
        CacheType::ALL.into_iter().find(|known| known.name() == name).ok_or_else(unknown)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn types_have_names_and_pools() {
        for cache in CacheType::ALL {
            assert_eq!(cache.to_string().parse::<CacheType>().unwrap(), cache);
        }
        let problem = "q8".parse::<CacheType>().unwrap_err().to_string();
        assert!(problem.contains("q8"), "{problem}");
        assert!("i32".parse::<CacheType>().is_err());
        assert_eq!(CacheType::Q8_0.pool(3, [2, 64]).unwrap().bytes(), 3 * PAGE * 2 * 68);
        assert_eq!(CacheType::BF16.pool(3, [2, 64]).unwrap().bytes(), 3 * PAGE * 2 * 128);
        assert!(CacheType::Q8_0.pool(3, [2, 80]).is_err());
    }
}
