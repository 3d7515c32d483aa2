//! The disk's thread: writes snapshots in the background, reads them when asked, and does nothing else.
//!
//! Reading goes before removing, removing before writing, because somebody waits for what is read. Of what waits to be
//! written there is never much: each holds its snapshot's memory.

mod file;
mod folder;

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use lily_backend::{Archive, Piece};

use super::tree::Id;
pub(crate) use file::{Fault, Header, Key, NO_PARENT, key};
pub(crate) use folder::{Contents, Folder, Found, Stranger};

/// A snapshot to be written.
pub(crate) struct Write<S> {
    pub(crate) id: Id,
    pub(crate) header: Header,
    /// Those after the parent.
    pub(crate) tokens: Vec<u32>,
    pub(crate) snapshot: S,
    /// What the snapshot holds until it is written.
    pub(crate) pieces: Vec<Piece>,
}

/// A snapshot to be read.
pub(crate) struct Read<S> {
    pub(crate) id: Id,
    /// What is in memory of what comes before.
    pub(crate) base: Option<S>,
    /// The files that hold the rest, in order, with the nodes they belong to; the last is the snapshot's own. Of the
    /// headers all but the sizes of the sections must be as given.
    pub(crate) files: Vec<(Id, Header)>,
}

/// What has been done.
pub(crate) enum Done<S> {
    Written {
        id: Id,
        key: Key,
        /// Comes back, so that its pieces are counted for as long as they exist: their ids may then be others'.
        snapshot: S,
        pieces: Vec<Piece>,
        written: bool,
    },
    /// The snapshot, or the node whose file is of no use.
    Read { id: Id, result: Result<S, Id> },
}

struct Work<S> {
    reads: VecDeque<Read<S>>,
    removals: VecDeque<Key>,
    touches: VecDeque<Key>,
    writes: VecDeque<Write<S>>,
    closed: bool,
}

struct Shared<S> {
    work: Mutex<Work<S>>,
    changed: Condvar,
}

impl<S> Shared<S> {
    /// Nothing that can panic runs under the lock.
    fn lock(&self) -> MutexGuard<'_, Work<S>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's handle; dropping it waits until all is written.
pub(crate) struct Disk<S> {
    shared: Arc<Shared<S>>,
    done: Receiver<Done<S>>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Clone + Send + Sync + 'static> Disk<S> {
    /// Starts the thread; `wake` is called whenever something is done.
    pub(crate) fn start(
        folder: Folder,
        archive: Arc<dyn Archive<S>>,
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let work = Work {
            reads: VecDeque::new(),
            removals: VecDeque::new(),
            touches: VecDeque::new(),
            writes: VecDeque::new(),
            closed: false,
        };
        let shared = Arc::new(Shared { work: Mutex::new(work), changed: Condvar::new() });
        let (sender, done) = channel();
        let worker = Worker { shared: Arc::clone(&shared), folder, archive, done: sender };
        let thread = thread::Builder::new().name("lily-cache".into()).spawn(move || worker.run(&wake))?;
        Ok(Self { shared, done, thread: Some(thread) })
    }

    pub(crate) fn write(&self, write: Write<S>) {
        self.add(|work| work.writes.push_back(write));
    }

    pub(crate) fn read(&self, read: Read<S>) {
        self.add(|work| work.reads.push_back(read));
    }

    pub(crate) fn remove(&self, key: Key) {
        self.add(|work| work.removals.push_back(key));
    }

    pub(crate) fn touch(&self, key: Key) {
        self.add(|work| work.touches.push_back(key));
    }

    /// What has been done since it was last asked.
    pub(crate) fn done(&self) -> Vec<Done<S>> {
        self.done.try_iter().collect()
    }

    fn add(&self, add: impl FnOnce(&mut Work<S>)) {
        add(&mut self.shared.lock());
        self.shared.changed.notify_one();
    }
}

impl<S> Drop for Disk<S> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _it_catches_its_panics = thread.join();
        }
    }
}

struct Worker<S> {
    shared: Arc<Shared<S>>,
    folder: Folder,
    archive: Arc<dyn Archive<S>>,
    done: Sender<Done<S>>,
}

enum Task<S> {
    Read(Read<S>),
    Remove(Key),
    Touch(Key),
    Write(Write<S>),
}

impl<S: Clone + Send + Sync + 'static> Worker<S> {
    fn run(&self, wake: &dyn Fn()) {
        while let Some(task) = self.next() {
            let done = match task {
                Task::Read(read) => {
                    let id = read.id;
                    Some(Done::Read { id, result: guarded(|| Ok(self.read(read))).unwrap_or(Err(id)) })
                }
                Task::Remove(key) => {
                    self.folder.remove(&key);
                    None
                }
                Task::Touch(key) => {
                    self.folder.touch(&key);
                    None
                }
                Task::Write(write) => Some(self.write(write)),
            };
            if let Some(done) = done {
                let _engine_is_gone = self.done.send(done);
                wake();
            }
        }
    }

    /// The next thing to do; `None` once there is nothing left and nothing will come.
    fn next(&self) -> Option<Task<S>> {
        let mut work = self.shared.lock();
        loop {
            // Whoever waited for a read is gone when the engine is.
            if let Some(read) = work.reads.pop_front().filter(|_| !work.closed) {
                return Some(Task::Read(read));
            }
            if let Some(key) = work.removals.pop_front() {
                return Some(Task::Remove(key));
            }
            if let Some(key) = work.touches.pop_front() {
                return Some(Task::Touch(key));
            }
            if let Some(write) = work.writes.pop_front() {
                return Some(Task::Write(write));
            }
            if work.closed {
                return None;
            }
            work = self.shared.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write(&self, write: Write<S>) -> Done<S> {
        let Write { id, header, tokens, snapshot, pieces } = write;
        let from = header.from as usize;
        let fill = |to: &mut dyn io::Write| {
            file::write(
                to,
                &header,
                &tokens,
                |to| self.archive.write_history(&snapshot, from, to),
                |to| self.archive.write_state(&snapshot, to),
            )
        };
        let parent = header.parent;
        let written = guarded(|| {
            if parent != NO_PARENT {
                // Its own file may have failed; without it this one would be of no use.
                self.folder.read(&parent)?;
            }
            self.folder.write(&header.key, fill)
        });
        if let Err(error) = &written {
            tracing::warn!(%error, "a snapshot could not be written to the cache directory");
        }
        Done::Written { id, key: header.key, snapshot, pieces, written: written.is_ok() }
    }

    fn read(&self, read: Read<S>) -> Result<S, Id> {
        let Read { id, base, files } = read;
        let last = files.len().saturating_sub(1);
        let mut snapshot = base;
        for (index, (node, expected)) in files.iter().enumerate() {
            match self.read_file(snapshot.as_ref(), expected, index == last) {
                Ok(more) => snapshot = Some(more),
                Err(error) => {
                    tracing::warn!(%error, "a snapshot on disk cannot be used");
                    return Err(*node);
                }
            }
        }
        snapshot.ok_or(id)
    }

    fn read_file(&self, onto: Option<&S>, expected: &Header, with_state: bool) -> Result<S, Fault> {
        let (file, size) = self.folder.read(&expected.key)?;
        let (header, mut from) = Header::open(file, size)?;
        if header != *expected {
            return Err(Fault::Foreign);
        }
        let (start, end) = (header.from as usize, header.length as usize);
        let history = file::read_section(&mut from, &header, header.history, "keys and values", |from| {
            self.archive.read_history(onto, start, end, from)
        })?;
        if !with_state {
            return Ok(history);
        }
        file::read_section(&mut from, &header, header.state, "recurrent states", |from| {
            self.archive.read_state(history, from)
        })
    }
}

/// A panic in a backend's archive costs the snapshot, not the thread.
fn guarded<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(io::Error::other("the backend's archive panicked")))
}
