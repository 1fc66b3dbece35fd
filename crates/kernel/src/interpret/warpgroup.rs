//! Warpgroups. A multiply is done when it begins, and a copy when it is asked for; what waits, waits for its phase.
//!
//! Roles take turns: one runs until it waits for a phase that is not complete, and hands memory to the next.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{Register, Run, invalid, memory};
use crate::Error;
use crate::ir::*;
use crate::types::{Elem, Scalar};
use crate::warpgroup::{
    AsyncBarrier, K_BYTES, Role, WARPGROUP, WarpgroupOperand, WarpgroupStmt, accumulator,
};

/// A barrier's state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Phase {
    arrivals: u32,
    missing: u32,
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

/// Barriers by array and element.
pub(super) type Phases = HashMap<(u32, u64), Phase>;

/// What roles hand to each other.
#[derive(Default)]
struct Common {
    shared: Vec<Vec<u8>>,
    buffers: Vec<Vec<u8>>,
    phases: Phases,
}

/// The variables of a role that has ended, and its lanes.
type Ended = (Vec<Register>, std::ops::Range<usize>);

struct Turns {
    /// There while nobody runs.
    common: Option<Common>,
    turn: usize,
    ended: Vec<bool>,
    /// Turns in a row in which nothing happened.
    idle: usize,
    failed: bool,
}

/// Whose turn it is.
pub(super) struct Baton {
    turns: Mutex<Turns>,
    changed: Condvar,
}

impl Baton {
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts memory down for the next role that has not ended.
    fn pass(&self, turns: &mut Turns, common: Common, me: usize) {
        turns.common = Some(common);
        let count = turns.ended.len();
        let next = (1..=count).map(|i| (me + i) % count).find(|i| !turns.ended[*i]);
        turns.turn = next.unwrap_or(me);
        self.changed.notify_all();
    }

    /// Waits for the turn; nothing if another role failed.
    fn take(&self, me: usize) -> Option<Common> {
        let mut turns = self.lock();
        loop {
            if turns.failed {
                return None;
            }
            if turns.turn == me
                && let Some(common) = turns.common.take()
            {
                return Some(common);
            }
            turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Run<'_> {
    pub(super) fn warpgroup(&mut self, stmt: &WarpgroupStmt, active: &[bool]) -> Result<(), Error> {
        let lanes = || (0..active.len()).filter(|l| active[*l]);
        match stmt {
            WarpgroupStmt::Roles(roles) => self.roles(roles, active),
            WarpgroupStmt::Init(barrier, arrivals) => {
                for lane in lanes() {
                    let key = self.barrier_key(*barrier, lane)?;
                    let fresh = Phase { arrivals: *arrivals, missing: *arrivals, ..Phase::default() };
                    self.phases.insert(key, fresh);
                }
                Ok(())
            }
            WarpgroupStmt::Arrive(barrier, bytes) => {
                for lane in lanes() {
                    let phase = self.phase(*barrier, lane)?;
                    phase.bytes += i64::from(*bytes);
                    let left = phase.missing.checked_sub(1);
                    phase.missing =
                        left.ok_or_else(|| invalid("more arrivals than a barrier was made for"))?;
                    phase.settle();
                    self.moved();
                }
                Ok(())
            }
            WarpgroupStmt::Await(barrier, parity) => loop {
                let mut waits = false;
                for lane in lanes() {
                    let parity = self.get(*parity, lane);
                    waits |= self.phase(*barrier, lane)?.complete & 1 == parity & 1;
                }
                if !waits {
                    return Ok(());
                }
                self.yield_turn()?;
            },
            WarpgroupStmt::Copy { shared, to, arg, from, bytes, barrier } => {
                for lane in lanes() {
                    self.copy_bytes(Storage::Arg(*arg), *from, Storage::Shared(*shared), *to, *bytes, lane)?;
                    let phase = self.phase(*barrier, lane)?;
                    phase.bytes -= i64::from(*bytes);
                    phase.settle();
                    self.moved();
                }
                Ok(())
            }
            // Only the bounds matter.
            WarpgroupStmt::Prefetch { arg, from, bytes } => {
                lanes().try_for_each(|lane| self.source(Storage::Arg(*arg), *from, *bytes, lane).map(|_| ()))
            }
            WarpgroupStmt::Multiply { elems, sums, left, right, adds } => {
                for first in self.warpgroups(active)? {
                    self.multiply(*elems, sums, left, *right, *adds, first)?;
                }
                Ok(())
            }
            WarpgroupStmt::Fence | WarpgroupStmt::Commit | WarpgroupStmt::Wait(_) => {
                self.warpgroups(active).map(|_| ())
            }
        }
    }

    /// The first lanes of the warpgroups that are active, each as a whole.
    fn warpgroups(&self, active: &[bool]) -> Result<Vec<usize>, Error> {
        let mut found = Vec::new();
        for (i, group) in active.chunks(WARPGROUP as usize).enumerate() {
            match (group.contains(&true), group.contains(&false)) {
                (true, false) if group.len() == WARPGROUP as usize => found.push(i * WARPGROUP as usize),
                (true, _) => return Err(Error::Divergent("not every lane of a warpgroup arrives".into())),
                _ => {}
            }
        }
        Ok(found)
    }

    fn barrier_key(&self, barrier: AsyncBarrier, lane: usize) -> Result<(u32, u64), Error> {
        let index = self.get(barrier.index, lane);
        let length = self.kernel.shared.get(barrier.shared.index()).map_or(0, |d| d.len);
        if index >= u64::from(length) {
            return Err(invalid(format!("barrier {index} of {length}")));
        }
        Ok((barrier.shared.0, index))
    }

    fn phase(&mut self, barrier: AsyncBarrier, lane: usize) -> Result<&mut Phase, Error> {
        let key = self.barrier_key(barrier, lane)?;
        self.phases.get_mut(&key).ok_or_else(|| invalid("a barrier that was not made"))
    }

    /// Bytes from one memory to another; positions and sizes are multiples of 16.
    fn copy_bytes(
        &mut self,
        from: Storage,
        first: Value,
        to: Storage,
        second: Value,
        count: u32,
        lane: usize,
    ) -> Result<(), Error> {
        let copied = self.source(from, first, count, lane)?.to_vec();
        self.source(to, second, count, lane)?.copy_from_slice(&copied);
        Ok(())
    }

    /// So many bytes of a memory from an element on, at a multiple of 16.
    fn source(&mut self, of: Storage, index: Value, count: u32, lane: usize) -> Result<&mut [u8], Error> {
        let index = self.get(index, lane);
        let (bytes, elem, lanes) = self.memory(of)?;
        let start = index.saturating_mul(u64::from(elem.size()) * lanes as u64);
        if !start.is_multiple_of(16) {
            return Err(invalid("a copy that is not aligned"));
        }
        let range = start as usize..(start as usize).saturating_add(count as usize);
        bytes.get_mut(range).ok_or_else(|| invalid("a copy past the end of memory"))
    }

    fn multiply(
        &mut self,
        elems: [Elem; 2],
        sums: &[VarId],
        left: &[VarId; 4],
        right: WarpgroupOperand,
        adds: Value,
        first: usize,
    ) -> Result<(), Error> {
        let is_float = accumulator(elems) == Some(Scalar::F32);
        let size = elems[0].size() as usize;
        // Elements of 4, of 16 and of all bytes along k.
        let (each, block, inner) = (4 / size, 16 / size, K_BYTES as usize / size);
        let columns = 2 * sums.len();
        let number = |elem: Elem, bits: u64| match is_float {
            true => f64::from(f32::from_bits(memory::widen(elem, bits & 0xffff) as u32)),
            false => f64::from(memory::widen(elem, bits & 0xff) as u32 as i32),
        };
        let part = |run: &Self, row: usize, k: usize| {
            let lane = first + row / 16 * 32 + row % 8 * 4 + k % block / each;
            let var = left[row % 16 / 8 + 2 * (k / block)];
            number(elems[0], run.vars[var.index() * run.width + lane][0] >> (8 * size * (k % each)))
        };
        let a: Vec<f64> = (0..64 * inner).map(|i| part(self, i / inner, i % inner)).collect();
        let start = self.get(right.index, first);
        let (bytes, held, lanes) = self.memory(Storage::Shared(right.shared))?;
        let start = start as usize * held.size() as usize * lanes;
        if !start.is_multiple_of(16) {
            return Err(invalid("an operand that is not aligned"));
        }
        let mut b = Vec::with_capacity(columns * inner);
        for column in 0..columns {
            for k in 0..inner {
                let skip = column / 8 * right.n_stride as usize + k / block * right.k_stride as usize;
                let at = start + skip + column % 8 * 16 + k % block * size;
                let raw = bytes
                    .get(at..at + size)
                    .ok_or_else(|| invalid("an operand past the end of its array"))?;
                b.push(number(elems[1], raw.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte))));
            }
        }
        for lane in 0..WARPGROUP as usize {
            let adds = self.get(adds, first + lane) != 0;
            for (i, var) in sums.iter().enumerate() {
                let row = lane / 32 * 16 + lane % 32 / 4 + i % 4 / 2 * 8;
                let column = i / 4 * 8 + lane % 4 * 2 + i % 2;
                let register = &mut self.vars[var.index() * self.width + first + lane];
                let old = match is_float {
                    _ if !adds => 0.0,
                    true => f64::from(f32::from_bits(register[0] as u32)),
                    false => f64::from(register[0] as u32 as i32),
                };
                let sum = (0..inner).fold(old, |sum, k| sum + a[row * inner + k] * b[column * inner + k]);
                let bits = if is_float { (sum as f32).to_bits() } else { sum as i64 as u32 };
                *register = [u64::from(bits), 0, 0, 0] as Register;
            }
        }
        Ok(())
    }

    // Roles.

    /// Something happened that another role may wait for.
    fn moved(&self) {
        if let Some((baton, _)) = self.role {
            baton.lock().idle = 0;
        }
    }

    fn put_down(&mut self) -> Common {
        Common {
            shared: std::mem::take(&mut self.shared),
            buffers: self.buffers.iter_mut().map(std::mem::take).collect(),
            phases: std::mem::take(&mut self.phases),
        }
    }

    fn pick_up(&mut self, common: Common) {
        self.shared = common.shared;
        self.buffers.iter_mut().zip(common.buffers).for_each(|(to, from)| *to = from);
        self.phases = common.phases;
    }

    /// Lets the other roles run.
    fn yield_turn(&mut self) -> Result<(), Error> {
        let stuck = || invalid("a phase that nothing completes");
        let (baton, me) = self.role.ok_or_else(stuck)?;
        let common = self.put_down();
        {
            let mut turns = baton.lock();
            turns.idle += 1;
            if turns.idle > turns.ended.len() {
                turns.failed = true;
            }
            baton.pass(&mut turns, common, me);
        }
        let common = baton.take(me).ok_or_else(stuck)?;
        self.pick_up(common);
        Ok(())
    }

    fn roles(&mut self, roles: &[Role], active: &[bool]) -> Result<(), Error> {
        if active.contains(&false) || self.role.is_some() {
            return Err(Error::Divergent("not every invocation comes to its role".into()));
        }
        let turns = Turns {
            common: Some(self.put_down()),
            turn: 0,
            ended: vec![false; roles.len()],
            idle: 0,
            failed: false,
        };
        let baton = Baton { turns: Mutex::new(turns), changed: Condvar::new() };
        let (values, vars) = (&self.values, &self.vars);
        let (kernel, args) = (self.kernel, self.buffers.len());
        let (params, device, subgroup) = (self.params, self.device, self.subgroup);
        let (groups, group, width) = (self.groups, self.group, self.width);
        let outcomes: Vec<Result<Ended, Error>> = std::thread::scope(|scope| {
            let mut next = 0;
            let mut threads = Vec::new();
            for (me, role) in roles.iter().enumerate() {
                let lanes = next..next + (role.subgroups * subgroup) as usize;
                next = lanes.end;
                let baton = &baton;
                threads.push(scope.spawn(move || {
                    let mut buffers = vec![Vec::new(); args];
                    let mut run = Run::new(kernel, subgroup, groups, group, &mut buffers, params, device);
                    (run.values, run.vars) = (values.clone(), vars.clone());
                    run.role = Some((baton, me));
                    let active: Vec<bool> = (0..width).map(|l| lanes.contains(&l)).collect();
                    let common = baton.take(me).ok_or_else(|| invalid("another role failed"))?;
                    run.pick_up(common);
                    let done = run.block(&role.body, &active);
                    let common = run.put_down();
                    let mut turns = baton.lock();
                    turns.ended[me] = true;
                    turns.idle = 0;
                    turns.failed |= done.is_err();
                    // A role that failed while it waited has nothing to hand on.
                    if turns.common.is_none() {
                        baton.pass(&mut turns, common, me);
                    }
                    baton.changed.notify_all();
                    drop(turns);
                    done.map(|()| (run.vars, lanes))
                }));
            }
            let lost = || Err(invalid("a role panicked"));
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| lost())).collect()
        });
        let common = baton.lock().common.take().unwrap_or_default();
        self.pick_up(common);
        for outcome in outcomes {
            let (vars, lanes) = outcome?;
            for var in 0..self.kernel.vars.len() {
                let range = var * width + lanes.start..var * width + lanes.end;
                self.vars[range.clone()].copy_from_slice(&vars[range]);
            }
        }
        Ok(())
    }
}
