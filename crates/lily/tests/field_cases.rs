//! docs/field-cases.md names a test for each case, and each is where it says.

use std::fs;
use std::path::Path;

const CASES: usize = 44;

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_field_case_has_tests_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let cases = read("docs/field-cases.md");
    let mut lines = cases.lines();
    let mut number = 0;
    while let Some(line) = lines.next() {
        if !line.starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        number += 1;
        assert!(line.starts_with(&format!("{number}. ")), "after case {}: {line}", number - 1);
        let tests = lines.next().and_then(|line| line.strip_prefix("   - "));
        let tests = tests.unwrap_or_else(|| panic!("case {number} names no tests"));
        for of_file in tests.split("; ") {
            let (file, names) = of_file.split_once(": ").unwrap_or_else(|| panic!("case {number}: {of_file}"));
            let source = read(quoted(file).next().unwrap_or_else(|| panic!("case {number}: {file}")));
            assert!(quoted(names).next().is_some(), "case {number}: no test in {file}");
            for name in quoted(names) {
                let is_there = ["fn", "def"].iter().any(|word| source.contains(&format!("{word} {name}(")));
                assert!(is_there, "case {number}: there is no {name} in {file}");
            }
        }
    }
    assert_eq!(number, CASES);
}
