//! The disk's threads: one reads snapshots, since somebody waits for those; the other writes them in the background, and
//! removes files, which goes first. Of what waits to be written there is never much: each holds its snapshot's memory.

mod file;
mod folder;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use lily_backend::{Archive, BackendError, Piece};

use super::tree::Id;
pub(crate) use file::{Fault, Header, Key, NO_PARENT, VERSION, key};
pub(crate) use folder::{Contents, Folder, Found, Stranger};

/// A snapshot to be written.
pub(crate) struct Write<S> {
    pub(crate) id: Id,
    /// Tells it from other writes.
    pub(crate) number: u64,
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

/// What has been done. Snapshots come back, so that their pieces are counted for as long as they exist: their ids may then
/// be others'.
pub(crate) enum Done<S> {
    Written {
        id: Id,
        number: u64,
        header: Header,
        snapshot: S,
        pieces: Vec<Piece>,
        result: Result<(), WriteFailure>,
    },
    /// The snapshot, or the node whose file is of no use; neither if the disk failed.
    Read {
        id: Id,
        base: Option<S>,
        result: Result<S, Option<Id>>,
    },
}

/// Why a snapshot was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteFailure {
    /// The file that it builds on is gone; without it this one would be of no use.
    #[error("the file that it builds on is gone")]
    NoParent,
    /// It could not be fetched from the backend.
    #[error(transparent)]
    NotFetched(BackendError),
    /// The disk is full, for example.
    #[error("{file}: {error}")]
    Own {
        /// Which.
        file: String,
        /// The system's word.
        error: io::Error,
    },
}

impl WriteFailure {
    /// Whether the disk, or the user's share of it, is full.
    pub(crate) fn is_for_want_of_room(&self) -> bool {
        let Self::Own { error, .. } = self else { return false };
        matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

struct Work<S> {
    reads: VecDeque<Read<S>>,
    removals: VecDeque<Key>,
    touches: Touches,
    writes: VecDeque<Write<S>>,
    closed: bool,
}

/// Files that were used, in the order of their last use, which is that of the times they get. Each once, however often it
/// was used: a disk that stands still does not make them many.
#[derive(Default)]
struct Touches {
    numbers: HashMap<Key, u64>,
    keys: BTreeMap<u64, Key>,
    next: u64,
}

impl Touches {
    fn add(&mut self, key: Key) {
        if let Some(before) = self.numbers.insert(key, self.next) {
            self.keys.remove(&before);
        }
        self.keys.insert(self.next, key);
        self.next += 1;
    }

    fn pop(&mut self) -> Option<Key> {
        let (_, key) = self.keys.pop_first()?;
        self.numbers.remove(&key);
        Some(key)
    }
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

    /// What `take` finds to do; `None` once it finds nothing and nothing will come.
    fn next<T>(&self, take: impl Fn(&mut Work<S>) -> Option<T>) -> Option<T> {
        let mut work = self.lock();
        loop {
            if let Some(task) = take(&mut work) {
                return Some(task);
            }
            if work.closed {
                return None;
            }
            work = self.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The threads' handle; dropping it waits until all is written.
pub(crate) struct Disk<S> {
    shared: Arc<Shared<S>>,
    done: Receiver<Done<S>>,
    threads: Vec<JoinHandle<()>>,
}

impl<S: Clone + Send + Sync + 'static> Disk<S> {
    /// Starts the threads; `wake` is called whenever something is done.
    pub(crate) fn start(
        folder: Folder,
        archive: Arc<dyn Archive<S>>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let work = Work {
            reads: VecDeque::new(),
            removals: VecDeque::new(),
            touches: Touches::default(),
            writes: VecDeque::new(),
            closed: false,
        };
        let shared = Arc::new(Shared { work: Mutex::new(work), changed: Condvar::new() });
        let (sender, done) = channel();
        let (folder, wake) = (Arc::new(folder), Arc::new(wake));
        // From here on, whatever ends this ends the threads that run.
        let mut disk = Self { shared, done, threads: Vec::new() };
        let duties: [Duty<S>; 2] = [("lily-cache-read", Worker::read_all), ("lily-cache-write", Worker::write_all)];
        for (name, run) in duties {
            let wake = Arc::clone(&wake);
            let worker = Worker {
                shared: Arc::clone(&disk.shared),
                folder: Arc::clone(&folder),
                archive: Arc::clone(&archive),
                done: sender.clone(),
                wake: Box::new(move || wake()),
            };
            disk.threads.push(thread::Builder::new().name(name.into()).spawn(move || run(&worker))?);
        }
        Ok(disk)
    }

    pub(crate) fn write(&self, write: Write<S>) {
        self.add(|work| work.writes.push_back(write));
    }

    /// The write of that number, if it has not begun; it is not done then.
    pub(crate) fn take_back(&self, number: u64) -> Option<Write<S>> {
        let writes = &mut self.shared.lock().writes;
        writes.iter().position(|write| write.number == number).and_then(|index| writes.remove(index))
    }

    pub(crate) fn read(&self, read: Read<S>) {
        self.add(|work| work.reads.push_back(read));
    }

    pub(crate) fn remove(&self, key: Key) {
        self.add(|work| work.removals.push_back(key));
    }

    pub(crate) fn touch(&self, key: Key) {
        self.add(|work| work.touches.add(key));
    }

    /// What has been done since it was last asked.
    pub(crate) fn done(&self) -> Vec<Done<S>> {
        self.done.try_iter().collect()
    }

    /// The next that is done, waited for; `None` if the threads have ended.
    pub(crate) fn next_done(&self) -> Option<Done<S>> {
        self.done.recv().ok()
    }

    fn add(&self, add: impl FnOnce(&mut Work<S>)) {
        add(&mut self.shared.lock());
        self.shared.changed.notify_all();
    }
}

impl<S> Drop for Disk<S> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _it_catches_its_panics = thread.join();
        }
    }
}

struct Worker<S> {
    shared: Arc<Shared<S>>,
    folder: Arc<Folder>,
    archive: Arc<dyn Archive<S>>,
    done: Sender<Done<S>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// A thread's name, and what it does until the end.
type Duty<S> = (&'static str, fn(&Worker<S>));

enum Task<S> {
    Remove(Key),
    Touch(Key),
    Write(Write<S>),
}

impl<S: Clone + Send + Sync + 'static> Worker<S> {
    fn read_all(&self) {
        // Whoever waited for a read is gone when the engine is.
        while let Some(read) = self.shared.next(|work| work.reads.pop_front().filter(|_| !work.closed)) {
            let Read { id, base, files } = read;
            let result = guarded(|| Ok(self.read(id, base.as_ref(), &files))).unwrap_or(Err(Some(id)));
            self.tell(Done::Read { id, base, result });
        }
    }

    fn write_all(&self) {
        let next = |work: &mut Work<S>| {
            let removal = work.removals.pop_front().map(Task::Remove);
            let touch = |work: &mut Work<S>| work.touches.pop().map(Task::Touch);
            removal.or_else(|| touch(work)).or_else(|| work.writes.pop_front().map(Task::Write))
        };
        while let Some(task) = self.shared.next(next) {
            match task {
                Task::Remove(key) => self.folder.remove(&key),
                Task::Touch(key) => self.folder.touch(&key),
                Task::Write(write) => self.tell(self.write(write)),
            }
        }
    }

    fn tell(&self, done: Done<S>) {
        let _engine_is_gone = self.done.send(done);
        (self.wake)();
    }

    fn write(&self, write: Write<S>) -> Done<S> {
        let Write { id, number, header, tokens, snapshot, pieces } = write;
        let result = self.write_file(&header, &tokens, &snapshot);
        Done::Written { id, number, header, snapshot, pieces, result }
    }

    fn write_file(&self, header: &Header, tokens: &[u32], snapshot: &S) -> Result<(), WriteFailure> {
        if header.parent != NO_PARENT
            && self.folder.read(&header.parent).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            return Err(WriteFailure::NoParent);
        }
        let from = header.from as usize;
        let fill = |to: &mut dyn io::Write| {
            file::write(
                to,
                header,
                tokens,
                |to| self.archive.write_history(snapshot, from, to),
                |to| self.archive.write_state(snapshot, to),
            )
        };
        let written = guarded(|| self.folder.write(&header.key, fill));
        written.map_err(|error| WriteFailure::Own { file: self.folder.name(&header.key), error })
    }

    fn read(&self, id: Id, base: Option<&S>, files: &[(Id, Header)]) -> Result<S, Option<Id>> {
        let mut snapshot = None;
        for (index, (node, expected)) in files.iter().enumerate() {
            match self.read_file(snapshot.as_ref().or(base), expected, index + 1 == files.len()) {
                Ok(more) => snapshot = Some(more),
                Err(error) => {
                    let file = self.folder.name(&expected.key);
                    tracing::warn!(file, %error, "a snapshot on disk cannot be used");
                    return Err((!error.is_the_disks()).then_some(*node));
                }
            }
        }
        snapshot.ok_or(Some(id))
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

#[cfg(test)]
mod tests {
    use super::{Key, Touches};

    /// After a restart files are in the order of their times: so they get them in the order of their last use.
    #[test]
    fn files_are_touched_in_the_order_of_use() {
        let key = |number: u8| -> Key { [number; size_of::<Key>()] };
        let mut touches = Touches::default();
        for number in [1, 2, 3, 1, 4, 2] {
            touches.add(key(number));
        }
        let order: Vec<Key> = std::iter::from_fn(|| touches.pop()).collect();
        assert_eq!(order, [3, 1, 4, 2].map(key));
        assert!(touches.numbers.is_empty() && touches.keys.is_empty());
    }
}
