//! The kernels of Lily themselves.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use lily_msl::Library;

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels")
}

/// Pieces of a source: words, numbers and single characters.
fn pieces(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = if is_word(first) { rest.find(|c| !is_word(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        pieces.push(&rest[..end]);
        rest = &rest[end..];
    }
    pieces
}

#[test]
fn no_text_makes_the_parser_panic() {
    let model = fs::read_to_string(kernels().join("model.h")).expect("model.h");
    for file in ["tile.h", "advance.metal"] {
        let text = fs::read_to_string(kernels().join(file)).expect(file);
        let pieces = pieces(&text);
        let parse = |text: &str| drop(Library::from_sources(&[("model.h", model.as_str()), (file, text)]));
        for at in (0..pieces.len()).filter(|&at| !pieces[at].trim().is_empty()) {
            let (before, after) = (pieces[..at].concat(), pieces[at + 1..].concat());
            parse(&before);
            parse(&format!("{before}{after}"));
            parse(&format!("{before}{}{}{after}", pieces[at], pieces[at]));
            parse(&format!("{before}[{after}"));
            parse(&format!("{before};{after}"));
        }
    }
}

#[test]
fn files_are_short() {
    let folders = [kernels(), kernels().join("ablate"), kernels().join("cuda")];
    let mut kinds = BTreeSet::new();
    for entry in folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder of kernels")) {
        let path = entry.expect("an entry").path();
        let Some(kind) = path.extension().filter(|kind| ["metal", "h", "cu"].iter().any(|code| kind == code)) else {
            continue;
        };
        let lines = fs::read_to_string(&path).expect("text").lines().count();
        assert!(lines < 200, "{}: {lines} lines", path.display());
        kinds.insert(kind.to_owned());
    }
    assert_eq!(kinds.len(), 3, "{kinds:?}");
}

#[test]
fn the_kernels_keep_to_the_dialect() {
    let library = Library::parse(&kernels()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(library.function_constants().len(), 10);
    for kernel in library.kernels() {
        assert!(kernel.max_threads.is_multiple_of(32), "{}: {} threads", kernel.name, kernel.max_threads);
        let twin = kernel.name.strip_suffix("_tensor");
        let Some(twin) = twin.map(|name| library.kernels().iter().find(|other| other.name == name)) else {
            continue;
        };
        // A device takes one for the other.
        let twin = twin.unwrap_or_else(|| panic!("{} stands for nothing", kernel.name));
        assert_eq!((&kernel.arguments, &kernel.parameters), (&twin.arguments, &twin.parameters), "{}", kernel.name);
        assert_eq!(kernel.max_threads, twin.max_threads, "{}", kernel.name);
    }
}
