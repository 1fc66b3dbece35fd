//! Loading: params, constants and what is packed from them, on the device once.
//!
//! What runs read is brought to the device and stays. What only the load reads is brought batch by batch and released
//! when its last reader is done.

use std::sync::{Arc, PoisonError};

use olivine_program::{Commands, Content, Dispatch, Driver, Error, LoadBatch, Timing};

use super::Executable;

/// For every buffer of a program its memory, if it has any.
type Buffers<D> = Vec<Option<Arc<<D as Driver>::Buffer>>>;

/// What a program's stored buffers are, as of one generation of the weights.
pub(super) struct Loaded<D: Driver> {
    pub(super) generation: u64,
    pub(super) buffers: Arc<Buffers<D>>,
}

impl<D: Driver> Clone for Loaded<D> {
    fn clone(&self) -> Self {
        Loaded { generation: self.generation, buffers: self.buffers.clone() }
    }
}

impl<D: Driver> Executable<D> {
    /// The stored buffers, loaded again if a param changed.
    pub(super) fn loaded(&self) -> Result<Loaded<D>, Error> {
        if let Some(base) = &self.base {
            return base.loaded();
        }
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.weights.generation();
        if let Some(loaded) = loaded.as_ref()
            && loaded.generation == generation
        {
            return Ok(loaded.clone());
        }
        // Old buffers go before new ones come.
        *loaded = None;
        let mut buffers: Buffers<D> = self.program.buffers.iter().map(|_| None).collect();
        for (decl, buffer) in self.program.buffers.iter().zip(&mut buffers) {
            if let Content::Packed { key: Some(key) } = &decl.content {
                *buffer = self.weights.packed(key);
            }
        }
        let known: Vec<bool> = buffers.iter().map(Option::is_some).collect();
        let needed = self.program.needed_at_load(&known);
        let batches = self.program.load_batches(&needed);
        self.check_params(&batches)?;
        for (i, read) in self.program.read_by_runs().into_iter().enumerate() {
            if read {
                self.bring(i, true, &mut buffers)?;
            }
        }
        for batch in &batches {
            self.load_batch(batch, &mut buffers)?;
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

    /// Names all params that are read and were never set.
    fn check_params(&self, batches: &[LoadBatch]) -> Result<(), Error> {
        let mut read = self.program.read_by_runs();
        batches.iter().flat_map(|batch| &batch.brings).for_each(|buffer| read[buffer.0 as usize] = true);
        let mut names = Vec::new();
        for (decl, _) in self.program.buffers.iter().zip(read).filter(|(_, read)| *read) {
            if let Content::Param(name, _) = &decl.content
                && !self.weights.has(name)
            {
                names.push(name.to_string());
            }
        }
        if names.is_empty() { Ok(()) } else { Err(Error::MissingParams { names }) }
    }

    /// Brings a param or a constant to the device; one that does not stay is the caller's alone.
    fn bring(&self, i: usize, stays: bool, buffers: &mut Buffers<D>) -> Result<(), Error> {
        let (driver, decl) = (self.driver.as_ref(), &self.program.buffers[i]);
        let buffer = match &decl.content {
            Content::Constant(tensor) => {
                let buffer = driver.allocate(decl.bytes, "a constant")?;
                driver.write(&buffer, 0, tensor.bytes())?;
                buffer
            }
            Content::Param(name, ty) => match self.weights.param(driver, name, *ty, decl.bytes, stays)? {
                Some(buffer) => buffer,
                None => return Err(Error::MissingParams { names: vec![name.to_string()] }),
            },
            _ => return Ok(()),
        };
        buffers[i] = Some(buffer);
        Ok(())
    }

    /// Runs a batch of load-time dispatches, with memory for what they write.
    fn load_batch(&self, batch: &LoadBatch, buffers: &mut Buffers<D>) -> Result<(), Error> {
        for buffer in &batch.brings {
            self.bring(buffer.0 as usize, false, buffers)?;
        }
        let dispatches: Vec<Dispatch> =
            batch.dispatches.iter().map(|i| self.program.load[*i].clone()).collect();
        for slice in dispatches.iter().flat_map(|d| d.args.iter().chain(&d.indirect)) {
            let (decl, buffer) =
                (&self.program.buffers[slice.buffer.0 as usize], &mut buffers[slice.buffer.0 as usize]);
            if buffer.is_some() {
                continue;
            }
            *buffer = match &decl.content {
                Content::Packed { .. } => Some(self.driver.allocate(decl.bytes, "a packed weight")?),
                Content::LoadScratch => Some(self.driver.allocate(decl.bytes, "scratch at load")?),
                Content::LoadGates => Some(self.driver.allocate_gates(decl.bytes, "gates at load")?),
                _ => None,
            };
        }
        let mut recording = self.driver.record(Commands {
            program: &self.program,
            dispatches: &dispatches,
            pipelines: &self.pipelines,
            buffers,
            uploads: &[],
            downloads: &[],
            timing: Timing::Off,
            checked: self.checked,
        })?;
        self.driver.submit(&mut recording)?;
        self.driver.end_load(&mut recording)?;
        batch.releases.iter().for_each(|buffer| buffers[buffer.0 as usize] = None);
        Ok(())
    }
}
