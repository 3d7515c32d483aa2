//! `lily bench` as a user runs it, with the embedded checkpoint. Nothing here depends on how fast the machine is.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// `lily bench` where no checkpoint is found but the embedded one.
fn bench(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    command.current_dir(dir).env_remove("LILY_MODEL").env_remove("HF_HUB_CACHE").env("HF_HOME", dir);
    command.arg("bench").args(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn every_output_has_every_length_and_runs_agree() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let measured = |extra: &[&str]| {
        let args = ["--lengths", "8,600", "--steps", "4", "--repeats", "2"];
        let output = bench(dir.path(), &[&args, extra].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        output
    };
    let output = measured(&["--threads", "2", "--json", "out.json", "--csv", "out.csv", "--plot", "out.svg"]);
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect(name);
    let json: Value = serde_json::from_str(&read("out.json")).expect("JSON");
    assert_eq!((&json["model"], &json["settings"]["threads"]), (&"lily-tiny".into(), &2.into()));
    for roof in ["read_gb_per_second", "peak_gmac_per_second"] {
        assert!(json["machine"][roof].as_f64().expect(roof) > 0.0, "{json}");
    }
    let rows = json["lengths"].as_array().expect("rows");
    let table = text(&output.stdout).lines().map(str::split_whitespace);
    let table: Vec<Vec<&str>> =
        table.map(Iterator::collect).skip_while(|line: &Vec<&str>| line.first() != Some(&"length")).collect();
    let csv = read("out.csv");
    let csv: Vec<&str> = csv.lines().collect();
    assert_eq!((rows.len(), table.len(), csv.len()), (2, 3, 3), "{json} {}", text(&output.stdout));
    for (index, (row, length)) in rows.iter().zip(["8", "600"]).enumerate() {
        let digest = row["digest"].as_str().expect("a digest");
        assert_eq!(row["length"].to_string(), length);
        assert_eq!(row["prefill_seconds"].as_array().map(Vec::len), Some(2));
        assert_eq!((table[index + 1].first(), table[index + 1].last()), (Some(&length), Some(&digest)));
        assert!(csv[index + 1].starts_with("lily-tiny,") && csv[index + 1].ends_with(digest), "{csv:?}");
    }
    assert!(read("out.svg").starts_with("<svg"));

    // Other processes, another number of threads: the same tokens.
    let output = measured(&["--threads", "1", "--json", "-"]);
    let again: Value = serde_json::from_slice(&output.stdout).expect("JSON alone on standard output");
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(again["lengths"][index]["digest"], row["digest"]);
    }
    assert!(text(&output.stderr).contains("tokens/s"), "the table gives way");
}

#[test]
fn what_cannot_be_measured_is_said_before_it_is() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (args, wanted) in [
        (&["--lengths", "1000", "--max-context", "1024"][..], "1064 tokens, the context holds 1024"),
        (&["--max-context", "300"], "--lengths"),
        (&["--lengths", "0"], "--lengths"),
        (&["--lengths", "8", "--json", "nowhere/out.json"], "nowhere/out.json: cannot be written"),
        (&["--lengths", "8", "--json", "-", "--csv", "-"], "standard output"),
        (&["--model", "nothing"], "nothing does not exist"),
    ] {
        let output = bench(dir.path(), args);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(wanted), "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
