//! A folder of files that mean harm, for models whose weights are in other files: links that lead out of it or to
//! themselves, a pipe, a device, a folder. Nothing outside may be read, and nothing may wait.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use olivine_onnx::{Error, Links, LoadOptions, Model};

use crate::mutate::Rng;

/// What the files outside hold; no weight may.
const SECRET: f32 = 1234.5;

/// Paths that models of the corpus name.
pub(crate) const LOCATIONS: [&str; 10] =
    ["w", "./w", "blob", "out", "up/secret", "../secret", "pipe", "zero", "folder", "loop"];

static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// The folder, made when first needed.
fn folder() -> Result<&'static Path, String> {
    FOLDER.get_or_init(|| make().map_err(|e| e.to_string())).as_deref().map_err(String::clone)
}

/// Removes the folder, if it was made.
pub(crate) fn remove() {
    if FOLDER.get().is_some() {
        let _ = std::fs::remove_dir_all(root());
    }
}

/// In memory where the system has a folder for that: a disk that is busy elsewhere would set the rate.
fn root() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    parent.join(format!("olivine-fuzz-{}", std::process::id()))
}

fn make() -> std::io::Result<PathBuf> {
    let root = root();
    let model = root.join("cache/snapshots/x");
    std::fs::create_dir_all(model.join("folder"))?;
    std::fs::create_dir_all(root.join("cache/blobs"))?;
    let two = |value: f32| [value; 2].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    std::fs::write(model.join("w"), two(1.0))?;
    std::fs::write(root.join("cache/blobs/0123"), two(2.0))?;
    std::fs::write(root.join("cache/secret"), two(SECRET))?;
    std::fs::write(root.join("cache/snapshots/secret"), two(3.0))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink("../../blobs/0123", model.join("blob"))?;
        symlink("../../secret", model.join("out"))?;
        symlink("../..", model.join("up"))?;
        symlink("/dev/zero", model.join("zero"))?;
        symlink("loop", model.join("loop"))?;
        std::process::Command::new("mkfifo").arg(model.join("pipe")).status()?;
    }
    Ok(model)
}

/// Reads a model from a file of the folder, with links as chance has it.
pub(crate) fn load(bytes: &[u8], rng: &mut Rng) -> Result<Result<Model, Error>, String> {
    let path = folder()?.join("m.onnx");
    // Removed first: the model before this one may still be mapped.
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, bytes).map_err(|e| e.to_string())?;
    let links = [Links::Folder, Links::Cache, Links::Anywhere][rng.below(3)];
    let loaded = Model::load_with(&path, &LoadOptions::new().links(links));
    if let (Ok(model), Links::Folder | Links::Cache) = (&loaded, links) {
        let holds = |tensor: &olivine_ir::Tensor| tensor.to_f64().contains(&f64::from(SECRET));
        if let Some((name, _)) = model.weights().find(|(_, tensor)| holds(tensor)) {
            return Err(format!("weight `{name}` was read from outside the folder"));
        }
    }
    Ok(loaded)
}
