//! The driver's contract, on whatever device is there (a software one is enough).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's failure is a panic")]

use std::sync::Arc;

use olivine_kernel::{Access, Builder, Elem, Kernel, Scalar, SubgroupOp, Target};
use olivine_program::{
    Addressing, BufferDecl, BufferId, Commands, Content, Dispatch, Driver, Error, KernelId, Mask, Program,
    Slice, Timing,
};
use olivine_wgpu::{Buffer, Device, Options, Recording, Select};

/// What a device's kernels are: SPIR-V where the API underneath takes it, WGSL, or the WGSL of browsers.
const NATIVE: Options = Options {
    mask: Mask { subgroups: false, f16: false, matrices: false },
    plain_dialect: false,
    wgsl: false,
};
const WGSL: Options = Options { wgsl: true, ..NATIVE };
const PLAIN: Options = Options { plain_dialect: true, ..NATIVE };

fn open(options: Options) -> Device {
    Device::open(Select::Auto, options).unwrap_or_else(|e| {
        panic!("{e}\nThese tests need a device; a software one: apt install mesa-vulkan-drivers libvulkan1")
    })
}

fn in_every_language(test: impl Fn(Device)) {
    for options in [NATIVE, WGSL, PLAIN] {
        test(open(options));
    }
}

/// y[i] = a * x[i] + b for i < n.
fn scale_shift(target: &Target) -> Arc<Kernel> {
    let k = Builder::new("scale_shift", 64, target);
    let (x, y) = (k.arg("x", Elem::F32, Access::Read), k.arg("y", Elem::F32, Access::Write));
    let n = k.param("n", Scalar::U32);
    let (a, b) = (k.param("a", Scalar::F32), k.param("b", Scalar::F32));
    let i = k.group_id(0) * 64 + k.local_index();
    k.if_(i.lt(n), || y.store(i, x.load(i) * a + b));
    Arc::new(k.finish().unwrap())
}

/// out[i] = table[index[i]]; indices out of range are reported.
fn gather(target: &Target) -> Arc<Kernel> {
    let k = Builder::new("gather", 64, target);
    let table = k.arg("table", Elem::F32, Access::Read);
    let index = k.arg("index", Elem::I32, Access::Read);
    let out = k.arg("out", Elem::F32, Access::Write);
    let (n, size) = (k.param("n", Scalar::U32), k.param("size", Scalar::U32));
    let i = k.group_id(0) * 64 + k.local_index();
    k.if_(i.lt(n), || {
        let at = index.load(i);
        let inside = at.convert(Scalar::U32).lt(size);
        k.if_else(inside, || out.store(i, table.load(at.convert(Scalar::U32))), || k.report(i, at, size));
    });
    Arc::new(k.finish().unwrap())
}

/// Sums of 256 elements by each workgroup, through workgroup memory.
fn group_sum(target: &Target) -> Arc<Kernel> {
    let k = Builder::new("group_sum", 64, target);
    let (x, y) = (k.arg("x", Elem::F32, Access::Read), k.arg("y", Elem::F32, Access::Write));
    let shared = k.shared(Elem::F32, 1, 64);
    let local = k.local_index();
    let first = k.group_id(0) * 256 + local * 4;
    let four = x.load_vec(first, 4);
    shared.store(local, four[0] + four[1] + (four[2] + four[3]));
    k.barrier();
    k.if_(local.lt(1), || {
        let sum = k.var(k.f32(0.0));
        k.for_(k.u32(0), k.u32(64), k.u32(1), |i| sum.set(sum.get() + shared.load(i)));
        y.store(k.group_id(0), sum.get());
    });
    Arc::new(k.finish().unwrap())
}

fn dispatch(kernel: u32, args: &[(u32, u64, u64)], params: &[u32], groups: u32, node: &str) -> Dispatch {
    let slice =
        |&(buffer, offset, bytes): &(u32, u64, u64)| Slice { buffer: BufferId(buffer), offset, bytes };
    Dispatch {
        kernel: KernelId(kernel),
        args: args.iter().map(slice).collect(),
        params: params.to_vec().into(),
        groups: [groups, 1, 1],
        op: "Test",
        node: node.into(),
        ..Dispatch::default()
    }
}

/// Buffers that the host reaches, with their bytes.
type Ports<'a> = &'a [(u32, u64)];

/// A program with its buffers on the device.
struct Rig {
    program: Program,
    buffers: Vec<Option<Arc<Buffer>>>,
}

impl Rig {
    fn new(device: &Device, kernels: Vec<Arc<Kernel>>, buffers: &[u64]) -> Rig {
        let decl = |bytes: &u64| BufferDecl { content: Content::Arena, bytes: *bytes };
        let program = Program { kernels, buffers: buffers.iter().map(decl).collect(), ..Program::default() };
        let buffers = buffers.iter().map(|bytes| Some(device.allocate(*bytes, "test").unwrap())).collect();
        Rig { program, buffers }
    }

    fn record(
        &self,
        device: &Device,
        dispatches: &[Dispatch],
        ports: (Ports<'_>, Ports<'_>),
        timing: Timing,
        checked: bool,
    ) -> Result<Recording, Error> {
        let pipelines = device.pipelines(&self.program.kernels, checked)?;
        let ids = |ports: Ports<'_>| ports.iter().map(|(b, n)| (BufferId(*b), *n)).collect::<Vec<_>>();
        device.record(Commands {
            program: &self.program,
            dispatches,
            pipelines: &pipelines,
            buffers: &self.buffers,
            uploads: &ids(ports.0),
            downloads: &ids(ports.1),
            timing,
            checked,
        })
    }
}

fn to_bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn to_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn run(device: &Device, recording: &mut Recording, inputs: &[&[u8]], outputs: &[usize]) -> Vec<Vec<u8>> {
    for (i, bytes) in inputs.iter().enumerate() {
        device.upload(recording, i, bytes).unwrap();
    }
    device.submit(recording).unwrap();
    device.wait(recording).unwrap();
    let download = |(i, len): (usize, &usize)| {
        let mut bytes = vec![0; *len];
        device.download(recording, i, &mut bytes).unwrap();
        bytes
    };
    outputs.iter().enumerate().map(download).collect()
}

#[test]
fn adapters_are_listed_and_each_can_be_opened() {
    let listed = olivine_wgpu::devices();
    assert!(!listed.is_empty(), "no adapter: apt install mesa-vulkan-drivers libvulkan1");
    for (i, adapter) in listed.iter().enumerate() {
        assert_eq!(adapter.index, i);
        assert!(!adapter.caps.name.is_empty() && !adapter.caps.driver.is_empty());
        let by_index = Device::open(Select::Index(i), Options::default()).unwrap();
        assert_eq!(by_index.caps().name, adapter.caps.name);
        assert_eq!(by_index.caps(), &adapter.caps);
    }
    let name = listed[0].caps.name.to_uppercase();
    assert!(Device::open(Select::Name(name), Options::default()).is_ok());
    for select in [Select::Index(999), Select::Name("no such device".into())] {
        assert!(matches!(Device::open(select, Options::default()), Err(Error::Unavailable(_))));
    }
}

#[test]
fn kernels_are_spirv_over_vulkan_unless_told_otherwise() {
    let api = olivine_wgpu::devices()[0].api;
    let device = Device::open(Select::Index(0), NATIVE).unwrap();
    assert_eq!(device.takes_spirv(), api == olivine_wgpu::Api::Vulkan, "{device:?}");
    assert!(!open(WGSL).takes_spirv() && !open(PLAIN).takes_spirv());
}

/// out[i] = (1 + x[i]) - 1, whether x[i] is NaN, and x[i] itself.
fn strict(target: &Target) -> Arc<Kernel> {
    let k = Builder::new("strict", 64, target);
    let (x, out) = (k.arg("x", Elem::F32, Access::Read), k.arg("out", Elem::F32, Access::Write));
    let i = k.local_index();
    let value = x.load(i);
    out.store(i * 3, (value + 1.0) - 1.0);
    out.store(i * 3 + 1, value.ne(value).convert(Scalar::F32));
    out.store(i * 3 + 2, value * 0.5);
    Arc::new(k.finish().unwrap())
}

#[test]
fn floats_in_spirv_keep_their_rounding_nan_and_subnormal_numbers() {
    let device = open(NATIVE);
    let rig = Rig::new(&device, vec![strict(&device.caps().target)], &[256, 768]);
    let work = [dispatch(0, &[(0, 0, 256), (1, 0, 768)], &[], 1, "n")];
    let mut recording = rig.record(&device, &work, (&[(0, 256)], &[(1, 768)]), Timing::Off, false).unwrap();
    let some = [1e-8_f32, 0.1, f32::NAN, f32::INFINITY, 2e-38, -0.0, 3.0, 1e-39];
    let x: Vec<f32> = some.into_iter().cycle().take(64).collect();
    let out = to_floats(&run(&device, &mut recording, &[&to_bytes(&x)], &[768])[0]);
    for (x, out) in x.iter().zip(out.as_chunks::<3>().0) {
        let expected = [(x + 1.0) - 1.0, f32::from(x.is_nan()), x * 0.5];
        let same =
            out.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()));
        assert!(same, "{x:e}: {out:?} instead of {expected:?}");
    }
}

/// Elements of a narrow type copied one by one to the next place, by pairs and by fours.
fn shift_narrow(target: &Target, elem: Elem) -> Arc<Kernel> {
    let k = Builder::new(format!("shift_{elem}"), 64, target);
    let (x, y) = (k.arg("x", elem, Access::Read), k.arg("y", elem, Access::Write));
    let i = k.local_index();
    y.store(i + 1, x.load(i));
    y.store_vec(i * 2 + 128, &x.load_vec(i * 2, 2));
    y.store_vec(i * 4 + 256, &x.load_vec(i * 4, 4));
    Arc::new(k.finish().unwrap())
}

#[test]
fn narrow_elements_keep_their_neighbours_in_every_language() {
    in_every_language(|device| {
        for elem in [Elem::U8, Elem::I8, Elem::Bool, Elem::U16, Elem::I16, Elem::F16, Elem::BF16] {
            for checked in [false, true] {
                let size = elem.size() as usize;
                let bytes = 512 * size;
                let lengths = [bytes as u64; 2];
                let rig = Rig::new(&device, vec![shift_narrow(&device.caps().target, elem)], &lengths);
                let work = [dispatch(0, &[(0, 0, lengths[0]), (1, 0, lengths[1])], &[], 1, "n")];
                let ports: (Ports<'_>, Ports<'_>) = (&[(0, lengths[0]), (1, lengths[1])], &[(1, lengths[1])]);
                let mut recording = rig.record(&device, &work, ports, Timing::Off, checked).unwrap();
                // Below 0x78 no high byte makes a NaN of a half, whose bits may change.
                let number = |i: usize| if elem == Elem::Bool { i % 2 } else { i * 7 % 0x78 };
                let x: Vec<u8> = (0..bytes).map(|i| number(i) as u8).collect();
                let mut expected = vec![1_u8; bytes];
                expected[size..65 * size].copy_from_slice(&x[..64 * size]);
                expected[128 * size..256 * size].copy_from_slice(&x[..128 * size]);
                expected[256 * size..].copy_from_slice(&x[..256 * size]);
                let out = run(&device, &mut recording, &[&x, &vec![1; bytes]], &[bytes]);
                assert_eq!(out[0], expected, "{elem}, checked {checked}, {device:?}");
            }
        }
    });
}

#[test]
fn masks_and_the_plain_dialect_take_features_away() {
    let masked = Options { mask: Mask { subgroups: true, f16: true, matrices: true }, ..NATIVE };
    let device = Device::open(Select::Auto, masked).unwrap();
    assert_eq!(device.caps().target.subgroup, None);
    assert!(!device.caps().target.f16);
    let target = &open(PLAIN).caps().target.clone();
    assert!(target.subgroup.is_none() && !target.f64 && !target.i64);
}

#[test]
fn bytes_come_back_as_written_at_any_offset_and_length() {
    let device = open(NATIVE);
    let buffer = device.allocate(200, "bytes").unwrap();
    let mut expected: Vec<u8> = (0..200).map(|i| i as u8).collect();
    device.write(&buffer, 0, &expected).unwrap();
    for (offset, len) in
        [(0, 1), (1, 1), (2, 2), (3, 1), (5, 3), (6, 5), (7, 2), (9, 20), (12, 4), (16, 7), (199, 1)]
    {
        let bytes: Vec<u8> = (0..len).map(|i| (offset * 31 + i * 7 + 100) as u8).collect();
        device.write(&buffer, offset as u64, &bytes).unwrap();
        expected[offset..offset + len].copy_from_slice(&bytes);
        let mut all = vec![0; 200];
        device.read(&buffer, 0, &mut all).unwrap();
        assert_eq!(all, expected, "{len} bytes at {offset}");
        let mut some = vec![0; len];
        device.read(&buffer, offset as u64, &mut some).unwrap();
        assert_eq!(some, bytes);
    }
    device.write(&buffer, 3, &[]).unwrap();
    device.read(&buffer, 3, &mut []).unwrap();
    assert!(matches!(device.write(&buffer, 1 << 20, &[1]), Err(Error::Driver { call: "write", .. })));
    assert!(matches!(device.read(&buffer, u64::MAX, &mut [0]), Err(Error::Driver { call: "read", .. })));
}

#[test]
fn large_transfers_go_in_chunks() {
    let device = open(NATIVE);
    let bytes = (70 << 20) + 5;
    let buffer = device.allocate(bytes as u64, "large").unwrap();
    let data: Vec<u8> = (0..bytes).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    device.write(&buffer, 0, &data).unwrap();
    let mut back = vec![0; bytes];
    device.read(&buffer, 0, &mut back).unwrap();
    assert!(back == data);
}

#[test]
fn a_kernel_runs_with_its_params_in_every_language() {
    in_every_language(|device| {
        let n = 100_usize;
        let rig = Rig::new(&device, vec![scale_shift(&device.caps().target)], &[512, 512]);
        let params = [n as u32, 3.0_f32.to_bits(), 0.5_f32.to_bits()];
        let work = [dispatch(0, &[(0, 0, 400), (1, 0, 400)], &params, 2, "a")];
        let mut recording =
            rig.record(&device, &work, (&[(0, 400)], &[(1, 400)]), Timing::Off, false).unwrap();
        let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let out = run(&device, &mut recording, &[&to_bytes(&x)], &[400]);
        let expected: Vec<f32> = x.iter().map(|v| 3.0 * v + 0.5).collect();
        assert_eq!(to_floats(&out[0]), expected);
    });
}

#[test]
fn vector_loads_and_workgroup_memory_work_in_every_language() {
    in_every_language(|device| {
        let rig = Rig::new(&device, vec![group_sum(&device.caps().target)], &[4096, 256]);
        let work = [dispatch(0, &[(0, 0, 4096), (1, 0, 16)], &[], 4, "sum")];
        let mut recording =
            rig.record(&device, &work, (&[(0, 4096)], &[(1, 16)]), Timing::Off, false).unwrap();
        let x: Vec<f32> = (0..1024).map(|i| (i % 37) as f32).collect();
        let out = run(&device, &mut recording, &[&to_bytes(&x)], &[16]);
        let expected: Vec<f32> = x.chunks(256).map(|c| c.iter().sum()).collect();
        assert_eq!(to_floats(&out[0]), expected);
    });
}

#[test]
fn dependent_dispatches_in_one_arena_follow_each_other_and_replay_with_fresh_inputs() {
    in_every_language(|device| {
        // Ping-pong between two slots of one buffer, which every dispatch reads and writes.
        let rig = Rig::new(&device, vec![scale_shift(&device.caps().target)], &[1024, 256]);
        let params = [64, 1.0_f32.to_bits(), 1.0_f32.to_bits()];
        let mut work = vec![dispatch(0, &[(1, 0, 256), (0, 0, 256)], &params, 1, "in")];
        for step in 0..50_u64 {
            let (from, to) = (512 * (step % 2), 512 * ((step + 1) % 2));
            work.push(dispatch(0, &[(0, from, 256), (0, to, 256)], &params, 1, "step"));
        }
        let mut recording =
            rig.record(&device, &work, (&[(1, 256)], &[(0, 256)]), Timing::Off, false).unwrap();
        for start in [0.0_f32, 7.0, -3.5] {
            let x: Vec<f32> = (0..64).map(|i| start + i as f32).collect();
            let out = run(&device, &mut recording, &[&to_bytes(&x)], &[256]);
            let expected: Vec<f32> = x.iter().map(|v| v + 51.0).collect();
            assert_eq!(to_floats(&out[0]), expected);
        }
    });
}

#[test]
fn a_kernel_may_write_what_it_reads_where_ranges_may_overlap() {
    let device = open(NATIVE);
    assert!(matches!(device.caps().addressing, Addressing::Bindings { overlap: true, .. }));
    let rig = Rig::new(&device, vec![scale_shift(&device.caps().target)], &[256]);
    let params = [64, 2.0_f32.to_bits(), 0.0_f32.to_bits()];
    let work = [dispatch(0, &[(0, 0, 256), (0, 0, 256)], &params, 1, "in place")];
    let mut recording = rig.record(&device, &work, (&[(0, 256)], &[(0, 256)]), Timing::Off, false).unwrap();
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let out = run(&device, &mut recording, &[&to_bytes(&x)], &[256]);
    assert_eq!(to_floats(&out[0]), x.iter().map(|v| 2.0 * v).collect::<Vec<_>>());
}

#[test]
fn a_checked_run_names_the_first_violation_and_the_next_run_is_clean() {
    in_every_language(|device| {
        let target = &device.caps().target;
        let rig = Rig::new(&device, vec![scale_shift(target), gather(target)], &[256, 256, 256]);
        let shift = |n: u32, node| {
            let params = [n, 1.0_f32.to_bits(), 0.0_f32.to_bits()];
            dispatch(0, &[(0, 0, 64), (2, 0, 256)], &params, 1, node)
        };
        let pick = dispatch(1, &[(0, 0, 64), (1, 0, 12), (2, 0, 12)], &[3, 16], 1, "pick");

        let ports: (Ports<'_>, Ports<'_>) = (&[(1, 12)], &[(2, 12)]);
        let mut recording = rig.record(&device, &[shift(16, "ok"), pick], ports, Timing::Off, true).unwrap();
        let indices = |i: [i32; 3]| i.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        for bad in [16, -7] {
            device.upload(&mut recording, 0, &indices([1, bad, 2])).unwrap();
            device.submit(&mut recording).unwrap();
            let error = device.wait(&mut recording).unwrap_err();
            let Error::IndexOutOfRange { op: "Test", node, position: 1, value, size: 16 } = error else {
                panic!("{error}")
            };
            assert_eq!((node.as_str(), value), ("pick", i64::from(bad)));
        }
        device.upload(&mut recording, 0, &indices([1, 15, 2])).unwrap();
        device.submit(&mut recording).unwrap();
        device.wait(&mut recording).unwrap();

        let mut recording =
            rig.record(&device, &[shift(17, "too far")], (&[], &[]), Timing::Off, true).unwrap();
        device.submit(&mut recording).unwrap();
        let error = device.wait(&mut recording).unwrap_err();
        let Error::OutOfBounds { node, kernel, arg, index: 16, size: 16, .. } = error else {
            panic!("{error}")
        };
        assert_eq!([node.as_str(), kernel.as_str(), arg.as_str()], ["too far", "scale_shift", "x"]);
    });
}

#[test]
fn timed_runs_tell_when_each_dispatch_ran() {
    let device = open(NATIVE);
    let rig = Rig::new(&device, vec![scale_shift(&device.caps().target)], &[1 << 20, 1 << 20]);
    let params = [1 << 18, 1.0_f32.to_bits(), 1.0_f32.to_bits()];
    let there = dispatch(0, &[(0, 0, 1 << 20), (1, 0, 1 << 20)], &params, 4096, "there");
    let back = dispatch(0, &[(1, 0, 1 << 20), (0, 0, 1 << 20)], &params, 4096, "back");
    let work = [there.clone(), back, there];
    if !device.can_time() {
        let Err(refused) = rig.record(&device, &work, (&[], &[]), Timing::Dispatches, false) else {
            panic!("no timestamps")
        };
        assert!(matches!(refused, Error::Driver { call: "record", .. }), "{refused}");
        return;
    }
    let mut recording = rig.record(&device, &work, (&[], &[]), Timing::Dispatches, false).unwrap();
    assert!(device.times(&mut recording).is_err(), "before it ran");
    for _ in 0..2 {
        device.submit(&mut recording).unwrap();
        device.wait(&mut recording).unwrap();
        let times = device.times(&mut recording).unwrap();
        assert_eq!(times.len(), 3);
        assert_eq!(times[0].0.as_nanos(), 0);
        for (begin, end) in &times {
            assert!(begin < end, "{times:?}");
        }
        assert!(times.windows(2).all(|w| w[0].1 <= w[1].1), "{times:?}");
    }
    let mut whole = rig.record(&device, &work, (&[], &[]), Timing::Runs(3), false).unwrap();
    device.submit(&mut whole).unwrap();
    device.wait(&mut whole).unwrap();
    let times = device.times(&mut whole).unwrap();
    assert!(times.len() == 1 && times[0].0 < times[0].1, "one submission: {times:?}");
    let mut untimed = rig.record(&device, &work, (&[], &[]), Timing::Off, false).unwrap();
    device.submit(&mut untimed).unwrap();
    device.wait(&mut untimed).unwrap();
    assert!(matches!(device.times(&mut untimed), Err(Error::Driver { call: "times", .. })));
}

#[test]
fn several_threads_share_a_device() {
    let device = open(NATIVE);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let device = &device;
            scope.spawn(move || {
                let rig = Rig::new(device, vec![scale_shift(&device.caps().target)], &[4096, 4096]);
                let params = [1000, 2.0_f32.to_bits(), (thread as f32).to_bits()];
                let work = [dispatch(0, &[(0, 0, 4000), (1, 0, 4000)], &params, 16, "t")];
                let ports: (Ports<'_>, Ports<'_>) = (&[(0, 4000)], &[(1, 4000)]);
                let mut recording = rig.record(device, &work, ports, Timing::Off, false).unwrap();
                for round in 0..20 {
                    let x: Vec<f32> = (0..1000).map(|i| (i * round) as f32).collect();
                    let out = run(device, &mut recording, &[&to_bytes(&x)], &[4000]);
                    let expected: Vec<f32> = x.iter().map(|v| 2.0 * v + thread as f32).collect();
                    assert_eq!(to_floats(&out[0]), expected);
                    let mut back = vec![0; 4000];
                    device.read(rig.buffers[1].as_ref().unwrap(), 0, &mut back).unwrap();
                    assert_eq!(to_floats(&back), expected);
                }
            });
        }
    });
}

#[test]
fn one_kernel_is_built_once() {
    let device = open(NATIVE);
    let kernel = scale_shift(&device.caps().target);
    let again = scale_shift(&device.caps().target);
    let pipelines = device.pipelines(&[kernel.clone(), again.clone()], false).unwrap();
    assert!(Arc::ptr_eq(&pipelines[0], &pipelines[1]));
    let later = device.pipelines(&[again], false).unwrap();
    assert!(Arc::ptr_eq(&pipelines[0], &later[0]));
    let checked = device.pipelines(&[kernel], true).unwrap();
    assert!(!Arc::ptr_eq(&pipelines[0], &checked[0]));
}

#[test]
fn what_is_too_large_is_an_error_with_its_numbers() {
    let device = open(NATIVE);
    let huge = device.caps().max_buffer_bytes + 1;
    let Err(Error::TooLarge { what, needed, available, .. }) = device.allocate(huge, "weights") else {
        panic!("allocated {huge} bytes")
    };
    assert_eq!((what.as_str(), needed, available), ("weights", huge, huge - 1));

    let Addressing::Bindings { max_bytes, max_count, .. } = device.caps().addressing else {
        panic!("bindings")
    };
    let rig = Rig::new(&device, vec![scale_shift(&device.caps().target)], &[256, 256]);
    let work = [dispatch(0, &[(0, 0, max_bytes + 4), (1, 0, 256)], &[1, 0, 0], 1, "wide")];
    let Err(Error::TooLarge { what, needed, available, .. }) =
        rig.record(&device, &work, (&[], &[]), Timing::Off, false)
    else {
        panic!("bound too much")
    };
    assert_eq!((what.as_str(), needed, available), ("Test `wide`: `x`", max_bytes + 4, max_bytes));

    if max_count < 1000 {
        let k = Builder::new("many", 1, &device.caps().target);
        let args: Vec<_> =
            (0..=max_count).map(|i| k.arg(format!("a{i}"), Elem::U32, Access::Write)).collect();
        args.iter().for_each(|a| a.store(k.u32(0), k.u32(1)));
        let rig = Rig::new(&device, vec![Arc::new(k.finish().unwrap())], &[256]);
        let args = vec![(0, 0, 4); max_count as usize + 1];
        let refused =
            rig.record(&device, &[dispatch(0, &args, &[], 1, "many")], (&[], &[]), Timing::Off, false);
        assert!(matches!(refused, Err(Error::Unsupported { .. } | Error::Driver { .. })));
    }
}

#[test]
fn what_does_not_fit_the_kernel_is_refused_by_name() {
    let device = open(NATIVE);
    let rig = Rig::new(&device, vec![scale_shift(&device.caps().target)], &[512, 512]);
    let refused = |work: Dispatch| match rig.record(&device, &[work], (&[], &[]), Timing::Off, false) {
        Ok(_) => panic!("recorded"),
        Err(error) => error.to_string(),
    };
    let x = (0, 0, 256);
    assert_eq!(refused(dispatch(0, &[x], &[1, 2, 3], 1, "n")), "expected 2 buffers of Test `n`, got 1");
    assert_eq!(refused(dispatch(0, &[x, (1, 0, 4)], &[1], 1, "n")), "expected 3 params of Test `n`, got 1");
    let refused_for = |args: &[(u32, u64, u64)], words: &str| {
        let message = refused(dispatch(0, args, &[1, 2, 3], 1, "n"));
        assert!(message.contains("Test `n`: `y`") && message.contains(words), "{message}");
    };
    refused_for(&[x, (1, 1, 4)], "no multiple");
    refused_for(&[x, (1, 256, 512)], "of a buffer of 512 bytes");
    refused_for(&[x, (7, 0, 4)], "buffer 7 is not there");
    let message = refused(dispatch(0, &[x, (1, 0, 256)], &[1, 2, 3], 1 << 30, "n"));
    assert!(message.contains("workgroups"), "{message}");
    let message = refused(dispatch(3, &[x, x], &[1, 2, 3], 1, "n"));
    assert!(message.contains("no pipeline 3"), "{message}");
}

#[test]
fn a_recording_is_used_in_order() {
    let device = open(NATIVE);
    let rig = Rig::new(&device, vec![scale_shift(&device.caps().target)], &[256, 256]);
    let work = [dispatch(0, &[(0, 0, 256), (1, 0, 256)], &[64, 0, 0], 1, "n")];
    let mut recording = rig.record(&device, &work, (&[(0, 256)], &[(1, 256)]), Timing::Off, false).unwrap();
    let mut out = [0; 256];
    device.wait(&mut recording).unwrap();
    assert!(device.download(&mut recording, 0, &mut out).is_err(), "before it ran");
    device.submit(&mut recording).unwrap();
    assert!(device.submit(&mut recording).is_err(), "in flight");
    assert!(device.upload(&mut recording, 0, &[0; 256]).is_err(), "in flight");
    device.wait(&mut recording).unwrap();
    device.download(&mut recording, 0, &mut out).unwrap();
    assert!(matches!(device.download(&mut recording, 0, &mut out[1..]), Err(Error::WrongCount { .. })));
    assert!(matches!(device.upload(&mut recording, 0, &[0; 3]), Err(Error::WrongCount { .. })));
    assert!(device.download(&mut recording, 1, &mut out).is_err());
    drop(recording);
    let mut empty = rig.record(&device, &[], (&[], &[]), Timing::Off, false).unwrap();
    device.submit(&mut empty).unwrap();
    device.wait(&mut empty).unwrap();
}

/// Polls a future until it is done; the driver's futures make progress when they are polled.
fn drive<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

#[test]
fn a_run_needs_no_call_that_blocks() {
    drive(async {
        let device = Device::open_async(Select::Auto, PLAIN).await.unwrap();
        let mut rig = Rig::new(&device, vec![scale_shift(&device.caps().target)], &[]);
        for _ in 0..2 {
            rig.buffers.push(Some(device.allocate_async(256, "async").await.unwrap()));
        }
        device.pipelines_async(&rig.program.kernels, false).await.unwrap();
        let params = [64, 2.0_f32.to_bits(), 1.0_f32.to_bits()];
        let work = [dispatch(0, &[(0, 0, 256), (1, 0, 256)], &params, 1, "n")];
        let mut recording =
            rig.record(&device, &work, (&[(0, 256)], &[(1, 256)]), Timing::Off, false).unwrap();
        let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let expected: Vec<f32> = x.iter().map(|v| 2.0 * v + 1.0).collect();
        device.upload(&mut recording, 0, &to_bytes(&x)).unwrap();
        device.submit(&mut recording).unwrap();
        device.wait_async(&mut recording).await.unwrap();
        let mut out = [0; 256];
        device.download(&mut recording, 0, &mut out).unwrap();
        assert_eq!(to_floats(&out), expected);
        out.fill(0);
        device.read_async(rig.buffers[1].as_ref().unwrap(), 0, &mut out).await.unwrap();
        assert_eq!(to_floats(&out), expected);
    });
}

#[test]
fn kernels_that_the_device_cannot_run_are_refused_when_they_are_built() {
    let wide = Target { shared_bytes: u32::MAX, ..Target::plain() };
    let k = Builder::new("greedy", 64, &wide);
    let shared = k.shared(Elem::F32, 1, 1 << 20);
    shared.store(k.local_index(), k.f32(0.0));
    let kernel = Arc::new(k.finish().unwrap());
    let refused = open(NATIVE).pipelines(&[kernel], false);
    assert!(matches!(refused, Err(Error::Kernel { kernel, .. }) if kernel == "greedy"));
}

#[test]
fn more_params_than_immediates_hold_travel_in_a_buffer() {
    in_every_language(|device| {
        let k = Builder::new("sum_params", 1, &device.caps().target);
        let out = k.arg("out", Elem::U32, Access::Write);
        let params: Vec<_> = (0..100).map(|i| k.param(format!("p{i}"), Scalar::U32)).collect();
        let sum = params.iter().fold(k.u32(0), |sum, p| sum + *p);
        out.store(k.group_id(0), sum);
        let rig = Rig::new(&device, vec![Arc::new(k.finish().unwrap())], &[256, 256]);
        let params: Vec<u32> = (0..100).collect();
        let doubled: Vec<u32> = params.iter().map(|p| 2 * p).collect();
        let work =
            [dispatch(0, &[(0, 0, 4)], &params, 1, "once"), dispatch(0, &[(1, 0, 4)], &doubled, 1, "twice")];
        let mut recording = rig.record(&device, &work, (&[], &[(0, 4), (1, 4)]), Timing::Off, false).unwrap();
        let out = run(&device, &mut recording, &[], &[4, 4]);
        assert_eq!(out, [4950_u32.to_le_bytes(), 9900_u32.to_le_bytes()]);
    });
}

/// out[local] = 1 + 2 + ... + size, plus 10,000 for each subgroup before.
fn subgroup_sum(size: u32) -> Arc<Kernel> {
    let k = Builder::new("subgroup_sum", size * 2, &Target { subgroup: Some(size), ..Target::plain() });
    let out = k.arg("out", Elem::U32, Access::Write);
    let sum = (k.lane() + 1).subgroup(SubgroupOp::Add);
    out.store(k.local_index(), sum + k.subgroup_id() * 10_000);
    Arc::new(k.finish().unwrap())
}

#[test]
fn subgroups_have_the_size_that_the_device_tells_and_are_refused_where_there_are_none() {
    let device = open(NATIVE);
    if let Some(size) = device.caps().target.subgroup {
        let rig = Rig::new(&device, vec![subgroup_sum(size)], &[4096]);
        let bytes = u64::from(size) * 8;
        let work = [dispatch(0, &[(0, 0, bytes)], &[], 1, "n")];
        let mut recording = rig.record(&device, &work, (&[], &[(0, bytes)]), Timing::Off, false).unwrap();
        let out = run(&device, &mut recording, &[], &[bytes as usize]);
        let words: Vec<u32> = out[0].as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let expected = |i: u32| size * (size + 1) / 2 + 10_000 * (i / size);
        assert_eq!(words, (0..2 * size).map(expected).collect::<Vec<_>>());
    }
    let masked = Options { mask: Mask { subgroups: true, ..Mask::default() }, ..NATIVE };
    for device in [open(PLAIN), Device::open(Select::Auto, masked).unwrap()] {
        assert!(device.pipelines(&[subgroup_sum(8)], false).is_err());
    }
}
