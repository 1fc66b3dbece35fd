//! Kernels of the user's own for custom operations: written in the kernel language, or finished code.
//!
//! ```text
//!   CustomOp ─ with(GpuKernel) ─┬─ GpuKernel::written: a Rust function writes kernels for the device at hand
//!                               │    └─ bounded: every access stays inside its buffer
//!                               ├─ GpuKernel::written_unchecked (unsafe): the same without bounds
//!                               └─ GpuKernel::code (unsafe): SPIR-V or WGSL, parsed before use
//! ```

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use olivine_ir::attr::Attrs;
use olivine_ir::op::Custom;
use olivine_ir::{Dim, TensorType};
use olivine_kernel::{
    Access, ArgDecl, Buf, Builder, Elem, Foreign, Kernel, MAX_BOUNDED_LENGTH, ParamDecl, Scalar, Target, Val,
    bounded,
};
use olivine_kernels::{Bound, Launch, Memory, Site, elem, linear_group};
use olivine_program::Addressing;

type Write = dyn Fn(&mut Call<'_, '_>) -> Result<(), String> + Send + Sync;
type Shape = dyn Fn(&Attrs, &[TensorType], &[TensorType]) -> Result<CodeLaunch, String> + Send + Sync;

/// The part of a [`CustomOp`](olivine_ir::op::CustomOp) that this crate looks for.
pub struct GpuKernel(Kind);

enum Kind {
    Written { write: Box<Write>, bounded: bool },
    Code { code: Box<Foreign>, launch: Box<Shape> },
}

/// How finished code is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeLaunch {
    /// Workgroups.
    pub groups: [u32; 3],
    /// Run-time numbers, as 32-bit words.
    pub params: Vec<u32>,
}

impl GpuKernel {
    /// A kernel written in the kernel language: `write` dispatches one or more through the [`Call`]. Every access is
    /// checked as [`bounded`] says: loads outside of a buffer read its last element, stores are dropped.
    pub fn written(write: impl Fn(&mut Call<'_, '_>) -> Result<(), String> + Send + Sync + 'static) -> Self {
        GpuKernel(Kind::Written { write: Box::new(write), bounded: true })
    }

    /// As [`GpuKernel::written`], without the checks and what they cost.
    ///
    /// # Safety
    /// Whatever its attributes and operands are, every kernel that `write` dispatches keeps its accesses inside its
    /// buffers and workgroup arrays, aligned as [`Buf`] asks, and does nothing that the kernel language leaves
    /// undefined.
    #[allow(unsafe_code, reason = "declares what its caller must promise")]
    pub unsafe fn written_unchecked(
        write: impl Fn(&mut Call<'_, '_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        GpuKernel(Kind::Written { write: Box::new(write), bounded: false })
    }

    /// Finished code, whose buffers are the operands and then the results; see [`Foreign`] for what it may count on.
    /// `launch` returns the workgroups and params for attributes, operands and results.
    ///
    /// # Safety
    /// Nothing checks what the code does. For every launch that `launch` returns, it accesses nothing but its buffers
    /// and its own memory, and has no undefined behaviour by the rules of its language.
    #[allow(unsafe_code, reason = "declares what its caller must promise")]
    pub unsafe fn code(
        code: Foreign,
        launch: impl Fn(&Attrs, &[TensorType], &[TensorType]) -> Result<CodeLaunch, String>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        GpuKernel(Kind::Code { code: Box::new(code), launch: Box::new(launch) })
    }
}

/// A use of a custom operation that is being lowered.
pub struct Call<'s, 'c> {
    attrs: &'s Attrs,
    site: &'s mut Site<'c>,
    operands: Vec<(TensorType, Memory)>,
    bounded: bool,
}

impl Call<'_, '_> {
    /// Attributes of this use.
    pub fn attrs(&self) -> &Attrs {
        self.attrs
    }

    /// The operands' types; contiguous, row-major.
    pub fn operands(&self) -> Vec<TensorType> {
        self.operands.iter().map(|(ty, _)| *ty).collect()
    }

    /// The results' types; contiguous, row-major.
    pub fn results(&self) -> Vec<TensorType> {
        self.site.targets.iter().map(|t| t.ty).collect()
    }

    /// What kernels may use on this device.
    pub fn target(&self) -> &Target {
        &self.site.caps.target
    }

    /// Invocations for a workgroup, at most `wanted` and at most what the device has.
    pub fn group_size(&self, wanted: u32) -> u32 {
        self.site.group_size(wanted)
    }

    /// Takes memory for the time of this operation, for what one dispatch hands to the next.
    pub fn scratch(&mut self, bytes: u64) -> Scratch {
        Scratch(self.site.scratch(bytes))
    }

    /// Writes a kernel of `group` invocations and dispatches `groups` workgroups of it; no group, no dispatch. The cost
    /// is floating-point operations and bytes moved, for profiles and to keep submissions short.
    pub fn dispatch(
        &mut self,
        name: &str,
        group: u32,
        groups: u64,
        cost: (u64, u64),
        write: impl FnOnce(&Args<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let k = self.site.builder(name, group);
        let args = Args {
            launch: Launch::new(&k),
            call: (&self.operands, &self.site.targets),
            lengths: RefCell::default(),
            scratch: self.site.scratch,
        };
        write(&args)?;
        let (mut bound, lengths) = (args.launch.done(), args.lengths.into_inner());
        let mut kernel = k.finish().map_err(|e| e.to_string())?;
        if (kernel.args.len(), kernel.params.len()) != (bound.args.len(), bound.params.len()) {
            return Err(format!("kernel `{name}` declares buffers or params that `Args` does not bind"));
        }
        if self.bounded {
            kernel = bounded(kernel, &self.site.caps.target).map_err(|e| e.to_string())?;
            for (i, length) in lengths.into_iter().enumerate() {
                if length > MAX_BOUNDED_LENGTH {
                    let arg = &kernel.args[i].name;
                    return Err(format!("`{arg}` has {length} elements, too many for a kernel with bounds"));
                }
                bound.params.push(length.into());
                if length == 0 {
                    // A clamped load of an empty buffer reads something.
                    bound.set_arg(i, self.site.scratch(16));
                }
            }
        }
        self.site.dispatch_finished(kernel, bound, groups, cost)
    }

    /// Dispatches the last kernel of this operation once more, on the same buffers, with other values of some run-time
    /// numbers: pairs of a number's position, as they were declared, and its bits.
    pub fn dispatch_again(&mut self, changes: &[(usize, u32)]) {
        let Some(last) = self.site.emitted.len().checked_sub(1) else { return };
        self.site.dispatch_again(last, |bound| {
            changes.iter().for_each(|(number, bits)| bound.set_param(*number, *bits));
        });
    }
}

/// Memory that one dispatch hands to the next.
#[derive(Clone, Copy, Debug)]
pub struct Scratch(Memory);

/// A kernel being written: its builder and its arguments.
pub struct Args<'k> {
    launch: Launch<'k>,
    call: (&'k [(TensorType, Memory)], &'k [olivine_kernels::Target]),
    /// Elements of the buffers, as they were declared.
    lengths: RefCell<Vec<u64>>,
    /// Bytes of scratch that the operation has taken.
    scratch: Dim,
}

impl<'k> Args<'k> {
    /// The builder: arithmetic, control flow, workgroup memory.
    pub fn k(&self) -> &'k Builder {
        self.launch.k()
    }

    /// Declares an operand's buffer, to read.
    pub fn operand(&self, i: usize) -> Result<Buf<'k>, String> {
        let (ty, memory) = self.call.0.get(i).ok_or_else(|| format!("there is no operand {i}"))?;
        self.lengths.borrow_mut().push(ty.shape.numel() as u64);
        Ok(self.launch.bind(&format!("x{i}"), elem(ty.dtype), Access::Read, *memory))
    }

    /// Declares a result's buffer, to write.
    pub fn result(&self, i: usize) -> Result<Buf<'k>, String> {
        let target = self.call.1.get(i).ok_or_else(|| format!("there is no result {i}"))?;
        self.lengths.borrow_mut().push(target.ty.shape.numel() as u64);
        Ok(self.launch.write(&format!("y{i}"), target))
    }

    /// Declares scratch memory of this operation, as elements of any type.
    pub fn scratch(&self, name: &str, elem: Elem, access: Access, scratch: Scratch) -> Buf<'k> {
        let bytes = match scratch.0 {
            Memory::Scratch { offset, bytes } if offset.dim() + bytes.dim() <= self.scratch => {
                bytes.dim().specialize().unwrap_or(0) as u64
            }
            _ => {
                self.k().fail(format!("scratch `{name}` was taken by another operation"));
                0
            }
        };
        self.lengths.borrow_mut().push(bytes / u64::from(elem.size()));
        self.launch.bind(name, elem, access, scratch.0)
    }

    /// Declares a size that is known at every run; another size needs no other kernel.
    pub fn size(&self, name: &str, value: usize) -> Val<'k> {
        self.launch.size(name, value)
    }

    /// Declares an f32 that is known at every run.
    pub fn f32(&self, name: &str, value: f32) -> Val<'k> {
        self.launch.f32(name, value)
    }

    /// The invocation's number over all workgroups; the last ones may be past the asked-for count.
    pub fn index(&self) -> Val<'k> {
        let k = self.k();
        linear_group(k) * k.group() + k.local_index()
    }
}

/// Lowers a use of a custom operation.
pub(crate) fn lower(custom: &Custom, site: &mut Site<'_>) -> Result<(), String> {
    let name = custom.op.name();
    let Some(kernel) = custom.op.part::<GpuKernel>() else {
        return Err(format!("custom operation `{name}` has no GPU kernel"));
    };
    let operands: Vec<(TensorType, Memory)> = site.operands.iter().map(|o| (o.ty, o.memory)).collect();
    // The user's function is not ours to trust with a panic.
    let done = catch_unwind(AssertUnwindSafe(|| match &kernel.0 {
        Kind::Written { write, bounded } => {
            write(&mut Call { attrs: &custom.attrs, site, operands, bounded: *bounded })
        }
        Kind::Code { code, launch } => finished(custom, code, launch.as_ref(), &operands, site),
    }));
    match done {
        Ok(outcome) => outcome.map_err(|problem| format!("custom operation `{name}`: {problem}")),
        Err(_) => Err(format!("custom operation `{name}`: its GPU part panicked")),
    }
}

fn finished(
    custom: &Custom,
    code: &Foreign,
    launch: &Shape,
    operands: &[(TensorType, Memory)],
    site: &mut Site<'_>,
) -> Result<(), String> {
    match site.caps.addressing {
        Addressing::Pointers if code.pointers.is_none() => {
            return Err("it has no SPIR-V module that reaches buffers by address".into());
        }
        Addressing::Bindings { .. } if code.bindings.is_none() && code.wgsl.is_none() => {
            return Err("it has neither WGSL nor a SPIR-V module that reaches buffers by binding".into());
        }
        _ => {}
    }
    let module = match site.caps.addressing {
        Addressing::Pointers => code.pointers.as_ref(),
        Addressing::Bindings { .. } => code.bindings.as_ref(),
    };
    let types: Vec<TensorType> = operands.iter().map(|(ty, _)| *ty).collect();
    let results: Vec<TensorType> = site.targets.iter().map(|t| t.ty).collect();
    let CodeLaunch { groups, params } = launch(&custom.attrs, &types, &results)?;
    let read = operands.iter().enumerate().map(|(i, (ty, _))| ArgDecl {
        name: format!("x{i}"),
        elem: elem(ty.dtype),
        access: Access::Read,
        streaming: false,
    });
    let written = results.iter().enumerate().map(|(i, ty)| ArgDecl {
        name: format!("y{i}"),
        elem: elem(ty.dtype),
        // What it does not write keeps its bytes, so it counts as read.
        access: Access::ReadWrite,
        streaming: false,
    });
    let args: Vec<ArgDecl> = read.chain(written).collect();
    if let Some(module) = module {
        module.fits(&site.caps.target, args.len()).map_err(|e| e.to_string())?;
    }
    let names = (0..params.len()).map(|i| ParamDecl { name: format!("p{i}"), scalar: Scalar::U32 });
    let kernel = Kernel::foreign(custom.op.name(), args, names.collect(), code.clone());
    let memory = operands.iter().map(|(_, m)| *m).chain(site.targets.iter().map(|t| t.memory)).collect();
    let bytes = types.iter().chain(&results).map(|ty| ty.bytes() as u64).sum::<u64>();
    site.dispatch_kernel(kernel.map_err(|e| e.to_string())?, Bound::new(memory, params), groups, (0, bytes))
}
