//! Recordings: replay, hazards, checks, times.

use std::time::Duration;

use half::f16;
use olivine_kernel::{Access, Builder, Elem, Scalar};
use olivine_program::{Commands, Driver, Slice, Timing};
use olivine_vulkan::{Device, Error, Options, Select};

use crate::support::*;

#[test]
fn a_kernel_runs_and_replays_with_fresh_inputs() {
    let device = open();
    let n = 1000u64;
    let mut rig = Rig::default();
    let kernel = rig.kernel(scale(&device.caps().target, Elem::F16, 2.0));
    let (x, y) = (rig.buffer(&device, 4 * n), rig.buffer(&device, 2 * n));
    rig.dispatch(kernel, &[(x, 0, 4 * n), (y, 0, 2 * n)], &[n as u32], 16);
    (rig.uploads, rig.downloads) = (vec![(x, 4 * n)], vec![(y, 2 * n)]);
    let mut recording = rig.record(&device).unwrap();
    for round in 0..5 {
        let input: Vec<f32> = (0..n).map(|i| i as f32 * 0.37 - round as f32 * 11.0).collect();
        let bytes = run(&device, &mut recording, &[&to_bytes(&input)], 2 * n as usize).unwrap();
        let got = bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]));
        for (i, (got, x)) in got.zip(&input).enumerate() {
            let (low, high) = (f16::from_f32(x * 2.0 + i as f32), f16::from_f32(x.mul_add(2.0, i as f32)));
            assert!(got == low || got == high, "round {round}, element {i}: {got} for {x}");
        }
    }
}

#[test]
fn dependent_dispatches_wait_for_each_other() {
    let device = open();
    let n = 100_000u64;
    let mut rig = Rig::default();
    let kernel = rig.kernel(scale(&device.caps().target, Elem::F32, 1.0));
    let buffers = [rig.buffer(&device, 4 * n), rig.buffer(&device, 4 * n)];
    let groups = (n as u32).div_ceil(64);
    for step in 0..10 {
        let (from, to) = (buffers[step % 2], buffers[1 - step % 2]);
        rig.dispatch(kernel, &[(from, 0, 4 * n), (to, 0, 4 * n)], &[n as u32], groups);
    }
    (rig.uploads, rig.downloads) = (vec![(buffers[0], 4 * n)], vec![(buffers[0], 4 * n)]);
    let mut recording = rig.record(&device).unwrap();
    let bytes = run(&device, &mut recording, &[&to_bytes(&vec![1.0; n as usize])], 4 * n as usize).unwrap();
    for (i, got) in to_f32(&bytes).iter().enumerate() {
        assert_eq!(*got, 1.0 + 10.0 * i as f32, "element {i}");
    }
}

#[test]
fn a_gated_dispatch_runs_as_many_workgroups_as_memory_says() {
    let device = open();
    let n = 1000u64;
    let mut rig = Rig::default();
    let gate = {
        let k = Builder::new("gate", 4, &device.caps().target);
        let (x, y) = (k.arg("x", Elem::U32, Access::Read), k.arg("y", Elem::U32, Access::Write));
        let i = k.local_index();
        k.if_(i.lt(3u32), || y.store(i, x.load(i)));
        rig.kernel(k.finish().unwrap())
    };
    let kernel = rig.kernel(scale(&device.caps().target, Elem::F32, 1.0));
    let [given, gates, x, y] = [16, 64, 4 * n, 4 * n].map(|bytes| rig.buffer(&device, bytes));
    // Twice behind the same gate: what the first trip reads, the second gate writes again.
    for _ in 0..2 {
        rig.dispatch(gate, &[(given, 0, 16), (gates, 16, 16)], &[], 1);
        rig.dispatch(kernel, &[(x, 0, 4 * n), (y, 0, 4 * n)], &[n as u32], 16);
        if let Some(last) = rig.dispatches.last_mut() {
            last.indirect = Some(Slice { buffer: gates, offset: 16, bytes: 12 });
        }
    }
    rig.uploads = vec![(given, 12), (x, 4 * n), (y, 4 * n)];
    rig.downloads = vec![(y, 4 * n)];
    let mut recording = rig.record(&device).unwrap();
    let (ones, minus) = (to_bytes(&vec![1.0; n as usize]), to_bytes(&vec![-1.0; n as usize]));
    for groups in [[16u32, 1, 1], [0, 0, 0], [16, 1, 1]] {
        let words: Vec<u8> = groups.iter().flat_map(|g| g.to_le_bytes()).collect();
        let bytes = run(&device, &mut recording, &[&words, &ones, &minus], 4 * n as usize).unwrap();
        let expected = |i: usize| if groups[0] == 0 { -1.0 } else { 1.0 + i as f32 };
        assert!(to_f32(&bytes).iter().enumerate().all(|(i, got)| *got == expected(i)), "{groups:?}");
    }
}

#[test]
fn slices_of_one_buffer_are_apart() {
    let device = open();
    let n = 512u64;
    let mut rig = Rig::default();
    let target = device.caps().target.clone();
    let kernels: Vec<_> = (0..4).map(|f| rig.kernel(scale(&target, Elem::F32, f as f32))).collect();
    let (x, y) = (rig.buffer(&device, 4 * n), rig.buffer(&device, 16 * n));
    for (i, kernel) in kernels.iter().enumerate() {
        rig.dispatch(*kernel, &[(x, 0, 4 * n), (y, i as u64 * 4 * n, 4 * n)], &[n as u32], 8);
    }
    (rig.uploads, rig.downloads) = (vec![(x, 4 * n)], vec![(y, 16 * n)]);
    let mut recording = rig.record(&device).unwrap();
    let input: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let got = to_f32(&run(&device, &mut recording, &[&to_bytes(&input)], 16 * n as usize).unwrap());
    for (j, got) in got.iter().enumerate() {
        let (f, i) = (j / 512, j % 512);
        assert_eq!(*got, (f * i + i) as f32, "slice {f}, element {i}");
    }
}

#[test]
fn arguments_that_do_not_fit_in_push_constants_go_through_memory() {
    let device = open();
    let many = 70;
    let k = Builder::new("many", 64, &device.caps().target);
    let args: Vec<_> = (0..many).map(|i| k.arg(format!("x{i}"), Elem::F32, Access::Read)).collect();
    let y = k.arg("y", Elem::F32, Access::Write);
    let n = k.param("n", Scalar::U32);
    let i = k.local_index();
    let sum = args.iter().fold(k.f32(0.0), |sum, x| sum + x.load(i));
    k.if_(i.lt(n), || y.store(i, sum));
    let mut rig = Rig::default();
    let kernel = rig.kernel(k.finish().unwrap());
    let buffers: Vec<_> = (0..=many).map(|_| rig.buffer(&device, 256)).collect();
    for (v, buffer) in rig.buffers.iter().flatten().enumerate() {
        device.write(buffer, 0, &to_bytes(&[v as f32; 64])).unwrap();
    }
    let args: Vec<_> = buffers.iter().map(|b| (*b, 0, 256)).collect();
    rig.dispatch(kernel, &args, &[64], 1);
    rig.dispatch(kernel, &args, &[64], 1);
    rig.downloads = vec![(buffers[many], 256)];
    let mut recording = rig.record(&device).unwrap();
    let got = to_f32(&run(&device, &mut recording, &[], 256).unwrap());
    assert_eq!(got, [(many * (many - 1) / 2) as f32; 64]);
}

#[test]
fn a_long_recording_is_cut_and_still_in_order() {
    let device = open();
    let n = 256u64;
    let mut rig = Rig::default();
    let kernel = rig.kernel(scale(&device.caps().target, Elem::F32, 1.0));
    let buffers = [rig.buffer(&device, 4 * n), rig.buffer(&device, 4 * n)];
    for step in 0..60 {
        let (from, to) = (buffers[step % 2], buffers[1 - step % 2]);
        rig.dispatch(kernel, &[(from, 0, 4 * n), (to, 0, 4 * n)], &[n as u32], 4);
    }
    // As if each took long on any device: every one becomes a submission.
    rig.dispatches.iter_mut().for_each(|d| d.flops = 1 << 50);
    (rig.uploads, rig.downloads) = (vec![(buffers[0], 4 * n)], vec![(buffers[0], 4 * n)]);
    let mut recording = rig.record(&device).unwrap();
    let bytes = run(&device, &mut recording, &[&to_bytes(&[0.0; 256])], 4 * n as usize).unwrap();
    for (i, got) in to_f32(&bytes).iter().enumerate() {
        assert_eq!(*got, 60.0 * i as f32, "element {i}");
    }
}

#[test]
fn transfers_too_large_for_staging_memory_go_in_pieces() {
    let device = open();
    let n = 20_000_000u64;
    let mut rig = Rig::default();
    let kernel = rig.kernel(scale(&device.caps().target, Elem::F32, 3.0));
    let (x, y) = (rig.buffer(&device, 4 * n), rig.buffer(&device, 4 * n));
    rig.dispatch(kernel, &[(x, 0, 4 * n), (y, 0, 4 * n)], &[1000], 16);
    (rig.uploads, rig.downloads) = (vec![(x, 4 * n)], vec![(y, 4 * n)]);
    let mut recording = rig.record(&device).unwrap();
    let input = to_bytes(&vec![2.0; n as usize]);
    let got = to_f32(&run(&device, &mut recording, &[&input], 4 * n as usize).unwrap());
    assert!(got[..1000].iter().enumerate().all(|(i, v)| *v == 6.0 + i as f32));
}

#[test]
fn times_of_dispatches_follow_each_other() {
    let device = open();
    let n = 50_000u64;
    let mut rig = Rig::default();
    let kernel = rig.kernel(scale(&device.caps().target, Elem::F32, 2.0));
    let (x, y) = (rig.buffer(&device, 4 * n), rig.buffer(&device, 4 * n));
    for _ in 0..5 {
        rig.dispatch(kernel, &[(x, 0, 4 * n), (y, 0, 4 * n)], &[n as u32], 782);
    }
    rig.uploads = vec![(x, 4 * n)];
    let times = |timing: Timing, rig: &mut Rig| {
        rig.timing = timing;
        let mut recording = rig.record(&device).unwrap();
        assert!(device.times(&mut recording).is_err(), "nothing ran yet");
        device.upload(&mut recording, 0, &to_bytes(&vec![1.0; n as usize])).unwrap();
        device.submit(&mut recording).unwrap();
        device.wait(&mut recording).unwrap();
        device.times(&mut recording)
    };
    assert!(times(Timing::Off, &mut rig).is_err());
    for runs in [1, 3] {
        let whole = times(Timing::Runs(runs), &mut rig).unwrap();
        assert!(whole.len() == 1 && whole[0].0 == Duration::ZERO && whole[0].1 > Duration::ZERO, "{whole:?}");
    }
    let times = times(Timing::Dispatches, &mut rig).unwrap();
    assert_eq!(times.len(), 5);
    assert_eq!(times[0].0, Duration::ZERO);
    assert!(times.iter().all(|(begin, end)| begin < end), "{times:?}");
    assert!(times.windows(2).all(|w| w[0].1 <= w[1].0), "{times:?}");
}

#[test]
fn a_checked_kernel_that_leaves_its_buffer_is_named() {
    let device = open();
    let mut rig = Rig { checked: true, ..Rig::default() };
    let good = rig.kernel(scale(&device.caps().target, Elem::F32, 2.0));
    let (x, y) = (rig.buffer(&device, 4096), rig.buffer(&device, 4096));
    rig.dispatch(good, &[(x, 0, 256), (y, 0, 256)], &[64], 1);
    rig.dispatch(good, &[(x, 0, 256), (y, 256, 160)], &[64], 1);
    rig.uploads = vec![(x, 256)];
    let mut recording = rig.record(&device).unwrap();
    for _ in 0..2 {
        device.upload(&mut recording, 0, &[0; 256]).unwrap();
        device.submit(&mut recording).unwrap();
        let error = device.wait(&mut recording).err().unwrap();
        match &error {
            Error::OutOfBounds { op: "Test", node, arg, index, size: 40, .. } => {
                assert_eq!((node.as_str(), arg.as_str()), ("node1", "y"));
                assert!((40..64).contains(index));
            }
            _ => panic!("{error}"),
        }
    }
    rig.dispatches.truncate(1);
    let mut recording = rig.record(&device).unwrap();
    device.submit(&mut recording).unwrap();
    device.wait(&mut recording).unwrap();
}

#[test]
fn a_bad_index_of_the_users_is_told_with_its_position() {
    let device = open();
    let k = Builder::new("gather", 64, &device.caps().target);
    let ids = k.arg("ids", Elem::I32, Access::Read);
    let y = k.arg("y", Elem::I32, Access::Write);
    let i = k.local_index();
    let id = ids.load(i);
    k.if_(id.ge(10), || k.report(i, id, k.u32(10)));
    y.store(i, id);
    let mut rig = Rig { checked: true, ..Rig::default() };
    let kernel = rig.kernel(k.finish().unwrap());
    let (x, y) = (rig.buffer(&device, 256), rig.buffer(&device, 256));
    rig.dispatch(kernel, &[(x, 0, 256), (y, 0, 256)], &[], 1);
    rig.uploads = vec![(x, 256)];
    let mut recording = rig.record(&device).unwrap();
    let mut ids = [3i32; 64];
    ids[17] = 12;
    let bytes: Vec<u8> = ids.iter().flat_map(|v| v.to_le_bytes()).collect();
    device.upload(&mut recording, 0, &bytes).unwrap();
    device.submit(&mut recording).unwrap();
    let error = device.wait(&mut recording).err().unwrap();
    assert!(matches!(error, Error::IndexOutOfRange { position: 17, value: 12, size: 10, .. }), "{error}");
}

#[test]
fn misuse_is_refused() {
    let device = open();
    let mut rig = Rig::default();
    let kernel = rig.kernel(scale(&device.caps().target, Elem::F32, 2.0));
    let (x, y) = (rig.buffer(&device, 256), rig.buffer(&device, 256));
    rig.dispatch(kernel, &[(x, 0, 256), (y, 0, 256)], &[64], 1);
    (rig.uploads, rig.downloads) = (vec![(x, 256)], vec![(y, 256)]);
    let mut recording = rig.record(&device).unwrap();
    assert!(device.wait(&mut recording).is_err(), "not submitted");
    assert!(device.download(&mut recording, 0, &mut [0; 256]).is_err(), "not run");
    assert!(matches!(device.upload(&mut recording, 0, &[0; 255]), Err(Error::WrongCount { .. })));
    assert!(device.upload(&mut recording, 1, &[0; 256]).is_err(), "no such upload");
    device.upload(&mut recording, 0, &[0; 256]).unwrap();
    device.submit(&mut recording).unwrap();
    assert!(device.submit(&mut recording).is_err(), "in flight");
    device.wait(&mut recording).unwrap();

    let broken = |change: &dyn Fn(&mut Rig)| {
        let mut rig = Rig {
            program: rig.program.clone(),
            dispatches: rig.dispatches.clone(),
            buffers: rig.buffers.clone(),
            ..Rig::default()
        };
        change(&mut rig);
        rig.record(&device).is_err()
    };
    assert!(broken(&|r| r.dispatches[0].groups = [0, 1, 1]));
    assert!(broken(&|r| r.dispatches[0].groups = [1, u32::MAX, 1]));
    assert!(broken(&|r| r.dispatches[0].args.make_mut()[0].bytes = 257));
    assert!(broken(&|r| r.dispatches[0].params = Vec::new().into()));
    assert!(broken(&|r| r.dispatches[0].kernel.0 = 1));
    assert!(broken(&|r| r.buffers[0] = None));
    let gate = |offset, bytes| Some(Slice { buffer: y, offset, bytes });
    assert!(broken(&|r| r.dispatches[0].indirect = gate(2, 12)), "not aligned");
    assert!(broken(&|r| r.dispatches[0].indirect = gate(248, 12)), "past the end");
    assert!(broken(&|r| r.dispatches[0].indirect = gate(0, 8)), "two words");
    let pipelines = device.pipelines(&rig.program.kernels, false).unwrap();
    let mixed = device.record(Commands {
        program: &rig.program,
        dispatches: &rig.dispatches,
        pipelines: &pipelines,
        buffers: &rig.buffers,
        uploads: &[],
        downloads: &[],
        timing: Timing::Off,
        checked: true,
    });
    assert!(mixed.is_err(), "pipelines that do not check in a checked recording");
}

#[test]
fn a_recording_dropped_in_flight_and_its_buffers_live_until_it_is_done() {
    let device = open();
    let n = 1_000_000u64;
    let mut rig = Rig::default();
    let kernel = rig.kernel(scale(&device.caps().target, Elem::F32, 2.0));
    let (x, y) = (rig.buffer(&device, 4 * n), rig.buffer(&device, 4 * n));
    for _ in 0..10 {
        rig.dispatch(kernel, &[(x, 0, 4 * n), (y, 0, 4 * n)], &[n as u32], (n as u32).div_ceil(64));
    }
    let mut recording = rig.record(&device).unwrap();
    device.submit(&mut recording).unwrap();
    drop(rig);
    assert!(device.memory_taken() > 0);
    drop(recording);
    assert_eq!(device.memory_taken(), 0);
}

#[test]
fn sixteen_threads_record_and_run_at_once() {
    let device = open_without_validation();
    std::thread::scope(|scope| {
        for t in 0..16 {
            let device = &device;
            scope.spawn(move || {
                let n = 300 + 64 * t as u64;
                let mut rig = Rig::default();
                let kernel = rig.kernel(scale(&device.caps().target, Elem::F32, (t % 4) as f32));
                let (x, y) = (rig.buffer(device, 4 * n), rig.buffer(device, 4 * n));
                rig.dispatch(kernel, &[(x, 0, 4 * n), (y, 0, 4 * n)], &[n as u32], 32);
                (rig.uploads, rig.downloads) = (vec![(x, 4 * n)], vec![(y, 4 * n)]);
                let mut recording = rig.record(device).unwrap();
                for round in 0..10 {
                    let input = vec![round as f32 + t as f32; n as usize];
                    let bytes = run(device, &mut recording, &[&to_bytes(&input)], 4 * n as usize).unwrap();
                    for (i, got) in to_f32(&bytes).iter().enumerate() {
                        assert_eq!(*got, (t % 4) as f32 * input[0] + i as f32, "thread {t}");
                    }
                }
            });
        }
    });
}

#[test]
fn several_devices_are_open_at_once_and_one_after_another() {
    let run_on = |device: &Device, factor: f32| {
        let mut rig = Rig::default();
        let kernel = rig.kernel(scale(&device.caps().target, Elem::F32, factor));
        let (x, y) = (rig.buffer(device, 256), rig.buffer(device, 256));
        rig.dispatch(kernel, &[(x, 0, 256), (y, 0, 256)], &[64], 1);
        (rig.uploads, rig.downloads) = (vec![(x, 256)], vec![(y, 256)]);
        let mut recording = rig.record(device).unwrap();
        let got = to_f32(&run(device, &mut recording, &[&to_bytes(&[1.0; 64])], 256).unwrap());
        assert!(got.iter().enumerate().all(|(i, v)| *v == factor + i as f32));
    };
    let options = Options { cache_dir: None, ..Options::default() };
    let plain: Vec<_> = (0..3).map(|_| Device::open(&Select::Auto, &options).unwrap()).collect();
    let checked = open();
    std::thread::scope(|scope| {
        for (i, device) in plain.iter().enumerate() {
            scope.spawn(move || run_on(device, i as f32));
        }
        run_on(&checked, 9.0);
    });
    drop(plain);
    run_on(&Device::open(&Select::Auto, &options).unwrap(), 4.0);
}

#[test]
fn a_recording_outlives_its_device() {
    let device = open();
    let mut rig = Rig::default();
    let kernel = rig.kernel(scale(&device.caps().target, Elem::F32, 2.0));
    let (x, y) = (rig.buffer(&device, 256), rig.buffer(&device, 256));
    rig.dispatch(kernel, &[(x, 0, 256), (y, 0, 256)], &[64], 1);
    let mut recording = rig.record(&device).unwrap();
    device.submit(&mut recording).unwrap();
    let messages = device.messages().unwrap();
    drop(device);
    drop(rig);
    drop(recording);
    assert_eq!(messages.list(), Vec::<String>::new());
}
