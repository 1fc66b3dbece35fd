//! Commands on GGUF files.
//!
//! ```text
//!   inspect.rs   metadata, types and tensors
//!   quantize.rs  a file with other types
//! ```

pub(crate) mod inspect;
pub(crate) mod quantize;

use std::path::Path;

use olivine_gguf::Gguf;

use crate::answer::Failure;

/// Whether a file is GGUF, by its first bytes.
pub(crate) fn is_gguf(path: &Path) -> bool {
    let Ok((start, all)) = olivine_files::read_start(path) else { return false };
    olivine_files::Format::of_start(&start, all) == Some(olivine_files::Format::Gguf)
}

fn open(path: &Path) -> Result<Gguf, Failure> {
    Gguf::open(path)
        .map_err(|e| Failure::new(e.to_string()).context(format!("cannot load `{}`", path.display())))
}
