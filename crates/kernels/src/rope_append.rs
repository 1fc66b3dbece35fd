//! Rotations and rows that go to caches, several in one dispatch: what stands between a decoder's first product and its
//! attention.

use olivine_ir::{Dim, Op};
use olivine_kernel::Val;

use super::elementwise::whole_copy;
use super::kv_append::{Cache, CacheAppend, DeclaredAppend};
use super::rope::{DeclaredRotation, GROUP, RopeTarget, Rotation};
use crate::launch::Launch;
use crate::site::{Operand, Site, linear_group};

/// What some workgroups of the dispatch do.
enum RowMove<'a> {
    Rotation(Box<Rotation<'a>>),
    CacheAppend(CacheAppend<'a>),
}

/// The same, declared.
enum DeclaredRowMove<'k, 'j> {
    Rotation(DeclaredRotation<'k, 'j>),
    CacheAppend(DeclaredAppend<'k, 'j>),
}

impl RowMove<'_> {
    fn count(&self) -> Dim {
        match self {
            RowMove::Rotation(turn) => turn.count,
            RowMove::CacheAppend(rows) => rows.count,
        }
    }

    fn cost(&self) -> (Dim, Dim) {
        match self {
            RowMove::Rotation(turn) => turn.cost(),
            RowMove::CacheAppend(rows) => rows.cost(),
        }
    }
}

impl<'k> DeclaredRowMove<'k, '_> {
    fn run(&self, work: Val<'k>) {
        match self {
            DeclaredRowMove::Rotation(turn) => turn.run(work),
            DeclaredRowMove::CacheAppend(rows) => rows.run(work),
        }
    }
}

/// Lowers rotations and appends together. Rows that a rotation makes for a cache go there at once.
pub(crate) fn rope_append(ops: &[(&Op, usize)], site: &mut Site<'_>) -> Result<(), String> {
    let (operands, targets) = (site.operands.clone(), site.targets.clone());
    // For every operation its operands and its target.
    let mut parts: Vec<(&Op, &[Operand])> = Vec::with_capacity(ops.len());
    let mut rest = operands.as_slice();
    for (op, count) in ops {
        if !matches!(op, Op::Rope(_) | Op::KvAppend(_)) {
            return Err(format!("{} is neither a rotation nor an append", op.name()));
        }
        let (own, others) = rest.split_at_checked(*count).ok_or("operands are missing")?;
        parts.push((op, own));
        rest = others;
    }
    let caches: Vec<Option<Cache>> = parts
        .iter()
        .zip(&targets)
        .map(|((op, own), target)| match op {
            Op::KvAppend(op) => Cache::new(op, own, target).map(Some),
            _ => Ok(None),
        })
        .collect::<Result<_, String>>()?;
    for ((_, own), cache) in parts.iter().zip(&caches) {
        if let (Some(cache), [old, ..]) = (cache, own) {
            whole_copy(old, &cache.target, site)?;
        }
    }
    // The append that takes a rotation's rows, if one does.
    let taker = |i: usize| {
        let taken = |own: &[Operand]| own.get(1).is_some_and(|rows| rows.memory == targets[i].memory);
        parts.iter().zip(&caches).find_map(|((_, own), cache)| cache.as_ref().filter(|_| taken(own)))
    };
    let mut jobs = Vec::with_capacity(parts.len());
    for (i, ((op, own), cache)) in parts.iter().zip(&caches).enumerate() {
        match (op, cache) {
            (Op::Rope(rope), _) => {
                let place = taker(i).map_or(RopeTarget::Packed(targets[i].clone()), |c| {
                    RopeTarget::Cache(Box::new(c.clone()))
                });
                jobs.extend(
                    Rotation::new(rope, own, place, site)?.map(|turn| RowMove::Rotation(Box::new(turn))),
                );
            }
            (_, Some(cache)) => {
                let rotated =
                    (0..parts.len()).any(|r| caches[r].is_none() && targets[r].memory == own[1].memory);
                jobs.extend(CacheAppend::new(&own[1], cache).filter(|_| !rotated).map(RowMove::CacheAppend));
            }
            _ => {}
        }
    }

    let partials = match site.partials.take() {
        // Where vectors of the rows are none of the parts, the sum is made first.
        Some(parts) if parts.lanes()? < 4 => {
            parts.emit(site)?;
            None
        }
        other => other,
    };
    let group = site.group_size(GROUP);
    let k = site.builder("rotations", group);
    let l = Launch::new(&k);
    let id = linear_group(&k);
    let (mut groups, mut cost) = (Dim::ZERO, (Dim::ZERO, Dim::ZERO));
    for job in &jobs {
        let declared = match job {
            RowMove::Rotation(turn) => {
                DeclaredRowMove::Rotation(turn.declare(&l, partials.as_ref().filter(|u| turn.reads(u)))?)
            }
            RowMove::CacheAppend(rows) => {
                DeclaredRowMove::CacheAppend(rows.declare(&l, partials.as_ref().filter(|u| rows.reads(u)))?)
            }
        };
        let first = l.size("first", groups);
        groups += job.count().div_ceil(group);
        let end = l.size("end", groups);
        k.if_(id.ge(first) & id.lt(end), || declared.run((id - first) * group + k.local_index()));
        let (flops, bytes) = job.cost();
        cost = (cost.0 + flops, cost.1 + bytes);
    }
    let bound = l.done();
    site.dispatch(k, bound, groups, cost)
}
