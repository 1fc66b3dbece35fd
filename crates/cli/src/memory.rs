//! Whether a model fits this machine, asked before its weights are made.

use olivine::ir::{Graph, ValueId};

use crate::answer::Failure;
use crate::timing::bytes;

/// Bytes of memory in all and free for use, where the system says.
pub(crate) fn total_and_available() -> Option<(usize, usize)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

/// Refuses a graph whose inputs and params do not fit: making them would end the process, not give an error.
pub(crate) fn check_fits(graph: &Graph) -> Result<(), Failure> {
    let needed = graph
        .inputs()
        .chain(graph.params())
        .map(|(_, id): (&str, ValueId)| graph.ty(id).map_or(0, |ty| ty.bytes()))
        .fold(0usize, usize::saturating_add);
    match total_and_available() {
        // Packing keeps a second copy of the weights for a moment.
        Some((_, available)) if needed.saturating_mul(2) > available => Err(Failure::new(format!(
            "the model needs {} for inputs and weights and as much again to pack them; {} are available",
            bytes(needed),
            bytes(available)
        ))
        .hint("use smaller sizes")),
        _ => Ok(()),
    }
}
