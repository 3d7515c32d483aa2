//! What the dialect forbids is refused, in the line where it stands.

use lily_msl::{Error, Library};

const HEAD: &str = "#include <metal_stdlib>\n#include \"params.h\"\nusing namespace metal;\n";
const PARAMS: &str =
    "#pragma once\nstruct Params {\n  uint rows;\n  float scale;\n};\nstruct Pair {\n  uint a;\n  float b;\n};\n";

fn library(source: &str) -> Result<Library, Error> {
    let text = format!("{HEAD}{source}");
    Library::from_sources(&[("params.h", PARAMS), ("k.metal", &text)])
}

/// Asserts that `source` has a fault in its line `line`, counted from 1, which says `part`.
#[track_caller]
fn refused(source: &str, line: u32, part: &str) {
    let error = match library(source) {
        Ok(_) => panic!("not refused: {source}"),
        Err(error) => error,
    };
    let found = error.faults().iter().any(|fault| {
        fault.file == "k.metal" && fault.line == line + HEAD.lines().count() as u32 && fault.message.contains(part)
    });
    assert!(found, "no fault in line {line} that says `{part}` in:\n{error}\nof:\n{source}");
}

/// A kernel with a float and a half buffer, threadgroup storage `t`, and the statements.
fn kernel(statements: &str) -> String {
    format!(
        "[[kernel]] void k(device float* a [[buffer(0)]], device const half4* h [[buffer(1)]], \
         device const bfloat* b [[buffer(2)]], constant Params& p [[buffer(3)]], uint i [[thread_index_in_threadgroup]]) {{\n\
         threadgroup float t[32];\n{statements}\n}}\n"
    )
}

#[test]
fn a_proper_kernel_passes() {
    let source = "template <typename T> inline T twice(T x) { return x + x; }\n".to_owned()
        + "inline void store(threadgroup float* to, uint at, float x) { to[at] = x; }\n"
        + "inline float first(thread const float (&values)[4]) { return values[0]; }\n"
        + &kernel(
            "constexpr uint N = 4; const uint m = N * 2; float v[N], w[m]; v[0] = 1.0f; w[1] = 0x1p-3f;\n\
             threadgroup float* s = t; store(t, i, twice(v[0]) + first(v)); device const half4* q = h + i; half4 x = q[0];\n\
             float4 y = float4(x); auto z = y.x * p.scale; a[i] = s[i ^ 1] * z & 1 ? w[1] : float(b[i]); static constexpr uint Q = 1;",
        );
    if let Err(error) = library(&source) {
        panic!("{error}");
    }
}

#[test]
fn words_with_no_place_on_a_gpu() {
    for (statement, word) in [
        ("double x = 1;", "double"),
        ("goto end; end: ;", "goto"),
        ("float* x = new float[4];", "new"),
        ("try { } catch (int) { }", "try"),
        ("std::swap(a, a);", "std"),
        ("printf(\"%f\", a[0]);", "printf"),
        ("a[i] = -INFINITY;", "INFINITY"),
        ("a[i] = isnan(a[i]) ? 0 : 1;", "isnan"),
        ("device atomic_ulong* x = 0;", "atomic_ulong"),
    ] {
        refused(&kernel(statement), 3, word);
    }
}

#[test]
fn double_literals() {
    refused(&kernel("a[i] = a[i] * 1.0;"), 3, "1.0f");
    refused(&kernel("a[i] = a[i] + 1e-6;"), 3, "1e-6f");
}

#[test]
fn functions_are_called_and_nothing_else() {
    let one = "inline float one(float x) { return x; }\n";
    refused(&(one.to_owned() + &kernel("auto f = &one; a[i] = f(1.0f);")), 4, "function `one`");
    refused(&(one.to_owned() + &kernel("auto f = one; a[i] = f(1.0f);")), 4, "function `one`");
    refused(&kernel("float (*f)(float) = 0;"), 3, "function pointers");
    refused(&kernel("auto f = [&](uint j) { return a[j]; }; a[i] = f(i);"), 3, "lambdas");
}

#[test]
fn recursion() {
    refused("inline uint f(uint n) { return n == 0u ? 1u : n * f(n - 1u); }\n", 1, "`f` calls itself");
    refused(
        "uint g(uint n);\ninline uint f(uint n) { return g(n); }\ninline uint g(uint n) { return f(n); }\n",
        2,
        "`f`",
    );
}

#[test]
fn nothing_outlives_a_launch() {
    refused("static float counter;\n", 1, "never mutable");
    refused("constexpr uint N = 4;\n", 1, "constant constexpr");
    refused(&kernel("static float counter = 0.0f; a[i] = counter;"), 3, "static");
}

#[test]
fn arrays_have_constant_sizes() {
    refused(&kernel("float v[i]; a[0] = v[0];"), 3, "`i` is no constant");
    refused(&kernel("const uint n = p.rows; float v[2 * n]; a[0] = v[0];"), 3, "`n` is no constant");
    let model = "constant uint HIDDEN [[function_constant(0)]];\n";
    let text = format!("{HEAD}#include \"model.h\"\n{}", kernel("float v[HIDDEN]; a[0] = v[0];"));
    let error =
        Library::from_sources(&[("model.h", model), ("params.h", PARAMS), ("k.metal", &text)]).expect_err("HIDDEN");
    assert!(error.to_string().contains("kernels/k.metal:7: error: `HIDDEN` is bound too late"), "{error}");
}

#[test]
fn pointers_name_their_address_space() {
    refused("inline float f(float* p) { return p[0]; }\n", 1, "names no address space");
    refused("inline float f(const float& p) { return p; }\n", 1, "names no address space");
    refused(&kernel("float4 v = *(float4*)a;"), 3, "names no address space");
    refused(&kernel("auto* q = a;"), 3, "names no address space");
}

#[test]
fn address_spaces_are_not_cast() {
    refused(&kernel("device float* q = t; q[0] = 1.0f;"), 3, "`t` lies in threadgroup, not in device");
    refused(&kernel("device float* q = &t[4];"), 3, "`t` lies in threadgroup");
    refused(&kernel("threadgroup float* q = (threadgroup float*)a;"), 3, "`a` lies in device");
    refused(&kernel("threadgroup uint* q = reinterpret_cast<threadgroup uint*>(a + 4);"), 3, "`a` lies in device");
}

#[test]
fn inputs_stay_const() {
    refused(&kernel("device half4* q = (device half4*)h; q[0] = half4(0.0h);"), 3, "`h` is const");
    refused(&kernel("device half* q = (device half*)(h + i);"), 3, "`h` is const");
    refused(&kernel("device uint2* q = reinterpret_cast<device uint2*>(h);"), 3, "`h` is const");
    refused(&kernel("device bfloat* q = const_cast<device bfloat*>(b);"), 3, "const_cast");
    let proper =
        "device const uint2* q = (device const uint2*)(h + i); device uint* r = (device uint*)a; r[i] = q[i].x;";
    assert!(library(&kernel(proper)).is_ok());
}

#[test]
fn metal_converts_less_than_c() {
    refused(&kernel("float4 v = h[i]; a[i] = v.x;"), 3, "write float4(…)");
    refused(&kernel("half x = b[i]; a[i] = x;"), 3, "write half(…)");
}

#[test]
fn atomics_need_atomic_types() {
    refused(&kernel("atomic_fetch_add_explicit(&a[i], 1u, memory_order_relaxed);"), 3, "`a` is of type float");
    let counts = "[[kernel]] void k(device atomic_uint* n [[buffer(0)]]) { atomic_fetch_add_explicit(&n[0], 1u, memory_order_relaxed); }\n";
    assert!(library(counts).is_ok());
}

#[test]
fn arguments_of_kernels() {
    for (arguments, part) in [
        ("device float* a", "needs [[buffer(n)]]"),
        ("float* a [[buffer(0)]]", "a buffer is"),
        ("constant float* a [[buffer(0)]]", "a buffer is"),
        ("float a [[buffer(0)]]", "a buffer is"),
        ("device double2* a [[buffer(0)]]", "no element type"),
        ("device float* a [[buffer(0)]], device float* b [[buffer(0)]]", "slot 0 is taken"),
        ("device float* a [[buffer(0)]], device float* b [[buffer(2)]]", "slot 1 is left out"),
        ("device float* a [[buffer(31)]]", "from 0 to 30"),
        ("constant Params& p [[buffer(0)]], device float* a [[buffer(1)]]", "has the last slot"),
        ("constant Params& p [[buffer(0)]], constant Params& q [[buffer(1)]]", "one parameter struct"),
        ("constant Nothing& p [[buffer(0)]]", "no struct `Nothing`"),
        ("threadgroup float* t [[threadgroup(0)]]", "not in the dialect"),
        ("uint i [[thread_idx_in_threadgroup]]", "not in the dialect"),
        ("uint3 i [[thread_index_in_threadgroup]]", "write `uint name"),
    ] {
        refused(&format!("[[kernel]] void k({arguments}) {{}}\n"), 1, part);
    }
}

#[test]
fn structs_that_both_sides_share() {
    let local = "struct Own {\n  uint a;\n};\n";
    refused(&format!("{local}[[kernel]] void k(constant Own& p [[buffer(0)]]) {{}}\n"), 4, "belongs in a header");
    refused(&format!("{local}[[kernel]] void k(device Own* p [[buffer(0)]]) {{}}\n"), 4, "belongs in a header");
    for field in ["half x;", "uint x[2];", "float4 x;"] {
        let header = format!("struct Odd {{\n  {field}\n}};\n");
        let text = format!("{HEAD}#include \"odd.h\"\n[[kernel]] void k(constant Odd& p [[buffer(0)]]) {{}}\n");
        let error = Library::from_sources(&[("odd.h", header.as_str()), ("params.h", PARAMS), ("k.metal", &text)]);
        assert!(
            error.expect_err(field).to_string().contains("k.metal:5: error: the parameter struct `Odd`"),
            "{field}"
        );
    }
}

#[test]
fn threadgroup_memory_is_32_kilobytes() {
    refused(
        "[[kernel]] void k(device float* a [[buffer(0)]]) {\n  threadgroup float big[8193];\n  a[0] = big[0];\n}\n",
        2,
        "32772 bytes",
    );
    refused(
        "[[kernel]] void k(device float* a [[buffer(0)]]) {\n  threadgroup float x[8192];\n  threadgroup bool y;\n}\n",
        3,
        "32769 bytes",
    );
    assert!(library("[[kernel]] void k(device float* a [[buffer(0)]]) {\n  threadgroup float x[8192];\n}\n").is_ok());
    refused(&kernel("if (i < 4u) { threadgroup float u[4]; a[i] = u[i]; }"), 3, "outside of its inner blocks");
    refused("inline void f() {\n  threadgroup float u[4];\n}\n", 2, "declared in a kernel itself");
    refused(&kernel("threadgroup float u = 1.0f;"), 3, "no initialiser");
}

#[test]
fn threads_of_a_threadgroup() {
    refused(
        "[[kernel, max_total_threads_per_threadgroup(1025)]] void k(device float* a [[buffer(0)]]) {}\n",
        1,
        "1 to 1024",
    );
    refused("[[kernel, max_total_threads_per_threadgroup(N)]] void k(device float* a [[buffer(0)]]) {}\n", 1, "`N`");
}

#[test]
fn instantiations() {
    let template =
        "template <uint N> [[kernel]] void f(device float* a [[buffer(0)]]) { threadgroup float t[N]; a[0] = t[0]; }\n";
    refused(template, 1, "never instantiated");
    for (line, part) in [
        ("template [[host_name(\"f_1\")]] [[kernel]] decltype(f<1>) f<2>;", "write `template"),
        ("template [[kernel]] decltype(f<1>) f<1>;", "write `template"),
        ("template [[host_name(\"f_1\")]] [[kernel]] decltype(g<1>) g<1>;", "no template kernel"),
        ("template [[host_name(\"f_1\")]] [[kernel]] decltype(f<1, 2>) f<1, 2>;", "takes 1 template arguments"),
        ("template [[host_name(\"f_1\")]] [[kernel]] decltype(f<X>) f<X>;", "`X` is no constant"),
    ] {
        refused(&format!("{template}{line}\n"), 2, part);
    }
    let large = "template [[host_name(\"f_8193\")]] [[kernel]] decltype(f<8193>) f<8193>;\n";
    refused(&format!("{template}{large}"), 1, "`f_8193` needs 32772 bytes");
    let twice = "template [[host_name(\"f_1\")]] [[kernel]] decltype(f<1>) f<1>;\n";
    refused(&format!("{template}{twice}{twice}"), 3, "another kernel is called `f_1`");
}

#[test]
fn the_preprocessor_is_for_includes_and_metal_4() {
    refused("#define N 4\n", 1, "macros");
    refused("#ifdef __CUDACC__\n#endif\n", 1, "one source");
    refused("#include \"missing.h\"\n", 1, "no header kernels/missing.h");
    refused("#if __METAL_VERSION__ >= 400\n", 1, "#if without #endif");
    assert!(library("#if __METAL_VERSION__ >= 400\n#include <metal_tensor>\n#endif\n").is_ok());
}

#[test]
fn names_are_given_once_in_all_files() {
    let helper = "inline float helper(float x) { return x; }\n";
    let error = Library::from_sources(&[("a.metal", helper), ("b.metal", &format!("\n{helper}"))]).expect_err("clash");
    assert_eq!(error.faults().len(), 1);
    assert!(
        error.to_string().starts_with("kernels/b.metal:2: error: `helper` is defined in kernels/a.metal too"),
        "{error}"
    );
}

#[test]
fn names_of_metals_library_are_taken() {
    refused("inline float mix(float a, float b) { return a + b; }\n", 1, "`mix` is a name of Metal's library");
    refused("struct matrix {\n  uint a;\n};\n", 1, "Metal's library");
    refused("inline float simd_total(float a) { return a; }\n", 1, "Metal's library");
}

#[test]
fn function_constants_stand_in_model_h() {
    refused("constant uint N [[function_constant(0)]];\n", 1, "model.h");
    let twice = "constant uint A [[function_constant(0)]];\nconstant float B [[function_constant(0)]];\n";
    let error = Library::from_sources(&[("model.h", twice)]).expect_err("twice");
    assert!(error.to_string().contains("model.h:2: error: function constant 0 is there already"), "{error}");
}

#[test]
fn what_is_no_source_at_all() {
    refused("[[kernel]] void k(device float* a [[buffer(0)]]) {\n", 1, "never closed");
    refused("[[kernel]] int k() { return 0; }\n", 1, "a kernel is");
    refused("kernel void k() {}\n", 1, "write [[kernel]]");
    refused("namespace x {}\n", 1, "only structs");
}
