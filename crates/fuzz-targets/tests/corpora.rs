//! What the fuzzers have found stays found: every input that is kept is run again.

use std::fs;
use std::path::{Path, PathBuf};

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn inputs(target: &str) -> Vec<PathBuf> {
    let folder = fuzz().join("corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    inputs.sort();
    inputs
}

fn replay(target: &str, run: fn(&[u8])) {
    // The fuzzers are compiled by nightly compilers only: that one calls its target is seen by its text.
    let path = fuzz().join("fuzz_targets").join(target).with_extension("rs");
    let fuzzer = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(fuzzer.contains(&format!("lily_fuzz_targets::{target}(data)")), "{}: {fuzzer}", path.display());
    let inputs = inputs(target);
    assert!(inputs.len() >= 10, "{target} has a corpus");
    for input in inputs {
        // The last line before a panic says of which input it is.
        println!("{}", input.display());
        run(&fs::read(&input).expect("an input"));
    }
}

macro_rules! corpora {
    ($($target:ident),*) => {
        #[test]
        fn every_fuzzer_has_a_target() {
            let fuzzers = fs::read_dir(fuzz().join("fuzz_targets")).expect("the fuzzers").count();
            assert_eq!(fuzzers, [$(stringify!($target)),*].len());
        }

        $(#[test]
        fn $target() {
            replay(stringify!($target), lily_fuzz_targets::$target);
        })*
    };
}

corpora!(tool_calls, reasoning, safetensors_header, request_bodies, template_inputs, grammars);
