//! Which checkpoint is run: asked for, then the variable, then the cache, then the embedded one.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use common::{Spoilt, assert_says};
use lily_checkpoint::{Environment, Source, locate};
use tempfile::TempDir;

const ENTRY: &str = "models--mlx-community--Qwen3.6-35B-A3B-4bit";

/// Puts a checkpoint's files into the cache `hub` as a snapshot. As the real cache does, by links to blobs.
fn snapshot(hub: &Path, revision: &str, complete: bool) -> PathBuf {
    let spoilt = Spoilt::new();
    spoilt.write();
    let blobs = hub.join(ENTRY).join("blobs");
    let snapshot = hub.join(ENTRY).join("snapshots").join(revision);
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let blob = blobs.join(format!("{revision}-{name}"));
        if name == "model.safetensors" && !complete {
            fs::write(blob.with_extension("incomplete"), "").unwrap();
        } else {
            fs::copy(spoilt.file(name), &blob).unwrap();
            symlink(&blob, snapshot.join(name)).unwrap();
        }
    }
    snapshot
}

fn set_main(hub: &Path, revision: &str) {
    fs::create_dir_all(hub.join(ENTRY).join("refs")).unwrap();
    fs::write(hub.join(ENTRY).join("refs/main"), revision).unwrap();
}

#[test]
fn what_is_asked_for_is_taken_as_it_is() {
    let cache = TempDir::new().unwrap();
    snapshot(cache.path(), "aaaa", true);
    let environment = Environment {
        lily_model: Some("/from/the/variable".into()),
        hf_hub_cache: Some(cache.path().into()),
        ..Environment::default()
    };
    let explicit = locate(Some(Path::new("/asked/for")), &environment).source;
    assert_eq!(explicit, Source::Directory("/asked/for".into()));
    assert_says(&explicit.open().unwrap_err().to_string(), "/asked/for does not exist");
    assert_eq!(locate(None, &environment).source, Source::Directory("/from/the/variable".into()));
}

#[test]
fn without_a_download_it_is_the_embedded_one() {
    let empty = TempDir::new().unwrap();
    for environment in [
        Environment::default(),
        Environment { home: Some(empty.path().into()), ..Environment::default() },
        Environment { hf_hub_cache: Some("/no/such/cache".into()), ..Environment::default() },
    ] {
        let located = locate(None, &environment);
        assert_eq!((located.source.clone(), located.notes.len()), (Source::Embedded, 0));
        assert_eq!(located.source.open().unwrap().name(), "lily-tiny");
    }
}

#[test]
fn the_cache_is_found_where_hugging_face_puts_it() {
    let place = TempDir::new().unwrap();
    let [hub, home, user] = ["one", "two/hub", "three/.cache/huggingface/hub"].map(|hub| place.path().join(hub));
    let [one, two, three] = [&hub, &home, &user].map(|hub| Source::Directory(snapshot(hub, "aaaa", true)));
    let mut environment = Environment {
        hf_hub_cache: Some(hub),
        hf_home: Some(place.path().join("two")),
        home: Some(place.path().join("three")),
        ..Environment::default()
    };
    assert_eq!(locate(None, &environment).source, one);
    assert_eq!(one.open().unwrap().name(), "mlx-community/Qwen3.6-35B-A3B-4bit");
    environment.hf_hub_cache = None;
    assert_eq!(locate(None, &environment).source, two);
    environment.hf_home = None;
    assert_eq!(locate(None, &environment).source, three);
}

#[test]
fn main_is_preferred_then_the_newest_complete_snapshot() {
    let cache = TempDir::new().unwrap();
    let environment = Environment { hf_hub_cache: Some(cache.path().into()), ..Environment::default() };
    let [old, new, newest] = ["cccc", "bbbb", "aaaa"].map(|revision| snapshot(cache.path(), revision, true));
    for (age, snapshot) in [(300, &old), (200, &new), (100, &newest)] {
        let time = SystemTime::now() - Duration::from_secs(age);
        fs::File::open(snapshot).unwrap().set_modified(time).unwrap();
    }
    let found = || locate(None, &environment);
    assert_eq!(found().source, Source::Directory(newest.clone()));
    set_main(cache.path(), "cccc\n");
    assert_eq!(found().source, Source::Directory(old.clone()));
    assert_eq!(found().notes, [""; 0]);

    // An incomplete main is passed over, and said.
    fs::remove_file(old.join("tokenizer.json")).unwrap();
    assert_eq!(found().source, Source::Directory(newest.clone()));
    assert_says(&found().notes[0], "passed over a download of mlx-community/Qwen3.6-35B-A3B-4bit");
    assert_says(&found().notes[0], "there is no tokenizer.json");
    set_main(cache.path(), "../../elsewhere");
    assert_eq!(found().source, Source::Directory(newest));
}

#[test]
fn a_download_under_way_is_passed_over() {
    let cache = TempDir::new().unwrap();
    snapshot(cache.path(), "aaaa", false);
    set_main(cache.path(), "aaaa");
    let located = locate(None, &Environment { hf_hub_cache: Some(cache.path().into()), ..Environment::default() });
    assert_eq!(located.source, Source::Embedded);
    assert_says(
        &located.notes[0],
        "there is no model.safetensors, and a download of it may be under way (1 .incomplete file)",
    );
}
