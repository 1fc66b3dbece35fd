//! Chains on GPUs: one kernel, written in the kernel language from the plan.
//!
//! ```text
//!   shape   threads, workgroups and dispatches of a run
//!   chain   the integrator: what one evaluation and the next have to do with each other
//!   stage   the loops of a stage            node    an expression at one observation and coordinate
//!   reduce  sums over a workgroup           special ln Γ and its derivatives
//!   memory  where everything is
//! ```
//!
//! A workgroup goes through all coordinates of its chain and through its part of the observations. One with all of them
//! loops over the steps; several of one chain meet between dispatches, one for each step.

mod chain;
mod memory;
mod node;
mod reduce;
mod shape;
mod special;
mod stage;

use std::sync::Arc;

use olivine::custom::GpuKernel;

pub(crate) use chain::Writer;
pub(crate) use memory::{Io, Memory, Rows};
pub(crate) use shape::{BUDGET, Shape};

use crate::data::Layout;
use crate::plan::Plan;

/// The GPU's part of the chain operation.
pub(crate) fn kernel(plan: Arc<Plan>, layout: Arc<Layout>, shape: Shape) -> GpuKernel {
    GpuKernel::written(move |call| shape::dispatch(&plan, &layout, &shape, call))
}
