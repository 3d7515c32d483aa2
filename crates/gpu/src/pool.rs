//! Things of which there are so many: whoever has one gives it back by dropping it.

use std::sync::{Arc, Mutex, PoisonError};

/// Things that whoever drops them gives back.
pub(crate) type Returned<T> = Arc<Mutex<Vec<T>>>;

pub(crate) fn give_back<T>(to: &Returned<T>, item: T) {
    to.lock().unwrap_or_else(PoisonError::into_inner).push(item);
}

/// All that has been given back since this was last called.
pub(crate) fn taken<T>(from: &Returned<T>) -> Vec<T> {
    std::mem::take(&mut *from.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Numbers that are handed out one by one: slots, pages.
pub(crate) struct Pool {
    free: Returned<u32>,
}

/// A number out of a pool.
pub(crate) struct Lease {
    pub(crate) index: u32,
    free: Returned<u32>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        give_back(&self.free, self.index);
    }
}

impl Pool {
    /// All numbers below `size`.
    pub(crate) fn new(size: usize) -> Self {
        Self { free: Arc::new(Mutex::new((0..size as u32).rev().collect())) }
    }

    pub(crate) fn free(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn take(&self) -> Option<Lease> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Some(Lease { index: free?, free: Arc::clone(&self.free) })
    }
}
