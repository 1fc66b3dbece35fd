//! What a run needs, prepared once: bind groups, params, read-back buffers, and where submissions are cut.

use std::ops::Range;
use std::sync::Arc;

use olivine_kernel::{BindingKind, ParamsLocation, REPORT_WORDS};
use olivine_program::{Addressing, BufferId, Commands, DeviceKind, Dispatch, Error, Slice, Timing};

use crate::Device;
use crate::alias::{Bound, Copied, Unaliased};
use crate::memory::{Buffer, readback};
use crate::pipeline::Pipeline;
use crate::submit::Flight;
use crate::time::Timer;

/// Recorded commands with read-back memory of their own; one run at a time.
#[derive(Debug)]
pub struct Recording {
    pub(crate) steps: Vec<Step>,
    /// All buffers that the steps use: in browsers their memory goes with the last of these, whatever is bound.
    pub(crate) _buffers: Vec<Arc<Buffer>>,
    /// The steps of each submission.
    pub(crate) parts: Vec<Range<usize>>,
    pub(crate) uploads: Vec<Upload>,
    pub(crate) downloads: Vec<Download>,
    pub(crate) report: Option<ReportBuffers>,
    pub(crate) timer: Option<Timer>,
    pub(crate) timing: Timing,
    /// First and last operation, for errors.
    pub(crate) span: String,
    pub(crate) state: State,
}

/// Where a recording stands.
#[derive(Debug)]
pub(crate) enum State {
    /// Nothing of it has run, or the results were given up.
    New,
    InFlight(Flight),
    /// Results are mapped.
    Landed,
}

/// One dispatch, ready to be encoded.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) group: wgpu::BindGroup,
    pub(crate) immediates: Vec<u8>,
    pub(crate) groups: [u32; 3],
    /// Where the number of workgroups is, if that is in memory.
    pub(crate) indirect: Option<(wgpu::Buffer, u64)>,
    /// What is copied before it.
    pub(crate) copies: Vec<Copied>,
    pub(crate) op: &'static str,
    pub(crate) node: Arc<str>,
}

/// A buffer that the host writes before each run.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) bytes: u64,
}

/// A buffer that the host reads after each run.
#[derive(Debug)]
pub(crate) struct Download {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) staging: wgpu::Buffer,
    pub(crate) bytes: u64,
}

/// Where checked kernels report.
#[derive(Debug)]
pub(crate) struct ReportBuffers {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) staging: wgpu::Buffer,
}

/// A dispatch that was found to be in order.
struct Checked<'a> {
    dispatch: &'a Dispatch,
    pipeline: Arc<Pipeline>,
    /// By argument.
    bound: Vec<Bound>,
    copies: Vec<Copied>,
    indirect: Option<(&'a Arc<Buffer>, u64)>,
    params: Vec<u8>,
}

impl Device {
    pub(crate) fn record(&self, commands: &Commands<'_, Device>) -> Result<Recording, Error> {
        if commands.timing != Timing::Off && !self.can_time() {
            let problem = format!("{} has no timestamps, so its dispatches cannot be timed", self.caps.name);
            return Err(Error::Driver { call: "record", problem });
        }
        let mut checked = Vec::with_capacity(commands.dispatches.len());
        for (number, dispatch) in commands.dispatches.iter().enumerate() {
            checked.push(self.check(commands, number, dispatch)?);
        }
        let uploads = self.ports(commands, commands.uploads)?;
        let downloads = self.ports(commands, commands.downloads)?;
        let recording = self.scoped("record", || self.prepare(commands, checked, uploads, downloads));
        recording.map_err(|c| c.into_error("record"))
    }

    fn check<'a>(
        &self,
        commands: &Commands<'a, Device>,
        number: usize,
        dispatch: &'a Dispatch,
    ) -> Result<Checked<'a>, Error> {
        let at = || format!("{} `{}`", dispatch.op, dispatch.node);
        let wrong =
            |problem: String| Error::Driver { call: "record", problem: format!("{}: {problem}", at()) };
        let pipeline = commands.pipelines.get(dispatch.kernel.0 as usize);
        let pipeline = pipeline.ok_or_else(|| wrong(format!("no pipeline {}", dispatch.kernel.0)))?;
        let kernel = &pipeline.kernel;
        // Foreign code knows nothing of checks.
        if pipeline.interface.checked != (commands.checked && kernel.foreign.is_none()) {
            return Err(wrong(format!("kernel `{}` was not built for this kind of run", kernel.name)));
        }
        let count = |what: &str, expected, got| match expected == got {
            true => Ok(()),
            false => Err(Error::WrongCount { what: format!("{what} of {}", at()), expected, got }),
        };
        count("buffers", kernel.args.len(), dispatch.args.len())?;
        count("params", kernel.params.len(), dispatch.params.len())?;

        let limit = self.caps.max_groups;
        if dispatch.groups.iter().zip(limit).any(|(groups, limit)| *groups == 0 || *groups > limit) {
            return Err(wrong(format!("{:?} workgroups, the device allows 1 to {limit:?}", dispatch.groups)));
        }
        if let Addressing::Bindings { max_count, .. } = self.caps.addressing
            && kernel.args.len() > max_count as usize
        {
            let needed = kernel.args.len();
            let node = format!(
                "{}: kernel `{}` has {needed} buffers, the device binds {max_count}",
                at(),
                kernel.name
            );
            return Err(Error::Unsupported { device: self.caps.name.clone(), nodes: vec![node] });
        }

        let mut bound = Vec::with_capacity(dispatch.args.len());
        for (i, slice) in dispatch.args.iter().enumerate() {
            let name = kernel.args.get(i).map_or("", |a| a.name.as_str());
            let grain = pipeline.interface.bindings.get(i).map_or(4, |b| u64::from(b.min_bytes)).max(4);
            let (buffer, offset, size) =
                self.bind(commands, slice, grain, || format!("{}: `{name}`", at()))?;
            bound.push((buffer.clone(), offset, size));
        }
        let mut indirect = None;
        if let Some(slice) = &dispatch.indirect {
            let buffer = find(commands, slice.buffer).map_err(&wrong)?;
            let inside = slice.offset.checked_add(12).is_some_and(|end| end <= buffer.bytes);
            if !inside || !slice.offset.is_multiple_of(4) {
                let problem = format!("no number of workgroups at byte {} of its buffer", slice.offset);
                return Err(wrong(problem));
            }
            indirect = Some((buffer, slice.offset));
        }
        let params = pipeline.interface.param_bytes(number as u32, &dispatch.params);
        let Unaliased { pipeline, bound, copies } = self.unaliased(pipeline, bound)?;
        Ok(Checked { dispatch, pipeline, bound, copies, indirect, params })
    }

    /// The range to bind for a slice, in whole cells of `grain` bytes.
    fn bind<'a>(
        &self,
        commands: &Commands<'a, Device>,
        slice: &Slice,
        grain: u64,
        at: impl Fn() -> String,
    ) -> Result<(&'a Arc<Buffer>, u64, u64), Error> {
        let wrong =
            |problem: String| Error::Driver { call: "record", problem: format!("{}: {problem}", at()) };
        let buffer = find(commands, slice.buffer).map_err(&wrong)?;
        let size = slice.bytes.max(1).checked_next_multiple_of(grain).unwrap_or(u64::MAX);
        if let Addressing::Bindings { alignment, max_bytes, .. } = self.caps.addressing {
            if size > max_bytes {
                let (what, device) = (at(), self.caps.name.clone());
                return Err(Error::TooLarge { what, needed: slice.bytes, device, available: max_bytes });
            }
            if !slice.offset.is_multiple_of(u64::from(alignment.max(1))) {
                let problem = format!("bound at byte {}, which is no multiple of {alignment}", slice.offset);
                return Err(wrong(problem));
            }
        }
        match slice.offset.checked_add(size) {
            Some(end) if end <= buffer.bytes => Ok((buffer, slice.offset, size)),
            _ => Err(wrong(format!(
                "{size} bytes from byte {} on of a buffer of {} bytes",
                slice.offset, buffer.bytes
            ))),
        }
    }

    /// Buffers that the host reaches, with the bytes that matter.
    fn ports<'a>(
        &self,
        commands: &Commands<'a, Device>,
        ports: &[(BufferId, u64)],
    ) -> Result<Vec<(&'a Arc<Buffer>, u64)>, Error> {
        let port = |(id, bytes): &(BufferId, u64)| {
            let wrong = |problem| Error::Driver { call: "record", problem };
            let buffer = find(commands, *id).map_err(wrong)?;
            match *bytes <= buffer.bytes {
                true => Ok((buffer, *bytes)),
                false => Err(wrong(format!("{bytes} bytes of a buffer of {} bytes", buffer.bytes))),
            }
        };
        ports.iter().map(port).collect()
    }

    fn prepare(
        &self,
        commands: &Commands<'_, Device>,
        mut checked: Vec<Checked<'_>>,
        uploads: Vec<(&Arc<Buffer>, u64)>,
        downloads: Vec<(&Arc<Buffer>, u64)>,
    ) -> Recording {
        let report = commands.checked.then(|| self.report_buffers());
        let (uniform, places) = self.uniform(&checked);
        let step = |(one, place): (&mut Checked<'_>, Option<u64>)| {
            let immediates = match one.pipeline.interface.params {
                Some(ParamsLocation::Immediate { .. }) => one.params.clone(),
                _ => Vec::new(),
            };
            Step {
                pipeline: one.pipeline.clone(),
                group: self.group(one, uniform.as_ref().zip(place), report.as_ref()),
                immediates,
                groups: one.dispatch.groups,
                indirect: one.indirect.map(|(buffer, offset)| (buffer.raw.clone(), offset)),
                copies: std::mem::take(&mut one.copies),
                op: one.dispatch.op,
                node: one.dispatch.node.clone(),
            }
        };
        let bound = checked.iter().flat_map(|one| &one.bound).map(|(buffer, ..)| buffer.clone());
        let gates = checked.iter().filter_map(|one| one.indirect).map(|(buffer, _)| buffer.clone());
        let buffers = bound.chain(gates).collect();
        let steps: Vec<Step> = checked.iter_mut().zip(places).map(step).collect();
        let download = |(buffer, bytes): (&Arc<Buffer>, u64)| {
            let staging = readback(&self.raw, bytes.max(4).next_multiple_of(4), "download");
            Download { buffer: buffer.clone(), staging, bytes }
        };
        let upload = |(buffer, bytes): (&Arc<Buffer>, u64)| Upload { buffer: buffer.clone(), bytes };
        let mut parts = parts(commands.dispatches, self.caps.kind);
        if parts.is_empty() {
            parts.push(0..0);
        }
        let timer = match commands.timing {
            Timing::Off => None,
            Timing::Dispatches => Some(Timer::new(&self.raw, steps.len())),
            Timing::Runs(_) => Some(Timer::new(&self.raw, if steps.is_empty() { 0 } else { parts.len() })),
        };
        Recording {
            steps,
            _buffers: buffers,
            parts,
            uploads: uploads.into_iter().map(upload).collect(),
            downloads: downloads.into_iter().map(download).collect(),
            report,
            timer,
            timing: commands.timing,
            span: span(commands.dispatches),
            state: State::New,
        }
    }

    fn report_buffers(&self) -> ReportBuffers {
        use wgpu::BufferUsages as U;
        let size = 4 * REPORT_WORDS as u64;
        let buffer = self.raw.create_buffer(&wgpu::BufferDescriptor {
            label: Some("report"),
            size,
            usage: U::STORAGE | U::COPY_SRC | U::COPY_DST,
            mapped_at_creation: false,
        });
        ReportBuffers { buffer, staging: readback(&self.raw, size, "report") }
    }

    /// One uniform buffer with the params of all dispatches that read theirs there, and where each begins.
    fn uniform(&self, checked: &[Checked<'_>]) -> (Option<wgpu::Buffer>, Vec<Option<u64>>) {
        let alignment = self.limits.min_uniform_buffer_offset_alignment.max(16) as usize;
        let mut block = Vec::new();
        let place = |one: &Checked<'_>| {
            let Some(ParamsLocation::Uniform { .. }) = one.pipeline.interface.params else { return None };
            block.resize(block.len().next_multiple_of(alignment), 0);
            let start = block.len() as u64;
            block.extend_from_slice(&one.params);
            Some(start)
        };
        let places = checked.iter().map(place).collect();
        if block.is_empty() {
            return (None, places);
        }
        let buffer = self.raw.create_buffer(&wgpu::BufferDescriptor {
            label: Some("params"),
            size: block.len() as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.queue.write_buffer(&buffer, 0, &block);
        (Some(buffer), places)
    }

    fn group(
        &self,
        one: &Checked<'_>,
        uniform: Option<(&wgpu::Buffer, u64)>,
        report: Option<&ReportBuffers>,
    ) -> wgpu::BindGroup {
        let range = |buffer, offset, size| {
            let size = wgpu::BufferSize::new(size);
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size })
        };
        let resource = |kind: BindingKind| match kind {
            BindingKind::Arg(arg) => {
                one.bound.get(arg.index()).map(|(buffer, offset, size)| range(&buffer.raw, *offset, *size))
            }
            BindingKind::Params => uniform.map(|(b, start)| range(b, start, one.params.len() as u64)),
            BindingKind::Report => report.map(|r| r.buffer.as_entire_binding()),
        };
        let bindings = one.pipeline.interface.bindings.iter().zip(0..);
        // A binding that is left out here is refused by wgpu with its number.
        let entries: Vec<_> = bindings
            .filter_map(|(decl, binding)| {
                Some(wgpu::BindGroupEntry { binding, resource: resource(decl.kind)? })
            })
            .collect();
        self.raw.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(one.pipeline.kernel.name.as_str()),
            layout: &one.pipeline.layout,
            entries: &entries,
        })
    }
}

fn find<'a>(commands: &Commands<'a, Device>, id: BufferId) -> Result<&'a Arc<Buffer>, String> {
    let buffer = commands.buffers.get(id.0 as usize).and_then(Option::as_ref);
    buffer.ok_or_else(|| format!("buffer {} is not there", id.0))
}

/// Cuts dispatches into submissions that even a slow device of the kind ends well before a watchdog looks (2 s on
/// desktops): a quarter of a second by its slowest rates of arithmetic and of memory.
fn parts(dispatches: &[Dispatch], kind: DeviceKind) -> Vec<Range<usize>> {
    const BUDGET: f64 = 0.25;
    let (flops, bytes) = match kind {
        // No watchdog looks after processors.
        DeviceKind::Cpu => (f64::INFINITY, f64::INFINITY),
        DeviceKind::Discrete | DeviceKind::Virtual => (1e12, 1e11),
        DeviceKind::Integrated | DeviceKind::Other => (5e10, 1e10),
    };
    let mut parts = Vec::new();
    let (mut start, mut spent) = (0, 0.0);
    for (i, dispatch) in dispatches.iter().enumerate() {
        let cost = dispatch.flops as f64 / flops + dispatch.bytes as f64 / bytes;
        if i > start && spent + cost > BUDGET {
            parts.push(start..i);
            (start, spent) = (i, 0.0);
        }
        spent += cost;
    }
    if start < dispatches.len() {
        parts.push(start..dispatches.len());
    }
    parts
}

fn span(dispatches: &[Dispatch]) -> String {
    let name = |d: &Dispatch| format!("{} `{}`", d.op, d.node);
    match dispatches {
        [] => "a run without dispatches".to_string(),
        [only] => name(only),
        [first, .., last] => format!("{} to {}", name(first), name(last)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dispatch(flops: u64) -> Dispatch {
        Dispatch { op: "MatMul", node: format!("n{flops}").into(), flops, ..Dispatch::default() }
    }

    #[test]
    fn submissions_are_cut_where_the_work_is_too_much_for_one() {
        let work: Vec<_> = [100, 100, 100, 1000, 1, 1].map(|g| dispatch(g * 1_000_000_000)).into();
        assert_eq!(parts(&work, DeviceKind::Discrete), [0..2, 2..3, 3..4, 4..6]);
        assert_eq!(parts(&work, DeviceKind::Cpu).len(), 1);
        assert_eq!(parts(&[], DeviceKind::Discrete), []);
        assert_eq!(span(&work[..2]), "MatMul `n100000000000` to MatMul `n100000000000`");
    }
}
