//! The CPU executor: reference semantics of every operation, and speed.
//!
//! ```text
//!   Compiled ─ lower: kernels prepared, places known ─ Executable ─ run(inputs) → outputs
//!                 │                                       │
//!              kernels/: one file per family           Weights: params and their packed forms, shared
//! ```
//!
//! ```
//! use std::sync::Arc;
//! use olivine_cpu::{CpuEvaluator, Executable, Weights};
//! use olivine_compile::{Options, compile};
//! use olivine_ir::{DType, Graph, TensorView};
//!
//! let mut g = Graph::new("twice");
//! let x = g.input("x", DType::F32, [3])?;
//! let y = g.add(x, x)?;
//! g.output("y", y)?;
//! let compiled = compile(&g, &Options { evaluator: Some(&CpuEvaluator), ..Options::default() })?;
//! let twice = Executable::new(&compiled, Arc::new(Weights::new()), false)?;
//! let mut y = [0f32; 3];
//! twice.run(&[TensorView::new([3], &[1f32, 2.0, 3.0])?], &mut [bytemuck::cast_slice_mut(&mut y)])?;
//! assert_eq!(y, [2.0, 4.0, 6.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arena;
mod control;
mod cost;
mod custom;
mod error;
mod evaluate;
mod executable;
pub mod fork;
mod kernel;
mod kernels;
mod limit;
mod lower;
mod operand;
mod parallel;
mod processor;
mod scratch;
mod simd;
mod sizing;
mod thread_pool;
mod threads;
mod weights;

pub use cost::{ConvKind, StepCost, UNKNOWN_ITERATIONS};
pub use custom::{CpuFunction, ResultMut};
pub use error::Error;
pub use evaluate::{CpuEvaluator, evaluate};
pub use executable::{Executable, HostBytes, StepTime};
pub use limit::memory_limit;
pub use processor::{features, processor_name};
pub use simd::{Vectors, erf, limit_vectors};
pub use thread_pool::share;
pub use threads::{Spawned, Threads, default_threads};
pub use weights::{Weights, widen};
