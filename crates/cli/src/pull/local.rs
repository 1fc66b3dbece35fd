//! Files and folders of this machine.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::partial::{Partial, hex};
use super::{PullArgs, Pulled, check, failed, target};
use crate::answer::Failure;
use crate::progress::Bytes;

const BUFFER: usize = 1 << 20;
/// Folders inside each other at most, and files in all of them.
const DEEPEST: usize = 16;
const MOST_FILES: usize = 100_000;

/// Copies a file or a folder, or hashes it where it is.
pub(super) fn pull(source: &Path, args: &PullArgs, quiet: bool) -> Result<Vec<Pulled>, Failure> {
    let meta = std::fs::metadata(source).map_err(|e| failed("read", source, &e))?;
    if meta.is_dir() {
        return pull_folder(source, args, quiet);
    }
    let Some(out) = &args.out else {
        let found = hash(source, quiet)?;
        check(source, &found.sha256, args.sha256.as_deref())?;
        return Ok(vec![found]);
    };
    let name = source.file_name().map(|name| name.to_string_lossy().into_owned());
    let to = target(Some(out), name.as_deref(), args.force)?;
    Ok(vec![copy(source, &to, args.sha256.as_deref(), quiet)?])
}

fn pull_folder(source: &Path, args: &PullArgs, quiet: bool) -> Result<Vec<Pulled>, Failure> {
    if args.sha256.is_some() {
        return Err(Failure::new("--sha256 is for one file, and the source is a folder"));
    }
    let mut files = Vec::new();
    list(source, Path::new(""), 0, &mut files)?;
    let Some(out) = &args.out else {
        return files.iter().map(|file| hash(&source.join(file), quiet)).collect();
    };
    let inside = |path: &Path| {
        path.canonicalize().is_ok_and(|path| source.canonicalize().is_ok_and(|s| path.starts_with(s)))
    };
    if inside(out) || out.parent().is_some_and(inside) {
        return Err(Failure::new(format!("`{}` is inside the folder that is copied", out.display())));
    }
    // A name that is taken is found before anything is written.
    let to: Vec<PathBuf> =
        files.iter().map(|file| target(Some(&out.join(file)), None, args.force)).collect::<Result<_, _>>()?;
    files.iter().zip(&to).map(|(file, to)| copy(&source.join(file), to, None, quiet)).collect()
}

/// The plain files of a folder, by their paths in it.
fn list(root: &Path, folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let path = root.join(folder);
    if depth > DEEPEST || files.len() > MOST_FILES {
        return Err(Failure::new(format!("`{}` has too many files or folders", root.display())));
    }
    let read = || std::fs::read_dir(&path)?.collect::<Result<Vec<_>, _>>();
    let mut entries = read().map_err(|e| failed("read", &path, &e))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        // Links of files are followed, as in a Hugging Face cache; links of folders are not.
        let linked = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        let inner = folder.join(&name);
        match std::fs::metadata(entry.path()).map_err(|e| failed("read", &entry.path(), &e))? {
            meta if meta.is_dir() && !linked => list(root, &inner, depth + 1, files)?,
            meta if meta.is_file() => files.push(inner),
            _ => {}
        }
    }
    Ok(())
}

/// Reads a file in parts.
fn each(
    path: &Path,
    quiet: bool,
    mut part: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let open = || {
        let file = olivine_files::open_plain(path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    };
    let (mut file, length) = open().map_err(|e: std::io::Error| failed("read", path, &e))?;
    let mut progress = Bytes::new(Some(length), 0, quiet);
    let mut buffer = vec![0; BUFFER];
    let mut total = 0;
    loop {
        let count = file.read(&mut buffer).map_err(|e| failed("read", path, &e))?;
        if count == 0 {
            return Ok(total);
        }
        part(&buffer[..count])?;
        progress.add(count);
        total += count as u64;
    }
}

/// The digest of a file where it is.
pub(super) fn hash(path: &Path, quiet: bool) -> Result<Pulled, Failure> {
    let mut hash = Sha256::new();
    let bytes = each(path, quiet, |part| {
        hash.update(part);
        Ok(())
    })?;
    Ok(Pulled { path: path.to_path_buf(), bytes, sha256: hex(hash), resumed: 0 })
}

fn copy(from: &Path, to: &Path, wanted: Option<&str>, quiet: bool) -> Result<Pulled, Failure> {
    let mut partial = Partial::open(to)?;
    partial.restart()?;
    each(from, quiet, |part| partial.append(part))?;
    partial.finish(wanted, 0)
}
