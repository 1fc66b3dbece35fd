//! A packed weight as f32 in memory, for matmuls of so many rows that decoding it once is cheap. They run as several
//! products of f16 then, or by matrices of f32. (Those of f16 itself decode it to where matrices are loaded from: see `coop::packed`.)

use std::fmt;

use olivine_ir::DType;
use olivine_kernel::{Access, Elem, MatrixSupport};
use olivine_program::DeviceCaps;

use crate::launch::Launch;
use crate::math;
use crate::matmul::coop::form::MatrixForm;
use crate::matmul::problem::Problem;
use crate::packed::weight::Weight;
use crate::site::{Memory, Site, linear_group, recorded_class, rounded};

/// Elements of an invocation.
const RUN: u32 = 8;
/// Bytes of floats that a matmul may take beside the weight.
const MOST_BYTES: u64 = 512 << 20;
/// Rows from which on decoding first is the default.
const MANY: usize = 256;

/// The name of the family in records.
const FAMILY: &str = "dequant_matmul";

/// When a weight is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decoding {
    /// Tile by tile, by the kernel that multiplies.
    Fused,
    /// All of it, before.
    First,
}

impl fmt::Display for Decoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Decoding::Fused => "fused",
            Decoding::First => "first",
        })
    }
}

/// Whether a device has matrices for matmuls of f32.
fn has_matrices(caps: &DeviceCaps) -> bool {
    let target = &caps.target;
    let splits = || target.matrices.iter().any(|m| m.operand == Elem::F16);
    (target.matrix_support == MatrixSupport::Full && splits()) || MatrixForm::of(Elem::F32, target).is_some()
}

/// The weight's elements in scratch memory, of the dtype of x, if a matmul should begin with that.
pub(crate) fn first(
    problem: &Problem<'_>,
    weight: &Weight,
    site: &mut Site<'_>,
) -> Result<Option<Memory>, String> {
    let dtype = problem.dtype();
    let bytes = (problem.columns() * problem.k_number() * dtype.size()) as u64;
    if dtype != DType::F32 || bytes > MOST_BYTES.min(site.caps.max_buffer_bytes) {
        return Ok(None);
    }
    let apt = has_matrices(site.caps) && problem.m >= MANY;
    let default = if apt { Decoding::First } else { Decoding::Fused };
    let is_tuned = site.is_tuned(FAMILY);
    let [m, batches] = [problem.m, problem.batches()].map(|size| rounded(recorded_class(size, is_tuned)));
    let [n, k] = [problem.columns(), problem.k_number()].map(rounded);
    let class = format!("{} {dtype} {m}x{n}x{k} b{batches}", weight.name());
    let candidates = vec![Decoding::Fused, Decoding::First];
    if site.tuned(FAMILY, class, default, candidates) == Decoding::Fused {
        return Ok(None);
    }
    let memory = site.scratch(bytes);
    unpack(problem, weight, memory, site)?;
    Ok(Some(memory))
}

/// Decodes all elements.
fn unpack(problem: &Problem<'_>, weight: &Weight, to: Memory, site: &mut Site<'_>) -> Result<(), String> {
    let (n, columns) = (problem.columns(), problem.k_number());
    let runs = columns.div_ceil(RUN as usize);
    let group = site.group_size(256);
    let k = site.builder("dequantize", group);
    let l = Launch::new(&k);
    let declared = weight.declare(&l);
    let out = l.bind("out", math::elem(problem.dtype()), Access::Write, to);
    let (total, width, k_size) = (l.size("n", n * runs), l.size("runs", runs), l.size("k", columns));

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(total), || {
        let row = work / width;
        let k_offset = (work - row * width) * RUN;
        declared.store_run((row, k_offset, RUN), (out, row * k_size + k_offset), (columns, k_size));
    });
    let moved = weight.bytes() + (n * columns * problem.dtype().size()) as u64;
    let bound = l.done();
    site.dispatch(k, bound, (n * runs).div_ceil(group as usize) as u64, (0, moved))
}
