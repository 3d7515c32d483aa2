//! Where a run's figures go: the terminal as they come, and files that are complete after every length, so that a long
//! run that is broken off leaves what it found.

use std::fs::File;
use std::io::{BufWriter, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::report::Report;
use super::{plot, table};
use crate::cli::BenchArgs;
use crate::terminal::tell;

/// The path that means standard output.
const STDOUT: &str = "-";

/// What to write, and where.
pub(crate) struct Outputs {
    json: Option<PathBuf>,
    csv: Option<PathBuf>,
    plot: Option<PathBuf>,
    /// All that are to be measured, for the plot's axis.
    lengths: Vec<usize>,
}

impl Outputs {
    /// Takes the paths from the arguments, and makes sure that the files can be written before hours of measuring.
    pub(crate) fn open(args: &BenchArgs, lengths: Vec<usize>) -> Result<Self> {
        let outputs = Self { json: args.json.clone(), csv: args.csv.clone(), plot: args.plot.clone(), lengths };
        if is_stdout(&outputs.json) && is_stdout(&outputs.csv) {
            bail!("--json and --csv cannot both go to standard output");
        }
        if is_stdout(&outputs.plot) {
            bail!("--plot takes the name of a file");
        }
        for path in [&outputs.json, &outputs.csv, &outputs.plot].into_iter().flatten() {
            if path != Path::new(STDOUT) {
                // What an earlier run found stays until this one has found something.
                File::options().append(true).create(true).open(path).with_context(|| unwritable(path))?;
            }
        }
        Ok(outputs)
    }

    /// Before the first length.
    pub(crate) fn begin(&self, report: &Report) -> Result<()> {
        self.show(&table::header(report))
    }

    /// After each length, whose row is the report's last.
    pub(crate) fn add(&mut self, report: &Report) -> Result<()> {
        if let Some(row) = report.lengths.last() {
            self.show(&table::row(row))?;
        }
        if let Some(path) = self.json.as_deref().filter(|path| *path != Path::new(STDOUT)) {
            report.write_json(create(path)?).with_context(|| unwritable(path))?;
        }
        if let Some(path) = self.csv.as_deref().filter(|path| *path != Path::new(STDOUT)) {
            report.write_csv(create(path)?).with_context(|| unwritable(path))?;
        }
        if let Some(path) = &self.plot {
            let svg = plot::svg(report, &self.lengths)?;
            std::fs::write(path, svg).with_context(|| unwritable(path))?;
        }
        Ok(())
    }

    /// After the last length: what goes to standard output.
    pub(crate) fn end(&self, report: &Report) -> Result<()> {
        if is_stdout(&self.json) {
            report.write_json(stdout().lock())?;
        }
        if is_stdout(&self.csv) {
            report.write_csv(stdout().lock())?;
        }
        Ok(())
    }

    /// The table gives way where standard output is for a file's content.
    fn show(&self, lines: &str) -> Result<()> {
        if is_stdout(&self.json) || is_stdout(&self.csv) {
            tell(lines);
            return Ok(());
        }
        Ok(writeln!(stdout(), "{lines}")?)
    }
}

fn is_stdout(path: &Option<PathBuf>) -> bool {
    path.as_deref() == Some(Path::new(STDOUT))
}

fn create(path: &Path) -> Result<BufWriter<File>> {
    Ok(BufWriter::new(File::create(path).with_context(|| unwritable(path))?))
}

fn unwritable(path: &Path) -> String {
    format!("{}: cannot be written", path.display())
}
