//! The way of sums from cooperative matrices to rows: through workgroup memory, a part of it to each subgroup.

use olivine_kernel::{Builder, Scalar, Shared, Val};

use super::matrices::{LANES, SIDE};

/// Slots of workgroup memory that so many subgroups take on the way out where there is no panel.
pub(super) fn out_slots(subgroups: u32) -> u32 {
    Out::pitch(2) * SIDE * subgroups
}

/// Slots that so many subgroups need at least.
pub(super) fn least_slots(subgroups: u32) -> u32 {
    Out::pitch(1) * SIDE * subgroups
}

/// Memory that nobody else uses any more, and who comes through it.
pub(super) struct Out<'k> {
    pub(super) k: &'k Builder,
    pub(super) memory: Shared<'k>,
    pub(super) slots: u32,
    /// Which part of the block, and which of those that share it.
    pub(super) team: Val<'k>,
    pub(super) slice: Val<'k>,
    pub(super) teams: u32,
    pub(super) slices: u32,
}

impl<'k> Out<'k> {
    /// Slots from one row to the next when so many matrices lie side by side.
    fn pitch(matrices: u32) -> u32 {
        matrices * SIDE / 4 + 1
    }

    /// Matrices that a subgroup's part holds side by side.
    pub(super) fn at_once(&self) -> u32 {
        let fits = |matrices: &u32| Out::pitch(*matrices) * SIDE * self.teams * self.slices <= self.slots;
        [4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// Waits for those that share a part.
    fn wait(&self) {
        if self.slices > 1 { self.k.barrier() } else { self.k.subgroup_barrier() }
    }

    /// Hands on matrices side by side, in runs of four columns of the rows below `end`; those that share a part add
    /// theirs, and each hands on some of the rows. What is long to write is written once. All subgroups that share a part
    /// must come here together.
    pub(super) fn store(
        &self,
        matrices: &[Val<'k>],
        (row, end): (Val<'k>, Val<'k>),
        column: Val<'k>,
        is_long: bool,
        finish: impl Fn(Val<'k>, Val<'k>, &[Val<'k>]),
    ) {
        let k = self.k;
        let count = matrices.len() as u32;
        let pitch = Out::pitch(count);
        let (each, all) = (pitch * SIDE, self.teams * pitch * SIDE);
        let first = self.team * each;
        let mine = first + self.slice * all;
        for (i, matrix) in matrices.iter().enumerate() {
            self.memory.store_matrix(mine + i as u32 * SIDE / 4, k.u32(pitch), false, *matrix);
        }
        self.wait();
        let runs = count * SIDE / 4;
        let load = |at: Val<'k>| -> Vec<Val<'k>> {
            self.memory.load_vec(at).into_iter().map(|s| s.bitcast(Scalar::F32)).collect()
        };
        let put = |round: Val<'k>| {
            let number = round * (LANES * self.slices) + self.slice * LANES + k.lane();
            let (line, run) = (number / runs, number % runs);
            let inside = (row + line).lt(end);
            // The last round may be of some subgroups only.
            let inside = if (SIDE * runs).is_multiple_of(LANES * self.slices) {
                inside
            } else {
                inside & line.lt(SIDE)
            };
            k.if_(inside, || {
                let mut sums = load(first + line * pitch + run);
                for slice in 1..self.slices {
                    let more = load(first + line * pitch + run + slice * all);
                    sums.iter_mut().zip(more).for_each(|(sum, x)| *sum = *sum + x);
                }
                finish(row + line, column + run * 4u32, &sums);
            });
        };
        let rounds = (SIDE * runs).div_ceil(LANES * self.slices);
        if is_long {
            k.for_(k.u32(0), k.u32(rounds), k.u32(1), put);
        } else {
            (0..rounds).for_each(|round| put(k.u32(round)));
        }
        self.wait();
    }
}
