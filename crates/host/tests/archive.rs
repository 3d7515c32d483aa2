//! Snapshots of `GpuBackend<HostDevice>` to bytes and back, on a device that does nothing before it is waited for.

#[path = "../../gpu/tests/common/tensors.rs"]
mod tensors;

use std::io;
use std::sync::Arc;

use lily_backend::{Archive, Backend, BackendError, Draw, Output, Segment, Want};
use lily_checkpoint::Checkpoint;
use lily_gpu::device::Device;
use lily_gpu::{GpuBackend, Options, Snapshot, State};
use lily_host::HostDevice;
use tensors::Tensors;

/// Four pages.
const CONTEXT: usize = 256;

type Gpu = GpuBackend<HostDevice>;
type SnapshotArchive = Arc<dyn Archive<Snapshot>>;

fn gpu(sequences: usize, spare_pages: usize) -> (Gpu, SnapshotArchive) {
    of_device(device(false), sequences, spare_pages)
}

fn device(tensor_tiles: bool) -> HostDevice {
    HostDevice::new(lily_host::Options { late: true, tensor_tiles, ..lily_host::Options::new(1) })
}

fn of_device(device: HostDevice, sequences: usize, spare_pages: usize) -> (Gpu, SnapshotArchive) {
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let options = Options { prefill_rows: 128, spare_pages, ..Options::new(CONTEXT, sequences) };
    let backend = GpuBackend::new(device, &checkpoint, options).expect("a backend");
    let archive = backend.archive().expect("a GPU's snapshots are kept");
    (backend, archive)
}

fn text(count: usize) -> Vec<u32> {
    Tensors::load("reference.safetensors").ids("eval.ids")[..count].to_vec()
}

fn append(backend: &mut Gpu, state: &mut State, tokens: &[u32]) {
    backend.forward(&mut [Segment { state, tokens, want: Want::Nothing }]).expect("a sound call");
}

/// The bits of what follows a snapshot.
fn bits(backend: &mut Gpu, snapshot: &Snapshot) -> Vec<u32> {
    let mut state = backend.restore(snapshot).expect("a slot");
    let outputs = backend.forward(&mut [Segment { state: &mut state, tokens: &[5, 77, 9], want: Want::Logits }]);
    match outputs.expect("a sound call").pop() {
        Some(Output::Logits(logits)) => logits.into_iter().map(f32::to_bits).collect(),
        other => panic!("asked for logits, got {other:?}"),
    }
}

/// The whole of a way that is gone in parts, and how many those were.
fn whole(mut part: impl FnMut() -> Result<Option<Snapshot>, BackendError>) -> (Snapshot, usize) {
    for parts in 1..100 {
        if let Some(snapshot) = part().expect("it goes on") {
            return (snapshot, parts);
        }
    }
    panic!("it does not end");
}

fn adopted(backend: &mut Gpu, read: &Snapshot) -> Snapshot {
    whole(|| backend.adopt(read)).0
}

/// Of so many bytes, if each is a 64th of the states at most, or a page.
fn least_parts(archive: &SnapshotArchive, bytes: u64) -> usize {
    bytes.div_ceil(archive.state_bytes().div_ceil(64).max(archive.history_bytes(0, 1))) as usize
}

/// History and state as bytes, with the sizes that were said.
fn written(
    backend: &mut Gpu,
    archive: &SnapshotArchive,
    snapshot: &Snapshot,
    from: usize,
    length: usize,
) -> [Vec<u8>; 2] {
    let (fetched, parts) = whole(|| backend.fetch(snapshot, from));
    let held: u64 = backend.pieces(&fetched).iter().map(|piece| piece.bytes).sum();
    assert_eq!(held, archive.transit_bytes(from, length));
    assert!(parts >= least_parts(archive, held), "{parts} parts of {held} bytes");
    let (mut history, mut state) = (Vec::new(), Vec::new());
    archive.write_history(&fetched, from, &mut history).expect("room");
    archive.write_state(&fetched, &mut state).expect("room");
    assert_eq!(history.len() as u64, archive.history_bytes(from, length));
    assert_eq!(state.len() as u64, archive.state_bytes());
    [history, state]
}

fn read(archive: &SnapshotArchive, onto: Option<&Snapshot>, tokens: [usize; 2], bytes: &[Vec<u8>; 2]) -> Snapshot {
    let [from, length] = tokens;
    let history = archive.read_history(onto, from, length, &mut &bytes[0][..]).expect("a history");
    archive.read_state(history, &mut &bytes[1][..]).expect("a state")
}

/// A chain of two files, cut where a page is full and where one is nearly: the same bits follow as after the originals, in the same
/// process and in another, read whole or onto what is in memory.
#[test]
fn what_is_read_back_goes_on_with_the_same_bits() {
    let (mut backend, archive) = gpu(2, 16);
    let (mut other, of_other) = gpu(2, 16);
    assert_eq!(archive.format(), of_other.format());
    let tokens = text(129);
    for [first, second] in [[64, 70], [63, 129]] {
        let mut state = backend.create().expect("a slot");
        append(&mut backend, &mut state, &tokens[..first]);
        let parent = backend.snapshot(&state).expect("memory");
        append(&mut backend, &mut state, &tokens[first..second]);
        let child = backend.freeze(state).expect("memory");
        let files = [
            written(&mut backend, &archive, &parent, 0, first),
            written(&mut backend, &archive, &child, first, second),
        ];
        let expected = bits(&mut backend, &child);
        let history = archive.read_history(None, 0, first, &mut &files[0][0][..]).expect("a history");
        let of_both = read(&archive, Some(&history), [first, second], &files[1]);
        let of_second = read(&archive, Some(&parent), [first, second], &files[1]);
        for (read, from, what) in [(of_both, 0, "a chain"), (of_second, first, "onto what is there")] {
            let held: u64 = backend.pieces(&read).iter().map(|piece| piece.bytes).sum();
            assert_eq!(held, archive.transit_bytes(from, second), "{what}");
            let (adopted, parts) = whole(|| backend.adopt(&read));
            assert!(parts >= least_parts(&archive, archive.transit_bytes(first, second)), "{parts} parts");
            assert_eq!(bits(&mut backend, &adopted), expected, "{first} and {second}: {what}");
            let bytes: u64 = backend.pieces(&adopted).iter().map(|piece| piece.bytes).sum();
            assert_eq!(bytes, archive.memory_bytes(second));
        }
        let history = of_other.read_history(None, 0, first, &mut &files[0][0][..]).expect("a history");
        let elsewhere = read(&of_other, Some(&history), [first, second], &files[1]);
        let (adopted, _) = whole(|| other.adopt(&elsewhere));
        assert_eq!(bits(&mut other, &adopted), expected, "{first} and {second}: another process");
        // The same again: what lay in memory behind the last token is in no file.
        assert_eq!(written(&mut other, &of_other, &adopted, first, second), files[1]);
    }
}

/// What was read onto shares its pages, and the original may go.
#[test]
fn full_pages_are_shared_with_what_it_was_read_onto() {
    let (mut backend, archive) = gpu(2, 16);
    let tokens = text(150);
    let mut state = backend.create().expect("a slot");
    append(&mut backend, &mut state, &tokens[..128]);
    let parent = backend.snapshot(&state).expect("memory");
    append(&mut backend, &mut state, &tokens[128..]);
    let child = backend.freeze(state).expect("memory");
    let file = written(&mut backend, &archive, &child, 128, 150);
    let expected = bits(&mut backend, &child);
    let arrived = read(&archive, Some(&parent), [128, 150], &file);
    let (adopted, _) = whole(|| backend.adopt(&arrived));
    let ids =
        |snapshot: &Snapshot| backend.pieces(snapshot).into_iter().skip(1).map(|piece| piece.id).collect::<Vec<_>>();
    assert_eq!(ids(&adopted)[..2], ids(&parent)[..]);
    assert_ne!(ids(&adopted)[2], ids(&child)[2]);
    drop((parent, child, arrived));
    assert_eq!(bits(&mut backend, &adopted), expected);
}

/// A sequence that runs, ahead of what is asked too, changes nothing of what is being fetched in between.
#[test]
fn a_snapshot_is_fetched_while_its_sequence_goes_on() {
    let (mut backend, archive) = gpu(2, 16);
    let tokens = text(100);
    let mut state = backend.create().expect("a slot");
    append(&mut backend, &mut state, &tokens[..70]);
    let snapshot = backend.snapshot(&state).expect("memory");
    let quiet = written(&mut backend, &archive, &snapshot, 0, 70);
    let mut counter = 0;
    let (fetched, _) = whole(|| {
        let part = backend.fetch(&snapshot, 0);
        let want = Want::Sample(Draw { counter, ..Draw::greedy(6113) });
        counter += 1;
        backend.forward(&mut [Segment { state: &mut state, tokens: &[9], want }]).expect("a sound call");
        part
    });
    let mut history = Vec::new();
    archive.write_history(&fetched, 0, &mut history).expect("room");
    assert!(history == quiet[0]);
}

/// Without pages nothing is adopted, nothing is lost, and it goes once there are some.
#[test]
fn what_finds_no_page_waits_for_one() {
    let (mut backend, archive) = gpu(1, 0);
    let tokens = text(130);
    let mut state = backend.create().expect("a slot");
    append(&mut backend, &mut state, &tokens);
    let snapshot = backend.freeze(state).expect("memory");
    let file = written(&mut backend, &archive, &snapshot, 0, 130);
    let expected = bits(&mut backend, &snapshot);
    let arrived = read(&archive, None, [0, 130], &file);
    for _ in 0..3 {
        assert!(matches!(backend.adopt(&arrived), Err(BackendError::Full(_))), "one page is left of four");
    }
    assert!(backend.restore(&arrived).is_err(), "it is not there yet");
    drop(snapshot);
    let (adopted, _) = whole(|| backend.adopt(&arrived));
    assert_eq!(bits(&mut backend, &adopted), expected);
}

/// History and state of tokens as bytes that are all alike.
fn file_of(archive: &SnapshotArchive, [from, length]: [usize; 2], byte: u8) -> [Vec<u8>; 2] {
    [archive.history_bytes(from, length), archive.state_bytes()].map(|size| vec![byte; size as usize])
}

/// Two files that are read onto a snapshot on the device go there with it; what is past the token that one is read from is replaced.
#[test]
fn files_are_read_onto_what_is_on_the_device_and_onto_each_other() {
    let (mut backend, archive) = gpu(1, 4);
    let file = |tokens, byte| file_of(&archive, tokens, byte);
    let [first, last, state] = [file([0, 64], 1), file([64, 128], 9), file([0, 128], 9)];
    let base = [[&first[0][..], &last[0]].concat(), state[1].clone()];
    let base = adopted(&mut backend, &read(&archive, None, [0, 128], &base));
    let history = archive.read_history(Some(&base), 64, 128, &mut &file([64, 128], 2)[0][..]).expect("a history");
    let both = read(&archive, Some(&history), [128, 192], &file([128, 192], 3));
    let both = adopted(&mut backend, &both);
    let pages = [([0, 64], 1), ([64, 128], 2), ([128, 192], 3)].map(|(tokens, byte)| file(tokens, byte)[0].clone());
    let [history_of_both, state] = written(&mut backend, &archive, &both, 0, 192);
    assert!(history_of_both == pages.concat() && state.iter().all(|&byte| byte == 3));
    // Of one that is just being made as well.
    let state = backend.restore(&both).expect("a slot");
    let again = backend.snapshot(&state).expect("memory");
    assert!(written(&mut backend, &archive, &again, 128, 192) == file([128, 192], 3));
    drop((state, again));
    for from in [64, 0] {
        let bytes = file([from, 128], 4);
        let replaced = read(&archive, Some(&history), [from, 128], &bytes);
        let replaced = adopted(&mut backend, &replaced);
        assert!(written(&mut backend, &archive, &replaced, from, 128) == bytes, "from {from}");
        let [before, _] = written(&mut backend, &archive, &replaced, 0, 128);
        assert!(before[..before.len() / 2].iter().all(|&byte| byte == if from == 64 { 1 } else { 4 }), "from {from}");
    }
}

/// What lies behind the last token is another sequence's, or nobody's: zeros are written.
#[test]
fn nothing_behind_the_last_token_is_written() {
    const TOKEN: usize = 256 * 2;
    let (mut backend, archive) = gpu(1, 4);
    let snapshot = adopted(&mut backend, &read(&archive, None, [0, 70], &file_of(&archive, [0, 70], 1)));
    let [history, _] = written(&mut backend, &archive, &snapshot, 0, 70);
    let (whole, last) = history.split_at(history.len() / 2);
    assert!(whole.iter().all(|&byte| byte == 1));
    for head in last.chunks(64 * TOKEN) {
        assert!(head.iter().enumerate().all(|(index, &byte)| byte == u8::from(index < 6 * TOKEN)));
    }
}

/// Of what was fetched any end can be written, and nothing that was not fetched.
#[test]
fn what_was_fetched_is_written_from_any_token_on() {
    let (mut backend, archive) = gpu(1, 4);
    let bytes = file_of(&archive, [0, 128], 1);
    let snapshot = adopted(&mut backend, &read(&archive, None, [0, 128], &bytes));
    let (all, _) = whole(|| backend.fetch(&snapshot, 0));
    let (end, _) = whole(|| backend.fetch(&snapshot, 64));
    for fetched in [&all, &end] {
        let mut history = Vec::new();
        archive.write_history(fetched, 64, &mut history).expect("room");
        assert_eq!(history.len() as u64, archive.history_bytes(64, 128));
    }
    assert!(archive.write_history(&end, 0, &mut Vec::new()).is_err(), "its first page is not there");
}

/// A snapshot that is fetched or adopted while another is on its way, or the same from another token on, begins anew and has
/// nothing of that one.
#[test]
fn what_is_on_its_way_gives_way_whole() {
    let (mut backend, archive) = gpu(1, 4);
    let file = |byte| file_of(&archive, [0, 128], byte);
    let arriving = [1, 2].map(|byte| read(&archive, None, [0, 128], &file(byte)));
    assert!(matches!(backend.adopt(&arriving[0]), Ok(None)));
    let second = adopted(&mut backend, &arriving[1]);
    let first = adopted(&mut backend, &arriving[0]);
    assert!(matches!(backend.fetch(&first, 0), Ok(None)));
    assert!(written(&mut backend, &archive, &second, 0, 128) == file(2));
    assert!(matches!(backend.fetch(&second, 0), Ok(None)));
    let [history, state] = written(&mut backend, &archive, &second, 64, 128);
    assert_eq!(history.len() as u64, archive.history_bytes(64, 128));
    assert!(history.into_iter().chain(state).all(|byte| byte == 2));
    assert!(written(&mut backend, &archive, &first, 0, 128) == file(1));
}

/// What the device was given before has run when a snapshot begins to arrive: a device would keep all of its parts until then, and
/// nothing else need come.
#[test]
fn what_arrives_waits_for_nothing_that_was_given_before() {
    let (mut backend, archive) = gpu(1, 8);
    let mut state = backend.create().expect("a slot");
    append(&mut backend, &mut state, &text(70));
    let _frozen = backend.freeze(state).expect("memory");
    let before = backend.device().submissions();
    let arriving = read(&archive, None, [0, 130], &file_of(&archive, [0, 130], 1));
    assert!(matches!(backend.adopt(&arriving), Ok(None)));
    assert_eq!(backend.device().submissions(), before + 1);
    assert!(matches!(backend.adopt(&arriving), Ok(None)));
    assert_eq!(backend.device().submissions(), before + 1, "once");
    adopted(&mut backend, &arriving);
}

/// A device may keep what is stored until its next submission, and none need come: of what arrives it keeps no more than a sequence's
/// states are, though a reply that ends meanwhile leaves it something to do.
#[test]
fn what_arrives_is_not_kept_twice() {
    let (mut backend, archive) = gpu(1, 8);
    let file = file_of(&archive, [0, 256], 1);
    let arriving = read(&archive, None, [0, 256], &file);
    assert!(matches!(backend.adopt(&arriving), Ok(None)));
    let state = backend.create().expect("a slot");
    let _frozen = backend.freeze(state).expect("memory");
    let before = backend.device().submissions();
    let arrived = adopted(&mut backend, &arriving);
    // One at the end; the first part was stored before.
    let bytes = file.iter().map(|part| part.len() as u64).sum::<u64>() - archive.history_bytes(0, 1);
    let least = 1 + bytes / archive.state_bytes();
    assert!(least > 1 && backend.device().submissions() - before >= least, "{bytes} bytes");
    assert!(written(&mut backend, &archive, &arrived, 0, 256) == file);
}

/// As many snapshots are said to be in the way as are, of eight pages: two that share one, and one by itself.
#[test]
fn no_more_snapshots_go_than_are_in_the_way() {
    let (mut backend, archive) = gpu(1, 4);
    let blank = |onto: Option<&Snapshot>, tokens| read(&archive, onto, tokens, &file_of(&archive, tokens, 0));
    let arriving = blank(None, [0, 200]);
    let short = adopted(&mut backend, &blank(None, [0, 70]));
    let longer = adopted(&mut backend, &blank(Some(&short), [70, 130]));
    assert_eq!(backend.evictions_for(&arriving, &[&short, &longer]), Some(vec![]), "four of eight are free");
    let other = adopted(&mut backend, &blank(None, [0, 70]));
    assert!(matches!(backend.adopt(&arriving), Err(BackendError::Full(_))), "two of eight are free");
    assert_eq!(backend.evictions_for(&arriving, &[&other, &short, &longer]), Some(vec![0]));
    assert_eq!(backend.evictions_for(&arriving, &[&short, &longer, &other]), Some(vec![0, 1]));
    assert_eq!(backend.evictions_for(&arriving, &[&short, &other]), Some(vec![0, 1]));
    assert_eq!(backend.evictions_for(&arriving, &[&short]), None, "it shares one of its two");
    let elsewhere = other.clone();
    assert_eq!(backend.evictions_for(&arriving, &[&other, &short]), None, "somebody else has it");
    assert_eq!(backend.evictions_for(&arriving, &[&other, &short, &longer]), Some(vec![1, 2]), "and it stays");
    drop(elsewhere);
    let state = backend.restore(&longer).expect("a slot");
    assert_eq!(backend.evictions_for(&arriving, &[&short, &longer]), None, "a sequence has its pages");
    assert_eq!(backend.evictions_for(&arriving, &[&longer, &other]), Some(vec![1]), "so it may stay");
    drop((state, short));
    assert!(matches!(backend.adopt(&arriving), Err(BackendError::Full(_))), "three are free");
    drop(longer);
    assert!(backend.adopt(&arriving).is_ok());
}

/// What is on disk is found again only by what computes the same bits: its name has the device's in it, and that of the kernels.
#[test]
fn the_name_of_what_is_on_disk_is_that_of_the_bits() {
    let (backend, archive) = gpu(2, 16);
    let fingerprint = backend.device().fingerprint();
    assert!(archive.format().contains(&fingerprint), "{} lacks {fingerprint}", archive.format());
    assert_eq!(gpu(1, 0).1.format(), archive.format(), "how many sequences there are changes no bit");
    assert_ne!(device(false).fingerprint(), fingerprint, "kernels of no shapes are others");
    assert_ne!(of_device(device(true), 2, 16).1.format(), archive.format(), "other tiles");
}

/// Bytes of another kind are refused.
#[test]
fn what_does_not_follow_is_refused() {
    let (mut backend, archive) = gpu(1, 0);
    let mut state = backend.create().expect("a slot");
    append(&mut backend, &mut state, &text(70));
    let snapshot = backend.freeze(state).expect("memory");
    assert!(archive.write_state(&snapshot, &mut Vec::new()).is_err(), "it is on the device");
    assert!(archive.read_history(None, 64, 70, &mut io::repeat(0)).is_err(), "of what comes before there is nothing");
    assert!(archive.read_history(Some(&snapshot), 128, 130, &mut io::repeat(0)).is_err(), "it ends at 70");
    assert!(archive.read_history(Some(&snapshot), 64, 70, &mut &[0; 100][..]).is_err(), "too few bytes");
}
