//! Failures of requests, and how long to go on in spite of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

/// Why a request brought nothing.
#[derive(Debug)]
pub(super) struct Failure {
    /// What was wrong, and what to do about it.
    pub(super) message: String,
    /// Times that it is worth to try, this one included.
    pub(super) tries: u32,
    /// The server says when to come again.
    pub(super) after: Option<Duration>,
    /// An address that was good for some time is no longer.
    pub(super) expired: bool,
}

/// A network comes back after a while: about 40 seconds.
const NETWORK: u32 = 10;
/// A server that is in trouble, or answers nonsense, is not helped by asking on: about 4 seconds.
const SERVER: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(8);
/// Of what a server asks for, while a download is under way.
pub(super) const LONGEST_AFTER: Duration = Duration::from_secs(300);
/// A wait that is no longer needs no word.
const UNSAID: Duration = Duration::from_secs(2);
/// How soon a wait sees that it is for nothing.
const GLANCE: Duration = Duration::from_millis(50);

impl Failure {
    /// One that trying again does not mend.
    pub(super) fn lasting(message: impl Into<String>) -> Self {
        Self { message: message.into(), tries: 1, after: None, expired: false }
    }

    /// The connection failed.
    pub(super) fn network(message: impl Into<String>) -> Self {
        Self { tries: NETWORK, ..Self::lasting(message) }
    }

    /// The server failed.
    pub(super) fn server(message: impl Into<String>) -> Self {
        Self { tries: SERVER, ..Self::lasting(message) }
    }

    /// Whether it may pass by itself.
    pub(super) fn may_pass(&self) -> bool {
        self.tries > 1
    }
}

/// Counts the failures in a row.
pub(super) struct Patience {
    failures: u32,
    most: u32,
    longest_after: Duration,
}

impl Patience {
    /// With at most so many tries, whatever fails, and at most such waits, whatever a server asks for.
    pub(super) fn new(most: u32, longest_after: Duration) -> Self {
        Self { failures: 0, most, longest_after }
    }

    /// Something has come of it.
    pub(super) fn restore(&mut self) {
        self.failures = 0;
    }

    /// Waits until it makes sense to try again, or gives the failure back if it makes none. `say` is told of waits that
    /// people notice, with what failed.
    pub(super) fn wait(
        &mut self,
        failure: Failure,
        stop: &AtomicBool,
        say: impl FnOnce(&str, Duration),
    ) -> Result<(), Failure> {
        self.failures += 1;
        if self.failures >= failure.tries.min(self.most) {
            return Err(match self.failures {
                1 => failure,
                times => Failure { message: format!("{} ({times} times in a row)", failure.message), ..failure },
            });
        }
        let wait = failure.after.map_or_else(
            || FIRST_WAIT.saturating_mul(1 << (self.failures - 1).min(16)).min(LONGEST_WAIT),
            |after| after.min(self.longest_after),
        );
        if wait > UNSAID {
            say(&failure.message, wait);
        }
        let mut waited = Duration::ZERO;
        while waited < wait && !stop.load(Ordering::Relaxed) {
            sleep(GLANCE);
            waited += GLANCE;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, LONGEST_AFTER, Patience};
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn patience_ends_and_is_restored() {
        // Nobody waits for what has been stopped.
        let stop = AtomicBool::new(true);
        let wait = |patience: &mut Patience, failure| patience.wait(failure, &stop, |_, _| {});
        let mut patience = Patience::new(9, LONGEST_AFTER);
        assert_eq!(wait(&mut patience, Failure::lasting("no")).unwrap_err().message, "no");
        patience.restore();
        for _ in 0..4 {
            wait(&mut patience, Failure::server("busy")).unwrap();
        }
        assert_eq!(wait(&mut patience, Failure::server("busy")).unwrap_err().message, "busy (5 times in a row)");
        let mut patience = Patience::new(2, LONGEST_AFTER);
        wait(&mut patience, Failure::network("gone")).unwrap();
        wait(&mut patience, Failure::network("gone")).unwrap_err();
    }

    #[test]
    fn waits_that_people_notice_are_said_and_have_an_end() {
        let mut said = Vec::new();
        let mut patience = Patience::new(9, Duration::from_secs(30));
        for after in [0, 7, 3000] {
            let failure = Failure { after: Some(Duration::from_secs(after)), ..Failure::server("busy") };
            let say = |what: &str, wait| said.push((what.to_owned(), wait));
            patience.wait(failure, &AtomicBool::new(true), say).unwrap();
        }
        let busy = |seconds| ("busy".to_owned(), Duration::from_secs(seconds));
        assert_eq!(said, [busy(7), busy(30)]);
    }
}
