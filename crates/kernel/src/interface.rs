//! How a dispatch hands its arguments to a kernel on binding targets: buffers by number, run-time numbers as immediates
//! where they fit and in a uniform buffer where they do not.
//!
//! ```text
//!   group 0, binding 0 .. args   the kernel's buffers, in order
//!            binding args        the params, where they are a uniform buffer
//!            binding last        the report, in checked kernels
//! ```

use crate::ir::{ArgId, Expr, Kernel};
use crate::layout::REPORT_WORDS;

/// What a binding of group 0 holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindingKind {
    /// A buffer of the kernel: a storage buffer to read and write, whatever the kernel does with it, so that one buffer
    /// can be bound several times in a dispatch without its usages clashing.
    Arg(ArgId),
    /// The params, as [`Interface::param_bytes`] lays them out: a uniform buffer.
    Params,
    /// The report, [`REPORT_WORDS`] words that begin as zeros: a storage buffer to read and write.
    Report,
}

/// A binding of group 0; its number is its position in [`Interface::bindings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BindingDecl {
    /// What it holds.
    pub kind: BindingKind,
    /// Bytes that must be bound at least. Bound sizes are multiples of 4 besides, as everywhere in WebGPU.
    pub min_bytes: u32,
}

impl BindingDecl {
    /// Whether it is a uniform buffer; a storage buffer otherwise.
    pub fn is_uniform(&self) -> bool {
        self.kind == BindingKind::Params
    }
}

/// Where a kernel reads its params.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamsLocation {
    /// A uniform buffer.
    Uniform {
        /// The binding's number.
        binding: u32,
        /// Bytes, a multiple of 4.
        bytes: u32,
    },
    /// Immediates from byte 0 on.
    Immediate {
        /// Bytes, a multiple of 4.
        bytes: u32,
    },
}

/// What a driver must know of a printed kernel to bind its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Bindings of group 0 by number.
    pub bindings: Vec<BindingDecl>,
    /// Where the params are; `None` when there are none.
    pub params: Option<ParamsLocation>,
    /// Whether it is checked, so that the params begin with the number of the dispatch.
    pub checked: bool,
    /// Whether the params end with a zero, behind which WGSL hides opaque values.
    pub zero: bool,
}

impl Interface {
    /// Name of the entry point.
    pub const ENTRY: &'static str = "main";

    /// Bytes of immediates that every device with immediates has.
    pub const MAX_IMMEDIATE_BYTES: u32 = 128;

    /// The interface of a kernel whose params may take this many bytes of immediates.
    pub fn new(kernel: &Kernel, immediate_bytes: u32, checked: bool) -> Self {
        let arg = |(i, elem): (u32, crate::Elem)| BindingDecl {
            kind: BindingKind::Arg(ArgId(i)),
            min_bytes: elem.size().max(4),
        };
        let mut bindings: Vec<_> = (0..).zip(kernel.args.iter().map(|a| a.elem)).map(arg).collect();
        let zero = kernel.values.iter().any(|d| matches!(d.expr, Expr::Opaque(_)));
        let bytes = 4 * (kernel.params.len() as u32 + u32::from(checked) + u32::from(zero));
        let params = match bytes {
            0 => None,
            bytes if bytes <= immediate_bytes => Some(ParamsLocation::Immediate { bytes }),
            bytes => {
                let binding = bindings.len() as u32;
                bindings.push(BindingDecl { kind: BindingKind::Params, min_bytes: bytes });
                Some(ParamsLocation::Uniform { binding, bytes })
            }
        };
        if checked {
            bindings.push(BindingDecl { kind: BindingKind::Report, min_bytes: 4 * REPORT_WORDS as u32 });
        }
        Interface { bindings, params, checked, zero }
    }

    /// The number of the report's binding, in checked kernels.
    pub fn report_binding(&self) -> Option<u32> {
        self.bindings.iter().position(|b| b.kind == BindingKind::Report).map(|i| i as u32)
    }

    /// The params of a dispatch as the kernel reads them: in checked ones the dispatch's number, then the params, and
    /// in those with opaque values a zero.
    pub fn param_bytes(&self, dispatch: u32, params: &[u32]) -> Vec<u8> {
        let first = self.checked.then_some(dispatch);
        let last = self.zero.then_some(0);
        first.iter().chain(params).chain(last.iter()).flat_map(|word| word.to_le_bytes()).collect()
    }
}
