//! What chat and run show while they wait and while they answer.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A prompt that takes longer than this gets a progress bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Progress of a prefill on stderr, shown only when it lasts.
pub(crate) struct PrefillProgress {
    started: Instant,
    bar: Option<ProgressBar>,
}

impl PrefillProgress {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), bar: None }
    }

    /// `done` of `total` prompt tokens are in.
    pub(crate) fn update(&mut self, done: usize, total: usize) {
        if self.bar.is_none() && self.started.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("reading the prompt {bar:30} {pos}/{len} tokens, {eta} left");
            let bar = ProgressBar::new(total as u64);
            if let Ok(style) = style {
                bar.set_style(style);
            }
            bar
        });
        bar.set_position(done as u64);
    }

    /// The first token is here.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
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

#[cfg(test)]
mod tests {
    use super::Painter;

    #[test]
    fn dims_only_where_asked_and_only_on_a_terminal() {
        for (colours, expected) in [(true, "\x1b[2mhm\x1b[0myes\n"), (false, "hmyes\n")] {
            let mut painter = Painter { stream: Vec::new(), colours, dimmed: false };
            painter.write("hm", true).expect("a vector takes all");
            painter.write("yes", false).expect("a vector takes all");
            painter.end().expect("a vector takes all");
            assert_eq!(String::from_utf8(painter.stream).expect("text"), expected);
        }
    }
}
