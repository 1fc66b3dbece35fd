//! A small typed language for GPU kernels written in Rust, its validator and its printers.
//!
//! ```text
//!   Rust function ─ Builder, Val ─► Kernel (validated) ─┬─ spirv::print  (pointers in push constants, or bindings)
//!                                                       ├─ wgsl::print   (bindings)
//!                                                       ├─ ptx::print    (pointers in parameters)
//!                                          │            └─ interpret     (on the host, for tests)
//!                                       bounded: the same with every access checked
//! ```
//!
//! ```
//! use olivine_kernel::{Access, Builder, Elem, Scalar, Target};
//! let k = Builder::new("double", 64, &Target::plain());
//! let (x, y) = (k.arg("x", Elem::F32, Access::Read), k.arg("y", Elem::F16, Access::Write));
//! let n = k.param("n", Scalar::U32);
//! let i = k.group_id(0) * 64 + k.local_index();
//! k.if_(i.lt(n), || y.store(i, x.load(i) * 2));
//! let kernel = k.finish()?;
//! assert_eq!(kernel.args.len(), 2);
//! # Ok::<(), olivine_kernel::Error>(())
//! ```
#![forbid(unsafe_code)]

mod bounded;
mod build;
mod error;
mod foreign;
mod interface;
pub mod interpret;
mod ir;
mod layout;
mod merge;
pub mod ptx;
pub mod spirv;
mod types;
mod validate;
mod warpgroup;
pub mod wgsl;

pub use bounded::{MAX_BOUNDED_LENGTH, bounded};
pub use build::{Buf, Builder, Number, Reduction, RoleWork, Shared, Val, Var};
pub use error::Error;
pub use foreign::{
    Binding, BoundModule, Foreign, MAX_FOREIGN_BYTES, MAX_PUSH_BYTES, SpirvModule, WgslModule,
};
pub use interface::{BindingDecl, BindingKind, Interface, ParamsLocation};
pub use ir::*;
pub use layout::{ArgLayout, Check, REPORT_WORDS, Report, Violation};
pub use types::{Elem, Fragments, MatrixShape, MatrixSupport, MatrixType, MatrixUse, Scalar, Target, Type};
pub use validate::validate;
pub use warpgroup::{AsyncBarrier, Role, WARPGROUP, WarpgroupOperand, WarpgroupStmt};
