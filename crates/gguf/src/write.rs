//! Writing files of version 3.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use crate::error::shortened;
use crate::metadata::{ARRAY, Metadata, Value};
use crate::read::{ALIGNMENT, ALIGNMENT_KEY};
use crate::{Error, TensorKind};

/// A file to be written: metadata, then tensors.
#[derive(Default)]
pub struct Writer {
    metadata: Metadata,
    tensors: Vec<Pending>,
    names: HashSet<String>,
}

struct Pending {
    name: String,
    /// The number of its type.
    id: u32,
    shape: Vec<usize>,
    /// Bytes that the tensor takes.
    length: usize,
    /// Those of a tensor that was given; declared ones come when they are written.
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry to the metadata. The alignment is always 32 and cannot be set.
    pub fn metadata(&mut self, key: impl Into<String>, value: Value) -> Result<(), Error> {
        let key = key.into();
        let wrong =
            |key: &str, problem: &str| Err(Error::Metadata { key: shortened(key), problem: problem.into() });
        if key.is_empty() || key.len() > usize::from(u16::MAX) {
            return wrong(&key, "a key has 1 to 65,535 bytes");
        }
        if key == ALIGNMENT_KEY {
            return wrong(&key, "files are written with the alignment that every reader expects");
        }
        if !is_well_formed(&value) {
            return wrong(&key, "an array of arrays holds something that is none");
        }
        match self.metadata.insert_or_key(key, value) {
            None => Ok(()),
            Some(key) => wrong(&key, "the key is there already"),
        }
    }

    /// Adds a tensor; its shape has the outermost size first.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        kind: TensorKind,
        shape: &[usize],
        bytes: Vec<u8>,
    ) -> Result<(), Error> {
        let name = name.into();
        let expected = self.declare(&name, kind, shape)?;
        let given = bytes.len();
        let last = self.tensors.len() - 1;
        self.tensors[last].bytes = bytes;
        if given != expected {
            self.names.remove(&name);
            self.tensors.pop();
            let problem = format!("{kind}{shape:?} takes {expected} bytes, there are {given}");
            return Err(Error::Tensor { name: shortened(&name), problem });
        }
        Ok(())
    }

    /// Adds a tensor whose bytes come when the file is written, by [`Writer::save_with`]. Returns how many they must be.
    pub fn declare(&mut self, name: &str, kind: TensorKind, shape: &[usize]) -> Result<usize, Error> {
        let wrong = |problem: String| Error::Tensor { name: shortened(name), problem };
        let length = kind.bytes_of(shape).map_err(wrong)?;
        let id = kind.id().ok_or_else(|| wrong(format!("GGUF has no type {kind}")))?;
        if shape.len() > 4 {
            return Err(wrong(format!("it has {} sizes; ggml reads up to 4", shape.len())));
        }
        if !self.names.insert(name.to_string()) {
            return Err(wrong("the name is taken".into()));
        }
        let (name, shape) = (name.to_string(), shape.to_vec());
        self.tensors.push(Pending { name, id, shape, length, bytes: Vec::new() });
        Ok(length)
    }

    /// Writes the file.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.save_with(path, |i| Ok(self.tensors[i].bytes.clone()))
    }

    /// Writes the file with the bytes of the i-th tensor from a function, one tensor at a time. The file appears under its name
    /// when it is whole.
    pub fn save_with(
        &self,
        path: impl AsRef<Path>,
        bytes: impl FnMut(usize) -> Result<Vec<u8>, Error>,
    ) -> Result<(), Error> {
        let path = path.as_ref();
        let failed = |source| Error::Write { path: path.to_path_buf(), source };
        // A device that is renamed over is gone.
        if path.metadata().is_ok_and(|meta| !meta.is_file()) {
            return Err(failed(std::io::Error::other("it is not a plain file")));
        }
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let written = std::fs::File::create_new(&part).map_err(failed).and_then(|file| {
            let mut file = std::io::BufWriter::new(file);
            self.write_with(&mut file, path, bytes)?;
            file.flush().map_err(failed)?;
            std::fs::rename(&part, path).map_err(failed)
        });
        if written.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        written
    }

    /// The file in memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.write_with(&mut bytes, Path::new("memory"), |i| Ok(self.tensors[i].bytes.clone()))?;
        Ok(bytes)
    }

    fn write_with(
        &self,
        into: &mut impl Write,
        path: &Path,
        mut bytes: impl FnMut(usize) -> Result<Vec<u8>, Error>,
    ) -> Result<(), Error> {
        let failed = |source| Error::Write { path: path.to_path_buf(), source };
        let head = self.head();
        into.write_all(&head).and_then(|()| pad(into, head.len())).map_err(failed)?;
        for (i, tensor) in self.tensors.iter().enumerate() {
            let bytes = bytes(i)?;
            if bytes.len() != tensor.length {
                let problem = format!("it takes {} bytes, there are {}", tensor.length, bytes.len());
                return Err(Error::Tensor { name: shortened(&tensor.name), problem });
            }
            into.write_all(&bytes).and_then(|()| pad(into, bytes.len())).map_err(failed)?;
        }
        Ok(())
    }

    /// What comes before the tensors.
    fn head(&self) -> Vec<u8> {
        let mut head = Vec::new();
        head.extend(b"GGUF");
        head.extend(3u32.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            string(&mut head, key);
            entry(&mut head, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            string(&mut head, &tensor.name);
            head.extend((tensor.shape.len() as u32).to_le_bytes());
            for size in tensor.shape.iter().rev() {
                head.extend((*size as u64).to_le_bytes());
            }
            head.extend(tensor.id.to_le_bytes());
            head.extend(offset.to_le_bytes());
            offset += tensor.length.next_multiple_of(ALIGNMENT) as u64;
        }
        head
    }
}

fn is_well_formed(value: &Value) -> bool {
    match value {
        Value::Arrays(arrays) => {
            arrays.iter().all(|inner| inner.array_len().is_some() && is_well_formed(inner))
        }
        _ => true,
    }
}

fn pad(into: &mut impl Write, length: usize) -> std::io::Result<()> {
    into.write_all(&[0; ALIGNMENT][..length.next_multiple_of(ALIGNMENT) - length])
}

fn string(into: &mut Vec<u8>, text: &str) {
    into.extend((text.len() as u64).to_le_bytes());
    into.extend(text.as_bytes());
}

/// A value with its type before it.
fn entry(into: &mut Vec<u8>, value: &Value) {
    if value.array_len().is_some() {
        into.extend(ARRAY.to_le_bytes());
        array(into, value);
    } else {
        into.extend(value.id().to_le_bytes());
        single(into, value);
    }
}

fn single(into: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(x) => into.push(*x),
        Value::I8(x) => into.extend(x.to_le_bytes()),
        Value::U16(x) => into.extend(x.to_le_bytes()),
        Value::I16(x) => into.extend(x.to_le_bytes()),
        Value::U32(x) => into.extend(x.to_le_bytes()),
        Value::I32(x) => into.extend(x.to_le_bytes()),
        Value::F32(x) => into.extend(x.to_le_bytes()),
        Value::Bool(x) => into.push(u8::from(*x)),
        Value::String(x) => string(into, x),
        Value::U64(x) => into.extend(x.to_le_bytes()),
        Value::I64(x) => into.extend(x.to_le_bytes()),
        Value::F64(x) => into.extend(x.to_le_bytes()),
        arrays => array(into, arrays),
    }
}

/// The elements' type, their number and the elements.
fn array(into: &mut Vec<u8>, value: &Value) {
    into.extend(value.id().to_le_bytes());
    into.extend((value.array_len().unwrap_or(0) as u64).to_le_bytes());
    match value {
        Value::U8s(all) => into.extend(all),
        Value::I8s(all) => into.extend(all.iter().flat_map(|x| x.to_le_bytes())),
        Value::U16s(all) => into.extend(all.iter().flat_map(|x| x.to_le_bytes())),
        Value::I16s(all) => into.extend(all.iter().flat_map(|x| x.to_le_bytes())),
        Value::U32s(all) => into.extend(all.iter().flat_map(|x| x.to_le_bytes())),
        Value::I32s(all) => into.extend(all.iter().flat_map(|x| x.to_le_bytes())),
        Value::F32s(all) => into.extend(all.iter().flat_map(|x| x.to_le_bytes())),
        Value::Bools(all) => into.extend(all.iter().map(|&x| u8::from(x))),
        Value::Strings(all) => all.iter().for_each(|text| string(into, text)),
        Value::U64s(all) => into.extend(all.iter().flat_map(|x| x.to_le_bytes())),
        Value::I64s(all) => into.extend(all.iter().flat_map(|x| x.to_le_bytes())),
        Value::F64s(all) => into.extend(all.iter().flat_map(|x| x.to_le_bytes())),
        Value::Arrays(all) => all.iter().for_each(|inner| array(into, inner)),
        scalar => single(into, scalar),
    }
}
