//! What one thread does by itself.

use crate::decode::{Atomic, Op, Ty};
use crate::memory::{read, write};
use crate::number;
use crate::parse::{Instruction, Operand, Special};
use crate::run::Workgroup;

impl Workgroup<'_> {
    pub(crate) fn value(&self, thread: usize, operand: &Operand) -> Result<u64, String> {
        Ok(match operand {
            Operand::Reg(r) => self.get(thread, *r),
            Operand::Number(n) => *n,
            Operand::Special(Special::Thread) => thread as u64,
            Operand::Special(Special::Group(d)) => u64::from(self.group[*d]),
            Operand::Special(Special::Groups(d)) => u64::from(self.groups[*d]),
            other => return Err(format!("{other:?} where a value belongs")),
        })
    }

    /// The values of operands from the `first` on; those that are missing are an error of the text.
    pub(crate) fn values<const N: usize>(
        &self,
        thread: usize,
        inst: &Instruction,
        first: usize,
    ) -> Result<[u64; N], String> {
        if inst.operands.len() != first + N {
            return Err(format!("{} operands instead of {}", inst.operands.len(), first + N));
        }
        let mut values = [0; N];
        for (value, operand) in values.iter_mut().zip(&inst.operands[first..]) {
            *value = self.value(thread, operand)?;
        }
        Ok(values)
    }

    pub(crate) fn put(&mut self, thread: usize, inst: &Instruction, value: u64) -> Result<(), String> {
        match inst.operands.first() {
            Some(Operand::Reg(r)) => {
                self.set(thread, *r, value);
                Ok(())
            }
            other => Err(format!("{other:?} where a result belongs")),
        }
    }

    /// One or several registers.
    pub(crate) fn registers(operand: Option<&Operand>) -> Result<Vec<usize>, String> {
        match operand {
            Some(Operand::Reg(r)) => Ok(vec![*r]),
            Some(Operand::Several(regs)) => Ok(regs.clone()),
            other => Err(format!("{other:?} where registers belong")),
        }
    }

    pub(crate) fn address(&self, thread: usize, operand: Option<&Operand>) -> Result<u64, String> {
        match operand {
            Some(Operand::Memory(base, offset)) => {
                Ok(base.map_or(0, |r| self.get(thread, r)).wrapping_add(*offset))
            }
            other => Err(format!("{other:?} where an address belongs")),
        }
    }

    /// Executes an instruction; it returns where the thread goes on.
    pub(crate) fn execute(&mut self, thread: usize, inst: &Instruction, at: usize) -> Result<usize, String> {
        let result = match inst.op {
            Op::Branch => {
                let Some(Operand::Label(to)) = inst.operands.first() else {
                    return Err("a branch to nowhere".into());
                };
                let goes = inst.guard.is_none_or(|(p, value)| (self.get(thread, p) != 0) == value);
                return Ok(if goes { *to } else { at + 1 });
            }
            Op::Load { shared, ty } => {
                self.load(thread, inst, shared, ty)?;
                return Ok(at + 1);
            }
            Op::Store { shared, ty } => {
                self.store(thread, inst, shared, ty)?;
                return Ok(at + 1);
            }
            Op::Move(ty) => {
                self.transfer(thread, inst, ty)?;
                return Ok(at + 1);
            }
            Op::LoadParam(_) => {
                let Some(Operand::Param(i)) = inst.operands.get(1) else { return Err("no parameter".into()) };
                self.params[*i]
            }
            Op::Atomic { shared, op, ty } => self.atomic(thread, inst, shared, op, ty)?,
            Op::Unary(op, ty) => {
                let [a] = self.values(thread, inst, 1)?;
                number::unary(op, ty, a)?
            }
            Op::Binary(op, ty) => {
                let [a, b] = self.values(thread, inst, 1)?;
                number::binary(op, ty, a, b)?
            }
            Op::MulWide => {
                let [a, b] = self.values(thread, inst, 1)?;
                u64::from(a as u32) * u64::from(b as u32)
            }
            Op::MadWide => {
                let [a, b, c] = self.values(thread, inst, 1)?;
                (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c)
            }
            Op::MadLow(ty) => {
                let [a, b, c] = self.values(thread, inst, 1)?;
                number::cut(ty, a.wrapping_mul(b).wrapping_add(c))
            }
            Op::Fma(ty) => {
                let [a, b, c] = self.values(thread, inst, 1)?;
                number::fma(ty, a, b, c)?
            }
            Op::Select(_) => {
                let [a, b, condition] = self.values(thread, inst, 1)?;
                if condition != 0 { a } else { b }
            }
            Op::Test(op, ty) => {
                let [a, b] = self.values(thread, inst, 1)?;
                u64::from(number::test(op, ty, a, b))
            }
            Op::Convert { round, to, from } => {
                let [a] = self.values(thread, inst, 1)?;
                number::convert(round, to, from, a)?
            }
            Op::ConvertPair(ty) => {
                let values: [u64; 2] = self.values(thread, inst, 1)?;
                let [high, low] = values.map(|x| {
                    let x = f64::from(f32::from_bits(x as u32));
                    if ty == Ty::F16x2 { number::to_half(x) } else { number::to_bfloat(x) }
                });
                low | (high << 16)
            }
            Op::Dot { signed } => {
                let [a, b, sum] = self.values(thread, inst, 1)?;
                number::dot(signed, a, b, sum)
            }
            Op::Nothing => return Ok(at + 1),
            Op::BarrierInit | Op::BarrierArrive { .. } | Op::CopyBulk | Op::PrefetchBulk => {
                self.ask(thread, inst)?;
                return Ok(at + 1);
            }
            Op::Return | Op::Barrier => return Err("a thread's end or a barrier out of place".into()),
            op if op.is_warp() => return Err("an operation of a warp out of place".into()),
            op => return Err(format!("{op:?} is not executed")),
        };
        self.put(thread, inst, result)?;
        Ok(at + 1)
    }

    /// Bits from one register to another, from halves to a whole or from a whole to halves.
    fn transfer(&mut self, thread: usize, inst: &Instruction, ty: Ty) -> Result<(), String> {
        match inst.operands.as_slice() {
            [Operand::Several(parts), from] => {
                let (whole, bits) = (self.value(thread, from)?, ty.bits() / parts.len() as u32);
                for (i, part) in (0u32..).zip(parts) {
                    self.set(thread, *part, (whole >> (bits * i)) & ((1 << bits) - 1));
                }
                Ok(())
            }
            [Operand::Reg(_), Operand::Several(parts)] => {
                let bits = ty.bits() / parts.len() as u32;
                let whole = (0u32..).zip(parts).fold(0, |sum, (i, part)| {
                    sum | (self.get(thread, *part) & ((1 << bits) - 1)) << (bits * i)
                });
                self.put(thread, inst, whole)
            }
            [_, from] => {
                let value = self.value(thread, from)?;
                self.put(thread, inst, number::cut(ty, value))
            }
            other => Err(format!("{other:?} of a move")),
        }
    }

    fn load(&mut self, thread: usize, inst: &Instruction, shared: bool, ty: Ty) -> Result<(), String> {
        let to = Self::registers(inst.operands.first())?;
        let (address, size) = (self.address(thread, inst.operands.get(1))?, ty.bits() as usize / 8);
        let bytes = self.memory.bytes(shared, address, size * to.len())?;
        let values: Vec<u64> = bytes.chunks(size).map(read).collect();
        for (reg, value) in to.into_iter().zip(values) {
            // Signed elements fill the 32 bits of their register.
            let value = match ty {
                Ty::S8 => u64::from(value as i8 as u32),
                Ty::S16 => u64::from(value as i16 as u32),
                _ => value,
            };
            self.set(thread, reg, value);
        }
        Ok(())
    }

    fn store(&mut self, thread: usize, inst: &Instruction, shared: bool, ty: Ty) -> Result<(), String> {
        let from = Self::registers(inst.operands.get(1))?;
        let (address, size) = (self.address(thread, inst.operands.first())?, ty.bits() as usize / 8);
        let values: Vec<u64> = from.into_iter().map(|r| self.get(thread, r)).collect();
        let bytes = self.memory.bytes(shared, address, size * values.len())?;
        bytes.chunks_mut(size).zip(values).for_each(|(to, value)| write(to, value));
        Ok(())
    }

    fn atomic(
        &mut self,
        thread: usize,
        inst: &Instruction,
        shared: bool,
        op: Atomic,
        ty: Ty,
    ) -> Result<u64, String> {
        let address = self.address(thread, inst.operands.get(1))?;
        let before = read(self.memory.bytes(shared, address, 4)?);
        let after = match op {
            Atomic::By(op) => {
                let [x] = self.values(thread, inst, 2)?;
                number::binary(op, ty, before, x)?
            }
            Atomic::Exchange => {
                let [x] = self.values(thread, inst, 2)?;
                x
            }
            Atomic::CompareExchange => {
                let [comparand, x] = self.values(thread, inst, 2)?;
                if before == comparand { x } else { before }
            }
        };
        write(self.memory.bytes(shared, address, 4)?, after);
        Ok(before)
    }
}
