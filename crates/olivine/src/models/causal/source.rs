//! Where a language model's tensors come from. They have the names of GGUF; a folder's are translated.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use olivine_files::read_text;
use olivine_gguf::{Gguf, TensorKind};
use olivine_ir::{DType, Data, Shape, Tensor, TensorType};
use olivine_safetensors::Weights;
use serde_json::Value;

use super::architecture::{Architecture, LAYER_TENSORS};
use super::config::Config;
use crate::Error;

/// Bytes that a `config.json` or an index of files may have.
const LARGEST_JSON: u64 = 1 << 26;

/// An open model.
pub(super) enum Source {
    Gguf(Gguf),
    Folder(Folder),
}

/// A folder as Hugging Face writes it: `config.json` and safetensors, in one file or in several with an index.
pub(super) struct Folder {
    path: PathBuf,
    json: Value,
    files: Vec<Weights>,
    /// For every tensor its file.
    file_of: HashMap<String, usize>,
    architecture: &'static Architecture,
}

/// An error that names a tensor.
pub(super) fn bad_tensor(name: &str, problem: impl Into<String>) -> Error {
    olivine_gguf::Error::Tensor { name: name.to_string(), problem: problem.into() }.into()
}

impl Source {
    /// What the model is built from.
    pub(super) fn config(&self) -> Result<Config, Error> {
        match self {
            Source::Gguf(file) => Config::of_gguf(file),
            Source::Folder(folder) => Ok(Config::of_json(&folder.json, &folder.bad())?.0),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Source::Gguf(file) => file.tensor(name).is_some(),
            Source::Folder(folder) => folder.names(name, 1).is_some(),
        }
    }

    /// A weight as it is stored; a missing one is an error. `experts` are stacked where each is a tensor of its own.
    pub(super) fn tensor(&self, name: &str, experts: usize) -> Result<Tensor, Error> {
        match self {
            Source::Gguf(file) => stored(file, name),
            Source::Folder(folder) => folder.tensor(name, experts),
        }
    }

    /// A small weight, such as a norm's, in f32.
    pub(super) fn floats(&self, name: &str) -> Result<Tensor, Error> {
        match self {
            Source::Gguf(file) => {
                let tensor = file.tensor(name).ok_or_else(|| bad_tensor(name, "it is missing"))?;
                Ok(Tensor::new(Shape::new(&tensor.shape)?, file.decode(tensor)?)?)
            }
            Source::Folder(folder) => {
                let tensor = folder.tensor(name, 1)?;
                let from_one = folder.architecture.norms_from_one && name.ends_with("norm.weight");
                let one = if from_one { 1.0 } else { 0.0 };
                let numbers = tensor.numbers().map(|x| x as f32 + one).collect();
                Ok(Tensor::new(*tensor.shape(), numbers)?)
            }
        }
    }
}

/// A tensor of a GGUF file, which stays in the mapping.
fn stored(file: &Gguf, name: &str) -> Result<Tensor, Error> {
    let fail = |problem: String| bad_tensor(name, problem);
    let tensor = file.tensor(name).ok_or_else(|| fail("it is missing".into()))?;
    let plain = |dtype| Shape::new(&tensor.shape).map(|shape| TensorType::new(dtype, shape));
    let ty = match tensor.kind {
        TensorKind::Blocks(format) => TensorType::packed(format, &tensor.shape),
        TensorKind::F32 => plain(DType::F32),
        TensorKind::F16 => plain(DType::F16),
        TensorKind::BF16 => plain(DType::BF16),
        other => return Err(fail(format!("weights of {other} cannot be run"))),
    };
    let ty = ty.map_err(|e| fail(e.to_string()))?;
    let bytes = file.shared_bytes(tensor);
    // A file whose alignment is too small for its elements is copied.
    let shared = Tensor::from_shared(ty, bytes.clone());
    let copied = |_| Tensor::from_data(ty.shape, Data::from_bytes(ty.dtype, &bytes)?);
    shared.or_else(copied).map_err(|e| fail(e.to_string()))
}

impl Folder {
    /// Opens a folder; `None` if its configuration is of no language model.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, Error> {
        let read = |name: &str| -> Result<Value, Error> {
            let path = path.join(name);
            let bad = |problem: String| Error::Config { path: path.clone(), problem };
            let text = read_text(&path, LARGEST_JSON).map_err(|e| bad(e.to_string()))?;
            serde_json::from_str(&text).map_err(|e| bad(e.to_string()))
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

    fn bad(&self) -> impl Fn(String) -> Error + '_ {
        |problem| Error::Config { path: self.path.join("config.json"), problem }
    }

    /// The tensors that a GGUF name stands for: one, or one for each expert.
    fn names(&self, name: &str, experts: usize) -> Option<Vec<String>> {
        let (stem, suffix) = name.rsplit_once('.')?;
        let path = match stem {
            "token_embd" => "model.embed_tokens".to_string(),
            "output_norm" => "model.norm".to_string(),
            "output" => "lm_head".to_string(),
            _ => {
                let (layer, part) = stem.strip_prefix("blk.")?.split_once('.')?;
                let renamed = self.architecture.renamed.iter().find(|(gguf, _)| *gguf == part);
                let known = LAYER_TENSORS.iter().find(|(gguf, _)| *gguf == part);
                let (_, part) = renamed.or(known)?;
                format!("model.layers.{layer}.{part}")
            }
        };
        let all: Vec<String> = match path.contains('*') {
            true => (0..experts).map(|i| format!("{}.{suffix}", path.replace('*', &i.to_string()))).collect(),
            false => vec![format!("{path}.{suffix}")],
        };
        all.iter().all(|name| self.file_of.contains_key(name)).then_some(all)
    }

    fn tensor(&self, name: &str, experts: usize) -> Result<Tensor, Error> {
        let names =
            self.names(name, experts).ok_or_else(|| bad_tensor(name, "it is missing from the folder"))?;
        let read = |name: &String| Ok::<_, Error>(self.files[self.file_of[name]].tensor(name)?);
        if let [only] = &names[..] {
            return read(only);
        }
        let parts: Vec<Tensor> = names.iter().map(read).collect::<Result<_, _>>()?;
        let ty = parts[0].ty();
        if let Some((name, _)) = names.iter().zip(&parts).find(|(_, part)| part.ty() != ty) {
            return Err(bad_tensor(name, "it differs from the other experts' in type"));
        }
        let dims = [&[parts.len()], ty.shape.dims()].concat();
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
        Ok(Tensor::from_data(Shape::new(&dims)?, Data::from_bytes(ty.dtype, &bytes)?)?)
    }
}
