//! Work in flight: waiting, polling, callbacks and many threads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{contexts, f32s, to_f32s};
use olivine_array::{Array, Context, DType, ops};

fn heavy(context: &Context) -> Array {
    let x = Array::from_slice(context, [256, 256], &vec![0.01f32; 256 * 256]).unwrap();
    x.matmul(&x).unwrap().matmul(&x).unwrap()
}

#[test]
fn results_are_waited_for_or_polled() {
    for context in contexts() {
        let x = heavy(&context);
        assert!(!x.is_ready().unwrap(), "nothing was submitted");
        x.eval().unwrap();
        let began = Instant::now();
        while !x.is_ready().unwrap() {
            assert!(began.elapsed() < Duration::from_secs(60), "never ready");
            std::thread::yield_now();
        }
        let y = heavy(&context);
        y.wait().unwrap();
        assert!(y.is_ready().unwrap());
        assert_eq!(x.to_bytes().unwrap(), y.to_bytes().unwrap());
        context.wait().unwrap();
    }
}

#[test]
fn callbacks_come_from_a_thread_of_the_context() {
    for context in contexts() {
        let (sender, receiver) = channel();
        for i in 0..20 {
            let sender = sender.clone();
            let array = heavy(&context);
            let called = move |ended: Result<(), olivine_array::Error>| {
                ended.unwrap();
                sender.send((i, std::thread::current().id())).unwrap();
            };
            array.on_ready(called).unwrap();
            // The handle goes while the work is in flight.
        }
        // One that panics does not take the others with it.
        heavy(&context).on_ready(|_| panic!("on purpose")).unwrap();
        let buffer = context.upload(&f32s(&[4.0; 100])).unwrap();
        context.unary(&buffer, &buffer, 100, ops::unary::SQRT, DType::F32).unwrap();
        let last = sender.clone();
        buffer.on_ready(move |_| last.send((99, std::thread::current().id())).unwrap()).unwrap();
        let mut seen: Vec<i32> =
            (0..21).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap().0).collect();
        seen.sort_unstable();
        assert_eq!(seen[..20], (0..20).collect::<Vec<_>>());
        assert_eq!(seen[20], 99);
    }
}

#[test]
fn a_hundred_threads_use_and_drop_handles() {
    for context in contexts() {
        let shared = context.upload(&f32s(&[1.0; 512])).unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..100u32 {
                let (context, shared, done) = (context.clone(), shared.clone(), done.clone());
                scope.spawn(move || {
                    for round in 0..6u32 {
                        let own = context.upload(&f32s(&[thread as f32; 512])).unwrap();
                        let out = context.alloc(512 * 4).unwrap();
                        context.binary(&out, &own, &own, 512, ops::binary::ADD, DType::F32).unwrap();
                        // Dropped while its work may be in flight.
                        drop(own);
                        context.binary(&shared, &out, &out, 512, ops::binary::MAX, DType::F32).unwrap();
                        let array = out.array(DType::F32, [512]).unwrap();
                        let sum = array.neg().unwrap().sum(&[0], false).unwrap();
                        if (thread + round) % 3 == 0 {
                            let got = to_f32s(&out.download().unwrap());
                            assert!(got.iter().all(|x| *x == 2.0 * thread as f32));
                            assert_eq!(sum.to_vec::<f32>().unwrap(), [-1024.0 * thread as f32]);
                        } else {
                            sum.eval().unwrap();
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), 600);
        context.wait().unwrap();
        // Some thread's bytes, and one's alone.
        let got = to_f32s(&shared.download().unwrap());
        assert!(got.iter().all(|x| *x == got[0]), "{:?}", &got[..4]);
    }
}

#[test]
fn a_context_can_go_while_its_work_is_in_flight() {
    for context in contexts() {
        let x = heavy(&context);
        x.eval().unwrap();
        drop(context);
        assert!(x.to_vec::<f32>().unwrap()[0] > 0.0);
        let y = heavy(x.context());
        y.eval().unwrap();
        drop((x, y));
    }
}

#[test]
fn what_is_kept_for_later_can_be_released() {
    for context in contexts() {
        let x = heavy(&context);
        x.wait().unwrap();
        assert_eq!(context.cache_stats().cached, 1);
        context.release().unwrap();
        assert_eq!(context.cache_stats().cached, 0);
        assert!(x.to_vec::<f32>().unwrap()[0] > 0.0, "results stay");
        heavy(&context).wait().unwrap();
    }
}
