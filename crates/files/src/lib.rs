//! Files under hostile conditions: plain files only, bounded reads, and caches that no other user can write.
//!
//! ```text
//!   contents.rs  a whole file, mapped or in memory
//!   plain.rs     opens and reads: never a pipe, a device, a socket or a folder
//!   cache.rs     a folder of this user: checked reads, atomic replacement, locks
//!   seal.rs      bytes with their length and hash
//!   format.rs    the format of a file, from its first bytes
//!   stderr.rs    a line that drivers print, caught
//! ```
//!
//! ```
//! let folder = std::env::temp_dir();
//! let error = olivine_files::read_plain(&folder, 1 << 20).unwrap_err();
//! assert!(error.to_string().contains("folder"));
//! ```
#![deny(unsafe_code)]

mod cache;
mod contents;
mod format;
mod plain;
mod seal;
mod stderr;

pub use cache::{CacheFolder, Lock, Untrusted, cache_file_name, default_cache_dir};
pub use contents::Contents;
pub use format::Format;
pub use plain::{open_plain, open_unlinked, read_bounded, read_plain, read_start, read_text};
pub use seal::{SEAL_BYTES, seal, unseal};
pub use stderr::without_stray_lines;
