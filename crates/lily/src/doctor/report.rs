//! What was found, for people as it is found, for programs at the end.

use std::io::{Write, stdout};

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// How it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// It runs, but not as one may expect.
    Warning,
    Failure,
}

/// What a check found.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    verdict: Verdict,
    /// What is there.
    message: String,
    /// What is wrong with it, or to be done.
    notes: Vec<String>,
    /// For programs.
    #[serde(flatten)]
    data: Map<String, Value>,
}

impl Finding {
    /// All is well.
    pub(super) fn good(message: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, message: message.into(), notes: Vec::new(), data: Map::new() }
    }

    fn failure(message: String) -> Self {
        Self { verdict: Verdict::Failure, ..Self::good(message) }
    }

    /// With a figure.
    pub(super) fn with(mut self, name: &str, value: Value) -> Self {
        self.data.insert(name.into(), value);
        self
    }

    /// And more to read, which is no fault.
    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// But this.
    pub(super) fn warn(mut self, note: impl Into<String>) -> Self {
        if self.verdict == Verdict::Ok {
            self.verdict = Verdict::Warning;
        }
        self.note(note)
    }

    /// And that is a fault.
    pub(super) fn fail(mut self, note: impl Into<String>) -> Self {
        self.verdict = Verdict::Failure;
        self.note(note)
    }
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

/// All checks.
pub(super) struct Report {
    json: bool,
    checks: Vec<Check>,
}

impl Report {
    /// Prints text as it comes, or JSON at the end.
    pub(super) fn new(json: bool) -> Self {
        Self { json, checks: Vec::new() }
    }

    /// Looks, and reports; gives what others can build on, unless the look failed.
    pub(super) fn check<T>(
        &mut self,
        name: &'static str,
        look: impl FnOnce() -> Result<(Finding, T)>,
    ) -> Result<Option<T>> {
        let (finding, found) = match look() {
            Ok((finding, found)) => (finding, Some(found)),
            Err(error) => (Finding::failure(format!("{error:#}")), None),
        };
        if !self.json {
            write_text(&mut stdout().lock(), name, &finding)?;
        }
        self.checks.push(Check { name, finding });
        Ok(found)
    }

    pub(super) fn failures(&self) -> usize {
        self.checks.iter().filter(|check| check.finding.verdict == Verdict::Failure).count()
    }

    /// Prints what is to be printed at the end.
    pub(super) fn end(&self) -> Result<()> {
        if self.json {
            let all = json!({"lily": env!("CARGO_PKG_VERSION"), "ok": self.failures() == 0, "checks": self.checks});
            writeln!(stdout().lock(), "{all:#}")?;
        }
        Ok(())
    }
}

fn write_text(out: &mut impl Write, name: &str, finding: &Finding) -> Result<()> {
    let verdict = match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Failure => "FAILED",
    };
    let mut lines = finding.message.lines();
    writeln!(out, "{verdict:<8} {name:<11} {}", lines.next().unwrap_or_default())?;
    for line in lines.chain(finding.notes.iter().flat_map(|note| note.lines())) {
        writeln!(out, "{:20} {line}", "")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use serde_json::json;

    use super::{Finding, Report, write_text};

    #[test]
    fn the_worst_is_told() {
        let mut report = Report::new(true);
        let found = report.check("one", || Ok((Finding::good("fine").warn("but").note("read"), 7))).expect("no output");
        assert_eq!((found, report.failures()), (Some(7), 0));
        report.check("two", || Ok((Finding::good("fine").fail("not").warn("but"), ()))).expect("no output");
        let gone = report.check::<()>("three", || Err(anyhow!("gone"))).expect("no output");
        assert_eq!((gone, report.failures()), (None, 2));
        let verdicts: Vec<_> = report.checks.iter().map(|check| json!(check)["verdict"].clone()).collect();
        assert_eq!(verdicts, ["warning", "failure", "failure"]);
    }

    #[test]
    fn text_is_aligned() {
        let mut text = Vec::new();
        write_text(&mut text, "disk", &Finding::good("much\nmore").fail("too little")).expect("a vector takes all");
        let wanted = format!("FAILED   disk        much\n{0}more\n{0}too little\n", " ".repeat(21));
        assert_eq!(String::from_utf8(text).expect("text"), wanted);
    }
}
