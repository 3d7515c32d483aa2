//! Source for the host's C++ compiler.

use std::fmt::Write;

use super::{Edits, joined, kernels_of, spelled_dimensions, system_includes, threadgroup_arrays, unmark_kernels};
use crate::kernel::{Binding, Kernel, Position};
use crate::library::Library;
use crate::tree::File;

impl Library {
    /// A C++20 translation unit of one `.metal` file with its headers, for `-I` [`SHIM_DIRECTORY`](crate::SHIM_DIRECTORY)
    /// and a `-D__METAL_VERSION__=…`. Kernels register themselves with the host runtime by their names, function
    /// constants by their indices.
    ///
    /// # Panics
    /// If the library has no such file.
    pub fn host_source(&self, file: &str) -> String {
        let unit = self.unit(file);
        assert!(unit.last().is_some_and(|last| last.source.name == file), "there is no kernels/{file}");
        let body = joined(&unit, |file, edits| edit(self, file, edits));
        format!("{}namespace {{\n{body}}}\n", system_includes(&unit))
    }
}

fn edit(library: &Library, file: &File, edits: &mut Edits<'_>) {
    for constant in &file.function_constants {
        let name = &constant.name;
        edits.replace(constant.first..constant.first + 1, "static thread_local");
        edits.remove(constant.attribute.clone());
        edits.insert_behind(
            constant.attribute.end,
            &format!(
                " static const lily_host::RegisterConstant lily_constant_{name}({}, \"{name}\", sizeof({name}), []() -> void* {{ return &{name}; }});",
                constant.index
            ),
        );
    }
    for item in file.structs.iter().filter(|item| file.source.name.ends_with(".h") && item.plain) {
        if let Some(asserts) = library.layout_asserts(item, Some("__builtin_offsetof")) {
            edits.insert_behind(item.last, &asserts);
        }
    }
    unmark_kernels(file, edits, "static void");
    for instantiation in &file.instantiations {
        edits.remove(instantiation.tokens.clone());
    }
    for (number, array) in threadgroup_arrays(file).iter().enumerate() {
        let (name, type_name) = (&array.name, &array.type_name);
        let dimensions = spelled_dimensions(&file.source, array);
        let variable = format!("lily_host::threadgroup_variable<{type_name}{dimensions}>({number})");
        edits.replace(array.declarator.clone(), &format!("(&{name}){dimensions} = {variable}"));
    }
    for kernel in kernels_of(library, file) {
        edits.insert_behind(kernel.last_token, &registration(kernel));
    }
}

fn registration(kernel: &Kernel) -> String {
    let mut sources = String::new();
    for binding in &kernel.bindings {
        let _ = match binding {
            Binding::Slot(slot) => write!(sources, ", lily_host::Buffer<{slot}>"),
            Binding::Position(Position::ThreadgroupInGrid) => write!(sources, ", lily_host::ThreadgroupPosition"),
            Binding::Position(Position::ThreadInThreadgroup) => write!(sources, ", lily_host::ThreadIndex"),
            Binding::Position(Position::SimdgroupInThreadgroup) => write!(sources, ", lily_host::SimdgroupIndex"),
            Binding::Position(Position::LaneInSimdgroup) => write!(sources, ", lily_host::LaneIndex"),
        };
    }
    let slots = kernel.arguments.len() + usize::from(kernel.parameters.is_some());
    format!(
        " static const lily_host::RegisterKernel lily_kernel_{}(\"{}\", &lily_host::call<&{}{}{sources}>, {slots});",
        kernel.name, kernel.name, kernel.function, kernel.template_arguments
    )
}
