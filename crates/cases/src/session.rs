//! Any device of Olivine as a backend of the table.

use olivine::internals::SessionExt as _;
use olivine::{Device, Session, SessionOptions};
use olivine_ir::{Graph, Tensor};

use crate::{Backend, Denormals};

/// Compiles each case for a session's device and runs it there.
pub struct SessionBackend {
    name: String,
    session: Session,
    repeats: usize,
    denormals: Denormals,
}

impl SessionBackend {
    /// Opens a device under a name for reports.
    pub fn new(name: &str, device: Device, options: SessionOptions) -> Result<Self, olivine::Error> {
        let session = Session::with_options(device, options)?;
        let denormals = if may_flush(&session) { try_denormals(&session)? } else { Denormals::Kept };
        Ok(SessionBackend { name: name.into(), session, repeats: 1, denormals })
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

/// Whether the driver leaves open what becomes of denormal numbers. One that promises to keep them is held to it.
pub fn may_flush(session: &Session) -> bool {
    session.caps().is_some_and(|caps| !caps.keeps_denormals)
}

/// What a device does with denormal numbers, by a sum of two.
fn try_denormals(session: &Session) -> Result<Denormals, olivine::Error> {
    let (graph, inputs) = Denormals::trial()?;
    let outputs = session.compile(&graph)?.run(inputs.iter().map(|(name, x)| (name.as_str(), x)))?;
    Ok(Denormals::found(&outputs.into_tensors()))
}

impl Backend for SessionBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn denormals(&self) -> Denormals {
        self.denormals
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
