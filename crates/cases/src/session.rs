//! Any device of Olivine as a backend of the table.

use olivine::{Device, Session, SessionOptions};
use olivine_ir::{Graph, Tensor};

use crate::Backend;

/// Compiles each case for a session's device and runs it there.
pub struct SessionBackend {
    name: String,
    session: Session,
}

impl SessionBackend {
    /// Opens a device under a name for reports.
    pub fn new(name: &str, device: Device, options: SessionOptions) -> Result<Self, olivine::Error> {
        Ok(SessionBackend { name: name.into(), session: Session::with_options(device, options)? })
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
            let outputs = executable.run(inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
            Ok(outputs.into_tensors())
        };
        run().map_err(|e: olivine::Error| e.to_string())
    }
}
