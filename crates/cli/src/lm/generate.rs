//! `olivine generate`: continues a prompt, token by token.

use std::io::Write as _;

use clap::Args;
use olivine_lm::Request;
use serde_json::json;

use super::{Ids, LmArgs, SamplingArgs, complete, reason};
use crate::Global;
use crate::answer::{Answer, Failure};
use crate::timing::{ms, short};

#[derive(Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    lm: LmArgs,
    /// The prompt as token ids, with commas between them.
    #[arg(long, value_name = "IDS")]
    ids: Ids,
    /// How many tokens to generate at most.
    #[arg(short, long, value_name = "N", default_value_t = 128)]
    number: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Token ids that end the text, with commas between them.
    #[arg(long, value_name = "IDS", default_value = "")]
    stop_ids: Ids,
}

pub(crate) fn run(global: &Global, args: &GenerateArgs) -> Result<Answer, Failure> {
    let model = args.lm.load()?;
    let session = args.lm.session(global)?;
    let mut engine = args.lm.engine(&model, &session, 1)?;
    let request = Request::new(args.ids.0.clone(), args.number)
        .stop(args.stop_ids.0.iter().copied())
        .sampling(args.sampling.sampling());
    let mut written = 0;
    let generated = complete(&mut engine, request, |token| {
        if global.json {
            return Ok(());
        }
        let space = if written == 0 { "" } else { " " };
        written += 1;
        let mut out = std::io::stdout().lock();
        let done = write!(out, "{space}{token}").and_then(|()| out.flush());
        done.map_err(|e| Failure::new(format!("cannot write: {e}")))
    })?;
    let count = generated.tokens.len();
    if !global.json && !global.quiet {
        eprintln!(
            "\n{} tokens of prompt in {:.0} ms, {count} generated, {} tokens/s after the first ({})",
            args.ids.0.len(),
            ms(generated.first),
            short(generated.rate()),
            reason(generated.finish)
        );
    }
    let json = json!({
        "prompt_tokens": args.ids.0.len(),
        "tokens": generated.tokens,
        "finish": reason(generated.finish),
        "first_token_ms": ms(generated.first),
        "tokens_per_s": generated.rate(),
    });
    Ok(Answer::new("", json))
}
