//! Devices: what is there, how one is named, and why the rest is missing.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// A family of devices driven the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
pub enum Choice {
    /// By position in [`devices`]; the order may change between boots.
    Index(usize),
    /// By the driver's identifier, which stays.
    Uuid([u8; 16]),
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
    /// The fastest kind of device that is available: Vulkan, then wgpu, then the CPU.
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
            Some(choice) => match choice.strip_prefix("uuid:") {
                Some(uuid) => parse_uuid(uuid)
                    .map(|u| Device::Chosen(backend, Choice::Uuid(u)))
                    .ok_or_else(|| bad("a UUID has 32 hexadecimal digits".into())),
                None => choice
                    .parse()
                    .map(|i| Device::Chosen(backend, Choice::Index(i)))
                    .map_err(|_| bad(format!("`{choice}` is neither a number nor uuid:…"))),
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
pub struct DeviceInfo {
    /// How to ask for it.
    pub device: Device,
    /// The maker's name for it.
    pub name: String,
    /// Threads, features, memory in words.
    pub details: String,
    /// Why it cannot be used, or `None` if it can.
    pub unavailable: Option<String>,
}

/// Every device of this machine, best first, and every backend that has none with the reason.
pub fn devices() -> Vec<DeviceInfo> {
    let absent = |device: Device, api: &str| DeviceInfo {
        device,
        name: api.into(),
        details: String::new(),
        unavailable: Some(format!("this build of olivine has no {api} backend")),
    };
    vec![absent(Device::Vulkan, "Vulkan"), absent(Device::Wgpu, "wgpu"), cpu()]
}

/// Whether a device can be used; never a crash.
pub fn is_available(device: Device) -> bool {
    unavailable_reason(&device).is_none()
}

/// Why a device cannot be used, or `None` if it can.
pub(crate) fn unavailable_reason(device: &Device) -> Option<String> {
    let known = devices();
    match known.iter().find(|info| info.device == *device) {
        Some(info) => info.unavailable.clone(),
        None => known
            .iter()
            .find(|info| info.device.backend() == device.backend())
            .and_then(|info| info.unavailable.clone())
            .or_else(|| Some("no such device; `olivine devices` lists what is there".into())),
    }
}

fn cpu() -> DeviceInfo {
    let features = olivine_cpu::features().join(" ");
    DeviceInfo {
        device: Device::Cpu,
        name: olivine_cpu::processor_name(),
        details: format!("{} threads · {features}", olivine_cpu::default_threads()),
        unavailable: None,
    }
}
