//! What the fuzzers have found stays found: every input that is kept is run again.

use std::fs;
use std::path::{Path, PathBuf};

use lily_fuzz_targets::TARGETS;

fn inputs(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    inputs.sort();
    inputs
}

#[test]
fn kept_inputs_hold() {
    for (name, target) in TARGETS {
        let inputs = inputs(name);
        assert!(inputs.len() >= 10, "{name} has a corpus");
        for input in inputs {
            // The last line before a panic says of which input it is.
            println!("{}", input.display());
            target(&fs::read(&input).expect("an input"));
        }
    }
}
