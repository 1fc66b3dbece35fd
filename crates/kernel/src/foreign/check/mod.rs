//! Whether a module is well formed. Drivers trust what they are given, and some crash on what is not: a module that comes
//! from outside is checked here first.
//!
//! ```text
//!   types.rs        types, constants and variables: what stands before the functions
//!   decorations.rs  decorations, and what they stand on
//!   rules.rs        instructions that compute values from values
//!   body.rs         every instruction of a function, its operands and types
//!   glsl.rs         the functions of GLSL.std.450
//!   flow.rs         blocks: structured control flow, and what dominates what
//! ```
//!
//! Instructions, storage classes and decorations that compute shaders over storage buffers do not need are refused: what
//! passes is known, not merely not known to be wrong. It does not check what a shader does when it runs: an index past the
//! end of an array of its own, or a loop without end.

mod body;
mod decorations;
mod flow;
mod glsl;
mod rules;
mod types;

use std::collections::{HashMap, HashSet};

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{Op, StorageClass};

pub(super) use body::is_read_only;
pub(super) use types::{Globals, Type};

/// What is wrong, in words.
pub(super) type Problem = String;

/// Modules may have this many ids more than words; drivers allocate for each.
const SPARE_IDS: usize = 1 << 16;
/// Calls may nest this deep.
const MAX_CALLS: usize = 64;

/// Checks a whole module and returns what its global part declares.
pub(super) fn check(module: &Module, words: usize, entry: u32) -> Result<Globals, Problem> {
    header(module, words)?;
    let globals = Globals::read(module)?;
    storage_class(module, &globals)?;
    let mut calls: HashMap<u32, Vec<u32>> = HashMap::new();
    for function in &module.functions {
        let (id, called) = body::function(&globals, function).map_err(|problem| match function.def_id() {
            Some(id) => format!("function %{id}: {problem}"),
            None => problem,
        })?;
        calls.insert(id, called);
    }
    no_recursion(&calls)?;
    match globals.functions.get(&entry) {
        Some((result, parameters)) if parameters.is_empty() && globals.ty(*result) == Some(&Type::Void) => {}
        _ => return Err("the entry point is no function without parameters and result".into()),
    }
    if calls.values().flatten().any(|called| *called == entry) {
        return Err("the entry point is called".into());
    }
    Ok(globals)
}

/// The version, and that every id is within the bound, defined once, and there wherever it is used: also in names, which
/// mean nothing to a shader.
fn header(module: &Module, words: usize) -> Result<(), Problem> {
    let header = module.header.as_ref().ok_or("it has no header")?;
    let (major, minor) = header.version();
    if header.version & 0xff00_00ff != 0 || header.reserved_word != 0 {
        return Err("its header has bits set that mean nothing".into());
    }
    if major != 1 || minor > 6 {
        return Err(format!("it is of SPIR-V {major}.{minor}; up to 1.6 is known"));
    }
    if header.bound as usize > words + SPARE_IDS {
        return Err(format!("its ids go up to {}, in {words} words", header.bound));
    }
    let mut defined = HashSet::new();
    for instruction in module.all_inst_iter() {
        if let Some(id) = instruction.result_id {
            if id == 0 || id >= header.bound {
                return Err(format!("id %{id} is outside the bound {}", header.bound));
            }
            if !defined.insert(id) {
                return Err(format!("%{id} is defined twice"));
            }
        }
    }
    for instruction in module.all_inst_iter() {
        let operands = instruction.operands.iter().filter_map(Operand::id_ref_any);
        if let Some(id) = operands.chain(instruction.result_type).find(|id| !defined.contains(id)) {
            return Err(format!("%{id} is used and not defined"));
        }
    }
    Ok(())
}

/// The storage class of buffers came with SPIR-V 1.3; before that it is an extension.
fn storage_class(module: &Module, globals: &Globals) -> Result<(), Problem> {
    let used = globals.types.values().any(|ty| matches!(ty, Type::Pointer(StorageClass::StorageBuffer, _)));
    let old = module.header.as_ref().is_some_and(|header| header.version() < (1, 3));
    let named = module.extensions.iter().any(|extension| match extension.operands.first() {
        Some(Operand::LiteralString(name)) => name == "SPV_KHR_storage_buffer_storage_class",
        _ => false,
    });
    if used && old && !named {
        Err("storage class StorageBuffer without its extension".into())
    } else {
        Ok(())
    }
}

fn no_recursion(calls: &HashMap<u32, Vec<u32>>) -> Result<(), Problem> {
    // The longest chain of calls from each function, found again and again until nothing changes.
    let mut depth: HashMap<u32, usize> = calls.keys().map(|id| (*id, 0)).collect();
    for _ in 0..=MAX_CALLS {
        let mut changed = false;
        for (id, called) in calls {
            let below = called.iter().filter_map(|c| depth.get(c)).map(|d| d + 1).max().unwrap_or(0);
            if depth.insert(*id, below) != Some(below) {
                changed = true;
            }
        }
        if !changed {
            return Ok(());
        }
    }
    Err("functions call each other in a circle, or too deep".into())
}

/// An operand that is an id.
pub(super) fn id(instruction: &Instruction, i: usize) -> Result<u32, Problem> {
    match instruction.operands.get(i) {
        Some(Operand::IdRef(id) | Operand::IdScope(id) | Operand::IdMemorySemantics(id)) => Ok(*id),
        _ => Err(format!("{:?} has no id as operand {i}", instruction.class.opcode)),
    }
}

/// An operand that is a number.
pub(super) fn literal(instruction: &Instruction, i: usize) -> Result<u32, Problem> {
    match instruction.operands.get(i) {
        Some(Operand::LiteralBit32(number)) => Ok(*number),
        _ => Err(format!("{:?} has no number as operand {i}", instruction.class.opcode)),
    }
}

/// All operands from one on, which must be ids.
pub(super) fn ids(instruction: &Instruction, from: usize) -> Result<Vec<u32>, Problem> {
    (from..instruction.operands.len()).map(|i| id(instruction, i)).collect()
}

/// Result id and type of an instruction that has both.
pub(super) fn result(instruction: &Instruction) -> Result<(u32, u32), Problem> {
    let missing = || format!("{:?} has no result", instruction.class.opcode);
    Ok((instruction.result_id.ok_or_else(missing)?, instruction.result_type.ok_or_else(missing)?))
}

/// The label of a block.
pub(super) fn label(block: &rspirv::dr::Block) -> Result<u32, Problem> {
    block.label.as_ref().and_then(|l| l.result_id).ok_or_else(|| "a block has no label".to_string())
}

/// Whether an instruction ends a block.
pub(super) fn is_terminator(op: Op) -> bool {
    matches!(
        op,
        Op::Branch | Op::BranchConditional | Op::Switch | Op::Return | Op::ReturnValue | Op::Unreachable
    )
}
