//! Every case of the table, on every way of running a graph.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::OptionsExt as _;
use olivine::{Device, SessionOptions};
use olivine_cases::{Report, SessionBackend, fuzz_cases, long_axes, run_table, table};

fn passes(name: &str, options: SessionOptions) {
    let backend = SessionBackend::new(name, Device::Cpu, options).unwrap();
    all_passed(&run_table(&backend, &table(), "", 2));
}

fn all_passed(report: &Report) {
    assert!(!report.results.is_empty());
    assert_eq!(report.passed(), report.results.len(), "{report}");
}

#[test]
fn the_table_passes_on_the_cpu() {
    passes("cpu", SessionOptions::default());
}

#[test]
fn the_table_passes_without_fusion() {
    passes("cpu unfused", SessionOptions::new().no_fusion(true));
}

#[test]
fn the_table_passes_on_one_thread() {
    passes("cpu, one thread", SessionOptions::new().threads(1));
}

/// Around the sizes of tasks (2¹⁴ to 2¹⁶ elements), and beyond what 16 bits count.
#[test]
fn long_axes_pass_on_the_cpu() {
    let backend = SessionBackend::new("cpu", Device::Cpu, SessionOptions::default()).unwrap();
    for n in [16_385, 32_767, 32_769, 65_536, 65_537] {
        all_passed(&run_table(&backend, &long_axes(n), "", 2));
    }
}

#[test]
fn the_table_has_at_least_400_cases() {
    assert!(table().len() >= 400, "{} cases", table().len());
}

#[test]
fn random_shapes_agree_with_the_oracle() {
    let backend = SessionBackend::new("cpu", Device::Cpu, SessionOptions::default()).unwrap();
    all_passed(&run_table(&backend, &fuzz_cases(2000, 1), "", 2));
}
