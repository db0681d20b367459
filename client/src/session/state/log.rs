//! A list of turns that counts its reads. The cost of a turn must not depend on the number of earlier turns;
//! unlike a time, a count shows that on any machine.
//!
//! Only [`super::State`] owns one. It must never hand out its elements uncounted.

use std::{cell::Cell, ops::Range, slice};

/// A list that grows at its end.
#[derive(Clone)]
pub(crate) struct TurnLog<T> {
    items: Vec<T>,
    reads: Cell<u64>,
}

impl<T> TurnLog<T> {
    pub(super) fn new() -> Self {
        Self { items: Vec::new(), reads: Cell::new(0) }
    }

    /// Element reads so far, repeated reads included.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.get()
    }

    fn count(&self, elements: usize) {
        self.reads.set(self.reads.get().wrapping_add(elements as u64));
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn get(&self, position: usize) -> Option<&T> {
        self.count(1);
        self.items.get(position)
    }

    pub(super) fn get_mut(&mut self, position: usize) -> Option<&mut T> {
        self.count(1);
        self.items.get_mut(position)
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.get(0)
    }

    pub(crate) fn last(&self) -> Option<&T> {
        self.count(1);
        self.items.last()
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut T> {
        self.count(1);
        self.items.last_mut()
    }

    /// All elements; counts each of them.
    pub(crate) fn all(&self) -> &[T] {
        self.count(self.items.len());
        &self.items
    }

    /// The elements in a range, each counted when it is reached.
    pub(crate) fn iter_range(&self, range: Range<usize>) -> Iter<'_, T> {
        let end = range.end.min(self.items.len());
        let found = self.items.get(range.start..end).unwrap_or_default();
        Iter { items: found.iter(), reads: &self.reads }
    }

    /// The elements, each counted when it is reached.
    pub(crate) fn iter(&self) -> Iter<'_, T> {
        self.iter_range(0..self.items.len())
    }

    pub(crate) fn partition_point(&self, mut before: impl FnMut(&T) -> bool) -> usize {
        self.items.partition_point(|item| {
            self.count(1);
            before(item)
        })
    }

    pub(super) fn push(&mut self, item: T) {
        self.items.push(item);
    }

    pub(super) fn split_off(&mut self, position: usize) -> Vec<T> {
        self.items.split_off(position)
    }
}

impl<'a, T> IntoIterator for &'a TurnLog<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

/// Elements of a [`TurnLog`].
pub(crate) struct Iter<'a, T> {
    items: slice::Iter<'a, T>,
    reads: &'a Cell<u64>,
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        let next = self.items.next()?;
        self.reads.set(self.reads.get().wrapping_add(1));
        Some(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl<T> DoubleEndedIterator for Iter<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let next = self.items.next_back()?;
        self.reads.set(self.reads.get().wrapping_add(1));
        Some(next)
    }
}

impl<T> ExactSizeIterator for Iter<'_, T> {}
