//! The table of cases, run case by case by a page.

use js_sys::Object;
use olivine_cases::{Case, Outcome};
use wasm_bindgen::prelude::*;

use crate::Session;
use crate::tensors::of_fields;

/// The table of cases that every backend must pass.
#[wasm_bindgen]
pub struct Cases(Vec<Case>);

#[wasm_bindgen]
impl Cases {
    /// All of them.
    #[wasm_bindgen(constructor)]
    #[allow(clippy::new_without_default, reason = "JavaScript has no defaults")]
    pub fn new() -> Cases {
        Cases(olivine_cases::table())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The name of one.
    pub fn name(&self, number: usize) -> String {
        self.0.get(number).map_or_else(String::new, |case| case.name.clone())
    }

    /// Runs one on a session's device: its name, `passed`, `wrong` or `refused`, and why.
    pub async fn run(&self, number: usize, session: &Session) -> Result<Object, JsError> {
        let Some(case) = self.0.get(number) else { return Err(JsError::new("there is no such case")) };
        let outcome = olivine_cases::check_async(case, async |graph, inputs, params| {
            let run = async {
                let options = olivine::CompileOptions::new();
                let executable = session.0.compile_async(graph, &options).await?;
                executable.set_params(params.iter().cloned())?;
                let inputs = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
                Ok(executable.run_async(inputs).await?.into_tensors())
            };
            run.await.map_err(|e: olivine::Error| e.to_string())
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
