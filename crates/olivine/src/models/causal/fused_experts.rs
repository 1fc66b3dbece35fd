//! The experts of gpt-oss in folders: gates and up projections in one tensor, in MXFP4 or as plain matrices.
//!
//! A packed tensor has `_blocks`, u8 `[experts, rows, columns / 32, 16]`, and `_scales`, u8 `[experts, rows, columns / 32]`; its
//! rows are those of the transposed plain one. Rows of gates and of up projections alternate.

use olivine_ir::{BlockFormat, DType, Data, Shape, Tensor};

use super::folder::Folder;
use super::source::bad_tensor;
use crate::Error;

/// Elements and bytes of a block of MXFP4: numbers of two elements each, and an exponent in front of them.
const ELEMENTS: usize = 32;
const NUMBERS: usize = 16;

/// Where the tensor of an expert's part is.
pub(super) struct Fused {
    /// The tensor that has it: the matrices, or their biases.
    path: String,
    /// Which rows it has: the first and the distance to the next.
    rows: (usize, usize),
    bias: bool,
}

impl Folder {
    /// Where a folder that has experts in this layout keeps a tensor.
    pub(super) fn fused_expert(&self, name: &str) -> Option<Fused> {
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let (part, suffix) = part.strip_prefix("ffn_")?.split_once("_exps.")?;
        let (stem, rows) = match part {
            "gate" => ("gate_up_proj", (0, 2)),
            "up" => ("gate_up_proj", (1, 2)),
            "down" => ("down_proj", (0, 1)),
            _ => return None,
        };
        let path = format!("model.layers.{layer}.mlp.experts.{stem}");
        let (path, bias) = if suffix == "bias" { (format!("{path}_bias"), true) } else { (path, false) };
        let there = self.has_path(&path) || (!bias && self.has_path(&format!("{path}_blocks")));
        there.then_some(Fused { path, rows, bias })
    }

    /// Reads an expert's part.
    pub(super) fn fused(&self, name: &str, fused: &Fused) -> Result<Tensor, Error> {
        let blocks = self.ty(&format!("{}_blocks", fused.path)).filter(|_| !fused.bias);
        let rows = match blocks {
            Some(ty) => ty.shape.dims().get(1).copied(),
            None => self.ty(&fused.path).and_then(|ty| ty.shape.dims().last().copied()),
        };
        if !rows.unwrap_or(0).is_multiple_of(fused.rows.1) {
            return Err(bad_tensor(&fused.path, "its rows are not a gate and an up projection each"));
        }
        if fused.bias {
            let all = self.floating(name, self.read(&fused.path)?)?;
            let [experts, rows] = sizes(name, &all)?;
            let bytes = strided(all.bytes(), experts, rows, fused.rows);
            return of_bytes(&[experts, rows / fused.rows.1], all.dtype(), &bytes);
        }
        match self.has_path(&format!("{}_blocks", fused.path)) {
            true => self.packed(name, fused),
            false => self.plain(name, fused),
        }
    }

    /// Plain matrices `[experts, columns, rows]`, transposed.
    fn plain(&self, name: &str, fused: &Fused) -> Result<Tensor, Error> {
        let all = self.floating(name, self.read(&fused.path)?)?;
        let [experts, columns, rows] = sizes(name, &all)?;
        let (first, step) = fused.rows;
        let (size, bytes) = (all.dtype().size(), all.bytes());
        let mut out = Vec::with_capacity(bytes.len() / step);
        for expert in 0..experts {
            for row in (first..rows).step_by(step) {
                for column in 0..columns {
                    let at = ((expert * columns + column) * rows + row) * size;
                    out.extend_from_slice(&bytes[at..at + size]);
                }
            }
        }
        of_bytes(&[experts, rows / step, columns], all.dtype(), &out)
    }

    /// Blocks as GGUF has them: the exponent, then numbers of which the low halves are the first 16 elements.
    fn packed(&self, name: &str, fused: &Fused) -> Result<Tensor, Error> {
        let part = |suffix: &str| -> Result<Tensor, Error> {
            let path = format!("{}_{suffix}", fused.path);
            let tensor = self.read(&path)?;
            let u8s = tensor.dtype() == DType::U8;
            if u8s { Ok(tensor) } else { Err(bad_tensor(&path, format!("{} is not u8", tensor.dtype()))) }
        };
        let (blocks, scales) = (part("blocks")?, part("scales")?);
        let [experts, rows, count, numbers] = sizes(name, &blocks)?;
        if numbers != NUMBERS || scales.shape().dims() != [experts, rows, count] {
            let problem = format!("its blocks {} do not fit its scales {}", blocks.shape(), scales.shape());
            return Err(bad_tensor(name, problem));
        }
        let blocks = strided(blocks.bytes(), experts, rows, fused.rows);
        let scales = strided(scales.bytes(), experts, rows, fused.rows);
        let mut out = Vec::with_capacity(blocks.len() + scales.len());
        for (block, scale) in blocks.chunks_exact(NUMBERS).zip(&scales) {
            out.push(*scale);
            // A byte of theirs has neighbours; a byte of GGUF's has elements that are 16 apart.
            let element = |i: usize| (block[i / 2] >> (4 * (i % 2))) & 15;
            out.extend((0..NUMBERS).map(|i| element(i) | (element(i + NUMBERS) << 4)));
        }
        let shape = Shape::new(&[experts, rows / fused.rows.1, count * ELEMENTS])?;
        Tensor::packed(BlockFormat::MXFP4, shape, out).map_err(|e| bad_tensor(name, e.to_string()))
    }
}

/// The sizes of a tensor that must have so many dimensions.
fn sizes<const N: usize>(name: &str, tensor: &Tensor) -> Result<[usize; N], Error> {
    let dims = tensor.shape().dims();
    let found = dims.try_into().ok().filter(|dims: &[usize; N]| !dims.contains(&0));
    found.ok_or_else(|| bad_tensor(name, format!("{} has not {N} dimensions of at least 1", tensor.shape())))
}

/// Every nth row of every expert's.
fn strided(bytes: &[u8], experts: usize, rows: usize, (first, step): (usize, usize)) -> Vec<u8> {
    let row = bytes.len() / (experts * rows);
    let all = bytes.chunks_exact(row * rows);
    all.flat_map(|expert| expert.chunks_exact(row).skip(first).step_by(step).flatten().copied()).collect()
}

fn of_bytes(dims: &[usize], dtype: DType, bytes: &[u8]) -> Result<Tensor, Error> {
    Ok(Tensor::from_data(Shape::new(dims)?, Data::from_bytes(dtype, bytes)?)?)
}
