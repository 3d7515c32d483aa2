//! What the fuzzers have found stays found: every input that is kept is run again.

use std::fs;
use std::path::{Path, PathBuf};

fn inputs(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    inputs.sort();
    inputs
}

fn replay(target: &str, run: fn(&[u8])) {
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
        $(#[test]
        fn $target() {
            replay(stringify!($target), lily_fuzz_targets::$target);
        })*
    };
}

corpora!(tool_calls, reasoning, safetensors_header, request_bodies, template_inputs, grammars);
