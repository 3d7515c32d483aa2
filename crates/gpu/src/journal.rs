//! What became of what the device was given. It tells of a failure late, when a submission is waited for, and by then copies
//! may have gone with it that nobody asked about: those of a snapshot, those that a sequence began with. So whatever
//! is made by copies keeps the moment of them, and moments are settled or lost.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use lily_backend::BackendError;

use crate::device::{DeviceError, Ticket};

/// What the device is given until a submission begins. It runs with that submission, and fares as it does.
pub(crate) type Moment = u64;

/// Submissions that have not been waited for, and what was lost in those that failed.
pub(crate) struct Journal {
    now: Moment,
    /// What was given up to then has run, or is lost.
    settled: Moment,
    /// Under way, with the moment that each ended.
    pending: VecDeque<(Ticket, Moment)>,
    lost: Vec<RangeInclusive<Moment>>,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Self { now: 1, settled: 0, pending: VecDeque::new(), lost: Vec::new() }
    }

    /// That of whatever the device is given next.
    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    /// What was given so far is under way.
    pub(crate) fn submitted(&mut self, ticket: Ticket) {
        self.pending.push_back((ticket, self.now));
        self.now += 1;
    }

    /// The first submission up to `last` that has not been waited for.
    pub(crate) fn unsettled(&self, last: Ticket) -> Option<Ticket> {
        self.pending.front().map(|&(ticket, _)| ticket).filter(|&ticket| ticket <= last)
    }

    /// The first of them has run.
    pub(crate) fn settle(&mut self) {
        if let Some((_, moment)) = self.pending.pop_front() {
            self.settled = moment;
        }
    }

    /// The device failed: whatever has not been settled is lost, as it may be built on what failed.
    pub(crate) fn failed(&mut self, error: &DeviceError) -> BackendError {
        let first = self.settled + 1;
        match self.lost.last_mut().filter(|last| *last.end() + 1 == first) {
            Some(last) => *last = *last.start()..=self.now,
            None => self.lost.push(first..=self.now),
        }
        self.settled = self.now;
        self.now += 1;
        self.pending.clear();
        BackendError::Device(error.to_string())
    }

    /// Refuses `what` if it was made at a moment that was lost.
    pub(crate) fn check(&self, moment: Moment, what: &str) -> Result<(), BackendError> {
        if self.lost.iter().any(|lost| lost.contains(&moment)) {
            return Err(BackendError::Device(format!("{what} was lost when the device failed")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_settled_goes_with_a_failure() {
        let error = DeviceError::Failed { name: "a device".into(), problem: "gone".into() };
        let mut journal = Journal::new();
        let sound = journal.now();
        journal.submitted(Ticket(1));
        assert_eq!(journal.unsettled(Ticket(1)), Some(Ticket(1)));
        journal.settle();
        let waiting = journal.now();
        journal.submitted(Ticket(2));
        let open = journal.now();
        assert_eq!(journal.unsettled(Ticket(1)), None);
        for _ in 0..3 {
            journal.failed(&error);
        }
        assert_eq!(journal.unsettled(Ticket(9)), None);
        assert_eq!(journal.lost.len(), 1, "failures in a row are one");
        let after = journal.now();
        let lost = [sound, waiting, open, after].map(|moment| journal.check(moment, "it").is_err());
        assert_eq!(lost, [false, true, true, false]);
        journal.submitted(Ticket(3));
        journal.settle();
        journal.failed(&error);
        assert_eq!(journal.lost.len(), 2);
        assert!(journal.check(after, "it").is_ok());
    }
}
