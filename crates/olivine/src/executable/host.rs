//! Operations that run on the host although the device is a GPU, where the caller names them.
//!
//! The graph is cut at them ([`split`](super::split)); a run goes through the parts, and values between a part on the device and
//! one on the host are copied. Nothing runs on the host that was not named.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use olivine_gpu::Take;
use olivine_ir::size::Bindings;
use olivine_ir::{Data, Graph, Tensor, TensorType, ValueId};
use web_time::Instant;

use super::io::Input;
use super::split::{GraphPart, is_named, split};
use crate::cost::Work;
use crate::engine::{
    Branch, DeviceTensor, InFlight, Lowered, LoweredStep, Model, Prepared, Site, StatePart, StepTime,
};
use crate::{Device, Error, Session};

/// The named operations of a model, and the host that runs them.
pub(crate) struct HostOps {
    names: Vec<String>,
    session: Session,
    model: Arc<dyn Model>,
}

impl HostOps {
    /// `None` where nothing is named, and on the CPU, where all runs on the host.
    pub(crate) fn new(session: &Session, names: &[String]) -> Result<Option<Arc<Self>>, Error> {
        if names.is_empty() || session.inner.engine.caps().is_none() {
            return Ok(None);
        }
        let session = Session::with_options(Device::Cpu, session.inner.options.clone())?;
        let model = session.inner.engine.model(None);
        Ok(Some(Arc::new(HostOps { names: names.to_vec(), session, model })))
    }

    /// The host's session.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Sets or replaces a param for operations on the host; the elements are shared.
    pub(crate) fn set_param(&self, name: &str, tensor: Tensor) {
        self.model.set_param(name, tensor);
    }

    /// The kernel calls of a graph's parts, and the copies between them; `None` where no operation of it is named.
    pub(crate) fn lowered(&self, session: &Session, graph: &Graph) -> Result<Option<Lowered>, Error> {
        let Some(parts) = split(graph, &self.names)? else { return Ok(None) };
        let mut lowered = Vec::with_capacity(parts.len());
        for part in &parts {
            let inner = if part.on_host { &self.session.inner } else { &session.inner };
            let from_other = |id: &&ValueId| is_from_other(part.on_host, **id, &parts);
            let crossing = part.inputs.iter().filter(from_other);
            let bytes = crossing.map(|id| Ok(graph.ty(*id)?.bytes() as u64)).sum::<Result<u64, Error>>()?;
            let compiled = inner.compile(&part.graph, false)?;
            lowered.push((part.on_host, bytes, inner.engine.lowered(&compiled)?));
        }
        Ok(Some(joined(lowered)))
    }

    /// Makes a graph ready to run in parts; `None` where no operation of it is named.
    pub(super) fn prepare(
        &self,
        session: &Session,
        model: &Arc<dyn Model>,
        graph: &Graph,
    ) -> Result<Option<Arc<dyn Prepared>>, Error> {
        let Some(parts) = split(graph, &self.names)? else { return Ok(None) };
        let on_device = |id: ValueId| parts.iter().any(|part| !part.on_host && part.inputs.contains(&id));
        let part = |part: &GraphPart| {
            let (session, model) = if part.on_host { (&self.session, &self.model) } else { (session, model) };
            let prepared = model.prepare(&session.inner.compile(&part.graph, false)?, &[])?;
            let take = |id: &ValueId| if on_device(*id) { Take::Device } else { Take::Host };
            let takes = part.outputs.iter().map(take);
            let takes = takes.map(|take| if part.on_host { Take::Host } else { take }).collect();
            let (inputs, outputs) = (part.inputs.clone(), part.outputs.clone());
            Ok(Part { on_host: part.on_host, prepared, inputs, outputs, takes })
        };
        let prepared = Partitioned {
            session: session.clone(),
            parts: parts.iter().map(part).collect::<Result<_, Error>>()?,
            inputs: graph.inputs().map(|(_, id)| id).collect(),
            sources: graph.outputs().iter().map(|output| output.value).collect(),
            outputs: Vec::new(),
        };
        let types = graph.outputs().iter().map(|output| Ok((output.name.clone(), graph.ty(output.value)?)));
        let types = types.collect::<Result<Vec<_>, Error>>()?;
        Ok(Some(Arc::new(prepared.with_types(&types))))
    }
}

/// Whether a part on the other side makes a value.
fn is_from_other(on_host: bool, id: ValueId, parts: &[GraphPart]) -> bool {
    parts.iter().any(|part| part.on_host != on_host && part.outputs.contains(&id))
}

/// The steps of all parts, with the copies before them: for each part its side, the bytes that cross to it, and its steps.
fn joined(parts: Vec<(bool, u64, Lowered)>) -> Lowered {
    let mut all = Lowered::default();
    let last = parts.len().saturating_sub(1);
    for (at, (on_host, crossing, lowered)) in parts.into_iter().enumerate() {
        if crossing > 0 {
            all.steps.push(crossed(on_host, crossing));
        }
        let first = all.steps.len();
        all.steps.extend(lowered.steps.into_iter().map(|step| {
            if on_host {
                return LoweredStep { kernel: on_host_kernel(step.op), site: Site::Host, ..step };
            }
            let branch = step.branch.map(|branch| Branch { gate: branch.gate + first, ..branch });
            LoweredStep { branch, ..step }
        }));
        all.fusions.extend(lowered.fusions);
        all.submissions += usize::from(!on_host);
        all.width = all.width.max(lowered.width);
        // Inputs and outputs of the whole are mostly those of its first and its last part.
        if at == 0 && !on_host {
            all.sent = lowered.sent;
        }
        if at == last && !on_host {
            all.received = lowered.received;
        }
    }
    all
}

/// An error that lists what there is, unless every name is that of an operation or a node of the graphs.
pub(crate) fn check_names(names: &[String], graphs: &[&Graph]) -> Result<(), Error> {
    let nodes = || graphs.iter().flat_map(|graph| graph.nodes());
    for name in names {
        if !nodes().any(|node| is_named(node, std::slice::from_ref(name))) {
            let mut known: Vec<&str> = nodes().map(|node| node.op.name()).collect();
            known.sort_unstable();
            known.dedup();
            let nearest = olivine_ir::nearest(name, nodes().map(|node| node.name.as_str()));
            return Err(Error::UnknownHostOp { name: name.clone(), ops: known.join(", "), nearest });
        }
    }
    Ok(())
}

/// A part of a graph, ready to run.
struct Part {
    on_host: bool,
    prepared: Arc<dyn Prepared>,
    inputs: Vec<ValueId>,
    outputs: Vec<ValueId>,
    /// Outputs that a part on the device reads stay there.
    takes: Vec<Take>,
}

/// A graph that runs in parts.
struct Partitioned {
    session: Session,
    parts: Vec<Part>,
    /// The graph's inputs, and what its outputs are.
    inputs: Vec<ValueId>,
    sources: Vec<ValueId>,
    outputs: Vec<(String, TensorType)>,
}

/// A value between parts.
enum Computed {
    Host(Tensor),
    Device(DeviceTensor),
}

impl Computed {
    fn input(&self) -> Input<'_> {
        match self {
            Computed::Host(tensor) => Input::Host(tensor.view()),
            Computed::Device(tensor) => Input::Device(tensor),
        }
    }

    fn to_host(&self) -> Result<Cow<'_, Tensor>, Error> {
        Ok(match self {
            Computed::Host(tensor) => Cow::Borrowed(tensor),
            Computed::Device(tensor) => Cow::Owned(tensor.to_tensor()?),
        })
    }
}

/// The values of a run.
struct Values<'a> {
    given: HashMap<ValueId, Input<'a>>,
    computed: HashMap<ValueId, Computed>,
}

impl Values<'_> {
    fn get(&self, id: ValueId) -> Result<Input<'_>, Error> {
        let computed = self.computed.get(&id).map(Computed::input);
        computed.or_else(|| self.given.get(&id).copied()).ok_or(Error::WorkerDied)
    }
}

impl Partitioned {
    /// With the types that outputs have for the sizes of the parts.
    fn with_types(mut self, declared: &[(String, TensorType)]) -> Self {
        let of_part = |id: &ValueId| {
            let place = |part: &Part| {
                let i = part.outputs.iter().position(|output| output == id)?;
                part.prepared.outputs().get(i).map(|(_, ty)| *ty)
            };
            self.parts.iter().find_map(place)
        };
        let outputs = declared.iter().zip(&self.sources);
        self.outputs = outputs.map(|((name, ty), id)| (name.clone(), of_part(id).unwrap_or(*ty))).collect();
        self
    }

    /// Bytes that a part takes from parts on the other side.
    fn crossing(&self, part: &Part) -> u64 {
        let bytes = |id: &ValueId| {
            let others = self.parts.iter().filter(|other| other.on_host != part.on_host);
            let output = |other: &Part| {
                let i = other.outputs.iter().position(|output| output == id)?;
                other.prepared.outputs().get(i).map(|(_, ty)| ty.bytes() as u64)
            };
            others.filter_map(output).sum::<u64>()
        };
        part.inputs.iter().map(bytes).sum()
    }

    /// Runs all parts; `visit` sees each before it runs.
    fn evaluate<'a>(&self, inputs: &[Input<'a>], mut visit: Option<Visit<'_>>) -> Result<Values<'a>, Error> {
        let given = self.inputs.iter().copied().zip(inputs.iter().copied()).collect();
        let mut values = Values { given, computed: HashMap::new() };
        for part in &self.parts {
            let begun = Instant::now();
            // What the host computes with is brought to the host. The device takes tensors of either; where copies are timed,
            // they are brought to it before.
            let mut brought: Vec<Option<Computed>> = Vec::with_capacity(part.inputs.len());
            for id in &part.inputs {
                brought.push(match values.get(*id)? {
                    Input::Device(tensor) if part.on_host => Some(Computed::Host(tensor.to_tensor()?)),
                    Input::Host(view)
                        if !part.on_host && visit.is_some() && values.computed.contains_key(id) =>
                    {
                        Some(Computed::Device(self.session.inner.engine.upload(view.ty(), view.bytes())?))
                    }
                    _ => None,
                });
            }
            let time = begun.elapsed();
            let mut taken = Vec::with_capacity(part.inputs.len());
            for (id, computed) in part.inputs.iter().zip(&brought) {
                taken.push(match computed {
                    Some(computed) => computed.input(),
                    None => values.get(*id)?,
                });
            }
            if let Some(visit) = &mut visit {
                visit(part, &taken, time)?;
            }
            let mut run = part.prepared.start(&taken, &part.takes)?;
            let results = run.wait()?;
            drop(taken);
            let types = part.prepared.outputs();
            for (i, (id, data)) in part.outputs.iter().zip(results).enumerate() {
                let computed = match (part.takes.get(i), types.get(i)) {
                    (Some(Take::Device), _) => Computed::Device(run.output(i)?),
                    (_, Some((_, ty))) => Computed::Host(Tensor::of_type(*ty, data)?),
                    _ => return Err(Error::WorkerDied),
                };
                values.computed.insert(*id, computed);
            }
        }
        Ok(values)
    }

    /// An output on the host.
    fn on_host<'v>(&self, values: &'v Values<'_>, i: usize) -> Result<Cow<'v, Tensor>, Error> {
        let id = self.sources.get(i).ok_or(Error::WorkerDied)?;
        match values.computed.get(id) {
            Some(computed) => computed.to_host(),
            None => Ok(Cow::Owned(match values.get(*id)? {
                Input::Host(view) => view.to_tensor()?,
                Input::Device(tensor) => tensor.to_tensor()?,
            })),
        }
    }

    /// An output on the device.
    fn on_device(&self, values: &Values<'_>, i: usize) -> Result<DeviceTensor, Error> {
        match self.sources.get(i).map(|id| values.get(*id)).transpose()? {
            Some(Input::Device(tensor)) => Ok(tensor.clone()),
            Some(Input::Host(view)) => self.session.inner.engine.upload(view.ty(), view.bytes()),
            None => Err(Error::WorkerDied),
        }
    }

    /// Outputs where they are to be.
    fn taken(&self, values: &Values<'_>, takes: &[Take]) -> Result<Taken, Error> {
        let mut all = Taken { host: Vec::new(), device: Vec::new() };
        for (i, ((_, ty), take)) in self.outputs.iter().zip(takes).enumerate() {
            let host = *take == Take::Host;
            all.host.push(if host {
                let tensor = self.on_host(values, i)?;
                Data::from_bytes(tensor.dtype(), tensor.bytes())?
            } else {
                Data::zeros(ty.dtype, 0)?
            });
            all.device.push(if host { None } else { Some(self.on_device(values, i)?) });
        }
        Ok(all)
    }
}

/// Called with a part, its inputs, and the time that copying them to its side took.
type Visit<'a> = &'a mut dyn FnMut(&Part, &[Input<'_>], Duration) -> Result<(), Error>;

impl Prepared for Partitioned {
    fn outputs(&self) -> &[(String, TensorType)] {
        &self.outputs
    }

    fn for_sizes(&self, sizes: &Bindings) -> Result<Option<Arc<dyn Prepared>>, Error> {
        let mut changed = false;
        let mut part = |part: &Part| {
            let other = part.prepared.for_sizes(sizes)?;
            changed |= other.is_some();
            let prepared = other.unwrap_or_else(|| part.prepared.clone());
            let (inputs, outputs, takes) = (part.inputs.clone(), part.outputs.clone(), part.takes.clone());
            Ok(Part { on_host: part.on_host, prepared, inputs, outputs, takes })
        };
        let parts = self.parts.iter().map(&mut part).collect::<Result<_, Error>>()?;
        let (session, inputs) = (self.session.clone(), self.inputs.clone());
        let sources = self.sources.clone();
        let other = Partitioned { session, parts, inputs, sources, outputs: Vec::new() };
        Ok(changed.then(|| Arc::new(other.with_types(&self.outputs)) as Arc<dyn Prepared>))
    }

    fn lowered(&self) -> Lowered {
        let part = |part: &Part| (part.on_host, self.crossing(part), part.prepared.lowered());
        joined(self.parts.iter().map(part).collect())
    }

    fn load(&self) -> Result<(), Error> {
        self.parts.iter().try_for_each(|part| part.prepared.load())
    }

    fn run(&self, inputs: &[Input<'_>], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        let values = self.evaluate(inputs, None)?;
        for (i, to) in outputs.iter_mut().enumerate() {
            let from = self.on_host(&values, i)?;
            if from.bytes().len() != to.len() {
                return Err(Error::BadRange { elements: 0..to.len(), all: from.bytes().len() });
            }
            to.copy_from_slice(from.bytes());
        }
        Ok(())
    }

    fn run_with_state(
        &self,
        inputs: &[Option<Input<'_>>],
        states: &mut [StatePart<'_>],
    ) -> Result<Vec<Data>, Error> {
        let becomes = |i: usize| states.iter().any(|state| state.output == i);
        let takes: Vec<Take> =
            (0..self.outputs.len()).map(|i| if becomes(i) { Take::Device } else { Take::Host }).collect();
        let mut taken = {
            let state = |i: usize| states.iter().find(|state| state.input == Some(i));
            let of_state = |i| state(i).map(|state| Input::Device(&*state.tensor));
            let inputs: Vec<Input<'_>> =
                inputs.iter().enumerate().filter_map(|(i, input)| input.or_else(|| of_state(i))).collect();
            let values = self.evaluate(&inputs, None)?;
            self.taken(&values, &takes)?
        };
        for state in states {
            *state.tensor = taken.output(state.output)?;
        }
        taken.wait()
    }

    /// The run has ended when this returns: the host is part of it.
    fn start(&self, inputs: &[Input<'_>], takes: &[Take]) -> Result<Box<dyn InFlight>, Error> {
        let values = self.evaluate(inputs, None)?;
        Ok(Box::new(self.taken(&values, takes)?))
    }

    fn profile(&self, inputs: &[Input<'_>]) -> Result<Vec<StepTime>, Error> {
        let mut all: Vec<StepTime> = Vec::new();
        let mut start = Duration::ZERO;
        let mut visit = |part: &Part, inputs: &[Input<'_>], time: Duration| {
            let bytes = self.crossing(part);
            if bytes > 0 {
                let LoweredStep { node, op, kernel, .. } = crossed(part.on_host, bytes);
                all.push(StepTime { node, op, kernel, start, time, flops: 0, bytes });
                start += time;
            }
            let times = part.prepared.profile(inputs)?;
            let length = times.iter().map(|step| step.start + step.time).max().unwrap_or_default();
            let began = start;
            all.extend(times.into_iter().map(|step| {
                let kernel = if part.on_host { on_host_kernel(step.op) } else { step.kernel };
                StepTime { kernel, start: began + step.start, ..step }
            }));
            start += length;
            Ok(())
        };
        self.evaluate(inputs, Some(&mut visit))?;
        Ok(all)
    }

    fn time(&self, inputs: &[Input<'_>], runs: u32) -> Result<(Duration, Vec<DeviceTensor>), Error> {
        let begun = Instant::now();
        let mut values = self.evaluate(inputs, None)?;
        for _ in 1..runs.max(1) {
            values = self.evaluate(inputs, None)?;
        }
        let time = begun.elapsed() / runs.max(1);
        let outputs = (0..self.outputs.len()).map(|i| self.on_device(&values, i));
        Ok((time, outputs.collect::<Result<_, Error>>()?))
    }
}

/// What a step on the host is called where others have a kernel.
fn on_host_kernel(op: &str) -> String {
    format!("{op} on the host")
}

/// Values on their way to a part.
fn crossed(to_host: bool, bytes: u64) -> LoweredStep {
    let (kernel, site) =
        if to_host { ("to the host", Site::ToHost) } else { ("to the device", Site::ToDevice) };
    let (work, inner) = (Work::moving(bytes), Vec::new());
    LoweredStep {
        node: "host_ops".into(),
        op: "copy",
        kernel: kernel.into(),
        work,
        inner,
        branch: None,
        site,
    }
}

/// A run that has ended.
struct Taken {
    host: Vec<Data>,
    device: Vec<Option<DeviceTensor>>,
}

impl InFlight for Taken {
    fn wait(&mut self) -> Result<Vec<Data>, Error> {
        Ok(std::mem::take(&mut self.host))
    }

    fn is_done(&mut self) -> Result<bool, Error> {
        Ok(true)
    }

    fn output(&mut self, i: usize) -> Result<DeviceTensor, Error> {
        self.device.get_mut(i).and_then(Option::take).ok_or(Error::OtherDevice)
    }
}
