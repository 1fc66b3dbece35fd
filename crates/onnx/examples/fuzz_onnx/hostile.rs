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

/// The folder, made once and left to the system's folder of temporary files.
fn folder() -> Result<&'static Path, String> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOLDER.get_or_init(|| make().map_err(|e| e.to_string())).as_deref().map_err(String::clone)
}

fn make() -> std::io::Result<PathBuf> {
    let root = std::env::temp_dir().join(format!("olivine-fuzz-{}", std::process::id()));
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
    // Removed first: a file system may write a file that is shortened and filled again to the disk at once.
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, bytes).map_err(|e| e.to_string())?;
    let links = [Links::Folder, Links::Cache, Links::Anywhere][rng.below(3)];
    let loaded = Model::load_with(&path, &LoadOptions { links });
    if let (Ok(model), Links::Folder | Links::Cache) = (&loaded, links) {
        let holds = |tensor: &olivine_ir::Tensor| tensor.to_f64().contains(&f64::from(SECRET));
        if let Some((name, _)) = model.weights().find(|(_, tensor)| holds(tensor)) {
            return Err(format!("weight `{name}` was read from outside the folder"));
        }
    }
    Ok(loaded)
}
