//! The header: every tensor's type and bytes, checked as the format's own library checks them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;
use std::ops::Range;

use olivine_files::Format;
use olivine_ir::{DType, MAX_RANK, Shape};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::Error;

/// A header may not be longer than this, as the format says.
const MAX_HEADER: usize = 100_000_000;
/// More tensors than any model has: what is kept of a header takes more memory than the text of short names.
const MAX_TENSORS: usize = 1 << 20;
/// Bytes of a name that go into messages.
const LONGEST_NAME: usize = 200;

/// A tensor of the file.
pub(crate) struct Entry {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
    /// Its bytes in the file.
    pub(crate) bytes: Range<usize>,
}

/// The format's name for an element type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dtype(&'static Known);

/// Name, bits of an element, and the dtype that holds it.
type Known = (&'static str, usize, Option<DType>);

/// The format's name for a dtype.
pub(crate) fn name_of(dtype: DType) -> &'static str {
    KNOWN.iter().find(|(_, _, held)| *held == Some(dtype)).map_or("", |(name, ..)| name)
}

/// All types that the format has.
const KNOWN: [Known; 20] = [
    ("BOOL", 8, Some(DType::Bool)),
    ("F4", 4, None),
    ("F6_E2M3", 6, None),
    ("F6_E3M2", 6, None),
    ("U8", 8, Some(DType::U8)),
    ("I8", 8, Some(DType::I8)),
    ("F8_E5M2", 8, None),
    ("F8_E4M3", 8, None),
    ("F8_E8M0", 8, None),
    ("I16", 16, Some(DType::I16)),
    ("U16", 16, None),
    ("F16", 16, Some(DType::F16)),
    ("BF16", 16, Some(DType::BF16)),
    ("I32", 32, Some(DType::I32)),
    ("U32", 32, Some(DType::U32)),
    ("F32", 32, Some(DType::F32)),
    ("C64", 64, None),
    ("F64", 64, Some(DType::F64)),
    ("I64", 64, Some(DType::I64)),
    ("U64", 64, None),
];

impl Dtype {
    /// The dtype that holds such elements, if there is one.
    pub(crate) fn dtype(self) -> Option<DType> {
        self.0.2
    }

    fn named(name: &str) -> Option<Dtype> {
        KNOWN.iter().find(|known| known.0 == name).map(Dtype)
    }

    /// Bytes of so many elements; `None` if they are not whole.
    fn bytes(self, elements: usize) -> Option<usize> {
        let bits = elements.checked_mul(self.0.1)?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.0)
    }
}

/// The tensors of a file: they must cover its bytes from the header to the end, without overlap or gap.
pub(crate) fn read(file: &[u8]) -> Result<BTreeMap<String, Entry>, Error> {
    let other = || Format::of(file).filter(|format| *format != Format::Safetensors);
    entries(file).map_err(|error| match (&error, other()) {
        (Error::NotSafetensors { .. }, Some(other)) => {
            Error::NotSafetensors { problem: format!("it is {other}") }
        }
        _ => error,
    })
}

fn entries(file: &[u8]) -> Result<BTreeMap<String, Entry>, Error> {
    let bad = |problem: String| Error::NotSafetensors { problem };
    let (length, rest) =
        file.split_first_chunk::<8>().ok_or_else(|| bad("it is shorter than 8 bytes".into()))?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_HEADER {
        return Err(bad(format!("its header claims {length} bytes; {MAX_HEADER} are allowed")));
    }
    if length > rest.len() {
        return Err(bad(format!("its header claims {length} bytes, {} follow", rest.len())));
    }
    let (text, elements) = rest.split_at(length);
    let Header(infos) = serde_json::from_slice(text).map_err(|e| bad(format!("its header: {e}")))?;
    let start = 8 + length;
    let mut entries = BTreeMap::new();
    for (name, info) in infos {
        let entry = entry_of(&info, elements.len(), start)
            .map_err(|problem| Error::Tensor { name: shortened(&name).into(), problem })?;
        entries.insert(name, entry);
    }
    covered(&entries, start, file.len())?;
    Ok(entries)
}

fn entry_of(info: &Info, len: usize, start: usize) -> Result<Entry, String> {
    let Info { dtype, shape, data_offsets: (from, to) } = *info;
    let place = || format!("its elements are at {from}..{to} of {len} bytes");
    let (from, to) = usize::try_from(from).ok().zip(usize::try_from(to).ok()).ok_or_else(place)?;
    if from > to || to > len {
        return Err(place());
    }
    let there = to - from;
    match dtype.bytes(shape.numel()) {
        Some(needed) if needed == there => {}
        Some(needed) => return Err(format!("{dtype}{shape} takes {needed} bytes, there are {there}")),
        None => return Err(format!("{dtype}{shape} does not take a whole number of bytes")),
    }
    Ok(Entry { dtype, shape, bytes: start + from..start + to })
}

/// Whether the tensors follow each other from the end of the header to the end of the file.
fn covered(entries: &BTreeMap<String, Entry>, start: usize, end: usize) -> Result<(), Error> {
    let mut order: Vec<(&String, &Range<usize>)> = entries.iter().map(|(name, e)| (name, &e.bytes)).collect();
    order.sort_unstable_by_key(|(_, bytes)| (bytes.start, bytes.end));
    let mut at = start;
    for (name, bytes) in order {
        let wrong = |problem: String| Err(Error::Tensor { name: shortened(name).into(), problem });
        if bytes.start < at {
            return wrong(format!("its first byte, {}, belongs to another tensor", bytes.start - start));
        }
        if bytes.start > at {
            return wrong(format!("{} bytes before it belong to no tensor", bytes.start - at));
        }
        at = bytes.end;
    }
    if at < end {
        let problem = format!("its last {} bytes belong to no tensor", end - at);
        return Err(Error::NotSafetensors { problem });
    }
    Ok(())
}

fn shortened(name: &str) -> &str {
    let end = (0..=LONGEST_NAME.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or(0)]
}

/// What the JSON says of the tensors. It is read as it comes, without a tree of values beside it.
struct Header(BTreeMap<String, Info>);

#[derive(serde::Deserialize)]
struct Info {
    dtype: Dtype,
    #[serde(deserialize_with = "shape")]
    shape: Shape,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Header, M::Error> {
                let (mut all, mut metadata) = (BTreeMap::new(), false);
                while let Some(name) = map.next_key::<String>()? {
                    let twice =
                        |name: &str| M::Error::custom(format!("`{}` is there twice", shortened(name)));
                    if name == "__metadata__" {
                        if std::mem::replace(&mut metadata, true) {
                            return Err(twice(&name));
                        }
                        map.next_value::<Option<Metadata>>()?;
                        continue;
                    }
                    if all.len() == MAX_TENSORS {
                        return Err(M::Error::custom(format!("more than {MAX_TENSORS} tensors")));
                    }
                    match all.entry(name) {
                        Slot::Occupied(slot) => return Err(twice(slot.key())),
                        Slot::Vacant(slot) => {
                            let named =
                                |e| M::Error::custom(format!("tensor `{}`: {e}", shortened(slot.key())));
                            let info = map.next_value().map_err(named)?;
                            slot.insert(info);
                        }
                    }
                }
                Ok(Header(all))
            }
        }
        json.deserialize_map(Tensors)
    }
}

/// Notes on the file: texts by name, which nothing here needs.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("texts by name")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Metadata, M::Error> {
                while map.next_entry::<IgnoredAny, Text>()?.is_some() {}
                Ok(Metadata)
            }
        }
        /// A text that is not kept.
        struct Text;
        impl<'de> Deserialize<'de> for Text {
            fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
                Cow::<str>::deserialize(json).map(|_| Text)
            }
        }
        json.deserialize_map(Texts)
    }
}

impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Dtype;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a dtype")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Dtype, E> {
                Dtype::named(name).ok_or_else(|| E::custom(format!("dtype `{}` is unknown", shortened(name))))
            }
        }
        json.deserialize_str(Name)
    }
}

/// Sizes, no more of them than a shape has.
fn shape<'de, D: Deserializer<'de>>(json: D) -> Result<Shape, D::Error> {
    struct Sizes;
    impl<'de> Visitor<'de> for Sizes {
        type Value = Shape;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of sizes")
        }

        fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Shape, S::Error> {
            let (mut sizes, mut rank) = ([0usize; MAX_RANK], 0);
            while let Some(size) = list.next_element()? {
                *sizes
                    .get_mut(rank)
                    .ok_or_else(|| S::Error::custom(format!("it has more than {MAX_RANK} dimensions")))? =
                    size;
                rank += 1;
            }
            Shape::new(&sizes[..rank]).map_err(S::Error::custom)
        }
    }
    json.deserialize_seq(Sizes)
}
