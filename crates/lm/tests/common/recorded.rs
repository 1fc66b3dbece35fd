//! Models of `references`, which zoo/lm_reference.py recorded: folders whose weights are a formula's, and what Hugging Face
//! transformers computes with them.

use std::path::PathBuf;

use olivine_ir::{Shape, Tensor};
use serde_json::Value;

/// A recorded model.
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) json: Value,
}

/// A prompt, the tokens that follow and their log-probabilities.
pub(crate) struct Generated {
    pub(crate) prompt: Vec<i64>,
    pub(crate) tokens: Vec<i64>,
    pub(crate) logprobs: Vec<f64>,
}

fn integers(json: &Value) -> Vec<i64> {
    json.as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect()
}

fn floats(json: &Value) -> Vec<f64> {
    json.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// SplitMix64 at the positions after FNV-1a of the name, as zoo/lm_models.py has it.
fn hashes(name: &str, count: usize) -> impl Iterator<Item = u64> {
    let fnv = |seed: u64, byte: u8| (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    (1..=count as u64).map(move |i| {
        let z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// A tensor of an entry: name, shape, kind and two numbers.
fn tensor(entry: &Value) -> (String, Tensor) {
    let name = entry[0].as_str().unwrap();
    let dims: Vec<usize> = integers(&entry[1]).iter().map(|size| *size as usize).collect();
    let (first, second) = (entry[3].as_f64().unwrap(), entry[4].as_f64().unwrap());
    let (shape, all) = (Shape::new(&dims).unwrap(), hashes(name, dims.iter().product()));
    let made = match entry[2].as_str().unwrap() {
        "u8" => {
            Tensor::new(shape, all.map(|z| (z % second as u64 + first as u64) as u8).collect::<Vec<u8>>())
        }
        _ => {
            let unit = |z: u64| (z >> 40) as f64 / f64::from(1 << 23) - 1.0;
            Tensor::new(shape, all.map(|z| (first + second * unit(z)) as f32).collect::<Vec<f32>>())
        }
    };
    (name.to_string(), made.unwrap())
}

impl Recorded {
    /// Every record.
    pub(crate) fn all() -> Vec<Recorded> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/references");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<Recorded> = files
            .map(|path| Recorded {
                name: path.file_stem().unwrap().to_string_lossy().into_owned(),
                json: serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap(),
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Writes the model as a folder.
    pub(crate) fn folder(&self, test: &str) -> super::TempModel {
        let folder =
            std::env::temp_dir().join(format!("olivine-lm-{}-{test}-{}", std::process::id(), self.name));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), self.json["config"].as_str().unwrap()).unwrap();
        olivine_safetensors::save(folder.join("model.safetensors"), &self.tensors()).unwrap();
        super::TempModel(folder)
    }

    /// The tensors by name.
    pub(crate) fn tensors(&self) -> Vec<(String, Tensor)> {
        self.json["tensors"].as_array().unwrap().iter().map(tensor).collect()
    }

    /// The sequence whose logits are recorded.
    pub(crate) fn tokens(&self) -> Vec<i64> {
        integers(&self.json["tokens"])
    }

    /// The logits of each of its positions.
    pub(crate) fn logits(&self) -> Vec<Vec<f64>> {
        self.json["logits"].as_array().unwrap().iter().map(floats).collect()
    }

    /// Prompts and what follows them.
    pub(crate) fn generated(&self) -> Vec<Generated> {
        let one = |json: &Value| Generated {
            prompt: integers(&json["prompt"]),
            tokens: integers(&json["tokens"]),
            logprobs: floats(&json["logprobs"]),
        };
        self.json["generated"].as_array().unwrap().iter().map(one).collect()
    }
}
