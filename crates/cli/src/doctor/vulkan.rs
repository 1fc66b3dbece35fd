//! The Vulkan loader, drivers and layers of this machine, by the files that stand for them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Check, packages};

/// Where manifests are, below a kind of folder such as `icd.d`.
const FOLDERS: [&str; 3] = ["/usr/share/vulkan", "/etc/vulkan", "/usr/local/share/vulkan"];
/// Variables with the drivers' manifests, before any folder; the older name is still read.
const DRIVER_VARIABLES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// Loader, drivers and validation layer.
pub(super) fn checks() -> Vec<Check> {
    if !cfg!(target_os = "linux") {
        return vec![Check::ok("Vulkan loader", "not looked for on this system")];
    }
    let loader = match find_library("libvulkan.so.1") {
        Some(path) => Check::ok("Vulkan loader", path.display().to_string()),
        None => Check::missing("Vulkan loader", "libvulkan.so.1 not found", Some(packages::drivers())),
    };
    vec![loader, drivers(), validation()]
}

fn drivers() -> Check {
    let variable = DRIVER_VARIABLES
        .iter()
        .find_map(|name| Some((name, std::env::var_os(name).filter(|v| !v.is_empty())?)));
    if let Some((name, value)) = variable {
        let (there, gone): (Vec<PathBuf>, _) = std::env::split_paths(&value).partition(|path| path.exists());
        return if gone.is_empty() {
            Check::ok("Vulkan driver", format!("{} ({name})", stems(&there).join(", ")))
        } else {
            let gone: Vec<String> = gone.iter().map(|path| path.display().to_string()).collect();
            let fix = format!("unset {name}, or let it name files that are there");
            Check::missing(
                "Vulkan driver",
                format!("{name} names {}, not found", gone.join(", ")),
                Some(&fix),
            )
        };
    }
    let found = stems(&manifests("icd.d"));
    if found.is_empty() {
        let fix =
            format!("{} (lavapipe among them needs no GPU), or the GPU maker's driver", packages::drivers());
        return Check::missing("Vulkan driver", "no driver manifest in vulkan/icd.d", Some(&fix));
    }
    Check::ok("Vulkan driver", found.join(", "))
}

/// Only `verify --validation` asks for the layer, so that its absence is no fault.
fn validation() -> Check {
    let found = stems(&manifests("explicit_layer.d"));
    if found.iter().any(|name| name.contains("khronos_validation")) {
        return Check::ok("Vulkan validation layer", "there");
    }
    let how = packages::layers();
    Check::ok("Vulkan validation layer", format!("not there; only `verify --validation` needs it: {how}"))
}

/// Where a shared library is: the loader's path, the usual folders, then the linker's cache.
fn find_library(name: &str) -> Option<PathBuf> {
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let usual = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/usr/local/lib64"];
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let folders = std::env::split_paths(&listed)
        .filter(|folder| folder.is_absolute())
        .chain(usual.iter().flat_map(|folder| [PathBuf::from(folder), Path::new(folder).join(&triple)]));
    folders.map(|folder| folder.join(name)).find(|path| path.exists()).or_else(|| linker_cache(name))
}

fn linker_cache(name: &str) -> Option<PathBuf> {
    ["ldconfig", "/sbin/ldconfig"].iter().find_map(|program| {
        let output = Command::new(program).arg("-p").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.trim_start().starts_with(name))?;
        line.rsplit_once("=> ").map(|(_, path)| PathBuf::from(path))
    })
}

/// The manifests of a kind.
fn manifests(kind: &str) -> Vec<PathBuf> {
    FOLDERS
        .iter()
        .filter_map(|folder| std::fs::read_dir(Path::new(folder).join(kind)).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect()
}

/// File names without their endings, in order.
fn stems(paths: &[PathBuf]) -> Vec<String> {
    let mut stems: Vec<String> =
        paths.iter().filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect();
    stems.sort();
    stems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_are_named_without_folder_and_ending() {
        let paths =
            [PathBuf::from("/etc/vulkan/icd.d/nvidia_icd.json"), PathBuf::from("/a/lvp_icd.x86_64.json")];
        assert_eq!(stems(&paths), ["lvp_icd.x86_64", "nvidia_icd"]);
    }
}
