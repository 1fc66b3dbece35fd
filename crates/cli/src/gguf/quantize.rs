//! `olivine quantize`: a GGUF file with other types.

use std::path::PathBuf;

use clap::Args;
use olivine_gguf::{Preset, quantize};
use serde_json::json;

use super::open;
use crate::Global;
use crate::answer::{Answer, Failure};
use crate::progress::Progress;
use crate::timing::{bytes, ms, timed};

#[derive(Args)]
pub(crate) struct QuantizeArgs {
    /// The model: a GGUF file, or any part of one.
    model: PathBuf,
    /// The file to write.
    out: PathBuf,
    /// Types of the weights, as llama.cpp names them: f16, bf16, q8_0, q6_k, q5_k_m, q4_k_m, q4_0, iq4_xs, mxfp4, ….
    #[arg(long = "type", value_name = "PRESET", value_parser = str::parse::<Preset>)]
    preset: Preset,
    /// Replace the file if it is there.
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(global: &Global, args: &QuantizeArgs) -> Result<Answer, Failure> {
    if args.out.symlink_metadata().is_ok() && !args.force {
        return Err(
            Failure::new(format!("`{}` is there already", args.out.display())).hint("--force replaces it")
        );
    }
    let file = open(&args.model)?;
    let mut progress = Progress::new(file.tensors().len(), global.quiet);
    let (time, done) = timed(|| {
        quantize(&file, args.preset, &args.out, |tensor, kind| {
            progress.begin(&format!("{} {} to {kind}", tensor.name, tensor.kind));
            progress.step();
        })
    });
    drop(progress);
    done.map_err(|e| {
        Failure::new(e.to_string()).context(format!("cannot quantise `{}`", args.model.display()))
    })?;
    let out = open(&args.out)?;
    let stored = |file: &olivine_gguf::Gguf| file.tensors().iter().map(|t| t.byte_size()).sum::<usize>();
    let (before, after) = (stored(&file), stored(&out));
    let text = format!(
        "{}: {} tensors, {} as {} instead of {}, in {:.1} s\n",
        args.out.display(),
        out.tensors().len(),
        bytes(after),
        args.preset,
        bytes(before),
        time.as_secs_f64()
    );
    let json = json!({ "out": args.out, "type": args.preset.name(), "bytes": after, "bytes_before": before, "ms": ms(time) });
    Ok(Answer::new(text, json))
}
