//! An invocation's part of x, in registers while it goes through the rows of the weight.

use olivine_kernel::{Buf, Builder, Elem, Shared, Val, Var};

use super::cut::GemvCut;
use super::quantize::{DeclaredDigits, RunShape};
use crate::packed::decode::Group;
use crate::packed::digits::Digits;
use crate::packed::pool::Pool;

/// Clusters whose part of x is in workgroup memory at a time.
const STAGED: u32 = 4;

/// What x is read from.
pub(crate) struct XReader<'k> {
    pub(crate) k: &'k Builder,
    pub(crate) x: Buf<'k>,
    pub(crate) cut: GemvCut,
    pub(crate) shape: RunShape,
    pub(crate) k_size: Val<'k>,
    /// Neighbours of x that one load may take.
    pub(crate) lanes: u32,
    /// Whether every run ends within K.
    pub(crate) whole: bool,
    pub(crate) lane: Val<'k>,
    /// Elements that share a scale of the weight, and whether they are to be summed.
    pub(crate) groups: (u32, bool),
    /// Its digits, if it is made integers.
    pub(crate) digits: Option<DeclaredDigits<'k>>,
}

/// A row of x.
#[derive(Clone, Copy)]
pub(crate) struct XRow<'k> {
    /// Its number among the rows that have digits.
    pub(crate) number: Val<'k>,
    /// Its first element.
    pub(crate) first: Val<'k>,
}

/// An invocation's part of x for one run.
pub(crate) enum XRun<'k> {
    /// A row's elements, and their sums by groups that share a scale.
    Floats {
        x: Vec<Val<'k>>,
        sums: Vec<Val<'k>>,
        group: usize,
    },
    Digits(Digits<'k>),
}

impl<'k> XRun<'k> {
    /// Adds the products with the groups of a run to a total.
    pub(crate) fn dot(&self, groups: &[Group<'k>], total: Val<'k>) -> Val<'k> {
        match self {
            XRun::Digits(digits) => digits.dot(groups, total),
            XRun::Floats { x, sums, group } => {
                let each = groups.iter().zip(x.chunks(*group)).zip(sums);
                each.fold(total, |total, ((group, x), sum)| group.dot(x, *sum, total))
            }
        }
    }
}

impl<'k> XReader<'k> {
    /// Workgroup memory for floats, if it helps: lanes would load far from each other otherwise.
    pub(crate) fn staging(&self, pool: &Pool<'k>) -> Option<Shared<'k>> {
        let GemvCut { run, runs, width, digits, .. } = self.cut;
        let target = self.k.target();
        let vectors = STAGED * width * runs * ((run / 4) | 1);
        let apt = digits == 0 && run > 8 && self.lanes == 4 && target.subgroup.is_some_and(|s| s >= 16);
        (apt && 16 * vectors <= target.shared_bytes / 2).then(|| pool.take("floats", Elem::F32, 4, vectors))
    }

    /// The runs of a row of x: those of a cluster, in a round of chunks. The whole workgroup must come here together.
    pub(crate) fn hold(
        &self,
        staging: Option<Shared<'k>>,
        row: XRow<'k>,
        (round, cluster): (Val<'k>, Val<'k>),
        places: &[(Val<'k>, Val<'k>)],
    ) -> Vec<XRun<'k>> {
        match (&self.digits, staging) {
            (Some(digits), _) => {
                let run = |i: u32| digits.load(row.number, (round + cluster) * self.cut.runs + i, self.lane);
                (0..self.cut.runs).map(|i| XRun::Digits(run(i))).collect()
            }
            (None, Some(staging)) => self.hold_floats(row.first, round, cluster, staging),
            (None, None) => places.iter().map(|place| self.hold_run(row.first, *place)).collect(),
        }
    }

    /// All runs of a row of x that begins at `base`, through workgroup memory: neighbouring invocations load neighbours and
    /// store them where each finds its own run, in other banks than its neighbours do. So many clusters' at a time.
    fn hold_floats(
        &self,
        base: Val<'k>,
        round: Val<'k>,
        cluster: Val<'k>,
        staging: Shared<'k>,
    ) -> Vec<XRun<'k>> {
        let GemvCut { run, runs, width, clusters, .. } = self.cut;
        let (k, per_run) = (self.k, run / 4);
        let pitch = per_run | 1;
        let per_cluster = width * runs * per_run;
        let zero = k.f32(0.0);
        let held: Vec<Vec<Var<'k>>> = (0..runs).map(|_| (0..run).map(|_| k.var(zero)).collect()).collect();
        k.for_(k.u32(0), k.u32(clusters), k.u32(STAGED), |first| {
            k.barrier();
            k.for_(k.local_index(), k.u32(STAGED * per_cluster), k.u32(k.group()), |number| {
                let at = ((round + first) * per_cluster + number) * 4u32;
                let inside = at.lt(self.k_size);
                let x = self.x.load_vec(base + at.min(self.k_size - 4u32), 4);
                let x: Vec<Val<'k>> = x.into_iter().map(|x| inside.select(x, zero)).collect();
                staging.store_vec(number / per_run * pitch + number % per_run, &x);
            });
            k.barrier();
            k.if_((cluster - first).lt(STAGED), || {
                for (i, run) in (0u32..).zip(&held) {
                    let from = (((cluster - first) * runs + i) * width + self.lane) * pitch;
                    for (j, four) in (0u32..).zip(run.chunks(4)) {
                        let x = staging.load_vec(from + j);
                        four.iter().zip(x).for_each(|(var, x)| var.set(x));
                    }
                }
            });
        });
        held.iter().map(|run| self.held(run.iter().map(|var| var.get()).collect())).collect()
    }

    /// A run of a row of x that begins at `base`; zeros where the run is none or K ends.
    fn hold_run(&self, base: Val<'k>, (at, inside): (Val<'k>, Val<'k>)) -> XRun<'k> {
        let zero = self.k.f32(0.0);
        let mut x = Vec::with_capacity(self.cut.run as usize);
        for i in (0..self.cut.run).step_by(self.lanes as usize) {
            let index = at + self.shape.offset(i);
            if self.whole {
                let loaded = self.x.load_vec(base + index, self.lanes as u8);
                x.extend(loaded.into_iter().map(|v| inside.select(v, zero)));
            } else {
                let there = inside & index.lt(self.k_size);
                x.push(there.select(self.x.load(base + index.min(self.k_size - 1u32)), zero));
            }
        }
        self.held(x)
    }

    /// A run of x and the sums of its groups, where they are needed.
    fn held(&self, x: Vec<Val<'k>>) -> XRun<'k> {
        let zero = self.k.f32(0.0);
        let (len, uses_sum) = self.groups;
        let sum = |x: &[Val<'k>]| x[1..].iter().fold(x[0], |sum, x| sum + *x);
        let sums = if uses_sum { x.chunks(len as usize).map(sum).collect() } else { vec![zero; x.len()] };
        XRun::Floats { x, sums, group: len as usize }
    }
}
