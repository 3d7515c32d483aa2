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
    /// The whole library as one C++20 text for NVRTC, which needs no headers beside it. Files that have a variant for CUDA are
    /// in it as that; CUDA's own files come last, each behind those that it includes.
    ///
    /// A kernel `name` becomes `extern "C" __global__ void lily_name(…)`, with its buffers in the order of their slots and
    /// then its parameter struct by value. A function constant `NAME` takes the value of the macro `LILY_NAME`.
    /// `__METAL_VERSION__` is to be defined as 310: tensor operations are Metal's.
    pub fn cuda_source(&self) -> String {
        let mut text = String::new();
        for (name, header) in SHIM {
            let _ = writeln!(text, "#line 1 \"shim/{name}\"");
            push_resolved(&mut text, header);
        }
        let push_variant = |text: &mut String, (name, variant): &(String, String)| {
            let _ = writeln!(text, "#line 1 \"kernels/cuda/{name}\"");
            push_resolved(text, variant);
        };
        let is_variant_of = |variant: &str, file: &File| {
            file.source.name == variant
                || Some(file.source.name.trim_end_matches(".metal")) == variant.strip_suffix(".cu")
        };
        // Headers first: a variant may use others than its file does.
        let (headers, kernels): (Vec<&File>, _) =
            self.trees().iter().partition(|file| file.source.name.ends_with(".h"));
        for file in headers.into_iter().chain(kernels) {
            let Some(variant) = self.cuda_variants().iter().find(|(name, _)| is_variant_of(name, file)) else {
                text += &joined(&[file], |file, edits| edit(self, file, edits));
                continue;
            };
            push_variant(&mut text, variant);
            for kernel in kernels_of(self, file).filter(|kernel| !kernel.name.ends_with("_tensor")) {
                let _ = writeln!(text, "{}", entry(kernel));
            }
        }
        let own = |(name, _): &&(String, String)| !self.trees().iter().any(|file| is_variant_of(name, file));
        for file in in_order_of_includes(self.cuda_variants().iter().filter(own).collect()) {
            push_variant(&mut text, file);
        }
        text
    }
}

/// Each file behind those that it includes.
fn in_order_of_includes(mut files: Vec<&(String, String)>) -> Vec<&(String, String)> {
    let mut order: Vec<&(String, String)> = Vec::new();
    while !files.is_empty() {
        let waits = |text: &str| {
            let include = |(name, _): &&(String, String)| text.contains(&format!("#include \"{name}\""));
            files.iter().any(include)
        };
        // In a ring of includes none is first.
        let next = files.iter().position(|(_, text)| !waits(text)).unwrap_or(0);
        order.push(files.remove(next));
    }
    order
}

/// Adds a file without the includes, which the whole text resolves; its lines stay what they are.
fn push_resolved(text: &mut String, file: &str) {
    for line in file.lines() {
        let resolved = line.starts_with("#include \"") || line.starts_with("#pragma once");
        text.push_str(if resolved { "" } else { line });
        text.push('\n');
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
