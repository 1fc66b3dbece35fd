//! `olivine bench large`: a tensor, operations and a model past what 32-bit offsets reach, each checked against the host.

mod operations;
mod tensor;
mod weights;

use clap::Args;
use serde_json::json;

use crate::Global;
use crate::answer::{Answer, Failure};

#[derive(Args)]
pub(crate) struct LargeArgs {
    /// Size of the one large tensor; 0 leaves it out.
    #[arg(long, default_value_t = 6144, value_name = "MIB")]
    tensor_mib: usize,
    /// Elements of the tensor that operations are checked on, more than 31 bits count; 0 leaves them out.
    #[arg(long, default_value_t = (1 << 31) + 12_288, value_name = "N")]
    elements: usize,
    /// Weight matrices of the model; 0 leaves it out.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4096))]
    params: u32,
    /// Rows and columns of each; 16384 are 1 GiB.
    #[arg(long, default_value_t = 16384, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    width: u32,
}

pub(crate) fn run(global: &Global, args: &LargeArgs) -> Result<Answer, Failure> {
    let session = global.session()?;
    let mut text = format!("{} · {}\n\n", session.device(), session.device_name());
    let (mut tensor, mut operations, mut model) = (None, None, None);
    if args.tensor_mib > 0 {
        let found = tensor::check(&session, args.tensor_mib)?;
        text += &found.text();
        tensor = Some(found.json());
    }
    if args.elements > 0 {
        let found = operations::check(&session, args.elements)?;
        text += &format!("operations on {} elements:\n", args.elements);
        found.iter().for_each(|checked| text += &checked.text());
        operations = Some(found.iter().map(operations::Checked::json).collect::<Vec<_>>());
    }
    if args.params > 0 {
        let found = weights::check(global, &session, args.params as usize, args.width as usize)?;
        text += &found.text();
        model = Some(found.json());
    }
    let json = json!({
        "device": session.device().to_string(), "name": session.device_name(), "tensor": tensor,
        "operations": operations, "model": model,
    });
    Ok(Answer::new(text, json))
}
