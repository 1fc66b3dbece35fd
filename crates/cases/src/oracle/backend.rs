//! The oracle as a backend: its own results, stored in the graph's dtypes.

use olivine_ir::{Graph, Tensor};

use crate::check::Backend;
use crate::fill::to_tensor;
use crate::oracle::{Between, Value, run};

/// Runs graphs by the oracle, storing every value in its dtype as a plain executor would.
pub struct Oracle;

impl Backend for Oracle {
    fn name(&self) -> &str {
        "oracle"
    }

    fn run(
        &self,
        graph: &Graph,
        inputs: &[(String, Tensor)],
        params: &[(String, Tensor)],
    ) -> Result<Vec<Tensor>, String> {
        let feeds: Vec<(String, Value)> =
            inputs.iter().chain(params).map(|(n, t)| (n.clone(), Value::of(t))).collect();
        run(graph, &feeds, Between::Rounded)?.iter().map(to_tensor).collect()
    }
}
