//! Runs a kernel on the host, the invocations of a workgroup in lock step, for tests.
//!
//! Every access is checked, and [`Device`] makes the arithmetic as poor as devices may: denormals flushed, products
//! and sums of an fma rounded apart, and the device's own functions a few units off.

mod arithmetic;
mod matrix;
mod memory;
mod warpgroup;

use crate::Error;
use crate::ir::*;
use crate::types::{Scalar, Type};

use warpgroup::{Baton, Phases};

/// The arithmetic of the simulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// f32 denormals are read and returned as zeros.
    pub flush: bool,
    /// An fma rounds its product before the sum.
    pub unfused: bool,
    /// f32 quotients and the device's own functions are up to this many units in the last place off.
    pub off_by: u32,
}

impl Device {
    /// IEEE arithmetic throughout.
    pub const EXACT: Device = Device { flush: false, unfused: false, off_by: 0 };
    /// What Vulkan allows at worst, denormals apart.
    pub const ROUGH: Device = Device { flush: false, unfused: true, off_by: 2 };
}

/// One value of one invocation: a scalar's bits, or those of up to four components.
type Register = [u64; 4];

/// Rounds that a loop may take before it counts as endless.
const PATIENCE: u64 = 1 << 24;

/// Runs a kernel over a grid of workgroups. Buffers are the kernel's arguments in order, as little-endian bytes.
pub fn interpret(
    kernel: &Kernel,
    subgroup: u32,
    groups: [u32; 3],
    buffers: &mut [Vec<u8>],
    params: &[u32],
    device: Device,
) -> Result<(), Error> {
    if buffers.len() != kernel.args.len() || params.len() != kernel.params.len() {
        return Err(invalid(format!(
            "{} buffers and {} numbers for a kernel of {} and {}",
            buffers.len(),
            params.len(),
            kernel.args.len(),
            kernel.params.len()
        )));
    }
    for z in 0..groups[2] {
        for y in 0..groups[1] {
            for x in 0..groups[0] {
                let mut run = Run::new(kernel, subgroup.max(1), groups, [x, y, z], buffers, params, device);
                run.globals()?;
                let all = vec![true; kernel.group as usize];
                run.block(&kernel.body, &all)?;
            }
        }
    }
    Ok(())
}

fn invalid(problem: impl Into<String>) -> Error {
    Error::Invalid(problem.into())
}

/// A workgroup at work.
struct Run<'a> {
    kernel: &'a Kernel,
    device: Device,
    subgroup: u32,
    groups: [u32; 3],
    group: [u32; 3],
    params: &'a [u32],
    buffers: &'a mut [Vec<u8>],
    shared: Vec<Vec<u8>>,
    /// Values, all invocations of one value side by side.
    values: Vec<Register>,
    vars: Vec<Register>,
    /// Cooperative matrices, row by row; registers hold their numbers.
    matrices: Vec<Vec<u64>>,
    width: usize,
    /// Barriers of asynchronous copies.
    phases: Phases,
    /// Whose turn it is, and which role this is, where subgroups have roles.
    role: Option<(&'a Baton, usize)>,
}

impl<'a> Run<'a> {
    fn new(
        kernel: &'a Kernel,
        subgroup: u32,
        groups: [u32; 3],
        group: [u32; 3],
        buffers: &'a mut [Vec<u8>],
        params: &'a [u32],
        device: Device,
    ) -> Self {
        let width = kernel.group as usize;
        Run {
            kernel,
            device,
            subgroup,
            groups,
            group,
            params,
            buffers,
            // Not zero, so that a kernel that reads before it writes shows.
            shared: kernel.shared.iter().map(|s| vec![0xcd; s.bytes() as usize]).collect(),
            values: vec![[0; 4]; kernel.values.len() * width],
            vars: vec![[0; 4]; kernel.vars.len() * width],
            matrices: Vec::new(),
            width,
            phases: Phases::new(),
            role: None,
        }
    }

    /// Values that need no statement.
    fn globals(&mut self) -> Result<(), Error> {
        for (id, def) in self.kernel.values.iter().enumerate() {
            for lane in 0..self.width {
                let bits = match &def.expr {
                    Expr::Const(_, bits) => *bits,
                    Expr::Builtin(builtin) => u64::from(self.builtin(*builtin, lane)?),
                    Expr::Param(p) => {
                        u64::from(*self.params.get(p.index()).ok_or_else(|| invalid("no such number"))?)
                    }
                    _ => break,
                };
                self.values[id * self.width + lane] = [bits, 0, 0, 0];
            }
        }
        Ok(())
    }

    fn builtin(&self, builtin: Builtin, lane: usize) -> Result<u32, Error> {
        let of = |list: [u32; 3], d: u8| {
            list.get(usize::from(d)).copied().ok_or_else(|| invalid(format!("dimension {d}")))
        };
        Ok(match builtin {
            Builtin::GroupId(d) => of(self.group, d)?,
            Builtin::GroupCount(d) => of(self.groups, d)?,
            Builtin::LocalIndex => lane as u32,
            Builtin::Lane => lane as u32 % self.subgroup,
            Builtin::SubgroupId => lane as u32 / self.subgroup,
        })
    }

    fn get(&self, value: Value, lane: usize) -> u64 {
        self.values[value.index() * self.width + lane][0]
    }

    fn register(&self, value: Value, lane: usize) -> Register {
        self.values[value.index() * self.width + lane]
    }

    fn scalar_of(&self, value: Value) -> Result<Scalar, Error> {
        self.kernel.ty(value).scalar().ok_or_else(|| invalid("a matrix where a number belongs"))
    }

    fn block(&mut self, block: &Block, active: &[bool]) -> Result<(), Error> {
        for stmt in block {
            self.stmt(stmt, active)?;
        }
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt, active: &[bool]) -> Result<(), Error> {
        let lanes = || (0..active.len()).filter(|lane| active[*lane]);
        match stmt {
            Stmt::Let(value) => self.compute(*value, active)?,
            Stmt::Set(var, value) => {
                for lane in lanes() {
                    self.vars[var.index() * self.width + lane] = self.register(*value, lane);
                }
            }
            Stmt::Store { place, index, value } => {
                for lane in lanes() {
                    let (at, what) = (self.get(*index, lane), self.register(*value, lane));
                    let count = match self.kernel.ty(*value) {
                        Type::Vector(_, n) => usize::from(n),
                        _ => 1,
                    };
                    self.store(*place, at, None, &what[..count.min(4)])?;
                }
            }
            Stmt::StoreLane { shared, index, lane: part, value } => {
                for lane in lanes() {
                    let (at, what) = (self.get(*index, lane), self.get(*value, lane));
                    self.store(Storage::Shared(*shared), at, Some(*part), &[what])?;
                }
            }
            Stmt::StoreMatrix { place, index, layout, value } => {
                self.store_matrix(*place, *index, *layout, *value, active)?;
            }
            Stmt::If { condition, then, otherwise } => {
                for (block, want) in [(then, true), (otherwise, false)] {
                    let inside = self.masked(active, |run, l| (run.get(*condition, l) != 0) == want);
                    if inside.contains(&true) {
                        self.block(block, &inside)?;
                    }
                }
            }
            Stmt::For { counter, start, end, step, body } => {
                self.count(*counter, [*start, *end, *step], body, active)?;
            }
            Stmt::While { head, condition, body } => {
                let mut inside = active.to_vec();
                for round in 0.. {
                    self.block(head, &inside)?;
                    inside = self.masked(&inside, |run, l| run.get(*condition, l) != 0);
                    if !inside.contains(&true) {
                        break;
                    }
                    self.block(body, &inside)?;
                    if round > PATIENCE {
                        return Err(invalid("a loop without end"));
                    }
                }
            }
            Stmt::Barrier => {
                if active.contains(&false) {
                    return Err(Error::Divergent("not every invocation arrives".into()));
                }
            }
            Stmt::SubgroupBarrier => self.whole_subgroups(active)?,
            Stmt::Warpgroup(stmt) => self.warpgroup(stmt, active)?,
            // Workgroups run one after another.
            Stmt::DeviceFence | Stmt::Report { .. } | Stmt::CheckAccess { .. } => {}
        }
        Ok(())
    }

    fn count(
        &mut self,
        counter: Value,
        [start, end, step]: [Value; 3],
        body: &Block,
        active: &[bool],
    ) -> Result<(), Error> {
        let signed = self.scalar_of(counter)? == Scalar::I32;
        let wide = |bits: u64| if signed { i64::from(bits as i32) } else { i64::from(bits as u32) };
        let mut inside = active.to_vec();
        for lane in (0..self.width).filter(|l| active[*l]) {
            self.values[counter.index() * self.width + lane] = self.register(start, lane);
        }
        for round in 0.. {
            inside = self.masked(&inside, |run, l| wide(run.get(counter, l)) < wide(run.get(end, l)));
            if !inside.contains(&true) {
                return Ok(());
            }
            self.block(body, &inside)?;
            for lane in (0..self.width).filter(|l| inside[*l]) {
                let next = (self.get(counter, lane) as u32).wrapping_add(self.get(step, lane) as u32);
                self.values[counter.index() * self.width + lane][0] = u64::from(next);
            }
            if round > PATIENCE {
                return Err(invalid("a loop without end"));
            }
        }
        Ok(())
    }

    fn masked(&self, active: &[bool], keep: impl Fn(&Self, usize) -> bool) -> Vec<bool> {
        active.iter().enumerate().map(|(lane, on)| *on && keep(self, lane)).collect()
    }

    /// Operations of a subgroup need all of its lanes, or none.
    fn whole_subgroups(&self, active: &[bool]) -> Result<(), Error> {
        match active.chunks(self.subgroup as usize).find(|c| c.contains(&true) && c.contains(&false)) {
            Some(_) => Err(Error::Divergent("not every lane of a subgroup arrives".into())),
            None => Ok(()),
        }
    }

    fn compute(&mut self, value: Value, active: &[bool]) -> Result<(), Error> {
        let kernel = self.kernel;
        let def = kernel.values.get(value.index()).ok_or_else(|| invalid("no such value"))?;
        if let Expr::Subgroup(op, x, other) = &def.expr {
            return self.among_lanes(value, *op, *x, *other, active);
        }
        let of_matrices = matches!(
            def.expr,
            Expr::MatrixSplat(..)
                | Expr::MatrixLoad { .. }
                | Expr::MatrixMulAdd(..)
                | Expr::MatrixBinary(..)
                | Expr::MatrixOfWords(..)
                | Expr::MatrixWord(..)
                | Expr::MatrixPart(..)
                | Expr::MatrixOf(..)
        );
        if of_matrices {
            return self.among_matrices(value, &def.expr, def.ty, active);
        }
        for lane in (0..self.width).filter(|l| active[*l]) {
            let result = self.expr(&def.expr, def.ty, lane)?;
            self.values[value.index() * self.width + lane] = result;
        }
        Ok(())
    }

    fn expr(&mut self, expr: &Expr, ty: Type, lane: usize) -> Result<Register, Error> {
        let one = |bits: u64| [bits, 0, 0, 0];
        Ok(match expr {
            Expr::Const(..) | Expr::Builtin(_) | Expr::Param(_) | Expr::Counter => {
                return Err(invalid("a statement for a value that needs none"));
            }
            Expr::Get(var) => self.vars[var.index() * self.width + lane],
            Expr::Unary(op, x) => {
                one(arithmetic::unary(*op, self.scalar_of(*x)?, self.get(*x, lane), self.device))
            }
            Expr::Binary(op, a, b) => {
                let (s, x, y) = (self.scalar_of(*a)?, self.get(*a, lane), self.get(*b, lane));
                one(arithmetic::binary(*op, s, x, y, self.device)?)
            }
            Expr::Fma(a, b, c) => {
                let [a, b, c] = [*a, *b, *c].map(|v| (v, self.get(v, lane)));
                one(arithmetic::fma(self.scalar_of(a.0)?, a.1, b.1, c.1, self.device))
            }
            Expr::Compare(op, a, b) => {
                let (s, x, y) = (self.scalar_of(*a)?, self.get(*a, lane), self.get(*b, lane));
                one(u64::from(arithmetic::compare(*op, s, x, y, self.device)))
            }
            Expr::Select(c, a, b) => self.register(if self.get(*c, lane) != 0 { *a } else { *b }, lane),
            Expr::Convert(to, x) => {
                one(arithmetic::convert(self.scalar_of(*x)?, *to, self.get(*x, lane), self.device))
            }
            Expr::Bitcast(_, x) | Expr::Opaque(x) => self.register(*x, lane),
            Expr::Join(low, high) => one(self.get(*low, lane) | (self.get(*high, lane) << 32)),
            Expr::PackHalf(low, high) => {
                let [low, high] = [*low, *high]
                    .map(|v| u64::from(crate::build::half_bits(f32::from_bits(self.get(v, lane) as u32))));
                one(low | (high << 16))
            }
            Expr::UnpackHalf(x, half) => {
                let bits = (self.get(*x, lane) >> (16 * u32::from(*half & 1))) as u16;
                one(u64::from(arithmetic::half(bits).to_bits()))
            }
            Expr::Vector(parts) => {
                let mut register = [0; 4];
                for (to, part) in register.iter_mut().zip(parts) {
                    *to = self.get(*part, lane);
                }
                register
            }
            Expr::Extract(x, i) => one(self.register(*x, lane)[usize::from(*i & 3)]),
            Expr::Load { place, index, lanes } => {
                let at = self.get(*index, lane);
                self.load(*place, at, None, *lanes)?
            }
            Expr::LoadLane { shared, index, lane: part } => {
                let at = self.get(*index, lane);
                self.load(Storage::Shared(*shared), at, Some(*part), 1)?
            }
            Expr::LoadUniform { arg, index } => {
                let at = self.get(*index, lane);
                self.load(Storage::Arg(*arg), at, None, 1)?
            }
            Expr::Atomic { place, index, op, value, comparand } => {
                let (at, x) = (self.get(*index, lane), self.get(*value, lane));
                let comparand = comparand.map(|c| self.get(c, lane));
                let before = self.load(*place, at, None, 1)?;
                let signed = ty.scalar() == Some(Scalar::I32);
                let after = arithmetic::atomic(*op, signed, before[0], x, comparand);
                self.store(*place, at, None, &[after])?;
                before
            }
            Expr::PackedDot { signed, a, b, accumulator } => {
                let (a, b, sum) = (self.get(*a, lane), self.get(*b, lane), self.get(*accumulator, lane));
                one(u64::from(arithmetic::packed_dot(*signed, a as u32, b as u32, sum as u32)))
            }
            Expr::Subgroup(..) => return Err(invalid("a subgroup operation out of place")),
            Expr::MatrixSplat(..)
            | Expr::MatrixLoad { .. }
            | Expr::MatrixMulAdd(..)
            | Expr::MatrixBinary(..)
            | Expr::MatrixOfWords(..)
            | Expr::MatrixWord(..)
            | Expr::MatrixPart(..)
            | Expr::MatrixOf(..) => return Err(invalid("a cooperative matrix out of place")),
        })
    }

    fn among_lanes(
        &mut self,
        value: Value,
        op: SubgroupOp,
        x: Value,
        other: Option<Value>,
        active: &[bool],
    ) -> Result<(), Error> {
        self.whole_subgroups(active)?;
        let (scalar, size) = (self.scalar_of(x)?, self.subgroup as usize);
        let start_of = |lane: usize| lane / size * size;
        for lane in (0..self.width).filter(|l| active[*l]) {
            let first = start_of(lane);
            let members = first..(first + size).min(self.width);
            let mine: Vec<u64> = members.clone().map(|l| self.get(x, l)).collect();
            let fold = |part: &[u64], op: BinaryOp| {
                let zero = if scalar.is_float() { arithmetic::zero(scalar) } else { 0 };
                let mut rest = part.iter().copied();
                let first = if op == BinaryOp::Add { Some(zero) } else { rest.next() };
                rest.try_fold(first.unwrap_or(0), |a, b| arithmetic::binary(op, scalar, a, b, self.device))
            };
            let other = other.map_or(0, |o| self.get(o, lane) as usize);
            let from = |i: usize| {
                mine.get(i).copied().ok_or_else(|| invalid(format!("lane {i} of a subgroup of {size}")))
            };
            let bits = match op {
                SubgroupOp::Add => fold(&mine, BinaryOp::Add)?,
                SubgroupOp::Min => fold(&mine, BinaryOp::Min)?,
                SubgroupOp::Max => fold(&mine, BinaryOp::Max)?,
                SubgroupOp::InclusiveAdd => fold(&mine[..=lane - first], BinaryOp::Add)?,
                SubgroupOp::ExclusiveAdd => fold(&mine[..lane - first], BinaryOp::Add)?,
                SubgroupOp::Any => u64::from(mine.iter().any(|b| *b != 0)),
                SubgroupOp::All => u64::from(mine.iter().all(|b| *b != 0)),
                SubgroupOp::ShuffleXor => from((lane - first) ^ other)?,
                SubgroupOp::Shuffle => from(other)?,
            };
            self.values[value.index() * self.width + lane] = [bits, 0, 0, 0];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Fragments, MatrixType, MatrixUse};
    use crate::{Access, Builder, Elem, Reduction, Target};

    fn bytes(x: &[u32]) -> Vec<u8> {
        x.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn a_workgroup_sums_its_numbers_with_and_without_subgroups() {
        for subgroup in [None, Some(8)] {
            let target = Target { subgroup, ..Target::plain() };
            let k = Builder::new("sum", 64, &target);
            let (x, y) = (k.arg("x", Elem::U32, Access::Read), k.arg("y", Elem::U32, Access::Write));
            let me = k.local_index();
            y.store(me, k.group_reduce(x.load(me), Reduction::Add));
            let kernel = k.finish().expect("a valid kernel");
            let mut buffers = [bytes(&(0..64).collect::<Vec<_>>()), bytes(&[0; 64])];
            let size = subgroup.unwrap_or(1);
            interpret(&kernel, size, [1, 1, 1], &mut buffers, &[], Device::EXACT).expect("it runs");
            assert_eq!(buffers[1], bytes(&[2016; 64]));
        }
    }

    #[test]
    fn matrices_are_multiplied_taken_apart_and_put_together() {
        let shape = crate::MatrixShape { operand: Elem::F16, accumulator: Elem::F32, m: 16, n: 16, k: 16 };
        let target = Target {
            subgroup: Some(32),
            matrices: vec![shape],
            fragments: Some(Fragments::Quads),
            ..Target::plain()
        };
        let ty = |elem, role| MatrixType { elem, rows: 16, columns: 16, role };
        let (left, right) = (ty(Elem::F16, MatrixUse::A), ty(Elem::F16, MatrixUse::B));
        let sum = ty(Elem::F32, MatrixUse::Accumulator);
        // y = (x + 1)·xᵀ + x, the ones added to the elements that lanes hold.
        let k = Builder::new("matrices", 32, &target);
        let (x, y) = (k.arg("x", Elem::F16, Access::Read), k.arg("y", Elem::F32, Access::ReadWrite));
        let (zero, stride) = (k.u32(0), k.u32(16));
        let more: Vec<_> =
            x.load_matrix(left, zero, stride, false).matrix_parts().iter().map(|p| *p + 1.0).collect();
        let old = y.load_matrix(sum, zero, stride, false);
        let transposed = x.load_matrix(right, zero, stride, true);
        let product = k.var(k.matrix_of(left, &more).matrix_mul_add(transposed, old));
        y.store_matrix(zero, stride, false, product.get());
        let kernel = k.finish().expect("a valid kernel");
        let number = |i: usize| (i % 7) as f32 - 2.0;
        let halves = (0..256).flat_map(|i| crate::build::half_bits(number(i)).to_le_bytes()).collect();
        let floats = (0..256).flat_map(|i| number(i).to_le_bytes()).collect();
        let mut buffers = [halves, floats];
        interpret(&kernel, 32, [1, 1, 1], &mut buffers, &[], Device::EXACT).expect("it runs");
        let expected: Vec<u8> = (0..256)
            .flat_map(|i| {
                let (row, column) = (i / 16 * 16, i % 16 * 16);
                let terms = (0..16).map(|d| (number(row + d) + 1.0) * number(column + d));
                (terms.sum::<f32>() + number(i)).to_le_bytes()
            })
            .collect();
        assert_eq!(buffers[1], expected);
    }

    #[test]
    fn a_stray_access_and_a_barrier_in_divergent_control_flow_are_errors() {
        let k = Builder::new("stray", 4, &Target::plain());
        let y = k.arg("y", Elem::U32, Access::Write);
        y.store(k.local_index(), k.u32(1));
        let kernel = k.finish().expect("a valid kernel");
        let run = |n: usize| interpret(&kernel, 1, [1, 1, 1], &mut [vec![0; n]], &[], Device::EXACT);
        assert!(run(16).is_ok());
        assert!(run(12).is_err());
        let k = Builder::new("divergent", 4, &Target::plain());
        k.if_(k.local_index().lt(2), || k.barrier());
        // The validator may refuse it before it runs.
        if let Ok(kernel) = k.finish() {
            let ran = interpret(&kernel, 1, [1, 1, 1], &mut [], &[], Device::EXACT);
            assert!(matches!(ran, Err(Error::Divergent(_))));
        }
    }

    #[test]
    fn narrow_elements_widen_and_narrow() {
        let k = Builder::new("narrow", 1, &Target::plain());
        let x = k.arg("x", Elem::I8, Access::Read);
        let y = k.arg("y", Elem::BF16, Access::Write);
        let i = k.u32(0);
        y.store(i, x.load(i).convert(Scalar::F32) * 1.003);
        let kernel = k.finish().expect("a valid kernel");
        let mut buffers = [vec![0xfe], vec![0; 2]];
        interpret(&kernel, 1, [1, 1, 1], &mut buffers, &[], Device::EXACT).expect("it runs");
        assert_eq!(buffers[1], 0xc000u16.to_le_bytes().to_vec());
    }
}
