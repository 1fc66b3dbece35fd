//! Devices: what is there, how one is named, and why the rest is missing.

use std::fmt;
use std::str::FromStr;

#[cfg(all(any(feature = "vulkan", feature = "wgpu"), not(target_arch = "wasm32")))]
use olivine_gpu::{DeviceCaps, DeviceKind};

use crate::Error;

/// A family of devices driven the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// This machine's processor.
    Cpu,
    /// GPUs through native Vulkan.
    Vulkan,
    /// GPUs through wgpu: Metal, DX12, WebGPU.
    Wgpu,
}

impl Backend {
    /// The word in a device's name.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            Backend::Vulkan => "vulkan",
            Backend::Wgpu => "wgpu",
        }
    }
}

/// Which device of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Choice {
    /// By position in [`devices`]; the order may change between boots.
    Index(usize),
    /// By the driver's identifier, which stays.
    Uuid([u8; 16]),
    /// The first whose name contains this, whatever the case.
    Name(String),
}

/// A device to run on.
///
/// ```
/// use olivine::Device;
/// assert_eq!("cpu".parse::<Device>()?, Device::Cpu);
/// assert_eq!("vulkan:1".parse::<Device>()?.to_string(), "vulkan:1");
/// assert!("vulcan".parse::<Device>().is_err());
/// # Ok::<(), olivine::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// This machine's processor.
    Cpu,
    /// The first Vulkan device.
    Vulkan,
    /// The first wgpu device.
    Wgpu,
    /// A certain device of a backend.
    Chosen(Backend, Choice),
}

impl Device {
    /// The fastest kind of device that is available: a GPU through Vulkan, one through wgpu, then the CPU.
    pub fn auto() -> Result<Device, Error> {
        devices()
            .into_iter()
            .find(|info| info.unavailable.is_none())
            .map(|info| info.device)
            .ok_or_else(|| Error::Unavailable { device: "auto".into(), reason: "no device at all".into() })
    }

    /// How the device is driven.
    pub fn backend(&self) -> Backend {
        match self {
            Device::Cpu => Backend::Cpu,
            Device::Vulkan => Backend::Vulkan,
            Device::Wgpu => Backend::Wgpu,
            Device::Chosen(backend, _) => *backend,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.backend().name())?;
        match self {
            Device::Chosen(_, Choice::Index(i)) => write!(f, ":{i}"),
            Device::Chosen(_, Choice::Uuid(bytes)) => {
                f.write_str(":uuid:")?;
                for (i, b) in bytes.iter().enumerate() {
                    write!(f, "{}{b:02x}", if [4, 6, 8, 10].contains(&i) { "-" } else { "" })?;
                }
                Ok(())
            }
            Device::Chosen(_, Choice::Name(name)) => write!(f, ":name:{name}"),
            _ => Ok(()),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |problem: String| Error::BadDevice { text: text.into(), problem };
        let (name, choice) = match text.split_once(':') {
            Some((name, choice)) => (name, Some(choice)),
            None => (text, None),
        };
        let (backend, first) = match name {
            "auto" if choice.is_none() => return Device::auto(),
            "cpu" if choice.is_none() => return Ok(Device::Cpu),
            "auto" | "cpu" => return Err(bad(format!("`{name}` takes no number"))),
            "vulkan" => (Backend::Vulkan, Device::Vulkan),
            "wgpu" => (Backend::Wgpu, Device::Wgpu),
            other => {
                let hint = olivine_ir::nearest(other, ["auto", "cpu", "vulkan", "wgpu"])
                    .map_or(String::new(), |n| format!("; did you mean `{n}`?"));
                return Err(bad(format!("unknown device{hint}")));
            }
        };
        match choice {
            None => Ok(first),
            Some(choice) => match choice.split_once(':') {
                Some(("uuid", uuid)) => parse_uuid(uuid)
                    .map(|u| Device::Chosen(backend, Choice::Uuid(u)))
                    .ok_or_else(|| bad("a UUID has 32 hexadecimal digits".into())),
                Some(("name", name)) if !name.is_empty() => {
                    Ok(Device::Chosen(backend, Choice::Name(name.into())))
                }
                _ => choice
                    .parse()
                    .map(|i| Device::Chosen(backend, Choice::Index(i)))
                    .map_err(|_| bad(format!("`{choice}` is neither a number nor uuid:… nor name:…"))),
            },
        }
    }
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> =
        text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let mut out = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(out)
}

/// What is known of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// How to ask for it.
    pub device: Device,
    /// The maker's name for it.
    pub name: String,
    /// The driver's identifier, where it has one: `vulkan:uuid:…` names the device by it.
    pub uuid: Option<[u8; 16]>,
    /// Driver, threads, features, memory in words.
    pub details: String,
    /// Whether it is this machine's processor, as itself or as a software GPU.
    pub processor: bool,
    /// Why it cannot be used, or `None` if it can.
    pub unavailable: Option<String>,
}

impl DeviceInfo {
    /// Whether a device's name can mean this one.
    pub fn is(&self, device: &Device) -> bool {
        match (device, &self.device) {
            (Device::Chosen(backend, Choice::Uuid(uuid)), of) => {
                of.backend() == *backend && self.uuid == Some(*uuid)
            }
            (Device::Chosen(backend, Choice::Name(name)), of) => {
                of.backend() == *backend && self.name.to_lowercase().contains(&name.to_lowercase())
            }
            (Device::Chosen(..), of) => of == device,
            (_, of) => of.backend() == device.backend(),
        }
    }
}

/// Every device of this machine, best first, and every backend that has none with the reason. GPUs come before the
/// CPU, and software GPUs after it.
pub fn devices() -> Vec<DeviceInfo> {
    let mut all = vulkan();
    all.extend(wgpu());
    all.push(cpu());
    let rank = |info: &DeviceInfo| match (&info.unavailable, info.processor, &info.device) {
        (None, false, _) => 0,
        (None, true, Device::Cpu) => 1,
        (None, true, _) => 2,
        _ => 3,
    };
    all.sort_by_key(rank);
    all
}

/// Whether a device can be used; never a crash.
pub fn is_available(device: Device) -> bool {
    // Asking the CPU need not wake a GPU driver.
    let known = match device.backend() {
        Backend::Cpu => vec![cpu()],
        Backend::Vulkan => vulkan(),
        Backend::Wgpu => wgpu(),
    };
    known.iter().any(|info| info.unavailable.is_none() && info.is(&device))
}

fn cpu() -> DeviceInfo {
    let features = olivine_cpu::features().join(" ");
    DeviceInfo {
        device: Device::Cpu,
        name: olivine_cpu::processor_name(),
        uuid: None,
        details: format!("{} threads · {features}", olivine_cpu::default_threads()),
        processor: true,
        unavailable: None,
    }
}

fn absent(device: Device, api: &str, reason: String) -> DeviceInfo {
    let details = String::new();
    DeviceInfo { device, name: api.into(), uuid: None, details, processor: false, unavailable: Some(reason) }
}

/// Why a backend is missing from this build.
#[cfg(not(all(feature = "vulkan", feature = "wgpu")))]
pub(crate) fn without(backend: Backend) -> String {
    format!("olivine was built without its feature `{}`", backend.name())
}

#[cfg(not(feature = "vulkan"))]
fn vulkan() -> Vec<DeviceInfo> {
    vec![absent(Device::Vulkan, "Vulkan", without(Backend::Vulkan))]
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> Vec<DeviceInfo> {
    vec![absent(Device::Wgpu, "wgpu", without(Backend::Wgpu))]
}

#[cfg(feature = "vulkan")]
fn vulkan() -> Vec<DeviceInfo> {
    let reports = match olivine_vulkan::devices() {
        Ok(reports) if reports.is_empty() => {
            return vec![absent(Device::Vulkan, "Vulkan", "no driver offers a device".into())];
        }
        Ok(reports) => reports,
        Err(problem) => return vec![absent(Device::Vulkan, "Vulkan", problem.to_string())],
    };
    let info = |report: olivine_vulkan::DeviceReport| DeviceInfo {
        device: Device::Chosen(Backend::Vulkan, Choice::Index(report.index)),
        name: report.caps.name.clone(),
        uuid: Some(report.uuid),
        details: details(&report.caps, &format!("Vulkan {}", report.api)),
        processor: report.caps.kind == DeviceKind::Cpu,
        unavailable: (!report.usable()).then(|| format!("the driver lacks {}", report.missing.join(", "))),
    };
    reports.into_iter().map(info).collect()
}

/// A browser says what it has only later; [`Session::open`](crate::Session::open) asks it.
#[cfg(all(feature = "wgpu", target_arch = "wasm32"))]
fn wgpu() -> Vec<DeviceInfo> {
    vec![absent(Device::Wgpu, "wgpu", Error::CannotBlock { call: "devices" }.to_string())]
}

#[cfg(all(feature = "wgpu", not(target_arch = "wasm32")))]
fn wgpu() -> Vec<DeviceInfo> {
    let reports = olivine_wgpu::devices();
    if reports.is_empty() {
        return vec![absent(Device::Wgpu, "wgpu", "no adapter: no GPU driver is installed".into())];
    }
    let info = |report: olivine_wgpu::AdapterReport| DeviceInfo {
        device: Device::Chosen(Backend::Wgpu, Choice::Index(report.index)),
        name: report.caps.name.clone(),
        uuid: None,
        details: details(&report.caps, report.api),
        processor: report.caps.kind == DeviceKind::Cpu,
        unavailable: None,
    };
    reports.into_iter().map(info).collect()
}

/// A device's driver, memory and features in a line.
#[cfg(all(any(feature = "vulkan", feature = "wgpu"), not(target_arch = "wasm32")))]
fn details(caps: &DeviceCaps, api: &str) -> String {
    let target = &caps.target;
    let mut features = Vec::new();
    features.extend(target.subgroup.map(|size| format!("subgroups of {size}")));
    let types = [("f16", target.f16), ("f64", target.f64), ("i64", target.i64), ("dot4", target.packed_dot)];
    features.extend(types.iter().filter(|(_, has)| *has).map(|(name, _)| name.to_string()));
    if !target.matrices.is_empty() {
        features.push(format!("{} cooperative matrix shapes", target.matrices.len()));
    }
    let gib = caps.memory_bytes as f64 / (1u64 << 30) as f64;
    let known = caps.memory_bytes < u64::MAX / 2;
    let memory = if known { format!("{gib:.1} GiB") } else { "memory unknown".into() };
    format!("{api} · {} · {memory} · {}", caps.driver, features.join(" "))
}
