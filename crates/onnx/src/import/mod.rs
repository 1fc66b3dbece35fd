//! From a model and bindings to a graph: the walk over nodes.
//!
//! ```text
//!   mod.rs    bindings in, outcome out
//!   walk.rs   graphs under construction, names, one node after another
//!   fixed.rs  values that are known while the graph is built
//!   guess.rs  conditions that are taken for what they were last
//!   node.rs   what an operator's import sees of its node
//!   value.rs  what a name stands for
//!   limits.rs what an import may take
//! ```

mod fixed;
mod guess;
mod limits;
mod node;
mod value;
mod walk;

use olivine_ir::{Evaluate, Graph, Tensor, TensorType};

pub(crate) use node::NodeContext;
pub(crate) use value::{Held, Value};
pub(crate) use walk::{Captured, Walk, needed};

use crate::error::Error;
use crate::model::Model;

/// What is known of a model's inputs before a run.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// Inputs by name.
    pub inputs: Vec<(String, Bound)>,
    /// Results of earlier stages, in the order in which they were asked for.
    pub known: Vec<Tensor>,
    /// Names of values inside the model that are to be outputs too.
    pub watched: Vec<String>,
}

/// What is known of an input.
#[derive(Clone, Debug)]
pub enum Bound {
    /// A tensor of this type; its value where shapes depend on it.
    Tensor {
        /// The dtype that holds its elements ([`crate::Element::dtype`]), and its sizes.
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
    /// Shapes depend on the one output of this graph, which joins [`Bindings::known`].
    Stage(Graph),
}

/// A model as a graph. Its params are the model's weights, by name.
#[derive(Debug)]
pub struct Specialised {
    /// The graph.
    pub graph: Graph,
    /// The model's outputs by name, in terms of the graph's.
    pub outputs: Vec<(String, Part)>,
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
    /// A value that decides a shape, as a graph's only output.
    Stage(Box<Graph>),
    /// A value inside a body that decides a shape and differs from trip to trip: the body must be written out.
    PerTrip,
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
    let mut walk = Walk::new(model, bindings, evaluator);
    match walk.whole() {
        Ok(outputs) => Ok(Outcome::Whole(Specialised { graph: walk.finish(), outputs })),
        Err(Stop::Error(error)) => Err(error),
        Err(Stop::Inputs(names)) => Ok(Outcome::NeedsInputs(names)),
        Err(Stop::Stage(graph)) => Ok(Outcome::Stage(*graph)),
        Err(Stop::PerTrip) => Err(Error::invalid(
            format!("graph `{}`", model.name()),
            "a shape depends on a value that changes",
        )),
    }
}
