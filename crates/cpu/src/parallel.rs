//! Work on all threads, through function pointers.
//!
//! Every closure handed straight to rayon is compiled with a copy of rayon's machinery; with kernels for eleven element
//! types that was half of this crate. These few functions are compiled once, and one indirect call per task costs nothing.

use bytemuck::Pod;

/// What happens to a chunk: its number, and its elements.
pub(crate) type Task<'a, T> = &'a (dyn Fn(usize, &mut [T]) + Sync);

/// What happens to chunks of two slices with one number.
pub(crate) type Task2<'a, T, U> = &'a (dyn Fn(usize, &mut [T], &mut [U]) + Sync);

/// How many threads share work.
pub(crate) fn threads() -> usize {
    rayon::current_num_threads()
}

/// Calls `task` with every number below `count`.
pub(crate) fn tasks(count: usize, task: &(dyn Fn(usize) + Sync)) {
    halves(0, count, task);
}

fn halves(first: usize, last: usize, task: &(dyn Fn(usize) + Sync)) {
    match last - first {
        0 => {}
        1 => task(first),
        count => {
            let middle = first + count / 2;
            rayon::join(|| halves(first, middle, task), || halves(middle, last, task));
        }
    }
}

/// Calls `task` with the number and the elements of every chunk of `size` elements; the last may be shorter.
pub(crate) fn chunks<T: Pod>(out: &mut [T], size: usize, task: Task<'_, T>) {
    let bytes = size.max(1).saturating_mul(size_of::<T>());
    pairs(bytemuck::cast_slice_mut(out), bytes, &mut [], 0, 0, &|i, chunk, _| {
        task(i, bytemuck::cast_slice_mut(chunk));
    });
}

/// [`chunks`] of `size` elements too small for a task each: a task takes `least` of them.
pub(crate) fn grouped<T: Pod>(out: &mut [T], size: usize, least: usize, task: Task<'_, T>) {
    let (size, least) = (size.max(1), least.max(1));
    chunks(out, size.saturating_mul(least), &|group, part| {
        part.chunks_mut(size).enumerate().for_each(|(i, chunk)| task(group * least + i, chunk));
    });
}

/// [`chunks`] of items that are not plain bytes.
pub(crate) fn parts<R: Send>(items: &mut [R], size: usize, task: Task<'_, R>) {
    fn halve<R: Send>(items: &mut [R], size: usize, first: usize, task: Task<'_, R>) {
        let count = items.len().div_ceil(size);
        if count <= 1 {
            if count == 1 {
                task(first, items);
            }
            return;
        }
        let half = count / 2;
        let (a, b) = items.split_at_mut(half * size);
        rayon::join(|| halve(a, size, first, task), || halve(b, size, first + half, task));
    }
    halve(items, size.max(1), 0, task);
}

/// [`chunks`] of two slices side by side; the second may be shorter or empty.
pub(crate) fn chunks2<T: Pod, U: Pod>(
    (first, size): (&mut [T], usize),
    (second, second_size): (&mut [U], usize),
    task: Task2<'_, T, U>,
) {
    let bytes = size.max(1) * size_of::<T>();
    let second_bytes = second_size * size_of::<U>();
    let (a, b) = (bytemuck::cast_slice_mut(first), bytemuck::cast_slice_mut(second));
    pairs(a, bytes, b, second_bytes, 0, &|i, a, b| {
        task(i, bytemuck::cast_slice_mut(a), bytemuck::cast_slice_mut(b));
    });
}

/// Splits both slices at the same chunk until one chunk is left.
fn pairs(a: &mut [u8], a_size: usize, b: &mut [u8], b_size: usize, first: usize, task: Task2<'_, u8, u8>) {
    let count = a.len().div_ceil(a_size);
    if count <= 1 {
        if count == 1 {
            task(first, a, b);
        }
        return;
    }
    let half = count / 2;
    let (a1, a2) = a.split_at_mut(half * a_size);
    let (b1, b2) = b.split_at_mut((half * b_size).min(b.len()));
    rayon::join(
        || pairs(a1, a_size, b1, b_size, first, task),
        || pairs(a2, a_size, b2, b_size, first + half, task),
    );
}

/// The results of `task` for every number below `count`, in order.
pub(crate) fn map<A: Send>(count: usize, task: &(dyn Fn(usize) -> A + Sync)) -> Vec<A> {
    let slots: Vec<std::sync::Mutex<Option<A>>> = (0..count).map(|_| std::sync::Mutex::new(None)).collect();
    tasks(count, &|i| {
        let result = task(i);
        *slots[i].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(result);
    });
    slots
        .into_iter()
        .filter_map(|s| s.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
        .collect()
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
    fn results_come_in_order() {
        assert_eq!(map(100, &|i| i * i), (0..100).map(|i| i * i).collect::<Vec<_>>());
        assert!(map::<u8>(0, &|_| 0).is_empty());
    }
}
