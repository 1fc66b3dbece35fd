//! Nodes that differ in nothing but where their values are: lowered once, bound again. The layers of a model do.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use olivine_ir::{Op, ValueId};
use olivine_kernels::{Memory, Site};

use super::{Of, emit};

/// Nodes that were lowered, each with its values numbered in the order it names them.
#[derive(Default)]
pub(super) struct Memo<'a> {
    /// By a hash of what they are and read.
    known: HashMap<u64, Vec<Entry<'a>>>,
}

/// Nodes as they were before they were lowered together, and after.
struct Entry<'a> {
    ops: Vec<Op>,
    before: Site<'a>,
    after: Site<'a>,
}

impl<'a> Memo<'a> {
    /// Lowers nodes together, or binds what equal ones became.
    pub(super) fn lower(&mut self, ops: &[Of<'_>], mut site: Site<'a>) -> Result<Site<'a>, String> {
        // Graphs inside see constants, and a user's operation may look at anything.
        if ops.iter().any(|(op, _)| !op.bodies().is_empty() || matches!(op, Op::Custom(_))) {
            emit(ops, &mut site)?;
            return Ok(site);
        }
        let mut places = Vec::new();
        site.rebind(|memory| numbered(&mut places, memory));
        let entries = self.known.entry(hash_of(ops, &site)).or_default();
        let equal =
            |e: &&Entry<'a>| e.before.reads_like(&site) && e.ops.iter().eq(ops.iter().map(|(op, _)| *op));
        let mut bound = match entries.iter().find(equal) {
            Some(entry) => entry.after.clone(),
            None => {
                let before = site.clone();
                emit(ops, &mut site)?;
                let ops = ops.iter().map(|(op, _)| (*op).clone()).collect();
                entries.push(Entry { ops, before, after: site.clone() });
                site
            }
        };
        bound.rebind(|memory| match memory {
            Memory::Value(id) => places.get(id.index()).copied().unwrap_or(memory),
            other => other,
        });
        Ok(bound)
    }
}

/// A hash of operations and of what they read and write; equal ones have equal hashes.
fn hash_of(ops: &[Of<'_>], site: &Site<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (op, _) in ops {
        // Equal operations may print zeros of either sign.
        op.name().hash(&mut hasher);
    }
    for operand in &site.operands {
        (operand.ty, operand.offset.structural(), operand.memory, operand.stored).hash(&mut hasher);
        operand.strides.iter().for_each(|stride| stride.structural().hash(&mut hasher));
    }
    for target in &site.targets {
        (target.ty, target.memory).hash(&mut hasher);
    }
    hasher.finish()
}

/// The number of a place, as a value's.
fn numbered(places: &mut Vec<Memory>, memory: Memory) -> Memory {
    let known = places.iter().position(|m| *m == memory);
    let number = known.unwrap_or_else(|| {
        places.push(memory);
        places.len() - 1
    });
    Memory::Value(ValueId::new(number as u32))
}
