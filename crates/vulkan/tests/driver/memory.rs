//! Allocation, and bytes between host and device.

use olivine_program::Driver;
use olivine_vulkan::{Error, devices};

use crate::support::*;

fn noise(n: usize, seed: u32) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2_654_435_761) | 1;
    let step = |_| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    };
    (0..n).map(step).collect()
}

#[test]
fn every_device_is_listed_with_its_memory() {
    let all = devices().unwrap();
    assert!(all.iter().any(|d| d.usable()), "{all:?}");
    for device in all {
        assert!(!device.caps.name.is_empty());
        assert!(device.heaps.iter().any(|h| h.device_local && h.bytes > 0), "{device}");
    }
}

#[test]
fn an_unknown_device_is_an_error_that_lists_those_there() {
    let none = olivine_vulkan::Select::Name("no such card".into());
    let error = olivine_vulkan::Device::open(&none, &Default::default()).err().unwrap();
    let known = &devices().unwrap()[0].caps.name;
    assert!(matches!(&error, Error::Unavailable(text) if text.contains(known)), "{error}");
}

#[test]
fn odd_sizes_and_offsets_come_back_as_they_were_written() {
    let device = open();
    for bytes in [1usize, 2, 3, 255, 256, 257, 65_537, (16 << 20) + 3, (40 << 20) + 1] {
        let buffer = device.allocate(bytes as u64, "odd").unwrap();
        assert_eq!(buffer.address() % 256, 0);
        let data = noise(bytes, bytes as u32);
        device.write(&buffer, 0, &data).unwrap();
        let (from, to) = (bytes / 3, bytes - bytes / 5);
        let patch = noise(to - from, 99);
        device.write(&buffer, from as u64, &patch).unwrap();
        let mut back = vec![0; bytes];
        device.read(&buffer, 0, &mut back).unwrap();
        assert!(back[..from] == data[..from] && back[to..] == data[to..], "{bytes}: outside the patch");
        assert!(back[from..to] == patch[..], "{bytes}: the patch");
        let mut part = vec![0; to - from];
        device.read(&buffer, from as u64, &mut part).unwrap();
        assert!(part == patch);
    }
}

#[test]
fn ranges_outside_a_buffer_are_refused() {
    let device = open();
    let buffer = device.allocate(10, "small").unwrap();
    assert!(device.write(&buffer, 8, &[0; 3]).is_err());
    assert!(device.write(&buffer, u64::MAX, &[0; 3]).is_err());
    assert!(device.read(&buffer, 11, &mut []).is_err());
    device.read(&buffer, 10, &mut []).unwrap();
}

#[test]
fn small_buffers_share_a_block_and_freed_ranges_are_used_again() {
    let device = open();
    let first = device.allocate(1000, "a").unwrap();
    let taken = device.memory_taken();
    let many: Vec<_> = (0..100).map(|i| device.allocate(1000 + i, "b").unwrap()).collect();
    assert_eq!(device.memory_taken(), taken, "they fit in the first one's block");
    let addresses: Vec<u64> = many.iter().map(|b| b.address()).collect();
    drop(many);
    let again: Vec<u64> = (0..100).map(|i| device.allocate(1000 + i, "c").unwrap().address()).collect();
    assert!(again.iter().all(|a| addresses.contains(a)));
    drop(first);
    assert_eq!(device.memory_taken(), 0, "empty blocks are given back");
}

#[test]
fn running_out_of_memory_is_an_error_and_a_smaller_allocation_works() {
    let device = open_with(|o| o.memory_limit = Some(100 << 20));
    let held = device.allocate(60 << 20, "held").unwrap();
    let error = device.allocate(70 << 20, "the big one").err().unwrap();
    assert!(
        matches!(&error, Error::OutOfMemory { what, available: Some(_), .. } if what == "the big one"),
        "{error}"
    );
    let small = device.allocate(20 << 20, "small").unwrap();
    let tiny = device.allocate(20, "tiny").unwrap();
    for buffer in [&held, &small, &tiny] {
        device.write(buffer, 3, b"bytes").unwrap();
        let mut back = [0; 5];
        device.read(buffer, 3, &mut back).unwrap();
        assert_eq!(&back, b"bytes");
    }
    drop((held, small, tiny));
    assert_eq!(device.memory_taken(), 0);
    device.allocate(90 << 20, "now it fits").unwrap();
}

#[test]
fn a_buffer_larger_than_the_device_is_refused_with_numbers() {
    let device = open();
    let most = device.caps().memory_bytes;
    let error = device.allocate(most.saturating_mul(2), "weights").err().unwrap();
    let told = |what: &String, needed: u64| what == "weights" && needed >= most;
    match &error {
        Error::TooLarge { what, needed, available, .. } => assert!(told(what, *needed) && *available > 0),
        Error::OutOfMemory { what, bytes, .. } => assert!(told(what, *bytes)),
        _ => panic!("{error}"),
    }
    device.allocate(1 << 20, "a small one").unwrap();
    assert!(device.allocate(u64::MAX, "everything").is_err());
}

#[test]
fn sixteen_threads_allocate_and_move_bytes_at_once() {
    let device = open_without_validation();
    std::thread::scope(|scope| {
        for t in 0..16u32 {
            let device = &device;
            scope.spawn(move || {
                for i in 0..20u32 {
                    let bytes = 1 + (t as usize * 977 + i as usize * 7919) % 100_000;
                    let buffer = device.allocate(bytes as u64, "thread").unwrap();
                    let data = noise(bytes, t * 100 + i);
                    device.write(&buffer, 0, &data).unwrap();
                    let mut back = vec![0; bytes];
                    device.read(&buffer, 0, &mut back).unwrap();
                    assert!(back == data, "thread {t}, round {i}");
                }
            });
        }
    });
    assert_eq!(device.memory_taken(), 0);
}
