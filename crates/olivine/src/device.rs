//! Devices: what is there, how one is named, and why the rest is missing.

use std::fmt;
use std::str::FromStr;

#[cfg(all(any(feature = "vulkan", feature = "wgpu"), not(target_arch = "wasm32")))]
use olivine_gpu::DeviceCaps;
use olivine_gpu::{DeviceKind, PROCESSOR_CLASS, device_order};

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

/// An API that wgpu drives devices by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WgpuApi {
    /// Vulkan, on Linux, Android and Windows.
    Vulkan,
    /// Metal, on Apple's systems.
    Metal,
    /// Direct3D 12, on Windows.
    Dx12,
}

impl WgpuApi {
    const ALL: [WgpuApi; 3] = [WgpuApi::Vulkan, WgpuApi::Metal, WgpuApi::Dx12];

    /// The word in a device's name.
    pub fn name(self) -> &'static str {
        match self {
            WgpuApi::Vulkan => "vulkan",
            WgpuApi::Metal => "metal",
            WgpuApi::Dx12 => "dx12",
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
    /// On wgpu, by the API and the number among its adapters; the best of them without a number.
    Api(WgpuApi, Option<usize>),
}

/// What kind of device it is, best first: the order of [`devices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeviceClass {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// A GPU of a kind that its driver does not say.
    Other,
    /// This machine's processor.
    Processor,
    /// A GPU in software, on this machine's processor.
    Software,
}

impl DeviceClass {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            DeviceClass::Discrete => "discrete GPU",
            DeviceClass::Integrated => "integrated GPU",
            DeviceClass::Virtual => "virtual GPU",
            DeviceClass::Other => "GPU",
            DeviceClass::Processor => "processor",
            DeviceClass::Software => "software GPU",
        }
    }

    #[cfg(all(any(feature = "vulkan", feature = "wgpu"), not(target_arch = "wasm32")))]
    fn of(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Discrete => DeviceClass::Discrete,
            DeviceKind::Integrated => DeviceClass::Integrated,
            DeviceKind::Virtual => DeviceClass::Virtual,
            DeviceKind::Cpu => DeviceClass::Software,
            DeviceKind::Other => DeviceClass::Other,
        }
    }
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
    /// The best Vulkan device: the first in [`devices`].
    Vulkan,
    /// The best wgpu device.
    Wgpu,
    /// A certain device of a backend.
    Chosen(Backend, Choice),
}

impl Device {
    /// The first device of [`devices`] that is available: a discrete GPU, an integrated one, then the CPU. A software GPU is
    /// never chosen. [`Device::auto_for`] chooses for a model.
    pub fn auto() -> Result<Device, Error> {
        best(&devices())
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
            Device::Chosen(_, Choice::Api(api, None)) => write!(f, ":{}", api.name()),
            Device::Chosen(_, Choice::Api(api, Some(i))) => write!(f, ":{}:{i}", api.name()),
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
            Some(choice) if backend == Backend::Wgpu && parse_api(choice).is_some() => {
                parse_api(choice).unwrap_or(Err(String::new())).map_err(bad)
            }
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

/// A choice that begins with the name of an API under wgpu; `None` where it is another kind of choice.
fn parse_api(choice: &str) -> Option<Result<Device, String>> {
    let (name, number) = choice.split_once(':').map_or((choice, None), |(name, rest)| (name, Some(rest)));
    if name == "gl" || name == "opengl" {
        let problem = "OpenGL is not used: wgpu is built without it; take vulkan, metal or dx12";
        return Some(Err(problem.into()));
    }
    let api = WgpuApi::ALL.into_iter().find(|api| api.name() == name)?;
    let chosen = |number| Device::Chosen(Backend::Wgpu, Choice::Api(api, number));
    Some(match number.map(str::parse::<usize>) {
        None => Ok(chosen(None)),
        Some(Ok(i)) => Ok(chosen(Some(i))),
        Some(Err(_)) => Err(format!("`{}` is no number", number.unwrap_or_default())),
    })
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
    /// What kind of device it is.
    pub class: DeviceClass,
    /// Bytes of its own memory, where the driver says.
    pub memory_bytes: Option<u64>,
    /// Whether it is this machine's processor, as itself or as a software GPU.
    pub processor: bool,
    /// Why it cannot be used, or `None` if it can.
    pub unavailable: Option<String>,
    /// On wgpu, the API and the number among its adapters.
    pub(crate) api: Option<(WgpuApi, usize)>,
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
            (Device::Chosen(backend, Choice::Api(api, number)), of) => {
                let is = |(of, at): (WgpuApi, usize)| of == *api && number.is_none_or(|number| number == at);
                of.backend() == *backend && self.api.is_some_and(is)
            }
            (Device::Chosen(..), of) => of == device,
            (_, of) => of.backend() == device.backend(),
        }
    }
}

/// Every device of this machine, best first, and every backend that has none with the reason.
///
/// The order is: discrete GPUs, integrated ones, others, the processor, software GPUs, what is not available. GPUs of one
/// kind come through Vulkan before wgpu, and with more memory before less. [`Device::auto`] takes the first that is
/// available, and [`Device::Vulkan`] and [`Device::Wgpu`] the first of their backend.
pub fn devices() -> Vec<DeviceInfo> {
    let mut all = vulkan();
    all.extend(wgpu());
    all.push(cpu());
    sort(&mut all);
    all
}

/// Brings devices into their order; the sort is stable, so that equal ones stay in their driver's.
fn sort(all: &mut [DeviceInfo]) {
    all.sort_by_key(|info| {
        let kind = match info.class {
            DeviceClass::Discrete => DeviceKind::Discrete,
            DeviceClass::Integrated => DeviceKind::Integrated,
            DeviceClass::Virtual => DeviceKind::Virtual,
            DeviceClass::Software => DeviceKind::Cpu,
            DeviceClass::Other | DeviceClass::Processor => DeviceKind::Other,
        };
        let (class, memory) = device_order(kind, info.memory_bytes.unwrap_or(u64::MAX));
        let class = if info.class == DeviceClass::Processor { PROCESSOR_CLASS } else { class };
        let by_other_api = info.api.is_some_and(|(api, _)| api != WgpuApi::Vulkan);
        (info.unavailable.is_some(), class, info.device.backend() == Backend::Wgpu, memory, by_other_api)
    });
}

/// The first available device of a sorted list that is no software GPU.
fn best(all: &[DeviceInfo]) -> Result<Device, Error> {
    all.iter()
        .find(|info| info.unavailable.is_none() && info.class != DeviceClass::Software)
        .map(|info| info.device.clone())
        .ok_or_else(|| Error::Unavailable { device: "auto".into(), reason: "no device at all".into() })
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
        class: DeviceClass::Processor,
        memory_bytes: None,
        processor: true,
        unavailable: None,
        api: None,
    }
}

fn absent(device: Device, api: &str, reason: String) -> DeviceInfo {
    DeviceInfo {
        device,
        name: api.into(),
        uuid: None,
        details: String::new(),
        class: DeviceClass::Other,
        memory_bytes: None,
        processor: false,
        unavailable: Some(reason),
        api: None,
    }
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
        class: DeviceClass::of(report.caps.kind),
        memory_bytes: known_memory(&report.caps),
        processor: report.caps.kind == DeviceKind::Cpu,
        api: None,
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
    let mut counts = [0; 3];
    let info = |report: olivine_wgpu::AdapterReport| {
        let api = match report.api {
            olivine_wgpu::Api::Vulkan => Some(WgpuApi::Vulkan),
            olivine_wgpu::Api::Metal => Some(WgpuApi::Metal),
            olivine_wgpu::Api::Dx12 => Some(WgpuApi::Dx12),
            _ => None,
        };
        let api = api.map(|api| {
            let count = &mut counts[api as usize];
            *count += 1;
            (api, *count - 1)
        });
        DeviceInfo {
            device: Device::Chosen(Backend::Wgpu, Choice::Index(report.index)),
            name: report.caps.name.clone(),
            uuid: None,
            details: details(&report.caps, report.api.name()),
            class: DeviceClass::of(report.caps.kind),
            memory_bytes: known_memory(&report.caps),
            processor: report.caps.kind == DeviceKind::Cpu,
            unavailable: None,
            api,
        }
    };
    reports.into_iter().map(info).collect()
}

/// Bytes of memory; drivers that do not say report more than any card has.
#[cfg(all(any(feature = "vulkan", feature = "wgpu"), not(target_arch = "wasm32")))]
fn known_memory(caps: &DeviceCaps) -> Option<u64> {
    Some(caps.memory_bytes).filter(|bytes| *bytes < u64::MAX / 2)
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
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    let memory = known_memory(caps).map_or("memory unknown".into(), gib);
    format!("{api} · {} · {memory} · {}", caps.driver, features.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with synthetic facts.
    fn info(device: &str, class: DeviceClass, gib: Option<u64>) -> DeviceInfo {
        let device: Device = device.parse().unwrap_or(Device::Cpu);
        let mut info = absent(device, "synthetic", String::new());
        info.unavailable = None;
        (info.class, info.memory_bytes) = (class, gib.map(|gib| gib << 30));
        info.processor = matches!(class, DeviceClass::Processor | DeviceClass::Software);
        info
    }

    fn order(mut all: Vec<DeviceInfo>) -> (Vec<String>, Option<String>) {
        sort(&mut all);
        let names = all.iter().map(|info| info.device.to_string()).collect();
        (names, best(&all).ok().map(|device| device.to_string()))
    }

    #[test]
    fn a_discrete_gpu_comes_before_an_integrated_one_the_processor_and_a_software_gpu() {
        use DeviceClass::{Discrete, Integrated, Processor, Software};
        let (names, best) = order(vec![
            info("vulkan:0", Software, Some(64)),
            info("cpu", Processor, None),
            info("vulkan:1", Integrated, Some(32)),
            info("vulkan:2", Discrete, Some(8)),
            info("wgpu:0", Discrete, None),
            info("wgpu:1", Integrated, None),
            info("wgpu:2", Software, None),
        ]);
        assert_eq!(names, ["vulkan:2", "wgpu:0", "vulkan:1", "wgpu:1", "cpu", "vulkan:0", "wgpu:2"]);
        assert_eq!(best.as_deref(), Some("vulkan:2"));
    }

    #[test]
    fn of_two_discrete_gpus_the_one_with_more_memory_comes_first() {
        let card = |name, gib| info(name, DeviceClass::Discrete, Some(gib));
        let (names, best) = order(vec![card("vulkan:0", 8), card("vulkan:1", 24), card("vulkan:2", 24)]);
        assert_eq!(names, ["vulkan:1", "vulkan:2", "vulkan:0"]);
        assert_eq!(best.as_deref(), Some("vulkan:1"));
    }

    #[test]
    fn a_software_gpu_is_never_chosen_even_where_it_is_all_there_is() {
        let software = || info("vulkan:0", DeviceClass::Software, Some(64));
        let (_, best) = order(vec![software(), info("cpu", DeviceClass::Processor, None)]);
        assert_eq!(best.as_deref(), Some("cpu"));
        assert_eq!(order(vec![software()]).1, None);
    }

    #[test]
    fn what_is_absent_comes_last_whatever_it_is() {
        let mut card = info("vulkan:0", DeviceClass::Discrete, Some(80));
        card.unavailable = Some("the driver lacks feature shaderInt64".into());
        let software = info("vulkan:1", DeviceClass::Software, Some(4));
        let (names, best) = order(vec![card, software, info("cpu", DeviceClass::Processor, None)]);
        assert_eq!(names, ["cpu", "vulkan:1", "vulkan:0"]);
        assert_eq!(best.as_deref(), Some("cpu"));
        assert_eq!(order(Vec::new()).1, None);
    }

    #[test]
    fn one_card_by_two_apis_is_taken_by_vulkan() {
        let of_api = |name, api| {
            let mut info = info(name, DeviceClass::Discrete, None);
            info.api = Some((api, 0));
            info
        };
        let all = || vec![of_api("wgpu:0", WgpuApi::Dx12), of_api("wgpu:1", WgpuApi::Vulkan)];
        assert_eq!(order(all()).0, ["wgpu:1", "wgpu:0"]);
        let dx12 = "wgpu:dx12".parse().unwrap_or(Device::Cpu);
        let is: Vec<bool> = all().iter().map(|info| info.is(&dx12)).collect();
        assert_eq!(is, [true, false]);
    }
}
