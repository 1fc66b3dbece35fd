//! Sizes as expressions over named sizes, and the guards under which a compiled plan holds.
//!
//! A compile runs with concrete values for the named sizes. Every [`Dim`] carries its value and, where it depends on
//! a named size, an expression. Arithmetic builds expressions; comparisons answer by the value and record the
//! question with its answer as a guard. A plan holds for all sizes that give the same answers, and its numbers are
//! evaluated for new sizes through one flat [`Table`].
//!
//! ```text
//!   Symbol, Scope ── named sizes with bounds, and their values in the current compile
//!   Dim ──────────── a value and an expression: operators, comparisons, text form
//!   guards ───────── record, Recorder, GuardSet: which questions were asked, and whether the answers still hold
//!   Bindings ─────── new values of the symbols
//!   Table ────────── many expressions as one list of instructions
//!   ArenaLayout ──── offsets of buffers in one arena, for any sizes
//!   SharedSlice ──── many short lists of numbers in one allocation
//!   expr ─────────── the process-wide store of expressions in canonical form
//! ```
//!
//! ```
//! use olivine_size::{Bindings, Scope, Table, guards};
//!
//! let mut scope = Scope::new();
//! let batch = scope.declare("batch", 1..=64, 2)?;
//! let sequence = scope.declare("sequence", 0..=512, 7)?;
//!
//! let (tiles, guards) = guards::record(|| {
//!     let rows = batch * sequence;
//!     if rows <= 16 { rows.div_ceil(4) } else { rows.div_ceil(64) }
//! });
//! assert_eq!(tiles.to_string(), "ceil(batch*sequence / 4)");
//! assert!(guards.to_string().starts_with("batch*sequence <= 16   ("));
//!
//! let mut table = Table::new();
//! let slot = table.add(tiles)?;
//! let mut sizes = Bindings::new();
//! for (symbol, value) in scope.iter().map(|(symbol, _)| symbol).zip([3, 5]) {
//!     sizes.bind(symbol, value)?;
//! }
//! assert!(guards.holds(&sizes));
//! let mut values = Vec::new();
//! table.evaluate(&sizes, &mut values)?;
//! assert_eq!(values[slot.index()], 4);
//! # Ok::<(), olivine_size::Error>(())
//! ```
#![forbid(unsafe_code)]

mod arithmetic;
mod bindings;
mod compare;
mod dim;
mod error;
mod expr;
pub mod guards;
mod layout;
mod operators;
mod parse;
mod shared;
mod symbol;
mod table;

pub use bindings::Bindings;
pub use dim::{Dim, Expression, Structural};
pub use error::{Error, Fault};
pub use expr::list::Expressions;
pub use expr::store::{expression_count, set_expression_limit};
pub use layout::ArenaLayout;
pub use shared::SharedSlice;
pub use symbol::{Scope, Symbol};
pub use table::{Slot, Table};
