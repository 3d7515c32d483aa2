//! What a backend does when its pages run out and when its device fails: who asked is told, nobody else pays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lily_backend::{Backend, BackendError, Draw, Output, Sampling, Segment, Want};
use lily_checkpoint::{Bytes, Checkpoint};
use lily_gpu::device::{Buffer, Constant, Device, DeviceError, Limits, Range, Ticket, Tiles};
use lily_gpu::plan::Plan;
use lily_gpu::{GpuBackend, Snapshot, State};
use lily_host::HostDevice;

/// Two pages.
const CONTEXT: usize = 128;

/// A device that fails when it is told to.
struct Frail {
    device: HostDevice,
    faults: Arc<Faults>,
}

/// What fails from now on.
#[derive(Default)]
struct Faults {
    submissions: AtomicBool,
    /// Once: whatever is waited for next.
    waits: AtomicBool,
}

impl Device for Frail {
    type Executable = Plan;

    fn name(&self) -> &str {
        "a frail device"
    }

    fn limits(&self) -> Limits {
        self.device.limits()
    }

    fn tiles(&self) -> Tiles {
        self.device.tiles()
    }

    fn fingerprint(&self) -> String {
        self.device.fingerprint()
    }

    fn specialise(&mut self, constants: &[Constant]) -> Result<(), DeviceError> {
        self.device.specialise(constants)
    }

    fn allocate(&mut self, bytes: u64, what: &str) -> Result<Buffer, DeviceError> {
        self.device.allocate(bytes, what)
    }

    fn map(&mut self, tensors: &[Bytes]) -> Result<Vec<Range>, DeviceError> {
        self.device.map(tensors)
    }

    fn release(&mut self, buffer: Buffer) {
        self.device.release(buffer);
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Plan, DeviceError> {
        self.device.prepare(plan)
    }

    fn write(&mut self, to: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(to, bytes)
    }

    fn copy(&mut self, ranges: &[(Range, Range)]) -> Result<(), DeviceError> {
        self.device.copy(ranges)
    }

    fn clear(&mut self, ranges: &[Range]) -> Result<(), DeviceError> {
        self.device.clear(ranges)
    }

    fn submit(&mut self, executable: &Plan) -> Result<Ticket, DeviceError> {
        if self.faults.submissions.load(Ordering::SeqCst) {
            return Err(self.failure());
        }
        self.device.submit(executable)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        if self.faults.waits.swap(false, Ordering::SeqCst) {
            return Err(self.failure());
        }
        self.device.wait(ticket)
    }

    fn read(&mut self, from: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(from, bytes)
    }
}

impl Frail {
    fn failure(&self) -> DeviceError {
        DeviceError::Failed { name: self.name().to_owned(), problem: "it broke".to_owned() }
    }
}

fn backend(sequences: usize) -> (GpuBackend<Frail>, Arc<Faults>) {
    backend_of(sequences, CONTEXT)
}

fn backend_of(sequences: usize, context: usize) -> (GpuBackend<Frail>, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let device = HostDevice::new(lily_host::Options { workers: 2, ..lily_host::Options::new(1) });
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let options = lily_gpu::Options { prefill_rows: 128, ..lily_gpu::Options::new(context, sequences) };
    let device = Frail { device, faults: Arc::clone(&faults) };
    (GpuBackend::new(device, &checkpoint, options).expect("a backend"), faults)
}

fn tokens(first: u32, count: u32) -> Vec<u32> {
    (first..first + count).collect()
}

/// Appends tokens and gives the greedy choice after the last.
fn next(backend: &mut GpuBackend<Frail>, state: &mut State, tokens: &[u32], counter: u64) -> Result<u32, BackendError> {
    let (sampling, adjustments) = (Sampling::GREEDY, &[][..]);
    let draw = Draw {
        vocabulary: 6113,
        sampling,
        seed: 0,
        counter,
        adjustments,
        allowed: None,
        penalty: None,
        top_logprobs: None,
    };
    let outputs = backend.forward(&mut [Segment { state, tokens, want: Want::Sample(draw) }])?;
    match outputs[..] {
        [Output::Sample(ref sample)] => Ok(sample.token),
        ref other => panic!("asked for a sample, got {other:?}"),
    }
}

/// What is drawn after a prompt by a backend that nothing has happened to.
fn undisturbed(prompt: &[u32], count: u64) -> Vec<u32> {
    let (mut backend, _) = backend(1);
    let mut state = backend.create().expect("a slot");
    let mut found = vec![next(&mut backend, &mut state, prompt, 0).expect("sound")];
    for counter in 1..count {
        let last = [found[found.len() - 1]];
        found.push(next(&mut backend, &mut state, &last, counter).expect("sound"));
    }
    found
}

fn kept(backend: &mut GpuBackend<Frail>, prompt: &[u32]) -> Snapshot {
    let mut state = backend.create().expect("a slot");
    let _drawn = next(backend, &mut state, prompt, 0).expect("sound");
    backend.freeze(state).expect("memory")
}

#[test]
fn a_full_pool_changes_nothing_and_takes_dropped_snapshots() {
    // A page for each of two sequences.
    let (mut backend, _) = backend_of(2, 64);
    let snapshots = [1, 300].map(|first| kept(&mut backend, &tokens(first, 3)));
    let mut states = [backend.create().expect("a slot"), backend.create().expect("a slot")];
    let prompts = [tokens(600, 1), tokens(700, 3)];
    let call = |backend: &mut GpuBackend<Frail>, states: &mut [State; 2]| {
        let mut segments: Vec<_> = states
            .iter_mut()
            .zip(&prompts)
            .map(|(state, tokens)| Segment { state, tokens, want: Want::Logits })
            .collect();
        backend.forward(&mut segments)
    };
    for _ in 0..2 {
        let error = call(&mut backend, &mut states).expect_err("both pages are held");
        assert!(matches!(error, BackendError::Full(_)), "{error}");
        assert_eq!(states.each_ref().map(|state| backend.length(state)), [0, 0]);
    }
    let [first, second] = snapshots;
    drop(first);
    assert!(matches!(call(&mut backend, &mut states), Err(BackendError::Full(_))), "one page is not two");
    drop(second);
    let found = call(&mut backend, &mut states).expect("room");
    drop(states);
    let mut states = [backend.create().expect("a slot"), backend.create().expect("a slot")];
    assert_eq!(found, call(&mut backend, &mut states).expect("room"), "the failed calls left something");
}

#[test]
fn no_page_for_the_step_ahead_is_no_failure() {
    let (mut backend, _) = backend(1);
    let prompt = tokens(1, 62);
    let expected = undisturbed(&prompt, 4);
    let mut state = backend.create().expect("a slot");
    let mut found = vec![next(&mut backend, &mut state, &prompt, 0).expect("sound")];
    // It holds one page; the next token moves the sequence to the other, where it has room for one more after that.
    let snapshot = backend.snapshot(&state).expect("memory");
    for counter in 1..3 {
        let last = [found[found.len() - 1]];
        found.push(next(&mut backend, &mut state, &last, counter).expect("there is room for what was asked"));
    }
    assert_eq!(backend.length(&state), 64);
    let last = [found[2]];
    assert!(matches!(next(&mut backend, &mut state, &last, 3), Err(BackendError::Full(_))));
    drop(snapshot);
    found.push(next(&mut backend, &mut state, &last, 3).expect("room"));
    assert_eq!(found, expected);
}

#[test]
fn a_step_ahead_that_fails_is_run_anew() {
    let prompt = tokens(1, 20);
    let expected = undisturbed(&prompt, 3);
    let (mut backend, faults) = backend(1);
    let mut state = backend.create().expect("a slot");
    let mut found = vec![next(&mut backend, &mut state, &prompt, 0).expect("sound")];
    // The step ahead is under way; it and nothing else will fail, so far as no other follows it.
    faults.submissions.store(true, Ordering::SeqCst);
    let ahead = next(&mut backend, &mut state, &[found[0]], 1);
    found.push(ahead.expect("it has run, though none can follow"));
    faults.submissions.store(false, Ordering::SeqCst);
    found.push(next(&mut backend, &mut state, &[found[1]], 2).expect("sound"));
    assert_eq!(found, expected);

    // What was foreseen failed, but something else is asked.
    faults.waits.store(true, Ordering::SeqCst);
    next(&mut backend, &mut state, &[5], 3).expect("the step ahead was not asked for");
    assert!(!faults.waits.load(Ordering::SeqCst), "nobody waited");
}

#[test]
fn what_a_failure_took_is_refused() {
    let (mut backend, faults) = backend(3);
    let prompt = tokens(1, 20);
    let mut state = backend.create().expect("a slot");
    let first = next(&mut backend, &mut state, &prompt, 0).expect("sound");
    let sound = backend.snapshot(&state).expect("memory");
    let second = next(&mut backend, &mut state, &[first], 1).expect("sound");
    // These are copied in front of the next step, and go with it.
    let lost = backend.snapshot(&state).expect("memory");
    let mut idle = backend.create().expect("a slot");
    // Nothing foreseen, so that the wait is for the step itself.
    let mut bystander = backend.restore(&sound).expect("a slot");
    let draw = |backend: &mut GpuBackend<Frail>, state: &mut State| {
        backend.forward(&mut [Segment { state, tokens: &[7], want: Want::Logits }])
    };
    draw(&mut backend, &mut bystander).expect("sound");
    let late = backend.snapshot(&bystander).expect("memory");
    faults.waits.store(true, Ordering::SeqCst);
    let error = draw(&mut backend, &mut bystander).expect_err("the device broke");
    assert!(error.to_string().contains("it broke"), "{error}");
    drop(bystander);

    assert!(backend.restore(&lost).is_ok(), "its copy had been waited for");
    let error = backend.restore(&late).map(|_| ()).expect_err("its copy was never made");
    assert!(matches!(&error, BackendError::Device(message) if message.contains("lost")), "{error}");
    let error = backend.fetch(&late, 0).map(|_| ()).expect_err("nor can it be written to disk");
    assert!(error.to_string().contains("lost"), "{error}");
    assert!(backend.fetch(&lost, 0).is_ok(), "that one can");
    assert!(draw(&mut backend, &mut idle).is_ok(), "it was cleared before");
    let mut again = backend.restore(&sound).expect("a slot");
    assert_eq!(next(&mut backend, &mut again, &[first], 1).expect("sound"), second);
}

/// A snapshot that was read from disk is whole on the device or refused, and then can be brought there again.
#[test]
fn what_a_failure_took_on_the_way_from_the_disk_is_refused() {
    let (mut backend, faults) = backend(3);
    let archive = backend.archive().expect("a GPU's snapshots are kept");
    let blank = |onto: Option<&Snapshot>, from: usize, to: usize| {
        let zeros = vec![0; (archive.history_bytes(from, to) + archive.state_bytes()) as usize];
        let history = archive.read_history(onto, from, to, &mut &zeros[..]).expect("a history");
        archive.read_state(history, &mut &zeros[..]).expect("a state")
    };
    let whole = |backend: &mut GpuBackend<Frail>, read: &Snapshot| loop {
        if let Some(adopted) = backend.adopt(read)? {
            return Ok::<_, BackendError>(adopted);
        }
    };
    let step = |backend: &mut GpuBackend<Frail>, mut state: State| {
        backend.forward(&mut [Segment { state: &mut state, tokens: &[7], want: Want::Logits }])
    };
    let refused = |found: Result<Snapshot, BackendError>, why: &str| {
        let error = found.map(|_| ()).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    };
    let read = blank(None, 0, 70);

    // What was begun went with a step of others.
    assert!(matches!(backend.adopt(&read), Ok(None)));
    faults.waits.store(true, Ordering::SeqCst);
    let state = backend.create().expect("a slot");
    assert!(step(&mut backend, state).is_err());
    refused(whole(&mut backend, &read), "lost");
    // The device fails at its end.
    faults.waits.store(true, Ordering::SeqCst);
    refused(whole(&mut backend, &read), "it broke");
    let sound = whole(&mut backend, &read).expect("the device goes on");
    assert!(backend.restore(&sound).is_ok());

    // What it builds on was never made.
    let state = backend.create().expect("a slot");
    let lost = backend.snapshot(&state).expect("memory");
    faults.waits.store(true, Ordering::SeqCst);
    assert!(step(&mut backend, state).is_err());
    refused(whole(&mut backend, &blank(Some(&lost), 0, 70)), "builds on");
}
