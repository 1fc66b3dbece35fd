//! `olivine doctor`: what Olivine needs on this machine, and the line that mends what is missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use olivine::ir::{DType, Graph, Tensor};
use olivine::{Backend, Device, Session};
use serde_json::json;

use crate::answer::{Answer, Failure};
use crate::table::Table;
use crate::{Global, memory, timing};

/// The line that installs a Vulkan loader and Mesa's drivers on Debian and its kin.
const INSTALL_VULKAN: &str = "apt-get install mesa-vulkan-drivers libvulkan1";

/// One line of the report.
struct Check {
    what: &'static str,
    ok: bool,
    found: String,
    fix: Option<String>,
}

impl Check {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Check { what, ok: true, found: found.into(), fix: None }
    }

    fn missing(what: &'static str, found: impl Into<String>, fix: Option<&str>) -> Self {
        Check { what, ok: false, found: found.into(), fix: fix.map(String::from) }
    }
}

pub(crate) fn run(global: &Global) -> Result<Answer, Failure> {
    let (cpu, broken) = match try_cpu(global) {
        Ok(()) => (Check::ok("CPU device", "a test product is right"), None),
        Err(failure) => (
            Check::missing("CPU device", "a test product failed", None),
            Some(failure.context("the CPU device does not work")),
        ),
    };
    let mut checks = vec![vector_features(), threads(global), memory_available(), cpu];
    checks.extend(backends());
    checks.extend(vulkan_loader());

    let mut table = Table::new(&["status", "what", "found", "to mend"]);
    for check in &checks {
        let status = if check.ok { "ok" } else { "missing" };
        let fix = check.fix.clone().unwrap_or_default();
        table.row([status.into(), check.what.into(), check.found.clone(), fix]);
    }
    let rows: Vec<_> = checks
        .iter()
        .map(|c| json!({ "what": c.what, "ok": c.ok, "found": c.found, "fix": c.fix }))
        .collect();
    let json = json!({ "works": broken.is_none(), "checks": rows });
    Ok(Answer::new(table.to_string(), json).with_failure(broken))
}

/// Multiplies two small matrices whose product is known.
fn try_cpu(global: &Global) -> Result<(), Failure> {
    let mut g = Graph::new("doctor");
    let x = g.input("x", DType::F32, [2, 2])?;
    let w = g.param("w", DType::F32, [2, 2])?;
    let y = g.matmul(x, w)?;
    g.output("y", y)?;
    let product = Session::with_options(Device::Cpu, global.options())?.compile(&g)?;
    product.set_param("w", Tensor::new([2, 2], vec![5f32, 6.0, 7.0, 8.0])?)?;
    let x = Tensor::new([2, 2], vec![1f32, 2.0, 3.0, 4.0])?;
    let out = product.run([("x", &x)])?;
    let y = out.get("y")?.as_slice::<f32>()?;
    if y == [19.0, 22.0, 43.0, 50.0] {
        Ok(())
    } else {
        Err(Failure::new(format!("a product gave {y:?} instead of [19, 22, 43, 50]")))
    }
}

fn vector_features() -> Check {
    let features = olivine::cpu::features();
    let found = if features.is_empty() { "none known".into() } else { features.join(" ") };
    Check::ok("CPU vector features", format!("{found} ({})", std::env::consts::ARCH))
}

fn threads(global: &Global) -> Check {
    Check::ok("CPU threads", global.thread_count().to_string())
}

fn memory_available() -> Check {
    match memory::total_and_available() {
        Some((total, available)) => {
            Check::ok("memory", format!("{} available of {}", timing::bytes(available), timing::bytes(total)))
        }
        None => Check::ok("memory", "this system does not tell"),
    }
}

/// The GPU backends of this build and the devices they reach.
fn backends() -> Vec<Check> {
    let devices = olivine::devices();
    [(Backend::Vulkan, "Vulkan backend"), (Backend::Wgpu, "wgpu backend")]
        .into_iter()
        .map(|(backend, what)| {
            let of_backend = || devices.iter().filter(|info| info.device.backend() == backend);
            let names: Vec<String> =
                of_backend().filter(|i| i.unavailable.is_none()).map(|i| i.name.clone()).collect();
            match of_backend().find_map(|info| info.unavailable.clone()) {
                _ if !names.is_empty() => Check::ok(what, names.join(", ")),
                Some(reason) => {
                    Check::missing(what, reason, Some("nothing to install; models run on the CPU"))
                }
                None => Check::missing(what, "no device", None),
            }
        })
        .collect()
}

/// The Vulkan loader and its drivers on this machine, whether or not this build uses them.
fn vulkan_loader() -> Vec<Check> {
    if !cfg!(target_os = "linux") {
        return vec![Check::ok("Vulkan loader", "not looked for on this system")];
    }
    let loader = match find_library("libvulkan.so.1") {
        Some(path) => Check::ok("Vulkan loader", path.display().to_string()),
        None => Check::missing("Vulkan loader", "libvulkan.so.1 not found", Some(INSTALL_VULKAN)),
    };
    let drivers = vulkan_drivers();
    let driver = if drivers.is_empty() {
        Check::missing("Vulkan driver", "no driver manifest in vulkan/icd.d", Some(INSTALL_VULKAN))
    } else {
        Check::ok("Vulkan driver", drivers.join(", "))
    };
    vec![loader, driver]
}

/// Where a shared library lies: the loader's path, the usual folders, then the linker's cache.
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

/// The drivers' manifests by file name.
fn vulkan_drivers() -> Vec<String> {
    let mut found: Vec<String> =
        ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"]
            .iter()
            .filter_map(|folder| std::fs::read_dir(folder).ok())
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
            .collect();
    found.sort();
    found
}
