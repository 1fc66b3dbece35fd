//! Runs a program over the output, block by block.

use std::cell::Cell;

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use olivine_ir::DType;
use olivine_ir::op::ScalarOp;

use super::layout::{Dims, Reader};
use super::program::{Program, Slot, Step, is_half};
use super::{cast, float, int};
use crate::operand::{Number, with_number};
use crate::simd::{self, half as narrow};

/// Elements of a block: a handful of registers of this length stay in the first-level cache.
pub(super) const BLOCK: usize = 1024;

/// Rows shorter than this are not worth a block of their own.
const SHORT_ROW: usize = 192;

#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Lines of a register, wide enough for a block of the widest dtype.
const LINES: usize = BLOCK * 8 / 64;

/// The registers of a thread.
#[derive(Default)]
pub(super) struct Scratch {
    registers: Vec<Vec<Line>>,
    /// For each input the byte position of the block in the operand's memory; none if a register holds it.
    direct: Vec<Option<usize>>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

impl Scratch {
    /// Lends the thread's registers.
    pub(super) fn with<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
        let mut scratch = SCRATCH.take().unwrap_or_default();
        let result = f(&mut scratch);
        SCRATCH.set(Some(scratch));
        result
    }

    fn prepare(&mut self, registers: usize, inputs: usize) {
        if self.registers.len() < registers {
            self.registers.resize_with(registers, || vec![Line([0; 64]); LINES]);
        }
        self.direct.clear();
        self.direct.resize(inputs, None);
    }
}

/// Where input 0 comes from when a larger kernel computes it.
#[derive(Clone, Copy)]
pub(super) enum Main<'a> {
    /// The run's elements in the input's dtype.
    Bytes(&'a [u8]),
    /// The run's elements in f32, for an f16 or bf16 input; rounded first.
    Wide(&'a [f32]),
    /// The old contents of the target's run.
    Target,
}

/// A program together with its operands' layouts.
pub(super) struct Sweep<'a> {
    program: &'a Program,
    readers: &'a [Reader<'a>],
    dims: Dims,
    /// Block length.
    block: usize,
    /// Blocks end where rows of this length do.
    row: usize,
    /// Whether results bypass the caches.
    stream: bool,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(
        program: &'a Program,
        readers: &'a [Reader<'a>],
        dims: &Dims,
        numel: usize,
        target_bytes: Option<usize>,
    ) -> Self {
        let inner = dims.inner();
        let by_rows = inner >= SHORT_ROW && readers.iter().any(Reader::prefers_rows);
        let row = if by_rows { inner } else { numel };
        // Equal pieces, so that a row of 1100 is not a block of 1024 and a stub.
        let stream = target_bytes.is_some_and(|b| b >= simd::STREAM_FROM);
        // Bursts of streamed stores must be short enough to drain while the next block is computed.
        let longest = if stream { BLOCK / 2 } else { BLOCK };
        let block = row.div_ceil(row.div_ceil(longest).max(1)).next_multiple_of(16).clamp(1, longest);
        Sweep { program, readers, dims: *dims, block, row: row.max(1), stream }
    }

    /// Elements that a task's length should be a multiple of.
    pub(super) fn step(&self) -> usize {
        self.block
    }

    /// Computes elements `start..start + len`; `outs` are the targets' bytes of that range.
    pub(super) fn run(
        &self,
        start: usize,
        len: usize,
        main: Option<Main<'_>>,
        outs: &mut [&mut [u8]],
        scratch: &mut Scratch,
    ) {
        let program = self.program;
        scratch.prepare(program.registers + program.inputs.len(), program.inputs.len());
        let widest = len.min(BLOCK);
        for (register, dtype, value) in &program.constants {
            fill(&mut scratch.registers[*register], *dtype, *value, widest);
        }
        for (i, reader) in self.readers.iter().enumerate() {
            if matches!(reader, Reader::Number(_)) && !(i == 0 && main.is_some()) {
                let register = &mut scratch.registers[program.registers + i];
                self.load(reader, program.inputs[i], 0, widest, register);
            }
        }
        let mut at = start;
        while at < start + len {
            let row_end = (at / self.row + 1).saturating_mul(self.row);
            let n = self.block.min(row_end - at).min(start + len - at);
            self.block(at, at - start, n, main, outs, scratch);
            at += n;
        }
        if self.stream {
            simd::stream_fence();
        }
    }

    fn block(
        &self,
        at: usize,
        offset: usize,
        n: usize,
        main: Option<Main<'_>>,
        outs: &mut [&mut [u8]],
        scratch: &mut Scratch,
    ) {
        let program = self.program;
        for (i, dtype) in program.inputs.iter().enumerate() {
            let register = &mut scratch.registers[program.registers + i];
            scratch.direct[i] = None;
            if let (0, Some(main)) = (i, main) {
                match main {
                    Main::Bytes(_) if !is_half(*dtype) => scratch.direct[0] = Some(offset * dtype.size()),
                    Main::Bytes(bytes) => widen_bytes(bytes, *dtype, offset, n, register),
                    Main::Wide(x) => {
                        let wide = view_mut::<f32>(register, n);
                        wide.copy_from_slice(&x[offset..offset + n]);
                        round(*dtype, wide);
                    }
                    Main::Target => widen_bytes(outs[0], *dtype, offset, n, register),
                }
                continue;
            }
            match &self.readers[i] {
                Reader::Number(_) => {}
                Reader::Target => widen_bytes(outs[0], *dtype, offset, n, register),
                reader => match reader.direct(&self.dims, at, n, dtype.size()) {
                    Some(position) if !is_half(*dtype) => scratch.direct[i] = Some(position),
                    Some(position) => {
                        widen_bytes(reader.bytes(), *dtype, position / dtype.size(), n, register);
                    }
                    None => self.load(reader, *dtype, at, n, register),
                },
            }
        }
        for step in &program.steps {
            let mut to = std::mem::take(&mut scratch.registers[step.to]);
            {
                let mut args: [&[u8]; 3] = [&[]; 3];
                for (i, (arg, slot)) in args.iter_mut().zip(&step.args).enumerate() {
                    *arg = self.slot(*slot, arg_dtype(step, i), n, main, scratch);
                }
                let size = step.result.size();
                match step.target {
                    Some(output) if !self.stream => {
                        let run = &mut outs[output][offset * size..(offset + n) * size];
                        run_step(step, args, run);
                    }
                    Some(output) => {
                        let register = &mut bytes_mut(&mut to)[..n * size];
                        run_step(step, args, register);
                        simd::stream_copy(register, &mut outs[output][offset * size..(offset + n) * size]);
                    }
                    None => {
                        let register = &mut bytes_mut(&mut to)[..n * register_size(step.result)];
                        run_step(step, args, register);
                        if is_half(step.result) {
                            round(step.result, bytemuck::cast_slice_mut(register));
                        }
                    }
                }
            }
            scratch.registers[step.to] = to;
        }
        for (output, (slot, dtype)) in program.outputs.iter().enumerate() {
            if program.steps.iter().any(|s| s.target == Some(output)) {
                continue;
            }
            let from = self.slot(*slot, *dtype, n, main, scratch);
            let to = &mut outs[output][offset * dtype.size()..(offset + n) * dtype.size()];
            store(from, *dtype, to);
        }
    }

    /// A block's elements of an operand, as registers hold them.
    fn slot<'s>(
        &'s self,
        slot: Slot,
        dtype: DType,
        n: usize,
        main: Option<Main<'s>>,
        scratch: &'s Scratch,
    ) -> &'s [u8] {
        match slot {
            Slot::Register(r) => &bytemuck::cast_slice(&scratch.registers[r])[..n * register_size(dtype)],
            Slot::Input(i) => match (scratch.direct[i], main) {
                (Some(at), Some(Main::Bytes(bytes))) if i == 0 => &bytes[at..at + n * dtype.size()],
                (Some(at), _) => &self.readers[i].bytes()[at..at + n * dtype.size()],
                (None, _) => {
                    let register = &scratch.registers[self.program.registers + i];
                    &bytemuck::cast_slice(register)[..n * register_size(dtype)]
                }
            },
        }
    }

    /// Gathers a block into a register.
    fn load(&self, reader: &Reader<'_>, dtype: DType, at: usize, n: usize, register: &mut [Line]) {
        match dtype.size() {
            1 => reader.gather(&self.dims, at, view_mut::<u8>(register, n)),
            2 if is_half(dtype) => {
                // The narrow elements are in the register's upper half while they are widened into its lower half.
                let (low, high) = bytes_mut(register).split_at_mut(BLOCK * 4);
                let raw = &mut high[..n * 2];
                reader.gather::<u16>(&self.dims, at, bytemuck::cast_slice_mut(raw));
                widen(dtype, raw, bytemuck::cast_slice_mut(&mut low[..n * 4]));
            }
            2 => reader.gather(&self.dims, at, view_mut::<u16>(register, n)),
            4 => reader.gather(&self.dims, at, view_mut::<u32>(register, n)),
            _ => reader.gather(&self.dims, at, view_mut::<u64>(register, n)),
        }
    }
}

fn bytes_mut(register: &mut [Line]) -> &mut [u8] {
    bytemuck::cast_slice_mut(register)
}

fn view_mut<T: Pod>(register: &mut [Line], n: usize) -> &mut [T] {
    &mut bytemuck::cast_slice_mut(register)[..n]
}

/// Bytes of an element in a register.
fn register_size(dtype: DType) -> usize {
    if is_half(dtype) { 4 } else { dtype.size() }
}

/// The dtype of a step's operand.
fn arg_dtype(step: &Step, operand: usize) -> DType {
    if step.op == ScalarOp::Where && operand == 0 { DType::Bool } else { step.dtype }
}

fn widen(dtype: DType, raw: &[u8], out: &mut [f32]) {
    if dtype == DType::F16 {
        narrow::widen_f16(bytemuck::cast_slice::<u8, f16>(raw), out);
    } else {
        narrow::widen_bf16(bytemuck::cast_slice::<u8, bf16>(raw), out);
    }
}

/// Copies elements `from..from + n` into a register.
fn widen_bytes(bytes: &[u8], dtype: DType, from: usize, n: usize, register: &mut [Line]) {
    let raw = &bytes[from * dtype.size()..(from + n) * dtype.size()];
    if is_half(dtype) {
        widen(dtype, raw, view_mut(register, n));
    } else {
        bytes_mut(register)[..raw.len()].copy_from_slice(raw);
    }
}

/// Rounds f32 numbers to a narrower dtype's.
fn round(dtype: DType, x: &mut [f32]) {
    match dtype {
        DType::F16 => narrow::round_f16(x),
        DType::BF16 => narrow::round_bf16(x),
        _ => {}
    }
}

/// Writes a register's elements to the target.
fn store(from: &[u8], dtype: DType, to: &mut [u8]) {
    match dtype {
        DType::F16 => narrow::narrow_f16(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to)),
        DType::BF16 => narrow::narrow_bf16(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to)),
        _ => to.copy_from_slice(from),
    }
}

fn fill(register: &mut [Line], dtype: DType, value: f64, n: usize) {
    match dtype {
        DType::F16 => view_mut::<f32>(register, n).fill(narrow::f16_from_f64(value)),
        DType::BF16 => view_mut::<f32>(register, n).fill(narrow::bf16_from_f64(value)),
        DType::Bool => view_mut::<u8>(register, n).fill(u8::from(value != 0.0)),
        _ => with_number!(dtype, T => view_mut::<T>(register, n).fill(T::from_f64(value))),
    }
}

/// Runs one step over a block of register elements.
fn run_step(step: &Step, args: [&[u8]; 3], out: &mut [u8]) {
    match (step.op, step.dtype) {
        (ScalarOp::Cast(to), from) => cast::cast(from, to, args[0], out),
        (ScalarOp::Bitcast(to), from) => cast::bitcast(from, to, args[0], out),
        (ScalarOp::Where, dtype) => int::select(register_size(dtype), args, out),
        (op, DType::F32 | DType::F16 | DType::BF16) => float::step32(op, step.dtype, args, out),
        (op, DType::F64) => float::step64(op, args, out),
        (op, DType::Bool) => int::step_bool(op, args, out),
        (op, DType::I8) => int::step::<i8>(op, args, out),
        (op, DType::U8) => int::step::<u8>(op, args, out),
        (op, DType::I16) => int::step::<i16>(op, args, out),
        (op, DType::I32) => int::step::<i32>(op, args, out),
        (op, DType::U32) => int::step::<u32>(op, args, out),
        (op, DType::I64) => int::step::<i64>(op, args, out),
    }
}
