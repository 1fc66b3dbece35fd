//! A SPIR-V module being assembled: its sections as words, and its types and constants, each once.

use std::collections::{BTreeSet, HashMap};

use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel, FPEncoding,
    FunctionControl, MAGIC_NUMBER, MemoryModel, Op, StorageClass,
};

/// A result id.
pub(super) type Id = u32;

/// Version 1.6, that of Vulkan 1.3, for pointers.
const POINTER_VERSION: u32 = 0x0001_0600;

/// Version 1.3, that of Vulkan 1.1, for bindings.
const LOGICAL_VERSION: u32 = 0x0001_0300;

/// Appends one instruction.
pub(super) fn put(to: &mut Vec<u32>, op: Op, operands: &[u32]) {
    to.push(((operands.len() as u32 + 1) << 16) | op as u32);
    to.extend_from_slice(operands);
}

/// Appends an instruction that ends in a string, with `after` behind it.
fn put_string(to: &mut Vec<u32>, op: Op, before: &[u32], text: &str, after: &[u32]) {
    let mut operands = before.to_vec();
    // A string ends with a zero byte, and strings in modules cannot hold one.
    let bytes: Vec<u8> = text.bytes().filter(|b| *b != 0).take(1024).chain([0]).collect();
    for chunk in bytes.chunks(4) {
        let mut word = [0; 4];
        for (to, from) in word.iter_mut().zip(chunk) {
            *to = *from;
        }
        operands.push(u32::from_le_bytes(word));
    }
    operands.extend_from_slice(after);
    put(to, op, &operands);
}

/// The sections of a module.
pub(super) struct Module {
    /// Bindings instead of pointers.
    logical: bool,
    /// Vulkan's memory model instead of GLSL's.
    pub(super) vulkan: bool,
    next: Id,
    capabilities: BTreeSet<u32>,
    extensions: BTreeSet<&'static str>,
    modes: Vec<u32>,
    names: Vec<u32>,
    decorations: Vec<u32>,
    globals: Vec<u32>,
    known: HashMap<Vec<u32>, Id>,
    /// Variables that the entry point names: all of them, of bindings' older version inputs only.
    interface: Vec<Id>,
    functions: Vec<u32>,
    /// The entry point.
    pub(super) main: Id,
    /// The instructions of `GLSL.std.450`.
    pub(super) glsl: Id,
}

impl Module {
    /// A module with bindings or with pointers, and in one of the memory models; pointers go with Vulkan's.
    pub(super) fn new(logical: bool, vulkan: bool) -> Self {
        let mut capabilities = vec![Capability::Shader];
        let mut extensions = BTreeSet::new();
        if !logical {
            capabilities.push(Capability::PhysicalStorageBufferAddresses);
        }
        if vulkan {
            capabilities.push(Capability::VulkanMemoryModel);
            if logical {
                extensions.insert("SPV_KHR_vulkan_memory_model");
            }
        }
        Module {
            logical,
            vulkan,
            next: 3,
            capabilities: capabilities.into_iter().map(|c| c as u32).collect(),
            extensions,
            modes: Vec::new(),
            names: Vec::new(),
            decorations: Vec::new(),
            globals: Vec::with_capacity(256),
            known: HashMap::new(),
            interface: Vec::new(),
            functions: Vec::new(),
            main: 1,
            glsl: 2,
        }
    }

    pub(super) fn id(&mut self) -> Id {
        self.next += 1;
        self.next - 1
    }

    pub(super) fn capability(&mut self, capability: Capability) {
        self.capabilities.insert(capability as u32);
    }

    pub(super) fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&(capability as u32))
    }

    pub(super) fn extension(&mut self, name: &'static str) {
        self.extensions.insert(name);
    }

    /// An extension that later versions, and so modules with pointers, have in themselves.
    pub(super) fn before_core(&mut self, name: &'static str) {
        if self.logical {
            self.extension(name);
        }
    }

    pub(super) fn mode(&mut self, mode: ExecutionMode, operands: &[u32]) {
        let mut words = vec![self.main, mode as u32];
        words.extend_from_slice(operands);
        put(&mut self.modes, Op::ExecutionMode, &words);
    }

    pub(super) fn name(&mut self, id: Id, name: &str) {
        put_string(&mut self.names, Op::Name, &[id], name, &[]);
    }

    pub(super) fn decorate(&mut self, id: Id, decoration: Decoration, operands: &[u32]) {
        let mut words = vec![id, decoration as u32];
        words.extend_from_slice(operands);
        put(&mut self.decorations, Op::Decorate, &words);
    }

    fn decorate_member(&mut self, id: Id, member: u32, decoration: Decoration, operands: &[u32]) {
        let mut words = vec![id, member, decoration as u32];
        words.extend_from_slice(operands);
        put(&mut self.decorations, Op::MemberDecorate, &words);
    }

    /// Appends a finished function.
    pub(super) fn function(&mut self, words: &[u32]) {
        self.functions.extend_from_slice(words);
    }

    // Types.

    /// A type by its instruction.
    pub(super) fn ty(&mut self, op: Op, operands: &[u32]) -> Id {
        let mut key = vec![op as u32];
        key.extend_from_slice(operands);
        if let Some(id) = self.known.get(&key) {
            return *id;
        }
        let id = self.id();
        let mut words = vec![id];
        words.extend_from_slice(operands);
        put(&mut self.globals, op, &words);
        self.known.insert(key, id);
        id
    }

    pub(super) fn void(&mut self) -> Id {
        self.ty(Op::TypeVoid, &[])
    }

    pub(super) fn bool(&mut self) -> Id {
        self.ty(Op::TypeBool, &[])
    }

    /// An unsigned integer type; the caller declares the capability of 8 and 16 bits.
    pub(super) fn uint(&mut self, bits: u32) -> Id {
        self.wide(bits);
        self.ty(Op::TypeInt, &[bits, 0])
    }

    /// A signed integer type; the caller declares the capability of 8 and 16 bits.
    pub(super) fn int(&mut self, bits: u32) -> Id {
        self.wide(bits);
        self.ty(Op::TypeInt, &[bits, 1])
    }

    fn wide(&mut self, bits: u32) {
        if bits == 64 {
            self.capability(Capability::Int64);
        }
    }

    pub(super) fn float(&mut self, bits: u32) -> Id {
        match bits {
            16 => self.capability(Capability::Float16),
            64 => self.capability(Capability::Float64),
            _ => {}
        }
        self.ty(Op::TypeFloat, &[bits])
    }

    /// The type of bf16 values; only cooperative matrices compute with it.
    pub(super) fn bfloat(&mut self) -> Id {
        self.extension("SPV_KHR_bfloat16");
        self.capability(Capability::BFloat16TypeKHR);
        self.capability(Capability::BFloat16CooperativeMatrixKHR);
        self.ty(Op::TypeFloat, &[16, FPEncoding::BFloat16KHR as u32])
    }

    /// A vector of 2 to 4 components; the component's type itself for one.
    pub(super) fn vector(&mut self, component: Id, lanes: u32) -> Id {
        if lanes == 1 { component } else { self.ty(Op::TypeVector, &[component, lanes]) }
    }

    pub(super) fn pointer(&mut self, class: StorageClass, to: Id) -> Id {
        self.ty(Op::TypePointer, &[class as u32, to])
    }

    pub(super) fn array(&mut self, element: Id, len: u32) -> Id {
        let len = self.u32(len);
        self.ty(Op::TypeArray, &[element, len])
    }

    /// A block of members with their offsets. Each call makes a new type: layouts are not part of a type's identity.
    pub(super) fn block(&mut self, members: &[(Id, u32)]) -> Id {
        let id = self.id();
        let mut words = vec![id];
        words.extend(members.iter().map(|(ty, _)| *ty));
        put(&mut self.globals, Op::TypeStruct, &words);
        self.decorate(id, Decoration::Block, &[]);
        for (i, (_, offset)) in members.iter().enumerate() {
            self.decorate_member(id, i as u32, Decoration::Offset, &[*offset]);
        }
        id
    }

    /// An array of unknown length whose elements are `stride` bytes apart, inside a block.
    pub(super) fn unsized_block(&mut self, element: Id, stride: u32) -> Id {
        let key = vec![Op::TypeRuntimeArray as u32, element, stride];
        if let Some(id) = self.known.get(&key) {
            return *id;
        }
        let array = self.id();
        put(&mut self.globals, Op::TypeRuntimeArray, &[array, element]);
        self.decorate(array, Decoration::ArrayStride, &[stride]);
        let block = self.block(&[(array, 0)]);
        self.known.insert(key, block);
        block
    }

    // Constants.

    /// A constant by its instruction.
    pub(super) fn constant(&mut self, op: Op, ty: Id, operands: &[u32]) -> Id {
        let mut key = vec![op as u32, ty];
        key.extend_from_slice(operands);
        if let Some(id) = self.known.get(&key) {
            return *id;
        }
        let id = self.id();
        let mut words = vec![ty, id];
        words.extend_from_slice(operands);
        put(&mut self.globals, op, &words);
        self.known.insert(key, id);
        id
    }

    pub(super) fn u32(&mut self, x: u32) -> Id {
        let ty = self.uint(32);
        self.constant(Op::Constant, ty, &[x])
    }

    pub(super) fn u64(&mut self, x: u64) -> Id {
        let ty = self.uint(64);
        self.constant(Op::Constant, ty, &[x as u32, (x >> 32) as u32])
    }

    pub(super) fn zero(&mut self, ty: Id) -> Id {
        self.constant(Op::ConstantNull, ty, &[])
    }

    // Variables of the module.

    /// A variable outside functions.
    pub(super) fn variable(&mut self, class: StorageClass, to: Id) -> Id {
        let pointer = self.pointer(class, to);
        let id = self.id();
        put(&mut self.globals, Op::Variable, &[pointer, id, class as u32]);
        if !self.logical || class == StorageClass::Input {
            self.interface.push(id);
        }
        id
    }

    /// A built-in input.
    pub(super) fn input(&mut self, builtin: BuiltIn, ty: Id) -> Id {
        let key = vec![Op::Variable as u32, builtin as u32];
        if let Some(id) = self.known.get(&key) {
            return *id;
        }
        let id = self.variable(StorageClass::Input, ty);
        self.decorate(id, Decoration::BuiltIn, &[builtin as u32]);
        self.known.insert(key, id);
        id
    }

    /// The module's words; `body` is the entry point's, from its first label to its return.
    pub(super) fn finish(mut self, body: &[u32]) -> Vec<u32> {
        let void = self.void();
        let signature = self.ty(Op::TypeFunction, &[void]);
        let mut words = Vec::with_capacity(256 + self.globals.len() + self.functions.len() + body.len());
        let (version, addressing) = match self.logical {
            true => (LOGICAL_VERSION, AddressingModel::Logical),
            false => (POINTER_VERSION, AddressingModel::PhysicalStorageBuffer64),
        };
        let memory = if self.vulkan { MemoryModel::Vulkan } else { MemoryModel::GLSL450 };
        words.extend([MAGIC_NUMBER, version, 0, self.next, 0]);
        for capability in &self.capabilities {
            put(&mut words, Op::Capability, &[*capability]);
        }
        for extension in &self.extensions {
            put_string(&mut words, Op::Extension, &[], extension, &[]);
        }
        put_string(&mut words, Op::ExtInstImport, &[self.glsl], "GLSL.std.450", &[]);
        put(&mut words, Op::MemoryModel, &[addressing as u32, memory as u32]);
        let entry = [ExecutionModel::GLCompute as u32, self.main];
        put_string(&mut words, Op::EntryPoint, &entry, "main", &self.interface);
        words.extend_from_slice(&self.modes);
        words.extend_from_slice(&self.names);
        words.extend_from_slice(&self.decorations);
        words.extend_from_slice(&self.globals);
        put(&mut words, Op::Function, &[void, self.main, FunctionControl::NONE.bits(), signature]);
        words.extend_from_slice(body);
        put(&mut words, Op::FunctionEnd, &[]);
        words.extend_from_slice(&self.functions);
        words
    }
}
