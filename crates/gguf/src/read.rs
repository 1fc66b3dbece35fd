//! The header of one file: metadata and the tensors' places, all of it checked.

use std::collections::HashSet;
use std::ops::Range;

use crate::bytes::{Bytes, Number};
use crate::error::shortened;
use crate::metadata::{ARRAY, Metadata, Value};
use crate::{Error, TensorKind};

/// More sizes than any tensor has.
const MAX_RANK: u32 = 8;
/// Arrays in arrays in arrays.
const MAX_NESTING: u32 = 4;
/// Tensors begin at multiples of this unless the metadata say otherwise.
pub(crate) const ALIGNMENT: usize = 32;
/// The key that says otherwise.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// A tensor's entry.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: TensorKind,
    /// Outermost size first.
    pub(crate) shape: Vec<usize>,
    /// Its bytes in the file.
    pub(crate) bytes: Range<usize>,
}

/// What a file has before its tensors.
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) entries: Vec<Entry>,
}

/// Reads and checks the header of a whole file.
pub(crate) fn header(file: &[u8]) -> Result<Header, Error> {
    let wrong = |problem: String| Error::NotGguf { problem };
    let mut bytes = Bytes::new(file);
    let magic = bytes.take(4, "the magic number")?;
    if magic != b"GGUF" {
        return Err(wrong(format!("it begins with {magic:02x?}, not with GGUF")));
    }
    let version: u32 = bytes.number("the version")?;
    match version {
        1..=3 => bytes.short_lengths = version == 1,
        _ if (1..=3).contains(&version.swap_bytes()) => {
            return Err(wrong("it is big endian; only little endian is read".into()));
        }
        _ => return Err(wrong(format!("it is of version {version}; 1 to 3 are read"))),
    }
    // The least that a tensor and an entry of the metadata take: a name's length, a rank or type, a type and an offset.
    let length = if version == 1 { 4 } else { 8 };
    let tensors = bytes.length("the number of tensors")?;
    let keys = bytes.count(length + 5, "the number of metadata entries")?;
    let mut metadata = Metadata::default();
    for _ in 0..keys {
        let key = bytes.string("a metadata key")?.to_string();
        let value = value(&mut bytes, &key)?;
        if let Some(key) = metadata.insert_or_key(key, value) {
            return Err(Error::Metadata { key: shortened(&key), problem: "the key is there twice".into() });
        }
    }
    let alignment = alignment(&metadata)?;
    let tensors = usize::try_from(tensors)
        .ok()
        .filter(|&n| n <= bytes.left() / (length + 16))
        .ok_or_else(|| wrong(format!("it claims {tensors} tensors, {} bytes are left", bytes.left())))?;
    let mut infos = Vec::new();
    reserve(&mut infos, tensors)?;
    let mut names = HashSet::new();
    for _ in 0..tensors {
        let info = info(&mut bytes)?;
        if !names.insert(info.0) {
            return Err(Error::Tensor { name: shortened(info.0), problem: "the name is there twice".into() });
        }
        infos.push(info);
    }
    let start = bytes.at().next_multiple_of(alignment);
    let entries = entries(&infos, start, file.len(), alignment)?;
    Ok(Header { version, metadata, entries })
}

fn reserve<T>(list: &mut Vec<T>, count: usize) -> Result<(), Error> {
    let problem = || format!("out of memory: {count} entries");
    list.try_reserve_exact(count).map_err(|_| Error::NotGguf { problem: problem() })
}

fn alignment(metadata: &Metadata) -> Result<usize, Error> {
    let Some(value) = metadata.get(ALIGNMENT_KEY) else { return Ok(ALIGNMENT) };
    let alignment = value.as_u64().and_then(|n| usize::try_from(n).ok());
    alignment.filter(|n| n.is_power_of_two() && *n <= 1 << 20).ok_or_else(|| {
        let problem = format!("{} is not a power of two up to 2^20", shortened(&value.to_string()));
        Error::Metadata { key: ALIGNMENT_KEY.into(), problem }
    })
}

fn value(bytes: &mut Bytes<'_>, key: &str) -> Result<Value, Error> {
    let named = |error| match error {
        Error::NotGguf { problem } => Error::Metadata { key: shortened(key), problem },
        other => other,
    };
    let id: u32 = bytes.number("its type").map_err(named)?;
    match id {
        ARRAY => array(bytes, MAX_NESTING).map_err(named),
        _ => single(bytes, id).map_err(named),
    }
}

fn single(bytes: &mut Bytes<'_>, id: u32) -> Result<Value, Error> {
    const WHAT: &str = "its value";
    Ok(match id {
        0 => Value::U8(bytes.number(WHAT)?),
        1 => Value::I8(bytes.number(WHAT)?),
        2 => Value::U16(bytes.number(WHAT)?),
        3 => Value::I16(bytes.number(WHAT)?),
        4 => Value::U32(bytes.number(WHAT)?),
        5 => Value::I32(bytes.number(WHAT)?),
        6 => Value::F32(bytes.number(WHAT)?),
        7 => Value::Bool(boolean(bytes.number(WHAT)?)?),
        8 => Value::String(bytes.string(WHAT)?.to_string()),
        10 => Value::U64(bytes.number(WHAT)?),
        11 => Value::I64(bytes.number(WHAT)?),
        12 => Value::F64(bytes.number(WHAT)?),
        _ => return Err(Error::NotGguf { problem: format!("its type is {id}, which is not known") }),
    })
}

fn boolean(byte: u8) -> Result<bool, Error> {
    match byte {
        0 | 1 => Ok(byte == 1),
        _ => Err(Error::NotGguf { problem: format!("a bool is {byte}, neither 0 nor 1") }),
    }
}

fn array(bytes: &mut Bytes<'_>, nesting: u32) -> Result<Value, Error> {
    const WHAT: &str = "its array";
    let id: u32 = bytes.number("its elements' type")?;
    Ok(match id {
        0 => Value::U8s(numbers(bytes)?),
        1 => Value::I8s(numbers(bytes)?),
        2 => Value::U16s(numbers(bytes)?),
        3 => Value::I16s(numbers(bytes)?),
        4 => Value::U32s(numbers(bytes)?),
        5 => Value::I32s(numbers(bytes)?),
        6 => Value::F32s(numbers(bytes)?),
        7 => Value::Bools(numbers(bytes)?.into_iter().map(boolean).collect::<Result<_, _>>()?),
        8 => {
            let count = bytes.count(if bytes.short_lengths { 4 } else { 8 }, WHAT)?;
            let mut strings = Vec::new();
            reserve(&mut strings, count)?;
            for _ in 0..count {
                strings.push(bytes.string("a string of its array")?.to_string());
            }
            Value::Strings(strings)
        }
        ARRAY if nesting > 0 => {
            let count = bytes.count(8, WHAT)?;
            let mut arrays = Vec::new();
            reserve(&mut arrays, count)?;
            for _ in 0..count {
                arrays.push(array(bytes, nesting - 1)?);
            }
            Value::Arrays(arrays)
        }
        ARRAY => return Err(Error::NotGguf { problem: "its arrays are nested too deeply".into() }),
        10 => Value::U64s(numbers(bytes)?),
        11 => Value::I64s(numbers(bytes)?),
        12 => Value::F64s(numbers(bytes)?),
        _ => {
            return Err(Error::NotGguf {
                problem: format!("its elements' type is {id}, which is not known"),
            });
        }
    })
}

fn numbers<N: Number>(bytes: &mut Bytes<'_>) -> Result<Vec<N>, Error> {
    let count = bytes.count(N::SIZE, "its array")?;
    let raw = bytes.take(count * N::SIZE, "its array")?;
    let mut numbers = Vec::new();
    reserve(&mut numbers, count)?;
    numbers.extend(raw.chunks_exact(N::SIZE).map(N::of));
    Ok(numbers)
}

/// Name, type, shape, bytes and offset of a tensor.
type Info<'a> = (&'a str, TensorKind, Vec<usize>, usize, u64);

fn info<'a>(bytes: &mut Bytes<'a>) -> Result<Info<'a>, Error> {
    let name = bytes.string("a tensor's name")?;
    let wrong = |problem: String| Error::Tensor { name: shortened(name), problem };
    let named = |error| match error {
        Error::NotGguf { problem } => wrong(problem),
        other => other,
    };
    let rank: u32 = bytes.number("its rank").map_err(named)?;
    if rank > MAX_RANK {
        return Err(wrong(format!("it has {rank} sizes; {MAX_RANK} are allowed")));
    }
    let mut shape = Vec::new();
    for _ in 0..rank {
        let size = bytes.length("its shape").map_err(named)?;
        shape.push(usize::try_from(size).map_err(|_| wrong(format!("it has a size of {size}")))?);
    }
    shape.reverse(); // the file has the innermost size first
    let kind = TensorKind::from_id(bytes.number("its type").map_err(named)?).map_err(wrong)?;
    let length = kind.bytes_of(&shape).map_err(wrong)?;
    Ok((name, kind, shape, length, bytes.number("its offset").map_err(named)?))
}

fn entries(infos: &[Info<'_>], start: usize, end: usize, alignment: usize) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    reserve(&mut entries, infos.len())?;
    for (name, kind, shape, length, offset) in infos {
        let wrong = |problem: String| Error::Tensor { name: shortened(name), problem };
        if !offset.is_multiple_of(alignment as u64) {
            return Err(wrong(format!("its offset, {offset}, is not a multiple of {alignment}")));
        }
        let from = usize::try_from(*offset).ok().and_then(|offset| start.checked_add(offset));
        let bytes =
            from.and_then(|from| Some(from..from.checked_add(*length)?)).filter(|bytes| bytes.end <= end);
        let bytes = bytes.ok_or_else(|| {
            let there = end.saturating_sub(start);
            wrong(format!("its {length} bytes at {offset} end after the {there} bytes that there are"))
        })?;
        entries.push(Entry { name: (*name).to_string(), kind: *kind, shape: shape.clone(), bytes });
    }
    let mut order: Vec<&Entry> = entries.iter().filter(|entry| !entry.bytes.is_empty()).collect();
    order.sort_unstable_by_key(|entry| (entry.bytes.start, entry.bytes.end));
    for pair in order.windows(2) {
        if pair[1].bytes.start < pair[0].bytes.end {
            let problem = format!("it overlaps `{}`", shortened(&pair[0].name));
            return Err(Error::Tensor { name: shortened(&pair[1].name), problem });
        }
    }
    Ok(entries)
}
