//! Source for CUDA's run-time compiler.

use std::fmt::Write;

use super::{Edits, joined, kernels_of, threadgroup_arrays, unmark_kernels};
use crate::kernel::{Access, Binding, Kernel, Position};
use crate::library::Library;
use crate::tree::File;

/// The shim's headers in the order in which they include each other.
const SHIM: &[(&str, &str)] = &[
    ("scalars.h", include_str!("../../shim/scalars.h")),
    ("core.h", include_str!("../../shim/core.h")),
    ("cuda.h", include_str!("../../shim/cuda.h")),
];

impl Library {
    /// The whole library as one C++20 text for NVRTC, which needs no headers beside it.
    ///
    /// A kernel `name` becomes `extern "C" __global__ void lily_name(…)`, with its buffers in the order of their slots and
    /// then its parameter struct by value. A function constant `NAME` takes the value of the macro `LILY_NAME`.
    /// `__METAL_VERSION__` is to be defined as 310: tensor operations are Metal's.
    pub fn cuda_source(&self) -> String {
        let mut text = String::new();
        for (name, header) in SHIM {
            let _ = writeln!(text, "#line 1 \"shim/{name}\"");
            for line in header.lines() {
                let resolved = line.starts_with("#include \"") || line.starts_with("#pragma once");
                text.push_str(if resolved { "" } else { line });
                text.push('\n');
            }
        }
        let files: Vec<&File> = self.trees().iter().collect();
        text + &joined(&files, |file, edits| edit(self, file, edits))
    }
}

fn edit(library: &Library, file: &File, edits: &mut Edits<'_>) {
    for constant in &file.function_constants {
        edits.replace(constant.first..constant.first + 1, "static constexpr");
        edits.replace(constant.attribute.clone(), &format!("= LILY_{}", constant.name));
    }
    for item in file.structs.iter().filter(|item| file.source.name.ends_with(".h") && item.plain) {
        // NVRTC before 13.5 has no offsetof. Fields are plain, so that the size tells most; the host build asserts the rest.
        if let Some(asserts) = library.layout_asserts(item, None) {
            edits.insert_behind(item.last, &asserts);
        }
    }
    unmark_kernels(file, edits, "static __device__ __forceinline__ void");
    for instantiation in &file.instantiations {
        edits.remove(instantiation.tokens.clone());
    }
    let mut declarations: Vec<usize> = threadgroup_arrays(file).iter().map(|array| array.keyword).collect();
    declarations.dedup();
    for keyword in declarations {
        edits.replace(keyword..keyword + 1, "__shared__");
    }
    for kernel in kernels_of(library, file) {
        edits.insert_behind(kernel.last_token, &entry(kernel));
    }
}

fn entry(kernel: &Kernel) -> String {
    let mut signature: Vec<String> = kernel
        .arguments
        .iter()
        .map(|argument| {
            let constness = if argument.access == Access::Read { "const " } else { "" };
            format!("{constness}{}* slot{}", argument.element, argument.slot)
        })
        .collect();
    signature.extend(kernel.parameters.as_ref().map(|(slot, type_name)| format!("const {type_name} slot{slot}")));
    let call: Vec<String> = kernel
        .bindings
        .iter()
        .map(|binding| match binding {
            Binding::Slot(slot) => format!("slot{slot}"),
            Binding::Position(Position::ThreadgroupInGrid) => "lily_cuda::threadgroup_position()".to_owned(),
            Binding::Position(Position::ThreadInThreadgroup) => "lily_cuda::thread_index()".to_owned(),
            Binding::Position(Position::SimdgroupInThreadgroup) => "lily_cuda::simdgroup_index()".to_owned(),
            Binding::Position(Position::LaneInSimdgroup) => "lily_cuda::lane()".to_owned(),
        })
        .collect();
    format!(
        " extern \"C\" __global__ void __launch_bounds__({}) lily_{}({}) {{ {}{}({}); }}",
        kernel.max_threads,
        kernel.name,
        signature.join(", "),
        kernel.function,
        kernel.template_arguments,
        call.join(", ")
    )
}
