//! The files of a model: mapped once each, and only from the model's own folder.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use crate::error::Error;
use mapping::Mapping;

/// The files that a model's tensors lie in.
#[derive(Default)]
pub(crate) struct Files {
    /// Where external data are looked for; a model from memory has no such place.
    folder: Option<PathBuf>,
    mapped: Mutex<HashMap<PathBuf, Mapping>>,
    /// Elements that the files do not hold: zeros of sparse tensors.
    written_out: AtomicUsize,
}

/// Elements that all sparse tensors of a model may come to when their zeros are written down: a small file must not ask
/// for much memory.
const MAX_WRITTEN_OUT: usize = 1 << 27;

/// Why a file beside the model cannot be had.
pub(crate) enum Refused {
    /// The model asks for what it must not have.
    Model(String),
    /// The file cannot be read.
    File(Error),
}

impl Files {
    /// A model file's bytes, and the files beside it.
    pub(crate) fn of_model(path: &Path) -> Result<(Bytes, Files), Error> {
        let folder = path.parent().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
        let mapping = map(path)?;
        let bytes = mapping.bytes();
        let mapped = Mutex::new(HashMap::from([(path.to_path_buf(), mapping)]));
        let folder = folder.map(Path::to_path_buf);
        Ok((bytes, Files { folder, mapped, ..Files::default() }))
    }

    /// The bytes of a file beside the model.
    pub(crate) fn beside(&self, location: &str) -> Result<Bytes, Refused> {
        let folder = self.folder.as_deref().ok_or_else(|| {
            Refused::Model(format!("its data are in `{location}`, and a model from memory has no folder"))
        })?;
        let path = inside(folder, location)?;
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mapping) = mapped.get(&path) {
            return Ok(mapping.bytes());
        }
        let mapping = map(&path).map_err(Refused::File)?;
        let bytes = mapping.bytes();
        mapped.insert(path, mapping);
        Ok(bytes)
    }

    /// Whether so many more elements may be written out.
    pub(crate) fn write_out(&self, elements: usize) -> Result<(), String> {
        let before = self.written_out.fetch_add(elements.min(MAX_WRITTEN_OUT), Ordering::Relaxed);
        if before.saturating_add(elements) <= MAX_WRITTEN_OUT {
            return Ok(());
        }
        Err(format!("with their zeros the model's sparse tensors have over {MAX_WRITTEN_OUT} elements"))
    }

    /// Gives back the memory of bytes that were copied; they are read again if anyone asks for them.
    pub(crate) fn release(&self, part: &Bytes) {
        let mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.values().for_each(|mapping| mapping.release(part));
    }
}

/// A path below a folder, or why it is refused: a model must not read what lies outside its own folder, not even by a
/// link.
fn inside(folder: &Path, location: &str) -> Result<PathBuf, Refused> {
    let outside = || Refused::Model(format!("external data `{location}` lie outside the model's folder"));
    let relative = Path::new(location);
    if !relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(outside());
    }
    let path = folder.join(relative);
    let real = |path: &Path| {
        let failed = |source| Refused::File(Error::File { path: path.to_path_buf(), source });
        path.canonicalize().map_err(failed)
    };
    let (found, root) = (real(&path)?, real(folder)?);
    if found.starts_with(&root) { Ok(found) } else { Err(outside()) }
}

/// A file's bytes, read as they are needed. What is no plain file is refused: a pipe would never end.
fn map(path: &Path) -> Result<Mapping, Error> {
    let failed = |source| Error::File { path: path.to_path_buf(), source };
    let about = std::fs::metadata(path).map_err(failed)?;
    if !about.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file")));
    }
    if about.len() == 0 {
        return Ok(Mapping::empty());
    }
    Mapping::new(&File::open(path).map_err(failed)?).map_err(failed)
}

/// Mapping a file into memory, the one thing here that the compiler cannot check.
#[allow(unsafe_code)]
mod mapping {
    use std::fs::File;
    use std::io;
    use std::sync::Arc;

    use bytes::Bytes;
    use memmap2::Mmap;

    /// A file in memory; `None` without bytes.
    pub(super) struct Mapping(Option<Arc<Mmap>>);

    /// The mapping lives as long as anything that lies in it.
    struct Owner(Arc<Mmap>);

    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Mapping {
        pub(super) fn empty() -> Self {
            Mapping(None)
        }

        pub(super) fn new(file: &File) -> io::Result<Self> {
            // SAFETY: the mapping is private and read-only. Another process that changes the file changes numbers; one
            // that truncates it ends this process when those pages are read, as with every mapped file.
            let mapped = unsafe { Mmap::map(file) }?;
            Ok(Mapping(Some(Arc::new(mapped))))
        }

        pub(super) fn bytes(&self) -> Bytes {
            self.0.as_ref().map_or_else(Bytes::new, |mapped| Bytes::from_owner(Owner(mapped.clone())))
        }

        /// Gives back the pages of a part, if it lies in here.
        #[cfg(unix)]
        pub(super) fn release(&self, part: &[u8]) {
            let Some(mapped) = &self.0 else { return };
            let Some(offset) = part.as_ptr().addr().checked_sub(mapped.as_ptr().addr()) else { return };
            if offset.checked_add(part.len()).is_some_and(|end| end <= mapped.len()) {
                // SAFETY: the pages of a private mapping that nobody can write come from the file again when they are
                // next read. Failure leaves them where they are.
                let _ = unsafe {
                    mapped.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, part.len())
                };
            }
        }

        #[cfg(not(unix))]
        pub(super) fn release(&self, _: &[u8]) {}
    }
}
