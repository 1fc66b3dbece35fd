//! Tensors on their way from one graph of a run to the next.

use olivine_ir::{Tensor, TensorType};

use super::{OnnxExecutable, Visit};
use crate::Error;
use crate::engine::DeviceTensor;
use crate::executable::{GraphExecutable, Input, NamedInputs};

/// A result of a graph that another graph takes: on the device, which for the CPU is the host.
#[derive(Clone)]
pub(crate) enum Passed {
    Host(Tensor),
    Device(DeviceTensor),
}

impl Passed {
    pub(super) fn ty(&self) -> TensorType {
        self.input().ty()
    }

    pub(crate) fn input(&self) -> Input<'_> {
        match self {
            Passed::Host(tensor) => Input::Host(tensor.view()),
            Passed::Device(tensor) => Input::Device(tensor),
        }
    }

    /// Its elements on the host.
    pub(super) async fn to_tensor(&self) -> Result<Tensor, Error> {
        match self {
            Passed::Host(tensor) => Ok(tensor.clone()),
            Passed::Device(tensor) => tensor.fetched().await,
        }
    }

    /// An input of a run, held for longer than the caller lends it.
    pub(super) fn of(input: Input<'_>) -> Result<Self, Error> {
        Ok(match input {
            Input::Host(view) => Passed::Host(view.to_tensor()?),
            Input::Device(tensor) => Passed::Device(tensor.clone()),
        })
    }
}

/// The values of a run by name: what it was given, and what its graphs have left for each other.
pub(super) struct Values<'a> {
    /// Those of the run that this one is inside of.
    outer: Option<&'a Values<'a>>,
    given: &'a [(&'a str, Input<'a>)],
    passed: Vec<(String, Passed)>,
    visit: Option<Visit<'a>>,
}

impl<'a> Values<'a> {
    pub(super) fn of_run(given: &'a [(&'a str, Input<'a>)]) -> Self {
        Values { outer: None, given, passed: Vec::new(), visit: None }
    }

    /// Calls `visit` with every graph that runs on these values, before it does.
    pub(super) fn visited_by(self, visit: Option<Visit<'a>>) -> Self {
        Values { visit, ..self }
    }

    /// Values of a loop's iteration, which sees those around the loop.
    pub(super) fn inside(outer: &'a Values<'a>, passed: Vec<(String, Passed)>) -> Self {
        Values { outer: Some(outer), given: &[], passed, visit: outer.visit }
    }

    pub(super) fn add(&mut self, passed: impl IntoIterator<Item = (String, Passed)>) {
        self.passed.extend(passed);
    }

    pub(super) fn get(&self, name: &str) -> Option<Input<'_>> {
        let passed = || self.passed.iter().find(|(n, _)| n == name).map(|(_, v)| v.input());
        let given = || self.given.iter().find(|(n, _)| *n == name).map(|(_, input)| *input);
        passed().or_else(given).or_else(|| self.outer?.get(name))
    }

    /// Those that a graph takes.
    pub(super) fn taken<'e>(&'e self, executable: &'e GraphExecutable) -> NamedInputs<'e> {
        let inputs = executable.graph().inputs();
        inputs.filter_map(|(name, _)| Some((name, self.get(name)?))).collect()
    }

    /// Whether a graph of this run has left a value, apart from those of the run around it.
    pub(super) fn has_passed(&self, name: &str) -> bool {
        self.passed.iter().any(|(passed, _)| passed == name)
    }

    /// What graphs have left.
    pub(super) fn into_passed(self) -> Vec<(String, Passed)> {
        self.passed
    }
}

impl OnnxExecutable {
    /// Whether graphs run on this machine's processor.
    pub(super) fn is_on_host(&self) -> bool {
        self.session.inner.engine.caps().is_none()
    }

    /// Runs a graph whose results other graphs take.
    pub(super) fn pass(
        &self,
        executable: &GraphExecutable,
        values: &Values<'_>,
    ) -> Result<Vec<(String, Passed)>, Error> {
        let inputs = values.taken(executable);
        if let Some(visit) = values.visit {
            visit(executable, inputs.clone())?;
        }
        if self.is_on_host() {
            let outputs = executable.run(inputs)?;
            return Ok(outputs.into_iter().map(|(name, tensor)| (name, Passed::Host(tensor))).collect());
        }
        let outputs = executable.run_resident(inputs)?;
        Ok(outputs.into_iter().map(|(name, tensor)| (name, Passed::Device(tensor))).collect())
    }
}
