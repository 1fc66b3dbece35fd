//! Leapfrog chains of log-densities: what Hamiltonian Monte Carlo spends its time on, in one submission to a GPU.
//!
//! ```text
//!   Builder or text ─► Density ─ differentiate ─► Plan: stages, one pass over the observations ─┬─ cpu: tapes
//!                                                                                               └─ gpu: kernels
//!   Chain::compile(session, density, dtype) ─ bind(data) ─ run(leapfrog, q, p) ─► Trajectories
//!   contract: the same density as a SPIR-V module with bindings, and the checks of its arguments
//! ```
//!
//! ```
//! use olivine::{Device, Session};
//! use olivine_chain::{Chain, Data, Density, DType, Leapfrog};
//! // A standard normal distribution: no observations, one coordinate.
//! let density: Density = "sum_coord(-0.5 * q^2 - 0.5 * log(2 * pi))".parse()?;
//! let session = Session::new(Device::Cpu)?;
//! let chain = Chain::compile(&session, &density, DType::F64)?.bind(&Data::default(), 1)?;
//! let leapfrog = Leapfrog { step_size: 0.05, inverse_mass: vec![1.0], steps: 1 };
//! let run = chain.run(&leapfrog, &[0.3], &[1.0])?;
//! assert!((run.q[0] - 0.349_625).abs() < 1e-15);
//! assert!((run.density[0] - -0.980_057_353_517).abs() < 1e-12);
//! # Ok::<(), olivine_chain::Error>(())
//! ```
//!
//! [The guide](https://github.com/olivine-ml/olivine/blob/main/docs/guides/chains.md) describes the language.
#![forbid(unsafe_code)]

mod chain;
pub mod contract;
mod cpu;
mod data;
mod error;
mod expr;
mod gpu;
mod gradient;
mod plan;

pub use chain::{BoundChain, Chain, Leapfrog, MAX_STEPS, Trajectories};
pub use data::Data;
pub use error::Error;
pub use expr::{
    Axis, Builder, Comparison, DataDecl, DataKind, Density, Expr, Function, MAX_NODES, Operand, Operator,
    Reduction,
};
pub use olivine_ir::DType;

/// The guide, whose example is run as a doc test.
#[doc = include_str!("../../../docs/guides/chains.md")]
#[cfg(doctest)]
struct Guide;
