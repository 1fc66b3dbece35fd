//! How near two sentences are in meaning: MiniLM from its safetensors file.
//!
//! ```sh
//! cargo xtask zoo minilm
//! cargo run --release -p olivine --example sentence_embedding -- target/zoo/minilm \
//!     "That is a happy person" "That is a happy dog" "Today is a sunny day"
//! ```

use std::collections::HashMap;
use std::path::Path;

use olivine::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, sentences @ ..] = args.as_slice() else { return Err("give a folder and sentences".into()) };
    let tokens = WordPiece::load(Path::new(folder))?;

    let bert = Session::new(Device::auto()?)?.compile(&Model::load(folder)?)?;

    let mut vectors: Vec<Vec<f64>> = Vec::new();
    for sentence in sentences {
        let ids = tokens.encode(sentence);
        let of = |v: Vec<i64>| Tensor::new([1, v.len()], v);
        let (mask, kinds) = (of(vec![1; ids.len()])?, of(vec![0; ids.len()])?);
        let ids = of(ids)?;
        let out = bert.run([("input_ids", &ids), ("attention_mask", &mask), ("token_type_ids", &kinds)])?;
        // Of the type of the weights, which may be f16 or bf16.
        vectors.push(out.get("sentence_embedding")?.to_f64());
    }
    if let Some(first) = vectors.first() {
        println!("{:?} begins {:.6?}", sentences[0], &first[..5.min(first.len())]);
        for (sentence, vector) in sentences.iter().zip(&vectors).skip(1) {
            let cosine: f64 = first.iter().zip(vector).map(|(a, b)| a * b).sum();
            println!("{cosine:.4}  {sentence}");
        }
    }
    Ok(())
}

/// BERT's lower-case tokens: words and punctuation, cut into the longest pieces that the vocabulary has.
struct WordPiece {
    ids: HashMap<String, i64>,
}

impl WordPiece {
    fn load(folder: &Path) -> std::io::Result<Self> {
        let text = std::fs::read_to_string(folder.join("vocab.txt"))?;
        Ok(WordPiece { ids: text.lines().map(str::to_string).zip(0..).collect() })
    }

    fn encode(&self, text: &str) -> Vec<i64> {
        let id = |token: &str| self.ids.get(token).copied().unwrap_or(0);
        let mut ids = vec![id("[CLS]")];
        let lower = text.to_lowercase();
        for word in lower.split_whitespace() {
            for part in word.split_inclusive(|c: char| c.is_ascii_punctuation()) {
                let (body, mark) = match part.char_indices().last() {
                    Some((at, c)) if c.is_ascii_punctuation() => part.split_at(at),
                    _ => (part, ""),
                };
                for token in [body, mark].into_iter().filter(|t| !t.is_empty()) {
                    ids.extend(self.pieces(token).unwrap_or_else(|| vec![id("[UNK]")]));
                }
            }
        }
        ids.push(id("[SEP]"));
        ids
    }

    fn pieces(&self, word: &str) -> Option<Vec<i64>> {
        let (mut found, mut rest, mut prefix) = (Vec::new(), word, "");
        while !rest.is_empty() {
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            let longest = ends.into_iter().find_map(|end| {
                let id = self.ids.get(&format!("{prefix}{}", &rest[..end]))?;
                Some((end, *id))
            });
            let (end, id) = longest?;
            found.push(id);
            (rest, prefix) = (&rest[end..], "##");
        }
        Some(found)
    }
}
