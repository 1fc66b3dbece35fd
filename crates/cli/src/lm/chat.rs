//! `olivine chat`: a conversation, a line of input for each turn.

use std::io::{BufRead as _, IsTerminal as _};

use clap::Args;
use olivine_lm::{Request, Share};
use olivine_tokenizer::{ChatOptions, ChatTemplate, Message, Tokenizer};
use serde_json::json;

use super::generate::Shown;
use super::{EngineArgs, Generated, ModelArgs, SamplingArgs, complete, reason, text};
use crate::Global;
use crate::answer::{Answer, Failure};
use crate::timing::short;

#[derive(Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// The system message, which precedes the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Tokens of an answer at most.
    #[arg(short, long, value_name = "N", default_value_t = 1024)]
    number: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
}

fn failed(e: olivine_tokenizer::Error) -> Failure {
    Failure::new(e.to_string())
}

/// The tokens of a conversation, to which the model answers.
fn prompt(template: &ChatTemplate, tokenizer: &Tokenizer, messages: &[Message]) -> Result<Vec<i64>, Failure> {
    let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
    let text = template.render(messages, &options).map_err(failed)?;
    let begins = tokenizer.special().bos.and_then(|bos| tokenizer.token_text(bos).ok());
    let has_bos = begins.is_some_and(|bos| text.starts_with(bos));
    text::encode(tokenizer, &text, (!has_bos, true))
}

pub(crate) fn run(global: &Global, args: &ChatArgs) -> Result<Answer, Failure> {
    let model = args.model.load()?;
    let tokenizer = args.model.tokenizer(&model)?;
    let template = model.chat_template(&tokenizer)?;
    let session = global.decoding_session()?;
    // What was said before is not computed again.
    let mut engine = args.engine.engine(&model, &session, 1, Share::Pages)?;
    let first: Vec<Message> = args.system.iter().map(|system| Message::new("system", system)).collect();
    let mut messages = first.clone();
    let mut turns = Vec::new();
    let asks = std::io::stdin().is_terminal() && !global.json;
    loop {
        if asks {
            eprint!("> ");
        }
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        if read.map_err(|e| Failure::new(format!("cannot read a line: {e}")))? == 0 {
            break;
        }
        match line.trim() {
            "" => continue,
            "/exit" => break,
            "/clear" => {
                messages = first.clone();
                continue;
            }
            said => messages.push(Message::new("user", said)),
        }
        let request = Request::new(prompt(&template, &tokenizer, &messages)?, args.number)
            .stop(text::ends(&tokenizer))
            .sampling(args.sampling.sampling());
        let mut shown = Shown::new(Some(&tokenizer), global.json);
        let answer: Generated = complete(&mut engine, request, |token| shown.add(token))?;
        shown.end()?;
        if asks && !global.quiet {
            eprintln!(
                "({} tokens, {} tokens/s, {})",
                answer.tokens.len(),
                short(answer.rate()),
                reason(answer.finish)
            );
        }
        messages.push(Message::new("assistant", &shown.text));
        turns.push(json!({
            "user": line.trim(), "assistant": shown.text, "finish": reason(answer.finish),
            "tokens": answer.tokens.len(), "tokens_per_s": answer.rate(),
        }));
    }
    Ok(Answer::new("", json!({ "turns": turns })))
}
