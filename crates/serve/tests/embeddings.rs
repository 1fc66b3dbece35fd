//! Embeddings of an encoder, beside the library's own run.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::client::{post, posted};
use common::{NAME, model, options};
use olivine::prelude::*;
use olivine_lm::EngineOptions;
use olivine_serve::{ServedModel, Server};
use serde_json::{Value, json};

fn session() -> Session {
    Session::with_options(Device::Cpu, SessionOptions::new().threads(Some(1))).unwrap()
}

fn vectors(answer: &Value) -> Vec<Vec<f32>> {
    let vector = |entry: &Value| {
        entry["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
    };
    answer["data"].as_array().unwrap().iter().map(vector).collect()
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

#[test]
fn vectors_are_those_of_the_model_whoever_shares_the_batch() {
    for pooling in ["mean_tokens", "cls_token"] {
        let folder = model::encoder(pooling);
        let loaded = ServedModel::load(&folder, &session(), &EngineOptions::default()).unwrap();
        let server = Server::start(loaded, options()).unwrap();
        let embed =
            |input: Value| posted(&server, "/v1/embeddings", &json!({ "model": NAME, "input": input }));
        let texts: Vec<String> = (0..40).map(|i| "a b c d e f g"[..1 + 2 * (i % 7)].to_string()).collect();
        let answer = embed(json!(texts));
        let all = vectors(&answer);
        assert_eq!((all.len(), all[0].len(), &answer["object"]), (40, 16, &json!("list")));
        for (i, text) in texts.iter().enumerate().take(7) {
            assert_eq!(answer["data"][i]["index"], json!(i));
            assert!(close(&vectors(&embed(json!(text)))[0], &all[i]), "{text}");
            assert!((all[i].iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-4);
        }
        // "a b": [CLS] a b [SEP].
        let tokens = [1i64, 4, 5, 2];
        assert!(close(&vectors(&embed(json!(tokens)))[0], &all[1]));
        let compiled = session().compile(&Model::load(&folder).unwrap()).unwrap();
        let [ids, ones, zeros] =
            [tokens, [1; 4], [0; 4]].map(|row| Tensor::new([1, 4], row.to_vec()).unwrap());
        let out = compiled
            .run([("input_ids", &ids), ("attention_mask", &ones), ("token_type_ids", &zeros)])
            .unwrap();
        let want: Vec<f32> = match pooling {
            "mean_tokens" => out.get("sentence_embedding").unwrap().as_slice::<f32>().unwrap().to_vec(),
            _ => {
                let first = &out.get("last_hidden_state").unwrap().as_slice::<f32>().unwrap()[..16];
                let length = first.iter().map(|x| x * x).sum::<f32>().sqrt();
                first.iter().map(|x| x / length).collect()
            }
        };
        assert!(close(&want, &all[1]));
    }
}

#[test]
fn what_an_encoder_cannot_do_is_an_error_of_the_client() {
    let loaded =
        ServedModel::load(model::encoder("mean_tokens"), &session(), &EngineOptions::default()).unwrap();
    let server = Server::start(loaded, options()).unwrap();
    let long = "a ".repeat(30);
    for (input, more, words) in [
        (json!(long), json!({}), "the model reads 12"),
        (json!(""), json!({}), "empty"),
        (json!([]), json!({}), "empty"),
        (json!([30]), json!({}), "not below 30"),
        (json!([[1, 4], []]), json!({}), "no tokens"),
        (json!(5), json!({}), "`input` has to be"),
        (json!("a"), json!({ "dimensions": 8 }), "16 elements"),
        (json!("a"), json!({ "encoding_format": "hex" }), "`encoding_format`"),
        (json!("a"), json!({ "model": "x" }), "is not here"),
    ] {
        let mut body = json!({ "input": input });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = post(&server, "/v1/embeddings", &body);
        assert!((400..500).contains(&reply.status), "{}", reply.text());
        assert!(reply.error()["message"].as_str().unwrap().contains(words), "{}", reply.text());
    }
    let chat = json!({ "messages": [{ "role": "user", "content": "a" }] });
    let reply = post(&server, "/v1/chat/completions", &chat);
    assert_eq!(reply.status, 400);
    assert!(reply.error()["message"].as_str().unwrap().contains("generates no text"));
    let packed = posted(&server, "/v1/embeddings", &json!({ "input": "a b", "encoding_format": "base64" }));
    assert_eq!(packed["data"][0]["embedding"].as_str().unwrap().len(), 88);
    let unknown = ServedModel::load(model::encoder("max_tokens"), &session(), &EngineOptions::default());
    assert!(unknown.is_err_and(|error| error.to_string().contains("max_tokens")));
}

#[test]
fn a_gguf_file_has_the_vectors_of_its_folder() {
    for (pooling, number) in [("mean_tokens", 1), ("cls_token", 2)] {
        let folder = model::encoder(pooling);
        let file = model::encoder_gguf(&folder, number);
        let [of_folder, of_file] = [&folder, &file].map(|path| {
            let loaded = ServedModel::load(path, &session(), &EngineOptions::default()).unwrap();
            let server = Server::start(loaded, options()).unwrap();
            let input = json!(["a", "q z b", "a b c d e f g h i j"]);
            vectors(&posted(&server, "/v1/embeddings", &json!({ "model": NAME, "input": input })))
        });
        assert_eq!(of_file.len(), 3);
        for (a, b) in of_folder.iter().zip(&of_file) {
            assert!(close(a, b), "{a:?} {b:?}");
        }
    }
    // A pooling that is not known is an error that names it.
    let folder = model::encoder("mean_tokens");
    let wrong = model::encoder_gguf(&folder, 4);
    let error = ServedModel::load(&wrong, &session(), &EngineOptions::default()).err().unwrap().to_string();
    assert!(error.contains("bert.pooling_type"), "{error}");
}
