//! Which elements of cooperative matrices the lanes of a subgroup hold: Vulkan leaves it open, so the device is asked
//! by a kernel that loads matrices of numbers and says which it finds where, and multiplies two of them.

use std::sync::Arc;

use olivine_kernel::{
    Access, Builder, Elem, Fragments, Kernel, MatrixShape, MatrixType, MatrixUse, Scalar, Target, Val,
};

use crate::Error;
use crate::driver::{Commands, Driver, Timing};
use crate::program::{BufferDecl, BufferId, Content, Dispatch, Program, Slice};

const SIDE: u32 = 16;
const LANES: u32 = 32;
/// Numbers that a lane reports: its elements of a left operand, of an accumulator, and of a result.
const REPORTED: u32 = 3 * Fragments::COUNT as u32;

/// The layout of the device's matrices, if it is the expected one. Drivers hold
/// kernels against their caps, which must say that the elements are known while the device is asked.
pub fn ask_fragments<D: Driver>(driver: &D) -> Option<Fragments> {
    let target = &driver.caps().target;
    let shape = MatrixShape { operand: Elem::F16, accumulator: Elem::F32, m: SIDE, n: SIDE, k: SIDE };
    let fragments = target.fragments?;
    if !target.matrices.contains(&shape) || target.subgroup != Some(LANES) {
        return None;
    }
    let bytes = run_once(driver, kernel(target).ok()?, u64::from(LANES * REPORTED * 4)).ok()?;
    let reported = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    expected(fragments).eq(reported).then_some(fragments)
}

/// The element at a row and column of the left operand, and of the sum: small integers, all different.
fn number(row: u32, column: u32) -> u32 {
    row * SIDE + column
}

/// What every lane should report: the left operand times a matrix that swaps neighbouring columns, plus the sum.
fn expected(fragments: Fragments) -> impl Iterator<Item = f32> {
    let part = move |lane: u32, i: u32| {
        let (row, column) = fragments.position(lane, i % u32::from(Fragments::COUNT));
        let number = |row, column| number(row, column) as f32;
        match i / u32::from(Fragments::COUNT) {
            0 | 1 => number(row, column),
            _ => number(row, column ^ 1) + number(row, column),
        }
    };
    (0..LANES).flat_map(move |lane| (0..REPORTED).map(move |i| part(lane, i)))
}

fn kernel(target: &Target) -> Result<Kernel, olivine_kernel::Error> {
    let k = Builder::new("matrix_fragments", LANES, target);
    write(&k);
    k.finish()
}

fn write<'k>(k: &'k Builder) {
    let out = k.arg("out", Elem::F32, Access::Write);
    let words = SIDE * SIDE / 2;
    let (left, right) = (k.shared(Elem::U32, 1, words), k.shared(Elem::U32, 1, words));
    let sum = k.shared(Elem::F32, 1, SIDE * SIDE);
    let float = |x: Val<'k>| x.convert(Scalar::F32);
    for i in (0..words).step_by(LANES as usize) {
        let at = k.lane() + i;
        let (first, second) = (at * 2, at * 2 + 1);
        left.store(at, float(first).pack_half(float(second)));
        let swaps = |at: Val<'k>| {
            let (row, column) = (at / SIDE, at % SIDE);
            row.eq(column ^ 1).select(k.f32(1.0), k.f32(0.0))
        };
        right.store(at, swaps(first).pack_half(swaps(second)));
        sum.store(first, float(first));
        sum.store(second, float(second));
    }
    k.barrier();
    let matrix = |elem, role| MatrixType { elem, rows: SIDE, columns: SIDE, role };
    let (zero, halves) = (k.u32(0), k.u32(SIDE / 2));
    let a = left.load_matrix(matrix(Elem::F16, MatrixUse::A), zero, halves, false);
    let b = right.load_matrix(matrix(Elem::F16, MatrixUse::B), zero, halves, false);
    let c = sum.load_matrix(matrix(Elem::F32, MatrixUse::Accumulator), zero, k.u32(SIDE), false);
    // Taken apart and put together again, both must still be what they were.
    let again = |m: Val<'k>, ty| k.matrix_of(ty, &m.matrix_parts());
    let product = again(a, matrix(Elem::F16, MatrixUse::A))
        .matrix_mul_add(b, again(c, matrix(Elem::F32, MatrixUse::Accumulator)));
    let parts = [a.matrix_parts(), c.matrix_parts(), product.matrix_parts()].concat();
    for (i, part) in parts.iter().enumerate() {
        out.store(k.lane() * REPORTED + i, *part);
    }
}

/// Runs one workgroup of a kernel that only writes, and returns the bytes of its one buffer.
pub(crate) fn run_once<D: Driver>(device: &D, kernel: Kernel, bytes: u64) -> Result<Vec<u8>, Error> {
    let program = Program {
        kernels: vec![Arc::new(kernel)],
        buffers: vec![BufferDecl { content: Content::Arena, bytes }],
        ..Program::default()
    };
    let slice = Slice { buffer: BufferId(0), offset: 0, bytes };
    let dispatch = Dispatch { args: vec![slice].into(), bytes, ..Dispatch::default() };
    let pipelines = device.pipelines(&program.kernels, false)?;
    let buffer = device.allocate(bytes, "answers of a device")?;
    let mut recording = device.record(Commands {
        program: &program,
        dispatches: &[dispatch],
        pipelines: &pipelines,
        buffers: &[Some(buffer.clone())],
        uploads: &[],
        downloads: &[],
        timing: Timing::Off,
        checked: false,
    })?;
    device.submit(&mut recording)?;
    device.wait(&mut recording)?;
    let mut reported = vec![0; bytes as usize];
    device.read(&buffer, 0, &mut reported)?;
    Ok(reported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_what_is_expected_of_a_device_that_is_as_it_should_be() {
        let shape = MatrixShape { operand: Elem::F16, accumulator: Elem::F32, m: SIDE, n: SIDE, k: SIDE };
        let target = Target {
            subgroup: Some(LANES),
            f16: true,
            matrices: vec![shape],
            fragments: Some(Fragments::Quads),
            ..Target::plain()
        };
        let kernel = kernel(&target).expect("a valid kernel");
        let mut buffers = [vec![0; (LANES * REPORTED * 4) as usize]];
        let device = olivine_kernel::interpret::Device::EXACT;
        olivine_kernel::interpret::interpret(&kernel, LANES, [1; 3], &mut buffers, &[], device)
            .expect("it runs");
        let reported = buffers[0].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        assert!(expected(Fragments::Quads).eq(reported));
    }
}
