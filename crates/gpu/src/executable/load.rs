//! Loading: params, constants and what is packed from them, on the device once.

use std::sync::{Arc, PoisonError};

use olivine_program::{Commands, Content, Dispatch, Driver, Error, Program, Timing};

use super::Executable;

/// What a program's stored buffers are, as of one generation of the weights.
pub(super) struct Loaded<D: Driver> {
    pub(super) generation: u64,
    pub(super) buffers: Arc<Vec<Option<Arc<D::Buffer>>>>,
}

impl<D: Driver> Clone for Loaded<D> {
    fn clone(&self) -> Self {
        Loaded { generation: self.generation, buffers: self.buffers.clone() }
    }
}

impl<D: Driver> Executable<D> {
    /// The stored buffers, loaded again if a param changed.
    pub(super) fn loaded(&self) -> Result<Loaded<D>, Error> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.weights.generation();
        if let Some(loaded) = loaded.as_ref()
            && loaded.generation == generation
        {
            return Ok(loaded.clone());
        }
        // Old buffers go before new ones come.
        *loaded = None;
        let (mut buffers, known) = self.stored()?;
        let dispatches = needed(&self.program, &known);
        if !dispatches.is_empty() {
            let mut recording = self.driver.record(Commands {
                program: &self.program,
                dispatches: &dispatches,
                pipelines: &self.pipelines,
                buffers: &buffers,
                uploads: &[],
                downloads: &[],
                timing: Timing::Off,
                checked: self.checked,
            })?;
            self.driver.submit(&mut recording)?;
            self.driver.wait(&mut recording)?;
        }
        for (decl, buffer) in self.program.buffers.iter().zip(&mut buffers) {
            match (&decl.content, buffer.as_ref()) {
                (Content::Packed { key: Some(key) }, Some(packed)) => {
                    self.weights.keep_packed(generation, key, packed.clone());
                }
                (Content::LoadScratch | Content::LoadGates, _) => *buffer = None,
                _ => {}
            }
        }
        let now = Loaded { generation, buffers: Arc::new(buffers) };
        *loaded = Some(now.clone());
        Ok(now)
    }

    /// Buffers of everything stored, and for each whether its content is there already.
    #[allow(clippy::type_complexity, reason = "two parallel tables")]
    fn stored(&self) -> Result<(Vec<Option<Arc<D::Buffer>>>, Vec<bool>), Error> {
        let driver = self.driver.as_ref();
        let mut missing = Vec::new();
        let mut buffers = Vec::with_capacity(self.program.buffers.len());
        let mut known = Vec::with_capacity(self.program.buffers.len());
        for decl in &self.program.buffers {
            let (buffer, there) = match &decl.content {
                Content::Arena | Content::Gates | Content::Input(_) | Content::Output(_) => (None, true),
                Content::Constant(tensor) => {
                    let buffer = driver.allocate(decl.bytes, "a constant")?;
                    driver.write(&buffer, 0, tensor.bytes())?;
                    (Some(buffer), true)
                }
                Content::Param(name, ty) => {
                    let buffer = self.weights.param(driver, name, *ty, decl.bytes)?;
                    if buffer.is_none() {
                        missing.push(name.clone());
                    }
                    (buffer, true)
                }
                Content::Packed { key } => match key.as_ref().and_then(|key| self.weights.packed(key)) {
                    Some(buffer) => (Some(buffer), true),
                    None => (Some(driver.allocate(decl.bytes, "a packed weight")?), false),
                },
                Content::LoadScratch => (Some(driver.allocate(decl.bytes, "scratch at load")?), false),
                Content::LoadGates => (Some(driver.allocate_gates(decl.bytes, "gates at load")?), false),
            };
            buffers.push(buffer);
            known.push(there);
        }
        if missing.is_empty() { Ok((buffers, known)) } else { Err(Error::MissingParams { names: missing }) }
    }
}

/// The load-time dispatches that write something that is not there yet.
fn needed(program: &Program, known: &[bool]) -> Vec<Dispatch> {
    let writes_unknown = |d: &&Dispatch| {
        let kernel = program.kernel(d);
        d.args
            .iter()
            .zip(&kernel.args)
            .any(|(slice, arg)| arg.access.writes() && !known.get(slice.buffer.0 as usize).unwrap_or(&true))
    };
    program.load.iter().filter(writes_unknown).cloned().collect()
}
