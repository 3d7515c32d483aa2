//! What the handles and the engine's thread share: the queue, the stage of life, the counters.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::fairness::Rotation;
use crate::request::SubmitError;
use crate::sequence::Job;
use crate::{CacheStats, Event, Stats};

/// How often the engine's thread looks up while it has nothing but requests that wait: their clients may go, or their
/// patience may end.
const GLANCE: Duration = Duration::from_millis(200);
/// Bounds of the advice to come again.
const RETRY_AT_LEAST: Duration = Duration::from_secs(1);
const RETRY_AT_MOST: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Takes requests.
    Open,
    /// Takes none, ends what it has.
    Draining,
    /// Breaks off what it has.
    Aborting,
    /// The thread has ended, as it was told to.
    Ended,
    /// The thread died, or never was.
    Dead,
}

/// A queue that knows its bound and a place to wait for a change of anything.
pub(crate) struct Inbox {
    parallel: usize,
    /// Requests that may run and wait, together.
    capacity: usize,
    shared: Mutex<Shared>,
    changed: Condvar,
}

struct Shared {
    stage: Stage,
    queue: VecDeque<Job>,
    rotation: Rotation,
    running: usize,
    /// The clients of requests that the engine's thread has taken from the queue and that wait for something there.
    parked: Vec<u64>,
    /// Moving average of the time from a request's start to its end.
    reply_time: Option<Duration>,
    steps: u64,
    prefilled_tokens: u64,
    generated_tokens: u64,
    cache: CacheStats,
    /// Something has happened that no queue shows.
    woken: bool,
}

impl Shared {
    /// Requests that run or wait.
    fn taken(&self) -> usize {
        self.running + self.waiting()
    }

    fn waiting(&self) -> usize {
        self.parked.len() + self.queue.len()
    }
}

/// What the engine's thread finds when it looks up between two steps.
pub(crate) struct Turn {
    /// Requests to start.
    pub(crate) jobs: Vec<Job>,
    /// Likewise, of those that have waited for something: their places among these.
    pub(crate) parked: Vec<usize>,
    /// Requests that still wait.
    pub(crate) waiting: usize,
    pub(crate) stage: Stage,
}

/// What a step did.
#[derive(Default)]
pub(crate) struct Progress {
    /// Calls of the backend that came to their end.
    pub(crate) steps: u64,
    pub(crate) prefilled_tokens: u64,
    pub(crate) generated_tokens: u64,
    /// From start to end, of each reply that ended.
    pub(crate) reply_times: Vec<Duration>,
}

impl Inbox {
    pub(crate) fn new(parallel: usize, queue: usize) -> Self {
        let shared = Shared {
            stage: Stage::Open,
            queue: VecDeque::new(),
            rotation: Rotation::default(),
            running: 0,
            parked: Vec::new(),
            reply_time: None,
            steps: 0,
            prefilled_tokens: 0,
            generated_tokens: 0,
            cache: CacheStats::default(),
            woken: false,
        };
        let capacity = parallel.saturating_add(queue);
        Self { parallel, capacity, shared: Mutex::new(shared), changed: Condvar::new() }
    }

    /// Nothing that can panic runs under the lock, so a poisoned one is as good as any.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, job: Job) -> Result<(), SubmitError> {
        let mut shared = self.lock();
        match shared.stage {
            Stage::Open => {}
            Stage::Draining | Stage::Aborting | Stage::Ended => return Err(SubmitError::ShuttingDown),
            Stage::Dead => return Err(SubmitError::EngineGone),
        }
        if shared.taken() >= self.capacity {
            shared.queue.retain(|job| !job.events.cancelled());
        }
        if shared.taken() >= self.capacity && !self.lets_in(&shared, job.client) {
            return Err(SubmitError::QueueFull { retry_after: self.retry_after(&shared) });
        }
        shared.queue.push_back(job);
        drop(shared);
        self.changed.notify_all();
        Ok(())
    }

    /// Whether a client of which nothing waits gets a place in the full queue, as long as that is less than twice full.
    fn lets_in(&self, shared: &Shared, client: u64) -> bool {
        let queue = self.capacity.saturating_sub(self.parallel);
        let mut waiting = shared.queue.iter().map(|job| &job.client).chain(&shared.parked);
        shared.waiting() < queue.saturating_mul(2) && waiting.all(|waiting| *waiting != client)
    }

    /// When the next of the running replies may end, and with it the wait of one in the queue.
    fn retry_after(&self, shared: &Shared) -> Duration {
        let mean = shared.reply_time.unwrap_or(RETRY_AT_LEAST);
        (mean / u32::try_from(self.parallel).unwrap_or(u32::MAX)).clamp(RETRY_AT_LEAST, RETRY_AT_MOST)
    }

    /// Hands over what may start beside `running` sequences. Of the requests that wait for something, by these `parked` clients, those
    /// at the `ready` places have waited long enough. Without any of the former and the latter it waits until there is something to
    /// do, or [`Inbox::wake`] is called; while there are parked ones, not for long.
    pub(crate) fn next(&self, running: usize, parked: Vec<u64>, mut ready: Vec<usize>) -> Turn {
        let at_once = running > 0 || !ready.is_empty();
        let mut shared = self.lock();
        shared.parked = parked;
        let mut glanced = false;
        loop {
            shared.queue.retain(|job| !job.events.cancelled());
            let free = if shared.stage == Stage::Aborting { 0 } else { self.parallel.saturating_sub(running) };
            let Shared { queue, rotation, parked, .. } = &mut *shared;
            let (places, jobs) = rotation.take((parked, &mut ready), queue, free);
            shared.running = running + jobs.len();
            let ends = match shared.stage {
                Stage::Open => false,
                Stage::Draining => shared.parked.is_empty(),
                Stage::Aborting | Stage::Ended | Stage::Dead => true,
            };
            let woken = std::mem::take(&mut shared.woken);
            if at_once || !jobs.is_empty() || woken || glanced || ends {
                return Turn { jobs, parked: places, waiting: shared.queue.len(), stage: shared.stage };
            }
            if shared.parked.is_empty() {
                shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
            } else {
                let waited = self.changed.wait_timeout(shared, GLANCE).unwrap_or_else(PoisonError::into_inner);
                (shared, glanced) = (waited.0, waited.1.timed_out());
            }
        }
    }

    /// Whether [`Inbox::next`] should be called soon though a chunk is under way; `free` if there is a free place.
    pub(crate) fn calls(&self, free: bool) -> bool {
        let shared = self.lock();
        shared.woken || shared.stage == Stage::Aborting || (free && !shared.queue.is_empty())
    }

    /// Makes [`Inbox::next`] return, now or when it is called next.
    pub(crate) fn wake(&self) {
        self.lock().woken = true;
        self.changed.notify_all();
    }

    /// What there is now: sequences, the clients of requests that wait outside of the queue, and what the cache says of itself.
    pub(crate) fn report(&self, running: usize, parked: Vec<u64>, cache: CacheStats) {
        let mut shared = self.lock();
        (shared.running, shared.parked, shared.cache) = (running, parked, cache);
    }

    /// Counts a step.
    pub(crate) fn count(&self, progress: &Progress) {
        let mut shared = self.lock();
        shared.steps += progress.steps;
        shared.prefilled_tokens += progress.prefilled_tokens;
        shared.generated_tokens += progress.generated_tokens;
        for &time in &progress.reply_times {
            shared.reply_time = Some(shared.reply_time.map_or(time, |mean| (mean * 7 + time) / 8));
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let shared = self.lock();
        Stats {
            accepting: shared.stage == Stage::Open,
            running: shared.running,
            queued: shared.waiting(),
            steps: shared.steps,
            prefilled_tokens: shared.prefilled_tokens,
            generated_tokens: shared.generated_tokens,
            cache: shared.cache,
        }
    }

    pub(crate) fn drain(&self) {
        self.advance(Stage::Draining, &[Stage::Open]);
    }

    pub(crate) fn abort(&self) {
        self.advance(Stage::Aborting, &[Stage::Open, Stage::Draining]);
    }

    fn advance(&self, to: Stage, from: &[Stage]) {
        let mut shared = self.lock();
        if from.contains(&shared.stage) {
            shared.stage = to;
        }
        drop(shared);
        self.changed.notify_all();
    }

    /// False if `limit` passed first.
    pub(crate) fn wait_until_gone(&self, limit: Option<Duration>) -> bool {
        let here = |shared: &mut Shared| !matches!(shared.stage, Stage::Ended | Stage::Dead);
        let shared = self.lock();
        match limit {
            None => {
                drop(self.changed.wait_while(shared, here).unwrap_or_else(PoisonError::into_inner));
                true
            }
            Some(limit) => {
                let waited = self.changed.wait_timeout_while(shared, limit, here);
                !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
            }
        }
    }

    /// Nobody reads the queue any more: whoever waits in it is told.
    fn close(&self, stage: Stage, message: &str) {
        let mut shared = self.lock();
        shared.stage = stage;
        shared.running = 0;
        shared.parked.clear();
        let queue = std::mem::take(&mut shared.queue);
        drop(shared);
        self.changed.notify_all();
        for job in queue {
            job.events.send(Event::Failed(message.into()));
        }
    }
}

/// Held by the engine's thread. Dropped in a panic, it lets nobody wait for a thread that is gone.
pub(crate) struct Alive {
    inbox: Arc<Inbox>,
    told: bool,
}

impl Alive {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Self {
        Self { inbox, told: false }
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// The thread ends because it was told to.
    pub(crate) fn end(mut self) {
        self.told = true;
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let (stage, reason) =
            if self.told { (Stage::Ended, SubmitError::ShuttingDown) } else { (Stage::Dead, SubmitError::EngineGone) };
        self.inbox.close(stage, &reason.to_string());
    }
}
