//! The table of cases every backend must pass, and the f64 oracle behind it.
//!
//! ```text
//!   table()  ── Case: graph builder, inputs' distribution, Bound ──┐
//!   fuzz_cases()  (random shapes, the same Case)                   ├── check(case, backend) ── Report ── ops_markdown
//!   oracle  ── what each operation means, in f64 and i64 ──────────┘
//! ```
//!
//! ```
//! use olivine_cases::{Oracle, run_table, table};
//! let report = run_table(&Oracle, &table(), "softmax/last-axis", 1);
//! assert_eq!(report.passed(), report.results.len());
//! ```
#![forbid(unsafe_code)]

mod blocks;
mod bound;
mod case;
mod check;
mod coverage;
mod denormals;
mod fill;
mod fuzz;
mod fuzz_attention;
mod fuzz_rows;
mod joined;
pub mod oracle;
mod range;
mod session;
mod table;
mod warnings;

pub use bound::{Bound, Mismatch, round_to, sum_of, ulp};
pub use case::{Build, Case, Outputs, Prepared, Table};
pub use check::{Backend, CaseResult, Outcome, Report, check, check_async, run_table};
pub use coverage::{admitted, ops_markdown};
pub use denormals::Denormals;
pub use fill::{Fill, Rng, normal, these, to_tensor, uniform, whole};
pub use fuzz::{fuzz_cases, random_case};
pub use fuzz_attention::attention_cases;
pub use fuzz_rows::row_cases;
pub use joined::Joined;
pub use oracle::backend::Oracle;
pub use range::{pairs_len, whole_range_len};
pub use session::{SessionBackend, may_flush};
pub use table::{long_axes, table};
pub use warnings::warnings;
