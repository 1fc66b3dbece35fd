//! Hopper's instructions. What runs beside the threads runs when it hurts most, so that a kernel that does not wait for it
//! computes something else: a copy when nothing else can go on, or in the other order of threads at once; a multiply when it is
//! waited for.

use std::collections::{HashMap, VecDeque};

use crate::WARP;
use crate::decode::{Op, Ty};
use crate::memory::read;
use crate::number;
use crate::parse::{Instruction, Operand};
use crate::run::Workgroup;

/// Threads of a warpgroup.
pub(crate) const WARPGROUP: usize = 4 * WARP;

/// A barrier in workgroup memory.
#[derive(Clone, Copy, Debug)]
struct Phase {
    arrivals: u64,
    missing: u64,
    bytes: i64,
    complete: u64,
}

impl Phase {
    fn settle(&mut self) {
        if self.missing == 0 && self.bytes == 0 {
            self.missing = self.arrivals;
            self.complete += 1;
        }
    }
}

/// A copy that has not come yet.
struct Copy {
    to: u64,
    from: u64,
    bytes: u64,
    barrier: u64,
}

/// A multiply that has begun.
struct Pending {
    sums: Vec<usize>,
    left: Vec<usize>,
    operands: [Ty; 2],
    descriptor: u64,
    adds: bool,
}

/// What goes on beside the threads of a workgroup.
#[derive(Default)]
pub(crate) struct Beside {
    phases: HashMap<u64, Phase>,
    copies: VecDeque<Copy>,
    /// Whether copies come at once.
    early: bool,
    /// By warpgroup: multiplies that belong to no group yet, and groups.
    open: HashMap<usize, Vec<Pending>>,
    groups: HashMap<usize, VecDeque<Vec<Pending>>>,
}

impl Beside {
    /// Nothing yet; copies come at once, or as late as they may.
    pub(crate) fn new(early: bool) -> Self {
        Beside { early, ..Beside::default() }
    }
}

fn is_float(operands: [Ty; 2]) -> bool {
    matches!(operands[0], Ty::F16 | Ty::BF16)
}

impl Workgroup<'_> {
    /// The address of a barrier, at an operand.
    fn barrier(&mut self, thread: usize, operand: Option<&Operand>) -> Result<u64, String> {
        let address = self.address(thread, operand)?;
        self.memory.bytes(true, address, 8)?;
        Ok(address)
    }

    fn phase(&mut self, address: u64) -> Result<&mut Phase, String> {
        self.beside.phases.get_mut(&address).ok_or_else(|| format!("no barrier at {address:#x}"))
    }

    /// What a thread asks for by itself.
    pub(crate) fn ask(&mut self, thread: usize, inst: &Instruction) -> Result<(), String> {
        let number =
            |w: &Self, i: usize| w.value(thread, inst.operands.get(i).ok_or("an operand is missing")?);
        match inst.op {
            Op::BarrierInit => {
                let (address, arrivals) = (self.barrier(thread, inst.operands.first())?, number(self, 1)?);
                let fresh = Phase { arrivals, missing: arrivals, bytes: 0, complete: 0 };
                self.beside.phases.insert(address, fresh);
            }
            Op::BarrierArrive { expects } => {
                let address = self.barrier(thread, inst.operands.get(1))?;
                let bytes = if expects { number(self, 2)? } else { 0 };
                let phase = self.phase(address)?;
                phase.bytes += bytes as i64;
                phase.missing =
                    phase.missing.checked_sub(1).ok_or("more arrivals than a barrier was made for")?;
                phase.settle();
            }
            Op::CopyBulk => {
                let to = self.address(thread, inst.operands.first())?;
                let from = self.address(thread, inst.operands.get(1))?;
                let bytes = number(self, 2)?;
                let barrier = self.barrier(thread, inst.operands.get(3))?;
                if [to, from, bytes].iter().any(|n| !n.is_multiple_of(16)) {
                    return Err("a copy that is not aligned".into());
                }
                self.beside.copies.push_back(Copy { to, from, bytes, barrier });
                if self.beside.early {
                    self.copy_comes()?;
                }
            }
            // Nothing is computed by it; that the bytes are there is all there is to see.
            Op::PrefetchBulk => {
                let (from, bytes) = (self.address(thread, inst.operands.first())?, number(self, 1)?);
                if [from, bytes].iter().any(|n| !n.is_multiple_of(16)) {
                    return Err("a prefetch that is not aligned".into());
                }
                for at in (0..bytes).step_by(16) {
                    self.memory.bytes(false, from + at, 16)?;
                }
            }
            op => return Err(format!("{op:?} is nothing to ask for")),
        }
        Ok(())
    }

    /// Whether the phase is complete that a thread waits for.
    pub(crate) fn phase_is_complete(&mut self, thread: usize, inst: &Instruction) -> Result<bool, String> {
        let address = self.barrier(thread, inst.operands.get(1))?;
        let parity = self.value(thread, inst.operands.get(2).ok_or("no parity")?)?;
        Ok(self.phase(address)?.complete & 1 != parity & 1)
    }

    /// Lets one copy come; whether there was one.
    pub(crate) fn copy_comes(&mut self) -> Result<bool, String> {
        let Some(copy) = self.beside.copies.pop_front() else { return Ok(false) };
        for at in (0..copy.bytes).step_by(16) {
            let bytes = self.memory.bytes(false, copy.from + at, 16)?.to_vec();
            self.memory.bytes(true, copy.to + at, 16)?.copy_from_slice(&bytes);
        }
        let phase = self.phase(copy.barrier)?;
        phase.bytes -= copy.bytes as i64;
        phase.settle();
        Ok(true)
    }

    /// Whether nothing is left that was begun and not waited for.
    pub(crate) fn is_settled(&self) -> bool {
        let multiplies = self.beside.open.values().map(Vec::len).sum::<usize>()
            + self.beside.groups.values().map(VecDeque::len).sum::<usize>();
        self.beside.copies.is_empty() && multiplies == 0
    }

    /// What the four warps of a warpgroup do together.
    pub(crate) fn warpgroup(&mut self, first: usize, inst: &Instruction) -> Result<(), String> {
        match inst.op {
            Op::GroupMultiply { columns, operands } => {
                let [sums, left, descriptor, adds, rest @ ..] = inst.operands.as_slice() else {
                    return Err("operands are missing".into());
                };
                let (sums, left) = (Self::registers(Some(sums))?, Self::registers(Some(left))?);
                // Floats are neither negated nor transposed; integers cannot be.
                let plain = [1, 1, 0].map(Operand::Number);
                let plain = if is_float(operands) { &plain[..] } else { &[] };
                if rest != plain || sums.len() != columns / 2 || left.len() != 4 {
                    return Err("operands of another form".into());
                }
                let (d, a) = (self.value(first, descriptor)?, self.value(first, adds)?);
                for thread in first..first + WARPGROUP {
                    if self.value(thread, descriptor)? != d || self.value(thread, adds)? != a {
                        return Err("threads that differ about a multiply".into());
                    }
                }
                let pending = Pending { sums, left, operands, descriptor: d, adds: a != 0 };
                self.beside.open.entry(first).or_default().push(pending);
                Ok(())
            }
            Op::GroupCommit => {
                let group = self.beside.open.remove(&first).unwrap_or_default();
                self.beside.groups.entry(first).or_default().push_back(group);
                Ok(())
            }
            Op::GroupWait => {
                let [running] = self.values(first, inst, 0)?;
                while let Some(group) = self.beside.groups.get_mut(&first)
                    && group.len() > running as usize
                {
                    for pending in group.pop_front().unwrap_or_default() {
                        self.multiply_group(first, &pending)?;
                    }
                }
                Ok(())
            }
            op => Err(format!("{op:?} is nothing that warpgroups do")),
        }
    }

    fn multiply_group(&mut self, first: usize, p: &Pending) -> Result<(), String> {
        let field = |shift: u32| ((p.descriptor >> shift) & 0x3fff) << 4;
        if p.descriptor >> 62 != 0 {
            return Err("a swizzled operand".into());
        }
        let number = |of: Ty, bits: u64| match of {
            Ty::F16 => number::half(bits & 0xffff),
            Ty::BF16 => number::bfloat(bits & 0xffff),
            Ty::S8 => f64::from(bits as u8 as i8),
            _ => f64::from(bits as u8),
        };
        let float = is_float(p.operands);
        let size = if float { 2 } else { 1 };
        // Elements of 4, of 16 and of all 32 bytes along k.
        let (each, block, inner) = (4 / size, 16 / size, 32 / size);
        let columns = 2 * p.sums.len();
        let mut b = Vec::with_capacity(columns * inner);
        for column in 0..columns {
            for k in 0..inner {
                let inside = column % 8 * 16 + k % block * size;
                let at = field(0) + (column / 8) as u64 * field(32) + (k / block) as u64 * field(16);
                let bytes = self.memory.bytes(true, at + inside as u64, size)?;
                b.push(number(p.operands[1], read(bytes)));
            }
        }
        let a: Vec<f64> = (0..64 * inner)
            .map(|i| {
                let (row, k) = (i / inner, i % inner);
                let thread = first + row / 16 * WARP + row % 8 * 4 + k % block / each;
                let word = self.get(thread, p.left[row % 16 / 8 + 2 * (k / block)]);
                number(p.operands[0], word >> (8 * size * (k % each)))
            })
            .collect();
        for thread in 0..WARPGROUP {
            for (i, reg) in p.sums.iter().enumerate() {
                let row = thread / WARP * 16 + thread % WARP / 4 + i % 4 / 2 * 8;
                let column = i / 4 * 8 + thread % 4 * 2 + i % 2;
                let old = self.get(first + thread, *reg) as u32;
                let start = match float {
                    _ if !p.adds => 0.0,
                    true => f64::from(f32::from_bits(old)),
                    false => f64::from(old as i32),
                };
                let sum = (0..inner).fold(start, |sum, k| sum + a[row * inner + k] * b[column * inner + k]);
                let bits = if float { number::single(sum as f32) } else { u64::from(sum as i64 as u32) };
                self.set(first + thread, *reg, bits);
            }
        }
        Ok(())
    }
}
