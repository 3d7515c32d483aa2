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
/// Of what a server asks for.
const LONGEST_AFTER: Duration = Duration::from_secs(300);
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
}

/// Counts the failures in a row.
pub(super) struct Patience {
    failures: u32,
    most: u32,
}

impl Patience {
    /// With at most so many tries, whatever fails.
    pub(super) fn new(most: u32) -> Self {
        Self { failures: 0, most }
    }

    /// Something has come of it.
    pub(super) fn restore(&mut self) {
        self.failures = 0;
    }

    /// Waits until it makes sense to try again, or gives the failure back if it makes none.
    pub(super) fn wait(&mut self, failure: Failure, stop: &AtomicBool) -> Result<(), Failure> {
        self.failures += 1;
        if self.failures >= failure.tries.min(self.most) {
            return Err(match self.failures {
                1 => failure,
                times => Failure { message: format!("{} ({times} times in a row)", failure.message), ..failure },
            });
        }
        let wait = failure.after.map_or_else(
            || FIRST_WAIT.saturating_mul(1 << (self.failures - 1).min(16)).min(LONGEST_WAIT),
            |after| after.min(LONGEST_AFTER),
        );
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
    use super::{Failure, Patience};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn patience_ends_and_is_restored() {
        // Nobody waits for what has been stopped.
        let stop = AtomicBool::new(true);
        let mut patience = Patience::new(9);
        assert_eq!(patience.wait(Failure::lasting("no"), &stop).unwrap_err().message, "no");
        patience.restore();
        for _ in 0..4 {
            patience.wait(Failure::server("busy"), &stop).unwrap();
        }
        assert_eq!(patience.wait(Failure::server("busy"), &stop).unwrap_err().message, "busy (5 times in a row)");
        let mut patience = Patience::new(2);
        patience.wait(Failure::network("gone"), &stop).unwrap();
        patience.wait(Failure::network("gone"), &stop).unwrap_err();
    }
}
