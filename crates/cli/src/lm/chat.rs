//! `olivine chat`: a conversation, a line of input for each turn.

use std::io::{BufRead, IsTerminal as _};

use clap::Args;
use olivine_lm::{Request, Share};
use olivine_tokenizer::{ChatOptions, ChatTemplate, Message, Tokenizer};
use serde_json::json;

use super::generate::Shown;
use super::text::FormatArgs;
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
    #[command(flatten)]
    format: FormatArgs,
}

fn failed(e: olivine_tokenizer::Error) -> Failure {
    Failure::new(e.to_string())
}

/// What was said.
struct Conversation<'a> {
    template: &'a ChatTemplate,
    tokenizer: &'a Tokenizer,
    /// The system message, if there is one, and then turns by user and model.
    messages: Vec<Message>,
    /// Messages that stay at the beginning.
    system: usize,
}

impl Conversation<'_> {
    /// The tokens of the conversation, to which the model answers.
    fn prompt(&self) -> Result<Vec<i64>, Failure> {
        let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
        let text = self.template.render(&self.messages, &options).map_err(failed)?;
        let begins = self.tokenizer.special().bos.and_then(|bos| self.tokenizer.token_text(bos).ok());
        let has_bos = begins.is_some_and(|bos| text.starts_with(bos));
        text::encode(self.tokenizer, &text, (!has_bos, true))
    }

    /// [`Conversation::prompt`] in so many tokens: the oldest turns are left out until it fits. Returns how many those were.
    fn fitting_prompt(&mut self, most: usize) -> Result<(Vec<i64>, usize), Failure> {
        let mut left_out = 0;
        loop {
            let prompt = self.prompt()?;
            if prompt.len() <= most {
                return Ok((prompt, left_out));
            }
            // What was said last stays.
            if self.messages.len() < self.system + 3 {
                let count = prompt.len();
                return Err(Failure::new(format!(
                    "the message has {count} tokens, and the context has room for {most}"
                ))
                .hint("--context N, or a shorter message"));
            }
            self.messages.drain(self.system..self.system + 2);
            left_out += 1;
        }
    }
}

/// Reads a line; `None` at the end, and what is wrong with one that is no text.
fn read_line(input: &mut impl BufRead) -> Result<Option<Result<String, String>>, Failure> {
    let mut line = Vec::new();
    let read = input.read_until(b'\n', &mut line);
    if read.map_err(|e| Failure::new(format!("cannot read a line: {e}")))? == 0 {
        return Ok(None);
    }
    Ok(Some(String::from_utf8(line).map_err(|e| format!("the line is not UTF-8: {}", e.utf8_error()))))
}

pub(crate) fn run(global: &Global, args: &ChatArgs) -> Result<Answer, Failure> {
    let model = args.model.load()?;
    let tokenizer = args.model.tokenizer(&model)?;
    let template = model.chat_template(&tokenizer)?;
    let constraint = args.format.constraint(&tokenizer)?;
    let session = global.decoding_session()?;
    // What was said before is not computed again.
    let mut engine = args.engine.engine(&model, &session, 1, Share::Pages)?;
    let first: Vec<Message> = args.system.iter().map(|system| Message::new("system", system)).collect();
    let (system, messages) = (first.len(), first.clone());
    let mut chat = Conversation { template: &template, tokenizer: &tokenizer, messages, system };
    let (mut turns, mut unanswered) = (Vec::new(), 0);
    let asks = std::io::stdin().is_terminal() && !global.json;
    let report = |problem: &str| {
        if !global.quiet {
            eprintln!("{problem}");
        }
    };
    let mut input = std::io::stdin().lock();
    loop {
        if asks {
            eprint!("> ");
        }
        let said = match read_line(&mut input)? {
            None => break,
            Some(Err(problem)) => {
                report(&problem);
                turns.push(json!({ "error": problem }));
                unanswered += 1;
                continue;
            }
            Some(Ok(line)) => line.trim().to_string(),
        };
        match said.as_str() {
            "" => continue,
            "/exit" => break,
            "/clear" => {
                chat.messages = first.clone();
                continue;
            }
            said => chat.messages.push(Message::new("user", said)),
        }
        // With room for an answer.
        let context = engine.context();
        let room = context - args.number.min(context / 4).max(1);
        let prompt = match chat.fitting_prompt(room) {
            Ok((prompt, left_out)) => {
                if left_out > 0 {
                    report(&format!(
                        "(the context of {context} tokens is full: the oldest {left_out} turns are left out)"
                    ));
                }
                prompt
            }
            Err(failure) => {
                chat.messages.pop();
                let problem = failure.line();
                report(&problem);
                turns.push(json!({ "user": said, "error": problem }));
                unanswered += 1;
                continue;
            }
        };
        let mut request =
            Request::new(prompt, args.number).stop(text::ends(&tokenizer)).sampling(args.sampling.sampling());
        request.constraint = constraint.clone();
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
        chat.messages.push(Message::new("assistant", &shown.text));
        turns.push(json!({
            "user": said, "assistant": shown.text, "finish": reason(answer.finish),
            "tokens": answer.tokens.len(), "tokens_per_s": answer.rate(),
        }));
    }
    // Whoever typed the lines has seen it.
    let failure =
        (unanswered > 0 && !asks).then(|| Failure::new(format!("{unanswered} lines got no answer")));
    Ok(Answer::new("", json!({ "turns": turns })).with_failure(failure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_text_are_reported_and_the_next_is_read() {
        let mut input: &[u8] = b"one\n\xFF\xFE two\nthree";
        let mut lines = Vec::new();
        while let Some(line) = read_line(&mut input).unwrap() {
            lines.push(line.map_err(|problem| problem.contains("UTF-8")));
        }
        assert_eq!(lines, [Ok("one\n".to_string()), Err(true), Ok("three".to_string())]);
    }

    #[test]
    fn the_oldest_turns_make_room_and_a_refused_message_goes() {
        let letters: Vec<String> = ('a'..='z').enumerate().map(|(i, c)| format!("\"{c}\": {i}")).collect();
        let model =
            format!(r#"{{"model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}}"#, letters.join(","));
        let tokenizer = Tokenizer::from_json(&model).unwrap();
        let source = "{% for m in messages %}{% if m.content == 'x' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}";
        let template = ChatTemplate::new(source, "", "").unwrap();
        let said = |role: &str, content: &str| Message::new(role, content);
        let mut messages = vec![said("system", "ss")];
        for _ in 0..3 {
            messages.extend([said("user", "uuuu"), said("assistant", "aaaa")]);
        }
        messages.push(said("user", "zz"));
        let mut chat = Conversation { template: &template, tokenizer: &tokenizer, messages, system: 1 };
        let (all, left_out) = chat.fitting_prompt(100).unwrap();
        assert_eq!((all.len(), left_out), (2 + 24 + 2, 0));
        let (fits, left_out) = chat.fitting_prompt(13).unwrap();
        assert_eq!((fits.len(), left_out), (12, 2));
        assert_eq!(fits[..2], all[..2]);
        assert_eq!(fits[10..], all[26..]);
        // The system message and what was said last stay.
        assert_eq!(chat.fitting_prompt(4).unwrap().1, 1);
        let error = chat.fitting_prompt(3).unwrap_err();
        assert!(error.error().contains("room for 3"), "{}", error.error());
        chat.messages.push(said("user", "x"));
        assert!(chat.fitting_prompt(100).unwrap_err().line().contains("no"));
    }
}
