//! The NIF behind the Elixir package `olivine`.
//!
//! ```text
//!   Olivine.NativeV ─ buffer.rs, kernel.rs, chain.rs ─┐
//!   Olivine.Array ─── array.rs ───────────────────────┼─ device.rs: one context per device name
//!   Olivine.Model ─── model.rs ───────────────────────┘
//!                     call.rs: results, errors and panics as terms
//!                     resource.rs: handles that garbage collection frees on a thread of their own
//! ```
//!
//! What may wait, compile or copy runs on dirty IO schedulers. A panic becomes an error term.

mod array;
mod buffer;
mod call;
mod chain;
mod device;
mod kernel;
mod model;
mod resource;
mod spv;

rustler::init!("Elixir.Olivine.Native");
