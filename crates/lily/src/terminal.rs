//! What chat and run show while they wait and while they answer.

use std::fmt::Display;
use std::future::pending;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

/// A prompt that takes longer than this gets a progress bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes a line on stderr. That nobody reads it is no reason to stop, as it is for `eprintln!`.
pub(crate) fn tell(message: impl Display) {
    let _unread = writeln!(stderr(), "{message}");
}

/// Completes at the next Ctrl-C, which then does not end the program.
pub(crate) async fn interrupt() {
    // Without a handler Ctrl-C just ends the program, which is no worse.
    if tokio::signal::ctrl_c().await.is_err() {
        pending::<()>().await;
    }
}

/// Progress of a prefill on stderr, shown only when it lasts.
pub(crate) struct PrefillProgress {
    started: Instant,
    updates: usize,
    bar: Option<ProgressBar>,
}

impl PrefillProgress {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), updates: 0, bar: None }
    }

    /// `done` of `total` prompt tokens are in.
    pub(crate) fn update(&mut self, done: usize, total: usize) {
        self.updates += 1;
        if self.bar.is_none() && self.started.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("reading the prompt {bar:30} {pos}/{len} tokens{msg}");
            let bar = ProgressBar::new(total as u64);
            if let Ok(style) = style {
                bar.set_style(style);
            }
            bar
        });
        if let Some(left) = time_left(self.updates, self.started.elapsed(), done, total) {
            bar.set_message(format!(", {} left", HumanDuration(left)));
        }
        bar.set_position(done as u64);
    }

    /// The first token is here.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// How long a prefill will go on, judged by its mean speed, once that says something.
fn time_left(updates: usize, elapsed: Duration, done: usize, total: usize) -> Option<Duration> {
    if updates < 2 || elapsed < Duration::from_secs(2) || done == 0 {
        return None;
    }
    Some(elapsed.mul_f64(total.saturating_sub(done) as f64 / done as f64))
}

/// Writes text as it comes, dimmed while the model thinks, if the stream is a terminal.
pub(crate) struct Painter<W: Write> {
    stream: W,
    colours: bool,
    dimmed: bool,
}

impl<W: Write + IsTerminal> Painter<W> {
    pub(crate) fn new(stream: W) -> Self {
        let colours = stream.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { stream, colours, dimmed: false }
    }
}

impl<W: Write> Painter<W> {
    /// Writes `text` at once, dimmed or not.
    pub(crate) fn write(&mut self, text: &str, dimmed: bool) -> std::io::Result<()> {
        if self.colours && dimmed != self.dimmed {
            self.stream.write_all(if dimmed { b"\x1b[2m" } else { b"\x1b[0m" })?;
        }
        self.dimmed = dimmed;
        self.stream.write_all(text.as_bytes())?;
        self.stream.flush()
    }

    /// Ends the reply's line in the terminal's own colours.
    pub(crate) fn end(&mut self) -> std::io::Result<()> {
        self.write("\n", false)
    }
}

/// However a reply ends, the terminal does not stay dimmed.
impl<W: Write> Drop for Painter<W> {
    fn drop(&mut self) {
        let _unread = self.write("", false);
    }
}

#[cfg(test)]
mod tests {
    use super::{Painter, time_left};
    use std::time::Duration;

    #[test]
    fn the_time_left_waits_for_a_second_look() {
        let seconds = Duration::from_secs;
        assert_eq!(time_left(1, seconds(9), 512, 4096), None);
        assert_eq!(time_left(2, Duration::from_millis(1900), 1024, 4096), None);
        assert_eq!(time_left(2, seconds(4), 1024, 4096), Some(seconds(12)));
        assert_eq!(time_left(9, seconds(4), 4096, 4096), Some(seconds(0)));
    }

    #[test]
    fn dims_only_where_asked_and_only_on_a_terminal() {
        for (colours, expected) in [(true, "\x1b[2mhm\x1b[0myes\n"), (false, "hmyes\n")] {
            let mut written = Vec::new();
            let mut painter = Painter { stream: &mut written, colours, dimmed: false };
            painter.write("hm", true).expect("a vector takes all");
            painter.write("yes", false).expect("a vector takes all");
            painter.end().expect("a vector takes all");
            drop(painter);
            assert_eq!(String::from_utf8(written).expect("text"), expected);
        }
    }

    #[test]
    fn a_reply_that_ends_in_thoughts_leaves_the_terminal_undimmed() {
        let mut written = Vec::new();
        let mut painter = Painter { stream: &mut written, colours: true, dimmed: false };
        painter.write("hm", true).expect("a vector takes all");
        drop(painter);
        assert_eq!(written, b"\x1b[2mhm\x1b[0m");
    }
}
