//! `olivine perplexity`: how well a model predicts a text.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::{CacheName, Ids, ModelArgs};
use crate::Global;
use crate::answer::{Answer, Failure};
use crate::timing::{ms, timed};

/// Bytes of a text at most.
const LARGEST_TEXT: u64 = 1 << 30;

#[derive(Args)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text; a file of token ids with --as-ids.
    text: PathBuf,
    /// The file has token ids, with spaces or commas between them.
    #[arg(long)]
    as_ids: bool,
    /// Tokens that are computed together; the second half of each window is scored.
    #[arg(long, value_name = "N", default_value_t = 512)]
    window: usize,
    /// The element type of keys and values.
    #[arg(long, value_enum, default_value = "f32")]
    cache_type: CacheName,
}

pub(crate) fn run(global: &Global, args: &PerplexityArgs) -> Result<Answer, Failure> {
    let model = args.model.load()?;
    let text = olivine_files::read_text(&args.text, LARGEST_TEXT)
        .map_err(|e| Failure::new(e.to_string()).context(format!("cannot read `{}`", args.text.display())))?;
    let (tokens, first) = if args.as_ids {
        (text.parse::<Ids>().map_err(Failure::new)?.0, None)
    } else {
        let tokenizer = args.model.tokenizer(&model)?;
        let special = tokenizer.special();
        let first = special.bos.filter(|_| special.add_bos).map(i64::from);
        (super::text::encode(&tokenizer, &text, (true, false))?, first)
    };
    let scorer = model.scorer_with_cache(&global.session()?, args.cache_type.into())?;
    let (time, found) = timed(|| scorer.perplexity(&tokens, args.window, first));
    let found = found?;
    let text = format!(
        "perplexity {:.4} (mean {:.5} ± {:.5}) of {} tokens, in {:.1} s\n",
        found.value(),
        found.mean,
        found.error,
        found.tokens,
        time.as_secs_f64()
    );
    let json = json!({
        "perplexity": found.value(), "mean": found.mean, "error": found.error, "tokens": found.tokens, "ms": ms(time),
    });
    Ok(Answer::new(text, json))
}
