//! Loops whose iterations are graphs of their own, compiled for the shapes that come.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use olivine_ir::{Data, Shape, Tensor, TensorType, ValueId};
use olivine_onnx as onnx;
use onnx::{Argument, ArgumentSource, ElementType, LoopCall, LoopResults, Made, Part};

use super::OnnxExecutable;
use super::plans::{Key, Plans, Subject, Whole};
use super::values::{Passed, Values};
use crate::Error;
use crate::executable::GraphExecutable;

/// Plans of a loop's iterations that are cached at a time: one that grows has another for every size.
const PLANS: usize = 1024;

/// A loop that the host runs: it looks at the condition after every graph of iterations.
pub(super) struct HostLoop {
    call: LoopCall,
    /// Computes what the loop begins with.
    arguments: Option<Arc<GraphExecutable>>,
    plans: Plans,
    /// Counts graphs of iterations for those that draw random numbers.
    runs: AtomicU64,
}

/// A carried value.
#[derive(Clone)]
enum State {
    Tensor(Passed, ElementType),
    Sequence(Vec<State>, Option<ElementType>),
    Nothing,
}

impl State {
    fn made(&self) -> Made {
        match self {
            State::Tensor(tensor, element) => Made::Tensor(tensor.ty(), *element),
            State::Sequence(items, element) => {
                let items: Vec<Made> = items.iter().map(State::made).collect();
                Made::Sequence(items, *element)
            }
            State::Nothing => Made::Nothing,
        }
    }

    /// Its tensors, under the names that graphs know them by.
    fn named(self, name: String, into: &mut Vec<(String, Passed)>) {
        match self {
            State::Tensor(tensor, _) => into.push((name, tensor)),
            State::Sequence(items, _) => {
                for (i, item) in items.into_iter().enumerate() {
                    item.named(format!("{name}[{i}]"), into);
                }
            }
            State::Nothing => {}
        }
    }
}

impl HostLoop {
    pub(super) fn new(model: &OnnxExecutable, mut call: LoopCall) -> Result<Self, Error> {
        let graph = call.arguments.as_mut().map(|stage| std::mem::take(&mut stage.graph));
        let arguments = graph.map(|graph| model.executable(graph, &[])).transpose()?.map(Arc::new);
        Ok(HostLoop { call, arguments, plans: Plans::new(PLANS), runs: AtomicU64::new(0) })
    }

    /// What the graph before the loop leaves for later ones.
    pub(super) fn stage_values(&self) -> &[ValueId] {
        self.call.arguments.as_ref().map_or(&[], |stage| &stage.stage_values)
    }

    pub(super) fn executables(&self) -> Vec<Arc<GraphExecutable>> {
        let mut all = self.plans.executables();
        all.extend(self.arguments.clone());
        all
    }

    /// Runs the loop; what it leaves joins the values.
    pub(super) async fn run(
        &self,
        model: &OnnxExecutable,
        values: &mut Values<'_>,
    ) -> Result<LoopResults, Error> {
        if let Some(arguments) = &self.arguments {
            model.number(arguments, values, &self.runs)?;
            let computed = model.pass(arguments, values)?;
            values.add(computed);
        }
        let most = match &self.call.most {
            Some(argument) => integer(&self.begin_with(model, values, argument)?).await?,
            None => i64::MAX,
        };
        let mut going = match &self.call.begin {
            Some(argument) => first(&self.begin_with(model, values, argument)?).await? != 0.0,
            None => true,
        };
        let begin = self.call.carried.iter().map(|a| self.begin_with(model, values, a));
        let mut carried: Vec<State> = begin.collect::<Result<_, _>>()?;
        let mut rows: Vec<Rows> = (0..self.call.rows).map(|_| Rows::default()).collect();
        let mut made = 0i64;
        while going && made < most {
            let done = self.iterate(model, values, [made, most - made], &mut carried, &mut rows).await?;
            made = made.saturating_add(done.count);
            going = done.going;
        }
        let results = LoopResults {
            carried: carried.iter().map(State::made).collect(),
            rows: (made > 0).then(|| rows.iter().map(Rows::made).collect()),
        };
        let mut named = Vec::new();
        let stacked = rows.into_iter().filter(|_| made > 0).map(Rows::stacked);
        let all = carried.into_iter().map(Ok).chain(stacked).enumerate();
        for (i, state) in all {
            state?.named(format!("{}.{i}", self.call.results), &mut named);
        }
        values.add(named);
        Ok(results)
    }

    /// Runs one graph of iterations.
    async fn iterate(
        &self,
        model: &OnnxExecutable,
        values: &Values<'_>,
        [number, limit]: [i64; 2],
        carried: &mut [State],
        rows: &mut [Rows],
    ) -> Result<Done, Error> {
        let mut key = Key { state: carried.iter().map(State::made).collect(), ..Key::default() };
        let mut given = vec![
            (self.call.iteration_name(), Passed::Host(Tensor::scalar(number))),
            (self.call.limit_name(), Passed::Host(Tensor::scalar(limit))),
        ];
        for (k, state) in carried.iter().enumerate() {
            state.clone().named(self.call.carried_name(k), &mut given);
        }
        let mut inside = Values::inside(values, given);
        let subject = Subject::Loop(&self.call);
        // A loop may be inside another, so the future is on the heap.
        let whole = Box::pin(model.follow(subject, &self.plans, &mut key, &mut inside, &self.runs)).await?;
        let outputs = model.pass(&whole.executable, &inside)?;
        let outputs: HashMap<String, Passed> = outputs.into_iter().collect();
        let going = first(&state(&whole, &outputs, &Part::Tensor("going".into()), None)?).await? != 0.0;
        let several = match outputs.get("count") {
            Some(count) => Some(integer(&State::Tensor(count.clone(), ElementType::I64)).await?),
            None => None,
        };
        let mut parts = whole.outputs.iter().filter(|(name, _)| name != "going" && name != "count");
        for (old, (_, part)) in carried.iter_mut().zip(&mut parts) {
            *old = state(&whole, &outputs, part, Some(old))?;
        }
        for (rows, (_, part)) in rows.iter_mut().zip(parts) {
            let State::Tensor(row, element) = state(&whole, &outputs, part, None)? else {
                return Err(invalid("a row that a loop collects is no tensor"));
            };
            rows.add(&row.to_tensor().await?, element, several)?;
        }
        Ok(Done { going, count: several.unwrap_or(1) })
    }

    /// What an argument is when the loop begins.
    fn begin_with(
        &self,
        model: &OnnxExecutable,
        values: &Values<'_>,
        argument: &Argument,
    ) -> Result<State, Error> {
        Ok(match argument {
            Argument::Nothing => State::Nothing,
            Argument::Sequence(items, element) => {
                let items = items.iter().map(|item| self.begin_with(model, values, item));
                State::Sequence(items.collect::<Result<_, _>>()?, *element)
            }
            Argument::Tensor { source, element, .. } => {
                let tensor = match source {
                    ArgumentSource::Const(tensor) => Passed::Host(tensor.clone()),
                    ArgumentSource::Weight(name) => {
                        let weight = model.file.weight(name);
                        Passed::Host(weight.ok_or_else(|| invalid("a weight is gone"))?)
                    }
                    ArgumentSource::Run(name) => {
                        Passed::of(values.get(name).ok_or_else(|| model.unknown(name))?)?
                    }
                };
                State::Tensor(tensor, *element)
            }
        })
    }
}

/// What a graph of iterations came to.
struct Done {
    going: bool,
    count: i64,
}

/// A value that a graph of iterations makes; `old` is what it was before.
fn state(
    whole: &Whole,
    outputs: &HashMap<String, Passed>,
    part: &Part,
    old: Option<&State>,
) -> Result<State, Error> {
    Ok(match part {
        Part::Nothing => State::Nothing,
        Part::Sequence(parts) => {
            let items = parts.iter().map(|part| state(whole, outputs, part, None));
            let items: Vec<State> = items.collect::<Result<_, _>>()?;
            let known = items.iter().find_map(|item| match item {
                State::Tensor(_, element) => Some(*element),
                _ => None,
            });
            let before = match old {
                Some(State::Sequence(_, element)) => *element,
                _ => None,
            };
            State::Sequence(items, known.or(before))
        }
        Part::Tensor(name) => match (outputs.get(name), whole.element(name)) {
            (Some(tensor), Some(element)) => State::Tensor(tensor.clone(), element),
            _ => return Err(invalid(&format!("a loop's graph has no output `{name}`"))),
        },
    })
}

/// The rows that a loop has collected of one kind.
#[derive(Default)]
struct Rows {
    ty: Option<(TensorType, ElementType)>,
    bytes: Vec<u8>,
    count: usize,
}

impl Rows {
    /// Adds one row, or the first of several that are stacked.
    fn add(&mut self, row: &Tensor, element: ElementType, several: Option<i64>) -> Result<(), Error> {
        let ty = row.ty();
        let (count, dims) = match several {
            Some(count) => {
                (usize::try_from(count).unwrap_or(0), ty.shape.dims().get(1..).unwrap_or_default())
            }
            None => (1, ty.shape.dims()),
        };
        let one = TensorType::new(ty.dtype, Shape::new(dims)?);
        let (first, _) = *self.ty.get_or_insert((one, element));
        if first != one {
            return Err(invalid(&format!("a loop collects rows of {first} and of {one}")));
        }
        self.count += count;
        self.bytes.extend_from_slice(row.bytes().get(..count * one.bytes()).unwrap_or_default());
        Ok(())
    }

    fn made(&self) -> Made {
        match self.ty {
            Some((ty, element)) => match Shape::new(&[&[self.count], ty.shape.dims()].concat()) {
                Ok(shape) => Made::Tensor(TensorType::new(ty.dtype, shape), element),
                Err(_) => Made::Nothing,
            },
            None => Made::Nothing,
        }
    }

    fn stacked(self) -> Result<State, Error> {
        let Some((ty, element)) = self.ty else { return Ok(State::Nothing) };
        let shape = Shape::new(&[&[self.count], ty.shape.dims()].concat())?;
        let tensor = Tensor::from_data(shape, Data::from_bytes(ty.dtype, &self.bytes)?)?;
        Ok(State::Tensor(Passed::Host(tensor), element))
    }
}

/// The first element of a tensor.
async fn first(state: &State) -> Result<f64, Error> {
    let State::Tensor(tensor, _) = state else { return Err(invalid("a loop's condition is no tensor")) };
    let tensor = tensor.to_tensor().await?;
    tensor.to_f64().first().copied().ok_or_else(|| invalid("a loop's condition has no elements"))
}

/// The first element of a tensor of i64.
async fn integer(state: &State) -> Result<i64, Error> {
    let State::Tensor(tensor, _) = state else { return Err(invalid("a loop's bound is no tensor")) };
    let tensor = tensor.to_tensor().await?;
    let value = tensor.as_slice::<i64>().ok().and_then(|v| v.first().copied());
    value.ok_or_else(|| invalid("a loop's bound is no i64"))
}

fn invalid(problem: &str) -> Error {
    Error::Onnx(onnx::Error::Invalid { location: "loop".into(), problem: problem.into() })
}
