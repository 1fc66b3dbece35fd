//! Tensors of a model file: elements of every type, in every one of ONNX's ways to write them down.

use bytes::Bytes;
use olivine_ir::{DType, Data, Dim, Shape, Tensor, TensorType};

use crate::ElementType;
use crate::element::element_type;
use crate::error::Error;
use crate::files::{Files, Refused};
use crate::import::SMALL_WEIGHT;
use crate::proto::TensorProto;
use crate::proto::tensor_proto::DataLocation;
use crate::stored::format_of;

/// Tensors of at least this many bytes stay in the file where they can; smaller ones are not worth the pages.
const WORTH_SHARING: usize = 1 << 16;

/// The tensor that a proto describes; external data are looked for among the model's files.
pub(crate) fn decode(proto: &TensorProto, files: &Files) -> Result<(ElementType, Tensor), Error> {
    let location = || format!("tensor `{}`", proto.name());
    let bad = |problem: String| Error::invalid(location(), problem);
    let element = element_type(proto.data_type())
        .ok_or_else(|| bad(format!("element type {} is unknown", proto.data_type())))?;
    let dtype = element.dtype().ok_or_else(|| bad(format!("elements of type {element} cannot be held")))?;
    let shape = shape_of(&proto.dims).map_err(bad)?;
    if proto.segment.is_some() {
        return Err(bad("tensors in segments cannot be imported".into()));
    }
    let external = proto.data_location() == DataLocation::External;
    let raw = if external { Some(external_bytes(proto, files)?) } else { proto.raw_data.clone() };
    let data = match raw {
        Some(raw) => {
            check_length(element, shape.numel(), raw.len()).map_err(bad)?;
            if let Some(tensor) = shared(element, TensorType::new(dtype, shape), &raw) {
                return Ok((element, tensor));
            }
            let data = from_raw(element, dtype, shape.numel(), &raw).map_err(bad)?;
            if raw.len() >= WORTH_SHARING {
                files.release(&raw);
            }
            data
        }
        None => from_fields(proto, element, dtype, shape.numel()).map_err(bad)?,
    };
    Ok((element, Tensor::from_data(shape, data).map_err(|e| bad(e.to_string()))?))
}

/// As [`decode`]; elements of few bits that the file has in whole bytes stay there, packed.
pub(crate) fn decode_stored(proto: &TensorProto, files: &Files) -> Result<(ElementType, Tensor), Error> {
    let Some(element) = element_type(proto.data_type()) else { return decode(proto, files) };
    let ty = format_of(element).zip(shape_of(&proto.dims).ok());
    let ty = ty.and_then(|(format, shape)| TensorType::packed(format, shape).ok());
    let is_small = |ty: &TensorType| ty.elements().numel() <= SMALL_WEIGHT;
    let Some(ty) = ty.filter(|ty| !is_small(ty) && proto.segment.is_none()) else {
        return decode(proto, files);
    };
    let external = proto.data_location() == DataLocation::External;
    let raw = if external { Some(external_bytes(proto, files)?) } else { proto.raw_data.clone() };
    let Some(raw) = raw.filter(|raw| raw.len() == ty.bytes()) else { return decode(proto, files) };
    let raw = if raw.len() < WORTH_SHARING { Bytes::copy_from_slice(&raw) } else { raw };
    match Tensor::from_shared(ty, raw) {
        Ok(tensor) => Ok((element, tensor)),
        Err(_) => decode(proto, files),
    }
}

/// The elements where they are, if they are there as a graph holds them.
fn shared(element: ElementType, ty: TensorType, raw: &Bytes) -> Option<Tensor> {
    let as_held = element.is_native() || element == ElementType::U64;
    if cfg!(target_endian = "big") || !as_held || raw.len() < WORTH_SHARING {
        return None;
    }
    Tensor::from_shared(ty, raw.clone()).ok()
}

/// Whether so many elements take so many bytes.
fn check_length(element: ElementType, count: usize, bytes: usize) -> Result<(), String> {
    let expected = count.checked_mul(element.bits()).ok_or("too many elements")?.div_ceil(8);
    if bytes == expected {
        return Ok(());
    }
    Err(format!("{count} elements of {element} take {expected} bytes, there are {bytes}"))
}

/// Sizes as a shape, if they are no nonsense.
pub(crate) fn shape_of(dims: &[i64]) -> Result<Shape, String> {
    let sizes: Result<Vec<usize>, _> = dims.iter().map(|d| usize::try_from(*d)).collect();
    let sizes = sizes.map_err(|_| format!("sizes {dims:?} are not all from 0 on"))?;
    Shape::new(&sizes).map_err(|e| e.to_string())
}

/// As [`shape_of`], of sizes that may be expressions.
pub(crate) fn shape_of_sizes(sizes: &[Dim]) -> Result<Shape, String> {
    if sizes.iter().any(|size| *size < 0) {
        return Err(format!("sizes {sizes:?} are not all from 0 on"));
    }
    Shape::of_sizes(sizes).map_err(|e| e.to_string())
}

/// Elements in memory: little endian, those under a byte packed from the lowest bit on.
fn from_raw(element: ElementType, dtype: DType, count: usize, raw: &[u8]) -> Result<Data, String> {
    check_length(element, count, raw.len())?;
    match element.bits() {
        bits @ (2 | 4) => {
            let mask = (1u8 << bits) - 1;
            let at = |i: usize| (raw[i * bits / 8] >> (i * bits % 8)) & mask;
            Ok(small(element, (0..count).map(|i| u32::from(at(i)))))
        }
        8 if element.is_native() => {
            if element == ElementType::Bool {
                return Ok(Data::Bool(raw.iter().map(|b| *b != 0).collect()));
            }
            Data::from_bytes(dtype, raw).map_err(|e| e.to_string())
        }
        8 => Ok(small(element, raw.iter().map(|b| u32::from(*b)))),
        16 if element == ElementType::U16 => {
            Ok(Data::U32(raw.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).collect()))
        }
        _ => Data::from_bytes(dtype, raw).map_err(|e| e.to_string()),
    }
}

/// Elements whose bit patterns are given, for types that are held by another.
pub(crate) fn small(element: ElementType, bits: impl Iterator<Item = u32>) -> Data {
    let signed = |width: u32| move |b: u32| ((b << (32 - width)) as i32 >> (32 - width)) as i8;
    match element {
        ElementType::I4 => Data::I8(bits.map(signed(4)).collect()),
        ElementType::I2 => Data::I8(bits.map(signed(2)).collect()),
        ElementType::U4 | ElementType::U2 => Data::U8(bits.map(|b| b as u8).collect()),
        _ => Data::F32(bits.map(|b| small_float(element, b as u8)).collect()),
    }
}

/// The value of a float of 8 or 4 bits.
pub(crate) fn small_float(element: ElementType, bits: u8) -> f32 {
    // Bits of the exponent and of the fraction, the exponent's bias, and whether one zero stands for NaN.
    let (width, fraction, bias) = match element {
        ElementType::F8E4M3FN => (8, 3, 7),
        ElementType::F8E4M3FNUZ => (8, 3, 8),
        ElementType::F8E5M2 => (8, 2, 15),
        ElementType::F8E5M2FNUZ => (8, 2, 16),
        ElementType::F4E2M1 => (4, 1, 1),
        _ => return if bits == 0xff { f32::NAN } else { 2f64.powi(i32::from(bits) - 127) as f32 },
    };
    let magnitude = bits & (((1u16 << (width - 1)) - 1) as u8);
    let negative = bits >> (width - 1) & 1 == 1;
    let special = match element {
        ElementType::F8E4M3FN if magnitude == 0x7f => Some(f32::NAN),
        ElementType::F8E4M3FNUZ | ElementType::F8E5M2FNUZ if bits == 0x80 => Some(f32::NAN),
        ElementType::F8E5M2 if magnitude == 0x7c => Some(f32::INFINITY),
        ElementType::F8E5M2 if magnitude > 0x7c => Some(f32::NAN),
        _ => None,
    };
    let value = special.unwrap_or_else(|| {
        let exponent = i32::from(magnitude >> fraction);
        let rest = f64::from(magnitude & ((1 << fraction) - 1)) / f64::from(1 << fraction);
        let number = if exponent == 0 {
            rest * 2f64.powi(1 - bias)
        } else {
            (1.0 + rest) * 2f64.powi(exponent - bias)
        };
        number as f32
    });
    if negative { -value } else { value }
}

/// Elements from the proto's typed fields.
fn from_fields(
    proto: &TensorProto,
    element: ElementType,
    dtype: DType,
    count: usize,
) -> Result<Data, String> {
    let counted = |len: usize| {
        if len == count { Ok(()) } else { Err(format!("the shape holds {count} elements, there are {len}")) }
    };
    let words = &proto.int32_data;
    Ok(match element {
        ElementType::F32 => {
            counted(proto.float_data.len())?;
            Data::F32(proto.float_data.clone())
        }
        ElementType::F64 => {
            counted(proto.double_data.len())?;
            Data::F64(proto.double_data.clone())
        }
        ElementType::I64 => {
            counted(proto.int64_data.len())?;
            Data::I64(proto.int64_data.clone())
        }
        ElementType::U64 => {
            counted(proto.uint64_data.len())?;
            Data::I64(proto.uint64_data.iter().map(|v| *v as i64).collect())
        }
        ElementType::U32 => {
            counted(proto.uint64_data.len())?;
            Data::U32(proto.uint64_data.iter().map(|v| *v as u32).collect())
        }
        ElementType::I4 | ElementType::U4 | ElementType::I2 | ElementType::U2 | ElementType::F4E2M1 => {
            let bytes: Vec<u8> = words.iter().map(|w| *w as u8).collect();
            from_raw(element, dtype, count, &bytes)?
        }
        _ => {
            counted(words.len())?;
            let halves = || words.iter().flat_map(|w| (*w as u16).to_ne_bytes()).collect::<Vec<u8>>();
            match element {
                ElementType::I32 => Data::I32(words.clone()),
                ElementType::I16 => Data::I16(words.iter().map(|w| *w as i16).collect()),
                ElementType::I8 => Data::I8(words.iter().map(|w| *w as i8).collect()),
                ElementType::U8 => Data::U8(words.iter().map(|w| *w as u8).collect()),
                ElementType::U16 => Data::U32(words.iter().map(|w| *w as u32 & 0xffff).collect()),
                ElementType::Bool => Data::Bool(words.iter().map(|w| *w != 0).collect()),
                ElementType::F16 | ElementType::BF16 => {
                    Data::from_bytes(dtype, &halves()).map_err(|e| e.to_string())?
                }
                _ => small(element, words.iter().map(|w| *w as u32 & 0xff)),
            }
        }
    })
}

/// The bytes of a tensor that another file holds.
fn external_bytes(proto: &TensorProto, files: &Files) -> Result<Bytes, Error> {
    let location = format!("tensor `{}`", proto.name());
    let bad = |problem: String| Error::invalid(location.clone(), problem);
    let entry =
        |key: &str| proto.external_data.iter().find(|e| e.key() == key).map(|e| e.value().to_string());
    let number = |key: &str| match entry(key) {
        None => Ok(None),
        Some(text) => {
            text.trim().parse::<usize>().map(Some).map_err(|_| bad(format!("{key} `{text}` is no size")))
        }
    };
    let location = entry("location").ok_or_else(|| bad("external data without a location".into()))?;
    let all = files.beside(&location).map_err(|e| match e {
        Refused::Model(problem) => bad(problem),
        Refused::File(error) => error,
    })?;
    let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
    let end = match length {
        Some(length) => offset.checked_add(length),
        None => Some(all.len()),
    };
    match end {
        Some(end) if offset <= end && end <= all.len() => Ok(all.slice(offset..end)),
        _ => Err(bad(format!(
            "its data are bytes {offset} on ({} of them) of `{location}`, which has {}",
            length.map_or("all".to_string(), |l| l.to_string()),
            all.len()
        ))),
    }
}
