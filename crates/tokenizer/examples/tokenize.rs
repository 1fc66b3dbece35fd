//! Encodes texts and renders chats, for comparisons with other libraries.
//!
//! ```text
//!   tokenize FILE [parse] [special] [decode] < texts     FILE.gguf or tokenizer.json; texts are JSON strings, one a line;
//!                                                        prints the ids of each, and with `decode` their text as JSON
//!   tokenize FILE time TEXT                              MB/s of encoding a file as one text
//!   tokenize chat < chats                                renders chats: each line is an array of template, messages, tools or
//!                                                        null, whether an answer begins, the texts of BOS and EOS, variables
//! ```

use std::error::Error;
use std::io::{BufWriter, Read, Write};
use std::time::Instant;

use olivine_gguf::Gguf;
use olivine_tokenizer::{ChatOptions, ChatTemplate, Json, Message, Tokenizer};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("usage: tokenize FILE [parse] [special] [decode] | time TEXT")?;
    if path == "chat" {
        return chats();
    }
    let tokenizer = if path.ends_with(".gguf") {
        Tokenizer::from_gguf(Gguf::open(path)?.metadata())?
    } else {
        Tokenizer::from_json(&std::fs::read_to_string(path)?)?
    };
    let has = |word: &str| args.iter().skip(1).any(|arg| arg == word);
    if has("time") {
        return time(&tokenizer, args.last().ok_or("no text")?);
    }
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let mut output = BufWriter::new(std::io::stdout());
    for line in input.lines() {
        let text = Json::parse(line)?;
        let text = text.as_str().ok_or("a line is not a string")?;
        let ids = tokenizer.encode(text, has("special"), has("parse"))?;
        let words: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(output, "{}", words.join(" "))?;
        if has("decode") {
            writeln!(output, "{:?}", tokenizer.decode(&ids)?.as_bytes())?;
        }
    }
    Ok(())
}

/// Prints each prompt, or what is wrong, as bytes after a word that says which.
fn chats() -> Result<(), Box<dyn Error>> {
    for line in std::io::stdin().lines() {
        match chat(&Json::parse(&line?)?) {
            Ok(prompt) => println!("ok {:?}", prompt.as_bytes()),
            Err(e) => println!("error {:?}", e.to_string().as_bytes()),
        }
    }
    Ok(())
}

fn chat(line: &Json) -> Result<String, Box<dyn Error>> {
    let [template, Json::Array(messages), tools, answer, bos, eos, variables] =
        line.as_array().ok_or("not an array")?
    else {
        return Err("not a chat".into());
    };
    let text = |json: &Json| json.as_str().unwrap_or_default().to_string();
    let template = ChatTemplate::new(&text(template), &text(bos), &text(eos))?;
    let messages = messages.iter().cloned().map(Message::from_json).collect::<Result<Vec<_>, _>>()?;
    let mut options =
        ChatOptions { add_generation_prompt: answer.as_bool() == Some(true), ..ChatOptions::default() };
    options.tools = tools.as_array().unwrap_or_default().to_vec();
    options.now = Some(1_721_900_000);
    if let Json::Object(entries) = variables {
        options.variables = entries.clone();
    }
    Ok(template.render(&messages, &options)?)
}

fn time(tokenizer: &Tokenizer, path: &str) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string(path)?;
    let mut best = f64::INFINITY;
    let mut tokens = 0;
    for _ in 0..3 {
        let start = Instant::now();
        tokens = tokenizer.encode(&text, false, false)?.len();
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{:.1} MB/s, {tokens} tokens of {} bytes", text.len() as f64 / best / 1e6, text.len());
    Ok(())
}
