//! Weights as a file stores them: elements of few bits stay packed, and nodes may read their bytes as another type.

use std::collections::HashMap;

use olivine_ir::{BlockFormat, DType, Data, Error, Tensor, TensorType, memory};

use crate::ElementType;
use crate::tensor::small;

/// The format of packed elements of a type, if there is one.
pub(crate) fn format_of(element: ElementType) -> Option<BlockFormat> {
    Some(match element {
        ElementType::U2 => BlockFormat::U2,
        ElementType::U4 => BlockFormat::U4,
        ElementType::I4 => BlockFormat::I4,
        ElementType::F8E4M3FN => BlockFormat::F8_E4M3,
        ElementType::F8E5M2 => BlockFormat::F8_E5M2,
        _ => return None,
    })
}

/// The type of a weight where it is not packed.
pub(crate) fn dense_type(element: ElementType, tensor: &Tensor) -> TensorType {
    let ty = tensor.ty();
    match (ty.packed, element.dtype()) {
        (Some(_), Some(dtype)) => TensorType::new(dtype, ty.elements()),
        _ => ty,
    }
}

/// A weight with an element of its dtype for each of its elements.
pub(crate) fn dense(element: ElementType, tensor: &Tensor) -> Tensor {
    if tensor.ty().packed.is_none() {
        return tensor.clone();
    }
    let codes = Codes::of(tensor);
    let count = tensor.ty().elements().numel();
    let data = small(element, (0..count).map(|i| u32::from(codes.at(i))));
    // As many elements as the type says.
    Tensor::from_data(tensor.ty().elements(), data).unwrap_or_else(|_| tensor.clone())
}

/// An initializer that params read as a packed type, by the params' names.
#[derive(Default)]
pub(crate) struct PackedViews(HashMap<String, PackedView>);

/// How a param follows from an initializer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackedView {
    /// The initializer's name.
    pub(crate) source: String,
    /// What its elements are read as.
    pub(crate) ty: TensorType,
    /// Whether the initializer's last two axes are the other way round.
    pub(crate) transposed: bool,
}

impl PackedViews {
    /// The name of a param that is such a view; `is_taken` says which names are not free.
    pub(crate) fn name(&mut self, view: PackedView, is_taken: impl Fn(&str) -> bool) -> String {
        let how = if view.transposed { " transposed" } else { "" };
        let mut name = format!("{} as {}{how}", view.source, view.ty);
        while is_taken(&name) || self.0.get(&name).is_some_and(|other| *other != view) {
            name.push('\'');
        }
        self.0.insert(name.clone(), view);
        name
    }

    pub(crate) fn get(&self, name: &str) -> Option<&PackedView> {
        self.0.get(name)
    }
}

/// How a tensor becomes a packed one.
pub(crate) enum Packing {
    /// Its bytes have the layout.
    Shared,
    /// Its elements are packed by rows, each filled up with zeros.
    Packed(Grid),
}

/// How a tensor of one type is read as one of a packed type, if that can be.
pub(crate) fn packing(own: TensorType, ty: TensorType, transposed: bool) -> Option<Packing> {
    let format = ty.packed?;
    let as_stored = own.packed == Some(format) || own.packed.is_none() && own.dtype == DType::U8;
    if !transposed && as_stored && own.bytes() == ty.bytes() {
        return Some(Packing::Shared);
    }
    let is_integer = matches!(own.dtype, DType::U8 | DType::I8);
    if !is_integer || own.packed.is_some_and(|other| other != format) {
        return None;
    }
    let (from, to) = (own.elements(), ty.elements());
    let ([.., rows, columns], [.., padded]) = (from.dims(), to.dims()) else { return None };
    let (rows, columns) = if transposed { (*columns, *rows) } else { (*rows, *columns) };
    let matrices = from.numel() / (rows * columns).max(1);
    let fits = to.numel() == matrices * rows * padded && columns <= *padded;
    let per_byte = format.elements() / format.bytes();
    fits.then_some(Packing::Packed(Grid { rows, columns, padded: *padded, transposed, per_byte }))
}

/// A tensor as a packed one of this type.
pub(crate) fn packed(tensor: &Tensor, ty: TensorType, transposed: bool) -> Result<Tensor, Error> {
    let bad = || Error::BadData { problem: format!("{} cannot be read as {ty}", tensor.ty()) };
    let format = ty.packed.ok_or_else(bad)?;
    match packing(tensor.ty(), ty, transposed).ok_or_else(bad)? {
        Packing::Shared if tensor.ty().packed.is_some() => tensor.reshaped(ty.shape),
        Packing::Shared => tensor.reshaped(ty.shape)?.into_packed(format),
        Packing::Packed(grid) => {
            let mut bytes = memory::filled(0u8, ty.bytes())?;
            let (codes, size) = (Codes::of(tensor), grid.rows * grid.padded / grid.per_byte);
            for (i, matrix) in bytes.chunks_mut(size.max(1)).enumerate() {
                grid.pack(&codes, i * grid.rows * grid.columns, matrix);
            }
            Tensor::from_data(ty.shape, Data::U8(bytes))?.into_packed(format)
        }
    }
}

/// A matrix to pack.
pub(crate) struct Grid {
    rows: usize,
    columns: usize,
    /// Columns of a packed row.
    padded: usize,
    /// Whether the source has it column by column.
    transposed: bool,
    per_byte: usize,
}

/// Rows and columns that are packed together, so that a transposed source is read by whole cache lines.
const TILE: usize = 64;

impl Grid {
    fn pack(&self, codes: &Codes<'_>, first: usize, to: &mut [u8]) {
        let Grid { rows, columns, per_byte, .. } = *self;
        let row_bytes = self.padded / per_byte;
        let bits = 8 / per_byte;
        let mask = 0xffu8 >> (8 - bits);
        let (row_stride, column_stride) = if self.transposed { (1, rows) } else { (columns, 1) };
        for row_tile in (0..rows).step_by(TILE) {
            for column_tile in (0..columns).step_by(TILE) {
                for row in row_tile..rows.min(row_tile + TILE) {
                    for column in column_tile..columns.min(column_tile + TILE) {
                        let code = codes.at(first + row * row_stride + column * column_stride);
                        to[row * row_bytes + column / per_byte] |=
                            (code & mask) << (column % per_byte * bits);
                    }
                }
            }
        }
    }
}

/// The bit patterns of elements of 2, 4 or 8 bits, packed or one to a byte.
struct Codes<'a> {
    bytes: &'a [u8],
    per_byte: usize,
    bits: usize,
}

impl<'a> Codes<'a> {
    fn of(tensor: &'a Tensor) -> Self {
        let per_byte = tensor.ty().packed.map_or(1, |format| format.elements() / format.bytes());
        Codes { bytes: tensor.bytes(), per_byte, bits: 8 / per_byte }
    }

    fn at(&self, i: usize) -> u8 {
        let byte = self.bytes.get(i / self.per_byte).copied().unwrap_or(0);
        (byte >> (i % self.per_byte * self.bits)) & (0xffu8 >> (8 - self.bits))
    }
}
