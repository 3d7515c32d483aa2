//! Rust bindings.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::kernel::{Access, Argument, Kernel};
use crate::layout::{scalar_or_vector, vector};
use crate::library::{Library, Names, PlacedField};
use crate::token::Source;
use crate::tree::{File, Function, Struct};

impl Library {
    /// The text of a Rust module of `lily-gpu`: constants of file scope, records and parameter structs, and for each
    /// kernel a `Kernel` and a struct of typed arguments that makes a dispatch.
    pub fn rust_bindings(&self) -> String {
        let mut text = String::from(
            "// Made by lily-msl from kernels/: what Rust and the kernels share.\n\
             use crate::kernel::{Access, Argument, Kernel, Slice};\n\
             use crate::plan::{Cost, Dispatch};\n",
        );
        let files: Vec<&File> = self.trees().iter().collect();
        let names = Names::of(&files);
        constants(&mut text, self, &names);
        let shared = shared_structs(self);
        for file in &files {
            for item in file.structs.iter().filter(|item| shared.contains(item.name.as_str())) {
                structure(&mut text, &file.source, item, &names);
            }
        }
        for kernel in self.kernels() {
            kernel_constant(&mut text, kernel);
        }
        let all: Vec<String> =
            self.kernels().iter().map(|kernel| format!("&{}", constant_name(&kernel.name))).collect();
        let _ = writeln!(text, "/// Every kernel.\npub static ALL: &[&Kernel] = &[{}];", all.join(", "));
        for file in &files {
            for function in file.functions.iter().filter(|function| function.is_kernel) {
                arguments_of(&mut text, self, &file.source, function);
            }
        }
        text
    }
}

/// The structs that kernels take as parameters or as elements.
fn shared_structs(library: &Library) -> BTreeSet<&str> {
    let mut shared = BTreeSet::new();
    for kernel in library.kernels() {
        shared.extend(kernel.parameters.as_ref().map(|(_, type_name)| type_name.as_str()));
        let elements = kernel.arguments.iter().map(|argument| argument.element.as_str());
        shared.extend(elements.filter(|element| scalar_or_vector(element).is_none()));
    }
    shared
}

fn constants(text: &mut String, library: &Library, names: &Names<'_>) {
    let bound: Vec<String> =
        library.function_constants().iter().map(|constant| format!("\"{}\"", constant.name)).collect();
    let _ = writeln!(text, "/// The names of the function constants, by index.");
    let _ = writeln!(text, "pub const FUNCTION_CONSTANTS: &[&str] = &[{}];", bound.join(", "));
    for file in library.trees() {
        for value in &file.values {
            if let Some(number) = names.scope.values.get(&value.name).and_then(|value| u32::try_from(*value).ok()) {
                let about = comment_behind(&file.source, value.name_token);
                let _ = writeln!(text, "/// `{}` of `kernels/{}`{about}", value.name, file.source.name);
                let _ = writeln!(text, "pub const {}: u32 = {number};", value.name);
            }
        }
    }
}

fn structure(text: &mut String, source: &Source, item: &Struct, names: &Names<'_>) {
    let (size, fields) = names.fields(&item.name).expect("the parsed library knows its records' layout");
    let name = &item.name;
    let plain = item.fields.iter().all(|field| field.dimensions.is_empty());
    let default = if plain { "Default, " } else { "" };
    let _ = writeln!(text, "/// `struct {name}` of `kernels/{}`.", source.name);
    let _ = writeln!(text, "#[repr(C)]\n#[derive(Clone, Copy, Debug, {default}PartialEq)]\npub struct {name} {{");
    let (mut asserts, mut writes, mut reads) = (String::new(), String::new(), String::new());
    for PlacedField { field, offset, counts } in fields {
        let field_name = &field.name;
        let type_name = counts.iter().rev().fold(rust_type(&field.type_name), |inner, n| format!("[{inner}; {n}]"));
        let about = comment_behind(source, field.name_token);
        let _ = writeln!(text, "    /// `{} {field_name}`{about}\n    pub {field_name}: {type_name},", field.type_name);
        let _ = write!(asserts, " assert!(std::mem::offset_of!({name}, {field_name}) == {offset});");
        let bytes = 4 * counts.iter().product::<usize>();
        if counts.is_empty() {
            let _ = writeln!(
                writes,
                "        bytes[{offset}..{}].copy_from_slice(&self.{field_name}.to_ne_bytes());",
                offset + bytes
            );
            let _ = writeln!(
                reads,
                "            {field_name}: {type_name}::from_ne_bytes([bytes[{offset}], bytes[{}], bytes[{}], bytes[{}]]),",
                offset + 1,
                offset + 2,
                offset + 3
            );
        }
    }
    let _ = writeln!(text, "}}\nconst _: () = {{ assert!(size_of::<{name}>() == {size});{asserts} }};");
    if plain {
        let _ = writeln!(
            text,
            "impl {name} {{\n    /// As the device has it.\n    #[must_use]\n    pub fn to_bytes(&self) -> [u8; {size}] {{\n        \
             let mut bytes = [0; {size}];\n{writes}        bytes\n    }}\n    /// Back from what the device has.\n    \
             #[must_use]\n    pub fn from_bytes(bytes: &[u8; {size}]) -> Self {{\n        Self {{\n{reads}        }}\n    }}\n}}"
        );
    }
}

fn kernel_constant(text: &mut String, kernel: &Kernel) {
    let arguments: Vec<String> = kernel
        .arguments
        .iter()
        .map(|Argument { name, slot, access, element, element_bytes }| {
            let access = match access {
                Access::Read => "Read",
                Access::Write => "Write",
            };
            format!(
                "Argument {{ name: \"{name}\", slot: {slot}, access: Access::{access}, element: \"{element}\", element_bytes: {element_bytes} }}"
            )
        })
        .collect();
    let slot = kernel.parameters.as_ref().map_or(0, |(slot, _)| *slot);
    let _ = writeln!(
        text,
        "/// `{}` of `kernels/{}`.\npub static {}: Kernel = Kernel {{ name: \"{}\", file: \"{}\", arguments: &[{}], \
         parameters_slot: {slot}, parameters_size: {}, max_threads: {}, threadgroup_bytes: {}, launch_bytes: 0, begins_early: false }};",
        kernel.name,
        kernel.file,
        constant_name(&kernel.name),
        kernel.name,
        kernel.file,
        arguments.join(", "),
        kernel.parameters_size,
        kernel.max_threads,
        kernel.threadgroup_bytes
    );
}

/// The arguments of a kernel's function: one struct if all its instantiations take the same elements, else one each.
fn arguments_of(text: &mut String, library: &Library, source: &Source, function: &Function) {
    let family: Vec<&Kernel> = library
        .kernels()
        .iter()
        .filter(|kernel| kernel.function == function.name && kernel.file == source.name)
        .collect();
    let alike = family.windows(2).all(|pair| pair[0].arguments == pair[1].arguments);
    if alike {
        arguments(text, source, function, &family, &function.name);
    } else {
        for kernel in family {
            arguments(text, source, function, &[kernel], &kernel.name);
        }
    }
}

fn arguments(text: &mut String, source: &Source, function: &Function, family: &[&Kernel], name: &str) {
    let Some(kernel) = family.first() else {
        return;
    };
    let struct_name = pascal(name);
    let _ = writeln!(text, "/// The arguments of `{name}` in `kernels/{}`.", source.name);
    let _ = writeln!(text, "#[derive(Clone, Copy, Debug)]\npub struct {struct_name} {{");
    for argument in &kernel.arguments {
        let constness = if argument.access == Access::Read { "const " } else { "" };
        let about = parameter_comment(source, function, &argument.name);
        let _ = writeln!(
            text,
            "    /// `device {constness}{}*`{about}\n    pub {}: Slice<{}>,",
            argument.element,
            argument.name,
            rust_type(&argument.element)
        );
    }
    let mut parameters = "Vec::new()".to_owned();
    if let Some((slot, type_name)) = &kernel.parameters {
        let declared = function.parameters.iter().zip(&kernel.bindings);
        let field = declared
            .filter(|(_, binding)| **binding == crate::kernel::Binding::Slot(*slot))
            .map(|(parameter, _)| source.text_of(parameter.tokens.end - 1))
            .next()
            .unwrap_or("p");
        let _ = writeln!(text, "    /// `constant {type_name}&`\n    pub {field}: {type_name},");
        parameters = format!("self.{field}.to_bytes().to_vec()");
    }
    let ranges: Vec<String> = kernel.arguments.iter().map(|argument| format!("self.{}.range", argument.name)).collect();
    let kernels: Vec<String> = family.iter().map(|kernel| format!("&{}", constant_name(&kernel.name))).collect();
    let is_family = !function.template.is_empty() && family.len() > 1;
    let (choice, checked, chosen) = if is_family {
        (
            "kernel: &'static Kernel, ",
            format!(
                "        assert_eq!(kernel.arguments, Self::KERNELS[0].arguments, \"{{}} is no {name}\", kernel.name);\n"
            ),
            "kernel".to_owned(),
        )
    } else {
        ("", String::new(), format!("kernel: {}", kernels[0]))
    };
    let panics = if is_family {
        "    ///\n    /// # Panics\n    /// If `kernel` takes other buffers than [`Self::KERNELS`] do.\n"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "}}\nimpl {struct_name} {{\n    /// The kernels that take them.\n    pub const KERNELS: &'static [&'static Kernel] = \
         &[{}];\n    /// A launch of `grid` threadgroups of `threads` threads.\n{panics}    #[must_use]\n    pub fn \
         dispatch(self, {choice}grid: [u32; 3], threads: u32) -> Dispatch {{\n{checked}        Dispatch {{\n            \
         {chosen},\n            place: String::new(),\n            ranges: vec![{}],\n            parameters: \
         {parameters},\n            grid,\n            threads,\n            cost: Cost::default(),\n        }}\n    }}\n}}",
        kernels.join(", "),
        ranges.join(", ")
    );
}

/// What a comment on the line of a kernel's parameter says of it.
fn parameter_comment(source: &Source, function: &Function, name: &str) -> String {
    let declared = function.parameters.iter().find(|p| source.is(p.tokens.end - 1, name));
    declared.map_or_else(String::new, |parameter| comment_behind(source, parameter.tokens.start))
}

/// The comment at the end of a token's line as the end of a sentence in a Rust comment; empty if there is none.
fn comment_behind(source: &Source, token: usize) -> String {
    let rest = &source.text[source.tokens[token].start..];
    let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
    match line.find("//") {
        Some(at) => format!(": `{}`", line[at + 2..].trim().replace('`', "'")),
        None => String::new(),
    }
}

/// The Rust type of an element or field.
fn rust_type(type_name: &str) -> String {
    let scalar = match type_name {
        "uint" | "uint32_t" | "atomic_uint" => "u32",
        "int" | "int32_t" | "atomic_int" => "i32",
        "float" => "f32",
        "half" => "half::f16",
        "bfloat" => "half::bf16",
        "uchar" | "uint8_t" | "bool" => "u8",
        "char" | "int8_t" => "i8",
        "ushort" | "uint16_t" => "u16",
        "short" | "int16_t" => "i16",
        "ulong" | "uint64_t" | "size_t" => "u64",
        "long" | "int64_t" => "i64",
        _ => match vector(type_name.strip_prefix("packed_").unwrap_or(type_name)) {
            // Metal's vectors of three take the room of four, packed ones don't.
            Some((scalar, width)) if scalar_or_vector(type_name).is_some() => {
                let room = if width == 3 && !type_name.starts_with("packed_") { 4 } else { width };
                return format!("[{}; {room}]", rust_type(scalar));
            }
            _ => type_name,
        },
    };
    scalar.to_owned()
}

fn constant_name(kernel: &str) -> String {
    kernel.to_uppercase()
}

fn pascal(name: &str) -> String {
    name.split('_').fold(String::new(), |all, word| {
        let mut letters = word.chars();
        all + &letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    })
}
