//! Exercises the driver on a device and prints its rates: transfers, latency, and a buffer above 4 GiB.
//!
//! `cargo xtask rates [GiB [name of the device]]` (6 when not given; 0 leaves the large buffer out).

use std::sync::Arc;
use std::time::{Duration, Instant};

use olivine_kernel::{Access, Builder, Elem, Kernel, Scalar, Target};
use olivine_program::{BufferDecl, BufferId, Commands, Content, Dispatch, Driver, Program, Slice, Timing};
use olivine_vulkan::{Buffer, Device, Options, Recording, Select};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let gib: u64 = std::env::args().nth(1).map_or(Ok(6), |a| a.parse())?;
    for device in olivine_vulkan::devices()? {
        println!("{device}");
    }
    let select = std::env::args().nth(2).map_or(Select::Auto, Select::Name);
    let began = Instant::now();
    let device = Device::open(&select, &Options { labels: true, ..Options::default() })?;
    println!("opened in {:?}: {:#?}", began.elapsed(), device.caps());
    transfers(&device)?;
    latency(&device)?;
    if gib > 0 {
        large(&device, gib << 30)?;
    }
    Ok(())
}

/// Bytes per nanosecond.
fn rate(bytes: u64, time: Duration) -> String {
    format!("{:.2} GB/s", bytes as f64 / time.as_secs_f64() / 1e9)
}

fn transfers(device: &Device) -> Result<(), Failure> {
    for bytes in [64u64, 64 << 10, 8 << 20, 256 << 20] {
        let buffer = device.allocate(bytes, "transfers")?;
        let data: Vec<u8> = (0..bytes).map(|i| (i ^ (i >> 9)) as u8).collect();
        let mut back = vec![0; bytes as usize];
        device.write(&buffer, 0, &data)?;
        device.read(&buffer, 0, &mut back)?;
        let began = Instant::now();
        device.write(&buffer, 0, &data)?;
        let write = began.elapsed();
        let began = Instant::now();
        device.read(&buffer, 0, &mut back)?;
        let read = began.elapsed();
        let right = if back == data { "right" } else { "WRONG" };
        println!(
            "{bytes} bytes: write {write:?} ({}), read {read:?} ({}), {right}",
            rate(bytes, write),
            rate(bytes, read)
        );
    }
    Ok(())
}

/// `y[i] = i + base`, over a grid of two dimensions.
fn count(target: &Target) -> Result<Kernel, Failure> {
    let k = Builder::new("count", 256, target);
    let y = k.arg("y", Elem::U32, Access::Write);
    let (n, base) = (k.param("n", Scalar::U32), k.param("base", Scalar::U32));
    let group = k.group_id(1) * k.group_count(0) + k.group_id(0);
    let i = group * 256 + k.local_index();
    k.if_(i.lt(n), || y.store(i, i + base));
    Ok(k.finish()?)
}

/// A recording that counts over a buffer several times.
fn recording(
    device: &Device,
    buffer: &Arc<Buffer>,
    times: usize,
    timing: Timing,
) -> Result<Recording, Failure> {
    let bytes = buffer.bytes();
    let n = u32::try_from(bytes / 4)?;
    let groups = n.div_ceil(256);
    let program = Program {
        kernels: vec![Arc::new(count(&device.caps().target)?)],
        buffers: vec![BufferDecl { content: Content::Arena, bytes }],
        ..Program::default()
    };
    let dispatch = |i: usize| Dispatch {
        args: vec![Slice { buffer: BufferId(0), offset: 0, bytes }].into(),
        params: vec![n, i as u32].into(),
        groups: [groups.min(32768), groups.div_ceil(32768), 1],
        op: "Count",
        node: format!("count{i}").into(),
        bytes,
        ..Dispatch::default()
    };
    let began = Instant::now();
    let pipelines = device.pipelines(&program.kernels, false)?;
    if times == 1 {
        println!("pipeline in {:?}: {:?}", began.elapsed(), pipelines[0].statistics());
    }
    let dispatches: Vec<_> = (0..times).map(dispatch).collect();
    Ok(device.record(Commands {
        program: &program,
        dispatches: &dispatches,
        pipelines: &pipelines,
        buffers: &[Some(buffer.clone())],
        uploads: &[],
        downloads: &[],
        timing,
        checked: false,
    })?)
}

fn latency(device: &Device) -> Result<(), Failure> {
    let buffer = device.allocate(1024, "latency")?;
    for times in [1, 100] {
        let mut recording = recording(device, &buffer, times, Timing::Off)?;
        let mut best = Duration::MAX;
        for _ in 0..200 {
            let began = Instant::now();
            device.submit(&mut recording)?;
            device.wait(&mut recording)?;
            best = best.min(began.elapsed());
        }
        println!("{times} dependent dispatches, submit and wait: {best:?} at best");
    }
    Ok(())
}

fn large(device: &Device, bytes: u64) -> Result<(), Failure> {
    let began = Instant::now();
    let buffer = device.allocate(bytes, "large")?;
    println!("{bytes} bytes at {:#x} in {:?}", buffer.address(), began.elapsed());
    let mut recording = recording(device, &buffer, 2, Timing::Dispatches)?;
    device.submit(&mut recording)?;
    device.wait(&mut recording)?;
    for (begin, end) in device.times(&mut recording)? {
        println!("filled by a kernel in {:?} ({})", end - begin, rate(bytes, end - begin));
    }
    let mut wrong = 0;
    let places = [0, bytes / 3, (1 << 32) - 4096, 1 << 32, bytes / 2, bytes - 4096];
    for at in places.map(|at| at.min(bytes - 4096) / 4096 * 4096) {
        let mut back = [0; 4096];
        device.read(&buffer, at, &mut back)?;
        let expected = (0..1024).flat_map(|i| ((at / 4) as u32 + i + 1).to_le_bytes());
        wrong += usize::from(!back.iter().copied().eq(expected));
    }
    println!("{} places read, {wrong} WRONG", places.len());
    let piece = vec![0x5a; 1 << 30];
    let began = Instant::now();
    for at in (0..bytes).step_by(1 << 30) {
        let len = (bytes - at).min(1 << 30) as usize;
        device.write(&buffer, at, &piece[..len])?;
    }
    let mut last = [0; 4];
    device.read(&buffer, bytes - 4, &mut last)?;
    println!("written from the host: {} (last bytes {last:x?})", rate(bytes, began.elapsed()));
    Ok(())
}
