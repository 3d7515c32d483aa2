//! Compiles the kernels for this machine's CPU and links them in.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{env, process};

#[path = "src/compile.rs"]
#[allow(dead_code, unreachable_pub)]
mod compile;

use compile::{Compiler, FOLDERS, Flavour, KERNELS};

fn main() {
    for path in [KERNELS, "runtime", "src/compile.rs", lily_msl::SHIM_DIRECTORY] {
        println!("cargo::rerun-if-changed={path}");
    }
    if let Err(error) = build() {
        eprintln!("{error}");
        process::exit(1);
    }
}

fn build() -> Result<(), compile::Error> {
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let (target, host) = (variable("TARGET"), variable("HOST"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let tool = cc::Build::new().cpp(true).get_compiler();
    let mut flags = machine_flags(target == host);
    flags.extend(loop_flags(tool.is_like_clang()).iter().map(|&flag| flag.to_owned()));
    let compiler = Compiler { program: tool.path().display().to_string(), flags };
    println!("cargo::rustc-env=LILY_HOST_COMPILER={}", compiler.program);
    println!("cargo::rustc-env=LILY_HOST_FLAGS={}", compiler.flags.join(" "));
    // Each compiler has a place for its objects.
    let mut hasher = DefaultHasher::new();
    (&compiler.program, &compiler.flags).hash(&mut hasher);
    let folder = out.join(format!("kernels-{:016x}", hasher.finish()));
    println!("cargo::rustc-env=LILY_HOST_OBJECTS={}", folder.display());
    // Elsewhere macOS code is checked but not linked: there are no headers of its C++ library.
    if target.contains("apple") && !host.contains("apple") {
        return Ok(());
    }

    let library = lily_msl::Library::parse_with(Path::new(KERNELS), FOLDERS)?;
    let objects = compiler.objects(Flavour::Plain, &library, &folder)?;
    // Kernels register themselves by static initialisers, and a linker leaves out the objects of an archive that nothing
    // names. So all become one object, which the runtime's names bring in.
    let whole = out.join("kernels.o");
    compiler.merge(&objects, &whole)?;
    cc::Build::new().cpp(true).object(&whole).compile("lily_host_kernels");
    Ok(())
}

/// 16-bit floats and fused multiply-adds in hardware where the machine that compiles is the one that runs, and has them.
fn machine_flags(native: bool) -> Vec<String> {
    #[cfg(target_arch = "x86_64")]
    if native && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
    {
        return vec!["-march=x86-64-v3".to_owned()];
    }
    let _ = native;
    Vec::new()
}

/// Loops stay loops: memcpy and memset are the sanitizers' own, which would take the runtime's for the kernels'. Clang has no such
/// word; the sanitizers' flavours are made with g++ (tools/kernels/race.sh).
const fn loop_flags(clang: bool) -> &'static [&'static str] {
    if clang { &[] } else { &["-fno-tree-loop-distribute-patterns"] }
}
