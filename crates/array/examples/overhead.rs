//! What a call costs: the host's time of immediate operations and lazy arrays beside a run of an executable, and a chain of
//! ten elementwise operations beside one fused dispatch.
//!
//! `cargo run --release -p olivine-array --example overhead [device]`
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::time::{Duration, Instant};

use olivine::{Device, Session};
use olivine_array::{Array, Context, ContextOptions, DType, Error, Graph, ops};

fn main() -> Result<(), Error> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let names = if named.is_empty() { vec!["cpu".to_string(), "vulkan".to_string()] } else { named };
    for name in names {
        let device: Device = name.parse()?;
        if !olivine::is_available(device.clone()) {
            println!("{name}: not here");
            continue;
        }
        let session = Session::new(device)?;
        println!("{name}: {}", session.device_name());
        small_calls(&session)?;
        large_chain(&session)?;
    }
    Ok(())
}

/// The least time of several rounds, per call.
fn per_call(calls: u32, mut round: impl FnMut(u32) -> Result<(), Error>) -> Result<Duration, Error> {
    let mut best = Duration::MAX;
    for _ in 0..8 {
        let began = Instant::now();
        round(calls)?;
        best = best.min(began.elapsed() / calls);
    }
    Ok(best)
}

fn line(what: &str, time: Duration) {
    println!("  {what:<56} {:>10.2} µs", time.as_secs_f64() * 1e6);
}

fn small_calls(session: &Session) -> Result<(), Error> {
    let n = 1024;
    let context = Context::of_session(session.clone(), &ContextOptions::new());
    let (a, b) = (context.upload(&vec![0; 4 * n])?, context.alloc(4 * n)?);

    let mut graph = Graph::new("add");
    let x = graph.input("x", DType::F32, [n])?;
    let y = graph.add(x, x)?;
    graph.output("y", y)?;
    let executable = session.compile(&graph)?;
    let resident = a.array(DType::F32, [n])?.device_tensor()?;
    let time = per_call(200, |calls| {
        (0..calls)
            .try_for_each(|_| executable.run_resident([("x", &resident)]).map(drop).map_err(Error::from))
    })?;
    line("run_resident of one addition, waited for", time);

    let time = per_call(200, |calls| {
        for _ in 0..calls {
            context.binary(&b, &a, &a, n, ops::binary::ADD, DType::F32)?;
            b.wait()?;
        }
        Ok(())
    })?;
    line("binary(out, a, a), waited for", time);

    let time = per_call(200, |calls| {
        for _ in 0..calls {
            context.binary(&b, &a, &a, n, ops::binary::ADD, DType::F32)?;
        }
        context.wait()
    })?;
    line("binary(out, a, a), 200 enqueued, then waited for", time);

    let time = per_call(200, |calls| {
        for _ in 0..calls {
            context.binary(&b, &b, &a, n, ops::binary::ADD, DType::F32)?;
        }
        context.wait()
    })?;
    line("binary(b, b, a), each after the other, enqueued", time);

    context.set_lazy(true);
    let time = per_call(200, |calls| {
        for _ in 0..calls {
            context.binary(&b, &b, &a, n, ops::binary::ADD, DType::F32)?;
        }
        context.wait()
    })?;
    line("binary(b, b, a), lazy", time);
    Ok(())
}

fn large_chain(session: &Session) -> Result<(), Error> {
    let n = 16 << 20;
    let context = Context::of_session(session.clone(), &ContextOptions::new());
    let x = Array::from_slice(&context, [n], &vec![1.5f32; n])?;
    let one = Array::scalar(&context, DType::F32, 1.0);
    let chain = |x: &Array| -> Result<Array, Error> {
        let mut y = x.clone();
        for _ in 0..5 {
            y = y.mul(&one)?.abs()?;
        }
        Ok(y)
    };
    chain(&x)?.wait()?;
    let executable = session.compile(context.graphs().last().unwrap_or(&Graph::new("")))?;
    let (resident, scalar) = (x.device_tensor()?, one.device_tensor()?);
    let fused = per_call(4, |calls| {
        for _ in 0..calls {
            executable.run_resident([("i0", &resident), ("i1", &scalar)])?;
        }
        Ok(())
    })?;
    line("ten operations on 16 M f32 as one executable", fused);
    let lazy = per_call(4, |calls| (0..calls).try_for_each(|_| chain(&x)?.wait()))?;
    line("ten operations on 16 M f32 on arrays", lazy);
    // Each chain on the result of the one before, as a loop of a program has it.
    let mut state = x.clone();
    let dependent = per_call(4, |calls| {
        for _ in 0..calls {
            state = chain(&state)?;
            state.wait()?;
        }
        Ok(())
    })?;
    line("the same, each on the last one's result", dependent);
    println!("  {:<56} {:>10.2}", "arrays / executable", lazy.as_secs_f64() / fused.as_secs_f64());
    Ok(())
}
