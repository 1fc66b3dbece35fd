//! A program for other sizes: its numbers as expressions, evaluated as one table and written where they belong.

use std::sync::Arc;

use olivine_compile::plan::ArenaLayout;
use olivine_ir::size::{Bindings, Error as SizeError, Slot, Table};
use olivine_ir::{Dim, Shape};

use crate::Error;
use crate::lower::{Location, Program, Step};

/// The numbers of an operand or a result that may be expressions.
#[derive(Clone)]
pub(crate) struct ViewSizes {
    pub(crate) shape: Shape,
    pub(crate) strides: Vec<Dim>,
    pub(crate) offset: Dim,
}

impl ViewSizes {
    fn is_symbolic(&self) -> bool {
        self.shape.is_symbolic()
            || !self.offset.is_constant()
            || self.strides.iter().any(|s| !s.is_constant())
    }
}

/// An operand or result of a program.
#[derive(Clone, Copy, Debug)]
enum TensorRef {
    Operand { step: usize, operand: usize },
    Target { step: usize, target: usize },
    Copy(usize),
    Input(usize),
    Output(usize),
}

/// One of its numbers.
#[derive(Clone, Copy, Debug)]
enum Field {
    Size(usize),
    Stride(usize),
    Offset,
}

/// Which numbers of a program are expressions, and where they go.
pub(crate) struct Sizing {
    table: Table,
    patches: Vec<(TensorRef, Field, Slot)>,
    /// Attributes: a step and which of its numbers.
    numbers: Vec<(usize, usize, Slot)>,
    /// Steps with operands or results of open sizes.
    resized: Vec<usize>,
    layout: ArenaLayout,
    /// The bytes of each buffer of the layout.
    bytes: Vec<Slot>,
    /// Operands and results that are in the arena, with their buffers.
    in_arena: Vec<(TensorRef, usize)>,
}

/// What lowering knows of one operand or result.
pub(crate) struct Facts {
    pub(crate) sizes: ViewSizes,
    /// The buffer of the arena that it is in.
    pub(crate) buffer: Option<usize>,
}

/// What lowering knows of a step of a run.
pub(crate) struct StepFacts {
    pub(crate) operands: Vec<Facts>,
    pub(crate) targets: Vec<Facts>,
    /// See [`Step::numbers`].
    pub(crate) numbers: Vec<Dim>,
}

/// What lowering knows of a program's sizes.
pub(crate) struct ProgramFacts {
    pub(crate) steps: Vec<StepFacts>,
    pub(crate) copies: Vec<Facts>,
    pub(crate) inputs: Vec<Shape>,
    pub(crate) outputs: Vec<Shape>,
    pub(crate) layout: ArenaLayout,
}

impl Sizing {
    /// The expressions of a program; `None` where all its numbers are numbers.
    pub(crate) fn new(facts: ProgramFacts) -> Result<Option<Self>, Error> {
        let mut sizing = Sizing {
            table: Table::new(),
            patches: Vec::new(),
            numbers: Vec::new(),
            resized: Vec::new(),
            layout: facts.layout,
            bytes: Vec::new(),
            in_arena: Vec::new(),
        };
        for (step, facts) in facts.steps.iter().enumerate() {
            if facts.operands.iter().chain(&facts.targets).any(|facts| facts.sizes.is_symbolic()) {
                sizing.resized.push(step);
            }
            for (operand, facts) in facts.operands.iter().enumerate() {
                sizing.view(TensorRef::Operand { step, operand }, facts)?;
            }
            for (target, facts) in facts.targets.iter().enumerate() {
                sizing.view(TensorRef::Target { step, target }, facts)?;
            }
            for (i, number) in facts.numbers.iter().enumerate().filter(|(_, n)| !n.is_constant()) {
                let slot = sizing.table.add(*number).map_err(no_sizes)?;
                sizing.numbers.push((step, i, slot));
            }
        }
        for (i, facts) in facts.copies.iter().enumerate() {
            sizing.view(TensorRef::Copy(i), facts)?;
        }
        for (i, shape) in facts.inputs.iter().enumerate() {
            sizing.shape(TensorRef::Input(i), shape)?;
        }
        for (i, shape) in facts.outputs.iter().enumerate() {
            sizing.shape(TensorRef::Output(i), shape)?;
        }
        if sizing.patches.is_empty() && sizing.numbers.is_empty() && sizing.layout.is_fixed() {
            return Ok(None);
        }
        for bytes in sizing.layout.sizes.clone() {
            sizing.bytes.push(sizing.table.add(bytes).map_err(no_sizes)?);
        }
        Ok(Some(sizing))
    }

    fn view(&mut self, tensor: TensorRef, facts: &Facts) -> Result<(), Error> {
        if let Some(buffer) = facts.buffer {
            self.in_arena.push((tensor, buffer));
        }
        let sizes = &facts.sizes;
        if !sizes.is_symbolic() {
            return Ok(());
        }
        self.shape(tensor, &sizes.shape)?;
        for (axis, stride) in sizes.strides.iter().enumerate().filter(|(_, s)| !s.is_constant()) {
            let slot = self.table.add_signed(*stride).map_err(no_sizes)?;
            self.patches.push((tensor, Field::Stride(axis), slot));
        }
        if !sizes.offset.is_constant() {
            let slot = self.table.add(sizes.offset).map_err(no_sizes)?;
            self.patches.push((tensor, Field::Offset, slot));
        }
        Ok(())
    }

    fn shape(&mut self, tensor: TensorRef, shape: &Shape) -> Result<(), Error> {
        for (axis, size) in shape.sizes().iter().enumerate().filter(|(_, size)| !size.is_constant()) {
            let slot = self.table.add(*size).map_err(no_sizes)?;
            self.patches.push((tensor, Field::Size(axis), slot));
        }
        Ok(())
    }

    /// Writes the numbers for such sizes into a program.
    pub(crate) fn apply(&self, program: &mut Program, sizes: &Bindings) -> Result<(), Error> {
        let mut values = Vec::new();
        self.table.evaluate(sizes, &mut values).map_err(no_sizes)?;
        for step in &self.resized {
            program.run[*step].plans = Arc::default();
        }
        for (tensor, field, slot) in &self.patches {
            let value = values[slot.index()];
            let number = |value: i64| usize::try_from(value).map_err(|_| negative(value));
            let (shape, view) = match *tensor {
                TensorRef::Input(i) => (&mut program.inputs[i].1.shape, None),
                TensorRef::Output(i) => (&mut program.outputs[i].1.shape, None),
                TensorRef::Target { step, target } => (&mut program.run[step].targets[target].0.shape, None),
                TensorRef::Operand { step, operand } => {
                    let operand = &mut program.run[step].operands[operand];
                    (&mut operand.ty.shape, Some((&mut operand.strides, &mut operand.offset)))
                }
                TensorRef::Copy(i) => {
                    let operand = &mut program.copies[i].0;
                    (&mut operand.ty.shape, Some((&mut operand.strides, &mut operand.offset)))
                }
            };
            match (*field, view) {
                (Field::Size(axis), _) => shape.set_number(axis, number(value)?),
                (Field::Stride(axis), Some((strides, _))) => strides[axis] = value as isize,
                (Field::Offset, Some((_, offset))) => *offset = number(value)?,
                _ => {}
            }
        }
        for (step, i, slot) in &self.numbers {
            let value = values[slot.index()];
            program.run[*step].numbers[*i] = usize::try_from(value).map_err(|_| negative(value))?;
        }
        let bytes: Vec<u64> = self.bytes.iter().map(|slot| values[slot.index()] as u64).collect();
        let mut offsets = vec![0; bytes.len()];
        let arena =
            self.layout.place(&bytes, &mut offsets).ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
        program.arena = arena as usize;
        for (tensor, buffer) in &self.in_arena {
            let start = offsets[*buffer] as usize;
            let range = Location::Arena(start..start + bytes[*buffer] as usize);
            match *tensor {
                TensorRef::Operand { step, operand } => program.run[step].operands[operand].location = range,
                TensorRef::Target { step, target } => program.run[step].targets[target].1 = range,
                TensorRef::Copy(i) => program.copies[i].0.location = range,
                TensorRef::Input(_) | TensorRef::Output(_) => {}
            }
        }
        program.run.iter().try_for_each(|step| step.check_locations(program.arena))?;
        program.work = program.run.iter().map(Step::work).fold(0, usize::saturating_add);
        Ok(())
    }
}

fn no_sizes(problem: SizeError) -> Error {
    Error::Sizes(problem.to_string())
}

fn negative(value: i64) -> Error {
    Error::Sizes(format!("a size is {value}"))
}
