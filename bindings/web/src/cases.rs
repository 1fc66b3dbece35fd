//! The table of cases, run case by case by a page.

use js_sys::Object;
use olivine::ir::{Graph, Tensor};
use olivine_cases::{Case, Denormals, Outcome, may_flush};
use wasm_bindgen::prelude::*;

use crate::tensors::of_fields;
use crate::{Session, thrown};

/// The table of cases that every backend must pass.
#[wasm_bindgen]
pub struct Cases {
    cases: Vec<Case>,
    denormals: Denormals,
}

/// The outputs of a graph in order.
async fn run(
    session: &olivine::Session,
    graph: &Graph,
    inputs: &[(String, Tensor)],
    params: &[(String, Tensor)],
) -> Result<Vec<Tensor>, olivine::Error> {
    let executable = session.compile_async(graph, &olivine::CompileOptions::new()).await?;
    executable.set_params(params.iter().cloned())?;
    let inputs = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
    Ok(executable.run_async(inputs).await?.into_tensors())
}

#[wasm_bindgen]
impl Cases {
    /// All of them.
    #[wasm_bindgen(constructor)]
    #[allow(clippy::new_without_default, reason = "JavaScript has no defaults")]
    pub fn new() -> Cases {
        Cases { cases: olivine_cases::table(), denormals: Denormals::Kept }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.cases.len()
    }

    /// The name of one.
    pub fn name(&self, number: usize) -> String {
        self.cases.get(number).map_or_else(String::new, |case| case.name.clone())
    }

    /// Finds out what a session's device does with denormal numbers, which WGSL lets it flush: `kept` or `flushed`.
    pub async fn denormals(&mut self, session: &Session) -> Result<String, JsError> {
        if may_flush(&session.0) {
            let (graph, inputs) = Denormals::trial().map_err(thrown)?;
            let outputs = run(&session.0, &graph, &inputs, &[]).await.map_err(thrown)?;
            self.denormals = Denormals::found(&outputs);
        }
        Ok(format!("{:?}", self.denormals).to_lowercase())
    }

    /// Runs one on a session's device: its name, `passed`, `wrong` or `refused`, and why.
    pub async fn run(&self, number: usize, session: &Session) -> Result<Object, JsError> {
        let Some(case) = self.cases.get(number) else {
            return Err(JsError::new("there is no such case"));
        };
        let outcome = olivine_cases::check_async(case, self.denormals, async |graph, inputs, params| {
            run(&session.0, graph, inputs, params).await.map_err(|e| e.to_string())
        });
        let outcome = outcome.await;
        let kind = match &outcome {
            Outcome::Pass { .. } => "passed",
            Outcome::Refused(_) => "refused",
            _ => "wrong",
        };
        of_fields(&[
            ("name", JsValue::from(case.name.as_str())),
            ("outcome", JsValue::from(kind)),
            ("words", JsValue::from(outcome.to_string())),
        ])
    }
}
