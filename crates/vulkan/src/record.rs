//! Programs recorded into command buffers, once; they are replayed from then on.
//!
//! ```text
//!   barrier ─ staging → inputs ─ barrier ─ dispatches, barriers where bytes conflict ─ barrier ─ outputs → staging
//! ```
//! Long recordings are cut into several command buffers, so that no submission runs into a watchdog.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;
use olivine_kernel::{Check, Kernel, REPORT_WORDS};
use olivine_program::{Commands, DeviceKind, Dispatch, Error, Hazards, Timing, Touched};

use crate::Device;
use crate::block::{Block, Kind};
use crate::context::Context;
use crate::error::{failed, refused};
use crate::memory::Buffer;
use crate::module::Bound;
use crate::pipeline::Pipeline;
use crate::ptx::Function;
use crate::transfer::{command_buffer, command_pool, to_host};

/// Transfers above this go in pieces outside of the recording instead of through staging memory of its own.
const STAGED: u64 = 64 << 20;
/// Bytes of staging memory that a recording's transfers may take together.
const STAGING: u64 = 256 << 20;
/// Inputs of so many bytes at most are written where kernels read them, if that memory is mapped: a copy on the device costs more.
const DIRECT: u64 = 64 << 10;
/// Bytes of the report of checked kernels.
const REPORT: u64 = 4 * REPORT_WORDS as u64;
/// Seconds of estimated work, and dispatches, to a command buffer.
const SECONDS: f64 = 0.5;
const DISPATCHES: usize = 8192;

/// Recorded commands with staging memory of their own.
pub struct Recording {
    pub(crate) context: Arc<Context>,
    pool: vk::CommandPool,
    pub(crate) parts: Vec<Part>,
    pub(crate) staging: Option<Block>,
    pub(crate) uploads: Vec<Transfer>,
    pub(crate) downloads: Vec<Transfer>,
    /// Where the report of checked kernels lands in the staging memory.
    pub(crate) report: Option<u64>,
    pub(crate) queries: Option<vk::QueryPool>,
    pub(crate) timing: Timing,
    /// What each dispatch is, for errors.
    pub(crate) steps: Vec<Step>,
    pub(crate) state: State,
    /// When it was last submitted, and how long the run before that took.
    pub(crate) began: Instant,
    pub(crate) took: Option<Duration>,
    _buffers: Vec<Arc<Buffer>>,
    _pipelines: Vec<Arc<Pipeline>>,
    _bound: Option<Bound>,
}

/// A command buffer.
pub(crate) struct Part {
    pub(crate) commands: vk::CommandBuffer,
    /// One past its last dispatch.
    pub(crate) end: usize,
}

/// Bytes between the host and a buffer.
pub(crate) struct Transfer {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) bytes: u64,
    /// Where they are in the staging memory; `None` for those too large for it, and for small ones of the host whose buffer is mapped.
    pub(crate) staged: Option<u64>,
}

/// What a dispatch is.
pub(crate) struct Step {
    pub(crate) op: &'static str,
    pub(crate) node: Arc<str>,
    pub(crate) kernel: Arc<Kernel>,
}

/// Where a recording stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Fresh,
    /// The timeline's values of its first and its last part.
    InFlight(u64, u64),
    Done,
}

impl Recording {
    /// A recording of a user's module, whose command buffer comes later.
    pub(crate) fn of_module(
        context: &Arc<Context>,
        pool: vk::CommandPool,
        buffers: Vec<Arc<Buffer>>,
        bound: Option<Bound>,
    ) -> Self {
        Recording {
            context: context.clone(),
            pool,
            parts: Vec::new(),
            staging: None,
            uploads: Vec::new(),
            downloads: Vec::new(),
            report: None,
            queries: None,
            timing: Timing::Off,
            steps: Vec::new(),
            state: State::Fresh,
            began: Instant::now(),
            took: None,
            _buffers: buffers,
            _pipelines: Vec::new(),
            _bound: bound,
        }
    }

    /// Adds a command buffer of its pool.
    pub(crate) fn add(&mut self, commands: vk::CommandBuffer) {
        self.parts.push(Part { commands, end: 0 });
    }

    /// Spans of time that it takes, two timestamps to each.
    pub(crate) fn spans(&self) -> usize {
        match self.timing {
            Timing::Off => 0,
            Timing::Dispatches => self.steps.len(),
            Timing::Runs(_) => self.steps.len().min(1),
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let State::InFlight(_, last) = self.state {
            // A lost device runs nothing any more.
            let _ = self.context.compute.wait(&self.context.raw, last);
        }
        // Safety: nothing of the recording is in flight.
        unsafe {
            self.context.raw.destroy_command_pool(self.pool, None);
            if let Some(queries) = self.queries {
                self.context.raw.destroy_query_pool(queries, None);
            }
        }
    }
}

/// A dispatch that was checked, with what it needs.
struct Launch<'a> {
    dispatch: &'a Dispatch,
    kernel: &'a Arc<Kernel>,
    pipeline: &'a Arc<Pipeline>,
    /// Its parts of the lists of [`Launches`].
    reads: Range<usize>,
    writes: Range<usize>,
    block: Range<usize>,
    /// Where its number of workgroups is, if that is in memory.
    indirect: Option<(vk::Buffer, u64)>,
}

impl Launch<'_> {
    /// The kernel as PTX, if it is launched so: not where its number of workgroups is in memory.
    fn function(&self) -> Option<&Function> {
        self.pipeline.ptx.as_ref().filter(|_| self.indirect.is_none())
    }
}

/// The dispatches of a recording, whose lists are in one allocation of each kind.
#[derive(Default)]
struct Launches<'a> {
    each: Vec<Launch<'a>>,
    reads: Vec<Range<u64>>,
    writes: Vec<Range<u64>>,
    blocks: Vec<u8>,
    /// Addresses and lengths of the dispatch at hand.
    addresses: Vec<u64>,
    lengths: Vec<u32>,
}

impl<'a> Launches<'a> {
    /// No dispatches yet, with memory for all that are to come.
    fn for_dispatches(dispatches: &[Dispatch]) -> Self {
        let args: usize = dispatches.iter().map(|d| d.args.len() + 1).sum();
        let words: usize = dispatches.iter().map(|d| d.params.len() + 2).sum();
        Launches {
            each: Vec::with_capacity(dispatches.len()),
            reads: Vec::with_capacity(args),
            writes: Vec::with_capacity(args),
            blocks: Vec::with_capacity(8 * args + 4 * words),
            ..Launches::default()
        }
    }

    fn touched(&self, launch: &Launch<'_>) -> Touched<'_> {
        Touched { reads: &self.reads[launch.reads.clone()], writes: &self.writes[launch.writes.clone()] }
    }

    fn block(&self, launch: &Launch<'_>) -> &[u8] {
        &self.blocks[launch.block.clone()]
    }
}

/// Seconds that a dispatch takes on a slow device of its kind.
fn estimate(kind: DeviceKind, dispatch: &Dispatch) -> f64 {
    let (bytes, flops) = match kind {
        DeviceKind::Discrete => (1e11, 1e12),
        DeviceKind::Integrated | DeviceKind::Virtual | DeviceKind::Other => (1e10, 1e11),
        DeviceKind::Cpu => (2e9, 4e9),
    };
    (dispatch.bytes as f64 / bytes).max(dispatch.flops as f64 / flops)
}

impl Device {
    /// The buffer of a program, if it was given.
    fn buffer<'a>(
        commands: &Commands<'a, Device>,
        id: olivine_program::BufferId,
    ) -> Result<&'a Arc<Buffer>, Error> {
        let buffer = commands.buffers.get(id.0 as usize).and_then(Option::as_ref);
        buffer.ok_or_else(|| refused("record", format!("buffer {} is used and not there", id.0)))
    }

    /// Checks a dispatch against its kernel and buffers, writes its arguments and adds it.
    fn launch<'a>(
        &self,
        commands: &Commands<'a, Device>,
        launches: &mut Launches<'a>,
        dispatch: &'a Dispatch,
        report: u64,
    ) -> Result<(), Error> {
        let wrong =
            |problem: String| refused("record", format!("{} `{}`: {problem}", dispatch.op, dispatch.node));
        let id = dispatch.kernel.0 as usize;
        let (Some(kernel), Some(pipeline)) = (commands.program.kernels.get(id), commands.pipelines.get(id))
        else {
            return Err(wrong(format!("there is no kernel {id}")));
        };
        if (dispatch.args.len(), dispatch.params.len()) != (kernel.args.len(), kernel.params.len()) {
            return Err(wrong(format!("arguments do not fit kernel `{}`", kernel.name)));
        }
        if pipeline.checked != commands.checked {
            return Err(wrong(format!(
                "kernel `{}` is not of the recording's kind: checked or not",
                kernel.name
            )));
        }
        let most = self.caps.max_groups;
        if (0..3).any(|d| dispatch.groups[d] == 0 || dispatch.groups[d] > most[d]) {
            return Err(wrong(format!("{:?} workgroups, the device takes {most:?}", dispatch.groups)));
        }
        let first = (launches.reads.len(), launches.writes.len(), launches.blocks.len());
        launches.addresses.clear();
        launches.lengths.clear();
        for (slice, arg) in dispatch.args.iter().zip(&kernel.args) {
            let buffer = Self::buffer(commands, slice.buffer)?;
            buffer.check("record", slice.offset, slice.bytes)?;
            let address = buffer.address() + slice.offset;
            launches.addresses.push(address);
            // Bytes read as words may end inside of one; memory goes on to a multiple of 64.
            let elements = slice.bytes.div_ceil(u64::from(arg.elem.size()));
            launches.lengths.push(u32::try_from(elements).unwrap_or(u32::MAX));
            if slice.bytes > 0 && arg.access.reads() {
                launches.reads.push(address..address + slice.bytes);
            }
            if slice.bytes > 0 && arg.access.writes() {
                launches.writes.push(address..address + slice.bytes);
            }
        }
        let mut indirect = None;
        if let Some(slice) = &dispatch.indirect {
            let buffer = Self::buffer(commands, slice.buffer)?;
            buffer.check("record", slice.offset, slice.bytes)?;
            if slice.bytes < 12 || !slice.offset.is_multiple_of(4) {
                return Err(wrong("its number of workgroups is not three aligned words".into()));
            }
            let address = buffer.address() + slice.offset;
            launches.reads.push(address..address + 12);
            let (raw, start) = buffer.buffer_and_offset();
            indirect = Some((raw, start + slice.offset));
            if pipeline.raw == vk::Pipeline::null() {
                let kernel = &kernel.name;
                return Err(wrong(format!(
                    "kernel `{kernel}` is PTX, whose workgroup counts are not in memory"
                )));
            }
        }
        let check = Check { report, lengths: &launches.lengths, dispatch: launches.each.len() as u32 };
        let check = commands.checked.then_some(&check);
        pipeline.args.append(&launches.addresses, &dispatch.params, check, &mut launches.blocks);
        launches.each.push(Launch {
            dispatch,
            kernel,
            pipeline,
            reads: first.0..launches.reads.len(),
            writes: first.1..launches.writes.len(),
            block: first.2..launches.blocks.len(),
            indirect,
        });
        Ok(())
    }

    /// Places transfers in the staging memory behind `end`, but those that are written `directly`.
    fn place(
        commands: &Commands<'_, Device>,
        ports: &[(olivine_program::BufferId, u64)],
        directly: impl Fn(&Buffer, u64) -> bool,
        end: &mut u64,
    ) -> Result<Vec<Transfer>, Error> {
        let mut placed = Vec::with_capacity(ports.len());
        for (id, bytes) in ports {
            let buffer = Self::buffer(commands, *id)?.clone();
            buffer.check("record", 0, *bytes)?;
            let fits = *bytes <= STAGED && *end + *bytes <= STAGING && !directly(&buffer, *bytes);
            let staged = fits.then_some(*end);
            if staged.is_some() {
                *end += bytes.next_multiple_of(256);
            }
            placed.push(Transfer { buffer, bytes: *bytes, staged });
        }
        Ok(placed)
    }

    pub(crate) fn record(&self, c: &Commands<'_, Device>) -> Result<Recording, Error> {
        let context = &self.context;
        let mut end = 0;
        let directly = |buffer: &Buffer, bytes: u64| bytes <= DIRECT && buffer.is_mapped();
        let uploads = Self::place(c, c.uploads, directly, &mut end)?;
        // The host reads mapped memory of the device slowly.
        let downloads = Self::place(c, c.downloads, |_, _| false, &mut end)?;
        let mut used = vec![false; c.buffers.len()];
        let slices = c.dispatches.iter().flat_map(|d| d.args.iter().chain(&d.indirect));
        for id in slices.map(|slice| slice.buffer.0 as usize) {
            used.get_mut(id).into_iter().for_each(|used| *used = true);
        }
        let used = c.buffers.iter().zip(used).filter(|(_, used)| *used);
        let mut keeps: Vec<Arc<Buffer>> = used.filter_map(|(buffer, _)| buffer.clone()).collect();
        let report = if c.checked { Some(self.memory.allocate(REPORT, "report")?) } else { None };
        let report_at = report.as_ref().map(|_| end);
        if c.checked {
            end += 256;
        }
        let staging = match end {
            0 => None,
            bytes => Some(Block::new(context, bytes, Kind::Staging, "staging memory of a recording")?),
        };

        let address = report.as_ref().map_or(0, |r| r.address());
        let mut launches = Launches::for_dispatches(c.dispatches);
        c.dispatches.iter().try_for_each(|dispatch| self.launch(c, &mut launches, dispatch, address))?;
        let blocks = self.argument_blocks(&launches)?;
        keeps.extend(blocks.iter().chain(&report).cloned());

        let pool = command_pool(context, context.compute.family)?;
        let mut recording = Recording {
            context: context.clone(),
            pool,
            parts: Vec::new(),
            staging,
            uploads,
            downloads,
            report: report_at,
            queries: None,
            timing: c.timing,
            steps: launches
                .each
                .iter()
                .map(|l| Step { op: l.dispatch.op, node: l.dispatch.node.clone(), kernel: l.kernel.clone() })
                .collect(),
            state: State::Fresh,
            began: Instant::now(),
            took: None,
            _buffers: keeps,
            _pipelines: c.pipelines.to_vec(),
            _bound: None,
        };
        if c.timing != Timing::Off && !launches.each.is_empty() {
            recording.queries = Some(self.query_pool(recording.spans())?);
        }
        let gated = launches.each.iter().any(|l| l.indirect.is_some());
        let ptx = launches.each.iter().any(|l| l.function().is_some());
        let mut writer =
            Writer { context, recording: &mut recording, launched: 0, seconds: 0.0, bound: None, gated, ptx };
        writer.begin()?;
        writer.before(report.as_deref());
        let mut hazards = Hazards::default();
        let runs = if let Timing::Runs(runs) = c.timing { runs.max(1) } else { 1 };
        for run in 0..runs {
            let mut at = blocks.as_ref().map_or(0, |b| b.address());
            for (i, launch) in launches.each.iter().enumerate() {
                let seconds = estimate(self.caps.kind, launch.dispatch);
                if writer.full(seconds) {
                    writer.end(i)?;
                    writer.begin()?;
                }
                let barrier = hazards.next(&launches.touched(launch));
                let block = (launches.block(launch), at);
                writer.launch(i, launch, barrier, block, (run == 0, run + 1 == runs));
                writer.seconds += seconds;
                if !launch.pipeline.args.in_push {
                    at += stride(launch.block.len());
                }
            }
        }
        writer.after(report.as_deref());
        writer.end(launches.each.len())?;
        Ok(recording)
    }

    /// A buffer with the arguments of those dispatches whose arguments do not fit in push constants.
    fn argument_blocks(&self, launches: &Launches<'_>) -> Result<Option<Arc<Buffer>>, Error> {
        let in_memory = || launches.each.iter().filter(|l| !l.pipeline.args.in_push);
        let mut bytes = Vec::with_capacity(in_memory().map(|l| stride(l.block.len()) as usize).sum());
        for launch in in_memory() {
            bytes.extend_from_slice(launches.block(launch));
            bytes.resize(bytes.len() + stride(launch.block.len()) as usize - launch.block.len(), 0);
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        let buffer = self.memory.allocate(bytes.len() as u64, "arguments")?;
        self.transfers.write(&buffer, 0, &bytes)?;
        Ok(Some(buffer))
    }
}

/// Bytes from one block of arguments to the next.
fn stride(block: usize) -> u64 {
    (block as u64).next_multiple_of(16)
}

/// Writes a recording's command buffers.
struct Writer<'a> {
    context: &'a Arc<Context>,
    recording: &'a mut Recording,
    /// Dispatches and estimated seconds of the part being written.
    launched: usize,
    seconds: f64,
    bound: Option<vk::Pipeline>,
    /// Whether some dispatches read their number of workgroups from memory.
    gated: bool,
    /// Whether some kernels are launched as PTX, which belongs to no stage that barriers name.
    ptx: bool,
}

impl Writer<'_> {
    /// The command buffer being written.
    fn commands(&self) -> vk::CommandBuffer {
        self.recording.parts.last().map(|p| p.commands).unwrap_or_default()
    }

    /// Whether another dispatch would make the part too long.
    fn full(&self, seconds: f64) -> bool {
        self.launched > 0 && (self.launched >= DISPATCHES || self.seconds + seconds > SECONDS)
    }

    /// Begins another command buffer.
    fn begin(&mut self) -> Result<(), Error> {
        let device = &self.context.raw;
        let commands = command_buffer(self.context, self.recording.pool)?;
        // Safety: the buffer is new.
        unsafe { device.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default()) }
            .map_err(failed("vkBeginCommandBuffer"))?;
        self.recording.parts.push(Part { commands, end: 0 });
        (self.launched, self.seconds, self.bound) = (0, 0.0, None);
        Ok(())
    }

    /// Ends the command buffer, whose last dispatch is before `end`.
    fn end(&mut self, end: usize) -> Result<(), Error> {
        if let Some(part) = self.recording.parts.last_mut() {
            part.end = end;
        }
        // Safety: the buffer is in recording.
        unsafe { self.context.raw.end_command_buffer(self.commands()) }.map_err(failed("vkEndCommandBuffer"))
    }

    fn barrier(
        &self,
        from: (vk::PipelineStageFlags2, vk::AccessFlags2),
        to: (vk::PipelineStageFlags2, vk::AccessFlags2),
    ) {
        use vk::{AccessFlags2 as A, PipelineStageFlags2 as S};
        let everything =
            ((S::ALL_COMMANDS, A::MEMORY_WRITE), (S::ALL_COMMANDS, A::MEMORY_READ | A::MEMORY_WRITE));
        let (from, to) = if self.ptx { everything } else { (from, to) };
        let barriers = [vk::MemoryBarrier2::default()
            .src_stage_mask(from.0)
            .src_access_mask(from.1)
            .dst_stage_mask(to.0)
            .dst_access_mask(to.1)];
        let info = vk::DependencyInfo::default().memory_barriers(&barriers);
        // Safety: the buffer is in recording.
        unsafe { self.context.raw.cmd_pipeline_barrier2(self.commands(), &info) };
    }

    /// What comes before the dispatches: earlier submissions are done, inputs arrive, the report is cleared.
    fn before(&mut self, report: Option<&Buffer>) {
        use vk::{AccessFlags2 as A, PipelineStageFlags2 as S};
        let all = A::MEMORY_READ | A::MEMORY_WRITE;
        self.barrier((S::ALL_COMMANDS, A::MEMORY_WRITE), (S::ALL_COMMANDS, all));
        let (device, commands) = (&self.context.raw, self.commands());
        if let Some(queries) = self.recording.queries {
            // Safety: the pool has two queries to a span.
            unsafe { device.cmd_reset_query_pool(commands, queries, 0, 2 * self.recording.spans() as u32) };
        }
        let mut any = false;
        if let Some(report) = report {
            let (buffer, offset) = report.buffer_and_offset();
            // Safety: the range is in the buffer and is aligned.
            unsafe { device.cmd_fill_buffer(commands, buffer, offset, REPORT, 0) };
            any = true;
        }
        if let Some(staging) = &self.recording.staging {
            for upload in &self.recording.uploads {
                let (Some(from), true) = (upload.staged, upload.bytes > 0) else { continue };
                let (buffer, to) = upload.buffer.buffer_and_offset();
                let region = vk::BufferCopy::default().src_offset(from).dst_offset(to).size(upload.bytes);
                // Safety: both ranges were checked.
                unsafe { device.cmd_copy_buffer(commands, staging.buffer, buffer, &[region]) };
                any = true;
            }
        }
        if any {
            self.barrier(
                (S::ALL_TRANSFER, A::TRANSFER_WRITE),
                (S::COMPUTE_SHADER, A::SHADER_READ | A::SHADER_WRITE),
            );
        }
    }

    /// One dispatch, behind a barrier where it conflicts with one before; `block` are its arguments, and where they are in memory.
    /// A time of all begins with the `first` run and ends with the `last`.
    fn launch(
        &mut self,
        i: usize,
        launch: &Launch<'_>,
        barrier: bool,
        (block, at): (&[u8], u64),
        (first, last): (bool, bool),
    ) {
        use vk::{AccessFlags2 as A, PipelineStageFlags2 as S};
        let (device, commands) = (&self.context.raw, self.commands());
        let (queries, alone) = (self.recording.queries, self.recording.timing == Timing::Dispatches);
        let span = if alone { i as u32 } else { 0 };
        let begins = queries.filter(|_| alone || (first && i == 0));
        let ends = queries.filter(|_| alone || (last && i + 1 == self.recording.steps.len()));
        if barrier || (alone && i > 0) {
            let (mut stages, mut reads) = (S::COMPUTE_SHADER, A::SHADER_READ | A::SHADER_WRITE);
            if self.gated {
                stages |= S::DRAW_INDIRECT;
                reads |= A::INDIRECT_COMMAND_READ;
            }
            self.barrier((stages, A::SHADER_WRITE), (stages, reads));
        }
        let (pipeline, function) = (launch.pipeline, launch.function());
        let address = at.to_le_bytes();
        let constants: &[u8] = if pipeline.args.in_push { block } else { &address };
        let [x, y, z] = launch.dispatch.groups;
        let label = self.context.labels.as_ref().and_then(|labels| {
            let (op, node) = (launch.dispatch.op, &launch.dispatch.node);
            let text = format!("{op} {node}: {}", launch.kernel.name);
            std::ffi::CString::new(text).ok().map(|text| (labels, text))
        });
        // Safety: the buffer is in recording; pipeline and buffers are kept by the recording; groups were checked.
        unsafe {
            if let Some((labels, text)) = &label {
                let info = vk::DebugUtilsLabelEXT::default().label_name(text);
                labels.cmd_begin_debug_utils_label(commands, &info);
            }
            if function.is_some() {
                // What a launch leaves of the bound pipeline is not said anywhere.
                self.bound = None;
            } else if self.bound != Some(pipeline.raw) {
                device.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, pipeline.raw);
                self.bound = Some(pipeline.raw);
            }
            if function.is_none() && !constants.is_empty() {
                device.cmd_push_constants(
                    commands,
                    pipeline.layout,
                    vk::ShaderStageFlags::COMPUTE,
                    0,
                    constants,
                );
            }
            if let Some(queries) = begins {
                device.cmd_write_timestamp2(commands, S::ALL_COMMANDS, queries, 2 * span);
            }
            match (function, launch.indirect) {
                (Some(function), _) => function.launch(commands, launch.dispatch.groups, block),
                (None, Some((buffer, offset))) => device.cmd_dispatch_indirect(commands, buffer, offset),
                (None, None) => device.cmd_dispatch(commands, x, y, z),
            }
            if let Some(queries) = ends {
                device.cmd_write_timestamp2(commands, S::ALL_COMMANDS, queries, 2 * span + 1);
            }
            if let Some((labels, _)) = &label {
                labels.cmd_end_debug_utils_label(commands);
            }
        }
        self.launched += 1;
    }

    /// What comes after the dispatches: outputs and the report go to the staging memory.
    fn after(&mut self, report: Option<&Buffer>) {
        use vk::{AccessFlags2 as A, PipelineStageFlags2 as S};
        let Some(staging) = &self.recording.staging else { return };
        let copy = |from: (vk::Buffer, u64), to: u64, bytes: u64| {
            let region = vk::BufferCopy::default().src_offset(from.1).dst_offset(to).size(bytes);
            (from.0, region)
        };
        let mut copies: Vec<_> = self
            .recording
            .downloads
            .iter()
            .filter(|d| d.bytes > 0)
            .filter_map(|d| d.staged.map(|to| copy(d.buffer.buffer_and_offset(), to, d.bytes)))
            .collect();
        copies
            .extend(report.zip(self.recording.report).map(|(r, to)| copy(r.buffer_and_offset(), to, REPORT)));
        if copies.is_empty() {
            return;
        }
        self.barrier(
            (S::COMPUTE_SHADER | S::ALL_TRANSFER, A::SHADER_WRITE | A::TRANSFER_WRITE),
            (S::COPY, A::TRANSFER_READ),
        );
        let (device, commands) = (&self.context.raw, self.commands());
        // Safety: the ranges were checked, and the buffer is in recording.
        unsafe {
            for (buffer, region) in copies {
                device.cmd_copy_buffer(commands, buffer, staging.buffer, &[region]);
            }
            to_host(device, commands);
        }
    }
}
