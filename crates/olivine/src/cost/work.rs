//! What a step of a run does, in the terms that devices are measured in.

use olivine_cpu::ConvKind;
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
use olivine_gpu::{Content, Program};
use olivine_ir::DType;
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
use olivine_kernel::{Def, Elem, Kernel, MatrixUse, Type};

#[cfg(any(feature = "vulkan", feature = "wgpu"))]
use crate::engine::Branch;

/// The kernel that opens one branch of an `if`, and the position of the buffer with both branches' workgroups.
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
const BRANCH_GATE: &str = "branch_gate";
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
const BRANCH_GATE_WORDS: usize = 3;

/// Steps that run at the same rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// A number from the numbers at the same position, and other steps that pass over their operands once.
    Elementwise,
    /// Matmuls.
    Matmul,
    /// Matmuls by kernels for few rows.
    Gemv,
    /// Convolutions.
    Conv,
    /// Convolutions of a channel each.
    Depthwise,
    /// On the CPU, convolutions whose filters see one position.
    Pointwise,
    /// On the CPU, convolutions whose filters see few channels.
    FewChannels,
    /// Pooling and resizing.
    Pool,
    /// Attention.
    Attention,
    /// Sums, norms and softmax over rows.
    Rows,
    /// Copies that change the order of elements.
    Movement,
    /// The steps of a recurrent layer.
    Recurrence,
}

impl Family {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Family::Elementwise => "elementwise",
            Family::Matmul => "matmul",
            Family::Gemv => "gemv",
            Family::Conv => "conv",
            Family::Depthwise => "depthwise",
            Family::Pointwise => "pointwise",
            Family::FewChannels => "few channels",
            Family::Pool => "pool",
            Family::Attention => "attention",
            Family::Rows => "rows",
            Family::Movement => "movement",
            Family::Recurrence => "recurrence",
        }
    }

    /// The family of a kernel on the GPU, whose names begin with what they are.
    #[cfg(any(feature = "vulkan", feature = "wgpu"))]
    fn of_kernel(kernel: &str, op: &str) -> Self {
        let begins = |names: &[&str]| names.iter().any(|name| kernel.starts_with(name));
        if kernel.contains("_pack") || begins(&["split_f32", "pack_rows", "conv_filters", "conv_pixels"]) {
            // Operands on their way to another kernel's order.
            Family::Movement
        } else if begins(&["matmul_warpgroup_outliers", "matmul_warpgroup_sums"])
            || kernel.ends_with("_fixup")
        {
            Family::Elementwise
        } else if kernel.contains("gemv") || kernel.contains("small_m") {
            Family::Gemv
        } else if begins(&["matmul_split_k_sum", "whole_copy", "copy"]) {
            Family::Elementwise
        } else if begins(&["matmul", "grouped"]) {
            Family::Matmul
        } else if begins(&["conv_depthwise"]) {
            Family::Depthwise
        } else if kernel.contains("pool") {
            Family::Pool
        } else if begins(&["conv"]) {
            Family::Conv
        } else if begins(&["lstm", "gru", "rnn"]) {
            Family::Recurrence
        } else {
            Family::of_op(op)
        }
    }

    /// The family of an operation.
    fn of_op(op: &str) -> Self {
        match op {
            "matmul" | "grouped_matmul" | "qmatmul" | "dequant_matmul" => Family::Matmul,
            "conv" | "conv_transpose" | "qconv" => Family::Conv,
            "pool" | "adaptive_pool" | "resize" | "grid_sample" | "roi_align" => Family::Pool,
            "attention" => Family::Attention,
            "recurrence" => Family::Recurrence,
            "transpose" | "pad" | "gather" | "gather_elements" | "gather_nd" | "im2col" | "col2im" => {
                Family::Movement
            }
            op if op.contains("norm") || op.contains("softmax") || op.starts_with("reduce") => Family::Rows,
            op if op.starts_with("arg") || op.contains("sort") || op.contains("cum") => Family::Rows,
            "topk" | "top_k" | "fft" | "sample" | "nonzero" => Family::Rows,
            _ => Family::Elementwise,
        }
    }
}

/// What a step reads, writes and computes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Work {
    /// Which measurements it is held against.
    pub family: Family,
    /// The type of its node's first operand.
    pub dtype: DType,
    /// Floating-point operations, about, with those of lanes and tiles that hold no result.
    pub flops: u64,
    /// Those of them, on the CPU, that are in functions such as exp.
    pub functions: u64,
    /// Bytes that it must read and write at least.
    pub bytes: u64,
    /// Those of them that are weights or constants, which a run reads once.
    pub stored: u64,
    /// Bytes of weights that it lays out for its kernel in every run, on the CPU.
    pub repacked: u64,
    /// Whether it waits for the steps before it.
    pub waits: bool,
    /// How often a run does it.
    pub times: u64,
}

impl Work {
    /// Bytes that are read or written, and nothing else.
    pub(crate) fn moving(bytes: u64) -> Self {
        let (family, dtype) = (Family::Movement, DType::U8);
        let (flops, functions, stored, repacked) = (0, 0, 0, 0);
        Work { family, dtype, flops, functions, bytes, stored, repacked, waits: true, times: 1 }
    }

    /// The work of a step on the CPU; they run one after another.
    pub(crate) fn of_cpu(cost: &olivine_cpu::StepCost) -> Self {
        let family = match cost.conv {
            Some(ConvKind::Depthwise) => Family::Depthwise,
            Some(ConvKind::Pointwise) => Family::Pointwise,
            Some(ConvKind::FewChannels) => Family::FewChannels,
            Some(ConvKind::Other) | None => Family::of_op(cost.op),
        };
        let olivine_cpu::StepCost { dtype, executed: flops, functions, bytes, stored, repacked, .. } = *cost;
        Work { family, dtype, flops, functions, bytes, stored, repacked, waits: true, times: 1 }
    }

    /// The work of a program's dispatches at every run.
    #[cfg(any(feature = "vulkan", feature = "wgpu"))]
    pub(crate) fn of_program(program: &Program) -> Vec<Work> {
        let waits = program.waits(&program.run);
        let is_stored = |buffer: olivine_gpu::BufferId| {
            let content = program.buffers.get(buffer.0 as usize).map(|decl| &decl.content);
            let is_constant = matches!(content, Some(Content::Constant(_) | Content::Table(_)));
            is_constant || matches!(content, Some(Content::Param(..) | Content::Packed { .. }))
        };
        let work = |(dispatch, waits): (&olivine_gpu::Dispatch, bool)| {
            let kernel = program.kernel(dispatch);
            let family = Family::of_kernel(&kernel.name, dispatch.op);
            // What normally returns at once takes its launch.
            let (flops, bytes) = if dispatch.fallback { (0, 0) } else { executed(family, dispatch, kernel) };
            let stored = dispatch.args.iter().filter(|slice| is_stored(slice.buffer)).map(|s| s.bytes);
            Work {
                family,
                dtype: matrix_dtype(kernel).unwrap_or(dispatch.dtype),
                flops,
                functions: 0,
                bytes,
                stored: stored.fold(0, u64::saturating_add).min(bytes),
                repacked: 0,
                waits,
                times: 1,
            }
        };
        program.run.iter().zip(waits).map(work).collect()
    }
}

#[cfg(any(feature = "vulkan", feature = "wgpu"))]
impl Work {
    /// For every dispatch of a program the branch that it belongs to.
    pub(crate) fn branches(program: &Program) -> Vec<Option<Branch>> {
        // One of a gate's buffers holds the workgroups of both branches' dispatches; its first number says where the second
        // branch's begin.
        let gate = |(at, dispatch): (usize, &olivine_gpu::Dispatch)| {
            let words = dispatch.args.get(BRANCH_GATE_WORDS).copied()?;
            let first = u64::from(*dispatch.params.first()?);
            (program.kernel(dispatch).name == BRANCH_GATE).then_some((at, words, first))
        };
        let gates: Vec<_> = program.run.iter().enumerate().filter_map(gate).collect();
        let branch = |(at, dispatch): (usize, &olivine_gpu::Dispatch)| {
            let place = dispatch.indirect?;
            let is_in = |(gate, words, _): &&(usize, olivine_gpu::Slice, u64)| {
                let end = words.offset.saturating_add(words.bytes);
                *gate < at && words.buffer == place.buffer && (words.offset..end).contains(&place.offset)
            };
            let (gate, words, first) = gates.iter().rev().find(is_in)?;
            Some(Branch { gate: *gate, second: place.offset - words.offset >= 4 * first })
        };
        program.run.iter().enumerate().map(branch).collect()
    }
}

/// The type that a kernel with matrix units multiplies, where that is another than its node's operands. f32 in three parts of
/// f16 counts as f32.
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
fn matrix_dtype(kernel: &Kernel) -> Option<DType> {
    let operand = |def: &Def| match def.ty {
        Type::Matrix(matrix) if matrix.role == MatrixUse::A => Some(matrix.elem),
        _ => None,
    };
    if kernel.name.contains("split_f32") {
        return None;
    }
    match kernel.values.iter().find_map(operand)? {
        Elem::F16 => Some(DType::F16),
        Elem::BF16 => Some(DType::BF16),
        Elem::I8 | Elem::U8 => Some(DType::I8),
        _ => None,
    }
}

/// Operations and bytes of a dispatch with those of invocations that have nothing to do: a tile that hangs over the edge of a
/// result is computed whole, and a row that is shorter than a workgroup occupies all of it.
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
fn executed(family: Family, dispatch: &olivine_gpu::Dispatch, kernel: &Kernel) -> (u64, u64) {
    let invocations =
        dispatch.groups.iter().fold(f64::from(kernel.group), |all, count| all * f64::from(*count));
    let args = dispatch.args.iter().zip(&kernel.args);
    let elements: f64 = args
        .filter(|(_, arg)| arg.access.writes())
        .map(|(slice, arg)| slice.bytes as f64 / f64::from(arg.elem.size().max(1)))
        .sum();
    let (flops, bytes) = (dispatch.flops as f64, dispatch.bytes as f64);
    let (flops, bytes) = match family {
        Family::Matmul | Family::Conv | Family::Attention => {
            // An invocation keeps the sums of its part of a tile in variables.
            let numbers = |ty: &Type| match ty {
                Type::Scalar(scalar) if scalar.is_float() => 1.0,
                Type::Vector(scalar, count) if scalar.is_float() => f64::from(*count),
                _ => 0.0,
            };
            let sums: f64 = kernel.vars.iter().map(numbers).sum();
            let whole = if elements > 0.0 { invocations * sums / elements } else { 1.0 };
            (flops * whole.max(1.0), bytes)
        }
        // Straight-line kernels: what they compute is what they consist of.
        Family::Elementwise => (invocations * kernel.values.len() as f64, bytes),
        Family::Rows => {
            let read = (bytes / 4.0).max(1.0);
            (flops, bytes * (invocations / read).max(1.0))
        }
        _ => (flops, bytes),
    };
    // A float that is too large becomes the largest integer.
    (flops as u64, bytes as u64)
}

#[cfg(all(test, any(feature = "vulkan", feature = "wgpu")))]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_operations_have_the_family_that_their_names_say() {
        for (kernel, op, family) in [
            ("matmul_tiled", "matmul", Family::Matmul),
            ("matmul_coop", "conv", Family::Matmul),
            ("matmul_gemv_axpy", "matmul", Family::Gemv),
            ("matmul_split_k_sum", "matmul", Family::Elementwise),
            ("matmul_stream_k_fixup", "matmul", Family::Elementwise),
            ("matmul_warpgroup_pack_a", "matmul", Family::Movement),
            ("split_f32_rows", "matmul", Family::Movement),
            ("conv_stream_k", "conv", Family::Conv),
            ("conv_pixels", "conv", Family::Movement),
            ("conv_tiled", "conv", Family::Conv),
            ("conv_depthwise", "conv", Family::Depthwise),
            ("max_pool", "pool", Family::Pool),
            ("gru_step", "recurrence", Family::Recurrence),
            ("softmax_rows", "softmax", Family::Rows),
            ("reduce_mean_rows", "reduce_mean", Family::Rows),
            ("whole_copy", "conv", Family::Elementwise),
            ("elementwise", "fused", Family::Elementwise),
            ("something_new", "something_new", Family::Elementwise),
        ] {
            assert_eq!(Family::of_kernel(kernel, op), family, "{kernel} {op}");
        }
    }
}
