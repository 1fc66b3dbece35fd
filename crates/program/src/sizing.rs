//! A program for other sizes: its numbers as expressions, evaluated as one table and written where they belong.

use std::sync::Arc;

use olivine_ir::size::{ArenaLayout, Bindings, Error as SizeError, SharedSlice, Slot, Table};
use olivine_ir::{Dim, Shape};

use crate::Error;
use crate::program::{BufferId, Content, Dispatch, Program, Slice};
use crate::table::SizedTable;

/// A range of a buffer whose numbers may be expressions.
#[derive(Clone, Copy, Debug)]
pub struct SizedSlice {
    /// The buffer.
    pub buffer: BufferId,
    /// The buffer of the arena's layout that it begins in, if it is in the arena; `offset` counts from there.
    pub placed: Option<usize>,
    /// First byte.
    pub offset: Dim,
    /// Bytes.
    pub bytes: Dim,
}

/// A dispatch whose numbers may be expressions.
#[derive(Clone, Debug)]
pub struct SizedDispatch {
    /// See [`Dispatch::args`].
    pub args: Vec<SizedSlice>,
    /// See [`Dispatch::params`]; a kernel sees the low 32 bits of each.
    pub params: Vec<Dim>,
    /// See [`Dispatch::groups`].
    pub groups: [Dim; 3],
    /// See [`Dispatch::flops`].
    pub flops: Dim,
    /// See [`Dispatch::bytes`].
    pub bytes: Dim,
}

/// What lowering knows of a program's sizes.
#[derive(Clone, Debug, Default)]
pub struct SizedProgram {
    /// For every dispatch of a run.
    pub run: Vec<SizedDispatch>,
    /// For every buffer its bytes.
    pub buffers: Vec<Dim>,
    /// For every input its shape.
    pub inputs: Vec<Shape>,
    /// For every output its shape.
    pub outputs: Vec<Shape>,
    /// The buffers of the arena.
    pub layout: ArenaLayout,
    /// The arena, if there is one: its bytes are what the layout needs.
    pub arena: Option<BufferId>,
    /// What bytes of buffers are multiples of.
    pub alignment: u64,
    /// Buffers whose content follows from sizes.
    pub tables: Vec<(BufferId, SizedTable)>,
}

/// A number of a program.
#[derive(Clone, Copy, Debug)]
enum Number {
    Param { dispatch: usize, param: usize },
    Groups { dispatch: usize, axis: usize },
    ArgOffset { dispatch: usize, arg: usize },
    ArgBytes { dispatch: usize, arg: usize },
    Flops(usize),
    Bytes(usize),
    Buffer(usize),
    Input { port: usize, axis: usize },
    Output { port: usize, axis: usize },
}

/// An argument in the arena.
#[derive(Clone, Copy, Debug)]
struct ArenaArg {
    dispatch: usize,
    arg: usize,
    /// The buffer of the layout.
    buffer: usize,
    /// Where it begins in that.
    offset: Slot,
}

/// A buffer whose content follows from sizes.
#[derive(Debug)]
struct TableBuffer {
    buffer: usize,
    table: SizedTable,
    sizes: Vec<Slot>,
    bytes: Slot,
}

/// Which numbers of a program are expressions, and where they go.
#[derive(Debug, Default)]
pub struct Sizing {
    table: Table,
    numbers: Vec<(Number, Slot)>,
    arena_args: Vec<ArenaArg>,
    layout: ArenaLayout,
    /// The bytes of each buffer of the layout.
    layout_bytes: Vec<Slot>,
    arena: Option<BufferId>,
    alignment: u64,
    tables: Vec<TableBuffer>,
    /// All dispatches of a run, where some have no workgroups for some sizes: a program has those that run.
    all: Option<Vec<Dispatch>>,
}

impl Sizing {
    /// The expressions of a program; `None` where all its numbers are numbers.
    pub fn new(program: SizedProgram) -> Result<Option<Self>, Error> {
        let mut sizing = Sizing { arena: program.arena, alignment: program.alignment, ..Sizing::default() };
        for (dispatch, sized) in program.run.iter().enumerate() {
            sizing.dispatch(dispatch, sized)?;
        }
        for (i, bytes) in program.buffers.iter().enumerate() {
            sizing.number(Number::Buffer(i), *bytes)?;
        }
        for (port, shape) in program.inputs.iter().enumerate() {
            for (axis, size) in shape.sizes().iter().enumerate() {
                sizing.number(Number::Input { port, axis }, *size)?;
            }
        }
        for (port, shape) in program.outputs.iter().enumerate() {
            for (axis, size) in shape.sizes().iter().enumerate() {
                sizing.number(Number::Output { port, axis }, *size)?;
            }
        }
        if sizing.numbers.is_empty() && program.layout.is_fixed() {
            return Ok(None);
        }
        for bytes in &program.layout.sizes {
            sizing.layout_bytes.push(sizing.table.add(*bytes).map_err(no_sizes)?);
        }
        // Offsets in the arena change with every size of it.
        for (dispatch, sized) in program.run.iter().enumerate() {
            for (arg, slice) in sized.args.iter().enumerate() {
                if let Some(buffer) = slice.placed {
                    let offset = sizing.table.add(slice.offset).map_err(no_sizes)?;
                    sizing.arena_args.push(ArenaArg { dispatch, arg, buffer, offset });
                }
            }
        }
        for (buffer, table) in program.tables {
            let sizes = table.sizes.iter().map(|size| sizing.table.add(*size).map_err(no_sizes));
            let sizes = sizes.collect::<Result<_, Error>>()?;
            let bytes = sizing.table.add(table.bytes).map_err(no_sizes)?;
            sizing.tables.push(TableBuffer { buffer: buffer.0 as usize, table, sizes, bytes });
        }
        sizing.layout = program.layout;
        Ok(Some(sizing))
    }

    fn dispatch(&mut self, dispatch: usize, sized: &SizedDispatch) -> Result<(), Error> {
        for (param, value) in sized.params.iter().enumerate() {
            self.signed(Number::Param { dispatch, param }, *value)?;
        }
        for (axis, count) in sized.groups.iter().enumerate() {
            self.number(Number::Groups { dispatch, axis }, *count)?;
        }
        for (arg, slice) in sized.args.iter().enumerate() {
            if slice.placed.is_none() {
                self.number(Number::ArgOffset { dispatch, arg }, slice.offset)?;
            }
            self.number(Number::ArgBytes { dispatch, arg }, slice.bytes)?;
        }
        // Estimates for profiles that overflow are left as they are.
        for (target, estimate) in
            [(Number::Flops(dispatch), sized.flops), (Number::Bytes(dispatch), sized.bytes)]
        {
            if estimate.fault().is_none() {
                self.number(target, estimate)?;
            }
        }
        Ok(())
    }

    fn number(&mut self, target: Number, value: Dim) -> Result<(), Error> {
        if !value.is_constant() {
            let slot = self.table.add(value).map_err(no_sizes)?;
            self.numbers.push((target, slot));
        }
        Ok(())
    }

    fn signed(&mut self, target: Number, value: Dim) -> Result<(), Error> {
        if !value.is_constant() {
            let slot = self.table.add_signed(value).map_err(no_sizes)?;
            self.numbers.push((target, slot));
        }
        Ok(())
    }

    /// Writes the numbers for such sizes into a program. How much is allocated does not depend on how many dispatches there
    /// are.
    fn apply(&self, program: &mut Program, sizes: &Bindings) -> Result<(), Error> {
        let mut values = Vec::new();
        let evaluated = self.table.evaluate(sizes, &mut values);
        evaluated.map_err(|problem| self.without_value(program, sizes, &problem))?;
        let first = program.run.first();
        let mut args = first.map(|dispatch| dispatch.args.all().clone()).unwrap_or_default();
        let mut params = first.map(|dispatch| dispatch.params.all().clone()).unwrap_or_default();
        let mut lists = Lists { args: Arc::make_mut(&mut args), params: Arc::make_mut(&mut params) };
        for (target, slot) in &self.numbers {
            let value = values[slot.index()];
            self.write(program, &mut lists, *target, value).map_err(|TooMany| {
                at(owner(program, *target), format!("{}, with {sizes}", too_many(value)))
            })?;
        }
        for TableBuffer { buffer, table, sizes, bytes } in &self.tables {
            let sizes: Vec<usize> = sizes.iter().map(|slot| values[slot.index()] as usize).collect();
            let table = table.of(&sizes, values[bytes.index()] as usize);
            let table = table.map_err(|problem| at(owner(program, Number::Buffer(*buffer)), problem))?;
            program.buffers[*buffer].content = Content::Table(table);
        }
        let bytes: Vec<u64> = self.layout_bytes.iter().map(|slot| values[slot.index()] as u64).collect();
        let mut offsets = vec![0; bytes.len()];
        let too_large = || {
            Error::Plan(format!("the arena needs more bytes than an address can count, with {sizes}").into())
        };
        let arena = self.layout.place(&bytes, &mut offsets).ok_or_else(too_large)?;
        if let Some(decl) = self.arena.and_then(|id| program.buffers.get_mut(id.0 as usize)) {
            decl.bytes = arena.max(1).next_multiple_of(self.alignment.max(1));
        }
        for arg in &self.arena_args {
            let offset = offsets[arg.buffer] + values[arg.offset.index()] as u64;
            lists.args[program.run[arg.dispatch].args.start() + arg.arg].offset = offset;
        }
        for dispatch in &mut program.run {
            dispatch.args = dispatch.args.part_of(&args);
            dispatch.params = dispatch.params.part_of(&params);
        }
        Ok(())
    }

    /// The error of sizes for which a number has no value: it says whose number that is.
    #[cold]
    fn without_value(&self, program: &Program, sizes: &Bindings, problem: &SizeError) -> Error {
        let mut slots: Vec<(Number, Slot)> = self.numbers.clone();
        for arg in &self.arena_args {
            let target = Number::ArgOffset { dispatch: arg.dispatch, arg: arg.arg };
            slots.push((target, arg.offset));
            slots.push((target, self.layout_bytes[arg.buffer]));
        }
        for table in &self.tables {
            let all = table.sizes.iter().chain([&table.bytes]);
            slots.extend(all.map(|slot| (Number::Buffer(table.buffer), *slot)));
        }
        let only: Vec<Slot> = slots.iter().map(|(_, slot)| *slot).collect();
        let whose = self.table.first_without_value(&only, sizes);
        at(whose.and_then(|i| owner(program, slots[i].0)), problem)
    }

    fn write(
        &self,
        program: &mut Program,
        lists: &mut Lists<'_>,
        target: Number,
        value: i64,
    ) -> Result<(), TooMany> {
        let arg = |program: &Program, dispatch: usize, arg: usize| program.run[dispatch].args.start() + arg;
        let small = || u32::try_from(value).map_err(|_| TooMany);
        match target {
            Number::Param { dispatch, param } => {
                // Negative strides wrap.
                if !(i64::from(i32::MIN)..=i64::from(u32::MAX)).contains(&value) {
                    return Err(TooMany);
                }
                lists.params[program.run[dispatch].params.start() + param] = value as u32;
            }
            Number::Groups { dispatch, axis } => program.run[dispatch].groups[axis] = small()?,
            Number::ArgOffset { dispatch, arg: i } => {
                lists.args[arg(program, dispatch, i)].offset = value as u64
            }
            Number::ArgBytes { dispatch, arg: i } => {
                lists.args[arg(program, dispatch, i)].bytes = value as u64
            }
            Number::Flops(dispatch) => program.run[dispatch].flops = value as u64,
            Number::Bytes(dispatch) => program.run[dispatch].bytes = value as u64,
            Number::Buffer(i) if Some(BufferId(i as u32)) != self.arena => {
                program.buffers[i].bytes = (value as u64).max(1).next_multiple_of(self.alignment.max(1));
            }
            Number::Buffer(_) => {}
            Number::Input { port, axis } => program.inputs[port].ty.shape.set_number(axis, value as usize),
            Number::Output { port, axis } => program.outputs[port].ty.shape.set_number(axis, value as usize),
        }
        Ok(())
    }
}

impl Program {
    /// The program with its numbers for other sizes, without what only the load needs.
    pub fn for_sizes(&self, sizes: &Bindings) -> Result<Program, Error> {
        let mut program = Program {
            kernels: self.kernels.clone(),
            buffers: self.buffers.clone(),
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            sizing: self.sizing.clone(),
            ..Program::default()
        };
        let all = self.sizing.as_ref().and_then(|sizing| sizing.all.as_ref());
        program.run = all.unwrap_or(&self.run).clone();
        if let Some(sizing) = &self.sizing {
            sizing.apply(&mut program, sizes)?;
            program.run.retain(Dispatch::runs);
        }
        Ok(program)
    }

    /// The program with its numbers as expressions; dispatches without workgroups for the sizes at hand are left out.
    pub fn with_sizing(mut self, sizing: Option<Sizing>) -> Self {
        let mut sizing = sizing;
        // What other sizes change is in one allocation of each kind.
        SharedSlice::join(self.run.iter_mut().map(|dispatch| &mut dispatch.args));
        SharedSlice::join(self.run.iter_mut().map(|dispatch| &mut dispatch.params));
        if let Some(sizing) = sizing.as_mut().filter(|_| !self.run.iter().all(Dispatch::runs)) {
            sizing.all = Some(self.run.clone());
            self.run.retain(Dispatch::runs);
        }
        self.sizing = sizing.map(Arc::new);
        self
    }
}

/// The lists that the dispatches of a program's run have parts of, while they are changed.
struct Lists<'a> {
    args: &'a mut [Slice],
    params: &'a mut [u32],
}

impl Dispatch {
    /// Whether it has a workgroup.
    fn runs(&self) -> bool {
        !self.groups.contains(&0)
    }
}

impl SizedSlice {
    /// The range in the current compile; `offset` is where its buffer of the arena begins.
    pub fn slice(&self, offset: u64) -> Slice {
        let number = |dim: Dim| dim.value().ok().and_then(|v| u64::try_from(v).ok()).unwrap_or(0);
        Slice { buffer: self.buffer, offset: offset + number(self.offset), bytes: number(self.bytes) }
    }
}

impl SizedDispatch {
    /// Writes its numbers in the current compile into a dispatch; arguments are the caller's.
    pub fn write(&self, dispatch: &mut Dispatch) -> Result<(), Error> {
        let node = Some(node_of(dispatch));
        let number = |dim: &Dim| dim.value().map_err(|problem| at(node.clone(), problem));
        for slice in &self.args {
            number(&slice.offset)?;
            number(&slice.bytes)?;
        }
        let params = self.params.iter().map(|p| Ok(number(p)? as u32)).collect::<Result<_, Error>>()?;
        let mut groups = [0; 3];
        for (count, dim) in groups.iter_mut().zip(&self.groups) {
            let value = number(dim)?;
            let many = || at(node.clone(), format!("`{dim}`: {}", too_many(value)));
            *count = u32::try_from(value).map_err(|_| many())?;
        }
        (dispatch.params, dispatch.groups) = (params, groups);
        // For profiles: what is too large to count is not worth an error.
        let estimate = |dim: &Dim| dim.value().map_or(u64::MAX, |v| v as u64);
        (dispatch.flops, dispatch.bytes) = (estimate(&self.flops), estimate(&self.bytes));
        Ok(())
    }
}

fn no_sizes(problem: SizeError) -> Error {
    Error::Sizes(problem.to_string())
}

/// A value is more than the 32 bits that kernels count in.
struct TooMany;

fn too_many(value: i64) -> String {
    format!("{value} does not fit the 32 bits that kernels count in")
}

/// An error of a node's or of another part's numbers.
fn at(whose: Option<String>, problem: impl std::fmt::Display) -> Error {
    Error::Sizes(whose.map_or_else(|| problem.to_string(), |whose| format!("{whose}: {problem}")))
}

fn node_of(dispatch: &Dispatch) -> String {
    format!("{} `{}`", dispatch.op, dispatch.node)
}

/// Whose number it is.
fn owner(program: &Program, number: Number) -> Option<String> {
    let reads = |buffer: usize| {
        let mut dispatches = program.run.iter();
        dispatches.find(|dispatch| dispatch.args.iter().any(|arg| arg.buffer.0 as usize == buffer))
    };
    match number {
        Number::Param { dispatch, .. }
        | Number::Groups { dispatch, .. }
        | Number::ArgOffset { dispatch, .. }
        | Number::ArgBytes { dispatch, .. }
        | Number::Flops(dispatch)
        | Number::Bytes(dispatch) => program.run.get(dispatch).map(node_of),
        Number::Buffer(buffer) => reads(buffer).map(node_of),
        Number::Input { port, .. } => program.inputs.get(port).map(|port| format!("input `{}`", port.name)),
        Number::Output { port, .. } => {
            program.outputs.get(port).map(|port| format!("output `{}`", port.name))
        }
    }
}
