//! The matmul that is tried: A·B + 3 with operands read by rows, and on top of it another with operands read by
//! columns. Where the device has all that the language can do with matrices, the first result is added once more.

use std::sync::Arc;

use olivine_ir::half::{bf16, f16};
use olivine_ir::{DType, Shape, Tensor, TensorType};
use olivine_kernel::{
    Access, Builder, Elem, Kernel, MatrixShape, MatrixSupport, MatrixType, MatrixUse, Scalar, Shared, Val,
};
use olivine_program::{
    BufferDecl, BufferId, Content, DeviceCaps, Dispatch, Driver, Error, Port, Program, Slice,
};

use crate::{Executable, Weights};

/// The accumulator of the first matmul.
const START: i64 = 3;

/// 32-bit words of the slots that workgroup memory is counted in.
const SLOT: u32 = 4;

/// A matrix in slots of 16 bytes, lines an odd number of them apart, as kernels keep their panels.
#[derive(Clone, Copy, Debug)]
struct Panel {
    ty: MatrixType,
    column_major: bool,
    first: u32,
}

impl Panel {
    /// Lines and elements of a line.
    fn lines(self) -> (u32, u32) {
        let MatrixType { rows, columns, .. } = self.ty;
        if self.column_major { (columns, rows) } else { (rows, columns) }
    }

    /// Slots from one line to the next.
    fn pitch(self) -> u32 {
        (self.lines().1 * self.ty.elem.size()).div_ceil(4 * SLOT) | 1
    }

    fn slots(self) -> u32 {
        self.lines().0 * self.pitch()
    }

    /// The first byte of an element.
    fn place(self, row: u32, column: u32) -> usize {
        let (line, along) = if self.column_major { (column, row) } else { (row, column) };
        ((self.first + line * self.pitch()) * 4 * SLOT + along * self.ty.elem.size()) as usize
    }
}

/// The memory layout: operands in one piece of memory, results in another.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// The first A and B, the second A and B.
    operands: [Panel; 4],
    results: [Panel; 2],
}

impl Plan {
    fn new(shape: MatrixShape) -> Self {
        let MatrixShape { operand, accumulator, m, n, k } = shape;
        let a = MatrixType { elem: operand, rows: m, columns: k, role: MatrixUse::A };
        let b = MatrixType { elem: operand, rows: k, columns: n, role: MatrixUse::B };
        let c = MatrixType { elem: accumulator, rows: m, columns: n, role: MatrixUse::Accumulator };
        let mut next = 0;
        let operands = [(a, false), (b, false), (a, true), (b, true)].map(|(ty, column_major)| {
            let panel = Panel { ty, column_major, first: next };
            next += panel.slots();
            panel
        });
        let first = Panel { ty: c, column_major: false, first: 0 };
        Plan { operands, results: [first, Panel { first: first.slots(), ..first }] }
    }

    fn operand_slots(&self) -> u32 {
        self.operands.iter().map(|p| p.slots()).sum()
    }

    fn result_slots(&self) -> u32 {
        self.results.iter().map(|p| p.slots()).sum()
    }
}

/// An element of a operand: small where sums must be exact in few bits, of all bits where they are integers. Of f32 one of
/// two that are multiplied has more bits than narrower floats, which must not stand in for it.
fn element(operand: Elem, which: usize, row: u32, column: u32) -> i64 {
    let mut bits =
        (which as u32 + 1).wrapping_mul(0x9e37_79b9) ^ (row * 64 + column).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ (bits >> 15)).wrapping_mul(0x2c1b_3c6d);
    bits ^= bits >> 13;
    match operand {
        Elem::I8 => i64::from(bits as u8 as i8),
        Elem::U8 => i64::from(bits as u8),
        Elem::F32 if matches!(which, 1 | 2) => i64::from(bits as u16 | 1) - 32768,
        _ => i64::from(bits % 7) - 3,
    }
}

/// The element's bytes in a operand.
fn bytes(operand: Elem, value: i64) -> Vec<u8> {
    match operand {
        Elem::F16 => f16::from_f32(value as f32).to_le_bytes().to_vec(),
        Elem::BF16 => bf16::from_f32(value as f32).to_le_bytes().to_vec(),
        Elem::F32 => (value as f32).to_le_bytes().to_vec(),
        _ => vec![value as u8],
    }
}

/// The expected results, row by row: the first result and the second.
fn expected(shape: MatrixShape, support: MatrixSupport) -> [Vec<i64>; 2] {
    let times = if support == MatrixSupport::Full { 2 } else { 1 };
    let MatrixShape { operand, m, n, k, .. } = shape;
    let product = |which: usize, i: u32, j: u32| -> i64 {
        (0..k).map(|d| element(operand, which, i, d) * element(operand, which + 1, d, j)).sum()
    };
    let of = |value: &dyn Fn(u32, u32) -> i64| (0..m * n).map(|at| value(at / n, at % n)).collect();
    let first = |i, j| product(0, i, j) + START;
    [of(&first), of(&|i, j| product(2, i, j) + times * first(i, j))]
}

/// Reads a result's element.
fn read(accumulator: Elem, bytes: &[u8]) -> f64 {
    match (accumulator, bytes) {
        (Elem::F16, [a, b]) => f64::from(f16::from_le_bytes([*a, *b])),
        (Elem::F32, [a, b, c, d]) => f64::from(f32::from_le_bytes([*a, *b, *c, *d])),
        (Elem::I32, [a, b, c, d]) => f64::from(i32::from_le_bytes([*a, *b, *c, *d])),
        (Elem::U32, [a, b, c, d]) => f64::from(u32::from_le_bytes([*a, *b, *c, *d])),
        _ => f64::NAN,
    }
}

/// One subgroup's work: operands into workgroup memory, two matmuls, results out again.
fn kernel(shape: MatrixShape, plan: &Plan, caps: &DeviceCaps) -> Result<Kernel, Error> {
    let missing = |what: &str| Error::Kernel {
        kernel: "matrix_trial".into(),
        source: olivine_kernel::Error::Missing(what.into()),
    };
    let lanes = caps.target.subgroup.ok_or_else(|| missing("subgroups of one size"))?;
    let k = Builder::new("matrix_trial", lanes, &caps.target);
    let x = k.arg("x", Elem::U32, Access::Read);
    let y = k.arg("y", Elem::U32, Access::Write);
    let panels = TrialMemory::new(&k, shape.operand, plan.operand_slots());
    let sums = TrialMemory::new(&k, shape.accumulator, plan.result_slots());
    panels.for_slots(lanes, |slot| panels.put(slot, &x.load_vec(slot * SLOT, SLOT as u8)));
    let start = k.number(shape.accumulator.scalar(), START as f64);
    if panels.is_typed() {
        sums.for_slots(lanes, |slot| sums.fill(slot, start));
    }
    k.barrier();
    let [a, b, other_a, other_b] = plan.operands.map(|panel| panels.load(panel));
    let [first, second] = if panels.is_typed() {
        // Through a variable, as matmuls keep their sums.
        let sum = k.var(k.number(shape.accumulator.scalar(), 0.0).splat(plan.results[0].ty));
        sum.set(a.matrix_mul_add(b, sums.load(plan.results[0])));
        let first = sum.get();
        [first, other_a.matrix_mul_add(other_b, first)]
    } else {
        let first = a.matrix_mul_add(b, start.splat(plan.results[0].ty));
        [first, other_a.matrix_mul_add(other_b, first).matrix_add(first)]
    };
    // All lanes have loaded what the results overwrite.
    if panels.is_typed() {
        k.barrier();
    }
    for (panel, value) in plan.results.iter().zip([first, second]) {
        sums.store(*panel, value);
    }
    k.barrier();
    sums.for_slots(lanes, |slot| y.store_vec(slot * SLOT, &sums.words(slot)));
    k.finish().map_err(|source| Error::Kernel { kernel: "matrix_trial".into(), source })
}

/// Workgroup memory for matrices as kernels have it: slots of words, or elements where matrices must be in memory of
/// their own type.
struct TrialMemory<'k> {
    k: &'k Builder,
    shared: Shared<'k>,
    slots: u32,
}

impl<'k> TrialMemory<'k> {
    fn new(k: &'k Builder, elem: Elem, slots: u32) -> Self {
        let shared = match k.target().matrix_support {
            MatrixSupport::Full => k.shared(Elem::U32, SLOT as u8, slots),
            MatrixSupport::Basic => k.shared(elem, 1, slots * 4 * SLOT / elem.size()),
        };
        TrialMemory { k, shared, slots }
    }

    fn is_typed(&self) -> bool {
        self.shared.lanes() == 1
    }

    /// Elements that a slot is counted as.
    fn unit(&self) -> u32 {
        if self.is_typed() { 4 * SLOT / self.shared.elem().size() } else { 1 }
    }

    /// Calls `each` for every slot, a lane to each.
    fn for_slots(&self, lanes: u32, each: impl Fn(Val<'k>)) {
        for first in (0..self.slots).step_by(lanes as usize) {
            let slot = self.k.local_index() + first;
            self.k.if_(slot.lt(self.slots), || each(slot));
        }
    }

    fn put(&self, slot: Val<'k>, words: &[Val<'k>]) {
        let elements: Vec<Val<'k>> = match self.shared.elem() {
            _ if !self.is_typed() => return self.shared.store_vec(slot, words),
            Elem::F16 => words.iter().flat_map(|w| [w.unpack_half(0), w.unpack_half(1)]).collect(),
            _ => words.iter().map(|w| w.bitcast(Scalar::F32)).collect(),
        };
        for (i, element) in (0u32..).zip(elements) {
            self.shared.store(slot * self.unit() + i, element);
        }
    }

    fn fill(&self, slot: Val<'k>, number: Val<'k>) {
        (0..self.unit()).for_each(|i| self.shared.store(slot * self.unit() + i, number));
    }

    fn words(&self, slot: Val<'k>) -> Vec<Val<'k>> {
        if !self.is_typed() {
            return self.shared.load_vec(slot);
        }
        let elements: Vec<Val<'k>> =
            (0..self.unit()).map(|i| self.shared.load(slot * self.unit() + i)).collect();
        match self.shared.elem() {
            Elem::F16 => elements.chunks(2).map(|pair| pair[0].pack_half(pair[1])).collect(),
            _ => elements.into_iter().map(|x| x.bitcast(Scalar::U32)).collect(),
        }
    }

    fn load(&self, panel: Panel) -> Val<'k> {
        let (first, stride) = (panel.first * self.unit(), panel.pitch() * self.unit());
        self.shared.load_matrix(panel.ty, self.k.u32(first), self.k.u32(stride), panel.column_major)
    }

    fn store(&self, panel: Panel, value: Val<'k>) {
        let (first, stride) = (panel.first * self.unit(), panel.pitch() * self.unit());
        self.shared.store_matrix(self.k.u32(first), self.k.u32(stride), false, value);
    }
}

/// The program of one trial.
fn program(shape: MatrixShape, plan: &Plan, caps: &DeviceCaps) -> Result<Program, Error> {
    let kernel = kernel(shape, plan, caps)?;
    let mut words = vec![0u8; (plan.operand_slots() * 4 * SLOT) as usize];
    for (which, panel) in plan.operands.iter().enumerate() {
        for row in 0..panel.ty.rows {
            for column in 0..panel.ty.columns {
                let element = bytes(shape.operand, element(shape.operand, which, row, column));
                let at = panel.place(row, column);
                words[at..at + element.len()].copy_from_slice(&element);
            }
        }
    }
    let words: Vec<u32> = words.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
    let unfit =
        |e: olivine_ir::Error| Error::Unsupported { device: caps.name.clone(), nodes: vec![e.to_string()] };
    let x = Tensor::new([words.len()], words).map_err(unfit)?;
    let ty =
        TensorType::new(DType::U32, Shape::new(&[(plan.result_slots() * SLOT) as usize]).map_err(unfit)?);
    let decl = |content: Content, bytes: usize| BufferDecl {
        content,
        bytes: bytes.next_multiple_of(caps.alignment()) as u64,
    };
    let buffers =
        vec![decl(Content::Constant(x.clone()), x.ty().bytes()), decl(Content::Output(0), ty.bytes())];
    let slice = |i: u32, bytes: usize| Slice { buffer: BufferId(i), offset: 0, bytes: bytes as u64 };
    let dispatch = Dispatch {
        args: vec![slice(0, x.ty().bytes()), slice(1, ty.bytes())].into(),
        op: "matrix_trial",
        node: super::name(shape).into(),
        bytes: (x.ty().bytes() + ty.bytes()) as u64,
        ..Dispatch::default()
    };
    Ok(Program {
        kernels: vec![Arc::new(kernel)],
        buffers,
        outputs: vec![Port { name: "y".into(), ty, buffer: BufferId(1) }],
        run: vec![dispatch],
        ..Program::default()
    })
}

/// Runs the trial of a shape; returns what is wrong, if anything is.
pub(super) fn run<D: Driver>(driver: &Arc<D>, shape: MatrixShape) -> Result<Option<String>, Error> {
    let plan = Plan::new(shape);
    let program = program(shape, &plan, driver.caps())?;
    let mut y = vec![0; (plan.result_slots() * 4 * SLOT) as usize];
    let executable = Arc::new(Executable::new(driver.clone(), program, Arc::new(Weights::default()), false)?);
    executable.run(&[], &mut [&mut y])?;
    Ok(judge(shape, &plan, driver.caps().target.matrix_support, &y))
}

/// What is wrong with the results, if anything is.
fn judge(shape: MatrixShape, plan: &Plan, support: MatrixSupport, y: &[u8]) -> Option<String> {
    let size = shape.accumulator.size() as usize;
    for (number, (panel, expected)) in plan.results.iter().zip(expected(shape, support)).enumerate() {
        let at = |i: usize| panel.place(i as u32 / shape.n, i as u32 % shape.n);
        let wrong = expected.iter().enumerate().find_map(|(i, expected)| {
            let got = y.get(at(i)..at(i) + size).map_or(f64::NAN, |b| read(shape.accumulator, b));
            (got != *expected as f64).then_some((i, *expected, got))
        });
        if let Some((i, expected, got)) = wrong {
            let (row, column) = (i as u32 / shape.n, i as u32 % shape.n);
            let order = ["rows", "columns"][number];
            return Some(format!(
                "a known matmul, operands read by {order}, is {got} instead of {expected} at {row}, {column}"
            ));
        }
    }
    None
}
