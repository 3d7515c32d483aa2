//! `lily pull` against a hub that this test serves: what it leaves in the cache, and what it makes of all that can go wrong.

mod hub;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use axum::body::Bytes;
use hub::{Asked, Hub, Kind, PART, REPOSITORY, REVISION, Reaction, Served};
use serde_json::json;
use tempfile::TempDir;

/// Lily Tiny in the place of the 35B, and a large file of no use of four parts, the last a short one.
fn files() -> Vec<Served> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny");
    let read = |name: &'static str, large| {
        let bytes = Bytes::from(fs::read(folder.join(name)).expect("a file of Lily Tiny"));
        Served { name, bytes, large }
    };
    vec![
        read("config.json", false),
        read("generation_config.json", false),
        read("chat_template.jinja", false),
        read("tokenizer_config.json", false),
        read("tokenizer.json", true),
        read("model.safetensors", true),
        ballast(),
        Served { name: "notes/a file.txt", bytes: Bytes::from_static(b"of no use"), large: false },
        Served { name: "empty", bytes: Bytes::new(), large: false },
    ]
}

fn ballast() -> Served {
    let bytes: Vec<u8> =
        (0..3 * PART as u32 + 1000).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    Served { name: "ballast.bin", bytes: bytes.into(), large: true }
}

/// Only what is quickly there: for tests that end before a checkpoint is whole.
fn few() -> Vec<Served> {
    files().into_iter().filter(|file| matches!(file.name, "config.json" | "ballast.bin")).collect()
}

/// A cache of its own, and the hub to fill it from.
struct Place {
    home: TempDir,
    hub: Hub,
}

impl Place {
    fn new(files: Vec<Served>, plan: impl FnMut(&Asked) -> Reaction + Send + 'static) -> Self {
        Self { home: tempfile::tempdir().expect("a folder"), hub: Hub::start(files, plan) }
    }

    fn lily(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
        for name in [
            "LILY_MODEL",
            "HF_HUB_CACHE",
            "HF_TOKEN",
            "HTTPS_PROXY",
            "HTTP_PROXY",
            "ALL_PROXY",
            "https_proxy",
            "http_proxy",
            "all_proxy",
        ] {
            command.env_remove(name);
        }
        command.args(args).env("HF_HOME", self.home.path()).env("HF_ENDPOINT", format!("http://{}/", self.hub.address));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn pull(&self) -> Output {
        self.lily(&["pull"]).output().expect("the program starts")
    }

    fn entry(&self) -> PathBuf {
        self.home.path().join("hub").join(format!("models--{}", REPOSITORY.replace('/', "--")))
    }

    fn snapshot(&self) -> PathBuf {
        self.entry().join("snapshots").join(REVISION)
    }

    /// Each file is there, whole and as the cache has it.
    fn is_whole(&self, files: &[Served]) {
        for file in files {
            let path = self.snapshot().join(file.name);
            assert!(fs::read(&path).expect("the file") == file.bytes, "{}", file.name);
            let depth = file.name.split('/').count() + 1;
            let target = PathBuf::from(format!("{}blobs/{}", "../".repeat(depth), file.digest()));
            assert_eq!(fs::read_link(&path).expect("a link"), target);
        }
        let blobs = fs::read_dir(self.entry().join("blobs")).expect("blobs").count();
        assert_eq!(blobs, files.len(), "nothing is left over");
    }

    /// Ends with these words, and with a panic never; gives how often each kind was asked for.
    fn fails(&self, wanted: &[&str]) -> Vec<Asked> {
        let output = self.pull();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        for wanted in wanted {
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
        assert!(!said.contains("signature"), "{said}");
        self.hub.asked()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn good(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn proper(_: &Asked) -> Reaction {
    Reaction::Proper
}

/// Bytes of a large file that were asked for.
fn stored(asked: &[Asked]) -> Vec<(usize, usize)> {
    let ranges = asked.iter().filter(|asked| asked.kind == Kind::Storage && asked.name == "ballast.bin");
    let mut ranges: Vec<_> = ranges.filter_map(|asked| asked.range).collect();
    ranges.sort_unstable();
    ranges
}

#[test]
fn what_is_pulled_is_what_serve_finds() {
    let place = Place::new(files(), proper);
    let output = place.lily(&["pull"]).env("HF_TOKEN", "hf_secret").output().expect("the program starts");
    assert_eq!(good(&output), format!("{}\n", place.snapshot().display()));
    place.is_whole(&files());
    let asked = place.hub.asked();
    // The storage is told no token, the hub always.
    for asked in &asked {
        let token = (asked.kind != Kind::Storage).then(|| "Bearer hf_secret".to_owned());
        assert_eq!(asked.token, token, "{asked:?}");
    }
    let ends = [0, PART, 2 * PART, 3 * PART, 3 * PART + 1000];
    assert_eq!(stored(&asked), ends.windows(2).map(|ends| (ends[0], ends[1])).collect::<Vec<_>>());

    let inspected = place.lily(&["inspect"]).output().expect("the program starts");
    assert!(good(&inspected).starts_with(REPOSITORY), "{}", text(&inspected.stdout));
    assert!(text(&output.stderr).contains("complete and checked; `lily serve` finds it"), "{}", text(&output.stderr));

    let again = place.pull();
    good(&again);
    assert!(text(&again.stderr).contains("complete by the files' sizes"), "{}", text(&again.stderr));
    assert!(place.hub.asked().iter().all(|asked| asked.kind == Kind::Listing), "it is there already");
}

#[test]
fn connections_that_break_are_taken_up_again() {
    let place = Place::new(files(), |asked| match asked {
        Asked { kind: Kind::Storage, before: 0, range: Some((first, end)), .. } if end - first > 500 => {
            Reaction::Drop((end - first) / 2)
        }
        Asked { kind: Kind::Listing | Kind::Resolve, before: 0, .. } => Reaction::Status(503),
        _ => Reaction::Proper,
    });
    good(&place.pull());
    place.is_whole(&files());
    let ranges = stored(&place.hub.asked());
    assert!(
        ranges.iter().any(|(first, _)| first % PART != 0),
        "what came before the break is not asked for again: {ranges:?}"
    );
}

#[test]
fn what_is_not_what_was_asked_for_is_asked_for_again() {
    for misbehaviour in [Reaction::WrongRange, Reaction::Status(500), Reaction::Status(429), Reaction::Whole] {
        let once = misbehaviour.clone();
        let place = Place::new(few(), move |asked| match asked {
            Asked { kind: Kind::Storage, before: 0, .. } => once.clone(),
            _ => Reaction::Proper,
        });
        // The checkpoint lacks its weights: it is downloaded, and then cannot be used.
        place.fails(&["cannot be used"]);
        place.is_whole(&few());
    }
}

#[test]
fn a_damaged_file_is_fetched_once_more() {
    let place = Place::new(files(), |asked| match asked {
        Asked { kind: Kind::Storage, before: 0, range: Some((PART, _)), .. } => Reaction::Corrupt,
        _ => Reaction::Proper,
    });
    good(&place.pull());
    place.is_whole(&files());
}

#[test]
fn a_file_that_is_always_damaged_never_gets_its_name() {
    let place = Place::new(few(), |asked| match asked {
        Asked { kind: Kind::Storage, .. } => Reaction::Corrupt,
        _ => Reaction::Proper,
    });
    place.fails(&["ballast.bin came twice with another digest", "HF_ENDPOINT"]);
    assert!(!place.snapshot().join("ballast.bin").exists());
    assert!(!place.entry().join("blobs").join(ballast().digest()).exists());
    place.hub.behave();
    place.fails(&["cannot be used"]);
    place.is_whole(&few());
}

#[test]
fn refusals_say_what_to_do() {
    for (status, wanted, tries) in [
        (401, "HF_TOKEN", 1),
        (403, "does not let you read", 1),
        (404, "does not have revision", 1),
        (418, "is HF_ENDPOINT right?", 1),
        (429, "too many requests", 3),
        (500, "it is in trouble", 3),
    ] {
        let place = Place::new(few(), move |_| Reaction::Status(status));
        assert_eq!(place.fails(&[&status.to_string(), wanted]).len(), tries, "{status}");
    }
    // On the way to a file, too.
    let place = Place::new(few(), |asked| match asked.kind {
        Kind::Listing => Reaction::Proper,
        _ => Reaction::Status(404),
    });
    place.fails(&["404", "the same command goes on from it"]);
    let place = Place::new(few(), |asked| if asked.kind == Kind::Storage { Reaction::Whole } else { Reaction::Proper });
    place.fails(&["ballast.bin", "gives the whole file when asked for a part of it"]);
}

#[test]
fn a_token_that_is_not_taken_is_said() {
    let place = Place::new(few(), |_| Reaction::Status(401));
    let output = place.lily(&["pull"]).env("HF_TOKEN", "hf_wrong").output().expect("the program starts");
    assert!(text(&output.stderr).contains("does not take the token"), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("hf_wrong"));
}

#[test]
fn an_address_that_has_expired_is_renewed() {
    let mut given = 0;
    let place = Place::new(files(), move |asked| {
        if asked.kind != Kind::Storage {
            return Reaction::Proper;
        }
        given += 1;
        if given == 3 { Reaction::Status(403) } else { Reaction::Proper }
    });
    good(&place.pull());
    place.is_whole(&files());
}

#[test]
fn a_killed_run_goes_on_where_it_was() {
    // Two parts come, the others never.
    let place = Place::new(files(), |asked| match asked {
        Asked { kind: Kind::Storage, range: Some((first, _)), .. } if *first >= 2 * PART => Reaction::Silence,
        _ => Reaction::Proper,
    });
    let journal = place.entry().join("blobs").join(format!("{}.lily.parts", ballast().digest()));
    let mut child = place.lily(&["pull"]).spawn().expect("the program starts");
    wait_until(&mut child, || fs::read_to_string(&journal).is_ok_and(|marks| marks.ends_with("1100")));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    place.hub.asked();
    place.hub.behave();
    let output = place.pull();
    good(&output);
    assert!(text(&output.stderr).contains("of it there already"), "{}", text(&output.stderr));
    place.is_whole(&files());
    assert_eq!(stored(&place.hub.asked()), [(2 * PART, 3 * PART), (3 * PART, 3 * PART + 1000)]);
}

#[test]
fn two_at_once_do_not_disturb_each_other() {
    let place =
        Place::new(few(), |asked| if asked.kind == Kind::Storage { Reaction::Silence } else { Reaction::Proper });
    let partial = place.entry().join("blobs").join(format!("{}.lily.incomplete", ballast().digest()));
    let mut child = place.lily(&["pull"]).spawn().expect("the program starts");
    wait_until(&mut child, || partial.exists());
    place.fails(&["another `lily pull`"]);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn damage_in_the_cache_is_found_when_asked_for() {
    let place = Place::new(files(), proper);
    good(&place.pull());
    let blob = place.entry().join("blobs").join(ballast().digest());
    let mut bytes = fs::read(&blob).expect("the file");
    bytes[PART + 7] ^= 1;
    fs::write(&blob, bytes).expect("writes");
    place.hub.asked();
    good(&place.pull());
    assert_eq!(place.hub.asked().len(), 1, "sizes are all that is looked at unasked");
    let output = place.lily(&["pull", "--check"]).output().expect("the program starts");
    good(&output);
    for wanted in ["ballast.bin: damaged", "complete and checked"] {
        assert!(text(&output.stderr).contains(wanted), "{}", text(&output.stderr));
    }
    place.is_whole(&files());
}

#[test]
fn without_the_hub_what_is_there_is_checked() {
    let place = Place::new(files(), proper);
    let offline = || {
        let mut command = place.lily(&["pull", "--check"]);
        command.env("HF_ENDPOINT", "http://127.0.0.1:1").output().expect("the program starts")
    };
    let nothing = offline();
    assert_eq!((nothing.status.code(), text(&nothing.stdout)), (Some(1), ""));
    let said = text(&nothing.stderr);
    assert!(said.contains("there is nothing to check") && said.contains("cannot be reached"), "{said}");
    assert!(fs::read_dir(place.home.path()).expect("the home").next().is_none(), "nothing is left there");
    good(&place.pull());
    let sound = offline();
    assert_eq!(good(&sound), format!("{}\n", place.snapshot().display()));
    let said = text(&sound.stderr);
    for wanted in [
        "cannot be reached",
        "offline",
        "ballast.bin: as it should be",
        "all that is needed is there; `lily serve` finds it",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert_eq!(said.matches(": as it should be").count(), files().len(), "{said}");
    let blob = place.entry().join("blobs").join(ballast().digest());
    // A copy in the place of a link has no name that tells what it should be.
    let link = place.snapshot().join("ballast.bin");
    let target = fs::read_link(&link).expect("a link");
    fs::remove_file(&link).expect("removes");
    fs::copy(&blob, &link).expect("copies");
    let copied = offline();
    assert_eq!((copied.status.code(), text(&copied.stdout)), (Some(1), ""));
    let said = text(&copied.stderr);
    let count = format!("1 of {} files cannot be checked", files().len());
    assert!(said.contains(&count) && !said.contains("needed is there"), "{said}");
    fs::remove_file(&link).expect("removes");
    symlink(target, &link).expect("links");
    let mut bytes = fs::read(&blob).expect("the file");
    bytes[7] ^= 1;
    fs::write(&blob, &bytes).expect("writes");
    let damaged = offline();
    assert_eq!(damaged.status.code(), Some(1));
    assert!(text(&damaged.stderr).contains("ballast.bin: damaged"), "{}", text(&damaged.stderr));
    // It is kept until something better can be had.
    assert!(fs::read(&blob).expect("the file") == bytes);
    // A checkpoint with a file less is no checkpoint.
    fs::remove_file(&blob).expect("removes");
    fs::remove_file(place.snapshot().join("ballast.bin")).expect("removes");
    fs::remove_file(place.snapshot().join("tokenizer.json")).expect("removes");
    let cut = offline();
    assert_eq!(cut.status.code(), Some(1));
    assert!(text(&cut.stderr).contains("tokenizer.json"), "{}", text(&cut.stderr));
}

#[test]
fn files_of_one_content_are_downloaded_once() {
    let twice = || files().into_iter().chain([Served { name: "notes/again.bin", ..ballast() }]).collect::<Vec<_>>();
    let place = Place::new(twice(), proper);
    let first = place.pull();
    good(&first);
    assert!(text(&first.stderr).contains("complete and checked"), "{}", text(&first.stderr));
    for file in twice() {
        assert!(fs::read(place.snapshot().join(file.name)).expect("the file") == file.bytes, "{}", file.name);
    }
    let stored =
        place.hub.asked().into_iter().filter(|asked| asked.kind == Kind::Storage && asked.name.ends_with(".bin"));
    assert_eq!(stored.count(), 4);
}

#[test]
fn what_does_not_fit_is_not_begun() {
    // A thousand files of a terabyte.
    let file = |number: u32| json!({"rfilename": format!("{number}.safetensors"), "lfs": {"sha256": format!("{number:064}"), "size": 1_u64 << 40}});
    let huge = json!({"sha": REVISION, "siblings": (0..1000).map(file).collect::<Vec<_>>()});
    let place = Place::new(few(), move |_| Reaction::Says(huge.clone()));
    let asked = place.fails(&["free", "the download needs", "HF_HOME"]);
    assert_eq!(asked.len(), 1);
    assert_eq!(fs::read_dir(place.entry().join("blobs")).expect("blobs").count(), 0);
}

#[test]
fn a_hub_that_is_none_is_not_followed() {
    for (says, wanted) in [
        (json!("hello"), "does not answer as the hub does"),
        (json!({"sha": "main", "siblings": []}), "is HF_ENDPOINT a whole mirror?"),
        (
            json!({"sha": REVISION, "siblings": [{"rfilename": "../../../x", "size": 1, "blobId": "0".repeat(40)}]}),
            "../../../x",
        ),
        (
            json!({"sha": REVISION, "siblings": [{"rfilename": "x", "size": 1, "blobId": "../x"}]}),
            "neither size nor digest",
        ),
    ] {
        let place = Place::new(few(), move |_| Reaction::Says(says.clone()));
        place.fails(&[wanted]);
    }
    let place = Place::new(few(), proper);
    for (endpoint, wanted) in [("nonsense", "HF_ENDPOINT is \"nonsense\""), ("http://127.0.0.1:1", "cannot be reached")]
    {
        let output = place.lily(&["pull"]).env("HF_ENDPOINT", endpoint).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(wanted), "{}", text(&output.stderr));
    }
}

/// A program that ends before, or never gets there, fails the test.
fn wait_until(child: &mut Child, holds: impl Fn() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        assert!(child.try_wait().expect("a child").is_none(), "it ended");
        sleep(Duration::from_millis(20));
    }
    panic!("never came");
}
