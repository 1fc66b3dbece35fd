//! A process that is forked from one with open sessions: calls on what it inherited are errors, drops are quiet, and it can
//! open sessions of its own.
#![cfg(unix)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::ffi::c_int;
use std::time::{Duration, Instant};

use olivine::internals::SessionExt as _;
use olivine::prelude::*;
use olivine::{Input, PipelineCache};

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn kill(process: c_int, signal: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
}

const NO_HANG: c_int = 1;
const KILL: c_int = 9;

/// Runs `child` in a forked process; the answer is the number it ends with, or what became of it.
fn forked(child: impl FnOnce() -> c_int) -> Result<c_int, String> {
    // Safety: the child calls nothing but `child` and `_exit`, and never returns.
    let process = unsafe { fork() };
    if process == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
        // Safety: ends the child without the handlers of its parent.
        unsafe { _exit(code) };
    }
    assert!(process > 0);
    let begun = Instant::now();
    let mut status = 0;
    loop {
        // Safety: the process is this one's child, and the status is writable.
        if unsafe { waitpid(process, &raw mut status, NO_HANG) } == process {
            break;
        }
        if begun.elapsed() > Duration::from_secs(60) {
            // Safety: the process is this one's child.
            unsafe { kill(process, KILL) };
            return Err("it hangs".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if status & 0x7f == 0 { Ok(status >> 8 & 0xff) } else { Err(format!("signal {}", status & 0x7f)) }
}

/// y = x·x and next = state + x, over enough elements for every thread to have some.
fn counting(n: usize) -> Graph {
    let mut g = Graph::new("counting");
    let (x, state) = (g.input("x", DType::F32, [n]).unwrap(), g.input("state", DType::F32, [n]).unwrap());
    let (y, next) = (g.mul(x, x).unwrap(), g.add(state, x).unwrap());
    g.output("y", y).unwrap();
    g.output("next", next).unwrap();
    g
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Forked))
}

#[test]
fn what_a_forked_process_inherits_is_refused_and_dropped_quietly() {
    let n = 1 << 20;
    let x = Tensor::new([n], vec![2f32; n]).unwrap();
    let options = || CompileOptions::new().state("state", "next");
    for (device, threads) in [(Device::Cpu, None), (Device::Cpu, Some(3)), (Device::Vulkan, None)] {
        let how = SessionOptions::new().threads(threads).pipeline_cache(PipelineCache::Off);
        let session = Session::with_options(device.clone(), how).unwrap();
        let executable = session.compile_with(&counting(n), &options()).unwrap();
        let mut state = executable.new_state().unwrap();
        let resident =
            executable.run_with_state(&mut state, [("x", &x)]).map(|_| session.upload(&x).unwrap()).unwrap();
        let run = || executable.run([("x", Input::from(&x)), ("state", Input::from(&resident))]);
        run().unwrap();
        let pending = executable.submit([("x", Input::from(&x)), ("state", Input::from(&resident))]).unwrap();
        let ended = forked(|| {
            let mut refused = vec![
                is_refused(run()),
                is_refused(executable.submit([("x", Input::from(&x)), ("state", Input::from(&resident))])),
                is_refused(
                    executable.run_resident([("x", Input::from(&x)), ("state", Input::from(&resident))]),
                ),
                is_refused(executable.load()),
                is_refused(executable.new_state()),
                is_refused(session.compile(&counting(4))),
                is_refused(session.upload(&x)),
                is_refused(session.explain(&counting(4))),
                is_refused(resident.to_tensor()),
                is_refused(resident.read_elements(0..1)),
                session.validation_messages().is_empty(),
                session.device() == &device,
            ];
            // The closure holds what it borrows; these are copies that go here.
            let (mine, held) = (session.clone(), resident.clone());
            drop((mine, held));
            // A session of its own works, with threads of its own.
            let own = Session::new(Device::Cpu).unwrap();
            let mut g = Graph::new("own");
            let a = g.input("a", DType::F32, [n]).unwrap();
            let b = g.add(a, a).unwrap();
            g.output("b", b).unwrap();
            let own = own.compile(&g).unwrap();
            let out = own.run([("a", &x)]).unwrap();
            refused.push(out.get("b").unwrap().as_slice::<f32>().unwrap().iter().all(|v| *v == 4.0));
            let out = own.submit([("a", &x)]).unwrap().wait().unwrap();
            refused.push(out.get("b").unwrap().as_slice::<f32>().unwrap().iter().all(|v| *v == 4.0));
            refused.iter().position(|ok| !ok).map_or(0, |i| 1 + i as c_int)
        });
        assert_eq!(ended, Ok(0), "{device}, threads {threads:?}: the check of this number failed");
        // All of it is dropped in a child, whose parent goes on with it.
        let mut owned = Some((executable, session, state, pending, resident));
        let ended = forked(|| {
            let (executable, session, state, pending, resident) = owned.take().unwrap();
            let refused = is_refused(pending.wait());
            drop((executable, session, state, resident));
            c_int::from(!refused)
        });
        assert_eq!(ended, Ok(0), "{device}, threads {threads:?}: dropping what was inherited");
        let (executable, _session, mut state, pending, resident) = owned.unwrap();
        let out = pending.wait().unwrap();
        assert_eq!(out.get("y").unwrap().as_slice::<f32>().unwrap()[7], 4.0, "{device}");
        executable.run_with_state(&mut state, [("x", &x)]).unwrap();
        assert_eq!(state.get("state").unwrap().to_tensor().unwrap().as_slice::<f32>().unwrap()[n - 1], 4.0);
        drop(resident);
    }
}
