//! Block formats of quantised weights. A row is cut into blocks of 32 to 256 elements; a block holds a few bits for each
//! and the scales that they share.
//!
//! ```text
//!   BlockFormat: elements and bytes of a block
//!       │
//!       ├── decode: bytes ──► f32    bit for bit what ggml gives
//!       └── encode: f32 ──► bytes
//! ```
//!
//! ```
//! use olivine_quant::{BlockFormat, decode, encode};
//! let row: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
//! let packed = encode(BlockFormat::Q8_0, &row, None)?;
//! assert_eq!(packed.len(), 68); // 34 bytes for 32 elements
//! let mut back = vec![0.0; 64];
//! decode(BlockFormat::Q8_0, &packed, &mut back)?;
//! assert!(row.iter().zip(&back).all(|(x, y)| (x - y).abs() < 0.005));
//! # Ok::<(), olivine_quant::Error>(())
//! ```
#![forbid(unsafe_code)]

mod decode;
mod encode;
mod error;
mod format;
mod grids;

pub use decode::{IQ4_VALUES, code_book, decode};
pub use encode::{can_encode, encode, encode_q8_0};
pub use error::Error;
pub use format::BlockFormat;
