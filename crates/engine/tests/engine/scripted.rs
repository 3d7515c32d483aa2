//! A backend whose logits are a hash of all tokens so far.

mod archive;
mod replies;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lily_backend::{Archive, Backend, BackendError, Description, Output, Pausable, Piece, Segment, Want, sample};
use lily_engine::{Engine, Options};

pub(crate) use replies::*;

/// Ids from here on are padding. Their logits are the largest of all, so that a draw that does not spare them shows.
pub(crate) const VOCABULARY: usize = 200;
pub(crate) const LOGITS: usize = 208;
pub(crate) const CONTEXT: usize = 4096;
/// Ids from here on are never drawn, so that prompts can carry triggers.
pub(crate) const TRIGGERS: u32 = 180;
/// Segments with this token are refused; nothing changes.
pub(crate) const REFUSED: u32 = 190;
/// Segments with this token fail the device.
pub(crate) const DEVICE: u32 = 191;
/// Segments with this token make the call panic.
pub(crate) const PANIC: u32 = 192;
/// A state with this token panics when it is dropped.
pub(crate) const PANIC_ON_DROP: u32 = 193;
/// A state with this token gives no finite logit.
pub(crate) const NOT_FINITE: u32 = 194;

/// What a call held of one sequence, which its first prompt token names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) name: u32,
    pub(crate) start: usize,
    pub(crate) tokens: usize,
}

/// The test's view of a backend: a record of its calls, and a gate before each.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Shared>);

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
    states: AtomicUsize,
    snapshots: AtomicUsize,
    /// Tokens that states and snapshots hold.
    held_tokens: AtomicUsize,
    taken: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    calls: Vec<Vec<Part>>,
    held: bool,
    permits: usize,
    refuse_states: bool,
    refuse_snapshots: bool,
    /// Tokens that states and snapshots may hold together.
    pool: Option<usize>,
    /// Calls that found the pool full.
    full: usize,
    /// Time a token takes.
    delay: Duration,
    /// Layers of a call that can be paused between them; 0 if none can.
    layers: usize,
    /// It is paused after each, asked or not.
    restless: bool,
    pauses: usize,
    /// Whether the disk stands still, and whether it takes no more.
    disk_stopped: bool,
    disk_full: bool,
    /// What is read from disk finds no room, and how often that was so.
    no_room: bool,
    unplaced: usize,
}

impl Script {
    /// The gate is shut: calls are recorded, then wait for [`Script::allow`] or [`Script::release`].
    pub(crate) fn held() -> Self {
        let script = Self::default();
        script.inner().held = true;
        script
    }

    pub(crate) fn with_delay(delay: Duration) -> Self {
        Self::default().delayed(delay)
    }

    /// Each token takes that long.
    pub(crate) fn delayed(self, delay: Duration) -> Self {
        self.inner().delay = delay;
        self
    }

    /// Calls can be paused, between so many layers; a `restless` one is after each, asked or not.
    pub(crate) fn with_layers(self, layers: usize, restless: bool) -> Self {
        let mut inner = self.inner();
        (inner.layers, inner.restless) = (layers, restless);
        drop(inner);
        self
    }

    /// Times that a call was paused.
    pub(crate) fn pauses(&self) -> usize {
        self.inner().pauses
    }

    /// Nothing is read from disk or written any more, or all goes on.
    pub(crate) fn stop_disk(&self, stop: bool) {
        self.inner().disk_stopped = stop;
        self.0.changed.notify_all();
    }

    fn pass_disk(&self) {
        let waited = self.0.changed.wait_while(self.inner(), |inner| inner.disk_stopped);
        drop(waited.expect("no panic under the lock"));
    }

    /// Writes fail halfway, or go well again.
    pub(crate) fn fail_writes(&self, fail: bool) {
        self.inner().disk_full = fail;
    }

    /// What is read from disk finds no room.
    pub(crate) fn without_room(self) -> Self {
        self.inner().no_room = true;
        self
    }

    /// Times that it found none.
    pub(crate) fn unplaced(&self) -> usize {
        self.inner().unplaced
    }

    /// All states and snapshots together have room for so many tokens.
    pub(crate) fn pooled(self, tokens: usize) -> Self {
        self.inner().pool = Some(tokens);
        self
    }

    /// Calls that found no room.
    pub(crate) fn full(&self) -> usize {
        self.inner().full
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `calls` more calls pass.
    pub(crate) fn allow(&self, calls: usize) {
        self.inner().permits += calls;
        self.0.changed.notify_all();
    }

    pub(crate) fn release(&self) {
        self.inner().held = false;
        self.0.changed.notify_all();
    }

    pub(crate) fn refuse_states(&self, refuse: bool) {
        self.inner().refuse_states = refuse;
    }

    /// No snapshot can be restored any more.
    pub(crate) fn refuse_snapshots(&self) {
        self.inner().refuse_snapshots = true;
    }

    /// Waits until the `count`-th call, from 1, has begun, and returns what it holds.
    pub(crate) fn call(&self, count: usize) -> Vec<Part> {
        let waited = self.0.changed.wait_while(self.inner(), |inner| inner.calls.len() < count);
        waited.expect("no panic under the lock").calls[count - 1].clone()
    }

    pub(crate) fn calls(&self) -> Vec<Vec<Part>> {
        self.inner().calls.clone()
    }

    /// Indices of the calls that held tokens of the sequence called `name`.
    pub(crate) fn calls_of(&self, name: u32) -> Vec<usize> {
        let calls = self.calls();
        (0..calls.len()).filter(|&index| calls[index].iter().any(|part| part.name == name)).collect()
    }

    /// States that exist.
    pub(crate) fn states(&self) -> usize {
        self.0.states.load(Ordering::SeqCst)
    }

    /// Snapshots that exist.
    pub(crate) fn snapshots(&self) -> usize {
        self.0.snapshots.load(Ordering::SeqCst)
    }

    pub(crate) fn engine(&self, options: Options) -> Engine {
        Engine::start(ScriptedBackend::new(self.clone(), 1), options)
    }

    /// Of a backend that may be cut after multiples of [`PAGE`] only.
    pub(crate) fn uniform_engine(&self, options: Options) -> Engine {
        Engine::start(ScriptedBackend::new(self.clone(), PAGE), options)
    }
}

pub(crate) struct ScriptedBackend {
    script: Script,
    description: Description,
    /// Layers done of the call that is paused; 0 if none is.
    done: usize,
}

pub(crate) struct State {
    held: Held,
    script: Script,
}

#[derive(Clone, Default)]
struct Held {
    name: u32,
    length: usize,
    hash: u64,
    panics: bool,
    not_finite: bool,
    /// In a call that is paused.
    torn: bool,
    /// The hash after every [`PAGE`] tokens.
    pages: Vec<u64>,
}

/// Tokens of a page, which snapshots with the same beginning share.
pub(crate) const PAGE: usize = 64;
pub(crate) const PAGE_BYTES: u64 = 640;
/// What a snapshot holds for itself.
pub(crate) const STATE_BYTES: u64 = 2000;

pub(crate) struct Frozen {
    id: u64,
    held: Held,
    script: Script,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.script.0.snapshots.fetch_sub(1, Ordering::SeqCst);
        self.script.0.held_tokens.fetch_sub(self.held.length, Ordering::SeqCst);
    }
}

impl Script {
    fn freeze(&self, held: Held) -> Arc<Frozen> {
        self.0.snapshots.fetch_add(1, Ordering::SeqCst);
        self.0.held_tokens.fetch_add(held.length, Ordering::SeqCst);
        let id = self.0.taken.fetch_add(1, Ordering::SeqCst) as u64;
        Arc::new(Frozen { id, held, script: self.clone() })
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.script.0.states.fetch_sub(1, Ordering::SeqCst);
        self.script.0.held_tokens.fetch_sub(self.held.length, Ordering::SeqCst);
        assert!(!self.held.panics, "scripted: a state that panics when dropped");
    }
}

impl ScriptedBackend {
    fn new(script: Script, grain: usize) -> Self {
        let name = "scripted".into();
        let description = Description { name, logits: LOGITS, max_context: CONTEXT, grain };
        Self { script, description, done: 0 }
    }

    /// Puts a call on record, waits at the gate, and says whether it goes well.
    fn enter(&self, segments: &[Segment<'_, State>]) -> Result<(), BackendError> {
        let call: Vec<Part> = segments
            .iter()
            .map(|segment| Part {
                name: if segment.state.held.length == 0 { segment.tokens[0] } else { segment.state.held.name },
                start: segment.state.held.length,
                tokens: segment.tokens.len(),
            })
            .collect();
        let tokens: usize = call.iter().map(|part| part.tokens).sum();
        let mut inner = self.script.inner();
        inner.calls.push(call);
        self.script.0.changed.notify_all();
        let closed = |inner: &mut Inner| inner.held && inner.permits == 0;
        let mut inner = self.script.0.changed.wait_while(inner, closed).expect("no panic under the lock");
        inner.permits = inner.permits.saturating_sub(1);
        let delay = inner.delay;
        if inner.pool.is_some_and(|pool| self.script.0.held_tokens.load(Ordering::SeqCst) + tokens > pool) {
            inner.full += 1;
            return Err(BackendError::Full("scripted: the pool is full".into()));
        }
        drop(inner);
        std::thread::sleep(delay * tokens as u32);

        for segment in segments {
            assert!(!segment.state.held.torn, "scripted: its call is paused");
            let wanted = segment.state.held.length + segment.tokens.len();
            assert!(!segment.tokens.contains(&PANIC), "scripted: a panic");
            if segment.tokens.contains(&DEVICE) {
                return Err(BackendError::Device("scripted: the device is lost".into()));
            }
            if segment.tokens.contains(&REFUSED) {
                return Err(BackendError::UnknownToken { token: REFUSED, logits: LOGITS });
            }
            if wanted > CONTEXT {
                return Err(BackendError::ContextFull { wanted, limit: CONTEXT });
            }
        }
        Ok(())
    }

    fn compute(&self, segments: &mut [Segment<'_, State>]) -> Vec<Output> {
        let tokens: usize = segments.iter().map(|segment| segment.tokens.len()).sum();
        self.script.0.held_tokens.fetch_add(tokens, Ordering::SeqCst);
        let output = |segment: &mut Segment<'_, State>| {
            let state = &mut segment.state.held;
            for &token in segment.tokens {
                state.name = if state.length == 0 { token } else { state.name };
                state.length += 1;
                state.hash = mix(state.hash, token);
                state.panics |= token == PANIC_ON_DROP;
                state.not_finite |= token == NOT_FINITE;
                if state.length.is_multiple_of(PAGE) {
                    state.pages.push(state.hash);
                }
            }
            match &segment.want {
                Want::Nothing => Output::Nothing,
                Want::Sample(draw) => {
                    let logits = if state.not_finite { vec![f32::NAN; LOGITS] } else { logits(state.hash) };
                    sample(&logits, draw).map_or(Output::NoFiniteLogit, Output::Sample)
                }
                Want::Logits => unreachable!("the engine asks for no logits"),
            }
        };
        segments.iter_mut().map(output).collect()
    }
}

impl Pausable<State> for ScriptedBackend {
    fn advance(
        &mut self,
        segments: &mut [Segment<'_, State>],
        pause: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<Output>>, BackendError> {
        if self.done == 0 {
            self.enter(segments)?;
        }
        segments.iter_mut().for_each(|segment| segment.state.held.torn = true);
        let layers = self.script.inner().layers;
        let restless = self.script.inner().restless;
        while self.done + 1 < layers {
            self.done += 1;
            if restless || pause() {
                self.script.inner().pauses += 1;
                return Ok(None);
            }
        }
        self.done = 0;
        segments.iter_mut().for_each(|segment| segment.state.held.torn = false);
        Ok(Some(self.compute(segments)))
    }

    fn abandon(&mut self) {
        self.done = 0;
    }
}

impl Backend for ScriptedBackend {
    type State = State;
    type Snapshot = Arc<Frozen>;

    fn description(&self) -> &Description {
        &self.description
    }

    fn create(&mut self) -> Result<State, BackendError> {
        if self.script.inner().refuse_states {
            return Err(BackendError::Device("scripted: no memory".into()));
        }
        self.script.0.states.fetch_add(1, Ordering::SeqCst);
        Ok(State { held: Held::default(), script: self.script.clone() })
    }

    fn length(&self, state: &State) -> usize {
        state.held.length
    }

    fn forward(&mut self, segments: &mut [Segment<'_, State>]) -> Result<Vec<Output>, BackendError> {
        self.enter(segments)?;
        Ok(self.compute(segments))
    }

    fn pausable(&mut self) -> Option<&mut dyn Pausable<State>> {
        if self.script.inner().layers == 0 { None } else { Some(self) }
    }

    fn snapshot(&mut self, state: &State) -> Result<Arc<Frozen>, BackendError> {
        assert!(!state.held.torn, "scripted: its call is paused");
        Ok(self.script.freeze(state.held.clone()))
    }

    fn snapshot_bytes(&self) -> u64 {
        STATE_BYTES
    }

    fn pieces(&self, snapshot: &Arc<Frozen>) -> Vec<Piece> {
        let own = Piece { id: snapshot.id, bytes: STATE_BYTES };
        let pages = snapshot.held.pages.iter().map(|&hash| Piece { id: hash | 1 << 63, bytes: PAGE_BYTES });
        std::iter::once(own).chain(pages).collect()
    }

    fn archive(&self) -> Option<Arc<dyn Archive<Arc<Frozen>>>> {
        Some(Arc::new(archive::ScriptedArchive(self.script.clone())))
    }

    fn adopt(&mut self, read: &Arc<Frozen>) -> Result<Option<Arc<Frozen>>, BackendError> {
        let mut inner = self.script.inner();
        if inner.no_room {
            inner.unplaced += 1;
            return Err(BackendError::Full("scripted: no room for what was read".into()));
        }
        Ok(Some(read.clone()))
    }

    fn restore(&mut self, snapshot: &Arc<Frozen>) -> Result<State, BackendError> {
        if self.script.inner().refuse_snapshots {
            return Err(BackendError::Device("scripted: a lost snapshot".into()));
        }
        self.script.0.held_tokens.fetch_add(snapshot.held.length, Ordering::SeqCst);
        self.script.0.states.fetch_add(1, Ordering::SeqCst);
        Ok(State { held: snapshot.held.clone(), script: self.script.clone() })
    }

    fn truncate(&mut self, _state: &mut State, _length: usize) -> Result<(), BackendError> {
        unreachable!("the engine truncates nothing")
    }
}

/// Steele, Lea and Flood's SplitMix64 finaliser.
fn mix(hash: u64, token: u32) -> u64 {
    let mut z = hash.wrapping_add(u64::from(token) + 1).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn logits(hash: u64) -> Vec<f32> {
    let of = |token: u32| match token {
        0..TRIGGERS => (mix(hash, token) >> 40) as f32 / (1u64 << 22) as f32 - 2.0,
        _ if (token as usize) < VOCABULARY => -1e9,
        _ => 1e9,
    };
    (0..LOGITS as u32).map(of).collect()
}
