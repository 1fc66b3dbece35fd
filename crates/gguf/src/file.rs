//! A model's file or files: mapped once, with one list of tensors.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use olivine_files::Contents;
use olivine_quant::decode;

use crate::error::shortened;
use crate::read::{Header, header};
use crate::{Error, Metadata, TensorKind};

/// More parts than any model comes in.
const MAX_PARTS: u64 = 1 << 12;

/// A model's metadata and tensors.
pub struct Gguf {
    version: u32,
    metadata: Metadata,
    tensors: Vec<Tensor>,
    places: HashMap<String, usize>,
    parts: Vec<Bytes>,
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub kind: TensorKind,
    /// Its sizes, outermost first: a weight that maps K features to N is `[N, K]`.
    pub shape: Vec<usize>,
    part: usize,
    bytes: Range<usize>,
}

impl Tensor {
    /// Elements of all sizes together.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes in the file.
    pub fn byte_size(&self) -> usize {
        self.bytes.len()
    }
}

impl Gguf {
    /// Opens a file; of a model in several parts, any of them opens all. Tensors are read when they are asked for.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let (source, first) = open(path)?;
        let mut file = Gguf::empty(first.version, first.metadata.clone());
        let Some((number, count)) = split(path, &first.metadata)? else {
            file.add(source, first)?;
            return Ok(file);
        };
        let mut opened = Some((source, first));
        for i in 0..count {
            let part = part_path(path, i, count)?;
            let wrong = |problem: String| Error::Part { path: part.clone(), problem };
            let (source, head) = if i == number {
                opened.take().ok_or_else(|| wrong("it is there twice".into()))?
            } else {
                open(&part)?
            };
            match split(&part, &head.metadata)? {
                Some(found) if found == (i, count) => {}
                Some((n, all)) => {
                    return Err(wrong(format!("it says that it is part {} of {all}", n + 1)));
                }
                None => return Err(wrong("it does not say that it is a part".into())),
            }
            if i == 0 {
                (file.version, file.metadata) = (head.version, head.metadata.clone());
            }
            file.add(source, head)?;
        }
        if let Some(claimed) = file.metadata.get("split.tensors.count").and_then(crate::Value::as_u64)
            && claimed != file.tensors.len() as u64
        {
            let problem = format!("it claims {claimed} tensors, the parts have {}", file.tensors.len());
            return Err(Error::Metadata { key: "split.tensors.count".into(), problem });
        }
        Ok(file)
    }

    /// Reads a file from memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        let head = header(&bytes)?;
        let mut file = Gguf::empty(head.version, head.metadata.clone());
        file.add(Contents::Owned(bytes), head)?;
        Ok(file)
    }

    fn empty(version: u32, metadata: Metadata) -> Self {
        Gguf { version, metadata, tensors: Vec::new(), places: HashMap::new(), parts: Vec::new() }
    }

    fn add(&mut self, source: Contents, head: Header) -> Result<(), Error> {
        for entry in head.entries {
            if self.places.insert(entry.name.clone(), self.tensors.len()).is_some() {
                let problem = "it is in two parts".into();
                return Err(Error::Tensor { name: shortened(&entry.name), problem });
            }
            let crate::read::Entry { name, kind, shape, bytes } = entry;
            self.tensors.push(Tensor { name, kind, shape, part: self.parts.len(), bytes });
        }
        self.parts.push(Bytes::from_owner(source));
        Ok(())
    }

    /// The version of the format: 1 to 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The metadata, those of the first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Every tensor, in the files' order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.places.get(name).map(|&i| &self.tensors[i])
    }

    /// A tensor's bytes, in the mapping.
    pub fn bytes(&self, tensor: &Tensor) -> &[u8] {
        self.parts.get(tensor.part).and_then(|part| part.get(tensor.bytes.clone())).unwrap_or_default()
    }

    /// A tensor's bytes, in the mapping, which lives as long as they do.
    pub fn shared_bytes(&self, tensor: &Tensor) -> Bytes {
        let part = self.parts.get(tensor.part).filter(|part| tensor.bytes.end <= part.len());
        part.map(|part| part.slice(tensor.bytes.clone())).unwrap_or_default()
    }

    /// A tensor's elements as f32; integers that f32 does not hold are rounded.
    pub fn decode(&self, tensor: &Tensor) -> Result<Vec<f32>, Error> {
        let wrong = |problem: String| Error::Tensor { name: shortened(&tensor.name), problem };
        let (bytes, elements) = (self.bytes(tensor), tensor.elements());
        let mut into = Vec::new();
        into.try_reserve_exact(elements)
            .map_err(|_| wrong(format!("out of memory: {elements} elements as f32")))?;
        match tensor.kind {
            TensorKind::F32 => each(bytes, &mut into, f32::from_le_bytes),
            TensorKind::F16 => each(bytes, &mut into, |b| half::f16::from_le_bytes(b).to_f32()),
            TensorKind::BF16 => each(bytes, &mut into, |b| half::bf16::from_le_bytes(b).to_f32()),
            TensorKind::F64 => each(bytes, &mut into, |b| f64::from_le_bytes(b) as f32),
            TensorKind::I8 => each(bytes, &mut into, |b| f32::from(i8::from_le_bytes(b))),
            TensorKind::I16 => each(bytes, &mut into, |b| f32::from(i16::from_le_bytes(b))),
            TensorKind::I32 => each(bytes, &mut into, |b| i32::from_le_bytes(b) as f32),
            TensorKind::I64 => each(bytes, &mut into, |b| i64::from_le_bytes(b) as f32),
            TensorKind::Blocks(format) => {
                into.resize(elements, 0.0);
                decode(format, bytes, &mut into).map_err(|e| wrong(e.to_string()))?;
            }
        }
        Ok(into)
    }
}

fn each<const N: usize>(bytes: &[u8], into: &mut Vec<f32>, of: impl Fn([u8; N]) -> f32) {
    into.extend(bytes.as_chunks::<N>().0.iter().map(|b| of(*b)));
}

fn open(path: &Path) -> Result<(Contents, Header), Error> {
    let map = Contents::map(path).map_err(|source| Error::File { path: path.to_path_buf(), source })?;
    let head = header(&map)?;
    Ok((map, head))
}

/// Which part a file is, counted from 0, and of how many; `None` for a model in one file.
fn split(path: &Path, metadata: &Metadata) -> Result<Option<(u64, u64)>, Error> {
    if metadata.get("split.count").is_none() {
        return Ok(None);
    }
    let (count, number) = (metadata.integer("split.count")?, metadata.integer("split.no")?);
    if count <= 1 {
        return Ok(None);
    }
    if number >= count || count > MAX_PARTS {
        let problem = format!("it says that it is part {} of {count}", number.saturating_add(1));
        return Err(Error::Part { path: path.to_path_buf(), problem });
    }
    Ok(Some((number, count)))
}

/// The path of a part: names end in `-00002-of-00003.gguf`.
fn part_path(path: &Path, i: u64, count: u64) -> Result<PathBuf, Error> {
    let wrong = || Error::Part {
        path: path.to_path_buf(),
        problem: format!(
            "it is one of {count} parts, but its name does not end in `-00001-of-{count:05}.gguf`"
        ),
    };
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(wrong)?;
    let stem = name.strip_suffix(&format!("-of-{count:05}.gguf")).ok_or_else(wrong)?;
    let (stem, digits) = stem.rsplit_once('-').ok_or_else(wrong)?;
    if digits.len() != 5 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    Ok(path.with_file_name(format!("{stem}-{:05}-of-{count:05}.gguf", i + 1)))
}
