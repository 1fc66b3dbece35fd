//! The table of cases on the instruction sets of other processors. It limits the whole process, hence a file of its own.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::cpu::{Vectors, limit_vectors};
use olivine::{Device, SessionOptions};
use olivine_cases::{SessionBackend, run_table, table};

#[test]
fn the_table_passes_with_narrower_vectors() {
    for most in [Vectors::Base, Vectors::Avx2] {
        let used = limit_vectors(most);
        let name = format!("cpu with {used:?} vectors");
        let backend = SessionBackend::new(&name, Device::Cpu, SessionOptions::default()).unwrap();
        let report = run_table(&backend, &table(), "", 2);
        assert!(!report.results.is_empty());
        assert_eq!(report.passed(), report.results.len(), "{report}");
    }
}
