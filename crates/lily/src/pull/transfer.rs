//! Files in parts, several at once; each file is checked as a whole before it gets its name.

use std::collections::VecDeque;
use std::io::{IsTerminal, Read, stderr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{DecimalBytes, ProgressBar};
use ureq::http::StatusCode;
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE};

use super::cache::Cache;
use super::hub::{Hub, header, shown};
use super::listing::RemoteFile;
use super::partial::Partial;
use super::patience::{Failure, LONGEST_AFTER, Patience};
use crate::terminal::tell;

/// Parts under way at once: one connection seldom gets all that a line can carry.
pub(super) const CONNECTIONS: usize = 8;
const BUFFER: usize = 256 << 10;

/// Downloads files that are not there. The first that cannot be had ends it all.
pub(super) fn download(hub: &Hub, cache: &Cache, files: Vec<RemoteFile>, bar: &ProgressBar) -> Result<()> {
    let files = files.into_iter().map(|file| Incoming::open(cache, file)).collect::<Result<Vec<_>>>()?;
    let jobs = files.iter().enumerate().flat_map(|(file, incoming)| incoming.jobs(file)).collect();
    let queue = Queue { jobs, unfinished: files.len(), failure: None };
    let transfer = Transfer {
        hub,
        cache,
        files,
        bar,
        queue: Mutex::new(queue),
        changed: Condvar::new(),
        stop: AtomicBool::new(false),
        told: Mutex::new(None),
    };
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| transfer.work());
        }
    });
    match transfer.queue().failure.take() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

struct Incoming {
    remote: RemoteFile,
    partial: Partial,
    /// Parts that are not there yet.
    left: AtomicUsize,
    /// Where the hub sends us for it, as long as that holds.
    address: Mutex<Option<String>>,
    /// It has been whole once, and not what it should be.
    spoiled: AtomicBool,
}

#[derive(Clone, Copy)]
enum Job {
    Part {
        file: usize,
        part: usize,
    },
    /// All parts are there.
    Complete {
        file: usize,
    },
}

struct Queue {
    jobs: VecDeque<Job>,
    unfinished: usize,
    failure: Option<anyhow::Error>,
}

struct Transfer<'a> {
    hub: &'a Hub,
    cache: &'a Cache,
    files: Vec<Incoming>,
    bar: &'a ProgressBar,
    queue: Mutex<Queue>,
    changed: Condvar,
    stop: AtomicBool,
    /// Until when people know that something is waited for.
    told: Mutex<Option<Instant>>,
}

impl Incoming {
    fn open(cache: &Cache, remote: RemoteFile) -> Result<Self> {
        let partial = Partial::open(&cache.blob(&remote), remote.size)?;
        let left = AtomicUsize::new(partial.absent().len());
        Ok(Self { remote, partial, left, address: Mutex::new(None), spoiled: AtomicBool::new(false) })
    }

    /// What is left to do when it is opened.
    fn jobs(&self, file: usize) -> Vec<Job> {
        match self.partial.absent() {
            none if none.is_empty() => vec![Job::Complete { file }],
            parts => parts.into_iter().map(|part| Job::Part { file, part }).collect(),
        }
    }
}

impl Transfer<'_> {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what there is to do, until nothing is left or something has failed.
    fn work(&self) {
        while let Some(job) = self.next() {
            let done = match job {
                Job::Part { file, part } => self.part(&self.files[file], part).map(|whole| {
                    if whole && self.files[file].left.fetch_sub(1, Ordering::AcqRel) == 1 {
                        self.queue().jobs.push_front(Job::Complete { file });
                        self.changed.notify_one();
                    }
                }),
                Job::Complete { file } => self.complete(file),
            };
            if let Err(error) = done {
                self.queue().failure.get_or_insert(error);
                self.stop.store(true, Ordering::Relaxed);
                self.changed.notify_all();
            }
        }
    }

    /// Waits for a job as long as one may come: a file that is not what it should be has to be fetched again.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            if queue.failure.is_some() || queue.unfinished == 0 {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Fetches a part, whatever happens to the connection in between; false if it was stopped before it was whole.
    fn part(&self, incoming: &Incoming, part: usize) -> Result<bool> {
        let range = incoming.partial.range(part);
        let mut patience = Patience::new(u32::MAX, LONGEST_AFTER);
        let mut at = range.start;
        let mut furthest = at;
        while at < range.end {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let fetched = self.fetch(incoming, &range, &mut at)?;
            if at > furthest {
                self.bar.inc(at - furthest);
                furthest = at;
                patience.restore();
            }
            if let Err(failure) = fetched {
                patience
                    .wait(failure, &self.stop, |what, wait| self.say(what, wait))
                    .map_err(|failure| anyhow::Error::from(failure).context(incoming.remote.name.clone()))?;
            }
        }
        incoming.partial.finish(part).with_context(|| format!("cannot write {}", incoming.partial.path().display()))?;
        Ok(true)
    }

    /// Says that something is waited for, once for all connections that wait at the time.
    fn say(&self, what: &str, wait: Duration) {
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|until| until <= now) {
            *told = Some(now + wait);
            self.bar.suspend(|| tell(format_args!("{what}; trying again in {} s", wait.as_secs())));
        }
    }

    /// Fetches what is left of a range from `at`, as far as the connection carries. The outer error is of the disk.
    fn fetch(&self, incoming: &Incoming, range: &Range<u64>, at: &mut u64) -> Result<Result<(), Failure>> {
        let whole = incoming.partial.parts() == 1;
        if whole {
            // Servers that know no ranges give small files all the same.
            *at = range.start;
        }
        let mut body = match self.open(incoming, (!whole).then_some(*at..range.end)) {
            Ok(response) => response.into_body().into_reader(),
            Err(failure) => return Ok(Err(failure)),
        };
        let mut buffer = vec![0; BUFFER];
        while *at < range.end && !self.stop.load(Ordering::Relaxed) {
            let room = buffer.len().min(usize::try_from(range.end - *at).unwrap_or(usize::MAX));
            match body.read(&mut buffer[..room]) {
                Ok(0) => return Ok(Err(Failure::network("the connection ended early"))),
                Ok(read) => {
                    let written = incoming.partial.write(&buffer[..read], *at);
                    written.with_context(|| format!("cannot write {}", incoming.partial.path().display()))?;
                    *at += read as u64;
                }
                Err(error) => return Ok(Err(Failure::network(format!("the connection broke off: {error}")))),
            }
        }
        Ok(Ok(()))
    }

    /// Opens a file, or a range of it, where the hub said the last time that it is, else where it says now.
    fn open(
        &self,
        incoming: &Incoming,
        range: Option<Range<u64>>,
    ) -> Result<ureq::http::Response<ureq::Body>, Failure> {
        let address = || incoming.address.lock().unwrap_or_else(PoisonError::into_inner);
        let known = address().clone();
        let url = known.unwrap_or_else(|| self.hub.file_url(&incoming.remote.name));
        match self.hub.open(&url, range.as_ref()) {
            Ok(opened) => {
                check_range(&opened.response, range.as_ref(), incoming.remote.size)
                    .map_err(|what| Failure::server(format!("{} {what}", shown(&opened.url))))?;
                *address() = Some(opened.url);
                Ok(opened.response)
            }
            Err(failure) => {
                if failure.expired {
                    *address() = None;
                }
                Err(failure)
            }
        }
    }

    /// A file whose parts are all there: it gets its name if it is what it should be, and is fetched once more if not.
    fn complete(&self, file: usize) -> Result<()> {
        let incoming = &self.files[file];
        let RemoteFile { name, size, digest } = &incoming.remote;
        self.bar.set_message(format!(", checking {name}"));
        let path = incoming.partial.path();
        let intact = digest.matches(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.bar.set_message("");
        let cannot = || format!("cannot write {}", path.display());
        if intact {
            incoming.partial.keep(&self.cache.blob(&incoming.remote))?;
            self.cache.link(&incoming.remote)?;
            self.queue().unfinished -= 1;
            if !stderr().is_terminal() {
                tell(format_args!("{name}: {}, as the hub has it", DecimalBytes(*size)));
            }
        } else {
            incoming.partial.reset().with_context(cannot)?;
            if incoming.spoiled.swap(true, Ordering::Relaxed) {
                bail!(
                    "{name} came twice with another digest than the hub tells ({digest}): what is between damages it; \
                     try another network, or set HF_ENDPOINT to a mirror"
                );
            }
            self.bar.println(format!("{name} came damaged: once more"));
            self.bar.dec(*size);
            let parts = incoming.partial.parts();
            incoming.left.store(parts, Ordering::Release);
            self.queue().jobs.extend((0..parts).map(|part| Job::Part { file, part }));
        }
        self.changed.notify_all();
        Ok(())
    }
}

/// Whether an answer is what was asked for; says else what it is instead.
fn check_range(
    response: &ureq::http::Response<ureq::Body>,
    range: Option<&Range<u64>>,
    size: u64,
) -> Result<(), String> {
    let text = |name| header(response, name).unwrap_or("nothing");
    match (range, response.status()) {
        (None, StatusCode::OK) => match header(response, CONTENT_LENGTH) {
            Some(length) if length != size.to_string() => Err(format!("gives {length} bytes instead of {size}")),
            _ => Ok(()),
        },
        (Some(range), StatusCode::PARTIAL_CONTENT) => {
            let wanted = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            match text(CONTENT_RANGE) {
                given if given == wanted => Ok(()),
                given => Err(format!("gives {given:?} when asked for {wanted:?}")),
            }
        }
        (Some(_), StatusCode::OK) => {
            Err("gives the whole file when asked for a part of it: HF_ENDPOINT has to name a server that \
                                          can give parts"
                .into())
        }
        (_, status) => Err(format!("answers {}", status.as_u16())),
    }
}
