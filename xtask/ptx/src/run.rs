//! Workgroups one after another, and the threads of each up to where they meet.

use crate::WARP;
use crate::decode::Op;
use crate::memory::{Memory, base};
use crate::parse::Module;
use crate::warpgroup::{Beside, WARPGROUP};

/// Which thread of a workgroup goes first, and whether copies beside them come as late as they may (ascending) or at once
/// (descending). A kernel with barriers enough computes the same in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The first.
    Ascending,
    /// The last.
    Descending,
}

/// Instructions of one thread before it counts as endless.
const PATIENCE: u64 = 1 << 28;

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// The other threads of its warp, at an instruction.
    Warp,
    /// All other threads.
    Barrier,
    /// A phase of a barrier in workgroup memory.
    Phase,
    Ended,
}

/// A workgroup at work.
pub(crate) struct Workgroup<'a> {
    module: &'a Module,
    pub(crate) params: &'a [u64],
    pub(crate) group: [u32; 3],
    pub(crate) groups: [u32; 3],
    pub(crate) memory: Memory<'a>,
    registers: Vec<u64>,
    at: Vec<usize>,
    state: Vec<State>,
    pub(crate) beside: Beside,
}

impl Module {
    /// Runs the entry point over a grid of workgroups. Buffers are the addresses among its parameters, in order, and numbers
    /// the others.
    pub fn run(
        &self,
        groups: [u32; 3],
        buffers: &mut [Vec<u8>],
        numbers: &[u32],
        order: Order,
    ) -> Result<(), String> {
        let addresses = self.params.iter().filter(|is_address| **is_address).count();
        if addresses != buffers.len() || self.params.len() - addresses != numbers.len() {
            return Err(format!(
                "{} buffers and {} numbers for {addresses} and {}",
                buffers.len(),
                numbers.len(),
                self.params.len() - addresses
            ));
        }
        let mut params: Vec<u64> = (0..buffers.len()).map(base).collect();
        params.extend(numbers.iter().map(|n| u64::from(*n)));
        let mut registers = Vec::new();
        for z in 0..groups[2] {
            for y in 0..groups[1] {
                for x in 0..groups[0] {
                    // Not zero, so that a kernel that reads before it writes shows.
                    registers.clear();
                    registers.resize(self.registers * self.threads, 0xcdcd_cdcd_cdcd_cdcd);
                    let mut workgroup = Workgroup {
                        module: self,
                        params: &params,
                        group: [x, y, z],
                        groups,
                        memory: Memory { buffers: &mut *buffers, shared: vec![0xcd; self.shared] },
                        registers,
                        at: vec![0; self.threads],
                        state: vec![State::Runs; self.threads],
                        beside: Beside::new(order == Order::Descending),
                    };
                    workgroup.finish(order)?;
                    registers = workgroup.registers;
                }
            }
        }
        Ok(())
    }
}

impl Workgroup<'_> {
    pub(crate) fn get(&self, thread: usize, register: usize) -> u64 {
        self.registers[thread * self.module.registers + register]
    }

    pub(crate) fn set(&mut self, thread: usize, register: usize, value: u64) {
        self.registers[thread * self.module.registers + register] = value;
    }

    fn finish(&mut self, order: Order) -> Result<(), String> {
        loop {
            let mut moved = false;
            for i in 0..self.state.len() {
                let thread = if order == Order::Ascending { i } else { self.state.len() - 1 - i };
                if self.state[thread] == State::Runs {
                    self.advance(thread)?;
                    moved = true;
                }
            }
            for first in (0..self.state.len()).step_by(WARP) {
                moved |= self.meet(first)?;
            }
            for thread in 0..self.state.len() {
                moved |= self.try_phase(thread)?;
            }
            if self.state.iter().all(|s| *s == State::Ended) {
                return if self.is_settled() {
                    Ok(())
                } else {
                    Err("a copy or a multiply that nothing waits for".into())
                };
            }
            if self.state.iter().all(|s| *s == State::Barrier) {
                for thread in 0..self.state.len() {
                    self.at[thread] += 1;
                    self.state[thread] = State::Runs;
                }
                moved = true;
            }
            // Copies come as late as they may.
            if !moved && !self.copy_comes()? {
                return Err(self.stuck());
            }
        }
    }

    /// Runs a thread until it ends or waits.
    fn advance(&mut self, thread: usize) -> Result<(), String> {
        let module = self.module;
        for _ in 0..PATIENCE {
            let at = self.at[thread];
            let Some(inst) = module.code.get(at) else { return Err("a thread past the end".into()) };
            self.state[thread] = match inst.op {
                Op::Return => State::Ended,
                Op::Barrier => State::Barrier,
                op if op.is_warp() || op.is_warpgroup() => State::Warp,
                Op::BarrierTest => State::Phase,
                _ => {
                    self.at[thread] =
                        self.execute(thread, inst, at).map_err(|e| self.located(thread, at, &e))?;
                    continue;
                }
            };
            return Ok(());
        }
        Err(self.located(thread, self.at[thread], "a loop without end"))
    }

    /// Lets a thread go on whose phase is complete.
    fn try_phase(&mut self, thread: usize) -> Result<bool, String> {
        if self.state[thread] != State::Phase {
            return Ok(false);
        }
        let (module, at) = (self.module, self.at[thread]);
        let inst = &module.code[at];
        let complete = self.phase_is_complete(thread, inst).map_err(|e| self.located(thread, at, &e))?;
        if complete {
            self.put(thread, inst, 1).map_err(|e| self.located(thread, at, &e))?;
            self.at[thread] = at + 1;
            self.state[thread] = State::Runs;
        }
        Ok(complete)
    }

    /// Lets a warp, or a warpgroup, do what all of its threads have come to.
    fn meet(&mut self, first: usize) -> Result<bool, String> {
        let at = self.at[first];
        let of_group = self.module.code.get(at).is_some_and(|inst| inst.op.is_warpgroup());
        let size = if of_group { WARPGROUP } else { WARP };
        if !first.is_multiple_of(size) {
            return Ok(false);
        }
        let members = first..(first + size).min(self.state.len());
        let here = |thread: usize| self.state[thread] == State::Warp && self.at[thread] == at;
        if !members.clone().all(here) {
            return Ok(false);
        }
        if members.len() < size {
            return Err(self.located(first, at, "a warp with too few threads"));
        }
        let module = self.module;
        let done = match of_group {
            true => self.warpgroup(first, &module.code[at]),
            false => self.together(first, &module.code[at]),
        };
        done.map_err(|e| self.located(first, at, &e))?;
        for thread in members {
            self.at[thread] = at + 1;
            self.state[thread] = State::Runs;
        }
        Ok(true)
    }

    fn located(&self, thread: usize, at: usize, problem: &str) -> String {
        let line = self.module.code.get(at).map_or(0, |i| i.line);
        let text = self.module.text.get(line).map_or("", |l| l.trim());
        format!("workgroup {:?}, thread {thread}, line {}: {problem}: {text}", self.group, line + 1)
    }

    fn stuck(&self) -> String {
        let waiting = (0..self.state.len())
            .find(|t| matches!(self.state[*t], State::Warp | State::Barrier | State::Phase));
        let thread = waiting.unwrap_or(0);
        self.located(thread, self.at[thread], "threads wait for each other for ever")
    }
}
