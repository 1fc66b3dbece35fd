//! Any device of Olivine as a backend of the table.

use olivine::{Device, Session, SessionOptions};
use olivine_ir::{Graph, Tensor};

use crate::Backend;

/// Compiles each case for a session's device and runs it there.
pub struct SessionBackend {
    name: String,
    session: Session,
    repeats: usize,
}

impl SessionBackend {
    /// Opens a device under a name for reports.
    pub fn new(name: &str, device: Device, options: SessionOptions) -> Result<Self, olivine::Error> {
        Ok(SessionBackend { name: name.into(), session: Session::with_options(device, options)?, repeats: 1 })
    }

    /// Runs every case so many times; runs that differ in a bit are refused. Races hide in single runs.
    #[must_use]
    pub fn repeated(mut self, repeats: usize) -> Self {
        self.repeats = repeats.max(1);
        self
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

impl Backend for SessionBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(
        &self,
        graph: &Graph,
        inputs: &[(String, Tensor)],
        params: &[(String, Tensor)],
    ) -> Result<Vec<Tensor>, String> {
        let run = || {
            let executable = self.session.compile(graph)?;
            executable.set_params(params.iter().cloned())?;
            let once = || executable.run(inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)));
            let first = once()?.into_tensors();
            for repeat in 1..self.repeats {
                let again = once()?.into_tensors();
                let differs = |(a, b): (&Tensor, &Tensor)| a.bytes() != b.bytes();
                if let Some(output) = first.iter().zip(&again).position(differs) {
                    return Ok(Err(format!("run {} gave other bits in output {output}", repeat + 1)));
                }
            }
            Ok(Ok(first))
        };
        run().map_err(|e: olivine::Error| e.to_string())?
    }
}
