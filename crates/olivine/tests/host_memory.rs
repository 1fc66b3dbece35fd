//! What the CPU takes of the process's memory, beside what is predicted. One test: others would take memory meanwhile.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed expectation is a failed test")]

use olivine::internals::ExecutableExt as _;
use olivine::ir::{BlockFormat, DType, Error, Graph, Tensor, TensorType, ValueId};
use olivine::{Device, Executable, Session};

const ROWS: usize = 64;

/// Matmuls one after another, of weights that `weight` declares, `[1024, 1024]` each.
fn chain(
    name: &str,
    count: usize,
    weight: impl Fn(&mut Graph, usize) -> Result<ValueId, Error>,
) -> Result<Graph, Error> {
    let mut g = Graph::new(name);
    let mut x = g.input("x", DType::F32, [ROWS, 1024])?;
    for i in 0..count {
        let w = weight(&mut g, i)?;
        x = g.matmul(x, w)?;
    }
    g.output("y", x)?;
    Ok(g)
}

/// Weights that are read as they are, made at load by several operations, and packed.
fn graphs(count: usize) -> Result<Vec<Graph>, Error> {
    let plain = chain("plain", count, |g, i| g.param(&format!("w{i}"), DType::F32, [1024, 1024]))?;
    let joined = chain("joined", count, |g, i| {
        let halves = ["a", "b"].map(|half| g.param(&format!("w{i}{half}"), DType::F32, [512, 1024]));
        let [a, b] = halves;
        let w = g.concat(&[a?, b?], 0)?;
        let w = g.softmax(w, -1)?;
        let w = g.transpose(w, &[1, 0])?;
        g.softmax(w, -1)
    })?;
    let mut packed = Graph::new("packed");
    let mut x = packed.input("x", DType::F32, [ROWS, 1024])?;
    for i in 0..count {
        let w = packed.param_of(&format!("w{i}"), TensorType::packed(BlockFormat::U4, [4096, 1024])?)?;
        let scales = packed.param(&format!("s{i}"), DType::F32, [4096, 32])?;
        let wide = packed.dequant_matmul_scaled(x, w, (scales, None), (32, 8))?;
        x = packed.narrow(wide, 1, 0, 1024)?;
    }
    packed.output("y", x)?;
    Ok(vec![plain, joined, packed])
}

/// Weights of a graph, every page of them written.
fn weights(graph: &Graph) -> Vec<(String, Tensor)> {
    let weight = |(name, id): (&str, ValueId)| {
        let ty = graph.ty(id).unwrap();
        let tensor = match ty.packed {
            Some(format) => Tensor::new(ty.shape, vec![1u8; ty.bytes()]).unwrap().into_packed(format),
            None => Tensor::new(ty.shape, vec![1f32; ty.shape.numel()]),
        };
        (name.to_string(), tensor.unwrap())
    };
    graph.params().map(weight).collect()
}

/// An executable of a graph that has run once.
fn ran(session: &Session, graph: &Graph, weights: &[(String, Tensor)]) -> Executable {
    let executable = session.compile(graph).unwrap();
    for (name, tensor) in weights {
        executable.set_param(name, tensor.clone()).unwrap();
    }
    let x = Tensor::zeros(DType::F32, [ROWS, 1024]).unwrap();
    drop(executable.run([("x", &x)]).unwrap());
    executable
}

/// Bytes of this process in memory that no file backs.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
}

#[test]
fn the_cpu_takes_what_is_predicted() {
    let session = Session::new(Device::Cpu).unwrap();
    // Threads and what they keep are there before anything is measured.
    graphs(1).unwrap().iter().for_each(|graph| drop(ran(&session, graph, &weights(graph))));
    // Memory that is freed may stay with the process: nothing large is, until all is measured.
    let mut held = Vec::new();
    for graph in graphs(24).unwrap() {
        let weights = weights(&graph);
        let before = resident();
        let executable = ran(&session, &graph, &weights);
        let made = resident().saturating_sub(before);
        let host = executable.host_bytes().into_iter().next().flatten().unwrap();
        // Weights that runs read are read where they are: the caller has them.
        let is_param = |name: &Option<String>| name.as_ref().is_some_and(|name| name.starts_with("param "));
        let read: usize = host.stored.iter().filter(|(name, _)| is_param(name)).map(|(_, b)| b).sum();
        let predicted = host.stored.iter().map(|(_, bytes)| bytes).sum::<usize>() + host.run;
        let measured = made + read;
        let apart = predicted.abs_diff(measured);
        let name = graph.name();
        assert!(apart * 10 <= measured, "{name}: {predicted} bytes predicted, {measured} taken");
        println!("{name}: {predicted} bytes predicted, {measured} taken");
        held.push((executable, weights));
    }
}
