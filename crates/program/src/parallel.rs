//! Work on several threads, for drivers that build pipelines.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Calls `work` with every item, on as many threads as the processor has, and returns the results in order: all of them, or
/// the first error. Without threads (browsers) the caller's does all.
pub fn in_parallel<T: Sync, R: Send, E: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(items.len());
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<R, E>)>> = Mutex::default();
    let take = || {
        while let Some((i, item)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            items.get(i).map(|item| (i, item))
        } {
            let result = work(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where no thread is to be had, this one does the work.
            let _ = std::thread::Builder::new().name("olivine pipelines".into()).spawn_scoped(scope, take);
        }
        take();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::in_parallel;

    #[test]
    fn results_are_in_order_and_the_first_error_wins() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(in_parallel(&items, |i| Ok::<_, u32>(i * 2)), Ok((0..100).map(|i| i * 2).collect()));
        assert_eq!(in_parallel(&items, |i| if *i < 40 { Ok(*i) } else { Err(*i) }), Err(40));
        assert_eq!(in_parallel(&[], |i: &u32| Ok::<_, u32>(*i)), Ok(vec![]));
    }
}
