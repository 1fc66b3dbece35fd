//! NumPy's `.npy` files: versions 1 to 3, both orders of elements, both orders of bytes.
//!
//! ```
//! use olivine::ir::port::ElementType;
//! use olivine::{ir::Tensor, npy};
//! let tensor = Tensor::from([1.0f32, 2.0]);
//! let mut file = Vec::new();
//! npy::write(&mut file, &tensor, ElementType::F32).unwrap();
//! assert_eq!(npy::read(&file, ElementType::F32)?, tensor);
//! # Ok::<(), olivine::Error>(())
//! ```

use std::io::Write;

use olivine_ir::port::ElementType;
use olivine_ir::{DType, Data, Shape, Tensor};

use crate::Error;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Bytes of a tensor that are written at a time, whole elements of every dtype.
const PIECE: usize = 1 << 16;

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    /// Order of bytes, kind and size: `<f4`.
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
    /// Where the elements begin.
    data: usize,
}

/// The tensor that a file holds, for an input of these elements.
pub fn read(bytes: &[u8], element: ElementType) -> Result<Tensor, Error> {
    tensor(bytes, element).map_err(|problem| Error::Npy { problem })
}

fn tensor(bytes: &[u8], element: ElementType) -> Result<Tensor, String> {
    let header = header(bytes)?;
    let (order, kind) = header.descr.split_at_checked(1).ok_or("the element type is empty")?;
    if !matches!(order, "<" | "|" | ">" | "=") {
        return Err(format!("the element type `{}` has no order of bytes", header.descr));
    }
    let stored =
        Stored::of(kind).ok_or_else(|| format!("elements of type `{}` cannot be read", header.descr))?;
    if !stored.serves(element) {
        return Err(format!("its elements are `{}`, the input takes {element}", header.descr));
    }
    let shape = Shape::new(&header.shape).map_err(|e| e.to_string())?;
    let (count, size) = (shape.numel(), stored.size());
    let expected = count.checked_mul(size).ok_or("too many elements")?;
    let rest = &bytes[header.data..];
    if rest.len() != expected {
        return Err(format!("{count} elements take {expected} bytes, there are {}", rest.len()));
    }
    let mut raw = rest.to_vec();
    if order == ">" {
        raw.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    if header.fortran && shape.rank() > 1 {
        raw = row_major(&raw, &header.shape, size);
    }
    let data = stored.data(element, &raw)?;
    Tensor::from_data(shape, data).map_err(|e| e.to_string())
}

/// Writes a tensor as a file. What NumPy has no type for is written as one that holds every value of it: bfloat16 as
/// float32.
pub fn write(to: &mut impl Write, tensor: &Tensor, element: ElementType) -> std::io::Result<()> {
    let descr = match (element, tensor.dtype()) {
        (ElementType::U16, DType::U32) => "<u2",
        (ElementType::U64, DType::I64) => "<u8",
        (_, DType::F32 | DType::BF16) => "<f4",
        (_, DType::F16) => "<f2",
        (_, DType::F64) => "<f8",
        (_, DType::I8) => "|i1",
        (_, DType::U8) => "|u1",
        (_, DType::I16) => "<i2",
        (_, DType::I32) => "<i4",
        (_, DType::U32) => "<u4",
        (_, DType::I64) => "<i8",
        (_, DType::Bool) => "|b1",
    };
    let sizes: Vec<String> = tensor.shape().iter().map(|d| format!("{d},")).collect();
    let mut text =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", sizes.join(" "));
    // Elements begin at a multiple of 64; version 1 counts the header in 16 bits, and eight sizes never exceed them.
    let open = MAGIC.len() + 4 + text.len() + 1;
    text.extend(std::iter::repeat_n(' ', open.next_multiple_of(64) - open));
    text.push('\n');
    to.write_all(MAGIC)?;
    to.write_all(&[1, 0])?;
    to.write_all(&(text.len() as u16).to_le_bytes())?;
    to.write_all(text.as_bytes())?;
    // Piece by piece: a copy of all bytes would take as much again as the tensor.
    let size = tensor.dtype().size();
    for piece in tensor.bytes().chunks(PIECE) {
        let mut bytes = piece.to_vec();
        if cfg!(target_endian = "big") {
            bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        match (element, tensor.dtype()) {
            (ElementType::U16, DType::U32) => {
                bytes = bytes.chunks_exact(4).flat_map(|x| [x[0], x[1]]).collect();
            }
            // The upper half of an f32.
            (_, DType::BF16) => bytes = bytes.chunks_exact(2).flat_map(|x| [0, 0, x[0], x[1]]).collect(),
            _ => {}
        }
        to.write_all(&bytes)?;
    }
    Ok(())
}

/// A type that elements are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    Of(DType),
    U16,
    U64,
    /// Two bytes that NumPy has no name for: bfloat16.
    Void2,
}

impl Stored {
    fn of(kind: &str) -> Option<Stored> {
        Some(match kind {
            "f4" => Stored::Of(DType::F32),
            "f2" => Stored::Of(DType::F16),
            "f8" => Stored::Of(DType::F64),
            "i1" => Stored::Of(DType::I8),
            "u1" => Stored::Of(DType::U8),
            "i2" => Stored::Of(DType::I16),
            "i4" => Stored::Of(DType::I32),
            "u4" => Stored::Of(DType::U32),
            "i8" => Stored::Of(DType::I64),
            "b1" | "?" => Stored::Of(DType::Bool),
            "u2" => Stored::U16,
            "u8" => Stored::U64,
            "V2" => Stored::Void2,
            _ => return None,
        })
    }

    fn size(self) -> usize {
        match self {
            Stored::Of(dtype) => dtype.size(),
            Stored::U16 | Stored::Void2 => 2,
            Stored::U64 => 8,
        }
    }

    /// Whether elements stored so can be an input's: of the same type, or of one that holds all its values.
    fn serves(self, element: ElementType) -> bool {
        match (self, element) {
            (Stored::U16, ElementType::U16) | (Stored::U64, ElementType::U64) => true,
            (Stored::Void2 | Stored::Of(DType::F32), ElementType::BF16) => true,
            (Stored::Of(_), ElementType::U16 | ElementType::U64 | ElementType::BF16) => false,
            (Stored::Of(dtype), element) => element.dtype() == Some(dtype),
            _ => false,
        }
    }

    /// The elements as a graph holds them, from bytes in this machine's order.
    fn data(self, element: ElementType, raw: &[u8]) -> Result<Data, String> {
        let of = |dtype, raw: &[u8]| Data::from_bytes(dtype, raw).map_err(|e| e.to_string());
        match self {
            Stored::Of(DType::Bool) => Ok(Data::Bool(raw.iter().map(|b| *b != 0).collect())),
            Stored::Of(DType::F32) if element == ElementType::BF16 => {
                // Rounded to the nearest, ties to even, as the scalar conversion does.
                let Data::F32(values) = of(DType::F32, raw)? else { return Err("no floats".into()) };
                let rounded = values.iter().map(|x| Tensor::scalar_of(DType::BF16, f64::from(*x)));
                let bytes: Vec<u8> = rounded.flat_map(|t| t.bytes().to_vec()).collect();
                of(DType::BF16, &bytes)
            }
            Stored::Of(dtype) => of(dtype, raw),
            Stored::Void2 => of(DType::BF16, raw),
            Stored::U64 => of(DType::I64, raw),
            Stored::U16 => {
                let wide = raw.chunks_exact(2).map(|b| u32::from(u16::from_ne_bytes([b[0], b[1]])));
                Ok(Data::U32(wide.collect()))
            }
        }
    }
}

/// Elements whose first axis moves fastest, with the last moving fastest.
fn row_major(raw: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut index = vec![0; shape.len()];
    for _ in 0..raw.len() / size.max(1) {
        let at = index.iter().zip(shape).rev().fold(0, |at, (i, d)| at * d + i);
        out.extend_from_slice(&raw[at * size..(at + 1) * size]);
        for (i, d) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < *d {
                break;
            }
            *i = 0;
        }
    }
    out
}

fn header(bytes: &[u8]) -> Result<Header, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is no .npy file")?;
    let (version, rest) = rest.split_at_checked(2).ok_or("the file ends in its header")?;
    let wide = match version[0] {
        1 => 2,
        2 | 3 => 4,
        other => return Err(format!("version {other} of .npy is unknown")),
    };
    let (length, rest) = rest.split_at_checked(wide).ok_or("the file ends in its header")?;
    let length = length.iter().rev().fold(0usize, |n, b| n << 8 | usize::from(*b));
    let text = rest.get(..length).ok_or("the file ends in its header")?;
    let text = std::str::from_utf8(text).map_err(|_| "the header is no text")?;
    let mut parser = Parser { rest: text };
    let mut header = Header {
        descr: String::new(),
        fortran: false,
        shape: Vec::new(),
        data: MAGIC.len() + 2 + wide + length,
    };
    let mut seen = Vec::new();
    parser.expect("{")?;
    while !parser.takes("}") {
        let key = parser.string()?;
        parser.expect(":")?;
        match key {
            "descr" => header.descr = parser.string()?.to_string(),
            "fortran_order" => header.fortran = parser.truth()?,
            "shape" => header.shape = parser.sizes()?,
            other => return Err(format!("the header has a field `{other}`")),
        }
        seen.push(key);
        if !parser.takes(",") {
            parser.expect("}")?;
            break;
        }
    }
    seen.sort_unstable();
    if seen != ["descr", "fortran_order", "shape"] {
        return Err("the header does not have descr, fortran_order and shape once each".into());
    }
    Ok(header)
}

/// The few words of Python that a header is written in.
struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn takes(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.takes(token) { Ok(()) } else { Err(format!("the header lacks a `{token}`")) }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let quote = if self.takes("'") { '\'' } else { '"' };
        if quote == '"' {
            self.expect("\"")?;
        }
        let (text, rest) = self.rest.split_once(quote).ok_or("a string in the header does not end")?;
        self.rest = rest;
        Ok(text)
    }

    fn truth(&mut self) -> Result<bool, String> {
        if self.takes("True") {
            return Ok(true);
        }
        self.expect("False").map(|()| false)
    }

    fn sizes(&mut self) -> Result<Vec<usize>, String> {
        self.expect("(")?;
        let mut sizes = Vec::new();
        while !self.takes(")") {
            let digits = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
            let (number, rest) = self.rest.split_at(digits);
            sizes.push(number.parse().map_err(|_| "a size in the header is no number")?);
            self.rest = rest;
            // Python 2 wrote large sizes with an L.
            self.takes("L");
            if !self.takes(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([version, 0]);
        match version {
            1 => out.extend((header.len() as u16).to_le_bytes()),
            _ => out.extend((header.len() as u32).to_le_bytes()),
        }
        out.extend(header.as_bytes());
        out.extend(data);
        out
    }

    #[test]
    fn what_is_written_is_read_back_in_every_type() {
        for element in [
            ElementType::F32,
            ElementType::F16,
            ElementType::BF16,
            ElementType::F64,
            ElementType::I8,
            ElementType::I16,
            ElementType::I32,
            ElementType::I64,
            ElementType::U8,
            ElementType::U16,
            ElementType::U32,
            ElementType::U64,
            ElementType::Bool,
            ElementType::I4,
            ElementType::F8E4M3FN,
        ] {
            for shape in [&[][..], &[0], &[3], &[2, 1, 2]] {
                let dtype = element.dtype().unwrap();
                let shape = Shape::new(shape).unwrap();
                let scalars = (0..shape.numel()).map(|i| Tensor::scalar_of(dtype, (i % 2) as f64));
                let raw: Vec<u8> = scalars.flat_map(|t| t.bytes().to_vec()).collect();
                let tensor = Tensor::from_data(shape, Data::from_bytes(dtype, &raw).unwrap()).unwrap();
                let mut written = Vec::new();
                write(&mut written, &tensor, element).unwrap();
                assert_eq!((written.len() - tensor_bytes(&tensor, element)) % 64, 0);
                assert_eq!(read(&written, element).unwrap(), tensor, "{element}{shape}");
            }
        }
    }

    fn tensor_bytes(tensor: &Tensor, element: ElementType) -> usize {
        let size = match element {
            ElementType::BF16 => 4,
            ElementType::U16 => 2,
            _ => tensor.dtype().size(),
        };
        tensor.shape().numel() * size
    }

    #[test]
    fn both_orders_of_elements_and_of_bytes_are_read() {
        let c = file(
            1,
            "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }\n",
            &[0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0],
        );
        let f = file(
            2,
            "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3)}",
            &[0, 0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5],
        );
        let (c, f) = (read(&c, ElementType::I16).unwrap(), read(&f, ElementType::I16).unwrap());
        assert_eq!(c.as_slice::<i16>().unwrap(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(c, f);
    }

    #[test]
    fn bad_files_are_errors_that_say_why() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
        for (bytes, word) in [
            (b"NUMPY".to_vec(), "no .npy"),
            (MAGIC.to_vec(), "ends in its header"),
            (file(9, good, &[0; 4]), "version 9"),
            (file(1, good, &[0; 3]), "there are 3"),
            (file(1, good, &[0; 8]), "there are 8"),
            (file(1, "{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", &[0; 8]), "c8"),
            (file(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }", &[0; 4]), "takes f32"),
            (file(1, "{'descr': '<f4', 'shape': (1,), }", &[0; 4]), "fortran_order"),
            (file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", &[0; 4]), "no number"),
            (file(1, "{'descr': '<f4", &[0; 4]), "does not end"),
            (
                file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999999)}", &[]),
                "",
            ),
        ] {
            let error = read(&bytes, ElementType::F32).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let whole = file(1, good, &[0; 4]);
        for length in 0..whole.len() {
            assert!(read(&whole[..length], ElementType::F32).is_err());
        }
    }
}
