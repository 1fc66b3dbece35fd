//! Steps that are awaited do what steps that block do.
#![cfg(feature = "async")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;
mod run;

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use common::TempModel;
use common::recorded::Recorded;
use olivine::prelude::*;
use olivine_lm::{Engine, EngineOptions, Event, LanguageModel, RequestId};
use run::{Got, finish, request};

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future to its end, or so many times and drops it.
fn poll<F: Future>(future: F, most: usize) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    for _ in 0..most {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return Some(value),
            Poll::Pending => std::thread::park(),
        }
    }
    None
}

/// Runs all requests by awaited steps. Of these, every third of the first ones is dropped after its first poll: not of all, because
/// sequences with states of fixed size begin again then.
fn awaited(engine: &mut Engine, drops: bool) -> HashMap<RequestId, Got> {
    let mut all: HashMap<RequestId, Got> = HashMap::new();
    let mut dropped = 0;
    for step in 0.. {
        if engine.is_idle() {
            break;
        }
        let most = if drops && dropped < 5 && step % 3 == 1 { 1 } else { usize::MAX };
        let Some(events) = poll(engine.step_async(), most) else {
            dropped += 1;
            continue;
        };
        for event in events.unwrap() {
            match event {
                Event::Token { id, token, logprob, .. } => {
                    all.entry(id).or_default().tokens.push((token, logprob.map(f32::to_bits)));
                }
                Event::End { id, finish } => all.entry(id).or_default().finish = Some(finish),
                _ => {}
            }
        }
    }
    assert!(!drops || dropped > 3, "{dropped} steps were dropped before their ends");
    all
}

fn check(path: &Path) {
    for device in [Device::Cpu, Device::Vulkan] {
        for ahead in [false, true] {
            let options =
                EngineOptions::default().slots(3).chunk(32).context(128).logprobs(true).ahead(ahead);
            let session = Session::new(device.clone()).unwrap();
            let mut engine = LanguageModel::load(path).unwrap().engine(&session, &options).unwrap();
            let mut run = |steps: &mut dyn FnMut(&mut Engine) -> HashMap<RequestId, Got>| {
                let requests = [request(1, 5, 20), request(2, 70, 12), request(3, 33, 1), request(4, 3, 30)];
                let vocabulary = engine.vocabulary() as i64;
                let ids = requests.map(|mut request| {
                    request.prompt.iter_mut().for_each(|token| *token %= vocabulary);
                    engine.add(request).unwrap()
                });
                let mut got = steps(&mut engine);
                engine.forget();
                ids.map(|id| got.remove(&id).unwrap())
            };
            let blocking = run(&mut |engine| finish(engine, |_, _| {}));
            assert_eq!(run(&mut |engine| awaited(engine, false)), blocking, "{device}, ahead {ahead}");
            assert_eq!(
                run(&mut |engine| awaited(engine, true)),
                blocking,
                "{device}, ahead {ahead}, dropped"
            );
        }
    }
}

#[test]
fn awaited_steps_return_what_blocking_steps_return_also_where_some_are_dropped() {
    check(&TempModel::new("llama", "futures").path());
}

#[test]
fn awaited_steps_of_states_of_fixed_size_return_what_blocking_steps_return() {
    let recorded = Recorded::all().into_iter().find(|recorded| recorded.name == "mamba2").unwrap();
    check(&recorded.folder("futures").0);
}
