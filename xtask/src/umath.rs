//! NumPy's validation sets of elementary functions, on every backend. They come out of NumPy's package, never committed.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Fails if a function is too far off on the CPU, through Vulkan or through wgpu.
pub(crate) fn check() -> Result<(), String> {
    let folder = sets()?;
    for device in ["cpu", "vulkan", "wgpu"] {
        let mut command = crate::cargo();
        command.args(["run", "-q", "-p", "olivine-cli", "--", "verify", "--device", device, "--umath"]);
        crate::run(command.arg(&folder))?;
    }
    Ok(())
}

/// Where the sets are: in the NumPy that Python has, else in one that pip puts under `target`.
fn sets() -> Result<PathBuf, String> {
    let script = "import numpy, pathlib; print(pathlib.Path(numpy.__file__).parent)";
    if let Ok(found) = Command::new("python3").args(["-c", script]).output()
        && found.status.success()
        && let Some(folder) = data(Path::new(String::from_utf8_lossy(&found.stdout).trim()))
    {
        return Ok(folder);
    }
    let target = crate::root().join("target/numpy");
    if let Some(folder) = data(&target.join("numpy")) {
        return Ok(folder);
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&target).arg("numpy");
    crate::run(&mut pip)?;
    data(&target.join("numpy")).ok_or_else(|| format!("no validation sets under {}", target.display()))
}

/// The folder of the sets in a package; distributions leave the tests out.
fn data(package: &Path) -> Option<PathBuf> {
    let folder = package.join("_core/tests/data");
    folder.join("umath-validation-set-exp.csv").is_file().then_some(folder)
}
