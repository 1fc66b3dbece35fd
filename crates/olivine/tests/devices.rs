//! Naming devices, listing them, and asking for what is not there.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::prelude::*;
use olivine::{Backend, Choice, DeviceInfo, WgpuApi};

#[test]
fn names_are_read_and_written_alike() {
    let uuid = "00112233-4455-6677-8899-aabbccddeeff";
    for (text, device) in [
        ("cpu", Device::Cpu),
        ("vulkan", Device::Vulkan),
        ("wgpu", Device::Wgpu),
        ("vulkan:1", Device::Chosen(Backend::Vulkan, Choice::Index(1))),
        ("wgpu:0", Device::Chosen(Backend::Wgpu, Choice::Index(0))),
        ("wgpu:vulkan", Device::Chosen(Backend::Wgpu, Choice::Api(WgpuApi::Vulkan, None))),
        ("wgpu:vulkan:0", Device::Chosen(Backend::Wgpu, Choice::Api(WgpuApi::Vulkan, Some(0)))),
        ("wgpu:metal", Device::Chosen(Backend::Wgpu, Choice::Api(WgpuApi::Metal, None))),
        ("wgpu:dx12:3", Device::Chosen(Backend::Wgpu, Choice::Api(WgpuApi::Dx12, Some(3)))),
        ("vulkan:name:llvmpipe", Device::Chosen(Backend::Vulkan, Choice::Name("llvmpipe".into()))),
    ] {
        assert_eq!(text.parse::<Device>().unwrap(), device);
        assert_eq!(device.to_string(), text);
    }
    let by_uuid: Device = format!("vulkan:uuid:{uuid}").parse().unwrap();
    assert_eq!(by_uuid.to_string(), format!("vulkan:uuid:{uuid}"));
    assert_eq!(by_uuid, format!("vulkan:uuid:{}", uuid.replace('-', "")).parse().unwrap());
}

#[test]
fn bad_names_are_refused_with_what_is_wrong() {
    for (text, problem) in [
        ("vulcan", "did you mean `vulkan`?"),
        ("", "unknown device"),
        ("cuda", "unknown device"),
        ("cpu:0", "takes no number"),
        ("vulkan:", "neither a number"),
        ("vulkan:-1", "neither a number"),
        ("vulkan:uuid:12", "32 hexadecimal digits"),
        ("vulkan:uuid:zz112233445566778899aabbccddeeff", "32 hexadecimal digits"),
        ("vulkan:99999999999999999999999", "neither a number"),
        ("wgpu:gl", "OpenGL is not used"),
        ("wgpu:gl:0", "OpenGL is not used"),
        ("wgpu:vulkan:x", "no number"),
        ("wgpu:dx13", "neither a number"),
        ("vulkan:dx12", "neither a number"),
    ] {
        let error = text.parse::<Device>().unwrap_err();
        assert!(error.to_string().contains(problem), "{text}: {error}");
    }
}

#[test]
fn every_backend_is_listed_and_the_absent_ones_say_why() {
    let devices = devices();
    for backend in [Backend::Cpu, Backend::Vulkan, Backend::Wgpu] {
        assert!(devices.iter().any(|info| info.device.backend() == backend), "{backend:?}");
    }
    for info in &devices {
        assert!(!info.name.is_empty());
        assert!(info.unavailable.as_ref().is_none_or(|reason| !reason.is_empty()));
        assert_eq!(is_available(info.device.clone()), info.unavailable.is_none());
    }
    assert!(is_available(Device::Cpu));
}

/// The software GPU's, or says what to install.
fn first(backend: Backend) -> DeviceInfo {
    let found = devices().into_iter().find(|d| d.device.backend() == backend && d.unavailable.is_none());
    found.unwrap_or_else(|| {
        panic!("no {} device: apt-get install mesa-vulkan-drivers libvulkan1", backend.name())
    })
}

#[test]
fn gpus_are_chosen_by_index_name_and_uuid() {
    let info = first(Backend::Vulkan);
    let uuid = Device::Chosen(Backend::Vulkan, Choice::Uuid(info.uuid.unwrap()));
    let name = Device::Chosen(Backend::Vulkan, Choice::Name(info.name.to_uppercase()));
    for device in [Device::Vulkan, info.device.clone(), uuid.clone(), name] {
        let again: Device = device.to_string().parse().unwrap();
        assert_eq!(again, device, "its name is read as it is written");
        assert!(is_available(again.clone()), "{device}");
        let session = Session::new(again).unwrap();
        assert_eq!(session.device(), &device);
    }
    assert!(Session::new(uuid).unwrap().device_name().contains(&info.name));
    let info = first(Backend::Wgpu);
    let name = Device::Chosen(Backend::Wgpu, Choice::Name(info.name.to_lowercase()));
    let by_api: Device = if cfg!(target_os = "linux") { "wgpu:vulkan:0" } else { "wgpu" }.parse().unwrap();
    for device in [Device::Wgpu, info.device.clone(), name, by_api] {
        assert!(is_available(device.clone()), "{device}");
        assert!(Session::new(device).unwrap().device_name().contains(&info.name));
    }
}

#[test]
fn gpus_that_are_not_there_are_refused_with_those_that_are() {
    let there = first(Backend::Vulkan).name;
    for text in [
        "vulkan:99",
        "vulkan:name:no such card",
        "vulkan:uuid:00112233-4455-6677-8899-aabbccddeeff",
        "wgpu:99",
        "wgpu:vulkan:99",
        "wgpu:metal",
    ] {
        let device: Device = text.parse().unwrap();
        assert!(!is_available(device.clone()), "{text}");
        let error = Session::new(device).map(drop).unwrap_err();
        let Error::Unavailable { device, reason } = &error else { panic!("{error:?}") };
        assert!(device == text && reason.contains(&there), "{error}");
    }
    let by_uuid: Device = "wgpu:uuid:00112233-4455-6677-8899-aabbccddeeff".parse().unwrap();
    let error = Session::new(by_uuid).map(drop).unwrap_err();
    assert!(
        matches!(&error, Error::Unavailable { reason, .. } if reason.contains("index or name")),
        "{error}"
    );
}

#[test]
fn a_backend_without_a_choice_opens_the_first_of_its_devices() {
    for (device, backend) in [(Device::Vulkan, Backend::Vulkan), (Device::Wgpu, Backend::Wgpu)] {
        let listed = first(backend);
        let (any, first) = (Session::new(device).unwrap(), Session::new(listed.device).unwrap());
        assert_eq!(any.device_name(), first.device_name());
    }
}

#[test]
fn the_best_device_is_one_that_can_be_opened_and_no_software_gpu() {
    let device = Device::auto().unwrap();
    assert_eq!(Session::new(device.clone()).unwrap().device(), &device);
    assert_eq!("auto".parse::<Device>().unwrap(), device);
    let all = devices();
    let chosen = all.iter().find(|info| info.device == device).unwrap();
    assert!(!chosen.processor || device == Device::Cpu, "{device}");
    let place = |of: &dyn Fn(&DeviceInfo) -> bool| all.iter().position(of);
    let cpu = place(&|info| info.device == Device::Cpu);
    let software = place(&|info| info.processor && info.device != Device::Cpu);
    assert!(software.is_none() || cpu < software, "the processor itself comes before a software GPU");
}

/// Set in the process that is started without drivers.
const CHILD: &str = "OLIVINE_TEST_WITHOUT_DRIVERS";

#[test]
fn without_a_driver_the_reasons_are_told_and_the_cpu_works() {
    if std::env::var_os(CHILD).is_none() {
        let here = std::env::current_exe().unwrap();
        let output = std::process::Command::new(here)
            .args(["--exact", "without_a_driver_the_reasons_are_told_and_the_cpu_works", "--nocapture"])
            .env(CHILD, "1")
            .env("VK_ICD_FILENAMES", "/nonexistent")
            .env("VK_DRIVER_FILES", "/nonexistent")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    for info in devices() {
        let expected = info.device == Device::Cpu;
        assert_eq!(info.unavailable.is_none(), expected, "{info:?}");
        if let Some(reason) = info.unavailable {
            assert!(reason.contains("driver") || reason.contains("loader"), "{}: {reason}", info.device);
        }
    }
    for device in [Device::Vulkan, Device::Wgpu, Device::Chosen(Backend::Vulkan, Choice::Index(0))] {
        assert!(!is_available(device.clone()));
        let error = Session::new(device.clone()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(&device.to_string()), "{error}");
    }
    assert_eq!(Device::auto().unwrap(), Device::Cpu);
    let mut g = Graph::new("double");
    let x = g.input("x", DType::F32, [2]).unwrap();
    let y = g.add(x, x).unwrap();
    g.output("y", y).unwrap();
    let double = Session::new(Device::Cpu).unwrap().compile(&g).unwrap();
    let out = double.run([("x", &Tensor::new([2], vec![1f32, 2.0]).unwrap())]).unwrap();
    assert_eq!(out.get("y").unwrap().as_slice::<f32>().unwrap(), [2.0, 4.0]);
}
