//! Slices of one allocation.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// A slice of an allocation that others share; clones share it too.
///
/// What has many short lists keeps them in one allocation: a copy with other numbers is then one allocation as well,
/// however many lists there are.
#[derive(Debug)]
pub struct SharedSlice<T> {
    all: Arc<[T]>,
    range: Range<usize>,
}

impl<T> SharedSlice<T> {
    /// A part of an allocation; none of it where there is no such part.
    pub fn new(all: &Arc<[T]>, range: Range<usize>) -> Self {
        let range = if all.get(range.clone()).is_some() { range } else { 0..0 };
        SharedSlice { all: all.clone(), range }
    }

    /// Where it begins in its allocation.
    pub fn start(&self) -> usize {
        self.range.start
    }

    /// The allocation.
    pub fn all(&self) -> &Arc<[T]> {
        &self.all
    }

    /// The same part of another allocation.
    pub fn part_of(&self, all: &Arc<[T]>) -> Self {
        SharedSlice::new(all, self.range.clone())
    }
}

impl<T: Clone> SharedSlice<T> {
    /// Its elements, to be changed; others that share the allocation keep theirs.
    pub fn make_mut(&mut self) -> &mut [T] {
        if Arc::get_mut(&mut self.all).is_none() {
            *self = self.iter().cloned().collect();
        }
        let range = self.range.clone();
        Arc::get_mut(&mut self.all).and_then(|all| all.get_mut(range)).unwrap_or_default()
    }

    /// Moves slices into one allocation, in order, and returns that.
    pub fn join<'a>(slices: impl IntoIterator<Item = &'a mut Self>) -> Arc<[T]>
    where
        T: 'a,
    {
        let slices: Vec<&mut Self> = slices.into_iter().collect();
        let all: Arc<[T]> = slices.iter().flat_map(|slice| slice.iter().cloned()).collect();
        let mut start = 0;
        for slice in slices {
            let range = start..start + slice.len();
            start = range.end;
            *slice = SharedSlice::new(&all, range);
        }
        all
    }
}

impl<T> Clone for SharedSlice<T> {
    fn clone(&self) -> Self {
        SharedSlice { all: self.all.clone(), range: self.range.clone() }
    }
}

impl<T> Deref for SharedSlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.all.get(self.range.clone()).unwrap_or_default()
    }
}

impl<T> Default for SharedSlice<T> {
    fn default() -> Self {
        SharedSlice { all: Arc::new([]), range: 0..0 }
    }
}

impl<T> From<Vec<T>> for SharedSlice<T> {
    fn from(all: Vec<T>) -> Self {
        SharedSlice { range: 0..all.len(), all: all.into() }
    }
}

impl<T> FromIterator<T> for SharedSlice<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        Vec::from_iter(all).into()
    }
}

impl<T: PartialEq> PartialEq for SharedSlice<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for SharedSlice<T> {}

impl<'a, T> IntoIterator for &'a SharedSlice<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_slices_share_an_allocation_and_change_alone() {
        let mut slices = [SharedSlice::from(vec![1, 2]), SharedSlice::default(), SharedSlice::from(vec![3])];
        let all = SharedSlice::join(&mut slices);
        assert_eq!(*all, [1, 2, 3]);
        assert!(slices.iter().all(|slice| Arc::ptr_eq(slice.all(), &all)));
        assert_eq!((slices[2].start(), &*slices[2]), (2, &[3][..]));
        slices[0].make_mut()[1] = 7;
        assert_eq!((&*slices[0], &*slices[2], &*all), (&[1, 7][..], &[3][..], &[1, 2, 3][..]));
        let others: Arc<[i32]> = vec![4, 5, 6].into();
        assert_eq!(*slices[2].part_of(&others), [6]);
        assert!(slices[2].part_of(&vec![4].into()).is_empty(), "there is no such part");
    }
}
