//! Work on all threads, through function pointers: these few functions are compiled once for all kernels, and one
//! indirect call per task costs nothing.

use std::marker::PhantomData;

use bytemuck::Pod;

pub(crate) use crate::thread_pool::{share as tasks, threads};

/// What happens to a chunk: its number, and its elements.
pub(crate) type Task<'a, T> = &'a (dyn Fn(usize, &mut [T]) + Sync);

/// What happens to chunks of two slices with one number.
pub(crate) type Task2<'a, T, U> = &'a (dyn Fn(usize, &mut [T], &mut [U]) + Sync);

/// A slice whose chunks go to different threads.
struct Chunks<'a, T> {
    first: *mut T,
    len: usize,
    size: usize,
    owner: PhantomData<&'a mut [T]>,
}

// Safety: a chunk's elements are handed out to one thread only, by the promise of `get`'s callers, and they may go to
// another thread: this module takes plain data and what is `Send`.
unsafe impl<T> Sync for Chunks<'_, T> {}

impl<'a, T> Chunks<'a, T> {
    fn new(items: &'a mut [T], size: usize) -> Self {
        Chunks { first: items.as_mut_ptr(), len: items.len(), size, owner: PhantomData }
    }

    /// The elements of chunk `i`; none past the end.
    ///
    /// # Safety
    /// Nobody else may hold the chunk meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn get(&self, i: usize) -> &mut [T] {
        let start = i.saturating_mul(self.size).min(self.len);
        let len = self.size.min(self.len - start);
        // Safety: inside the slice; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(start), len) }
    }
}

/// Calls `task` with the number and the elements of every chunk of `size` elements; the last may be shorter.
///
/// Chunks of no elements are a mistake of the caller's arithmetic, unless there is nothing to do.
pub(crate) fn chunks<T: Pod>(out: &mut [T], size: usize, task: Task<'_, T>) {
    each(out, size, task);
}

/// [`chunks`] of `size` elements too small for a task each: a task takes `least` of them.
pub(crate) fn grouped<T: Pod>(out: &mut [T], size: usize, least: usize, task: Task<'_, T>) {
    let (size, least) = (chunk_size(size, out.len()), least.max(1));
    chunks(out, size.saturating_mul(least), &|group, part| {
        part.chunks_mut(size).enumerate().for_each(|(i, chunk)| task(group * least + i, chunk));
    });
}

/// [`chunks`] of items that are not plain bytes.
pub(crate) fn parts<R: Send>(items: &mut [R], size: usize, task: Task<'_, R>) {
    each(items, size, task);
}

/// The size of chunks of `len` elements. A size of 0 must not become another one: a task would see elements of some
/// other chunk, or none, and leave its own unwritten.
fn chunk_size(size: usize, len: usize) -> usize {
    assert!(size > 0 || len == 0, "chunks of no elements cannot cover {len}");
    size.max(1)
}

fn each<R>(items: &mut [R], size: usize, task: Task<'_, R>) {
    let size = chunk_size(size, items.len());
    let count = items.len().div_ceil(size);
    let parts = Chunks::new(items, size);
    // Safety: every number comes once.
    tasks(count, &|i| task(i, unsafe { parts.get(i) }));
}

/// [`chunks`] of two slices side by side; the second may be shorter or empty.
pub(crate) fn chunks2<T: Pod, U: Pod>(
    (first, size): (&mut [T], usize),
    (second, second_size): (&mut [U], usize),
    task: Task2<'_, T, U>,
) {
    let size = chunk_size(size, first.len());
    let count = first.len().div_ceil(size);
    let (first, second) = (Chunks::new(first, size), Chunks::new(second, second_size));
    // Safety: every number comes once.
    tasks(count, &|i| task(i, unsafe { first.get(i) }, unsafe { second.get(i) }));
}

/// The results of `task` for every number below `count`, in order.
pub(crate) fn map<A: Send>(count: usize, task: &(dyn Fn(usize) -> A + Sync)) -> Vec<A> {
    let mut slots: Vec<Option<A>> = (0..count).map(|_| None).collect();
    parts(&mut slots, 1, &|i, slot| slot[0] = Some(task(i)));
    slots.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_comes_once_with_its_number() {
        for (len, size) in [(0, 3), (1, 3), (10, 3), (12, 3), (1000, 7)] {
            let mut out = vec![0u32; len];
            let mut beside = vec![0u64; len.div_ceil(size)];
            chunks2((&mut out, size), (&mut beside, 1), &|i, part, one| {
                part.iter_mut().for_each(|x| *x += i as u32 + 1);
                one[0] += i as u64;
            });
            assert!(out.iter().enumerate().all(|(i, x)| *x as usize == i / size + 1), "{len} by {size}");
            assert!(beside.iter().enumerate().all(|(i, x)| *x as usize == i));
        }
    }

    #[test]
    fn groups_and_parts_keep_the_numbers_of_their_chunks() {
        for (len, size, least) in [(0, 3, 2), (10, 3, 1), (10, 3, 2), (1000, 7, 5), (10, 3, usize::MAX)] {
            let mut out = vec![0u16; len];
            grouped(&mut out, size, least, &|i, chunk| chunk.iter_mut().for_each(|x| *x += i as u16 + 1));
            assert!(out.iter().enumerate().all(|(i, x)| *x as usize == i / size + 1), "{len} by {size}");
            let mut items: Vec<String> = vec![String::new(); len];
            parts(&mut items, size, &|i, part| part.iter_mut().for_each(|x| x.push_str(&i.to_string())));
            assert!(items.iter().enumerate().all(|(i, x)| *x == (i / size).to_string()));
        }
    }

    #[test]
    fn chunks_of_no_elements_are_refused_and_not_guessed() {
        let refused = |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
        assert!(refused(&|| chunks(&mut [1u8, 2], 0, &|_, _| {})));
        assert!(refused(&|| grouped(&mut [1u8, 2], 0, 3, &|_, _| {})));
        assert!(refused(&|| chunks2((&mut [1u8], 0), (&mut [1u8], 1), &|_, _, _| {})));
        chunks(&mut [0u8; 0], 0, &|_, _| panic!("there is nothing to do"));
        grouped(&mut [0u8; 0], 0, 3, &|_, _| panic!("there is nothing to do"));
    }

    #[test]
    fn results_come_in_order() {
        assert_eq!(map(100, &|i| i * i), (0..100).map(|i| i * i).collect::<Vec<_>>());
        assert!(map::<u8>(0, &|_| 0).is_empty());
    }
}
