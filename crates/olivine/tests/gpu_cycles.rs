//! Compiling, running and dropping graphs without end: neither host nor device memory may grow. In a process of its own,
//! because it looks at the whole process.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use olivine::PipelineCache;
use olivine::prelude::*;

/// One at a time, so that each sees its own memory.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes of memory that the process has in use.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// One of 24 graphs, over a size that differs from cycle to cycle.
fn graph(cycle: usize) -> Graph {
    let mut g = Graph::new("cycle");
    let n = 1 + cycle % 37;
    let x = g.input("x", DType::F32, [n]).unwrap();
    let w = g.param("w", DType::F32, [n]).unwrap();
    let c = g.constant(Tensor::new([1], vec![(cycle % 3) as f32]).unwrap());
    let mut y = g.add(x, c).unwrap();
    for bit in 0..3 {
        y = if cycle >> bit & 1 == 0 { g.add(y, w).unwrap() } else { g.mul(y, w).unwrap() };
    }
    g.output("y", y).unwrap();
    g
}

fn cycle(session: &Session, cycle: usize) {
    let executable = session.compile(&graph(cycle)).unwrap();
    let n = 1 + cycle % 37;
    executable.set_param("w", Tensor::new([n], vec![2f32; n]).unwrap()).unwrap();
    let x = Tensor::new([n], (0..n).map(|i| i as f32).collect()).unwrap();
    let out = executable.run([("x", &x)]).unwrap();
    let want = (0..n).map(|i| {
        let start = i as f32 + (cycle % 3) as f32;
        (0..3).fold(start, |y, bit| if cycle >> bit & 1 == 0 { y + 2.0 } else { y * 2.0 })
    });
    assert_eq!(out.get("y").unwrap().as_slice::<f32>().unwrap(), want.collect::<Vec<_>>(), "cycle {cycle}");
}

/// Runs cycles after a warm-up; host memory may grow by `bound` bytes, device memory by none.
fn cycles(device: Device, warm: usize, count: usize, bound: u64) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let options = SessionOptions::new().pipeline_cache(PipelineCache::Off);
    let session = Session::with_options(device.clone(), options)
        .unwrap_or_else(|e| panic!("{e}\ninstall a device: apt-get install mesa-vulkan-drivers libvulkan1"));
    (0..warm).for_each(|i| cycle(&session, i));
    let (host, taken, began) = (resident(), session.memory_taken(), Instant::now());
    (warm..warm + count).for_each(|i| cycle(&session, i));
    let grown = resident().saturating_sub(host);
    println!("{device}: {count} cycles in {:.1?}, {} KiB more", began.elapsed(), grown / 1024);
    assert_eq!(session.memory_taken(), taken, "device memory");
    assert!(grown <= bound, "{count} cycles took {grown} bytes of host memory");
}

#[test]
fn ten_thousand_cycles_on_vulkan_take_no_memory() {
    cycles(Device::Vulkan, 1_000, 10_000, 4 << 20);
}

#[test]
fn ten_thousand_cycles_on_wgpu_take_no_memory() {
    cycles(Device::Wgpu, 1_000, 10_000, 4 << 20);
}
