//! `olivine generate`: continues a prompt, token by token.

use std::io::Write as _;

use clap::Args;
use olivine_lm::{Request, Share};
use olivine_tokenizer::Tokenizer;
use serde_json::json;

use super::text::FormatArgs;
use super::{EngineArgs, Ids, ModelArgs, SamplingArgs, complete, reason, text};
use crate::Global;
use crate::answer::{Answer, Failure};
use crate::timing::{ms, short};

#[derive(Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// The prompt.
    #[arg(short, long, value_name = "TEXT", required_unless_present = "ids")]
    prompt: Option<String>,
    /// The prompt as token ids, with commas between them; ids are printed too.
    #[arg(long, value_name = "IDS", conflicts_with_all = ["prompt", "format", "json_schema"])]
    ids: Option<Ids>,
    /// How many tokens to generate at most.
    #[arg(short, long, value_name = "N", default_value_t = 128)]
    number: usize,
    /// Take control tokens that are written in the prompt for what they are.
    #[arg(long)]
    special: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Further token ids that end the text, with commas between them.
    #[arg(long, value_name = "IDS", default_value = "")]
    stop_ids: Ids,
    /// Go on after tokens that end a text.
    #[arg(long)]
    ignore_end: bool,
    #[command(flatten)]
    format: FormatArgs,
}

pub(crate) fn run(global: &Global, args: &GenerateArgs) -> Result<Answer, Failure> {
    let model = args.model.load()?;
    let tokenizer = args.prompt.as_ref().map(|_| args.model.tokenizer(&model)).transpose()?;
    let prompt = match (&args.prompt, &tokenizer, &args.ids) {
        (Some(prompt), Some(tokenizer), _) => text::encode(tokenizer, prompt, (true, args.special))?,
        (_, _, Some(ids)) => ids.0.clone(),
        _ => return Err(Failure::new("there is no prompt").hint("-p TEXT, or --ids IDS")),
    };
    let session = global.decoding_session()?;
    let mut engine = args.engine.engine(&model, &session, 1, Share::Nothing)?;
    let ends: Vec<i64> = tokenizer.iter().filter(|_| !args.ignore_end).flat_map(text::ends).collect();
    let count = prompt.len();
    let mut request = Request::new(prompt, args.number)
        .stop(ends.into_iter().chain(args.stop_ids.0.iter().copied()))
        .sampling(args.sampling.sampling());
    if let Some(tokenizer) = &tokenizer {
        request.constraint = args.format.constraint(tokenizer)?;
    }
    let mut shown = Shown::new(tokenizer.as_ref(), global.json);
    let generated = complete(&mut engine, request, |token| shown.add(token))?;
    shown.end()?;
    if !global.json && !global.quiet {
        eprintln!(
            "{count} tokens of prompt in {:.0} ms, {} generated, {} tokens/s after the first ({})",
            ms(generated.first),
            generated.tokens.len(),
            short(generated.rate()),
            reason(generated.finish)
        );
    }
    let json = json!({
        "prompt_tokens": count,
        "tokens": generated.tokens,
        "text": tokenizer.is_some().then_some(&shown.text),
        "finish": reason(generated.finish),
        "first_token_ms": ms(generated.first),
        "tokens_per_s": generated.rate(),
    });
    Ok(Answer::new("", json))
}

/// What was generated so far: text, or ids without a tokenizer.
pub(crate) struct Shown<'a> {
    stream: Option<olivine_tokenizer::TokenStream<'a>>,
    /// Whether it is for a JSON document instead of the terminal.
    silent: bool,
    pub(crate) text: String,
}

impl<'a> Shown<'a> {
    pub(crate) fn new(tokenizer: Option<&'a Tokenizer>, silent: bool) -> Self {
        Shown {
            stream: tokenizer.map(|tokenizer| tokenizer.stream().continued()),
            silent,
            text: String::new(),
        }
    }

    /// Prints a token.
    pub(crate) fn add(&mut self, token: i64) -> Result<(), Failure> {
        let piece = match &mut self.stream {
            Some(stream) => text::push(stream, token),
            None if self.text.is_empty() => token.to_string(),
            None => format!(" {token}"),
        };
        self.put(&piece)
    }

    /// Prints what waits for more, and ends the line.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        let rest = self.stream.as_mut().map(|stream| stream.finish()).unwrap_or_default();
        self.put(&rest)?;
        if self.silent { Ok(()) } else { write("\n") }
    }

    fn put(&mut self, piece: &str) -> Result<(), Failure> {
        self.text += piece;
        if self.silent { Ok(()) } else { write(piece) }
    }
}

fn write(piece: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let done = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
    done.map_err(|e| Failure::new(format!("cannot write: {e}")))
}
