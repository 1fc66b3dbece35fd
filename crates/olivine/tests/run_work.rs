//! A run with new sizes walks no graph: its allocations are counted, and do not grow with the number of nodes.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use olivine::internals::models::seeded_params;
use olivine::prelude::*;
use olivine_ir::op::{Attention, HeadLayout};
use olivine_ir::{Error as GraphError, ValueId};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all memory is the system allocator's; this only counts what is asked of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The encoder of a transformer over `[batch, sequence, width]`.
fn encoder(layers: usize) -> Result<Graph, GraphError> {
    let (width, heads) = (32i64, 4i64);
    let mut g = Graph::new("encoder");
    let dims = vec![Some("batch".to_string()), Some("sequence".to_string()), None];
    let mut x = g.input_with_dims("x", DType::F32, [2, 20, width as usize], dims)?;
    for layer in 0..layers {
        let mut param = |name: &str, dims: &[usize]| g.param(&format!("{layer}.{name}"), DType::F32, dims);
        let w = width as usize;
        let [wq, wk, wv, wo] =
            [param("q", &[w, w])?, param("k", &[w, w])?, param("v", &[w, w])?, param("o", &[w, w])?];
        let (up, down) = (param("up", &[w, 2 * w])?, param("down", &[2 * w, w])?);
        let (gamma, beta) = (param("gamma", &[w])?, param("beta", &[w])?);
        let split = |g: &mut Graph, x: ValueId, by: ValueId| -> Result<ValueId, GraphError> {
            let y = g.matmul(x, by)?;
            g.reshape(y, &[0, 0, heads, width / heads])
        };
        let (q, k, v) = (split(&mut g, x, wq)?, split(&mut g, x, wk)?, split(&mut g, x, wv)?);
        let mixed = g.attention(Attention::new(HeadLayout::Bshd), q, k, v, &[])?;
        let mixed = g.reshape(mixed, &[0, 0, width])?;
        let mixed = g.matmul(mixed, wo)?;
        let sum = g.add(x, mixed)?;
        let y = g.layer_norm(sum, gamma, Some(beta), 1e-5)?;
        let hidden = g.matmul(y, up)?;
        let hidden = g.gelu(hidden)?;
        let hidden = g.matmul(hidden, down)?;
        let sum = g.add(y, hidden)?;
        x = g.softmax(sum, -1)?;
    }
    g.output("y", x)?;
    Ok(g)
}

/// Allocations of a run with sizes that have not come before, the arena being large enough, and of the same run again: the
/// fewest of several.
fn allocations(session: &Session, graph: &Graph) -> (usize, usize) {
    let executable = session.compile(graph).unwrap();
    executable.set_params(seeded_params(graph, 3).unwrap()).unwrap();
    let input = |batch: usize, sequence: usize| Tensor::zeros(DType::F32, [batch, sequence, 32]).unwrap();
    let largest = input(3, 23);
    for _ in 0..3 {
        executable.run([("x", &largest)]).unwrap();
        executable.run([("x", &input(2, 18))]).unwrap();
    }
    let plans = executable.compiled();
    let mut fewest = (usize::MAX, usize::MAX);
    for sequence in [17, 19, 21, 22] {
        let x = input(2, sequence);
        let mut y = input(2, sequence);
        let mut run = || {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            executable.run_into([("x", &x)], &mut [("y", &mut y)]).unwrap();
            ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        let (new, again) = (run(), run());
        fewest = (fewest.0.min(new), fewest.1.min(again));
    }
    assert_eq!(executable.compiled(), plans, "a plan serves these sizes");
    fewest
}

#[test]
fn new_sizes_cost_as_many_allocations_for_many_nodes_as_for_few() {
    for device in [Device::Cpu, Device::Vulkan] {
        let session = Session::new(device.clone()).unwrap();
        let [few, many] = [1, 12].map(|layers| {
            let (new, again) = allocations(&session, &encoder(layers).unwrap());
            println!("{device:?}: {layers} layers: {new} allocations with new sizes, {again} again");
            new.saturating_sub(again)
        });
        assert!(many <= few + 8, "{device:?}: {few} for one layer, {many} for twelve");
        assert!(many <= 80, "{device:?}: new sizes cost {many} allocations");
    }
}
