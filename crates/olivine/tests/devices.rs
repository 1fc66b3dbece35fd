//! Naming devices, listing them, and asking for what is not there.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::prelude::*;
use olivine::{Backend, Choice};

#[test]
fn names_are_read_and_written_alike() {
    let uuid = "00112233-4455-6677-8899-aabbccddeeff";
    for (text, device) in [
        ("cpu", Device::Cpu),
        ("vulkan", Device::Vulkan),
        ("wgpu", Device::Wgpu),
        ("vulkan:1", Device::Chosen(Backend::Vulkan, Choice::Index(1))),
        ("wgpu:0", Device::Chosen(Backend::Wgpu, Choice::Index(0))),
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

#[test]
fn a_build_without_a_gpu_backend_says_so_and_does_not_crash() {
    for device in [Device::Vulkan, Device::Wgpu, Device::Chosen(Backend::Vulkan, Choice::Index(7))] {
        assert!(!is_available(device.clone()));
        let error = Session::new(device.clone()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(&device.to_string()), "{error}");
    }
}

#[test]
fn the_best_device_is_one_that_can_be_opened() {
    let device = Device::auto().unwrap();
    assert_eq!(Session::new(device.clone()).unwrap().device(), &device);
    assert_eq!("auto".parse::<Device>().unwrap(), device);
}
