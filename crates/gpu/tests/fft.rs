//! Fourier transforms by the kernel interpreter: devices whose workgroups hold little, so that lengths of a few
//! thousand take as many passes as millions do elsewhere.

mod common;

use common::Interpreter;
use olivine_cases::{run_table, table};

fn pass(backend: &Interpreter, names: &[&str]) {
    let cases = table();
    for name in names {
        let report = run_table(backend, &cases, name, 2);
        assert_eq!(report.results.len(), 1, "{name}");
        let wrong: Vec<String> = report.failures().map(|r| format!("{}: {}", r.name, r.outcome)).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn three_passes_where_a_workgroup_holds_sixty_four_numbers() {
    let names = ["signal/fft/10000/", "signal/rfft/8198/"];
    pass(&Interpreter::cramped(272), &names);
}

#[test]
fn workgroups_of_other_sizes_give_the_same() {
    let names = ["signal/fft/1000/", "signal/fft/1009/", "signal/rfft/400/", "signal/irfft/33/"];
    pass(&Interpreter::plain(), &names);
    pass(&Interpreter::rich(32), &names);
}
