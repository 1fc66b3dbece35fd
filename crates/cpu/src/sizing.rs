//! A program for other sizes: its numbers as expressions, evaluated as one table and written where they belong.

use std::sync::Arc;

use olivine_compile::plan::ArenaLayout;
use olivine_ir::size::{Bindings, Error as SizeError, SharedSlice, Slot, Table};
use olivine_ir::{Dim, Shape, TensorType};

use crate::Error;
use crate::kernel::SizePlans;
use crate::lower::{Location, Program, Step, StepOperand};

/// The numbers of an operand or a result that may be expressions.
#[derive(Clone)]
pub(crate) struct ViewSizes {
    pub(crate) shape: Shape,
    pub(crate) strides: Vec<Dim>,
    pub(crate) offset: Dim,
}

impl ViewSizes {
    pub(crate) fn is_symbolic(&self) -> bool {
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

    /// Writes the numbers for such sizes into a program. How much is allocated does not depend on how many steps there are.
    pub(crate) fn apply(&self, program: &mut Program, sizes: &Bindings) -> Result<(), Error> {
        let mut values = Vec::new();
        let evaluated = self.table.evaluate(sizes, &mut values);
        evaluated.map_err(|problem| self.without_value(program, sizes, &problem))?;
        let mut lists = Lists::of(program);
        for (tensor, field, slot) in &self.patches {
            let value = values[slot.index()];
            let written = lists.write(program, *tensor, *field, value);
            written.ok_or_else(|| no_size(owner(program, *tensor), value, sizes))?;
        }
        for (step, i, slot) in &self.numbers {
            let (at, value) = (program.run[*step].numbers.start() + i, values[slot.index()]);
            let number = number(value).ok_or_else(|| no_size(Some(node_of(program, *step)), value, sizes))?;
            Arc::make_mut(&mut lists.numbers)[at] = number;
        }
        let bytes: Vec<u64> = self.bytes.iter().map(|slot| values[slot.index()] as u64).collect();
        let mut offsets = vec![0; bytes.len()];
        let arena =
            self.layout.place(&bytes, &mut offsets).ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
        program.arena = arena as usize;
        for (tensor, buffer) in &self.in_arena {
            let start = offsets[*buffer] as usize;
            lists.place(program, *tensor, Location::Arena(start..start + bytes[*buffer] as usize));
        }
        lists.give_to(program);
        self.forget_plans(program);
        for step in &mut program.run {
            if let Some(kernel) = step.kernel.for_sizes(sizes)? {
                step.kernel = Arc::new(kernel);
            }
        }
        program.run.iter().try_for_each(|step| step.check_locations(program.arena))?;
        program.work = program.run.iter().map(Step::work).fold(0, usize::saturating_add);
        Ok(())
    }

    /// The error of sizes for which a number has no value: it says whose number that is.
    #[cold]
    fn without_value(&self, program: &Program, sizes: &Bindings, problem: &SizeError) -> Error {
        let of_steps = self.numbers.iter().map(|(step, _, slot)| (node_of(program, *step), *slot));
        let of_tensors =
            self.patches.iter().filter_map(|(tensor, _, slot)| Some((owner(program, *tensor)?, *slot)));
        let in_arena = self.in_arena.iter();
        let of_memory =
            in_arena.filter_map(|(tensor, buffer)| Some((owner(program, *tensor)?, self.bytes[*buffer])));
        let all: Vec<(String, Slot)> = of_steps.chain(of_tensors).chain(of_memory).collect();
        let slots: Vec<Slot> = all.iter().map(|(_, slot)| *slot).collect();
        let whose = self.table.first_without_value(&slots, sizes).map(|i| all[i].0.as_str());
        Error::Sizes(whose.map_or_else(|| problem.to_string(), |whose| format!("{whose}: {problem}")))
    }

    /// Has steps of open sizes work out anew what they need for their sizes.
    fn forget_plans(&self, program: &mut Program) {
        let with_plans = |step: &&usize| !program.run[**step].plans.is_empty();
        let count = self.resized.iter().filter(with_plans).count();
        if count == 0 {
            return;
        }
        let plans: Arc<[SizePlans]> = (0..count).map(|_| SizePlans::default()).collect();
        let mut given = 0;
        for step in &self.resized {
            let step = &mut program.run[*step];
            if !step.plans.is_empty() {
                step.plans = SharedSlice::new(&plans, given..given + 1);
                given += 1;
            }
        }
    }
}

/// The lists that the steps of a program's run have parts of, while they are changed.
struct Lists {
    operands: Arc<[StepOperand]>,
    targets: Arc<[(TensorType, Location)]>,
    numbers: Arc<[usize]>,
}

impl Lists {
    /// Those of a program, whose steps share one of each.
    fn of(program: &Program) -> Self {
        let first = program.run.first();
        Lists {
            operands: first.map(|step| step.operands.all().clone()).unwrap_or_default(),
            targets: first.map(|step| step.targets.all().clone()).unwrap_or_default(),
            numbers: first.map(|step| step.numbers.all().clone()).unwrap_or_default(),
        }
    }

    fn operand(&mut self, program: &Program, step: usize, operand: usize) -> &mut StepOperand {
        let at = program.run[step].operands.start() + operand;
        &mut Arc::make_mut(&mut self.operands)[at]
    }

    fn target(&mut self, program: &Program, step: usize, target: usize) -> &mut (TensorType, Location) {
        let at = program.run[step].targets.start() + target;
        &mut Arc::make_mut(&mut self.targets)[at]
    }

    /// Writes a number; `None` where it is no size.
    fn write(&mut self, program: &mut Program, tensor: TensorRef, field: Field, value: i64) -> Option<()> {
        let operand = match tensor {
            TensorRef::Operand { step, operand } => self.operand(program, step, operand),
            TensorRef::Copy(i) => &mut program.copies[i].0,
            TensorRef::Target { .. } | TensorRef::Input(_) | TensorRef::Output(_) => {
                let ty = match tensor {
                    TensorRef::Target { step, target } => &mut self.target(program, step, target).0,
                    TensorRef::Output(i) => &mut program.outputs[i].1,
                    TensorRef::Input(i) => &mut program.inputs[i].1,
                    _ => return Some(()),
                };
                if let Field::Size(axis) = field {
                    ty.shape.set_number(axis, number(value)?);
                }
                return Some(());
            }
        };
        match field {
            Field::Size(axis) => operand.ty.shape.set_number(axis, number(value)?),
            Field::Stride(axis) => operand.strides[axis] = value as isize,
            Field::Offset => operand.offset = number(value)?,
        }
        Some(())
    }

    /// Says where an operand or a result is.
    fn place(&mut self, program: &mut Program, tensor: TensorRef, location: Location) {
        match tensor {
            TensorRef::Operand { step, operand } => self.operand(program, step, operand).location = location,
            TensorRef::Target { step, target } => self.target(program, step, target).1 = location,
            TensorRef::Copy(i) => program.copies[i].0.location = location,
            TensorRef::Input(_) | TensorRef::Output(_) => {}
        }
    }

    /// Makes them those of a program's steps.
    fn give_to(self, program: &mut Program) {
        for step in &mut program.run {
            step.operands = step.operands.part_of(&self.operands);
            step.targets = step.targets.part_of(&self.targets);
            step.numbers = step.numbers.part_of(&self.numbers);
        }
    }
}

fn number(value: i64) -> Option<usize> {
    usize::try_from(value).ok()
}

fn no_size(whose: Option<String>, value: i64, sizes: &Bindings) -> Error {
    let whose = whose.map_or(String::new(), |whose| format!("{whose}: "));
    Error::Sizes(format!("{whose}a size is {value}, with {sizes}"))
}

fn node_of(program: &Program, step: usize) -> String {
    let step = &program.run[step];
    format!("{} `{}`", step.kernel.name(), step.name)
}

/// Whose number it is.
fn owner(program: &Program, tensor: TensorRef) -> Option<String> {
    let output = |i: usize| program.outputs.get(i).map(|(name, _)| format!("output `{name}`"));
    match tensor {
        TensorRef::Operand { step, .. } | TensorRef::Target { step, .. } => Some(node_of(program, step)),
        TensorRef::Copy(i) => program.copies.get(i).and_then(|(_, to)| output(*to)),
        TensorRef::Input(i) => program.inputs.get(i).map(|(name, _)| format!("input `{name}`")),
        TensorRef::Output(i) => output(i),
    }
}

fn no_sizes(problem: SizeError) -> Error {
    Error::Sizes(problem.to_string())
}
