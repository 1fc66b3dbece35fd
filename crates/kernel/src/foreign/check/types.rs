//! What stands before the functions: types with their sizes and layouts, constants and variables.

use std::collections::{HashMap, HashSet};

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{BuiltIn, Decoration, Op, StorageClass};

use super::{Problem, id, ids, literal, result};

/// A type; parts by their ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Void,
    Bool,
    Int { bits: u32, signed: bool },
    Float(u32),
    Vector(u32, u32),
    Array(u32, u32),
    Runtime(u32),
    Struct(Vec<u32>),
    Pointer(StorageClass, u32),
    Function(u32, Vec<u32>),
}

/// A decoration and its number, where it has one.
pub(super) type Decorated = (Decoration, Option<u32>);

/// What the global part of a module declares.
#[derive(Default)]
pub(crate) struct Globals {
    pub(crate) types: HashMap<u32, Type>,
    /// Bytes of types that an invocation or a workgroup has for itself.
    sizes: HashMap<u32, u64>,
    /// Bytes and alignment of types in memory that is shared with the host, by their offsets and strides.
    layouts: HashMap<u32, Result<(u64, u64), Problem>>,
    /// Types of constants and variables.
    pub(crate) values: HashMap<u32, u32>,
    /// Whole numbers that are known.
    pub(crate) numbers: HashMap<u32, u64>,
    /// Constants that a caller may change, with their numbers.
    pub(crate) specs: HashMap<u32, u32>,
    pub(crate) constants: HashSet<u32>,
    pub(crate) variables: HashMap<u32, StorageClass>,
    /// Result and parameters of functions.
    pub(crate) functions: HashMap<u32, (u32, Vec<u32>)>,
    /// Imports of GLSL.std.450.
    pub(crate) glsl: HashSet<u32>,
    private_bytes: u64,
    /// Types of which there is one each.
    simple: HashSet<Type>,
    pub(super) decorations: HashMap<u32, Vec<Decorated>>,
    pub(super) members: HashMap<(u32, u32), Vec<Decorated>>,
}

/// Bytes of variables of an invocation: drivers put them on stacks.
pub(super) const MAX_PRIVATE: u64 = 64 << 10;

/// Extensions that add nothing but what is checked here.
const EXTENSIONS: [&str; 4] = [
    "SPV_KHR_storage_buffer_storage_class",
    "SPV_KHR_16bit_storage",
    "SPV_KHR_8bit_storage",
    "SPV_KHR_no_integer_wrap_decoration",
];

impl Globals {
    pub(super) fn read(module: &Module) -> Result<Self, Problem> {
        let mut globals = Globals::default();
        for extension in &module.extensions {
            match extension.operands.first() {
                Some(Operand::LiteralString(name)) if EXTENSIONS.contains(&name.as_str()) => {}
                other => return Err(format!("extension {other:?} is not known")),
            }
        }
        for import in &module.ext_inst_imports {
            match (import.result_id, import.operands.first()) {
                (Some(id), Some(Operand::LiteralString(name))) if name == "GLSL.std.450" => {
                    globals.glsl.insert(id);
                }
                (_, other) => return Err(format!("instructions of {other:?} are not known")),
            }
        }
        globals.read_decorations(module)?;
        for instruction in &module.types_global_values {
            globals.add(instruction).map_err(|problem| match instruction.result_id {
                Some(id) => format!("%{id}: {problem}"),
                None => problem,
            })?;
        }
        for function in &module.functions {
            let def = function.def.as_ref().ok_or("a function has no beginning")?;
            let (function, result) = result(def)?;
            let plain = matches!(def.operands.first(), Some(Operand::FunctionControl(c)) if c.bits() <= 0xf);
            if !plain {
                return Err(format!("function %{function} is controlled in a way that is not known"));
            }
            let Some(Type::Function(returns, parameters)) = globals.ty(id(def, 1)?) else {
                return Err(format!("function %{function} has no function type"));
            };
            if *returns != result {
                return Err(format!("function %{function} returns another type than its own"));
            }
            let signature = (*returns, parameters.clone());
            globals.functions.insert(function, signature);
        }
        globals.check_decorated(module)?;
        globals.check_entry_points(module)?;
        Ok(globals)
    }

    pub(crate) fn ty(&self, id: u32) -> Option<&Type> {
        self.types.get(&id)
    }

    /// The type of a constant or variable.
    pub(super) fn value(&self, id: u32) -> Option<u32> {
        self.values.get(&id).copied()
    }

    fn known(&self, id: u32) -> Result<&Type, Problem> {
        self.ty(id).ok_or_else(|| format!("%{id} is no type above"))
    }

    /// A type that variables can have and values can be loaded of.
    fn data(&self, id: u32) -> Result<(), Problem> {
        match self.known(id)? {
            Type::Void | Type::Pointer(..) | Type::Function(..) => Err(format!("%{id} is no type of data")),
            _ => Ok(()),
        }
    }

    fn add(&mut self, instruction: &Instruction) -> Result<(), Problem> {
        let op = instruction.class.opcode;
        match op {
            Op::Line | Op::NoLine | Op::Nop => return Ok(()),
            Op::Variable => return self.variable(instruction),
            Op::Undef => {
                let (id, ty) = result(instruction)?;
                self.data(ty)?;
                self.values.insert(id, ty);
                return Ok(());
            }
            _ => {}
        }
        if let Some(ty) = self.read_type(instruction)? {
            let id = instruction.result_id.ok_or("a type without an id")?;
            let simple = matches!(
                ty,
                Type::Void
                    | Type::Bool
                    | Type::Int { .. }
                    | Type::Float(_)
                    | Type::Vector(..)
                    | Type::Function(..)
            );
            if simple && !self.simple.insert(ty.clone()) {
                return Err("a type that is there already".into());
            }
            // From what is known of its parts: a type of types of types is not walked through again.
            self.sizes.insert(id, self.size_of(&ty));
            self.layouts.insert(id, self.layout_of(id, &ty));
            self.types.insert(id, ty);
            return Ok(());
        }
        self.constant(instruction)
    }

    fn read_type(&self, i: &Instruction) -> Result<Option<Type>, Problem> {
        let ty = match i.class.opcode {
            Op::TypeVoid => Type::Void,
            Op::TypeBool => Type::Bool,
            Op::TypeInt => match (literal(i, 0)?, literal(i, 1)?) {
                (bits @ (8 | 16 | 32 | 64), signed @ (0 | 1)) => Type::Int { bits, signed: signed == 1 },
                (bits, _) => return Err(format!("integers of {bits} bits")),
            },
            Op::TypeFloat if i.operands.len() == 1 => match literal(i, 0)? {
                bits @ (16 | 32 | 64) => Type::Float(bits),
                bits => return Err(format!("floats of {bits} bits")),
            },
            Op::TypeVector => {
                let (of, count) = (id(i, 0)?, literal(i, 1)?);
                match (self.known(of)?, count) {
                    (Type::Bool | Type::Int { .. } | Type::Float(_), 2..=4) => Type::Vector(of, count),
                    _ => return Err(format!("a vector of {count} of %{of}")),
                }
            }
            Op::TypeArray => {
                let (of, length) = (id(i, 0)?, id(i, 1)?);
                self.element(of)?;
                if self.specs.get(&length) == Some(&0) {
                    return Err("constant 0, which is the operation, is an array's length".into());
                }
                match self.numbers.get(&length) {
                    Some(length @ 1..=0x7fff_ffff) => Type::Array(of, *length as u32),
                    _ => return Err(format!("%{length} is no length of an array")),
                }
            }
            Op::TypeRuntimeArray => {
                self.element(id(i, 0)?)?;
                Type::Runtime(id(i, 0)?)
            }
            Op::TypeStruct => {
                let members = ids(i, 0)?;
                for (at, member) in members.iter().enumerate() {
                    self.data(*member)?;
                    if self.is_block(*member) {
                        return Err(format!("member {at} is a block"));
                    }
                    if matches!(self.known(*member)?, Type::Runtime(_)) && at + 1 < members.len() {
                        return Err("a runtime array is not the last member".into());
                    }
                    if at + 1 < members.len() && self.has_runtime(*member) {
                        return Err("a member without a size is not the last".into());
                    }
                }
                Type::Struct(members)
            }
            Op::TypePointer => {
                let Some(Operand::StorageClass(class)) = i.operands.first() else {
                    return Err("a pointer without a storage class".into());
                };
                let of = id(i, 1)?;
                self.data(of)?;
                use StorageClass as S;
                match class {
                    S::Input
                    | S::Uniform
                    | S::StorageBuffer
                    | S::PushConstant
                    | S::Workgroup
                    | S::Private
                    | S::Function => Type::Pointer(*class, of),
                    other => return Err(format!("storage class {other:?} is not known")),
                }
            }
            Op::TypeFunction => {
                let all = ids(i, 0)?;
                let (returns, parameters) = all.split_first().ok_or("a function type without a result")?;
                if *self.known(*returns)? != Type::Void {
                    self.data(*returns)?;
                }
                for parameter in parameters {
                    if matches!(self.known(*parameter)?, Type::Void | Type::Function(..)) {
                        return Err(format!("%{parameter} is no type of a parameter"));
                    }
                }
                Type::Function(*returns, parameters.to_vec())
            }
            _ => return Ok(None),
        };
        Ok(Some(ty))
    }

    /// Whether a type is a block, which stands for a whole buffer.
    fn is_block(&self, id: u32) -> bool {
        [Decoration::Block, Decoration::BufferBlock].iter().any(|d| self.decoration(id, *d).is_some())
    }

    /// A type that arrays can be of.
    fn element(&self, of: u32) -> Result<(), Problem> {
        self.data(of)?;
        if self.is_block(of) {
            return Err(format!("an array of %{of}, which is a block"));
        }
        if self.has_runtime(of) { Err(format!("an array of %{of}, which has no size")) } else { Ok(()) }
    }

    /// Whether a type's size is known at run time alone.
    pub(super) fn has_runtime(&self, id: u32) -> bool {
        match self.ty(id) {
            Some(Type::Runtime(_)) => true,
            Some(Type::Struct(members)) => members.last().is_some_and(|last| self.has_runtime(*last)),
            _ => false,
        }
    }

    fn constant(&mut self, i: &Instruction) -> Result<(), Problem> {
        let (id, ty) = result(i)?;
        let kind = self.known(ty)?.clone();
        let op = i.class.opcode;
        let fits = match op {
            Op::ConstantTrue | Op::ConstantFalse | Op::SpecConstantTrue | Op::SpecConstantFalse => {
                kind == Type::Bool
            }
            Op::Constant | Op::SpecConstant => match (&kind, i.operands.as_slice()) {
                (Type::Int { bits: 64, .. }, [Operand::LiteralBit64(number)]) => {
                    self.numbers.insert(id, *number);
                    true
                }
                (Type::Int { bits: 8 | 16 | 32, .. }, [Operand::LiteralBit32(number)]) => {
                    self.numbers.insert(id, u64::from(*number));
                    true
                }
                (Type::Float(64), [Operand::LiteralBit64(_)]) => true,
                (Type::Float(16 | 32), [Operand::LiteralBit32(_)]) => true,
                _ => false,
            },
            Op::ConstantNull => {
                self.data(ty)?;
                !self.has_runtime(ty)
            }
            Op::ConstantComposite | Op::SpecConstantComposite => {
                let parts = ids(i, 0)?;
                let types: Vec<u32> = match &kind {
                    Type::Vector(of, count) | Type::Array(of, count) if parts.len() == *count as usize => {
                        vec![*of; parts.len()]
                    }
                    Type::Struct(members) if members.len() == parts.len() => members.clone(),
                    _ => return Err(format!("a composite of {} parts", parts.len())),
                };
                let constant = |(part, ty): (&u32, &u32)| {
                    self.values.get(part) == Some(ty) && !self.variables.contains_key(part)
                };
                parts.iter().zip(&types).all(constant)
            }
            Op::SpecConstantOp => {
                let Some(Operand::LiteralSpecConstantOpInteger(computed)) = i.operands.first() else {
                    return Err("an operation of constants without a name".into());
                };
                let operands = ids(i, 1)?;
                let types = operands.iter().map(|id| self.values.get(id).copied());
                let types: Option<Vec<u32>> = types.collect();
                let types = types.filter(|_| operands.iter().all(|id| self.constants.contains(id)));
                let types = types.ok_or("an operation of what is no constant")?;
                self.computes(*computed, ty, &types)
                    .ok_or_else(|| format!("{computed:?} of constants"))??;
                true
            }
            other => return Err(format!("{other:?} is not known")),
        };
        if !fits {
            return Err(format!("{op:?} does not fit its type"));
        }
        if matches!(op, Op::SpecConstant | Op::SpecConstantTrue | Op::SpecConstantFalse)
            && let Some(Some(number)) = self.decoration(id, Decoration::SpecId)
        {
            self.specs.insert(id, number);
        }
        self.values.insert(id, ty);
        self.constants.insert(id);
        Ok(())
    }

    fn variable(&mut self, i: &Instruction) -> Result<(), Problem> {
        let (id, ty) = result(i)?;
        let Some(Operand::StorageClass(class)) = i.operands.first() else {
            return Err("a variable without a storage class".into());
        };
        let Type::Pointer(of_type, of) = *self.known(ty)? else {
            return Err("a variable whose type is no pointer".into());
        };
        if of_type != *class || *class == StorageClass::Function {
            return Err(format!("a variable of class {class:?} in a pointer to {of_type:?}"));
        }
        if i.operands.len() > 1 {
            let initial = super::id(i, 1)?;
            let fits = self.constants.contains(&initial) && self.value(initial) == Some(of);
            if *class != StorageClass::Private || !fits {
                return Err("a variable that cannot begin with that".into());
            }
        }
        match class {
            StorageClass::Input => self.input(id, of)?,
            StorageClass::Uniform | StorageClass::StorageBuffer | StorageClass::PushConstant => {
                self.block(*class, of)?;
            }
            _ if self.has_runtime(of) => return Err("a variable without a size".into()),
            StorageClass::Private => {
                self.private_bytes = self.private_bytes.saturating_add(self.size(of));
                if self.private_bytes > MAX_PRIVATE {
                    return Err(format!("more than {MAX_PRIVATE} bytes of private variables"));
                }
            }
            _ => {}
        }
        self.values.insert(id, ty);
        self.variables.insert(id, *class);
        Ok(())
    }

    /// Inputs are built in, of the types that they have.
    fn input(&self, id: u32, of: u32) -> Result<(), Problem> {
        let number = matches!(self.ty(of), Some(Type::Int { bits: 32, .. }));
        let triple = match self.ty(of) {
            Some(Type::Vector(of, 3)) => matches!(self.ty(*of), Some(Type::Int { bits: 32, .. })),
            _ => false,
        };
        let builtin = self.decoration(id, Decoration::BuiltIn).flatten().and_then(BuiltIn::from_u32);
        use BuiltIn as B;
        let fits = match builtin {
            Some(B::NumWorkgroups | B::WorkgroupId | B::LocalInvocationId | B::GlobalInvocationId) => triple,
            Some(B::LocalInvocationIndex) => number,
            _ => false,
        };
        if fits { Ok(()) } else { Err(format!("an input that is {builtin:?}")) }
    }

    /// A block of a buffer or of push constants: every member has its offset.
    fn block(&self, class: StorageClass, of: u32) -> Result<(), Problem> {
        if !matches!(self.ty(of), Some(Type::Struct(_))) {
            return Err("a buffer that is no structure".into());
        }
        let (block, old) =
            (self.decoration(of, Decoration::Block), self.decoration(of, Decoration::BufferBlock));
        let fits = match class {
            StorageClass::Uniform => old.is_some() && block.is_none(),
            _ => block.is_some() && old.is_none(),
        };
        if !fits {
            return Err(format!("a structure of class {class:?} that is no storage block"));
        }
        self.layout(of).map(drop)
    }

    /// Bytes of a type that an invocation or a workgroup has for itself.
    pub(crate) fn size(&self, id: u32) -> u64 {
        self.sizes.get(&id).copied().unwrap_or(0)
    }

    fn size_of(&self, ty: &Type) -> u64 {
        match ty {
            Type::Bool => 4,
            Type::Int { bits, .. } | Type::Float(bits) => u64::from(bits / 8),
            Type::Vector(of, count) | Type::Array(of, count) => {
                self.size(*of).saturating_mul(u64::from(*count))
            }
            Type::Struct(members) => members.iter().fold(0, |sum, m| sum.saturating_add(self.size(*m))),
            _ => 0,
        }
    }

    /// Bytes and alignment of a type in memory that is shared with the host.
    pub(crate) fn layout(&self, id: u32) -> Result<(u64, u64), Problem> {
        self.layouts.get(&id).cloned().unwrap_or_else(|| Err(format!("%{id} is no type")))
    }

    fn layout_of(&self, id: u32, ty: &Type) -> Result<(u64, u64), Problem> {
        match ty {
            Type::Int { bits, .. } | Type::Float(bits) => Ok((u64::from(bits / 8), u64::from(bits / 8))),
            Type::Vector(of, count) => {
                let (bytes, align) = self.layout(*of)?;
                Ok((bytes * u64::from(*count), align))
            }
            Type::Array(of, count) => {
                let (stride, align) = self.stride(id, *of)?;
                Ok((stride.saturating_mul(u64::from(*count)), align))
            }
            Type::Runtime(of) => self.stride(id, *of).map(|(_, align)| (0, align)),
            Type::Struct(members) => {
                let (mut end, mut most) = (0, 1);
                for (at, member) in members.iter().enumerate() {
                    let offset = self.member(id, at as u32, Decoration::Offset).flatten();
                    let offset = u64::from(offset.ok_or_else(|| format!("member {at} has no offset"))?);
                    let (bytes, align) = self.layout(*member)?;
                    if offset < end || !offset.is_multiple_of(align) {
                        return Err(format!("member {at} is at {offset}, which is taken or not aligned"));
                    }
                    (end, most) = (offset.saturating_add(bytes), most.max(align));
                }
                Ok((end, most))
            }
            other => Err(format!("{other:?} in a buffer")),
        }
    }

    fn stride(&self, array: u32, of: u32) -> Result<(u64, u64), Problem> {
        let (bytes, align) = self.layout(of)?;
        match self.decoration(array, Decoration::ArrayStride).flatten().map(u64::from) {
            Some(stride) if stride >= bytes.max(1) && stride.is_multiple_of(align) => Ok((stride, align)),
            stride => Err(format!("an array of {bytes} bytes each with stride {stride:?}")),
        }
    }
}
