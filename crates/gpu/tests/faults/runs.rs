//! Runs that fail: what they held is given back, and the next run starts afresh.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use olivine_gpu::{DeviceTensor, Error, Executable, Input, Run, Take};
use olivine_ir::size::Bindings;
use olivine_ir::{DType, Shape, TensorType, TensorView, open_symbol};

use crate::mock::MockDriver;

const N: usize = 256;
const BYTES: usize = 4 * N;

fn ty() -> TensorType {
    TensorType::new(DType::F32, Shape::new(&[N]).unwrap())
}

fn zeros<'a>() -> Input<'a, DeviceTensor<MockDriver>> {
    Input::Host(TensorView::new([N], &[0f32; N]).unwrap())
}

#[test]
fn an_input_of_another_type_is_refused_before_anything_is_recorded() {
    let device = MockDriver::new(1 << 20);
    let executable = device.executable(N);
    let wrong = TensorView::new([N], &[0i32; N]).unwrap();
    let problem = executable.run(&[Input::Host(wrong)], &mut [&mut [0; BYTES]]).unwrap_err();
    assert!(matches!(&problem, Error::WrongType { what, .. } if what == "input `x`"), "{problem}");
    assert_eq!(device.counts().recorded.load(SeqCst), 0);
}

#[test]
fn a_failed_wait_drops_the_recording_and_the_next_run_makes_another() {
    let device = MockDriver::new(1 << 20);
    let executable = device.executable(N);
    let mut y = [0; BYTES];
    executable.run(&[zeros()], &mut [&mut y]).unwrap();
    executable.run(&[zeros()], &mut [&mut y]).unwrap();
    assert_eq!(device.counts().recorded.load(SeqCst), 1, "a recording is used again");
    device.lose.store(1, SeqCst);
    let problem = executable.run(&[zeros()], &mut [&mut y]).unwrap_err();
    assert!(matches!(&problem, Error::DeviceLost { during: Some(d) } if d == "add `y`"), "{problem}");
    assert_eq!(device.counts().recordings.load(SeqCst), 0);
    assert_eq!(device.counts().bytes.load(SeqCst), 0, "all its memory is free");
    executable.run(&[zeros()], &mut [&mut y]).unwrap();
    assert_eq!(device.counts().recorded.load(SeqCst), 2);
}

#[test]
fn a_failed_run_has_no_outputs_however_often_one_asks() {
    let device = MockDriver::new(1 << 20);
    let executable = device.executable(N);
    device.lose.store(1, SeqCst);
    let mut run = executable.start(&[zeros()], &[Take::Host]).unwrap();
    assert!(run.finish().is_err());
    let mut y = [0; BYTES];
    assert!(run.copy_outputs(&mut [&mut y]).is_err());
    assert!(run.output(0).is_none());
    device.lose.store(1, SeqCst);
    drop(executable.start(&[zeros()], &[Take::Host]).unwrap());
    drop(run);
    assert_eq!(device.counts().recordings.load(SeqCst), 0, "nobody heard that the second failed");
}

#[test]
fn out_of_memory_in_the_middle_frees_what_was_taken() {
    // Room for an input, not for the output behind it.
    let device = MockDriver::new(3 * BYTES as u64);
    let held = DeviceTensor::upload(&device, ty(), &[0; BYTES]).unwrap();
    let more = DeviceTensor::upload(&device, ty(), &[0; BYTES]).unwrap();
    let executable = device.executable(N);
    let problem = executable.run(&[zeros()], &mut [&mut [0; BYTES]]).unwrap_err();
    let Error::OutOfMemory { what, bytes, available } = &problem else { panic!("{problem}") };
    assert_eq!((what.as_str(), *bytes, *available), ("output `y`", BYTES as u64, Some(0)));
    assert_eq!(device.counts().bytes.load(SeqCst), 2 * BYTES as u64);
    drop(more);
    executable.run(&[zeros()], &mut [&mut [0; BYTES]]).unwrap();
    drop(held);
}

#[test]
fn cached_recordings_release_their_memory_for_a_run_that_needs_it() {
    let device = MockDriver::new(3 * BYTES as u64);
    let executable = device.executable(N);
    executable.run(&[zeros()], &mut [&mut [0; BYTES]]).unwrap();
    // Another recording is needed for a resident input; both do not fit.
    let x = DeviceTensor::upload(&device, ty(), &[0; BYTES]).unwrap();
    let run = executable.start(&[Input::Device(&x)], &[Take::Host]).unwrap();
    run.wait_into(&mut [&mut [0; BYTES]]).unwrap();
    assert_eq!(device.counts().recordings.load(SeqCst), 1);
}

#[test]
fn what_runs_left_serves_the_same_run_until_it_is_evicted() {
    let device = MockDriver::new(1 << 20);
    let executable = device.executable(N);
    let replays = |take| executable.replays(&[zeros()], &[take]);
    assert!(!replays(Take::Host) && !executable.evict(), "nothing has run");
    let held = executable.start(&[zeros()], &[Take::Host]).unwrap();
    assert!(!replays(Take::Host), "the recording is in use");
    held.wait_into(&mut [&mut [0; BYTES]]).unwrap();
    assert!(replays(Take::Host) && !replays(Take::Device));
    assert!(executable.evict() && !replays(Take::Host));
    assert_eq!(device.counts().bytes.load(SeqCst), 0, "all its memory is free");
}

#[test]
fn a_dropped_tensor_takes_its_recordings_with_it() {
    let device = MockDriver::new(1 << 20);
    let executable = device.executable(N);
    let run = |x: &DeviceTensor<MockDriver>| {
        let run = executable.start(&[Input::Device(x)], &[Take::Host]).unwrap();
        run.wait_into(&mut [&mut [0; BYTES]]).unwrap();
    };
    let kept = DeviceTensor::upload(&device, ty(), &[0; BYTES]).unwrap();
    run(&kept);
    for _ in 0..20 {
        run(&DeviceTensor::upload(&device, ty(), &[0; BYTES]).unwrap());
        assert!(device.counts().recordings.load(SeqCst) <= 2, "the one kept and the last one");
    }
    let before = device.counts().recorded.load(SeqCst);
    run(&kept);
    run(&kept.clone());
    assert_eq!(device.counts().recorded.load(SeqCst), before, "its recording was kept");
}

#[test]
fn a_tensor_of_another_driver_is_refused_before_anything_is_recorded() {
    let (device, other) = (MockDriver::new(1 << 20), MockDriver::new(1 << 20));
    let executable = device.executable(N);
    let x = DeviceTensor::upload(&other, ty(), &[0; BYTES]).unwrap();
    let problem = executable.start(&[Input::Device(&x)], &[Take::Host]).map(drop).unwrap_err();
    assert!(matches!(&problem, Error::OtherDevice { what } if what == "input `x`"), "{problem}");
    assert_eq!(device.counts().recorded.load(SeqCst), 0);
}

#[test]
fn outputs_that_somebody_holds_are_not_written_over() {
    let device = MockDriver::new(1 << 20);
    let executable = device.executable(N);
    let take = || {
        let mut run = executable.start(&[zeros()], &[Take::Device]).unwrap();
        run.finish().unwrap();
        run.output(0).unwrap()
    };
    let held = take();
    drop(take());
    drop(take());
    assert_eq!(device.counts().recorded.load(SeqCst), 2, "one beside the one that is held");
    drop(held);
    drop(take());
    assert_eq!(device.counts().recorded.load(SeqCst), 2);
}

/// The executable for `n` elements, and a run of it that the host waits for.
fn sized(
    base: &Arc<Executable<MockDriver>>,
    n: usize,
) -> (Arc<Executable<MockDriver>>, impl Fn(Take) -> Run<MockDriver> + use<>) {
    let mut sizes = Bindings::new();
    sizes.bind(open_symbol("n").unwrap(), n as i64).unwrap();
    let executable = Arc::new(base.for_sizes(&sizes).unwrap());
    let of_run = executable.clone();
    let run = move |take: Take| {
        let x = vec![0f32; n];
        let view = TensorView::new([n], x.as_slice()).unwrap();
        let mut run = of_run.start(&[Input::Host(view)], &[take]).unwrap();
        run.finish().unwrap();
        run
    };
    (executable, run)
}

#[test]
fn sizes_that_come_by_turns_are_recorded_once_and_work_on_the_same_memory() {
    let device = MockDriver::new(1 << 20);
    let base = device.open_executable(N);
    let all = [N, 2 * N, N / 2, N / 4].map(|n| sized(&base, n).1);
    // The largest makes the memory grow; then there is a recording for each.
    for run in all.iter().chain(&all) {
        drop(run(Take::Host));
    }
    let recorded = device.counts().recorded.load(SeqCst);
    let bytes = device.counts().bytes.load(SeqCst);
    assert_eq!(bytes, 4 * BYTES as u64, "an input and an output of the largest");
    for run in all.iter().chain(&all).chain(&all) {
        drop(run(Take::Host));
    }
    assert_eq!(device.counts().recorded.load(SeqCst), recorded, "each is replayed");
    assert_eq!(recorded, 5, "each once, and what was recorded before the memory grew");
    assert_eq!(base.recordings(), 5);
    assert_eq!(device.counts().bytes.load(SeqCst), bytes);
}

#[test]
fn runs_of_two_sizes_at_a_time_have_memory_of_their_own() {
    let device = MockDriver::new(1 << 20);
    let base = device.open_executable(N);
    let ((_, small), (_, large)) = (sized(&base, N / 2), sized(&base, N));
    drop(large(Take::Host));
    drop(small(Take::Host));
    let one = device.counts().bytes.load(SeqCst);
    // Both in flight: the second must not write what the first reads.
    let (first, second) = (large(Take::Host), small(Take::Host));
    let both = device.counts().bytes.load(SeqCst);
    assert_eq!(both, one + BYTES as u64);
    drop((first, second));
    // An output that is held is not written by a run of another size.
    let held = large(Take::Device);
    let output = held.output(0).unwrap();
    drop(held);
    let recorded = device.counts().recorded.load(SeqCst);
    drop(small(Take::Host));
    assert_eq!(device.counts().recorded.load(SeqCst), recorded, "the one beside it is free");
    drop(output);
}

#[test]
fn ten_thousand_sizes_take_the_memory_of_the_largest() {
    let device = MockDriver::new(1 << 24);
    let base = device.open_executable(1 << 16);
    let mut random = 5u64;
    for i in 0..10_000 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        drop(sized(&base, 2 + (random >> 33) as usize % (1 << 16)).1(Take::Host));
        if i % 100 == 0 {
            assert!(device.counts().bytes.load(SeqCst) <= 2 * (4 << 16) + 64);
            assert!(device.counts().recordings.load(SeqCst) <= 8);
        }
    }
}

#[test]
fn a_failed_run_takes_the_recordings_on_its_memory_with_it() {
    let device = MockDriver::new(1 << 20);
    let base = device.open_executable(N);
    let ((_, small), (executable, large)) = (sized(&base, N / 2), sized(&base, N));
    drop(large(Take::Host));
    drop(small(Take::Host));
    assert_eq!(device.counts().recordings.load(SeqCst), 2);
    device.lose.store(1, SeqCst);
    assert!(executable.run(&[zeros()], &mut [&mut [0; BYTES]]).is_err());
    assert_eq!(device.counts().recordings.load(SeqCst), 0);
    assert_eq!(device.counts().bytes.load(SeqCst), 0, "all its memory is free");
    drop(small(Take::Host));
}

#[test]
fn idle_memory_of_other_plans_is_bounded_by_a_part_of_the_device() {
    let device = MockDriver::new(1 << 20);
    let weights = Arc::default();
    let plans: Vec<_> = (0..20).map(|_| device.executable_with(4 * N, &weights)).collect();
    let (x, mut y) = (vec![0f32; 4 * N], vec![0; 4 * BYTES]);
    let mut run = |plan: &Arc<Executable<MockDriver>>| {
        let view = TensorView::new([4 * N], x.as_slice()).unwrap();
        plan.run(&[Input::Host(view)], &mut [&mut y]).unwrap();
    };
    // Each takes 8 KiB; an eighth of the device is 128 KiB.
    plans.iter().for_each(&mut run);
    assert_eq!(device.counts().recordings.load(SeqCst), 17, "16 others and the last");
    let recorded = device.counts().recorded.load(SeqCst);
    plans[3..].iter().for_each(&mut run);
    assert_eq!(device.counts().recorded.load(SeqCst), recorded, "the least recently used went");
}

#[test]
fn idle_memory_of_other_plans_is_freed_for_a_run_that_needs_it() {
    let device = MockDriver::new(3 * BYTES as u64);
    let weights = Arc::default();
    let (first, second) = (device.executable_with(N, &weights), device.executable_with(N, &weights));
    first.run(&[zeros()], &mut [&mut [0; BYTES]]).unwrap();
    second.run(&[zeros()], &mut [&mut [0; BYTES]]).unwrap();
    assert_eq!(device.counts().recordings.load(SeqCst), 1);
}
