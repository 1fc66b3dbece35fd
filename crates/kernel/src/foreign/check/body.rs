//! Every instruction of a function: its operands are defined, and of the types that it takes.

use std::collections::{HashMap, HashSet};

use rspirv::dr::{Function, Instruction, Operand};
use rspirv::spirv::{Decoration, Op, StorageClass};

use super::flow::Flow;
use super::rules::Kind;
use super::types::MAX_PRIVATE;
use super::{Globals, Problem, Type, id, ids, is_terminator, label, literal, result};

/// A function being checked.
struct Body<'a> {
    globals: &'a Globals,
    /// Types of what the function defines.
    values: HashMap<u32, u32>,
    /// What a call may be given as a pointer: variables and parameters.
    objects: HashSet<u32>,
    /// What access chains begin at.
    bases: HashMap<u32, u32>,
    /// Of its variables.
    bytes: u64,
    returns: u32,
    called: Vec<u32>,
}

/// Checks a function; returns its id and what it calls.
pub(super) fn function(globals: &Globals, function: &Function) -> Result<(u32, Vec<u32>), Problem> {
    let def = function.def.as_ref().ok_or("a function has no beginning")?;
    let (own, returns) = result(def)?;
    if function.end.is_none() || function.blocks.is_empty() {
        return Err("it has no body".into());
    }
    let (_, declared) = globals.functions.get(&own).ok_or("it is not declared")?;
    let mut body = Body {
        globals,
        values: HashMap::new(),
        objects: HashSet::new(),
        bases: HashMap::new(),
        bytes: 0,
        returns,
        called: Vec::new(),
    };
    let parameters: Vec<(u32, u32)> = function.parameters.iter().map(result).collect::<Result<_, _>>()?;
    if !parameters.iter().map(|(_, ty)| ty).eq(declared) {
        return Err("its parameters are not those of its type".into());
    }
    for (id, ty) in parameters {
        use StorageClass as S;
        match globals.ty(ty) {
            Some(Type::Pointer(S::Function | S::Private | S::Workgroup, _)) => {}
            Some(Type::Pointer(class, _)) => return Err(format!("a parameter that points to {class:?}")),
            _ => body.data(ty)?,
        }
        body.values.insert(id, ty);
        body.objects.insert(id);
    }
    let flow = Flow::new(function)?;
    // Types first: an operand may be defined in a block that stands further down.
    for block in &function.blocks {
        for instruction in &block.instructions {
            if let (Some(id), Some(ty)) = (instruction.result_id, instruction.result_type) {
                body.values.insert(id, ty);
            }
            match (instruction.class.opcode, instruction.result_id) {
                (Op::Variable, Some(variable)) => {
                    body.objects.insert(variable);
                }
                (Op::AccessChain | Op::InBoundsAccessChain, Some(chain)) => {
                    body.bases.insert(chain, id(instruction, 0)?);
                }
                _ => {}
            }
        }
    }
    for (at, block) in function.blocks.iter().enumerate() {
        let name = label(block)?;
        let (mut phis, mut variables) = (true, at == 0);
        for (i, instruction) in block.instructions.iter().enumerate() {
            let op = instruction.class.opcode;
            let last = i + 1 == block.instructions.len();
            if is_terminator(op) != last {
                return Err(format!("block %{name} does not end once"));
            }
            let merge = matches!(op, Op::SelectionMerge | Op::LoopMerge);
            if merge && i + 2 != block.instructions.len() {
                return Err(format!("block %{name} merges before its end"));
            }
            match op {
                Op::Line | Op::NoLine | Op::Nop => continue,
                Op::Phi if phis && at > 0 => {}
                Op::Phi => return Err(format!("block %{name} has a phi that is not at its beginning")),
                Op::Variable if variables => {}
                Op::Variable => {
                    return Err(format!("block %{name} has a variable that is not at the beginning"));
                }
                _ => (phis, variables) = (false, false),
            }
            body.check(instruction, &flow, name).map_err(|problem| format!("block %{name}: {problem}"))?;
        }
    }
    flow.dominated(function)?;
    Ok((own, body.called))
}

impl Body<'_> {
    /// The type of a value.
    fn of(&self, id: u32) -> Result<u32, Problem> {
        let found = self.values.get(&id).copied().or_else(|| self.globals.value(id));
        found.ok_or_else(|| format!("%{id} is no value"))
    }

    fn lanes(&self, id: u32) -> Result<(Kind, u32), Problem> {
        let ty = self.of(id)?;
        self.globals.lanes(ty).ok_or_else(|| format!("%{id} is no scalar or vector"))
    }

    /// A type of values that can be loaded, stored and passed around.
    fn data(&self, ty: u32) -> Result<(), Problem> {
        match self.globals.ty(ty) {
            None | Some(Type::Void | Type::Pointer(..) | Type::Function(..)) => {
                Err(format!("%{ty} is no type of data"))
            }
            Some(_) if self.globals.has_runtime(ty) => Err(format!("%{ty} has no size")),
            Some(_) => Ok(()),
        }
    }

    /// What a pointer points to.
    fn pointer(&self, id: u32) -> Result<(StorageClass, u32), Problem> {
        match self.globals.ty(self.of(id)?) {
            Some(Type::Pointer(class, of)) => Ok((*class, *of)),
            _ => Err(format!("%{id} is no pointer")),
        }
    }

    /// What a pointer that can be written through points to.
    fn writable(&self, id: u32) -> Result<(StorageClass, u32), Problem> {
        let mut root = id;
        // As many steps as there are chains: one that begins at itself does not pass later.
        for _ in 0..=self.bases.len() {
            root = self.bases.get(&root).copied().unwrap_or(root);
        }
        if let Some(Type::Pointer(_, block)) = self.globals.value(root).and_then(|ty| self.globals.ty(ty))
            && is_read_only(self.globals, root, *block)
        {
            return Err(format!("%{root} is read-only and written"));
        }
        match self.pointer(id)? {
            (class @ (StorageClass::Input | StorageClass::PushConstant), _) => {
                Err(format!("%{id} points to {class:?}, which cannot be written"))
            }
            found => Ok(found),
        }
    }

    fn check(&mut self, i: &Instruction, flow: &Flow, block: u32) -> Result<(), Problem> {
        let op = i.class.opcode;
        if let Some((_, ty)) = i.result_id.zip(i.result_type)
            && let Ok(operands) = ids(i, 0)
        {
            let types: Result<Vec<u32>, Problem> = operands.iter().map(|id| self.of(*id)).collect();
            if let Ok(types) = types
                && let Some(checked) = self.globals.computes(op, ty, &types)
            {
                return checked;
            }
        }
        match op {
            Op::Variable => self.variable(i),
            Op::Load => {
                let (_, ty) = result(i)?;
                self.data(ty)?;
                plain_access(i, 1)?;
                let (_, of) = self.pointer(id(i, 0)?)?;
                same(of == ty, "a load of another type")
            }
            Op::Store => {
                plain_access(i, 2)?;
                let (_, of) = self.writable(id(i, 0)?)?;
                self.data(of)?;
                same(self.of(id(i, 1)?)? == of, "a store of another type")
            }
            Op::CopyMemory => {
                plain_access(i, 2)?;
                let ((_, to), (_, from)) = (self.writable(id(i, 0)?)?, self.pointer(id(i, 1)?)?);
                self.data(to)?;
                same(to == from, "a copy of another type")
            }
            Op::AccessChain | Op::InBoundsAccessChain => self.access_chain(i),
            Op::ArrayLength => {
                let (_, of) = self.pointer(id(i, 0)?)?;
                let member = literal(i, 1)? as usize;
                let runtime = match self.globals.ty(of) {
                    Some(Type::Struct(members)) => members.get(member).and_then(|m| self.globals.ty(*m)),
                    _ => None,
                };
                let number = self.globals.lanes(result(i)?.1) == Some((Kind::Int(32), 1));
                same(matches!(runtime, Some(Type::Runtime(_))) && number, "the length of no runtime array")
            }
            Op::CompositeConstruct => self.construct(i),
            Op::CompositeExtract => {
                let found = self.inside(self.of(id(i, 0)?)?, i, 1)?;
                same(found == result(i)?.1, "a part of another type")
            }
            Op::CompositeInsert => {
                let (_, ty) = result(i)?;
                let found = self.inside(ty, i, 2)?;
                let fits = found == self.of(id(i, 0)?)? && self.of(id(i, 1)?)? == ty;
                same(fits, "a part of another type")
            }
            Op::VectorShuffle => self.shuffle(i),
            Op::CopyObject | Op::Undef => {
                let (_, ty) = result(i)?;
                self.data(ty)?;
                same(op == Op::Undef || self.of(id(i, 0)?)? == ty, "a copy of another type")
            }
            Op::Phi => self.phi(i, flow, block),
            Op::ExtInst => self.ext_inst(i),
            Op::FunctionCall => self.call(i),
            Op::ControlBarrier => {
                let (a, b, c) = (id(i, 0)?, id(i, 1)?, id(i, 2)?);
                self.scope(a, &[2, 3])?;
                self.scope(b, &[1, 2, 3])?;
                self.semantics(c)
            }
            Op::MemoryBarrier => {
                self.scope(id(i, 0)?, &[1, 2, 3])?;
                self.semantics(id(i, 1)?)
            }
            Op::AtomicLoad
            | Op::AtomicStore
            | Op::AtomicExchange
            | Op::AtomicCompareExchange
            | Op::AtomicIIncrement
            | Op::AtomicIDecrement
            | Op::AtomicIAdd
            | Op::AtomicISub
            | Op::AtomicSMin
            | Op::AtomicUMin
            | Op::AtomicSMax
            | Op::AtomicUMax
            | Op::AtomicAnd
            | Op::AtomicOr
            | Op::AtomicXor => self.atomic(i),
            Op::SelectionMerge | Op::LoopMerge | Op::Branch | Op::Unreachable => Ok(()),
            Op::BranchConditional => same(
                self.lanes(id(i, 0)?)? == (Kind::Bool, 1) && matches!(i.operands.len(), 3 | 5),
                "a branch on no bool",
            ),
            Op::Switch => same(self.lanes(id(i, 0)?)? == (Kind::Int(32), 1), "a switch on no 32-bit number"),
            Op::Return => {
                same(self.globals.ty(self.returns) == Some(&Type::Void), "a return without a value")
            }
            Op::ReturnValue => same(self.of(id(i, 0)?)? == self.returns, "a return of another type"),
            other => Err(format!("{other:?} is not known, or its operands are wrong")),
        }
    }

    fn variable(&mut self, i: &Instruction) -> Result<(), Problem> {
        let (_, ty) = result(i)?;
        let Some(Type::Pointer(StorageClass::Function, of)) = self.globals.ty(ty) else {
            return Err("a variable of another class than Function".into());
        };
        self.data(*of)?;
        self.bytes = self.bytes.saturating_add(self.globals.size(*of));
        same(self.bytes <= MAX_PRIVATE, "more bytes of variables than fit a stack")?;
        let class = i.operands.first() == Some(&Operand::StorageClass(StorageClass::Function));
        let initial = match i.operands.len() {
            1 => true,
            _ => {
                let initial = id(i, 1)?;
                self.globals.constants.contains(&initial) && self.of(initial)? == *of
            }
        };
        same(class && initial, "a variable that cannot begin with that")
    }

    fn access_chain(&self, i: &Instruction) -> Result<(), Problem> {
        let (_, ty) = result(i)?;
        let (class, mut of) = self.pointer(id(i, 0)?)?;
        let indices = ids(i, 1)?;
        for index in &indices {
            let number = matches!(self.lanes(*index)?, (Kind::Int(_), 1));
            // A constant that nobody can change has its value here already.
            let fixed = !self.globals.specs.contains_key(index);
            let known = self.globals.numbers.get(index).filter(|_| fixed).copied();
            let within = |count: u32| known.is_none_or(|known| known < u64::from(count));
            of = match self.globals.ty(of) {
                Some(Type::Struct(members)) => {
                    let member = known.and_then(|known| members.get(usize::try_from(known).ok()?));
                    *member.ok_or("a member of a structure that is not there")?
                }
                Some(Type::Array(of, count) | Type::Vector(of, count)) if number && within(*count) => *of,
                Some(Type::Runtime(of)) if number => *of,
                _ => return Err("an index into something that has no elements there".into()),
            };
        }
        same(self.globals.ty(ty) == Some(&Type::Pointer(class, of)), "an access of another type")
    }

    /// The type of a part by literal indices from an operand on.
    fn inside(&self, mut ty: u32, i: &Instruction, from: usize) -> Result<u32, Problem> {
        if i.operands.len() <= from {
            return Err("a part of nothing".into());
        }
        for at in from..i.operands.len() {
            let index = literal(i, at)?;
            ty = match self.globals.ty(ty) {
                Some(Type::Struct(members)) => {
                    *members.get(index as usize).ok_or("a member that is not there")?
                }
                Some(Type::Array(of, count) | Type::Vector(of, count)) if index < *count => *of,
                _ => return Err("a part that is not there".into()),
            };
        }
        Ok(ty)
    }

    fn construct(&self, i: &Instruction) -> Result<(), Problem> {
        let (_, ty) = result(i)?;
        let types: Vec<u32> = ids(i, 0)?.into_iter().map(|id| self.of(id)).collect::<Result<_, _>>()?;
        let fits = match self.globals.ty(ty) {
            Some(Type::Vector(of, count)) => {
                let mut lanes = 0;
                for part in &types {
                    lanes += match self.globals.ty(*part) {
                        Some(Type::Vector(inner, n)) if inner == of => *n,
                        _ if part == of => 1,
                        _ => return Err("a vector of parts of another type".into()),
                    };
                }
                lanes == *count && types.len() > 1
            }
            Some(Type::Array(of, count)) => types.len() == *count as usize && types.iter().all(|t| t == of),
            Some(Type::Struct(members)) => !self.globals.has_runtime(ty) && types == *members,
            _ => false,
        };
        same(fits, "a composite of parts of another type")
    }

    fn shuffle(&self, i: &Instruction) -> Result<(), Problem> {
        let (_, ty) = result(i)?;
        let ((a, n), (b, m)) = (self.lanes(id(i, 0)?)?, self.lanes(id(i, 1)?)?);
        let (kind, count) = self.globals.lanes(ty).ok_or("a shuffle that is no vector")?;
        let parts: Vec<u32> = (2..i.operands.len()).map(|at| literal(i, at)).collect::<Result<_, _>>()?;
        let fits = a == b && kind == a && n > 1 && m > 1 && count > 1 && parts.len() == count as usize;
        same(fits && parts.iter().all(|part| *part < n + m), "a shuffle of components that are not there")
    }

    fn phi(&self, i: &Instruction, flow: &Flow, block: u32) -> Result<(), Problem> {
        let (_, ty) = result(i)?;
        self.data(ty)?;
        let all = ids(i, 0)?;
        let (pairs, rest) = all.as_chunks::<2>();
        let mut parents: Vec<u32> = pairs.iter().map(|[_, parent]| *parent).collect();
        for [value, _] in pairs {
            same(self.of(*value)? == ty, "a phi of another type")?;
        }
        parents.sort_unstable();
        same(rest.is_empty() && parents == flow.predecessors(block), "a phi of other blocks than come before")
    }

    fn ext_inst(&self, i: &Instruction) -> Result<(), Problem> {
        if !self.globals.glsl.contains(&id(i, 0)?) {
            return Err("a function of instructions that were not imported".into());
        }
        let Some(Operand::LiteralExtInstInteger(number)) = i.operands.get(1) else {
            return Err("a function without a number".into());
        };
        let types: Vec<u32> = ids(i, 2)?.into_iter().map(|id| self.of(id)).collect::<Result<_, _>>()?;
        self.globals.calls_glsl(*number, result(i)?.1, &types)
    }

    fn call(&mut self, i: &Instruction) -> Result<(), Problem> {
        let (_, ty) = result(i)?;
        let function = id(i, 0)?;
        let Some((returns, parameters)) = self.globals.functions.get(&function) else {
            return Err(format!("a call of %{function}, which is no function"));
        };
        let arguments = ids(i, 1)?;
        same(*returns == ty && parameters.len() == arguments.len(), "a call that does not fit")?;
        for (argument, parameter) in arguments.iter().zip(parameters) {
            same(self.of(*argument)? == *parameter, "an argument of another type")?;
            let is_pointer = matches!(self.globals.ty(*parameter), Some(Type::Pointer(..)));
            let object = self.objects.contains(argument) || self.globals.variables.contains_key(argument);
            same(!is_pointer || object, "an argument that points into a variable")?;
        }
        self.called.push(function);
        Ok(())
    }

    /// A scope that is a constant of those allowed.
    fn scope(&self, scope: u32, allowed: &[u64]) -> Result<(), Problem> {
        let known = self.globals.numbers.get(&scope).filter(|_| !self.globals.specs.contains_key(&scope));
        same(known.is_some_and(|known| allowed.contains(known)), "a scope that is not known")
    }

    /// Memory semantics that are a constant: at most one order, and memory that there is.
    fn semantics(&self, semantics: u32) -> Result<(), Problem> {
        const ORDERS: u64 = 0x2 | 0x4 | 0x8;
        const MEMORY: u64 = 0x40 | 0x100 | 0x800;
        let known =
            self.globals.numbers.get(&semantics).filter(|_| !self.globals.specs.contains_key(&semantics));
        let fits = known.is_some_and(|s| s & !(ORDERS | MEMORY) == 0 && (s & ORDERS).count_ones() <= 1);
        same(fits, "memory semantics that are not known")
    }

    fn atomic(&self, i: &Instruction) -> Result<(), Problem> {
        let op = i.class.opcode;
        let (class, of) =
            if op == Op::AtomicLoad { self.pointer(id(i, 0)?)? } else { self.writable(id(i, 0)?)? };
        use StorageClass as S;
        let number = matches!(self.globals.lanes(of), Some((Kind::Int(32), 1)));
        same(
            number && matches!(class, S::Uniform | S::StorageBuffer | S::Workgroup),
            "an atomic on no 32-bit number",
        )?;
        self.scope(id(i, 1)?, &[1, 2, 3])?;
        self.semantics(id(i, 2)?)?;
        let values = match op {
            Op::AtomicCompareExchange => {
                self.semantics(id(i, 3)?)?;
                ids(i, 4)?
            }
            _ => ids(i, 3)?,
        };
        let count = match op {
            Op::AtomicLoad | Op::AtomicIIncrement | Op::AtomicIDecrement => 0,
            Op::AtomicCompareExchange => 2,
            _ => 1,
        };
        for value in &values {
            same(self.of(*value)? == of, "an atomic of another type")?;
        }
        let ty = i.result_type.unwrap_or(of);
        same(values.len() == count && ty == of, "an atomic that does not fit")
    }
}

fn same(fits: bool, problem: &str) -> Result<(), Problem> {
    if fits { Ok(()) } else { Err(problem.into()) }
}

/// A load or store without more than `Volatile` and an alignment.
fn plain_access(i: &Instruction, operands: usize) -> Result<(), Problem> {
    use rspirv::spirv::MemoryAccess as M;
    match i.operands.get(operands..).unwrap_or_default() {
        [] => Ok(()),
        [Operand::MemoryAccess(access)] if (M::VOLATILE | M::NONTEMPORAL).contains(*access) => Ok(()),
        [Operand::MemoryAccess(access), Operand::LiteralBit32(align)]
            if (M::VOLATILE | M::NONTEMPORAL | M::ALIGNED).contains(*access) && align.is_power_of_two() =>
        {
            Ok(())
        }
        _ => Err("a way of accessing memory that is not known".into()),
    }
}

/// Whether a buffer's variable, or all members of its block, are never written.
pub(crate) fn is_read_only(globals: &Globals, variable: u32, block: u32) -> bool {
    let Some(Type::Struct(members)) = globals.ty(block) else { return false };
    globals.decoration(variable, Decoration::NonWritable).is_some()
        || (0..members.len()).all(|m| globals.member(block, m as u32, Decoration::NonWritable).is_some())
}
