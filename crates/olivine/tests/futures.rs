//! Runs in flight are awaited by any executor.
#![forbid(unsafe_code)]
#![cfg(feature = "async")]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use olivine::prelude::*;

/// The smallest executor there is.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn several_runs_are_awaited_at_once() {
    let mut g = Graph::new("square");
    let x = g.input("x", DType::F32, [1 << 18]).unwrap();
    let y = g.mul(x, x).unwrap();
    g.output("y", y).unwrap();
    for device in [Device::Cpu, Device::Vulkan, Device::Wgpu] {
        let square = Session::new(device.clone()).unwrap().compile(&g).unwrap();
        let inputs: Vec<Tensor> =
            (0..5).map(|i| Tensor::new([1 << 18], vec![i as f32; 1 << 18]).unwrap()).collect();
        let sums = block_on(async {
            let runs: Vec<_> = inputs.iter().map(|x| square.submit([("x", x)]).unwrap()).collect();
            let mut sums = Vec::new();
            for run in runs {
                sums.push(run.await.unwrap()["y"].as_slice::<f32>().unwrap()[77]);
            }
            sums
        });
        assert_eq!(sums, [0.0, 1.0, 4.0, 9.0, 16.0], "{device}");
        // A future that nobody polls to its end harms nothing.
        drop(square.submit([("x", &inputs[0])]).unwrap().into_future());
    }
}
