//! What a device's bindings allow, held against every dispatch before anything is built.

use olivine_program::{Addressing, DeviceCaps, Dispatch, Error, Program};

/// Refuses dispatches with more buffers than the device binds, or larger ones; all of them at once.
pub(super) fn check_bindings(program: &Program, caps: &DeviceCaps) -> Result<(), Error> {
    let Addressing::Bindings { max_bytes, max_count, .. } = caps.addressing else { return Ok(()) };
    let mut nodes: Vec<String> = Vec::new();
    for dispatch in program.load.iter().chain(&program.run) {
        if let Some(problem) = problem(program, dispatch, max_bytes, max_count) {
            nodes.push(format!("{} `{}`: {problem}", dispatch.op, dispatch.node));
        }
    }
    // A node may have several dispatches with one problem.
    nodes.dedup();
    if nodes.is_empty() { Ok(()) } else { Err(Error::Unsupported { device: caps.name.clone(), nodes }) }
}

fn problem(program: &Program, dispatch: &Dispatch, max_bytes: u64, max_count: u32) -> Option<String> {
    let kernel = program.kernel(dispatch);
    if kernel.args.len() > max_count as usize {
        return Some(format!("{} buffers, the device binds {max_count} at once", kernel.args.len()));
    }
    let slices = dispatch.args.iter().zip(&kernel.args);
    let (slice, arg) = slices.max_by_key(|(slice, _)| slice.bytes)?;
    (slice.bytes > max_bytes)
        .then(|| format!("`{}` has {} bytes, the device binds {max_bytes} at once", arg.name, slice.bytes))
}
