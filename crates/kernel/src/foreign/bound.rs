//! A user's compute shader over storage buffers in bindings: what it needs of a dispatch.

use std::collections::BTreeMap;

use rspirv::binary::Assemble;
use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{BuiltIn, Capability, Decoration, ExecutionMode, Op, StorageClass};

use super::check::{Globals, Type, check, is_read_only};
use super::{entry_point, invalid, offered, parse};
use crate::Error;
use crate::types::Target;

/// Bytes of push constants that every device takes.
pub const MAX_PUSH_BYTES: u32 = 128;
/// Bindings of a module.
const MAX_BINDINGS: u32 = 64;

/// A compute shader whose buffers are the storage buffers of set 0, checked: it is well formed, and what it needs of a
/// dispatch is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BoundModule {
    words: Vec<u32>,
    entry: String,
    local_size: [u32; 3],
    capabilities: Vec<Capability>,
    /// For every binding below the highest what it is, if the module has it.
    bindings: Vec<Option<Binding>>,
    push_bytes: u32,
    shared_bytes: u32,
    has_op: bool,
}

/// A storage buffer of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// Whether the module says that it never writes to it; stores to it are refused then.
    pub read_only: bool,
    /// Bytes that the buffer must have at least: those before its runtime array, or all.
    pub bytes: u64,
}

impl BoundModule {
    /// Reads and checks a module, little-endian bytes as files hold it; its entry point is `main`, or the only one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let (words, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return invalid(format!("{} bytes are no whole number of words", bytes.len()));
        }
        BoundModule::new(words.iter().map(|w| u32::from_le_bytes(*w)).collect())
    }

    /// Checks a module.
    pub fn new(words: Vec<u32>) -> Result<Self, Error> {
        let mut module = parse(&words)?;
        without_names(&mut module);
        let entry = match module.entry_points.as_slice() {
            [only] => match only.operands.get(2) {
                Some(Operand::LiteralString(name)) => name.clone(),
                _ => return invalid("its entry point has no name".into()),
            },
            _ => "main".into(),
        };
        if entry.is_empty() || !entry.bytes().all(|byte| byte.is_ascii_graphic()) {
            return invalid("its entry point's name has other than printable ASCII characters".into());
        }
        let id = entry_point(&module, &entry)?;
        let refused = |problem: String| Error::Invalid(format!("the SPIR-V module is refused: {problem}"));
        memory_model(&module).map_err(refused)?;
        let globals = check(&module, words.len(), id).map_err(refused)?;
        let local_size = local_size(&module, &globals, id).map_err(refused)?;
        let bindings = bindings(&globals).map_err(refused)?;
        let push_bytes = push_bytes(&globals).map_err(refused)?;
        let mut capabilities = Vec::new();
        for capability in &module.capabilities {
            match capability.operands.first() {
                Some(Operand::Capability(capability)) => capabilities.push(*capability),
                _ => return invalid("a capability without a name".into()),
            }
        }
        if !capabilities.contains(&Capability::Shader) {
            return invalid("it has no capability Shader".into());
        }
        widths(&globals, &capabilities).map_err(refused)?;
        let has_op = has_op(&globals).map_err(refused)?;
        let shared_bytes = shared_bytes(&globals);
        let words = module.assemble();
        Ok(BoundModule { words, entry, local_size, capabilities, bindings, push_bytes, shared_bytes, has_op })
    }

    /// The words, without names and lines.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The entry point's name.
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// Invocations of a workgroup, by dimension.
    pub fn local_size(&self) -> [u32; 3] {
        self.local_size
    }

    /// What is at each binding of set 0 up to the highest; `None` for those that the module does not have.
    pub fn bindings(&self) -> &[Option<Binding>] {
        &self.bindings
    }

    /// Bytes of its push constants.
    pub fn push_bytes(&self) -> u32 {
        self.push_bytes
    }

    /// Whether specialisation constant 0 is a 32-bit number: the operation, where a module has several.
    pub fn has_op(&self) -> bool {
        self.has_op
    }

    /// Invocations of a workgroup.
    pub fn invocations(&self) -> u32 {
        self.local_size.iter().fold(1u32, |all, n| all.saturating_mul(*n))
    }

    /// Refuses a module that needs more memory of a workgroup than a device has, or capabilities that it lacks.
    pub fn fits(&self, target: &Target) -> Result<(), Error> {
        let limit = |what, needed, limit| match needed <= limit {
            true => Ok(()),
            false => Err(Error::Limit { what, needed, limit }),
        };
        limit("workgroup memory", self.shared_bytes, target.shared_bytes)?;
        // Vulkan devices are opened with 8-bit and 16-bit storage.
        match self.capabilities.iter().find(|capability| !offered(**capability, target, true)) {
            Some(capability) => Err(Error::Missing(format!("SPIR-V capability {capability:?}"))),
            None => Ok(()),
        }
    }
}

/// Leaves out what is there for people: names, sources and lines, which drivers read and nobody needs.
fn without_names(module: &mut Module) {
    let is_code = |i: &Instruction| !matches!(i.class.opcode, Op::Line | Op::NoLine | Op::Nop);
    module.debug_string_source.clear();
    module.debug_names.clear();
    module.debug_module_processed.clear();
    module.types_global_values.retain(is_code);
    for block in module.functions.iter_mut().flat_map(|function| &mut function.blocks) {
        block.instructions.retain(is_code);
    }
}

fn memory_model(module: &Module) -> Result<(), String> {
    use rspirv::spirv::{AddressingModel as A, MemoryModel as M};
    match module.memory_model.as_ref().map(|m| m.operands.as_slice()) {
        Some([Operand::AddressingModel(A::Logical), Operand::MemoryModel(M::GLSL450)]) => Ok(()),
        Some([Operand::AddressingModel(A::Logical), Operand::MemoryModel(other)]) => {
            Err(format!("its memory model is {other:?}, not GLSL450"))
        }
        Some([Operand::AddressingModel(other), _]) => {
            Err(format!("its addressing model is {other:?}, not Logical"))
        }
        _ => Err("it has no memory model".into()),
    }
}

/// The workgroup's size: a constant that is built in, or one of two execution modes.
fn local_size(module: &Module, globals: &Globals, entry: u32) -> Result<[u32; 3], String> {
    let number = |id: u32| {
        if globals.specs.get(&id) == Some(&0) {
            return Err("constant 0, which is the operation, is a workgroup's size".to_string());
        }
        let known = globals.numbers.get(&id).and_then(|n| u32::try_from(*n).ok());
        known.ok_or_else(|| "a workgroup's size that is not known".to_string())
    };
    let mut size = None;
    for mode in module.execution_modes.iter().filter(|m| m.operands.first() == Some(&Operand::IdRef(entry))) {
        let found = match mode.operands.as_slice() {
            [
                _,
                Operand::ExecutionMode(ExecutionMode::LocalSize),
                Operand::LiteralBit32(x),
                Operand::LiteralBit32(y),
                Operand::LiteralBit32(z),
            ] => [*x, *y, *z],
            [
                _,
                Operand::ExecutionMode(ExecutionMode::LocalSizeId),
                Operand::IdRef(x),
                Operand::IdRef(y),
                Operand::IdRef(z),
            ] => [number(*x)?, number(*y)?, number(*z)?],
            _ => return Err("an execution mode that is not known".into()),
        };
        if size.replace(found).is_some() {
            return Err("a workgroup's size that is given twice".into());
        }
    }
    for constant in &module.types_global_values {
        let Some(id) = constant.result_id else { continue };
        let builtin = globals.decoration(id, Decoration::BuiltIn).flatten();
        if builtin == Some(BuiltIn::WorkgroupSize as u32) && globals.constants.contains(&id) {
            let [Operand::IdRef(x), Operand::IdRef(y), Operand::IdRef(z)] = constant.operands.as_slice()
            else {
                return Err("a workgroup's size that is no three numbers".into());
            };
            size = Some([number(*x)?, number(*y)?, number(*z)?]);
        }
    }
    match size {
        Some(size) if size.iter().all(|n| *n > 0) => Ok(size),
        _ => Err("it has no workgroup's size".into()),
    }
}

fn bindings(globals: &Globals) -> Result<Vec<Option<Binding>>, String> {
    let mut found: BTreeMap<u32, Binding> = BTreeMap::new();
    for (variable, class) in &globals.variables {
        if !matches!(class, StorageClass::Uniform | StorageClass::StorageBuffer) {
            continue;
        }
        let decorated = |d| globals.decoration(*variable, d).flatten();
        let (set, binding) = (decorated(Decoration::DescriptorSet), decorated(Decoration::Binding));
        let (Some(set), Some(binding)) = (set, binding) else {
            return Err(format!("buffer %{variable} has no set and binding"));
        };
        if set != 0 || binding >= MAX_BINDINGS {
            return Err(format!(
                "it uses set {set}, binding {binding}; buffers are bound in set 0 below {MAX_BINDINGS}"
            ));
        }
        let block = globals.values.get(variable).and_then(|ty| globals.ty(*ty));
        let Some(Type::Pointer(_, block)) = block else { return Err("a buffer that is no block".into()) };
        let read_only = is_read_only(globals, *variable, *block);
        let (bytes, _) = globals.layout(*block)?;
        // Several views of one buffer may share a binding.
        let entry = found.entry(binding).or_insert(Binding { read_only, bytes });
        entry.read_only &= read_only;
        entry.bytes = entry.bytes.max(bytes);
    }
    let count = found.keys().next_back().map_or(0, |highest| highest + 1);
    Ok((0..count).map(|binding| found.get(&binding).copied()).collect())
}

fn push_bytes(globals: &Globals) -> Result<u32, String> {
    let mut most = 0;
    let mut blocks = 0;
    for (variable, class) in &globals.variables {
        if *class != StorageClass::PushConstant {
            continue;
        }
        blocks += 1;
        let block = globals.values.get(variable).and_then(|ty| globals.ty(*ty));
        let Some(Type::Pointer(_, block)) = block else {
            return Err("push constants that are no block".into());
        };
        let (bytes, _) = globals.layout(*block)?;
        most = most.max(bytes);
    }
    match u32::try_from(most) {
        _ if blocks > 1 => Err("it has two blocks of push constants".into()),
        Ok(bytes) if bytes <= MAX_PUSH_BYTES => Ok(bytes.next_multiple_of(4)),
        _ => Err(format!("it has {most} bytes of push constants; {MAX_PUSH_BYTES} are to be had")),
    }
}

/// Numbers of other widths than 32 bits need a capability each.
fn widths(globals: &Globals, capabilities: &[Capability]) -> Result<(), String> {
    for ty in globals.types.values() {
        let needed = match ty {
            Type::Int { bits: 8, .. } => Capability::Int8,
            Type::Int { bits: 16, .. } => Capability::Int16,
            Type::Int { bits: 64, .. } => Capability::Int64,
            Type::Float(16) => Capability::Float16,
            Type::Float(64) => Capability::Float64,
            _ => continue,
        };
        if !capabilities.contains(&needed) {
            return Err(format!("it has {ty:?} without capability {needed:?}"));
        }
    }
    Ok(())
}

/// Bytes of workgroup memory.
fn shared_bytes(globals: &Globals) -> u32 {
    let shared = globals.variables.iter().filter(|(_, class)| **class == StorageClass::Workgroup);
    let bytes = shared.fold(0u64, |sum, (variable, _)| {
        let block = globals.values.get(variable).and_then(|ty| globals.ty(*ty));
        let Some(Type::Pointer(_, of)) = block else { return sum };
        sum.saturating_add(globals.size(*of))
    });
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn has_op(globals: &Globals) -> Result<bool, String> {
    let mut all = globals.specs.iter().filter(|(_, number)| **number == 0);
    let Some((id, _)) = all.next() else { return Ok(false) };
    let ty = globals.values.get(id).and_then(|ty| globals.ty(*ty));
    match (all.next(), ty) {
        (Some(_), _) => Err("specialisation constant 0 is there twice".into()),
        (None, Some(Type::Int { bits: 32, .. })) => Ok(true),
        _ => Err("specialisation constant 0 is no 32-bit number".into()),
    }
}
