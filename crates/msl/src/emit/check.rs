//! Source for the strict check with clang's C++ for OpenCL.

use super::{Edits, joined, kernels_of, spelled_dimensions, system_includes, threadgroup_arrays, unmark_kernels};
use crate::library::Library;
use crate::tree::File;

impl Library {
    /// A translation unit of one `.metal` file with its headers for `clang++ -x clcpp -fsyntax-only`, with `-I`
    /// [`SHIM_DIRECTORY`](crate::SHIM_DIRECTORY): address spaces are real there. `tools/kernels/check.sh` has the flags.
    ///
    /// # Panics
    /// If the library has no such file.
    pub fn check_source(&self, file: &str) -> String {
        let unit = self.unit(file);
        assert!(unit.last().is_some_and(|last| last.source.name == file), "there is no kernels/{file}");
        system_includes(&unit) + &joined(&unit, |file, edits| edit(self, file, edits))
    }
}

fn edit(library: &Library, file: &File, edits: &mut Edits<'_>) {
    for constant in &file.function_constants {
        edits.replace(constant.first..constant.first + 1, "extern constant");
        edits.remove(constant.attribute.clone());
    }
    unmark_kernels(file, edits, "void");
    for instantiation in &file.instantiations {
        edits.remove(instantiation.tokens.clone());
    }
    for kernel in kernels_of(library, file).filter(|kernel| !kernel.template_arguments.is_empty()) {
        let instance = format!("{}{}", kernel.function, kernel.template_arguments);
        edits.insert_behind(kernel.last_token, &format!("template decltype({instance}) {instance};"));
    }
    let mut previous = None;
    for array in threadgroup_arrays(file) {
        // The type is wrapped, as the name of a vector before `(` is a macro.
        let type_name = format!("lily_type<{}>", array.type_name);
        if previous.replace(array.keyword) != Some(array.keyword) {
            edits.replace(array.keyword + 1..array.declarator.start, &type_name);
        }
        let dimensions = spelled_dimensions(&file.source, &array);
        let null = format!("*(threadgroup {type_name} (*){dimensions})0");
        edits.replace(array.declarator, &format!("(&{}){dimensions} = {null}", array.name));
    }
    // `matmul2d<descriptor, scope>`: the front end takes no object as an argument of a template.
    let source = &file.source;
    for index in (0..source.tokens.len()).filter(|&index| source.is(index, "matmul2d") && source.is(index + 1, "<")) {
        let Some(close) = source.closing_angle(index + 1) else {
            continue;
        };
        if let Ok([descriptor, scope]) = source.split_at_commas(index + 2..close).as_deref() {
            let (descriptor, scope) = (source.spelled(descriptor.clone()), source.spelled(scope.clone()));
            let sizes = ["m", "n", "k"].map(|size| format!("({descriptor}).{size}"));
            edits.replace(index..close + 1, &format!("lily_matmul2d<{}, {scope}>", sizes.join(", ")));
        }
    }
}
