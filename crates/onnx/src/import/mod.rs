//! From a model and bindings to a graph: the walk over nodes.
//!
//! ```text
//!   mod.rs    bindings in, outcome out
//!   inputs.rs a run's inputs beside what the model declares
//!   walk.rs   graphs under construction, names, one node after another
//!   fixed.rs  values that are known while the graph is built
//!   sizes.rs  lists of sizes that stay expressions, ratio.rs their arithmetic
//!   stage.rs  graphs that compute some of the values, and what they leave for later graphs
//!   loops.rs  loops that the caller runs
//!   iterations.rs  graphs of their iterations
//!   node.rs   what an operator's import sees of its node
//!   stored.rs weights that stay packed
//!   value.rs  what a name stands for
//!   names.rs  names that nodes and the graphs inside them use
//!   passed_over.rs  imports of what fits some sizes, where not all nodes do
//!   limits.rs what an import may take
//! ```

mod fixed;
mod inputs;
mod iterations;
mod limits;
mod loops;
mod names;
mod node;
mod passed_over;
mod ratio;
mod sizes;
mod stage;
mod stored;
mod value;
mod walk;

use olivine_ir::{Evaluate, Graph, Tensor, TensorType, ValueId};

pub(crate) use iterations::copied;
pub(crate) use loops::unchanged;
pub use loops::{Argument, ArgumentSource, LoopCall, LoopResults, Made};
pub(crate) use names::needed;
pub(crate) use node::NodeContext;
pub(crate) use stored::Dequantised;
pub(crate) use value::{TensorRef, Value};
pub(crate) use walk::{BodyInput, Captured, SMALL_WEIGHT, Walk};

use crate::ElementType;
use crate::error::Error;
use crate::model::Model;

/// What is known of a model's inputs before a run.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// Inputs by name.
    pub inputs: Vec<(String, Bound)>,
    /// Results of earlier stages and loops, in the order in which they were asked for.
    pub known: Vec<Known>,
    /// Values that earlier stages have left, of all of them: later graphs take them as inputs.
    pub stage_values: Vec<ValueId>,
    /// Names of values inside the model that are to be outputs too.
    pub watched: Vec<String>,
    /// The most iterations that one graph may hold of a loop that its data end: a GPU records every one of them. `None`
    /// where the device runs such a loop to its end.
    pub batch: Option<usize>,
    /// Passes over nodes that do not fit the inputs: their results are of the types that the model declares, with this size
    /// where one is open. For looking at what a model does; such a graph is not to be run. `None` where a node that does
    /// not fit is an error.
    pub pass_over: Option<usize>,
}

/// What became known after a graph was asked for.
#[derive(Clone, Debug)]
pub enum Known {
    /// The output `value` of a stage.
    Value(Tensor),
    /// What a loop ended with.
    Loop(LoopResults),
}

/// What is known of an input.
#[derive(Clone, Debug)]
pub enum Bound {
    /// A tensor of this type; its value where shapes depend on it.
    Tensor {
        /// The dtype that holds its elements ([`crate::ElementType::dtype`]), and its sizes.
        ty: TensorType,
        /// Its elements, if shapes depend on them.
        value: Option<Tensor>,
    },
    /// A sequence; element `i` is the graph's input `name[i]`.
    Sequence(Vec<Bound>),
    /// An optional value that is not there.
    Nothing,
}

/// What bindings lead to.
#[derive(Debug)]
pub enum Outcome {
    /// The whole model as a graph.
    Whole(Specialised),
    /// Shapes depend on the values of these inputs, which the bindings do not have.
    NeedsInputs(Vec<String>),
    /// Shapes depend on the output `value` of a graph, which joins [`Bindings::known`].
    Stage(Stage),
    /// A loop is to be run by the caller; its results join [`Bindings::known`].
    Loop(Box<LoopCall>),
}

/// A graph that runs before the rest of a model.
#[derive(Debug)]
pub struct Stage {
    /// The graph. Its outputs other than `value` are inputs of later graphs, by name.
    pub graph: Graph,
    /// What those outputs are: they join [`Bindings::stage_values`].
    pub stage_values: Vec<ValueId>,
}

/// A model as a graph. Its params are the model's weights, by name.
#[derive(Debug)]
pub struct Specialised {
    /// The graph.
    pub graph: Graph,
    /// The model's outputs by name, in terms of the graph's.
    pub outputs: Vec<(String, Part)>,
    /// The element types of the graph's outputs by name.
    pub elements: Vec<(String, ElementType)>,
}

/// An output of a model in terms of the graph's outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The graph's output of this name.
    Tensor(String),
    /// A sequence.
    Sequence(Vec<Part>),
    /// An optional value that is not there.
    Nothing,
}

/// Why the walk stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The model is wrong.
    Error(Error),
    /// Inputs whose values decide a shape.
    Inputs(Vec<String>),
    /// A graph whose output `value` decides a shape.
    Stage(Box<Stage>),
    /// A loop for the caller to run.
    Loop(Box<LoopCall>),
    /// A value inside a body that decides a shape and differs between iterations: the caller must run the loop.
    PerIteration,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Error(error)
    }
}

/// What imports of operators return.
pub(crate) type Answer<T> = Result<T, Stop>;

/// Imports a model.
pub(crate) fn import(model: &Model, bindings: &Bindings, evaluator: &dyn Evaluate) -> Result<Outcome, Error> {
    let mut walk = Walk::new(model, bindings, evaluator, 0);
    let outputs = walk.whole().and_then(|outputs| walk.with_passed_over(outputs));
    outcome(walk, outputs)
}

/// Imports the iterations of a loop; `state` says what its carried values are now.
pub(crate) fn import_iterations(
    model: &Model,
    call: &LoopCall,
    state: &[Made],
    bindings: &Bindings,
    evaluator: &dyn Evaluate,
) -> Result<Outcome, Error> {
    let mut walk = Walk::new(model, bindings, evaluator, call.level());
    let outputs = walk.iterations(call, state).and_then(|outputs| walk.with_passed_over(outputs));
    outcome(walk, outputs)
}

fn outcome(walk: Walk<'_>, outputs: Answer<Vec<(String, Part)>>) -> Result<Outcome, Error> {
    let name = walk.model.name();
    let varies = || Error::invalid(format!("graph `{name}`"), "a shape depends on a value that changes");
    let whole = match outputs {
        Ok(outputs) => walk.finish(outputs),
        Err(stop) => Err(stop),
    };
    match whole {
        Ok(whole) => Ok(Outcome::Whole(whole)),
        Err(Stop::Error(error)) => Err(error),
        Err(Stop::Inputs(names)) => Ok(Outcome::NeedsInputs(names)),
        Err(Stop::Stage(stage)) => Ok(Outcome::Stage(*stage)),
        Err(Stop::Loop(call)) => Ok(Outcome::Loop(call)),
        Err(Stop::PerIteration) => Err(varies()),
    }
}
