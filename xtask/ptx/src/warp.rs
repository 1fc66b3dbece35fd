//! What the threads of a warp do together.

use crate::WARP;
use crate::decode::{Op, Shuffle, Ty};
use crate::memory::read;
use crate::number;
use crate::parse::Instruction;
use crate::run::Workgroup;

/// All lanes.
const ALL: u64 = 0xffff_ffff;

impl Workgroup<'_> {
    pub(crate) fn together(&mut self, first: usize, inst: &Instruction) -> Result<(), String> {
        let lanes = first..first + WARP;
        match inst.op {
            Op::WarpBarrier => {
                let [mask] = self.values(first, inst, 0)?;
                whole(mask)
            }
            Op::Vote { any } => {
                let mut votes = Vec::with_capacity(WARP);
                for lane in lanes.clone() {
                    let [vote, mask] = self.values(lane, inst, 1)?;
                    whole(mask)?;
                    votes.push(vote != 0);
                }
                let result = if any { votes.contains(&true) } else { !votes.contains(&false) };
                lanes.into_iter().try_for_each(|lane| self.put(lane, inst, u64::from(result)))
            }
            Op::Shuffle(mode) => {
                let mut operands = Vec::with_capacity(WARP);
                for lane in lanes {
                    operands.push(self.values::<4>(lane, inst, 1)?);
                }
                for (i, [own, by, clamp, mask]) in operands.iter().enumerate() {
                    whole(*mask)?;
                    let (by, clamp) = (*by as usize & 31, *clamp as usize);
                    let from = match (mode, clamp) {
                        (Shuffle::Index, 31) => by,
                        (Shuffle::Butterfly, 31) => i ^ by,
                        (Shuffle::Up, 0) => i.checked_sub(by).unwrap_or(i),
                        _ => return Err(format!("a shuffle within {clamp:#x}")),
                    };
                    let value = operands.get(from).map_or(*own, |o| o[0]);
                    self.put(first + i, inst, value)?;
                }
                Ok(())
            }
            Op::Reduce(op, ty) => {
                let mut sum = None;
                for lane in lanes.clone() {
                    let [value, mask] = self.values(lane, inst, 1)?;
                    whole(mask)?;
                    sum = Some(match sum {
                        None => value,
                        Some(sum) => number::binary(op, ty, sum, value)?,
                    });
                }
                lanes.into_iter().try_for_each(|lane| self.put(lane, inst, sum.unwrap_or(0)))
            }
            Op::LoadMatrix { count, transposed } => self.load_matrix(first, inst, count, transposed),
            Op::Multiply { k, operand, accumulator } => self.multiply(first, inst, k, operand, accumulator),
            op => Err(format!("{op:?} is nothing that warps do")),
        }
    }

    /// Blocks of 8 rows of 16 bytes, of which lane i names row i.
    fn load_matrix(
        &mut self,
        first: usize,
        inst: &Instruction,
        count: usize,
        transposed: bool,
    ) -> Result<(), String> {
        let to = Self::registers(inst.operands.first())?;
        if to.len() != count {
            return Err(format!("{} registers for {count} blocks", to.len()));
        }
        let mut rows = Vec::new();
        for lane in first..first + 8 * count {
            let address = self.address(lane, inst.operands.get(1))?;
            rows.push(self.memory.bytes(true, address, 16)?.to_vec());
        }
        let half = |block: usize, row: usize, column: usize| {
            let (row, column) = if transposed { (column, row) } else { (row, column) };
            read(&rows[8 * block + row][2 * column..2 * column + 2])
        };
        for lane in 0..WARP {
            for (block, reg) in to.iter().enumerate() {
                let (row, column) = (lane / 4, lane % 4 * 2);
                let word = half(block, row, column) | (half(block, row, column + 1) << 16);
                self.set(first + lane, *reg, word);
            }
        }
        Ok(())
    }

    /// `d = a · b + c` for 16 rows and 8 columns; the sums of floats are exact and rounded once.
    fn multiply(
        &mut self,
        first: usize,
        inst: &Instruction,
        k: usize,
        operand: Ty,
        accumulator: Ty,
    ) -> Result<(), String> {
        let sets = inst.operands.iter().map(|o| Self::registers(Some(o))).collect::<Result<Vec<_>, _>>()?;
        let [d, a, b, c] = sets.as_slice() else {
            return Err("a multiply of other than four operands".into());
        };
        let per_word = 32 / operand.bits() as usize;
        // Words of four lanes side by side along k.
        let run = 4 * per_word;
        let runs = k / run;
        let sums = if accumulator == Ty::F16 { 2 } else { 4 };
        if a.len() != 2 * runs || b.len() != runs || c.len() != sums || d.len() != sums {
            return Err("fragments of the wrong size".into());
        }
        let part = |word: u64, i: usize| {
            let bits = (word >> (operand.bits() as usize * i)) & ((1 << operand.bits()) - 1);
            match operand {
                Ty::F16 => number::half(bits),
                Ty::BF16 => number::bfloat(bits),
                Ty::S8 => f64::from(bits as i8),
                _ => bits as f64,
            }
        };
        let left = |row: usize, at: usize| {
            let lane = row % 8 * 4 + at % run / per_word;
            part(self.get(first + lane, a[row / 8 + 2 * (at / run)]), at % per_word)
        };
        let right = |at: usize, column: usize| {
            let lane = column * 4 + at % run / per_word;
            part(self.get(first + lane, b[at / run]), at % per_word)
        };
        let mut results = Vec::new();
        for lane in 0..WARP {
            for i in 0..4 {
                let (row, column) = (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
                let old = match accumulator {
                    Ty::F16 => self.get(first + lane, c[i / 2]) >> (16 * (i % 2)) & 0xffff,
                    _ => self.get(first + lane, c[i]),
                };
                let start = match accumulator {
                    Ty::F16 => number::half(old),
                    Ty::F32 => f64::from(f32::from_bits(old as u32)),
                    _ => f64::from(old as i32),
                };
                let sum = (0..k).fold(start, |sum, at| sum + left(row, at) * right(at, column));
                results.push(match accumulator {
                    Ty::F16 => number::to_half(sum),
                    Ty::F32 => number::single(sum as f32),
                    // Sums of integers are exact in f64, and wrap.
                    _ => sum as i64 as u64 & ALL,
                });
            }
        }
        for lane in 0..WARP {
            let of = &results[4 * lane..4 * lane + 4];
            match accumulator {
                Ty::F16 => {
                    self.set(first + lane, d[0], of[0] | (of[1] << 16));
                    self.set(first + lane, d[1], of[2] | (of[3] << 16));
                }
                _ => d.iter().zip(of).for_each(|(reg, value)| self.set(first + lane, *reg, *value)),
            }
        }
        Ok(())
    }
}

/// Only whole warps meet.
fn whole(mask: u64) -> Result<(), String> {
    if mask == ALL { Ok(()) } else { Err(format!("lanes {mask:#x} of a warp")) }
}
