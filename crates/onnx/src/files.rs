//! The files of a model: mapped once each, and only from where links may lead.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use olivine_files::{open_plain, open_unlinked};

use crate::error::Error;
use mapping::Mapping;

/// How a model file is read.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Where links among the files beside the model may lead.
    pub links: Links,
    /// Whether a model with operators that cannot be imported is read all the same: to look at it, not to run it.
    pub allow_unsupported: bool,
}

impl LoadOptions {
    /// The defaults.
    pub fn new() -> Self {
        LoadOptions::default()
    }

    /// Where links among the files beside the model may lead.
    pub fn links(self, links: Links) -> Self {
        LoadOptions { links, ..self }
    }

    /// Whether operators that cannot be imported are no error.
    pub fn allow_unsupported(self, allow_unsupported: bool) -> Self {
        LoadOptions { allow_unsupported, ..self }
    }
}

/// Where links among a model's files may lead. External data are always named by a path below the model's folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// To files of the model's folder.
    Folder,
    /// Also to the files of the download cache that the model is in: in `NAME/snapshots/REVISION/`, as Hugging Face lays
    /// it out, to `NAME/blobs/` and `NAME/snapshots/`.
    #[default]
    Cache,
    /// To any file.
    Anywhere,
}

/// The files that a model's tensors are in.
#[derive(Default)]
pub(crate) struct Files {
    /// Where external data are looked for; a model from memory has no such place.
    folder: Option<PathBuf>,
    links: Links,
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
    pub(crate) fn of_model(path: &Path, options: &LoadOptions) -> Result<(Bytes, Files), Error> {
        let folder = path.parent().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
        let mapping = map(path, open_plain)?;
        let bytes = mapping.bytes();
        let mapped = Mutex::new(HashMap::from([(path.to_path_buf(), mapping)]));
        let folder = folder.map(Path::to_path_buf);
        Ok((bytes, Files { folder, links: options.links, mapped, ..Files::default() }))
    }

    /// The bytes of a file beside the model.
    pub(crate) fn beside(&self, location: &str) -> Result<Bytes, Refused> {
        let folder = self.folder.as_deref().ok_or_else(|| {
            Refused::Model(format!("its data are in `{location}`, and a model from memory has no folder"))
        })?;
        let path = inside(folder, location, self.links)?;
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mapping) = mapped.get(&path) {
            return Ok(mapping.bytes());
        }
        // Links are resolved; one that has appeared since is not followed.
        let mapping = map(&path, open_unlinked).map_err(Refused::File)?;
        let bytes = mapping.bytes();
        mapped.insert(path, mapping);
        Ok(bytes)
    }

    /// Whether so many more elements may be made dense.
    pub(crate) fn write_out(&self, elements: usize) -> Result<(), String> {
        let before = self.written_out.fetch_add(elements.min(MAX_WRITTEN_OUT), Ordering::Relaxed);
        if before.saturating_add(elements) <= MAX_WRITTEN_OUT {
            return Ok(());
        }
        Err(format!("with their zeros the model's sparse tensors have over {MAX_WRITTEN_OUT} elements"))
    }

    /// Releases the memory of bytes that were copied; they are read again if anyone asks for them.
    pub(crate) fn release(&self, part: &Bytes) {
        let mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.values().for_each(|mapping| mapping.release(part));
    }
}

/// The file that a path below a folder leads to, or why it is refused: a model must not read what is none of its own,
/// not even by a link.
fn inside(folder: &Path, location: &str, links: Links) -> Result<PathBuf, Refused> {
    let relative = Path::new(location);
    if !relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(Refused::Model(format!("external data `{location}` are outside the model's folder")));
    }
    let path = folder.join(relative);
    let real = |path: &Path| {
        let failed = |source| Refused::File(Error::File { path: path.to_path_buf(), source });
        path.canonicalize().map_err(failed)
    };
    let (found, root) = (real(&path)?, real(folder)?);
    let allowed = match links {
        Links::Folder => found.starts_with(&root),
        Links::Cache => {
            found.starts_with(&root) || cache_of(&root).iter().any(|part| found.starts_with(part))
        }
        Links::Anywhere => true,
    };
    if allowed {
        return Ok(found);
    }
    let place = if links == Links::Cache { "the model's folder and cache" } else { "the model's folder" };
    Err(Refused::Model(format!(
        "external data `{location}` are a link to `{}`, outside {place}; `Links::Anywhere` (`--links anywhere`) allows it",
        found.display()
    )))
}

/// The folders of the download cache that a folder is in, as Hugging Face lays it out: the files of all revisions, by
/// their content, and the revisions, which link to them. Nothing else beside them is part of the cache.
fn cache_of(folder: &Path) -> Vec<PathBuf> {
    let is_folder = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|about| about.is_dir());
    let snapshots =
        folder.ancestors().skip(1).find(|a| a.file_name().is_some_and(|name| name == "snapshots"));
    let blobs = snapshots.and_then(|s| Some(s.parent()?.join("blobs"))).filter(|blobs| is_folder(blobs));
    snapshots.zip(blobs).map_or_else(Vec::new, |(snapshots, blobs)| vec![snapshots.to_path_buf(), blobs])
}

/// A plain file's bytes, read as they are needed.
fn map(path: &Path, open: fn(&Path) -> std::io::Result<File>) -> Result<Mapping, Error> {
    let failed = |source| Error::File { path: path.to_path_buf(), source };
    let file = open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() == 0 {
        return Ok(Mapping::empty());
    }
    Mapping::new(&file).map_err(failed)
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

    /// The mapping lives as long as anything that is in it.
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

        /// Releases the pages of a part, if it is in here.
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
