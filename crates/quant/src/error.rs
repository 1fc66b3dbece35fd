//! What can be wrong with blocks.

use crate::BlockFormat;

/// Why bytes or elements cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that no format has.
    #[error("there is no block format `{name}`")]
    UnknownFormat {
        /// The name.
        name: String,
    },
    /// Elements that are not whole blocks.
    #[error("{elements} elements are not whole blocks: {format} has {} in a block", .format.elements())]
    NotWholeBlocks {
        /// The format.
        format: BlockFormat,
        /// How many there are.
        elements: usize,
    },
    /// Bytes that are not those of so many elements.
    #[error("{elements} elements of {format} take {expected} bytes, not {found}")]
    WrongLength {
        /// The format.
        format: BlockFormat,
        /// How many elements there are.
        elements: usize,
        /// Their bytes.
        expected: usize,
        /// The bytes that there are.
        found: usize,
    },
    /// Importance weights of another length than the row.
    #[error("{found} importance weights for rows of {expected} elements")]
    WrongImportance {
        /// Elements.
        expected: usize,
        /// Weights.
        found: usize,
    },
    /// A format that only decodes.
    #[error("{format} can be read but not written")]
    CannotEncode {
        /// The format.
        format: BlockFormat,
    },
    /// Elements that no block holds.
    #[error("element {index} is {value}: {format} holds finite numbers only")]
    NotFinite {
        /// The format.
        format: BlockFormat,
        /// Which.
        index: usize,
        /// What it is, in words.
        value: String,
    },
    /// Elements beyond the largest scale.
    #[error("an element of the block at {index} is {value}: beyond what a scale of {format} holds")]
    TooLarge {
        /// The format.
        format: BlockFormat,
        /// The first element of the block.
        index: usize,
        /// The largest magnitude in it, in words.
        value: String,
    },
    /// Memory that is not there.
    #[error("out of memory: {bytes} bytes for packed blocks")]
    OutOfMemory {
        /// How many were asked for.
        bytes: usize,
    },
}
