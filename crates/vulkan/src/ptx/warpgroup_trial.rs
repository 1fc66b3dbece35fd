//! A known matmul by warpgroups, run before anything relies on them: copies into a ring that wraps, both roles with their
//! registers, and multiplies of every type of element that kernels have.

use olivine_kernel::{Access, Builder, Elem, Kernel, Scalar, Target, Val, Var};
use olivine_program::Driver;

use super::trial::{Outcome, Trial};
use crate::Device;

/// Types of elements that are multiplied.
pub(super) const ELEMS: [Elem; 2] = [Elem::F16, Elem::BF16];

/// Rows and columns of the matmul, one tile, and its steps of 16 along K: the ring wraps twice.
const ROWS: u32 = 128;
const COLUMNS: u32 = 256;
const STEPS: u32 = 12;
/// Slots of the ring, and bytes of each.
const SLOTS: u32 = 5;
const SLOT: u32 = COLUMNS * 32;

/// Runs the trial on a device whose caps say that it has warpgroups.
pub(crate) fn run(device: &Device) -> Outcome {
    for elem in ELEMS {
        let outcome = match trial(elem, &device.caps().target) {
            Ok(trial) => trial.run(device),
            Err(problem) => Outcome::Wrong(problem.to_string()),
        };
        match outcome {
            Outcome::Right => {}
            Outcome::Wrong(problem) => return Outcome::Wrong(format!("{elem}: {problem}")),
            Outcome::Gone(problem) => return Outcome::Gone(format!("warpgroups, {elem}: {problem}")),
        }
    }
    Outcome::Right
}

pub(super) fn trial(elem: Elem, target: &Target) -> Result<Trial, olivine_kernel::Error> {
    Ok(Trial {
        kernel: kernel(elem, target)?,
        inputs: vec![left(elem), right(elem)],
        expected: expected(),
        params: vec![STEPS],
        groups: 1,
    })
}

/// The matmul: two warpgroups with 64 rows each, and one thread that copies.
fn kernel(elem: Elem, target: &Target) -> Result<Kernel, olivine_kernel::Error> {
    let k = Builder::new("warpgroup_trial", 384, target);
    write(&k, elem);
    k.finish()
}

fn write(k: &Builder, elem: Elem) {
    let (a, b) = (k.arg("a", Elem::U32, Access::Read), k.arg("b", Elem::U32, Access::Read));
    let c = k.arg("c", Elem::F32, Access::Write);
    let steps = k.param("steps", Scalar::U32);
    let ring = k.shared(Elem::U32, 4, SLOTS * SLOT / 16);
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
        let sums: Vec<Var<'_>> = (0..COLUMNS / 2).map(|_| k.var(k.f32(0.0))).collect();
        let left: [Var<'_>; 4] = std::array::from_fn(|_| k.var(k.u32(0)));
        k.for_(k.u32(0), steps, k.u32(1), |step| {
            let (slot, parity) = (step % SLOTS, step / SLOTS % 2u32);
            let words = a.load_vec((step * 256u32 + me) * 4u32, 4);
            left.iter().zip(words).for_each(|(var, word)| var.set(word));
            k.await_phase(k.async_barrier(full, slot), parity);
            k.warpgroup_fence();
            let right = k.warpgroup_operand(ring, slot * (SLOT / 16), [128, 256]);
            k.warpgroup_multiply(elem, &sums, left, right, step.gt(0u32));
            k.warpgroup_commit();
            k.warpgroup_wait(0);
            k.if_(k.lane().eq(0u32), || k.arrive(k.async_barrier(empty, slot), 0));
        });
        for (i, sums) in (0u32..).zip(sums.chunks(4)) {
            let sums: Vec<Val<'_>> = sums.iter().map(|sum| sum.get()).collect();
            c.store_vec(me * (COLUMNS / 2) + 4 * i, &sums);
        }
    };
    let copies = || {
        k.if_(k.local_index().eq(2 * ROWS), || {
            k.for_(k.u32(0), steps, k.u32(1), |step| {
                let (slot, parity) = (step % SLOTS, (step / SLOTS + 1u32) % 2u32);
                k.await_phase(k.async_barrier(empty, slot), parity);
                k.arrive(k.async_barrier(full, slot), SLOT);
                let from = step * (SLOT / 4);
                k.copy_async((ring, slot * (SLOT / 16)), (b, from), SLOT, k.async_barrier(full, slot));
                k.prefetch(b, from, SLOT);
            });
        });
    };
    k.roles(vec![(ROWS / 16, 240, Box::new(multiplies)), (4, 24, Box::new(copies))]);
}

/// Small numbers whose sums are exact in any order, without a pattern that a wrong order keeps.
fn element(which: u32, i: u32, j: u32) -> i32 {
    let mixed = (which * 0x9e37 + i * 641 + j * 40503).wrapping_mul(0x85eb_ca6b);
    ((mixed >> 13) % 7) as i32 - 3
}

/// The bits of -3 to 3.
fn bits(elem: Elem, x: i32) -> u16 {
    let f16 = [0, 0x3c00, 0x4000, 0x4200];
    let bf16 = [0, 0x3f80, 0x4000, 0x4040];
    let of = if elem == Elem::F16 { f16 } else { bf16 };
    of[x.unsigned_abs() as usize % 4] | if x < 0 { 0x8000 } else { 0 }
}

/// A: for every step the fragments of 256 threads.
fn left(elem: Elem) -> Vec<u8> {
    let mut bytes = Vec::new();
    for step in 0..STEPS {
        for thread in 0..2 * ROWS {
            for word in 0..4 {
                let row = thread / 32 * 16 + thread % 32 / 4 + word % 2 * 8;
                let first = 16 * step + thread % 4 * 2 + word / 2 * 8;
                for depth in [first, first + 1] {
                    bytes.extend(bits(elem, element(0, row, depth)).to_le_bytes());
                }
            }
        }
    }
    bytes
}

/// B: for every step blocks of 8 columns and 16 bytes along K.
fn right(elem: Elem) -> Vec<u8> {
    let mut bytes = vec![0; (STEPS * SLOT) as usize];
    for depth in 0..16 * STEPS {
        for column in 0..COLUMNS {
            let block = column / 8 * 256 + depth % 16 / 8 * 128;
            let at = (depth / 16 * SLOT + block + column % 8 * 16 + depth % 8 * 2) as usize;
            bytes[at..at + 2].copy_from_slice(&bits(elem, element(1, depth, column)).to_le_bytes());
        }
    }
    bytes
}

/// The sums of every thread.
fn expected() -> Vec<u8> {
    let mut bytes = Vec::new();
    for thread in 0..2 * ROWS {
        for i in 0..COLUMNS / 2 {
            let row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
            let column = i / 4 * 8 + thread % 4 * 2 + i % 2;
            let terms = (0..16 * STEPS).map(|depth| element(0, row, depth) * element(1, depth, column));
            bytes.extend((terms.sum::<i32>() as f32).to_le_bytes());
        }
    }
    bytes
}
