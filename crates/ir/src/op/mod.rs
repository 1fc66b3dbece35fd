//! The operations: for each an attribute struct, its shape and dtype rule, and its builder method on [`Graph`](crate::Graph).
//!
//! Adding one: write the struct with `op!` and its [`Rule`] in the family's file, then name it in `ops!` below.
//! `docs/adding-an-operation.md` has all steps.

mod attention;
mod contraction;
mod control;
mod conv;
mod create;
mod custom;
mod elementwise;
mod fft;
mod fused;
mod generate;
mod index;
mod interpolate;
mod join;
mod layout;
mod norm;
mod packed;
mod pool;
mod quantize;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod rope;
mod scan;
mod signal;
mod state_space;

use std::fmt::Debug;

use crate::attr::{Attrs, MapSize};
use crate::error::{hint, nearest};
use crate::{DType, Dim, Error, Shape, Tensor, TensorType};

pub use attention::*;
pub use contraction::*;
pub use control::*;
pub use conv::*;
pub use create::*;
pub use custom::*;
pub use elementwise::*;
pub use fft::*;
pub use fused::*;
pub use generate::*;
pub use index::*;
pub use interpolate::*;
pub use join::*;
pub use layout::*;
pub use norm::*;
pub use packed::*;
pub use pool::*;
pub use quantize::*;
pub use random::*;
pub use recurrent::*;
pub use reduce::*;
pub use resize::*;
pub use rope::*;
pub use scan::*;
pub use signal::*;
pub use state_space::*;

/// How an operation names itself and its attributes in the text form; `op!` writes it.
pub trait Spelled: Sized {
    /// The name in the text form.
    fn name(&self) -> &'static str;
    /// The attributes as data.
    fn attrs(&self) -> Attrs;
    /// Every name that [`Spelled::read`] knows.
    fn names() -> Vec<&'static str>;
    /// Reads the operation back; `None` when the name is another operation's.
    fn read(name: &str, attrs: &Attrs) -> Option<Result<Self, String>>;
    /// Replaces every size of the attributes, which may be an expression.
    fn map_sizes(&mut self, size: &mut MapSize<'_>) -> Result<(), Error> {
        let _ = size;
        Ok(())
    }
    /// Whether a size of the attributes is an expression.
    fn has_open_sizes(&self) -> bool {
        false
    }
}

/// What an operation means for types: the contract that every backend relies on.
pub trait Rule: Spelled + Clone + PartialEq + Debug {
    /// The results' types, or what is wrong with the operands.
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String>;

    /// Refuses constant operands whose values break the contract (an index out of range).
    fn check_constants(&self, _operands: &[TensorType], _values: &[Option<&Tensor>]) -> Result<(), String> {
        Ok(())
    }

    /// Whether the kernels of every backend read an operand through arbitrary strides; the compiler copies other
    /// operands into contiguous memory first.
    fn reads_strides(&self, _operand: usize) -> bool {
        false
    }

    /// Whether an operand may be packed; all others are plain tensors.
    fn reads_packed(&self, _operand: usize) -> bool {
        false
    }

    /// Whether every element of the results is an element of an operand, zero or padding: nothing is computed.
    fn moves_elements(&self) -> bool {
        false
    }
}

/// How the compiler treats an operation; the list of operations says it of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lowering {
    /// Every backend has a kernel for it.
    Kernel,
    /// Every executor runs it: the graphs inside it, or a user's function.
    Executor,
    /// The pass *legalise* rewrites it as other operations.
    Rewrite,
    /// It only changes shape, strides and offset; the pass *views* turns it into an `Op::View`.
    Layout,
    /// The pass *control* turns it into a loop.
    Control,
}

/// Declares an operation's attribute struct together with its spelling.
macro_rules! op {
    (
        $(#[$doc:meta])*
        pub struct $name:ident = $word:literal { $($(#[$fdoc:meta])* pub $field:ident : $ty:ty),* $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

        impl PartialEq for $name {
            #[allow(unused_variables, reason = "an operation may have no attributes")]
            fn eq(&self, other: &Self) -> bool {
                true $(&& $crate::attr::AttrField::same(&self.$field, &other.$field))*
            }
        }

        impl $crate::op::Spelled for $name {
            fn name(&self) -> &'static str {
                $word
            }
            fn attrs(&self) -> $crate::attr::Attrs {
                $crate::attr::Attrs(vec![$((stringify!($field).to_string(), $crate::attr::AttrField::write(&self.$field))),*])
            }
            fn names() -> Vec<&'static str> {
                vec![$word]
            }
            #[allow(unused_variables, reason = "an operation may have no attributes")]
            fn map_sizes(&mut self, size: &mut $crate::attr::MapSize<'_>) -> Result<(), $crate::Error> {
                $($crate::attr::AttrField::map_sizes(&mut self.$field, size)?;)*
                Ok(())
            }
            fn has_open_sizes(&self) -> bool {
                false $(|| $crate::attr::AttrField::has_open_sizes(&self.$field))*
            }
            fn read(name: &str, attrs: &$crate::attr::Attrs) -> Option<Result<Self, String>> {
                (name == $word).then(|| {
                    attrs.only(&[$(stringify!($field)),*])?;
                    Ok($name { $($field: attrs.get(stringify!($field))?),* })
                })
            }
        }
    };
}
pub(crate) use op;

/// Declares operations that share one attribute struct; the field `kind` is also the name.
macro_rules! kind_op {
    (
        $(#[$doc:meta])*
        pub struct $name:ident by $kind:ty { $($(#[$fdoc:meta])* pub $field:ident : $ty:ty),* $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            /// Which operation of the family.
            pub kind: $kind,
            $($(#[$fdoc])* pub $field: $ty),*
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.kind == other.kind $(&& $crate::attr::AttrField::same(&self.$field, &other.$field))*
            }
        }

        impl $crate::op::Spelled for $name {
            fn name(&self) -> &'static str {
                self.kind.name()
            }
            fn attrs(&self) -> $crate::attr::Attrs {
                $crate::attr::Attrs(vec![$((stringify!($field).to_string(), $crate::attr::AttrField::write(&self.$field))),*])
            }
            fn names() -> Vec<&'static str> {
                <$kind>::ALL.iter().map(|kind| kind.name()).collect()
            }
            #[allow(unused_variables, reason = "an operation may have no attributes")]
            fn map_sizes(&mut self, size: &mut $crate::attr::MapSize<'_>) -> Result<(), $crate::Error> {
                $($crate::attr::AttrField::map_sizes(&mut self.$field, size)?;)*
                Ok(())
            }
            fn has_open_sizes(&self) -> bool {
                false $(|| $crate::attr::AttrField::has_open_sizes(&self.$field))*
            }
            fn read(name: &str, attrs: &$crate::attr::Attrs) -> Option<Result<Self, String>> {
                let kind = <$kind>::from_name(name)?;
                Some(attrs.only(&[$(stringify!($field)),*]).and_then(|()| {
                    Ok($name { kind, $($field: attrs.get(stringify!($field))?),* })
                }))
            }
        }
    };
}
pub(crate) use kind_op;

/// Lists every operation once, by its [`Lowering`].
///
/// Also defines `for_each_kernel!` and its likes: each calls a macro with the names of its part of the list. Backends
/// and passes use them to call a trait's method on every operation of the part, so that an operation without an
/// implementation does not compile.
macro_rules! ops {
    (
        $d:tt
        kernel { $($kernel:ident),* $(,)? }
        executor { $($executor:ident),* $(,)? }
        rewrite { $($rewrite:ident),* $(,)? }
        layout { $($layout:ident),* $(,)? }
        control { $($control:ident),* $(,)? }
    ) => {
        ops! { @all
            $($kernel Kernel,)* $($executor Executor,)* $($rewrite Rewrite,)* $($layout Layout,)*
            $($control Control,)*
        }

        /// Calls a macro with the names of all operations.
        #[macro_export]
        macro_rules! for_each_op {
            ($d callback:ident) => {
                $d callback! { $($kernel,)* $($executor,)* $($rewrite,)* $($layout,)* $($control,)* }
            };
        }

        /// Calls a macro with the names of the operations that have kernels.
        #[macro_export]
        macro_rules! for_each_kernel {
            ($d callback:ident) => { $d callback! { $($kernel,)* } };
        }

        /// Calls a macro with the names of the operations that executors run themselves.
        #[macro_export]
        macro_rules! for_each_executor_op {
            ($d callback:ident) => { $d callback! { $($executor,)* } };
        }

        /// Calls a macro with the names of the operations that the pass *legalise* rewrites.
        #[macro_export]
        macro_rules! for_each_rewrite {
            ($d callback:ident) => { $d callback! { $($rewrite,)* } };
        }

        /// Calls a macro with the names of the operations that become views.
        #[macro_export]
        macro_rules! for_each_layout {
            ($d callback:ident) => { $d callback! { $($layout,)* } };
        }
    };
    (@all $($name:ident $lowering:ident,)*) => {
        /// One operation with its attributes.
        // Not `non_exhaustive`, nor are the enums inside operations: backends match all variants, so that an operation
        // without a kernel does not compile.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each variant wraps the documented struct of its name")]
        pub enum Op { $($name($name)),* }

        impl Op {
            /// The name in the text form, for example `layer_norm`.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(op) => op.name()),* }
            }

            /// The attributes as data.
            pub fn attrs(&self) -> Attrs {
                match self { $(Op::$name(op) => op.attrs()),* }
            }

            /// The names of all operations.
            pub fn names() -> Vec<&'static str> {
                [$($name::names()),*].concat()
            }

            /// Reads an operation from its spelling.
            pub fn read(name: &str, attrs: &Attrs) -> Result<Op, String> {
                $(if let Some(op) = $name::read(name, attrs) {
                    return op.map(Op::$name);
                })*
                Err(format!("unknown operation `{name}`{}", hint(&nearest(name, Op::names()))))
            }

            /// The results' types, or what is wrong with the operands.
            pub fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
                let packed = operands.iter().enumerate().filter(|(_, ty)| ty.packed.is_some());
                if let Some((i, ty)) = packed.into_iter().find(|(i, _)| !self.reads_packed(*i)) {
                    return Err(format!("operand {i} is packed, {ty}: it must be dequantised first"));
                }
                if let Some(ty) = operands.iter().find(|ty| ty.packed.is_some() && ty.dtype != DType::U8) {
                    return Err(format!("packed tensors are stored as u8, not {}", ty.dtype));
                }
                match self { $(Op::$name(op) => op.infer(operands)),* }
            }

            /// The operation with every size of its attributes replaced.
            pub fn map_sizes(&self, mut size: impl FnMut(Dim) -> Result<Dim, Error>) -> Result<Op, Error> {
                let mut op = self.clone();
                match &mut op { $(Op::$name(op) => op.map_sizes(&mut size)?),* }
                Ok(op)
            }

            /// Whether a size of its attributes is an expression.
            pub fn has_open_sizes(&self) -> bool {
                match self { $(Op::$name(op) => op.has_open_sizes()),* }
            }

            /// See [`Rule::reads_packed`].
            pub fn reads_packed(&self, operand: usize) -> bool {
                match self { $(Op::$name(op) => op.reads_packed(operand)),* }
            }

            /// Refuses constant operands whose values break the contract; `operands` are ones that `infer` accepts,
            /// and `values` has an entry for each.
            pub fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
                match self { $(Op::$name(op) => op.check_constants(operands, values)),* }
            }

            /// See [`Rule::reads_strides`].
            pub fn reads_strides(&self, operand: usize) -> bool {
                match self { $(Op::$name(op) => op.reads_strides(operand)),* }
            }

            /// See [`Rule::moves_elements`].
            pub fn moves_elements(&self) -> bool {
                match self { $(Op::$name(op) => op.moves_elements()),* }
            }

            /// Whether compiled graphs may contain the operation. [`Op::View`], which needs no kernel, counts as well.
            pub fn is_compiled(&self) -> bool {
                matches!(self.lowering(), Lowering::Kernel | Lowering::Executor) || matches!(self, Op::View(_))
            }

            /// How the compiler treats the operation.
            pub fn lowering(&self) -> Lowering {
                match self { $(Op::$name(_) => Lowering::$lowering),* }
            }
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op {
                Op::$name(op)
            }
        })*
    };
}

ops! {
    $
    kernel {
        ScalarOp, Fused,
        MatMul, GroupedMatMul, QMatMul, DequantMatMul, DequantGather,
        LayerNorm, RmsNorm, GroupNorm,
        Reduce, Softmax, LogSoftmax, ArgReduce, Cumulative, TopK, Sort, ArgSort,
        Attention, KvAppend, Rope,
        SelectiveScan, Mamba2, GatedDeltaNet, CausalConv1d, Recurrence,
        Concat, SliceScatter, Pad, Gather, GatherElements, GatherNd, ScatterElements, ScatterNd,
        OneHot, Trilu, Range, NonZero,
        Conv, ConvTranspose, QConv, Im2Col, Col2Im, Pool, AdaptivePool, Resize, GridSample, RoiAlign,
        Fft, RngUniform, RngNormal, Sample,
    }
    executor { If, Loop, Custom }
    rewrite {
        DotGeneral, Einsum, LoraMatMul,
        InstanceNorm, BatchNorm, LayerNorm2d, AdaLayerNorm, L2Norm,
        Recurrent,
        DepthToSpace, SpaceToDepth, Stack, Tile, Repeat, Roll, Fill,
        GlobalPool, Dft, Stft, MelFilterBank, LogMel,
        Penalties, QuantizeLinear, DequantizeLinear,
    }
    layout { Reshape, Transpose, Slice, Expand, Split, Reverse, Unfold, View }
    control { Scan }
}

// Small checks that most rules share. Each returns the words of the error.

pub(crate) fn arity(operands: &[TensorType], allowed: std::ops::RangeInclusive<usize>) -> Result<(), String> {
    if allowed.contains(&operands.len()) {
        return Ok(());
    }
    let (lo, hi) = (allowed.start(), allowed.end());
    let range = match (*lo, *hi) {
        (lo, hi) if lo == hi => format!("{lo}"),
        (lo, usize::MAX) => format!("{lo} or more"),
        (lo, hi) => format!("{lo} to {hi}"),
    };
    Err(format!("takes {range} operands, got {}", operands.len()))
}

pub(crate) fn same_dtype(operands: &[TensorType]) -> Result<(), String> {
    match operands.windows(2).find(|w| w[0].dtype != w[1].dtype) {
        None => Ok(()),
        Some(w) => Err(format!("dtypes differ: {} and {}", w[0].dtype, w[1].dtype)),
    }
}

pub(crate) fn float(operand: &TensorType) -> Result<(), String> {
    if operand.dtype.is_float() { Ok(()) } else { Err(format!("needs a float dtype, got {}", operand.dtype)) }
}

pub(crate) fn number(operand: &TensorType) -> Result<(), String> {
    if operand.dtype.is_float() || operand.dtype.is_int() {
        Ok(())
    } else {
        Err(format!("needs a number dtype, got {}", operand.dtype))
    }
}

pub(crate) fn index(operand: &TensorType) -> Result<(), String> {
    if operand.dtype.is_index() {
        Ok(())
    } else {
        Err(format!("indices must be i32 or i64, got {}", operand.dtype))
    }
}

pub(crate) fn axis_in(axis: usize, shape: &Shape) -> Result<(), String> {
    if axis < shape.rank() { Ok(()) } else { Err(format!("axis {axis} is outside rank {}", shape.rank())) }
}

pub(crate) fn shape<T: Copy + Into<Dim>>(dims: &[T]) -> Result<Shape, String> {
    let dims: Vec<Dim> = dims.iter().map(|d| (*d).into()).collect();
    Shape::of_sizes(&dims).map_err(|e| e.to_string())
}

/// A product of plain numbers, which may overflow.
pub(crate) fn product(factors: &[usize]) -> Result<usize, String> {
    factors
        .iter()
        .try_fold(1usize, |acc, &f| acc.checked_mul(f))
        .ok_or_else(|| format!("size overflows: product of {factors:?}"))
}

/// A product of sizes, which may overflow.
#[track_caller]
pub(crate) fn product_of(factors: &[Dim]) -> Result<Dim, String> {
    crate::product(factors).check().map_err(|_| format!("size overflows: product of {factors:?}"))
}

#[track_caller]
pub(crate) fn of_shape<T: Copy + Into<Dim>>(
    what: &str,
    operand: &TensorType,
    expected: &[T],
) -> Result<(), String> {
    let expected = shape(expected)?;
    if operand.shape == expected {
        Ok(())
    } else {
        Err(format!("{what} must have shape {expected}, got {}", operand.shape))
    }
}

/// The first value of a constant index operand, widened, for which `wrong` of position and value holds.
pub(crate) fn find_index(value: Option<&Tensor>, wrong: impl Fn(usize, i64) -> bool) -> Option<(usize, i64)> {
    let wrong = |(position, i): &(usize, i64)| wrong(*position, *i);
    // Slices, not `data`, which copies the elements of a mapped file.
    let value = value?;
    match value.dtype() {
        DType::I32 => value.as_slice::<i32>().ok()?.iter().map(|i| i64::from(*i)).enumerate().find(wrong),
        DType::I64 => value.as_slice::<i64>().ok()?.iter().copied().enumerate().find(wrong),
        _ => None,
    }
}

/// Refuses a constant index outside `-size..size`.
#[track_caller]
pub(crate) fn indices_within(value: Option<&Tensor>, size: impl Into<Dim>) -> Result<(), String> {
    let size: Dim = size.into();
    match find_index(value, |_, i| !(size > i && size + i >= 0)) {
        None => Ok(()),
        Some((position, i)) => {
            Err(format!("index {i} at position {position} is out of range for size {size}"))
        }
    }
}
