//! `olivine doctor`: what Olivine needs on this machine, and the command that installs what is missing.

mod packages;
mod vulkan;

use olivine::internals::SessionExt as _;
use olivine::ir::{DType, Graph, Tensor};
use olivine::{Backend, Device, DeviceInfo, Session};
use serde_json::json;

use crate::answer::{Answer, Failure};
use crate::table::Table;
use crate::{Global, memory, timing};

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
        Ok(()) => (Check::ok("CPU device", "a test matmul is right"), None),
        Err(failure) => (
            Check::missing("CPU device", "a test matmul failed", None),
            Some(failure.context("the CPU device does not work")),
        ),
    };
    let mut checks = vec![vector_features(), threads(global), memory_available(), cpu];
    checks.extend(backends());
    checks.extend(matrices(global));
    checks.extend(if global.no_ptx { None } else { ptx(global) });
    checks.extend(vulkan::checks());

    let mut table = Table::new(&["status", "what", "found", "how to fix it"]);
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
    let matmul = Session::with_options(Device::Cpu, global.options())?.compile(&g)?;
    matmul.set_param("w", Tensor::new([2, 2], vec![5f32, 6.0, 7.0, 8.0])?)?;
    let x = Tensor::new([2, 2], vec![1f32, 2.0, 3.0, 4.0])?;
    let out = matmul.run([("x", &x)])?;
    let y = out.get("y")?.as_slice::<f32>()?;
    if y == [19.0, 22.0, 43.0, 50.0] {
        Ok(())
    } else {
        Err(Failure::new(format!("a matmul returned {y:?} instead of [19, 22, 43, 50]")))
    }
}

fn vector_features() -> Check {
    let features = olivine::internals::cpu::features();
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
        None => Check::ok("memory", "this system does not report it"),
    }
}

/// Whether the cooperative matrices of every GPU that is there, or of the one asked for, are right.
fn matrices(global: &Global) -> Vec<Check> {
    const WHAT: &str = "cooperative matrices";
    let devices = match global.device.as_deref().map(str::parse::<Device>) {
        Some(Ok(device)) => vec![device],
        Some(Err(error)) => return vec![Check::missing(WHAT, error.to_string(), None)],
        None => {
            let there = olivine::devices().into_iter().filter(|info| info.unavailable.is_none());
            there.map(|info| info.device).filter(|device| device.backend() != Backend::Cpu).collect()
        }
    };
    let tried = |device: Device| {
        let name = device.to_string();
        let findings =
            Session::with_options(device, global.options()).and_then(|session| session.try_matrices());
        match findings {
            Ok(findings) => {
                let wrong: Vec<String> =
                    findings.iter().filter(|f| f.problem.is_some()).map(|f| f.to_string()).collect();
                match (findings.len(), wrong.is_empty()) {
                    (0, _) => Check::ok(WHAT, format!("{name} has none")),
                    (all, true) => Check::ok(WHAT, format!("{name}: {all} known matmuls are right")),
                    (_, false) => {
                        let fix = "another driver version; until then slower kernels are used";
                        Check::missing(WHAT, wrong.join("; "), Some(fix))
                    }
                }
            }
            Err(error) => Check::missing(WHAT, format!("{name}: {error}"), None),
        }
    };
    devices.into_iter().map(tried).collect()
}

/// Whether the Vulkan device takes kernels as PTX. Nothing is said of devices that cannot, unless --ptx asks for it.
fn ptx(global: &Global) -> Option<Check> {
    const WHAT: &str = "PTX";
    let missing = |found: String, fix| global.ptx.then(|| Check::missing(WHAT, found, fix));
    let device = match global.device.as_deref().map(str::parse::<Device>) {
        Some(Ok(device)) if device.backend() == Backend::Vulkan => device,
        None => Device::Vulkan,
        _ => return missing("only Vulkan devices take it".into(), Some("--device vulkan")),
    };
    let name = device.to_string();
    let session = match Session::with_options(device, global.options()) {
        Ok(session) => session,
        Err(error) => return missing(format!("{name}: {error}"), None),
    };
    let Some((capability, warpgroups, int8)) = session
        .caps()
        .and_then(|caps| Some((caps.ptx?, caps.target.warpgroups, caps.target.int8_warpgroups)))
    else {
        let found = format!("{name}: not used; its driver has no VK_NVX_binary_import or failed the trial");
        return missing(found, Some("an NVIDIA card and its driver; kernels run as SPIR-V until then"));
    };
    let with = match (warpgroups, int8) {
        (true, true) => ", and so are warpgroups",
        (true, false) => ", and so are warpgroups, but not of integers",
        _ => "",
    };
    Some(Check::ok(
        WHAT,
        format!("{name}: a known kernel is right{with}, for compute capability {capability}"),
    ))
}

/// A device's name, and whether it is a GPU at all.
fn described(info: &DeviceInfo) -> String {
    if info.processor { format!("{} (software, on the processor)", info.name) } else { info.name.clone() }
}

/// The GPU backends of this build and the devices they reach.
fn backends() -> Vec<Check> {
    let devices = olivine::devices();
    [(Backend::Vulkan, "Vulkan backend"), (Backend::Wgpu, "wgpu backend")]
        .into_iter()
        .map(|(backend, what)| {
            let of_backend = || devices.iter().filter(|info| info.device.backend() == backend);
            let there: Vec<&DeviceInfo> = of_backend().filter(|i| i.unavailable.is_none()).collect();
            let names: Vec<String> = there.iter().map(|info| described(info)).collect();
            let fix = format!("{}; until then models run on the CPU", packages::drivers());
            match of_backend().find_map(|info| info.unavailable.clone()) {
                _ if there.is_empty() => {
                    let reason = of_backend().find_map(|info| info.unavailable.clone());
                    Check::missing(what, reason.unwrap_or("no device".into()), Some(&fix))
                }
                // A second device that cannot be used is listed beside those that can.
                Some(reason) => Check::ok(what, format!("{}; another: {reason}", names.join(", "))),
                None => Check::ok(what, names.join(", ")),
            }
        })
        .collect()
}
