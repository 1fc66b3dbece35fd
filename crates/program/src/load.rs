//! The load: which buffers only it needs, and in what order its dispatches run.
//!
//! ```text
//!   bring params ─ dispatch ─ release params   bring ─ dispatch ─ release   …   what is left is what a run reads
//! ```

use std::collections::HashMap;

use crate::program::{BufferDecl, BufferId, Content, Program};

/// Bytes of params and constants that only the load reads, brought to the device at a time.
const BATCH: u64 = 64 << 20;

/// Load-time dispatches that are submitted together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBatch {
    /// Positions in [`Program::load`], in order.
    pub dispatches: Vec<usize>,
    /// Params and constants that no run reads and that these dispatches are the first to read.
    pub brings: Vec<BufferId>,
    /// Of such buffers, those that no later dispatch reads.
    pub releases: Vec<BufferId>,
}

impl Program {
    /// For every buffer whether runs read it, so that it stays on the device after the load.
    pub fn read_by_runs(&self) -> Vec<bool> {
        let mut read = vec![false; self.buffers.len()];
        let slices = self.run.iter().flat_map(|d| d.args.iter().chain(&d.indirect)).map(|s| s.buffer);
        let ports = self.inputs.iter().chain(&self.outputs).map(|port| port.buffer);
        for buffer in slices.chain(ports) {
            if let Some(read) = read.get_mut(buffer.0 as usize) {
                *read = true;
            }
        }
        read
    }

    /// The load-time dispatches to run where some buffers hold their content already. Dispatches of one group are needed
    /// together.
    pub fn needed_at_load(&self, known: &[bool]) -> Vec<usize> {
        let writes_unknown = |i: usize| {
            let dispatch = &self.load[i];
            let args = dispatch.args.iter().zip(&self.kernel(dispatch).args);
            let is_unknown = |buffer: BufferId| {
                let is_result = self.buffers.get(buffer.0 as usize).map(|decl| &decl.content);
                matches!(is_result, Some(Content::Packed { .. }))
                    && !known.get(buffer.0 as usize).unwrap_or(&false)
            };
            args.into_iter().any(|(slice, arg)| arg.access.writes() && is_unknown(slice.buffer))
        };
        let group = |i: usize| self.load_groups.get(i).copied().unwrap_or(u32::MAX - i as u32);
        let mut groups: HashMap<u32, bool> = HashMap::new();
        (0..self.load.len()).for_each(|i| *groups.entry(group(i)).or_default() |= writes_unknown(i));
        (0..self.load.len()).filter(|i| groups.get(&group(*i)) == Some(&true)).collect()
    }

    /// The dispatches in batches, so that few of the params and constants that only the load reads are on the device at
    /// once.
    pub fn load_batches(&self, needed: &[usize]) -> Vec<LoadBatch> {
        let read = self.read_by_runs();
        let passes = |buffer: BufferId| {
            let decl = &self.buffers[buffer.0 as usize];
            let is_given = matches!(decl.content, Content::Param(..) | Content::Constant(_));
            is_given && !read[buffer.0 as usize]
        };
        let reads = |i: usize| self.load[i].args.iter().map(|slice| slice.buffer).filter(|b| passes(*b));
        let mut last: HashMap<BufferId, usize> = HashMap::new();
        for i in needed {
            last.extend(reads(*i).map(|buffer| (buffer, *i)));
        }
        let (mut batches, mut batch, mut bytes) = (Vec::new(), LoadBatch::default(), 0u64);
        let mut there: Vec<BufferId> = Vec::new();
        for i in needed {
            for buffer in reads(*i) {
                if !there.contains(&buffer) {
                    there.push(buffer);
                    batch.brings.push(buffer);
                    bytes = bytes.saturating_add(self.buffers[buffer.0 as usize].bytes);
                }
            }
            batch.dispatches.push(*i);
            if bytes >= BATCH {
                there.retain(|buffer| self.keep_on(&mut batch, *buffer, last.get(buffer), *i));
                batches.push(std::mem::take(&mut batch));
                bytes = 0;
            }
        }
        if !batch.dispatches.is_empty() {
            batch.releases = there;
            batches.push(batch);
        }
        batches
    }

    /// Whether a buffer is read after a dispatch; otherwise the batch releases it.
    fn keep_on(&self, batch: &mut LoadBatch, buffer: BufferId, last: Option<&usize>, at: usize) -> bool {
        let is_read = last.is_some_and(|last| *last > at);
        if !is_read {
            batch.releases.push(buffer);
        }
        is_read
    }

    /// Bytes on the device that only the load needs: its scratch, and at most so much of params at once.
    pub fn load_bytes(&self) -> u64 {
        let scratch = self.total(|content| matches!(content, Content::LoadScratch | Content::LoadGates));
        let needed = self.needed_at_load(&[]);
        let size = |buffers: &[BufferId]| -> u64 {
            buffers.iter().map(|buffer| self.buffers[buffer.0 as usize].bytes).sum()
        };
        let (mut most, mut now) = (0u64, 0u64);
        for batch in self.load_batches(&needed) {
            now = now.saturating_add(size(&batch.brings));
            most = most.max(now);
            now = now.saturating_sub(size(&batch.releases));
        }
        scratch.saturating_add(most)
    }

    /// Bytes on the device of what stays there between runs: params, constants and what is packed from them.
    pub fn stored_bytes(&self) -> u64 {
        let stays = |(decl, read): &(&BufferDecl, bool)| match decl.content {
            Content::Constant(_) | Content::Param(..) => *read,
            Content::Packed { .. } => true,
            _ => false,
        };
        let stored = self.buffers.iter().zip(self.read_by_runs()).filter(stays);
        stored.fold(0, |sum, (decl, _)| sum.saturating_add(decl.bytes))
    }

    /// The parts of [`Program::stored_bytes`]; programs of one model share those of one name.
    pub fn stored_parts(&self) -> impl Iterator<Item = (Option<String>, u64)> + '_ {
        self.buffers.iter().zip(self.read_by_runs()).filter_map(|(decl, read)| match &decl.content {
            Content::Constant(_) if read => Some((None, decl.bytes)),
            Content::Param(name, _) if read => Some((Some(format!("param {name}")), decl.bytes)),
            Content::Packed { key } => Some((key.as_deref().map(str::to_string), decl.bytes)),
            _ => None,
        })
    }
}
