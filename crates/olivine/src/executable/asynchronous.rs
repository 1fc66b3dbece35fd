//! Runs that never block: in a browser, the only way to run on a GPU.

use super::{Executable, Input, Outputs, Ready, Source, listed};
use crate::Error;

impl Executable {
    /// Runs as [`Executable::run`] does, without blocking in a browser. Elsewhere what an ONNX model runs to find out
    /// sizes, and its loops, block the task; the last graph does not.
    pub async fn run_async<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Outputs, Error> {
        let inputs = listed(inputs);
        let ready = self.ready_async(&inputs).await?;
        let run = ready.graph.submit(ready.inputs(&inputs))?;
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
