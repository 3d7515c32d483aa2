//! What the runtime and the sanitizers must find, in kernels made to do it (`tests/faulty`).

use std::fs;
use std::path::{Path, PathBuf};

use lily_host::compile::{Compiler, Flavour};
use lily_host::{Argument, Error, Kernels, Launch};

const THREADS: u32 = 128;

fn sources() -> lily_msl::Library {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faulty");
    lily_msl::Library::parse(&folder).expect("faulty at run time only")
}

/// The shared object of a flavour; made once a test run.
fn shared_object(flavour: Flavour) -> PathBuf {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = LOCK.lock().expect("no test panics while it compiles");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faulty").join(flavour.name());
    let library = folder.join("faulty.so");
    let compiler = Compiler::native();
    let objects = compiler.objects(flavour, &sources(), &folder).expect("they compile");
    let fresh = folder.join("fresh.so");
    compiler.link(flavour, &objects, &fresh).expect("they link");
    fs::rename(fresh, &library).expect("a place for the library");
    library
}

fn launch(kernels: &Kernels, kernel: &str, groups: u32, seed: u64) -> Result<Vec<f32>, Error> {
    let mut a: Vec<f32> = (0..THREADS * groups).map(|index| index as f32).collect();
    let mut count = vec![0u32];
    let mut arguments = vec![Argument::write(&mut a)];
    if kernel == "ordered" {
        arguments.push(Argument::write(&mut count));
    }
    let launch = Launch {
        kernel,
        constants: &[],
        arguments: &mut arguments,
        parameters: &[],
        grid: [groups, 1, 1],
        threads: THREADS,
        seed,
        workers: 1,
    };
    kernels.launch(launch)?;
    Ok(a)
}

#[test]
fn parted_threads_are_an_error_with_the_line() {
    let kernels = Kernels::load(&shared_object(Flavour::Plain), &sources()).expect("it loads");
    let cases = [
        ("barrier_in_a_branch", "threadgroup_barrier (kernels/threads.metal:7)"),
        ("two_barriers", "while other threads wait at threadgroup_barrier (kernels/threads.metal:1"),
        ("return_before_a_barrier", "threadgroup_barrier (kernels/threads.metal:21)"),
        ("sum_in_two_branches", "while other lanes of the SIMD-group wait at simd_sum (kernels/threads.metal:"),
        ("sum_of_some_lanes", "simd_sum (kernels/threads.metal:35)"),
        ("barrier_or_sum", "(kernels/threads.metal:54)"),
        ("product_of_some_lanes", "simdgroup_multiply_accumulate (kernels/threads.metal:41)"),
        ("more_products_in_some_lanes", "are not the same products in all lanes"),
        ("lane_beyond_the_group", "the lane asked for is beyond the SIMD-group"),
        ("few_threads", "128 threads a threadgroup, but it allows 64"),
    ];
    for (kernel, expected) in cases {
        for seed in 0..4 {
            let error = launch(&kernels, kernel, 3, seed).expect_err(kernel).to_string();
            assert!(error.contains(expected), "{kernel}, seed {seed}: {error}");
        }
    }
    // The fibers that an error left behind do not disturb what comes next.
    let a = launch(&kernels, "ordered", 2, 0).expect("nothing wrong with it");
    assert_eq!(a[0], (4 * 37 % THREADS) as f32);
}

#[test]
fn a_launch_that_does_not_fit_the_signature_is_refused() {
    let kernels = Kernels::load(&shared_object(Flavour::Plain), &sources()).expect("it loads");
    let refused = |kernel: &str, arguments: &mut [Argument<'_>], parameters: &[u8], threads: u32| {
        let grid = [1, 1, 1];
        let launch = Launch { kernel, constants: &[], arguments, parameters, grid, threads, seed: 0, workers: 1 };
        kernels.launch(launch).expect_err(kernel).to_string()
    };
    let mut a = [0.0f32; 32];
    let mut bytes = [0u8; 7];
    assert!(refused("absent", &mut [], &[], 32).contains("there is no such kernel"));
    assert!(refused("no_barrier", &mut [], &[], 32).contains("0 buffers are bound, but it has 1: a"));
    assert!(refused("no_barrier", &mut [Argument::read(&a)], &[], 32).contains("it writes a"));
    assert!(refused("no_barrier", &mut [Argument::Write(&mut bytes)], &[], 32).contains("not whole elements (float"));
    assert!(refused("no_barrier", &mut [Argument::write(&mut a)], &[0; 4], 32).contains("parameters of 4 bytes"));
    assert!(refused("no_barrier", &mut [Argument::write(&mut a)], &[], 33).contains("whole SIMD-groups"));
}

#[test]
fn memory_that_is_not_ready_shows_in_the_results() {
    let kernels = Kernels::load(&shared_object(Flavour::Plain), &sources()).expect("it loads");
    let a = launch(&kernels, "read_before_written", 1, 0).expect("no error of itself");
    assert!(a[..28].iter().all(|x| x.is_nan()) && a[28..].iter().all(|x| !x.is_nan()));
    let of_seeds: Vec<_> = (0..2).map(|seed| launch(&kernels, "no_barrier", 1, seed).expect("no error")).collect();
    assert!(of_seeds.iter().flatten().any(|x| x.is_nan()), "a thread sees what is not yet written");
}

/// Under a sanitizer, which `Compiler::runner` knows how to preload on Linux.
#[cfg(target_os = "linux")]
mod sanitized {
    use std::env;
    use std::path::Path;
    use std::process::{Command, Output};

    use lily_host::Kernels;
    use lily_host::compile::{Compiler, Flavour};

    use super::{launch, shared_object, sources};

    /// What a child process is to load and launch.
    const CHILD_LIBRARY: &str = "LILY_HOST_FAULTY_LIBRARY";
    const CHILD_KERNEL: &str = "LILY_HOST_FAULTY_KERNEL";

    /// Runs the child test below under a sanitizer.
    fn under(flavour: Flavour, kernel: &str) -> Output {
        let library = shared_object(flavour);
        let program = env::current_exe().expect("a test has a path");
        let mut command = Compiler::native().runner(flavour, &program.display().to_string());
        command.args(["--exact", "sanitized::child", "--ignored", "--nocapture"]);
        command.env(CHILD_LIBRARY, library).env(CHILD_KERNEL, kernel).output().expect("setarch runs")
    }

    #[test]
    #[ignore = "run by the tests of this file, under a sanitizer"]
    fn child() {
        let (Some(library), Ok(kernel)) = (env::var_os(CHILD_LIBRARY), env::var(CHILD_KERNEL)) else { return };
        let kernels = Kernels::load(Path::new(&library), &sources()).expect("it loads");
        for seed in 0..3 {
            launch(&kernels, &kernel, 4, seed).expect("the launch itself goes through");
        }
    }

    /// Clang's flavours have loops that became the sanitizers' own memcpy and memset (`build.rs`), and another runtime.
    fn is_clang() -> bool {
        let version = Command::new(Compiler::native().program).arg("--version").output().expect("the compiler starts");
        String::from_utf8_lossy(&version.stdout).contains("clang")
    }

    fn check(flavour: Flavour, faulty: &[&str], complaint: &str) {
        if is_clang() {
            println!("SKIPPED: {}: sanitizers' flavours are made with g++ alone", flavour.name());
            return;
        }
        let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let ordered = under(flavour, "ordered");
        assert!(ordered.status.success(), "a complaint about a right kernel: {}", text(&ordered));
        for kernel in faulty {
            let output = under(flavour, kernel);
            let said = text(&output);
            assert!(!output.status.success() && said.contains(complaint), "{kernel}: {:?}\n{said}", output.status);
            assert!(said.contains("memory.metal"), "{kernel}: no line of the kernel:\n{said}");
        }
    }

    #[test]
    fn races_are_reported() {
        let faulty = ["no_barrier", "no_second_barrier", "no_simdgroup_barrier", "threadgroups_write_one_place"];
        check(Flavour::Thread, &faulty, "data race");
    }

    #[test]
    fn accesses_out_of_bounds_are_reported() {
        check(Flavour::Address, &["write_beyond_a_buffer", "read_beyond_an_array"], "AddressSanitizer");
    }
}
