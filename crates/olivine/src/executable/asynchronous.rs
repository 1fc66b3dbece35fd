//! Runs that never block: in a browser, the only way to run on a GPU.

use olivine_gpu::Take;

use super::graph::{GraphExecutable, NamedInputs};
use super::io::{Pending, host_outputs};
use super::{Executable, Input, Outputs, Ready, Source, listed};
use crate::Error;
use crate::process::OfProcess;

impl Executable {
    /// Runs as [`Executable::run`] does, without blocking in a browser. Elsewhere what an ONNX model runs to find out
    /// sizes, and its loops, block the task; the last graph does not.
    pub async fn run_async<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Outputs, Error> {
        let inputs = listed(inputs);
        let ready = self.ready_async(&inputs).await?;
        let run = ready.graph.submit_async(ready.inputs(&inputs)).await?;
        run.await
    }

    async fn ready_async(&self, inputs: &[(&str, Input<'_>)]) -> Result<Ready, Error> {
        match &self.source {
            Source::Graph(_) => self.ready(inputs),
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => {
                let (graph, passed) = model.ready(inputs).await?;
                Ok(Ready { graph, passed, all: false })
            }
        }
    }
}

impl GraphExecutable {
    /// Begins a run as [`GraphExecutable::submit`] does. A browser says that memory is short only after the calls; what earlier runs
    /// left is freed then, and the run begins again.
    async fn submit_async(&self, inputs: NamedInputs<'_>) -> Result<Pending, Error> {
        match self.submit_watched(&inputs).await {
            Err(Error::Gpu(olivine_gpu::Error::OutOfMemory { .. })) if self.evict() => {
                self.submit_watched(&inputs).await
            }
            begun => begun,
        }
    }

    /// Begins a run, and returns when the errors of its calls are known.
    async fn submit_watched(&self, inputs: &NamedInputs<'_>) -> Result<Pending, Error> {
        let begun = self.with_prepared(inputs, |prepared, inputs| {
            let outputs = host_outputs(prepared.outputs(), |_| true);
            let takes = vec![Take::Host; outputs.len()];
            let mut started = Err(Error::WorkerDied);
            let mut start = || started = prepared.start(inputs, &takes);
            // What is replayed takes no memory, and asking takes time.
            let outcome = if prepared.replays(inputs, &takes) {
                start();
                None
            } else {
                Some(self.engine().watch(&mut start))
            };
            let run = OfProcess::new(started?);
            Ok((Pending { run, outputs, home: prepared.recycler().cloned(), watched: None }, outcome))
        });
        let (run, outcome) = begun?;
        if let Some(outcome) = outcome {
            outcome.await?;
        }
        Ok(run)
    }
}
