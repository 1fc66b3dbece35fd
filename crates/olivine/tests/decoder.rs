//! A decoder on every backend: a prompt at once and token by token, with caches that stay on the device.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::OptionsExt as _;
use olivine::internals::models::{Decoder, seeded_input, seeded_params};
use olivine::prelude::*;
use olivine::{PipelineCache, State};

fn compile(session: &Session, decoder: &Decoder) -> Executable {
    let graph = decoder.graph().unwrap();
    let options = CompileOptions::new().states(decoder.states());
    let executable = session.compile_with(&graph, &options).unwrap();
    executable.set_params(seeded_params(&graph, 3).unwrap()).unwrap();
    executable
}

/// One run on some rows of `x`, from a position on.
fn run(executable: &Executable, state: &mut State, x: &Tensor, rows: std::ops::Range<usize>) -> Vec<f64> {
    let hidden = x.shape()[2];
    let part = x.as_slice::<f32>().unwrap()[rows.start * hidden..rows.end * hidden].to_vec();
    let part = Tensor::new([1, rows.len(), hidden], part).unwrap();
    let position = Tensor::scalar(rows.start as i64);
    let inputs = [("x", &part), ("position", &position)];
    executable.run_with_state(state, inputs).unwrap().get("y").unwrap().to_f64()
}

#[test]
fn tokens_one_by_one_continue_a_prompt_as_the_cpu_sees_all_of_them() {
    let all = Decoder { sequence: 8, ..Decoder::small() };
    let x = seeded_input("x", Shape::new(&[1, 8, all.hidden]).unwrap(), 4).unwrap();
    let plain = SessionOptions::new().no_fusion(true);
    let whole = compile(&Session::with_options(Device::Cpu, plain).unwrap(), &all);
    let want = run(&whole, &mut whole.new_state().unwrap(), &x, 0..8);
    for device in [Device::Cpu, Device::Vulkan, Device::Wgpu] {
        let options = SessionOptions::new().pipeline_cache(PipelineCache::Off);
        let session = Session::with_options(device.clone(), options).unwrap();
        let prompt = compile(&session, &Decoder { sequence: 5, ..all });
        let token = compile(&session, &Decoder { sequence: 1, ..all });
        let mut state = prompt.new_state().unwrap();
        let mut got = run(&prompt, &mut state, &x, 0..5);
        for at in 5..8 {
            got.extend(run(&token, &mut state, &x, at..at + 1));
        }
        let error: f64 = got.iter().zip(&want).map(|(a, b)| (a - b) * (a - b)).sum();
        let scale: f64 = want.iter().map(|b| b * b).sum();
        let relative = (error / scale).sqrt();
        assert!(got.len() == want.len() && relative <= 1e-5, "{device}: relative L2 {relative:e}");
    }
}
