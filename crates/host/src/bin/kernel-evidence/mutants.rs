//! Removes each barrier of the kernels and sees whether a test notices.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use lily_host::compile::{Compiler, Flavour, KERNELS};
use lily_msl::Library;

use crate::tests::{self, Test};
use crate::{Failure, work};

/// A barrier that is left out.
struct Mutant {
    file: String,
    line: usize,
    /// All sources, this one changed.
    sources: Vec<(String, String)>,
}

/// Who noticed.
enum Verdict {
    /// A test failed by its results.
    Plain,
    /// ThreadSanitizer complained where results stayed right.
    Thread,
    Survived,
}

/// What all mutants share.
struct Bench {
    compiler: Compiler,
    library: Library,
    tests: Vec<Test>,
    /// Objects of the unchanged sources.
    plain: Vec<PathBuf>,
    thread: Vec<PathBuf>,
}

/// Tries the barriers of the files named, or of all. True if none survived.
pub(crate) fn run(files: &[&str]) -> Result<bool, Failure> {
    let sources = sources()?;
    let compiler = Compiler::native();
    let library = Library::from_sources(&sources)?;
    let plain = compiler.objects(Flavour::Plain, &library, Compiler::objects_of_the_build())?;
    let thread = compiler.objects(Flavour::Thread, &library, &work("thread")?)?;
    let bench = Bench { compiler, library, tests: tests::of_kernels()?, plain, thread };

    bench.unchanged_pass()?;

    let wanted = |name: &str| files.is_empty() || files.contains(&name);
    let mutants: Vec<Mutant> =
        sources.iter().filter(|(name, _)| wanted(name)).flat_map(|(name, _)| mutants_of(name, &sources)).collect();
    let (next, survivors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let failure = Mutex::new(None);
    thread::scope(|scope| {
        for worker in 0..thread::available_parallelism().map_or(1, usize::from) {
            let (bench, mutants, next, survivors, counts, failure) =
                (&bench, &mutants, &next, &survivors, &counts, &failure);
            scope.spawn(move || {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let place = format!("kernels/{}:{}", mutant.file, mutant.line);
                    match bench.judge(mutant, worker) {
                        Ok(Verdict::Plain) => {
                            counts[0].fetch_add(1, Ordering::Relaxed);
                            println!("{place}: wrong results");
                        }
                        Ok(Verdict::Thread) => {
                            counts[1].fetch_add(1, Ordering::Relaxed);
                            println!("{place}: a race");
                        }
                        Ok(Verdict::Survived) => {
                            println!("{place}: SURVIVED");
                            survivors.lock().expect("no panic holds it").push(place);
                        }
                        Err(error) => *failure.lock().expect("no panic holds it") = Some(format!("{place}: {error}")),
                    }
                }
            });
        }
    });
    if let Some(failure) = failure.into_inner()? {
        return Err(failure.into());
    }
    let survivors = survivors.into_inner()?;
    let [plain, thread] = counts.map(AtomicUsize::into_inner);
    println!(
        "barriers: {} of {} mutants noticed ({plain} by results, {thread} by the race check)",
        plain + thread,
        mutants.len()
    );
    survivors.iter().for_each(|place| println!("survivor: {place}"));
    Ok(survivors.is_empty())
}

impl Bench {
    /// A test that fails without a mutant, or a sanitizer that does not start, would seem to notice every one.
    fn unchanged_pass(&self) -> Result<(), Failure> {
        for (flavour, objects) in [(Flavour::Plain, &self.plain), (Flavour::Thread, &self.thread)] {
            let shared = work(flavour.name())?.join("kernels.so");
            self.compiler.link(flavour, objects, &shared)?;
            tests::at_once(&self.tests, |test| {
                let outcome = test.run(&self.compiler, flavour, &shared)?;
                if outcome.passed {
                    return Ok(());
                }
                let (test, flavour) = (&test.name, flavour.name());
                Err(format!("{test} fails with the kernels as they are ({flavour}):\n{}", outcome.output).into())
            })?;
        }
        Ok(())
    }

    fn judge(&self, mutant: &Mutant, worker: usize) -> Result<Verdict, Failure> {
        let library = Library::from_sources(&mutant.sources)?;
        let changed: Vec<String> = library
            .files()
            .filter(|file| library.host_source(file) != self.library.host_source(file))
            .map(str::to_owned)
            .collect();
        let names = self.library.kernels().iter().filter(|kernel| changed.contains(&kernel.file));
        let functions: Vec<&str> = names.map(|kernel| kernel.function.as_str()).collect();
        let tests: Vec<&Test> =
            self.tests.iter().filter(|test| functions.iter().any(|name| test.source.contains(name))).collect();
        for (flavour, objects, verdict) in
            [(Flavour::Plain, &self.plain, Verdict::Plain), (Flavour::Thread, &self.thread, Verdict::Thread)]
        {
            let folder = work(&format!("mutants/{worker}-{}", flavour.name()))?;
            let mutated = self.compiler.kernels(flavour, &library, &changed, &folder)?;
            let unchanged =
                objects.iter().filter(|object| !mutated.iter().any(|m| m.file_name() == object.file_name()));
            let all: Vec<PathBuf> = mutated.iter().chain(unchanged).cloned().collect();
            let shared = folder.join("kernels.so");
            self.compiler.link(flavour, &all, &shared)?;
            for test in &tests {
                if !test.run(&self.compiler, flavour, &shared)?.passed {
                    return Ok(verdict);
                }
            }
        }
        Ok(Verdict::Survived)
    }
}

fn sources() -> Result<Vec<(String, String)>, Failure> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(Path::new(KERNELS))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "metal" || extension == "h") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            sources.push((name, fs::read_to_string(&path)?));
        }
    }
    sources.sort();
    Ok(sources)
}

/// A mutant for each barrier of a file.
fn mutants_of(name: &str, sources: &[(String, String)]) -> Vec<Mutant> {
    let Some((_, text)) = sources.iter().find(|(other, _)| other == name) else { return Vec::new() };
    let mut mutants = Vec::new();
    for barrier in ["threadgroup_barrier(", "simdgroup_barrier("] {
        for (start, _) in text.match_indices(barrier) {
            let line = text[..start].matches('\n').count();
            let in_comment = text.lines().nth(line).is_some_and(|line| line.trim_start().starts_with("//"));
            let Some(length) = text[start..].find(';').filter(|_| !in_comment) else { continue };
            // The `;` stays, for a barrier may be all of a branch.
            let before = text[..start].strip_suffix("metal::").unwrap_or(&text[..start]);
            let changed = format!("{before}{}", &text[start + length..]);
            let sources = sources
                .iter()
                .map(|(other, text)| (other.clone(), if other == name { changed.clone() } else { text.clone() }))
                .collect();
            mutants.push(Mutant { file: name.to_owned(), line: line + 1, sources });
        }
    }
    mutants.sort_by_key(|mutant| mutant.line);
    mutants
}
