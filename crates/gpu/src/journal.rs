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

    /// The first submission up to `last` that has not been waited for, and its moment.
    pub(crate) fn unsettled(&self, last: Ticket) -> Option<(Ticket, Moment)> {
        self.pending.front().copied().filter(|&(ticket, _)| ticket <= last)
    }

    /// The first of them has run, or was lost before.
    pub(crate) fn settle(&mut self) {
        if let Some((_, moment)) = self.pending.pop_front() {
            self.settled = self.settled.max(moment);
        }
    }

    /// The first of them failed: so did all that is under way, as it may be built on what that one should have left.
    pub(crate) fn spoilt(&mut self, error: &DeviceError) -> BackendError {
        self.pending.pop_front();
        self.lose();
        BackendError::Device(error.to_string())
    }

    /// The device refused something: what it was given since the last submission is lost, and what is under way not to be
    /// relied on.
    pub(crate) fn failed(&mut self, error: &DeviceError) -> BackendError {
        self.now += 1;
        self.lose();
        BackendError::Device(error.to_string())
    }

    /// Loses all before now that is not settled.
    fn lose(&mut self) {
        let (first, last) = (self.settled + 1, self.now - 1);
        match self.lost.last_mut().filter(|before| *before.end() + 1 == first) {
            Some(before) => *before = *before.start()..=last.max(*before.end()),
            None if first <= last => self.lost.push(first..=last),
            None => {}
        }
        self.settled = self.settled.max(last);
    }

    /// Whether what was given at a moment has run, or is lost.
    pub(crate) fn is_settled(&self, moment: Moment) -> bool {
        moment <= self.settled
    }

    /// Refuses `what` if it was made from a moment on and some of it was lost; else gives one at which all of it has run. All of it
    /// is settled.
    pub(crate) fn check_since(&self, began: Moment, what: &str) -> Result<Moment, BackendError> {
        let lost = self.lost.iter().find(|lost| *lost.end() >= began).map(|lost| *lost.end());
        self.check(lost.unwrap_or(self.settled), what).map(|()| self.settled)
    }

    /// Whether what was given at a moment is lost.
    pub(crate) fn is_lost(&self, moment: Moment) -> bool {
        self.lost.iter().any(|lost| lost.contains(&moment))
    }

    /// Refuses `what` if it was made at a moment that was lost.
    pub(crate) fn check(&self, moment: Moment, what: &str) -> Result<(), BackendError> {
        if self.is_lost(moment) {
            return Err(BackendError::Device(format!("{what} was lost when the device failed")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_several_moments_is_lost_with_any_of_them() {
        let error = DeviceError::Failed { name: "a device".into(), problem: "gone".into() };
        let mut journal = Journal::new();
        let began = journal.now();
        journal.submitted(Ticket(1));
        journal.submitted(Ticket(2));
        assert!(!journal.is_settled(began));
        journal.settle();
        journal.settle();
        assert!(journal.is_settled(began));
        let sound = journal.check_since(began, "it").expect("all has run");
        let again = journal.now();
        journal.submitted(Ticket(3));
        journal.spoilt(&error);
        journal.submitted(Ticket(4));
        journal.settle();
        assert!(journal.check_since(again, "it").is_err() && journal.check_since(began, "it").is_err());
        assert!(journal.check(sound, "it").is_ok(), "what had run before stays");
        assert!(journal.check_since(journal.now(), "it").is_ok());
    }

    #[test]
    fn what_is_not_settled_goes_with_a_failure() {
        let error = DeviceError::Failed { name: "a device".into(), problem: "gone".into() };
        let mut journal = Journal::new();
        let sound = journal.now();
        journal.submitted(Ticket(1));
        assert_eq!(journal.unsettled(Ticket(1)), Some((Ticket(1), sound)));
        journal.settle();
        let waiting = journal.now();
        journal.submitted(Ticket(2));
        let open = journal.now();
        assert_eq!(journal.unsettled(Ticket(1)), None);
        let lost = |journal: &Journal| [sound, waiting, open].map(|moment| journal.check(moment, "it").is_err());
        journal.spoilt(&error);
        assert_eq!(lost(&journal), [false, true, false], "copies that wait for a submission don't belong to it");
        assert_eq!(journal.unsettled(Ticket(9)), None);
        journal.submitted(Ticket(3));
        for _ in 0..3 {
            journal.failed(&error);
        }
        assert_eq!(lost(&journal), [false, true, true]);
        assert_eq!(journal.lost.len(), 1, "failures in a row are one");
        assert!(journal.unsettled(Ticket(3)).is_some(), "a refusal ends nothing that is under way");
        journal.settle();
        let after = journal.now();
        assert!(journal.check(after, "it").is_ok());
        journal.submitted(Ticket(4));
        journal.settle();
        journal.failed(&error);
        assert_eq!(journal.lost.len(), 2);
        assert!(journal.check(after, "it").is_ok());
    }
}
