//! Weights from safetensors files: a header of names, types and places, and the elements after it.
//!
//! ```text
//!   8 bytes: length of the header ── header: JSON ── elements, little endian
//! ```
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use olivine_ir::{DType, Data, Shape, Tensor, TensorType};
use serde_json::Value;

/// A header may not be longer than this, as the format says.
const MAX_HEADER: usize = 100_000_000;

/// What can be wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("cannot read `{}`: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Bytes that are no safetensors file.
    #[error("not a safetensors file: {problem}")]
    NotSafetensors {
        /// What is wrong with them.
        problem: String,
    },
    /// A tensor that contradicts itself or cannot be held.
    #[error("tensor `{name}`: {problem}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The tensors of a file.
pub struct Weights {
    entries: BTreeMap<String, Entry>,
    bytes: Source,
}

/// Where a tensor lies and what it is.
struct Entry {
    dtype: String,
    shape: Shape,
    bytes: Range<usize>,
}

enum Source {
    Owned(Vec<u8>),
    Mapped(memmap2::Mmap),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Source::Owned(bytes) => bytes,
            Source::Mapped(map) => map,
        }
    }
}

impl Weights {
    /// Opens a file; elements are read when they are asked for.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let map = mapping::map(path).map_err(|source| Error::File { path: path.to_path_buf(), source })?;
        Weights::read(Source::Mapped(map))
    }

    /// Reads a file from memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        Weights::read(Source::Owned(bytes))
    }

    fn read(bytes: Source) -> Result<Self, Error> {
        let entries = header(bytes.bytes())?;
        Ok(Weights { entries, bytes })
    }

    /// The tensors' names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// A tensor's type; `None` if there is no such tensor, or no dtype for its elements.
    pub fn ty(&self, name: &str) -> Option<TensorType> {
        let entry = self.entries.get(name)?;
        Some(TensorType::new(dtype(&entry.dtype)?, entry.shape))
    }

    /// A tensor.
    pub fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let wrong = |problem: String| Error::Tensor { name: name.into(), problem };
        let entry = self.entries.get(name).ok_or_else(|| {
            let near = olivine_ir::nearest(name, self.names());
            wrong(near.map_or("there is none".into(), |n| format!("there is none; did you mean `{n}`?")))
        })?;
        let dtype = dtype(&entry.dtype)
            .ok_or_else(|| wrong(format!("elements of type {} cannot be held", entry.dtype)))?;
        let bytes = self.bytes.bytes().get(entry.bytes.clone()).unwrap_or_default();
        let data = Data::from_bytes(dtype, bytes).map_err(|e| wrong(e.to_string()))?;
        Tensor::from_data(entry.shape, data).map_err(|e| wrong(e.to_string()))
    }
}

/// A dtype by the format's name for it.
fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "F64" => DType::F64,
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "I64" => DType::I64,
        "I32" => DType::I32,
        "I16" => DType::I16,
        "I8" => DType::I8,
        "U32" => DType::U32,
        "U8" => DType::U8,
        "BOOL" => DType::Bool,
        _ => return None,
    })
}

/// The entries of a file's header, each checked against the file.
fn header(bytes: &[u8]) -> Result<BTreeMap<String, Entry>, Error> {
    let bad = |problem: String| Error::NotSafetensors { problem };
    let (length, rest) =
        bytes.split_first_chunk::<8>().ok_or_else(|| bad("it is shorter than 8 bytes".into()))?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_HEADER || length > rest.len() {
        return Err(bad(format!("its header claims {length} bytes, {} follow", rest.len())));
    }
    let (text, elements) = rest.split_at(length);
    let json: Value = serde_json::from_slice(text).map_err(|e| bad(format!("its header: {e}")))?;
    let all = json.as_object().ok_or_else(|| bad("its header is no JSON object".into()))?;
    let start = 8 + length;
    let mut entries = BTreeMap::new();
    for (name, entry) in all.iter().filter(|(name, _)| *name != "__metadata__") {
        let entry = entry_of(entry, elements.len(), start)
            .map_err(|problem| Error::Tensor { name: name.clone(), problem })?;
        entries.insert(name.clone(), entry);
    }
    Ok(entries)
}

fn entry_of(json: &Value, len: usize, start: usize) -> Result<Entry, String> {
    let sizes = |key: &str| -> Result<Vec<usize>, String> {
        let list = json[key].as_array().ok_or_else(|| format!("it has no {key}"))?;
        let size = |v: &Value| v.as_u64().and_then(|v| usize::try_from(v).ok());
        list.iter().map(size).collect::<Option<_>>().ok_or_else(|| format!("its {key} are not all sizes"))
    };
    let name = json["dtype"].as_str().ok_or("it has no dtype")?.to_string();
    let shape = Shape::new(&sizes("shape")?).map_err(|e| e.to_string())?;
    let [from, to] = sizes("data_offsets")?[..] else { return Err("its data_offsets are not two".into()) };
    if from > to || to > len {
        return Err(format!("its elements lie at {from}..{to} of {len} bytes"));
    }
    if let Some(dtype) = dtype(&name) {
        let needed = TensorType::new(dtype, shape).bytes();
        if needed != to - from {
            return Err(format!("{name}{shape} takes {needed} bytes, there are {}", to - from));
        }
    }
    Ok(Entry { dtype: name, shape, bytes: start + from..start + to })
}

/// Mapping a file into memory, the one thing here that the compiler cannot check.
#[allow(unsafe_code)]
mod mapping {
    use std::fs::File;
    use std::path::Path;

    pub(super) fn map(path: &Path) -> std::io::Result<memmap2::Mmap> {
        let file = File::open(path)?;
        // SAFETY: the mapping is private and read-only. Another process that changes the file changes numbers; one that
        // truncates it ends this process when those pages are read, as with every mapped file.
        unsafe { memmap2::Mmap::map(&file) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, elements: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), elements].concat()
    }

    #[test]
    fn tensors_come_back() {
        let header =
            r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let elements: Vec<u8> = [1f32, -2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
        let weights = Weights::from_bytes(file(header, &elements)).unwrap();
        assert_eq!(weights.names().collect::<Vec<_>>(), ["a"]);
        assert_eq!(weights.tensor("a").unwrap().as_slice::<f32>().unwrap(), &[1.0, -2.5]);
        assert!(weights.tensor("b").unwrap_err().to_string().contains("did you mean `a`"));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let of = |entry: &str| file(&format!(r#"{{"w":{entry}}}"#), &[0; 16]);
        for (bytes, words) in [
            (vec![1, 2, 3], "shorter than 8"),
            (u64::MAX.to_le_bytes().to_vec(), "claims"),
            (file("[]", &[]), "no JSON object"),
            (file("{", &[]), "its header"),
            (of(r#"{"dtype":"F32","shape":[4],"data_offsets":[0,32]}"#), "0..32 of 16"),
            (of(r#"{"dtype":"F32","shape":[4],"data_offsets":[8,4]}"#), "8..4"),
            (of(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,16]}"#), "takes 12 bytes"),
            (of(r#"{"dtype":"F32","shape":[18446744073709551615,8],"data_offsets":[0,16]}"#), "too large"),
            (of(r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,16]}"#), "not all sizes"),
            (of(r#"{"shape":[4],"data_offsets":[0,16]}"#), "no dtype"),
        ] {
            let error = Weights::from_bytes(bytes).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains(words), "`{error}` should say `{words}`");
        }
    }
}
