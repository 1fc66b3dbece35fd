//! Decorations, and what they stand on; the interfaces of entry points.

use std::collections::HashSet;

use rspirv::dr::{Module, Operand};
use rspirv::spirv::{BuiltIn, Decoration, ExecutionMode, Op, StorageClass};

use super::{Globals, Problem, Type, id, ids, literal};

impl Globals {
    /// A decoration of an id, with its number if it has one.
    pub(crate) fn decoration(&self, id: u32, wanted: Decoration) -> Option<Option<u32>> {
        self.decorations.get(&id)?.iter().find(|(d, _)| *d == wanted).map(|(_, number)| *number)
    }

    /// A decoration of a member of a structure.
    pub(crate) fn member(&self, id: u32, member: u32, wanted: Decoration) -> Option<Option<u32>> {
        self.members.get(&(id, member))?.iter().find(|(d, _)| *d == wanted).map(|(_, number)| *number)
    }

    pub(super) fn read_decorations(&mut self, module: &Module) -> Result<(), Problem> {
        use Decoration as D;
        let allowed = |d: Decoration| {
            matches!(
                d,
                D::RelaxedPrecision
                    | D::SpecId
                    | D::Block
                    | D::BufferBlock
                    | D::ArrayStride
                    | D::BuiltIn
                    | D::Restrict
                    | D::Aliased
                    | D::Volatile
                    | D::Coherent
                    | D::NonWritable
                    | D::NonReadable
                    | D::Binding
                    | D::DescriptorSet
                    | D::Offset
                    | D::NoContraction
                    | D::NoSignedWrap
                    | D::NoUnsignedWrap
            )
        };
        for annotation in &module.annotations {
            let (target, member, rest) = match annotation.class.opcode {
                Op::Decorate => (id(annotation, 0)?, None, 1),
                Op::MemberDecorate => (id(annotation, 0)?, Some(literal(annotation, 1)?), 2),
                other => return Err(format!("{other:?} is not known")),
            };
            let Some(Operand::Decoration(decoration)) = annotation.operands.get(rest) else {
                return Err("a decoration without a name".into());
            };
            if !allowed(*decoration) {
                return Err(format!("decoration {decoration:?} is not known"));
            }
            let number = match annotation.operands.get(rest + 1) {
                Some(Operand::LiteralBit32(number)) => Some(*number),
                Some(Operand::BuiltIn(builtin)) => Some(*builtin as u32),
                None => None,
                other => return Err(format!("decoration {decoration:?} of {other:?}")),
            };
            let list = match member {
                Some(member) => self.members.entry((target, member)).or_default(),
                None => self.decorations.entry(target).or_default(),
            };
            if list.iter().any(|(d, _)| d == decoration) {
                return Err(format!("%{target} is decorated with {decoration:?} twice"));
            }
            list.push((*decoration, number));
        }
        Ok(())
    }

    /// Whether a constant is three numbers of 32 bits.
    fn is_size(&self, id: u32) -> bool {
        let ty = self.value(id).filter(|_| self.constants.contains(&id)).and_then(|ty| self.ty(ty));
        matches!(ty, Some(Type::Vector(of, 3)) if matches!(self.ty(*of), Some(Type::Int { bits: 32, .. })))
    }

    /// Decorations stand on what they can stand on.
    pub(super) fn check_decorated(&self, module: &Module) -> Result<(), Problem> {
        // What has a type: constants, variables, and what functions compute.
        let values = module.all_inst_iter().filter(|i| i.class.opcode != Op::Function);
        let values: HashSet<u32> = values.filter_map(|i| i.result_type.and(i.result_id)).collect();
        for (id, list) in &self.decorations {
            for (decoration, number) in list {
                let class = self.variables.get(id);
                use Decoration as D;
                let fits = match decoration {
                    D::Block | D::BufferBlock => matches!(self.ty(*id), Some(Type::Struct(_))),
                    D::ArrayStride => {
                        number.is_some() && matches!(self.ty(*id), Some(Type::Array(..) | Type::Runtime(_)))
                    }
                    D::Binding | D::DescriptorSet => {
                        let buffer =
                            matches!(class, Some(StorageClass::Uniform | StorageClass::StorageBuffer));
                        number.is_some() && buffer
                    }
                    D::SpecId => number.is_some() && self.specs.contains_key(id),
                    D::BuiltIn => {
                        class == Some(&StorageClass::Input)
                            || (*number == Some(BuiltIn::WorkgroupSize as u32) && self.is_size(*id))
                    }
                    D::Offset => false,
                    D::RelaxedPrecision | D::NoContraction | D::NoSignedWrap | D::NoUnsignedWrap => {
                        number.is_none() && values.contains(id)
                    }
                    // How memory is accessed.
                    _ => number.is_none() && class.is_some(),
                };
                if !fits {
                    return Err(format!("%{id} is decorated with {decoration:?}"));
                }
            }
        }
        for ((id, member), list) in &self.members {
            let fits = matches!(self.ty(*id), Some(Type::Struct(m)) if (*member as usize) < m.len());
            let misplaced = list.iter().any(|(d, number)| {
                use Decoration as D;
                match d {
                    D::Offset => number.is_none(),
                    D::RelaxedPrecision
                    | D::NonWritable
                    | D::NonReadable
                    | D::Coherent
                    | D::Volatile
                    | D::Restrict
                    | D::Aliased => false,
                    _ => true,
                }
            });
            if !fits || misplaced {
                return Err(format!("member {member} of %{id} is decorated wrongly"));
            }
        }
        Ok(())
    }

    /// Interfaces list global variables, and execution modes are those of compute shaders.
    pub(super) fn check_entry_points(&self, module: &Module) -> Result<(), Problem> {
        let mut listed = HashSet::new();
        for entry in &module.entry_points {
            if !self.functions.contains_key(&id(entry, 1)?) {
                return Err("an entry point is no function".into());
            }
            let mut own = HashSet::new();
            for variable in ids(entry, 3)? {
                if !self.variables.contains_key(&variable) || !own.insert(variable) {
                    return Err(format!("the interface lists %{variable}"));
                }
            }
            listed.extend(own);
        }
        let inputs = self.variables.iter().filter(|(_, class)| **class == StorageClass::Input);
        if let Some((input, _)) = inputs.into_iter().find(|(id, _)| !listed.contains(id)) {
            return Err(format!("input %{input} is in no interface"));
        }
        let entries: HashSet<u32> = module.entry_points.iter().flat_map(|entry| id(entry, 1)).collect();
        for mode in &module.execution_modes {
            if !entries.contains(&id(mode, 0)?) {
                return Err("an execution mode of no entry point".into());
            }
            match (mode.class.opcode, mode.operands.get(1)) {
                (Op::ExecutionMode, Some(Operand::ExecutionMode(ExecutionMode::LocalSize))) => {}
                (Op::ExecutionModeId, Some(Operand::ExecutionMode(ExecutionMode::LocalSizeId))) => {}
                (_, other) => return Err(format!("execution mode {other:?} is not known")),
            }
        }
        Ok(())
    }
}
