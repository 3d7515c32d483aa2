//! What is made of a small library, piece by piece.

use lily_msl::{Access, Library};

const MODEL: &str = "#pragma once\nconstant uint HIDDEN [[function_constant(0)]];  // width\nconstant float EPSILON [[function_constant(1)]];\n\
                     constant constexpr uint GROUP = 64;  // weights of a scale\nconstexpr uint twice(uint n) { return n * 2u; }\n\
                     struct Row {\n  uint slot;  // its sequence\n  float weight;\n};\nstruct ScaleParams {\n  uint rows;\n  float scale;\n};\n";

const SCALE: &str = "#include <metal_stdlib>
#if __METAL_VERSION__ >= 400
#include <metal_tensor>
#endif
#include \"model.h\"
using namespace metal;

// y = x * scale
template <typename T, uint ROWS>
[[kernel, max_total_threads_per_threadgroup(32 * ROWS)]] void scale(
    device const T* x [[buffer(0)]],  // [rows][HIDDEN]
    device float* y [[buffer(1)]],
    device const Row* rows [[buffer(2)]],
    constant ScaleParams& p [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint WIDTH = twice(ROWS);
  threadgroup T staged[WIDTH][GROUP / 2], more[3];
  threadgroup float4 sums[ROWS];
  y[lane] = float(x[lane]) * p.scale;
}
template [[host_name(\"scale_half_4\")]] [[kernel]] decltype(scale<half, 4>) scale<half, 4>;
template [[host_name(\"scale_float_2\")]] [[kernel]] decltype(scale<float, 2>) scale<float, 2>;

[[kernel]] void clear(device uint4* words [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) { words[i] = uint4(0u); }
#if __METAL_VERSION__ >= 400
[[kernel]] void clear_tensor(device uint4* words [[buffer(0)]], uint s [[simdgroup_index_in_threadgroup]]) { words[s] = uint4(0u); }
#endif
";

fn library() -> Library {
    Library::from_sources(&[("scale.metal", SCALE), ("model.h", MODEL)]).unwrap_or_else(|error| panic!("{error}"))
}

/// The line of `text` that contains `part`, counted from the last `#line 1 "…"` before it.
#[track_caller]
fn line_of<'a>(text: &'a str, part: &str) -> (u32, &'a str) {
    let mut number = 0;
    for line in text.lines() {
        number = if line.starts_with("#line 1 ") { 0 } else { number + 1 };
        if line.contains(part) {
            return (number, line);
        }
    }
    panic!("no `{part}` in\n{text}");
}

fn line_in_source(part: &str) -> u32 {
    line_of(SCALE, part).0
}

#[test]
fn kernels_as_their_callers_see_them() {
    let library = library();
    let names: Vec<_> = library.kernels().iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, ["scale_half_4", "scale_float_2", "clear", "clear_tensor"]);
    assert_eq!(
        library.kernels().iter().map(|kernel| kernel.conditional).collect::<Vec<_>>(),
        [false, false, false, true]
    );
    let kernel = &library.kernels()[0];
    assert_eq!((kernel.function.as_str(), kernel.file.as_str()), ("scale", "scale.metal"));
    assert_eq!((kernel.max_threads, library.kernels()[2].max_threads), (128, 1024));
    // half [8][32], half [3], and float4 [4] from the next multiple of 16 on.
    assert_eq!(kernel.threadgroup_bytes, (512u32 + 6).next_multiple_of(16) + 64);
    assert_eq!(library.kernels()[1].threadgroup_bytes, (512u32 + 12).next_multiple_of(16) + 32);
    assert_eq!(kernel.parameters, Some((3, "ScaleParams".to_owned())));
    assert_eq!(kernel.parameters_size, 8);
    let arguments: Vec<_> = kernel
        .arguments
        .iter()
        .map(|a| (a.name.as_str(), a.slot, a.access, a.element.as_str(), a.element_bytes))
        .collect();
    assert_eq!(
        arguments,
        [("x", 0, Access::Read, "half", 2), ("y", 1, Access::Write, "float", 4), ("rows", 2, Access::Read, "Row", 8)]
    );
    let constants: Vec<_> = library.function_constants().into_iter().map(|c| (c.name, c.type_name, c.index)).collect();
    let expected = [("HIDDEN", "uint", 0), ("EPSILON", "float", 1)];
    assert_eq!(constants, expected.map(|(name, kind, index)| (name.to_owned(), kind.to_owned(), index)));
    assert_eq!(library.files().collect::<Vec<_>>(), ["scale.metal"]);
}

#[test]
fn the_host_source_keeps_lines_and_registers_kernels() {
    let text = library().host_source("scale.metal");
    assert!(text.starts_with("#include <metal_stdlib>\n"), "{text}");
    let namespace = text.find("namespace {").expect("one namespace for all");
    assert!(text[namespace..].find("#include").is_none() && text.find("metal_tensor").is_some_and(|at| at < namespace));
    assert_eq!(
        line_of(&text, "lily_constant_EPSILON"),
        (
            3,
            "static thread_local float EPSILON ; static const lily_host::RegisterConstant lily_constant_EPSILON(1, \"EPSILON\", \
             sizeof(EPSILON), []() -> void* { return &EPSILON; });"
        )
    );
    let (number, line) = line_of(&text, "static_assert(sizeof(Row)");
    assert_eq!(number, 9);
    assert!(line.contains("static_assert(__builtin_offsetof(Row, weight) == 4, \"layout\");"), "{line}");
    let (number, line) = line_of(&text, "staged)");
    assert_eq!(number, line_in_source("staged"));
    assert_eq!(
        line,
        "  threadgroup T (&staged)[WIDTH][GROUP / 2] = lily_host::threadgroup_variable<T[WIDTH][GROUP / 2]>(0), \
         (&more)[3] = lily_host::threadgroup_variable<T[3]>(1);"
    );
    assert_eq!(line_of(&text, "void scale(").0, line_in_source("void scale("));
    assert_eq!(
        line_of(&text, "lily_kernel_scale_half_4"),
        (
            line_in_source("scale_half_4"),
            " static const lily_host::RegisterKernel lily_kernel_scale_half_4(\"scale_half_4\", &lily_host::call<&scale<half, 4>, \
             lily_host::Buffer<0>, lily_host::Buffer<1>, lily_host::Buffer<2>, lily_host::Buffer<3>, \
             lily_host::ThreadgroupPosition, lily_host::LaneIndex>, 4);"
        )
    );
    let clear = text.find("lily_kernel_clear(").expect("clear");
    let guard = text.rfind("#if __METAL_VERSION__ >= 400").expect("guard");
    let tensor = text.find("lily_kernel_clear_tensor(").expect("clear_tensor");
    assert!(clear < guard && guard < tensor);
    assert!(!text.contains("[[") && !text.contains("#pragma once"));
}

#[test]
fn the_check_source_has_address_spaces_and_no_storage() {
    let text = library().check_source("scale.metal");
    assert_eq!(line_of(&text, "HIDDEN").1, "extern constant uint HIDDEN ;  // width");
    let (number, line) = line_of(&text, "staged");
    assert_eq!(number, line_in_source("staged"));
    assert!(line.starts_with(
        "  threadgroup lily_type<T> (&staged)[WIDTH][GROUP / 2] = *(threadgroup lily_type<T> (*)[WIDTH][GROUP / 2])0, "
    ));
    assert_eq!(
        line_of(&text, "decltype(scale<half"),
        (line_in_source("scale_half_4"), "template decltype(scale<half, 4>) scale<half, 4>;")
    );
}

#[test]
fn the_cuda_source_stands_alone_and_has_entries() {
    let text = library().cuda_source();
    assert!(text.lines().all(|line| !line.starts_with("#include \"") && !line.starts_with("#pragma once")));
    assert_eq!(line_of(&text, "LILY_HIDDEN").1, "static constexpr uint HIDDEN = LILY_HIDDEN;  // width");
    assert_eq!(
        line_of(&text, "__shared__ T"),
        (line_in_source("staged"), "  __shared__ T staged[WIDTH][GROUP / 2], more[3];")
    );
    assert_eq!(
        line_of(&text, "lily_scale_float_2"),
        (
            line_in_source("scale_float_2"),
            " extern \"C\" __global__ void __launch_bounds__(64) lily_scale_float_2(const float* slot0, float* slot1, \
             const Row* slot2, const ScaleParams slot3) { scale<float, 2>(slot0, slot1, slot2, slot3, \
             lily_cuda::threadgroup_position(), lily_cuda::lane()); }"
        )
    );
}

#[test]
fn a_variant_stands_in_cudas_source_for_its_file() {
    let with = |variants: &[(&str, &str)]| {
        let variants = variants.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
        library().with_cuda_variants(variants)
    };
    let library = with(&[
        ("scale.cu", "\n// CUDA's own\n"),
        ("a_kernel.cu", "#include \"more.h\"\nint after;\n"),
        ("more.h", "#pragma once\nint more;\n"),
    ]);
    let text = library.cuda_source();
    assert!(!text.contains("#include \"") && !text.contains("* p.scale"), "{text}");
    assert_eq!(line_of(&text, "int more").0, 2);
    assert_eq!(line_of(&text, "// CUDA's own").0, 2);
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in\n{text}"));
    assert!(place("LILY_HIDDEN") < place("// CUDA's own"));
    // What is nobody's variant comes last, headers before those that include them.
    assert!(place("lily_scale_half_4") < place("int more") && place("int more") < place("int after"));
    // Its kernels have the entries that they had, behind it; those of Metal 4 have none.
    let entries = |text: &str| {
        text.lines()
            .filter_map(|line| line.split_once("__global__"))
            .map(|(_, entry)| entry.to_owned())
            .collect::<Vec<_>>()
    };
    assert!(place("// CUDA's own") < place("lily_scale_half_4"));
    let own: Vec<_> =
        entries(&self::library().cuda_source()).into_iter().filter(|entry| !entry.contains("_tensor")).collect();
    assert_eq!(entries(&text), own);
}

#[test]
fn the_metal_source_is_the_files_with_their_includes_resolved() {
    let text = library().metal_source();
    let head = "#include <metal_stdlib>\n#if __METAL_VERSION__ >= 400\n#include <metal_tensor>\n#endif\n#line 1 \"kernels/model.h\"\n";
    assert!(text.starts_with(head), "{text}");
    assert_eq!(text.matches("#include").count(), 2);
    let (_, scale) = text.split_once("#line 1 \"kernels/scale.metal\"\n").expect("the file");
    for (ours, theirs) in scale.lines().zip(SCALE.lines()) {
        assert!(ours == theirs || (ours.is_empty() && theirs.starts_with("#include")), "{ours}\n{theirs}");
    }
    assert_eq!(scale.lines().count(), SCALE.lines().count());
}

#[test]
fn the_rust_bindings() {
    let text = library().rust_bindings();
    for part in [
        "pub const FUNCTION_CONSTANTS: &[&str] = &[\"HIDDEN\", \"EPSILON\"];",
        "/// `GROUP` of `kernels/model.h`: `weights of a scale`\npub const GROUP: u32 = 64;",
        "#[repr(C)]\n#[derive(Clone, Copy, Debug, Default, PartialEq)]\npub struct Row {\n    /// `uint slot`: `its sequence`\n    pub slot: u32,",
        "const _: () = { assert!(size_of::<Row>() == 8); assert!(std::mem::offset_of!(Row, slot) == 0); \
         assert!(std::mem::offset_of!(Row, weight) == 4); };",
        "pub static SCALE_HALF_4: Kernel = Kernel { name: \"scale_half_4\", file: \"scale.metal\", arguments: &[Argument { \
         name: \"x\", slot: 0, access: Access::Read, element: \"half\", element_bytes: 2 },",
        "parameters_slot: 3, parameters_size: 8, max_threads: 128, threadgroup_bytes: 592, launch_bytes: 0, begins_early: false };",
        "pub static ALL: &[&Kernel] = &[&SCALE_HALF_4, &SCALE_FLOAT_2, &CLEAR, &CLEAR_TENSOR];",
        // Elements differ, so each instantiation has a struct of its own.
        "pub struct ScaleHalf4 {\n    /// `device const half*`: `[rows][HIDDEN]`\n    pub x: Slice<half::f16>,",
        "pub struct ScaleFloat2 {\n    /// `device const float*`: `[rows][HIDDEN]`\n    pub x: Slice<f32>,",
        "    pub rows: Slice<Row>,\n    /// `constant ScaleParams&`\n    pub p: ScaleParams,",
        "parameters: self.p.to_bytes().to_vec(),",
        "pub struct Clear {\n    /// `device uint4*`\n    pub words: Slice<[u32; 4]>,\n}",
    ] {
        assert!(text.contains(part), "no\n{part}\nin\n{text}");
    }
}
