//! Machines without Vulkan: errors with reasons, found in processes that do not see the loader or the drivers.

use std::path::Path;
use std::process::Command;

use olivine_vulkan::{Device, Error, Options, Select, devices};

use crate::support::folder;

const INSIDE: &str = "OLIVINE_TEST_WITHOUT_VULKAN";

/// Runs a test of this program again in a process of its own, with the variable set to say so.
fn again(test: &str, variables: &[(&str, &Path)]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    variables.iter().for_each(|(name, value)| {
        child.env(name, value);
    });
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    true
}

fn unavailable(with: &str) {
    for error in [devices().err(), Device::open(&Select::Auto, &Options::default()).err()] {
        match error {
            Some(Error::Unavailable(text)) => {
                assert!(text.contains(with) && text.contains("install"), "{text}")
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn without_a_loader_there_is_a_reason() {
    let dir = folder("no-loader");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("libvulkan.so.1"), b"not a library").unwrap();
    if !again("absent::without_a_loader_there_is_a_reason", &[("LD_LIBRARY_PATH", &dir)]) {
        unavailable("loader");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn without_a_driver_there_is_a_reason() {
    let nowhere = Path::new("/nonexistent/driver.json");
    let hidden = [("VK_ICD_FILENAMES", nowhere), ("VK_DRIVER_FILES", nowhere)];
    if !again("absent::without_a_driver_there_is_a_reason", &hidden) {
        unavailable("found no driver");
    }
}
