//! Kernels that come as finished code: a user's SPIR-V or WGSL instead of a body.
//!
//! What such code may count on:
//!
//! - **SPIR-V with pointers** (Vulkan; addressing model `PhysicalStorageBuffer64`): push constants hold the 64-bit address
//!   of every buffer in order, then every 32-bit param.
//! - **SPIR-V with bindings** (wgpu over Vulkan; addressing model `Logical`): buffer `i` is the storage buffer of set 0,
//!   binding `i`; push constants hold the params.
//! - **WGSL** (wgpu everywhere): buffer `i` is `@group(0) @binding(i) var<storage, read_write>`; where there are params,
//!   they are a `var<uniform>` at the binding after the last buffer.
//!
//! Buffers begin at multiples of 16 bytes, and their last vector of 16 bytes may be read and written past the last
//! element.

mod bound;
mod check;

use std::collections::HashMap;

use rspirv::binary::ParseState;
use rspirv::dr::{Instruction, Loader, Module, Operand};
use rspirv::spirv::{
    AddressingModel, Capability, Decoration, ExecutionMode, ExecutionModel, Op, StorageClass,
};

use crate::ir::{ArgDecl, Kernel, ParamDecl};
use crate::types::Target;
use crate::{Error, Interface};

pub use bound::{Binding, BoundModule, MAX_PUSH_BYTES};

/// Bytes of addresses and params that fit every device's push constants.
pub const MAX_FOREIGN_BYTES: u32 = Interface::MAX_IMMEDIATE_BYTES;

/// The code of a foreign kernel: for each kind of device at most one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Foreign {
    /// For Vulkan.
    pub pointers: Option<SpirvModule>,
    /// For wgpu over Vulkan.
    pub bindings: Option<SpirvModule>,
    /// For wgpu.
    pub wgsl: Option<WgslModule>,
}

/// A user's WGSL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WgslModule {
    /// The text.
    pub source: String,
    /// The entry point's name.
    pub entry: String,
}

/// A user's SPIR-V that was looked into: it parses, has the entry point and says its workgroup's size.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpirvModule {
    words: Vec<u32>,
    entry: String,
    local_size: [u32; 3],
    capabilities: Vec<u32>,
    pointers: bool,
    /// One past the highest binding.
    bindings: u32,
    shared_bytes: u32,
}

impl SpirvModule {
    /// Reads a module from bytes, little-endian, as files hold it.
    pub fn from_bytes(bytes: &[u8], entry: &str) -> Result<Self, Error> {
        let (words, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return invalid(format!("{} bytes are no whole number of words", bytes.len()));
        }
        SpirvModule::new(words.iter().map(|w| u32::from_le_bytes(*w)).collect(), entry)
    }

    /// Looks into a module and takes one of its entry points.
    pub fn new(words: Vec<u32>, entry: &str) -> Result<Self, Error> {
        let module = parse(&words)?;
        let Some(Operand::AddressingModel(addressing)) =
            module.memory_model.as_ref().and_then(|m| m.operands.first())
        else {
            return invalid("it has no memory model".into());
        };
        let pointers = match addressing {
            AddressingModel::PhysicalStorageBuffer64 => true,
            AddressingModel::Logical => false,
            other => return invalid(format!("its addressing model is {other:?}")),
        };
        let id = entry_point(&module, entry)?;
        let local_size = local_size(&module, id)
            .ok_or_else(|| Error::Invalid(format!("SPIR-V entry point `{entry}` has no LocalSize")))?;
        let capabilities = module.capabilities.iter().filter_map(|c| match c.operands.first() {
            Some(Operand::Capability(capability)) => Some(*capability as u32),
            _ => None,
        });
        let capabilities = capabilities.collect();
        let bindings = bindings(&module)?;
        let shared_bytes = shared_bytes(&module);
        Ok(SpirvModule {
            words,
            entry: entry.into(),
            local_size,
            capabilities,
            pointers,
            bindings,
            shared_bytes,
        })
    }

    /// The words.
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

    /// Whether buffers are reached by address; by binding otherwise.
    pub fn uses_pointers(&self) -> bool {
        self.pointers
    }

    fn invocations(&self) -> u32 {
        self.local_size.iter().fold(1, |all, n| all.saturating_mul(*n))
    }

    /// Refuses a module that a device cannot run.
    pub fn fits(&self, target: &Target, args: usize) -> Result<(), Error> {
        let limit = |what, needed, limit| match needed <= limit {
            true => Ok(()),
            false => Err(Error::Limit { what, needed, limit }),
        };
        limit("a workgroup's number of invocations", self.invocations(), target.max_invocations)?;
        limit("workgroup memory", self.shared_bytes, target.shared_bytes)?;
        limit(
            "the highest binding of the module",
            self.bindings,
            if self.pointers { 0 } else { args as u32 },
        )?;
        for number in &self.capabilities {
            let Some(capability) = Capability::from_u32(*number) else {
                return Err(Error::Missing(format!("SPIR-V capability {number}")));
            };
            if !offered(capability, target, self.pointers) {
                return Err(Error::Missing(format!("SPIR-V capability {capability:?}")));
            }
        }
        Ok(())
    }
}

impl Kernel {
    /// A kernel that is finished code.
    pub fn foreign(
        name: impl Into<String>,
        args: Vec<ArgDecl>,
        params: Vec<ParamDecl>,
        code: Foreign,
    ) -> Result<Kernel, Error> {
        let needed = 8 * args.len() as u32 + 4 * params.len() as u32;
        if needed > MAX_FOREIGN_BYTES {
            let what = "bytes of addresses and params of a foreign kernel";
            return Err(Error::Limit { what, needed, limit: MAX_FOREIGN_BYTES });
        }
        if code.pointers.as_ref().is_some_and(|m| !m.pointers) {
            return Err(Error::Invalid("the module for Vulkan reaches buffers by binding".into()));
        }
        if code.bindings.as_ref().is_some_and(|m| m.pointers) {
            return Err(Error::Invalid("the module for wgpu reaches buffers by address".into()));
        }
        let module = code.pointers.as_ref().or(code.bindings.as_ref());
        Ok(Kernel {
            name: name.into(),
            group: module.map_or(1, SpirvModule::invocations),
            args,
            params,
            shared: Vec::new(),
            vars: Vec::new(),
            values: Vec::new(),
            body: Vec::new(),
            foreign: Some(code),
        })
    }
}

/// A module by its grammar alone.
fn parse(words: &[u32]) -> Result<Module, Error> {
    if words.first() != Some(&rspirv::spirv::MAGIC_NUMBER) {
        return invalid("it does not begin with SPIR-V's magic number".into());
    }
    let unreadable = |problem: String| Error::Invalid(format!("the SPIR-V module does not parse: {problem}"));
    framed(words).map_err(unreadable)?;
    // The parser reads strings past the end of what is broken in ways that are not framing.
    let parsed = std::panic::catch_unwind(|| {
        let mut loader = Loader::new();
        rspirv::binary::parse_words(words, &mut loader).map(|()| loader.module())
    });
    match parsed {
        Ok(module) => module.map_err(|e: ParseState| unreadable(e.to_string())),
        Err(_) => Err(unreadable("its operands do not fit its instructions".into())),
    }
}

/// Whether a module is a header and whole instructions, and strings end within theirs.
fn framed(words: &[u32]) -> Result<(), String> {
    let mut at = 5;
    if words.len() < at {
        return Err("it has no header".into());
    }
    while let Some(first) = words.get(at) {
        let (count, op) = ((first >> 16) as usize, first & 0xffff);
        let instruction = match words.get(at..at.saturating_add(count)) {
            Some(instruction) if count > 0 => instruction,
            _ => return Err(format!("an instruction of {count} words at word {at}")),
        };
        // Where the string of an instruction begins, in words.
        let string = match Op::from_u32(op) {
            Some(Op::SourceContinued | Op::SourceExtension | Op::Extension | Op::ModuleProcessed) => Some(1),
            Some(Op::String | Op::Name | Op::ExtInstImport) => Some(2),
            Some(Op::EntryPoint | Op::MemberName) => Some(3),
            Some(Op::Source) if count > 4 => Some(4),
            _ => None,
        };
        if let Some(from) = string {
            let text = instruction.get(from..).unwrap_or_default();
            if !text.iter().any(|word| word.to_le_bytes().contains(&0)) {
                return Err(format!("a string without an end at word {at}"));
            }
        }
        at += count;
    }
    Ok(())
}

fn invalid<T>(problem: String) -> Result<T, Error> {
    Err(Error::Invalid(format!("the SPIR-V module is refused: {problem}")))
}

/// What the drivers open devices with.
fn offered(capability: Capability, target: &Target, pointers: bool) -> bool {
    use Capability as C;
    match capability {
        C::Shader | C::Matrix | C::PhysicalStorageBufferAddresses | C::VulkanMemoryModel => true,
        // Vulkan devices are opened with both; of wgpu's nobody knows.
        C::StorageBuffer8BitAccess | C::StorageBuffer16BitAccess => pointers,
        C::Int64 => target.i64,
        C::Float64 => target.f64,
        C::Float16 => target.f16,
        C::GroupNonUniform
        | C::GroupNonUniformVote
        | C::GroupNonUniformArithmetic
        | C::GroupNonUniformShuffle => target.subgroup.is_some(),
        C::DotProduct | C::DotProductInput4x8BitPacked => target.packed_dot,
        _ => false,
    }
}

fn entry_point(module: &Module, entry: &str) -> Result<u32, Error> {
    let named = |e: &&Instruction| matches!(e.operands.get(2), Some(Operand::LiteralString(n)) if n == entry);
    let found = module.entry_points.iter().find(named);
    match found.map(|e| e.operands.as_slice()) {
        Some([Operand::ExecutionModel(ExecutionModel::GLCompute), Operand::IdRef(id), ..]) => Ok(*id),
        Some(_) => invalid(format!("entry point `{entry}` is no compute shader")),
        None => {
            let names = module.entry_points.iter().filter_map(|e| match e.operands.get(2) {
                Some(Operand::LiteralString(name)) => Some(format!("`{name}`")),
                _ => None,
            });
            let names: Vec<String> = names.collect();
            invalid(format!("it has no entry point `{entry}`, but {}", names.join(", ")))
        }
    }
}

fn local_size(module: &Module, entry: u32) -> Option<[u32; 3]> {
    module.execution_modes.iter().find_map(|mode| match mode.operands.as_slice() {
        [
            Operand::IdRef(id),
            Operand::ExecutionMode(ExecutionMode::LocalSize),
            Operand::LiteralBit32(x),
            Operand::LiteralBit32(y),
            Operand::LiteralBit32(z),
        ] if *id == entry && *x > 0 && *y > 0 && *z > 0 => Some([*x, *y, *z]),
        _ => None,
    })
}

/// One past the highest binding; all must be of set 0.
fn bindings(module: &Module) -> Result<u32, Error> {
    let mut most = 0;
    for decoration in &module.annotations {
        match decoration.operands.as_slice() {
            [_, Operand::Decoration(Decoration::Binding), Operand::LiteralBit32(n)] => {
                most = most.max(n.saturating_add(1));
            }
            [_, Operand::Decoration(Decoration::DescriptorSet), Operand::LiteralBit32(set)] if *set > 0 => {
                return invalid(format!("it uses descriptor set {set}; buffers are bound in set 0"));
            }
            _ => {}
        }
    }
    Ok(most)
}

/// Bytes of workgroup memory, at least.
fn shared_bytes(module: &Module) -> u32 {
    let ids: HashMap<u32, &Instruction> =
        module.types_global_values.iter().filter_map(|i| Some((i.result_id?, i))).collect();
    let mut bytes = 0u32;
    for variable in &module.types_global_values {
        let shared = variable.class.opcode == Op::Variable
            && variable.operands.first() == Some(&Operand::StorageClass(StorageClass::Workgroup));
        if let (true, Some(pointer)) = (shared, variable.result_type.and_then(|t| ids.get(&t)))
            && let Some(Operand::IdRef(of)) = pointer.operands.get(1)
        {
            bytes = bytes.saturating_add(size_of(&ids, *of, 0));
        }
    }
    bytes
}

fn size_of(ids: &HashMap<u32, &Instruction>, id: u32, depth: usize) -> u32 {
    let Some(ty) = ids.get(&id).filter(|_| depth < 16) else { return 0 };
    let number = |i: usize| match ty.operands.get(i) {
        Some(Operand::LiteralBit32(n)) => *n,
        _ => 0,
    };
    let inner = |i: usize| match ty.operands.get(i) {
        Some(Operand::IdRef(id)) => size_of(ids, *id, depth + 1),
        _ => 0,
    };
    match ty.class.opcode {
        Op::TypeInt | Op::TypeFloat => number(0) / 8,
        Op::TypeBool => 4,
        Op::TypeVector => inner(0).saturating_mul(number(1)),
        Op::TypeArray => {
            let length = match ty.operands.get(1) {
                Some(Operand::IdRef(id)) => ids.get(id).and_then(|c| c.operands.first()),
                _ => None,
            };
            let Some(Operand::LiteralBit32(length)) = length else { return 0 };
            inner(0).saturating_mul(*length)
        }
        Op::TypeStruct => (0..ty.operands.len()).fold(0u32, |sum, i| sum.saturating_add(inner(i))),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spirv::{Addressing, SpirvOptions, print};
    use crate::{Access, Builder, Elem};

    fn words(addressing: Addressing) -> Vec<u32> {
        let k = Builder::new("copy", 32, &Target::plain());
        let (x, y) = (k.arg("x", Elem::F32, Access::Read), k.arg("y", Elem::F32, Access::Write));
        let shared = k.shared(Elem::F32, 1, 64);
        let i = k.local_index();
        shared.store(i, x.load(i));
        k.barrier();
        y.store(i, shared.load(i));
        let options = SpirvOptions { addressing, ..SpirvOptions::default() };
        k.finish().and_then(|k| print(&k, &options)).unwrap_or_default()
    }

    #[test]
    fn a_module_is_looked_into() -> Result<(), Error> {
        let pointers = SpirvModule::new(words(Addressing::Pointers { push_bytes: 128 }), "main")?;
        assert!(pointers.uses_pointers());
        assert_eq!(pointers.local_size(), [32, 1, 1]);
        assert_eq!(pointers.shared_bytes, 256);
        let target = Target { i64: true, ..Target::plain() };
        pointers.fits(&target, 2)?;
        let small = Target { shared_bytes: 128, ..target.clone() };
        assert!(matches!(pointers.fits(&small, 2), Err(Error::Limit { what: "workgroup memory", .. })));
        Ok(())
    }

    #[test]
    fn what_is_no_module_is_refused_in_words() {
        let good = words(Addressing::Pointers { push_bytes: 128 });
        let refused = |words: Vec<u32>, entry: &str, why: &str| {
            let problem = SpirvModule::new(words, entry).map(|_| ()).unwrap_err().to_string();
            assert!(problem.contains(why), "{problem}");
        };
        refused(vec![], "main", "magic number");
        refused(vec![0x0302_2307; 10], "main", "magic number");
        refused(good.clone(), "other", "no entry point `other`, but `main`");
        refused(good[..good.len() - 3].to_vec(), "main", "does not parse");
        assert!(SpirvModule::from_bytes(&[3, 2, 35, 7, 0], "main").is_err());
        // Every word broken in turn: an error or a module, never a panic.
        for at in 0..good.len() {
            for value in [0, 1, u32::MAX, 0x0001_0000] {
                let mut broken = good.clone();
                broken[at] = value;
                let _ = SpirvModule::new(broken, "main").map(|m| m.fits(&Target::plain(), 2));
            }
        }
    }

    #[test]
    fn a_capability_that_the_device_lacks_is_named() -> Result<(), Error> {
        let module = SpirvModule::new(words(Addressing::Pointers { push_bytes: 128 }), "main")?;
        let lacking = Target { i64: false, ..Target::plain() };
        match module.fits(&lacking, 2) {
            Err(Error::Missing(what)) => assert!(what.contains("Int64"), "{what}"),
            other => assert!(other.is_ok(), "{other:?}"),
        }
        Ok(())
    }
}
