//! A known matmul by warpgroups, run before anything relies on them: copies into a ring that wraps, both roles with their
//! registers, and multiplies of every type of element that kernels have.

use olivine_kernel::{Access, Builder, Elem, Kernel, Scalar, Target, Val, Var};
use olivine_program::Driver;

use super::trial::{Outcome, Trial};
use crate::Device;

/// What is multiplied: the types of elements of A and of B, and columns of a tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    elems: [Elem; 2],
    columns: u32,
}

/// Operands of matmuls of floats; tiles of 128 columns are those of f32 in two parts.
pub(crate) const FLOATS: [Operands; 3] = [
    Operands { elems: [Elem::F16, Elem::F16], columns: 256 },
    Operands { elems: [Elem::BF16, Elem::BF16], columns: 256 },
    Operands { elems: [Elem::F16, Elem::F16], columns: 128 },
];

/// Operands of matmuls of integers.
pub(crate) const INTEGERS: [Operands; 4] = [
    Operands { elems: [Elem::I8, Elem::I8], columns: 256 },
    Operands { elems: [Elem::I8, Elem::U8], columns: 256 },
    Operands { elems: [Elem::U8, Elem::I8], columns: 256 },
    Operands { elems: [Elem::U8, Elem::U8], columns: 256 },
];

/// Rows of the matmul, one tile, and its steps of 32 bytes along K: the ring wraps twice.
const ROWS: u32 = 128;
const STEPS: u32 = 12;
/// Slots of the ring.
const SLOTS: u32 = 5;

impl Operands {
    /// Bytes of a slot: a step of all columns.
    fn slot(self) -> u32 {
        self.columns * 32
    }
}

/// Runs the trials of some operands on a device whose caps say that it has warpgroups for them.
pub(crate) fn run(device: &Device, all: &[Operands]) -> Outcome {
    for operands in all {
        let Operands { elems: [a, b], columns } = operands;
        let outcome = match trial(*operands, &device.caps().target) {
            Ok(trial) => trial.run(device),
            Err(problem) => Outcome::Wrong(problem.to_string()),
        };
        let what = format!("{a} by {b}, {columns} columns");
        match outcome {
            Outcome::Right => {}
            Outcome::Wrong(problem) => return Outcome::Wrong(format!("{what}: {problem}")),
            Outcome::Gone(problem) => return Outcome::Gone(format!("warpgroups, {what}: {problem}")),
        }
    }
    Outcome::Right
}

pub(super) fn trial(operands: Operands, target: &Target) -> Result<Trial, olivine_kernel::Error> {
    Ok(Trial {
        kernel: kernel(operands, target)?,
        inputs: vec![left(operands.elems[0]), right(operands)],
        expected: expected(operands),
        params: vec![STEPS],
        groups: 1,
    })
}

/// The matmul: two warpgroups with 64 rows each, and one thread that copies.
fn kernel(operands: Operands, target: &Target) -> Result<Kernel, olivine_kernel::Error> {
    let k = Builder::new("warpgroup_trial", 384, target);
    write(&k, operands);
    k.finish()
}

fn write(k: &Builder, operands: Operands) {
    let Operands { elems, columns } = operands;
    let slot_bytes = operands.slot();
    let is_float = elems[0].scalar().is_float();
    let (a, b) = (k.arg("a", Elem::U32, Access::Read), k.arg("b", Elem::U32, Access::Read));
    let c = k.arg("c", if is_float { Elem::F32 } else { Elem::I32 }, Access::Write);
    let steps = k.param("steps", Scalar::U32);
    let ring = k.shared(Elem::U32, 4, SLOTS * slot_bytes / 16);
    let [full, empty] = [0, 1].map(|_| k.shared(Elem::U64, 1, SLOTS));
    k.if_(k.local_index().eq(0u32), || {
        for slot in 0..SLOTS {
            k.init_barrier(k.async_barrier(full, k.u32(slot)), 1);
            k.init_barrier(k.async_barrier(empty, k.u32(slot)), ROWS / 16);
        }
    });
    k.barrier();
    let multiplies = || {
        let me = k.local_index();
        let zero = || if is_float { k.f32(0.0) } else { k.i32(0) };
        let sums: Vec<Var<'_>> = (0..columns / 2).map(|_| k.var(zero())).collect();
        let left: [Var<'_>; 4] = std::array::from_fn(|_| k.var(k.u32(0)));
        k.for_(k.u32(0), steps, k.u32(1), |step| {
            let (slot, parity) = (step % SLOTS, step / SLOTS % 2u32);
            let words = a.load_vec((step * 256u32 + me) * 4u32, 4);
            left.iter().zip(words).for_each(|(var, word)| var.set(word));
            k.await_phase(k.async_barrier(full, slot), parity);
            k.warpgroup_fence();
            let right = k.warpgroup_operand(ring, slot * (slot_bytes / 16), [128, 256]);
            k.warpgroup_multiply(elems, &sums, left, right, step.gt(0u32));
            k.warpgroup_commit();
            k.warpgroup_wait(0);
            k.if_(k.lane().eq(0u32), || k.arrive(k.async_barrier(empty, slot), 0));
        });
        for (i, sums) in (0u32..).zip(sums.chunks(4)) {
            let sums: Vec<Val<'_>> = sums.iter().map(|sum| sum.get()).collect();
            c.store_vec(me * (columns / 2) + 4 * i, &sums);
        }
    };
    let copies = || {
        k.if_(k.local_index().eq(2 * ROWS), || {
            k.for_(k.u32(0), steps, k.u32(1), |step| {
                let (slot, parity) = (step % SLOTS, (step / SLOTS + 1u32) % 2u32);
                k.await_phase(k.async_barrier(empty, slot), parity);
                k.arrive(k.async_barrier(full, slot), slot_bytes);
                let from = step * (slot_bytes / 4);
                let to = (ring, slot * (slot_bytes / 16));
                k.copy_async(to, (b, from), slot_bytes, k.async_barrier(full, slot));
                k.prefetch(b, from, slot_bytes);
            });
        });
    };
    k.roles(vec![(ROWS / 16, 240, Box::new(multiplies)), (4, 24, Box::new(copies))]);
}

/// Small numbers whose sums are exact in any order, without a pattern that a wrong order keeps; u8 above 127 and below.
fn element(which: u32, elem: Elem, i: u32, j: u32) -> i32 {
    let mixed = (which * 0x9e37 + i * 641 + j * 40503).wrapping_mul(0x85eb_ca6b);
    let number = ((mixed >> 13) % 7) as i32;
    if elem == Elem::U8 { number * 41 } else { number - 3 }
}

/// The bytes of one of these numbers.
fn bytes_of(elem: Elem, x: i32) -> Vec<u8> {
    let f16 = [0, 0x3c00, 0x4000, 0x4200];
    let bf16 = [0, 0x3f80, 0x4000, 0x4040];
    let of = match elem {
        Elem::F16 => f16,
        Elem::BF16 => bf16,
        _ => return vec![x as u8],
    };
    let bits: u16 = of[x.unsigned_abs() as usize % 4] | if x < 0 { 0x8000 } else { 0 };
    bits.to_le_bytes().to_vec()
}

/// A: for every step the fragments of 256 threads.
fn left(elem: Elem) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Elements of 4 and of 32 bytes.
    let (each, step_size) = (4 / elem.size(), 32 / elem.size());
    for step in 0..STEPS {
        for thread in 0..2 * ROWS {
            for word in 0..4 {
                let row = thread / 32 * 16 + thread % 32 / 4 + word % 2 * 8;
                let first = step_size * step + thread % 4 * each + word / 2 * (step_size / 2);
                bytes.extend((first..first + each).flat_map(|k| bytes_of(elem, element(0, elem, row, k))));
            }
        }
    }
    bytes
}

/// B: for every step blocks of 8 columns and 16 bytes along K.
fn right(operands: Operands) -> Vec<u8> {
    let (elem, slot_bytes) = (operands.elems[1], operands.slot());
    let mut bytes = vec![0; (STEPS * slot_bytes) as usize];
    let (size, step_size) = (elem.size(), 32 / elem.size());
    for k in 0..step_size * STEPS {
        for column in 0..operands.columns {
            let along = k % step_size * size;
            let block = column / 8 * 256 + along / 16 * 128;
            let at = (k / step_size * slot_bytes + block + column % 8 * 16 + along % 16) as usize;
            bytes[at..at + size as usize].copy_from_slice(&bytes_of(elem, element(1, elem, k, column)));
        }
    }
    bytes
}

/// The sums of every thread.
fn expected(Operands { elems, columns }: Operands) -> Vec<u8> {
    let mut bytes = Vec::new();
    for thread in 0..2 * ROWS {
        for i in 0..columns / 2 {
            let row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
            let column = i / 4 * 8 + thread % 4 * 2 + i % 2;
            let of = |k| element(0, elems[0], row, k) * element(1, elems[1], k, column);
            let sum: i32 = (0..32 / elems[0].size() * STEPS).map(of).sum();
            match elems[0].scalar().is_float() {
                true => bytes.extend((sum as f32).to_le_bytes()),
                false => bytes.extend(sum.to_le_bytes()),
            }
        }
    }
    bytes
}
