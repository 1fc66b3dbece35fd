//! Runs that fail: what they held is given back, and the next run starts afresh.

use std::sync::atomic::Ordering::SeqCst;

use olivine_gpu::{DeviceTensor, Error, Input, Take};
use olivine_ir::{DType, Shape, TensorType, TensorView};

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
