//! The memory that a model takes, predicted before anything is allocated.

use std::collections::HashSet;

use olivine::Session;
use olivine::internals::SessionExt as _;
use olivine::internals::cpu::HostBytes;
use olivine::ir::Graph;

use crate::answer::Failure;
use crate::memory;
use crate::timing::bytes;

/// Bytes that a device is asked for.
#[derive(Debug)]
pub(super) struct Memory {
    /// Weights, constants and what is made of them, as far as runs read it.
    pub(super) stored: u64,
    /// What the load needs beside that, at most.
    pub(super) load: u64,
    /// Inputs, outputs and everything in between, for one run.
    pub(super) run: u64,
    /// What the device has, where that is known.
    pub(super) there: Option<u64>,
}

impl Memory {
    /// Why it does not fit the device.
    pub(super) fn problem(&self) -> Option<String> {
        let needed = self.stored.saturating_add(self.load.max(self.run));
        let there = self.there.filter(|there| needed > *there)?;
        let shown = |count: u64| bytes(usize::try_from(count).unwrap_or(usize::MAX));
        Some(format!("does not fit: {} are needed, the device has {}", shown(needed), shown(there)))
    }
}

/// What a device is asked for to run graphs one after another: they share their weights. `host` is
/// [`olivine::internals::ExecutableExt::host_bytes`] where the device is the CPU.
pub(super) fn memory_of_all(
    session: &Session,
    graphs: &[Graph],
    host: &[Option<HostBytes>],
) -> Result<Memory, Failure> {
    let mut known: HashSet<String> = HashSet::new();
    let mut all = Memory { stored: 0, load: 0, run: 0, there: None };
    for (i, graph) in graphs.iter().enumerate() {
        let (stored, own) = memory(session, graph, host.get(i).and_then(Option::as_ref))?;
        for (name, bytes) in stored {
            if name.is_none_or(|name| known.insert(name)) {
                all.stored = all.stored.saturating_add(bytes);
            }
        }
        all.load = all.load.max(own.load);
        all.run = all.run.max(own.run);
        all.there = own.there;
    }
    Ok(all)
}

/// Parts of what is stored; those of one name exist once.
type Parts = Vec<(Option<String>, u64)>;

/// What a device is asked for to run a graph, from the very program that would run.
fn memory(session: &Session, graph: &Graph, host: Option<&HostBytes>) -> Result<(Parts, Memory), Failure> {
    if let Some(host) = host {
        let size = |id| graph.ty(id).map_or(0, |ty| ty.bytes());
        let inputs = graph.inputs().map(|(_, id)| size(id)).fold(0, usize::saturating_add);
        let there = memory::total_and_available().map(|(_, available)| available as u64);
        let (load, run) = (host.load as u64, host.run.saturating_add(inputs) as u64);
        let parts = host.stored.iter().map(|(name, bytes)| (name.clone(), *bytes as u64)).collect();
        return Ok((parts, Memory { stored: 0, load, run, there }));
    }
    let compiled = session.explain(graph)?;
    let (Some(program), Some(caps)) = (session.program(&compiled)?, session.caps()) else {
        return Err(Failure::new(format!("{} has no program of the graph", session.device())));
    };
    // Drivers that do not say how much there is report more than any card has.
    let there = Some(caps.memory_bytes).filter(|bytes| *bytes < u64::MAX / 2);
    let (load, run) = (program.load_bytes(), program.run_bytes());
    Ok((program.stored_parts().collect(), Memory { stored: 0, load, run, there }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use olivine::ir::{BlockFormat, DType, Error, Tensor, TensorType, ValueId};
    use olivine::{Device, Executable};

    #[test]
    fn what_does_not_fit_is_told_by_the_larger_of_load_and_run() {
        let memory = |stored, load, run, there| Memory { stored, load, run, there };
        assert_eq!(memory(10, 5, 2, Some(15)).problem(), None);
        assert_eq!(memory(10, 5, 2, None).problem(), None);
        let said = memory(10 << 20, 5 << 20, 2 << 20, Some(14 << 20)).problem();
        assert_eq!(said.as_deref(), Some("does not fit: 15.0 MiB are needed, the device has 14.0 MiB"));
        assert!(memory(10, 2, 5, Some(14)).problem().is_some());
        assert!(memory(u64::MAX, 2, 5, Some(14)).problem().is_some());
    }

    /// Matmuls one after another, of weights that `weight` declares, `[1024, 1024]` each.
    fn chain(
        name: &str,
        weight: impl Fn(&mut Graph, usize) -> Result<ValueId, Error>,
    ) -> Result<Graph, Error> {
        let mut g = Graph::new(name);
        let mut x = g.input("x", DType::F32, [256, 1024])?;
        for i in 0..6 {
            let w = weight(&mut g, i)?;
            x = g.matmul(x, w)?;
        }
        g.output("y", x)?;
        Ok(g)
    }

    /// Graphs whose weights are read as they are, joined and computed at load, and packed.
    fn graphs() -> Result<Vec<Graph>, Error> {
        let param = |g: &mut Graph, i: usize| g.param(&format!("w{i}"), DType::F32, [1024, 1024]);
        let joined = |g: &mut Graph, i: usize| {
            let halves = ["a", "b"].map(|half| g.param(&format!("w{i}{half}"), DType::F32, [512, 1024]));
            let [a, b] = halves;
            let w = g.concat(&[a?, b?], 0)?;
            let w = g.mul(w, w)?;
            let w = g.softmax(w, -1)?;
            g.transpose(w, &[1, 0])
        };
        let mut packed = Graph::new("packed");
        let mut x = packed.input("x", DType::F32, [256, 1024])?;
        for i in 0..6 {
            let ty = TensorType::packed(BlockFormat::U4, [4096, 1024])?;
            let w = packed.param_of(&format!("w{i}"), ty)?;
            let scales = packed.param(&format!("s{i}"), DType::F32, [4096, 32])?;
            let wide = packed.dequant_matmul_scaled(x, w, (scales, None), (32, 8))?;
            x = packed.narrow(wide, 1, 0, 1024)?;
        }
        packed.output("y", x)?;
        Ok(vec![chain("plain", param)?, chain("joined", joined)?, packed])
    }

    /// Weights of a graph, every page of them written.
    fn weights(graph: &Graph) -> Result<Vec<(String, Tensor)>, Error> {
        let weight = |(name, id): (&str, ValueId)| {
            let ty = graph.ty(id)?;
            let tensor = match ty.packed {
                Some(format) => Tensor::new(ty.shape, vec![1u8; ty.bytes()])?.into_packed(format)?,
                None => Tensor::new(ty.shape, vec![1f32; ty.shape.numel()])?,
            };
            Ok((name.to_string(), tensor))
        };
        graph.params().map(weight).collect()
    }

    /// An executable of a graph that has run once.
    fn ran(session: &Session, graph: &Graph, weights: &[(String, Tensor)]) -> Result<Executable, Failure> {
        let executable = session.compile(graph)?;
        for (name, tensor) in weights {
            executable.set_param(name, tensor.clone())?;
        }
        let x = Tensor::zeros(DType::F32, [256, 1024])?;
        drop(executable.run([("x", &x)])?);
        Ok(executable)
    }

    #[track_caller]
    fn within_a_tenth(what: &str, predicted: u64, measured: u64) {
        let (p, m) = (predicted as f64, measured as f64);
        assert!((p - m).abs() <= 0.1 * m, "{what}: {predicted} bytes predicted, {measured} taken");
    }

    #[test]
    fn a_gpu_takes_what_was_predicted() {
        for graph in graphs().unwrap() {
            let session = Session::new("vulkan".parse::<Device>().unwrap()).unwrap();
            let predicted = memory_of_all(&session, std::slice::from_ref(&graph), &[]).unwrap();
            let executable = ran(&session, &graph, &weights(&graph).unwrap()).unwrap();
            let measured = session.memory_taken().unwrap();
            within_a_tenth(graph.name(), predicted.stored + predicted.run, measured);
            // Weights are there once, whatever the load made of them.
            let params = graph.params().map(|(_, id)| graph.ty(id).unwrap().bytes() as u64).sum::<u64>();
            let held = measured - predicted.run;
            assert!(held * 10 <= params * 12, "{}: {held} bytes held of {params}", graph.name());
            drop(executable);
        }
    }
}
