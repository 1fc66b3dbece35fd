//! Building kernels, and keeping them on disk.

use std::sync::Arc;

use olivine_kernel::{Access, Builder, Elem, Reduction, Target};
use olivine_program::{Driver, Mask};
use olivine_vulkan::Error;

use crate::support::*;

#[test]
fn a_kernel_is_built_once_and_in_order() {
    let device = open();
    let kernels: Vec<_> =
        (0..8).map(|i| Arc::new(scale(&device.caps().target, Elem::F32, (i % 4) as f32))).collect();
    let first = device.pipelines(&kernels, false).unwrap();
    let again = device.pipelines(&kernels, false).unwrap();
    for i in 0..8 {
        assert!(Arc::ptr_eq(&first[i], &again[i]) && Arc::ptr_eq(&first[i], &first[i % 4]));
        assert_eq!(first[i].name(), kernels[i].name);
    }
    let checked = device.pipelines(&kernels[..1], true).unwrap();
    assert!(!Arc::ptr_eq(&checked[0], &first[0]));
}

#[test]
fn a_kernel_beyond_the_devices_limits_is_refused_before_the_driver_sees_it() {
    let device = open();
    let roomy = Target { max_invocations: u32::MAX, shared_bytes: u32::MAX, ..Target::plain() };
    let k = Builder::new("greedy", 64, &roomy);
    let y = k.arg("y", Elem::F32, Access::Write);
    let shared = k.shared(Elem::F32, 1, device.caps().target.shared_bytes / 4 + 1);
    shared.store(k.local_index(), k.f32(1.0));
    k.barrier();
    y.store(k.local_index(), shared.load(k.u32(0)));
    let kernel = Arc::new(k.finish().unwrap());
    let error = device.pipelines(&[kernel], false).err().unwrap();
    assert!(matches!(&error, Error::Kernel { kernel, .. } if kernel == "greedy"), "{error}");
}

#[test]
fn the_cache_is_written_and_a_damaged_one_is_ignored() {
    let dir = folder("cache");
    let build = || {
        let device = open_with(|o| o.cache_dir = Some(dir.clone()));
        let kernel = Arc::new(scale(&device.caps().target, Elem::F32, 5.0));
        device.pipelines(&[kernel], false).unwrap();
    };
    build();
    let files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|f| f.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "one file and nothing beside it: {files:?}");
    let whole = std::fs::read(&files[0]).unwrap();
    assert!(whole.len() >= olivine_files::SEAL_BYTES + 32, "our header and the driver's");
    for damage in 0..4 {
        let mut bytes = whole.clone();
        match damage {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes[60] ^= 0xff,
            2 => bytes.clear(),
            _ => bytes = vec![0xaa; 4096],
        }
        std::fs::write(&files[0], &bytes).unwrap();
        build();
        let mended = std::fs::read(&files[0]).unwrap();
        assert_eq!(&mended[..8], &whole[..8], "damage {damage} was replaced by a good file");
    }
    build();
    std::fs::remove_dir_all(&dir).unwrap();
}

#[cfg(unix)]
#[test]
fn a_pipe_a_device_or_a_link_in_place_of_the_cache_is_replaced() {
    use std::os::unix::fs::symlink;
    let dir = folder("hostile-cache");
    let build = || {
        let device = open_with(|o| o.cache_dir = Some(dir.clone()));
        let kernel = Arc::new(scale(&device.caps().target, Elem::F32, 5.0));
        device.pipelines(&[kernel], false).unwrap();
    };
    build();
    let path = std::fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
    let precious = dir.join("precious");
    std::fs::write(&precious, b"mine").unwrap();
    for what in ["pipe", "device", "link"] {
        std::fs::remove_file(&path).unwrap();
        match what {
            "pipe" => assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success()),
            "device" => symlink("/dev/zero", &path).unwrap(),
            _ => symlink(&precious, &path).unwrap(),
        }
        build();
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file(), "{what} was replaced");
        assert_eq!(std::fs::read(&precious).unwrap(), b"mine", "{what}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_cache_folder_that_cannot_be_written_harms_nothing() {
    let dir = folder("no-folder");
    std::fs::write(&dir, b"a file where the folder should be").unwrap();
    let device = open_with(|o| o.cache_dir = Some(dir.clone()));
    let kernel = Arc::new(scale(&device.caps().target, Elem::F32, 5.0));
    device.pipelines(&[kernel], false).unwrap();
    drop(device);
    std::fs::remove_file(&dir).unwrap();
}

#[test]
fn masked_features_are_gone_and_reductions_still_right() {
    let masks = [
        Mask::default(),
        Mask { subgroups: true, ..Mask::default() },
        Mask { subgroups: true, f16: true, matrices: true },
    ];
    for mask in masks {
        let device = open_with(|o| o.mask = mask);
        let target = &device.caps().target;
        assert!(!mask.subgroups || target.subgroup.is_none());
        assert!(!mask.f16 || !target.f16);
        assert!(!mask.matrices || target.matrices.is_empty());
        let k = Builder::new("sum", 128, target);
        let (x, y) = (k.arg("x", Elem::F32, Access::Read), k.arg("y", Elem::F32, Access::Write));
        let sum = k.group_reduce(x.load(k.local_index()), Reduction::Add);
        k.if_(k.local_index().eq(0), || y.store(k.u32(0), sum));
        let mut rig = Rig::default();
        let kernel = rig.kernel(k.finish().unwrap());
        let (x, y) = (rig.buffer(&device, 512), rig.buffer(&device, 4));
        rig.dispatch(kernel, &[(x, 0, 512), (y, 0, 4)], &[], 1);
        (rig.uploads, rig.downloads) = (vec![(x, 512)], vec![(y, 4)]);
        let mut recording = rig.record(&device).unwrap();
        let input: Vec<f32> = (0..128).map(|i| i as f32).collect();
        let got = run(&device, &mut recording, &[&to_bytes(&input)], 4).unwrap();
        assert_eq!(to_f32(&got), [8128.0], "{mask:?}");
    }
}
