//! Hugging Face folders: `config.json` and safetensors, whose tensors are found by their names in GGUF.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use olivine_files::read_text;
use olivine_ir::{DType, Data, Shape, Tensor, TensorType};
use olivine_safetensors::Weights;
use serde_json::Value;

use super::architecture::{Architecture, LAYER_TENSORS};
use super::config::{Config, Key};
use super::source::bad_tensor;
use crate::Error;

/// Bytes that a `config.json` or an index of files may have.
const LARGEST_JSON: u64 = 1 << 26;

/// A folder as Hugging Face writes it: `config.json` and safetensors, in one file or in several with an index.
pub(super) struct Folder {
    path: PathBuf,
    json: Value,
    files: Vec<Weights>,
    /// For every tensor its file.
    file_of: HashMap<String, usize>,
    architecture: &'static Architecture,
}

impl Folder {
    /// Opens a folder; `None` if its configuration is of no language model.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, Error> {
        let read = |name: &str| -> Result<Value, Error> {
            let path = path.join(name);
            let bad = |problem: String| Error::Config { path: path.clone(), problem };
            let text = read_text(&path, LARGEST_JSON).map_err(|e| bad(e.to_string()))?;
            serde_json::from_str(&without_infinities(&text)).map_err(|e| bad(e.to_string()))
        };
        let json = read("config.json")?;
        if json["model_type"] == "bert" {
            return Ok(None);
        }
        let config = path.join("config.json");
        let bad = |problem: String| Error::Config { path: config.clone(), problem };
        let (_, architecture) = Config::of_json(&json, &bad)?;
        let index = "model.safetensors.index.json";
        let names = if path.join(index).is_file() {
            let index_path = path.join(index);
            let bad = |problem: &str| Error::Config { path: index_path.clone(), problem: problem.into() };
            let json = read(index)?;
            let map = json["weight_map"].as_object().ok_or_else(|| bad("`weight_map` is missing"))?;
            let mut names: Vec<&str> = map.values().filter_map(Value::as_str).collect();
            names.sort_unstable();
            names.dedup();
            if let Some(name) = names.iter().find(|name| name.contains(['/', '\\'])) {
                return Err(bad(&format!("`{name}` is not a file of the folder")));
            }
            names.iter().map(|name| name.to_string()).collect()
        } else {
            vec!["model.safetensors".to_string()]
        };
        let files: Vec<Weights> =
            names.iter().map(|name| Weights::load(path.join(name))).collect::<Result<_, _>>()?;
        let each = files
            .iter()
            .enumerate()
            .flat_map(|(i, file)| file.names().map(move |name| (name.to_string(), i)));
        let file_of = each.collect();
        Ok(Some(Folder { path: path.to_path_buf(), json, files, file_of, architecture }))
    }

    /// What the model is built from.
    pub(super) fn config(&self) -> Result<Config, Error> {
        let bad = |problem| Error::Config { path: self.path.join("config.json"), problem };
        Ok(Config::of_json(&self.json, &bad)?.0)
    }

    /// The name of a tensor by its name in GGUF; `*` stands for the number of an expert.
    pub(super) fn path_of(&self, name: &str) -> Option<String> {
        let renamed = |part: &str| {
            let tables = self.architecture.renamed.iter().chain(&LAYER_TENSORS);
            let find = |part: &str| tables.clone().find(|(gguf, _)| *gguf == part).map(|(_, path)| *path);
            // A whole name before a name without what follows its last dot.
            let whole = find(part).map(str::to_string);
            whole.or_else(|| {
                let (stem, suffix) = part.rsplit_once('.')?;
                Some(format!("{}.{suffix}", find(stem)?))
            })
        };
        let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
            return renamed(name).or_else(|| {
                let (stem, suffix) = name.rsplit_once('.')?;
                let path = match stem {
                    "token_embd" => "model.embed_tokens",
                    "output_norm" => "model.norm",
                    "output" => "lm_head",
                    _ => return None,
                };
                Some(format!("{path}.{suffix}"))
            });
        };
        Some(format!("{}.{layer}.{}", self.architecture.layers, renamed(part)?))
    }

    /// An error that names a tensor as the folder does, and as GGUF does.
    pub(super) fn bad(&self, name: &str, problem: impl Into<String>) -> Error {
        match self.path_of(name) {
            Some(path) => bad_tensor(&format!("{path}` or `{name}"), problem),
            None => bad_tensor(name, problem),
        }
    }

    /// An error that names an entry of the configuration.
    pub(super) fn bad_key(&self, key: Key, problem: String) -> Error {
        let problem = format!("`{}`: {problem}", key.json);
        Error::Config { path: self.path.join("config.json"), problem }
    }

    pub(super) fn has_path(&self, path: &str) -> bool {
        self.file_of.contains_key(path)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        let found = self.path_of(name).is_some_and(|path| self.has_path(&path.replace('*', "0")));
        found || self.fused_expert(name).is_some()
    }

    /// The type of a tensor by its own name, if there is one that can be held.
    pub(super) fn ty(&self, path: &str) -> Option<TensorType> {
        self.files[*self.file_of.get(path)?].ty(path)
    }

    /// A tensor by its own name.
    pub(super) fn read(&self, path: &str) -> Result<Tensor, Error> {
        let file = self.file_of.get(path).ok_or_else(|| bad_tensor(path, "it is missing from the folder"))?;
        Ok(self.files[*file].tensor(path)?)
    }

    /// A weight as it is stored; experts that are tensors of their own are stacked.
    pub(super) fn tensor(&self, name: &str, experts: usize) -> Result<Tensor, Error> {
        if let Some(fused) = self.fused_expert(name) {
            return self.fused(name, &fused);
        }
        let missing = || self.bad(name, "it is missing from the folder");
        let path = self.path_of(name).ok_or_else(missing)?;
        if !path.contains('*') {
            return match self.has_path(&path) {
                true => self.floating(name, self.read(&path)?),
                false => Err(missing()),
            };
        }
        // Reading ends at the first that is missing, whatever number the configuration has.
        let mut parts: Vec<Tensor> = Vec::new();
        for expert in 0..experts {
            let path = path.replace('*', &expert.to_string());
            if !self.has_path(&path) {
                return Err(self.bad(name, format!("`{path}` is missing from the folder")));
            }
            let part = self.floating(name, self.read(&path)?)?;
            if parts.first().is_some_and(|first| first.ty() != part.ty()) {
                return Err(bad_tensor(&path, "it differs from the other experts' in type"));
            }
            parts.push(part);
        }
        let ty = parts.first().ok_or_else(missing)?.ty();
        let dims = [&[parts.len()], ty.shape.dims()].concat();
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
        Ok(Tensor::from_data(Shape::new(&dims)?, Data::from_bytes(ty.dtype, &bytes)?)?)
    }

    /// A tensor that can be a weight.
    pub(super) fn floating(&self, name: &str, tensor: Tensor) -> Result<Tensor, Error> {
        match tensor.dtype() {
            DType::F32 | DType::F16 | DType::BF16 => Ok(tensor),
            other => Err(self.bad(name, format!("weights of {other} cannot be run"))),
        }
    }

    /// A small weight in f32, as GGUF has it: norms from 0, decays as they are, convolutions without a size of 1.
    pub(super) fn floats(&self, name: &str) -> Result<Tensor, Error> {
        let tensor = self.tensor(name, 1)?;
        let from_one = self.architecture.norms_from_one
            && name.ends_with("norm.weight")
            && !name.ends_with("ssm_norm.weight");
        let number = |x: f64| match () {
            () if from_one => x as f32 + 1.0,
            () if name.ends_with("ssm_a") => -(x.exp() as f32),
            () => x as f32,
        };
        let shape = *tensor.shape();
        let dims: Vec<usize> = match shape.dims() {
            [channels, 1, taps] if name.ends_with("ssm_conv1d.weight") => vec![*channels, *taps],
            [1, columns] if name.ends_with("_shexp.weight") => vec![*columns],
            dims => dims.to_vec(),
        };
        Ok(Tensor::new(Shape::new(&dims)?, tensor.numbers().map(number).collect())?)
    }
}

/// JSON without the numbers that Python writes and JSON does not have: `null` stands for them.
fn without_infinities(text: &str) -> Cow<'_, str> {
    if !["Infinity", "NaN"].iter().any(|word| text.contains(word)) {
        return Cow::Borrowed(text);
    }
    let (mut out, mut quoted, mut rest) = (String::with_capacity(text.len()), false, text);
    while let Some(c) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| rest.starts_with(word));
        let taken = match word {
            Some(word) if !quoted => {
                out.push_str("null");
                word.len()
            }
            _ => {
                // A backslash takes the next character with it.
                let escaped = (quoted && c == '\\').then(|| rest.chars().nth(1)).flatten();
                let taken = c.len_utf8() + escaped.map_or(0, char::len_utf8);
                quoted ^= c == '"';
                out.push_str(&rest[..taken]);
                taken
            }
        };
        rest = &rest[taken..];
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::without_infinities;

    #[test]
    fn infinities_outside_of_strings_become_null() {
        let text = r#"{"a": [0.0, Infinity], "b": -Infinity, "NaN \" Infinity": "Infinity", "c": NaN}"#;
        let want = r#"{"a": [0.0, null], "b": null, "NaN \" Infinity": "Infinity", "c": null}"#;
        assert_eq!(without_infinities(text), want);
        assert_eq!(without_infinities("\"\\"), "\"\\");
        assert_eq!(without_infinities("\"NaN\\"), "\"NaN\\");
    }
}
