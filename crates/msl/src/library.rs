//! All sources of a folder, joined.

use std::collections::HashMap;
use std::path::Path;

use crate::dialect;
use crate::error::{Error, Fault};
use crate::evaluate::{Scope, evaluate};
use crate::kernel::{self, Kernel, Site};
use crate::layout::{Layout, scalar_or_vector};
use crate::parse::{directive_words, parse};
use crate::token::{Kind, Source};
use crate::tree::{Field, File, Struct};

/// A constant of the whole library that is bound when a device specialises it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionConstant {
    /// Its name.
    pub name: String,
    /// `uint` or `float`.
    pub type_name: String,
    /// `[[function_constant(index)]]`
    pub index: u32,
}

/// The kernels of a folder: parsed, checked, ready to be emitted.
#[derive(Debug)]
pub struct Library {
    files: Vec<File>,
    kernels: Vec<Kernel>,
    cuda_variants: Vec<(String, String)>,
}

impl Library {
    /// Reads all `*.metal` and `*.h` of a folder, and CUDA's variants of them from its folder `cuda`, if it has one.
    ///
    /// # Errors
    /// Every breach of the dialect that was found, or the file that can't be read.
    pub fn parse(directory: &Path) -> Result<Self, Error> {
        Self::parse_with(directory, &[])
    }

    /// As [`parse`](Self::parse), and all `*.metal` and `*.h` of some of its folders too.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_with(directory: &Path, folders: &[&str]) -> Result<Self, Error> {
        let mut sources = texts(directory, &["metal", "h"])?;
        for folder in folders {
            sources.extend(texts(&directory.join(folder), &["metal", "h"])?);
        }
        let library = Self::from_sources(&sources)?;
        let variants = directory.join("cuda");
        Ok(library.with_cuda_variants(if variants.is_dir() { texts(&variants, &["cu", "h"])? } else { Vec::new() }))
    }

    /// Takes other texts (name, text) for some files where CUDA's source is made. `X.cu` stands for `X.metal` and defines
    /// the functions of its kernels, with the same arguments, grids and threads; `X.h` for `X.h`. Where there is no such file
    /// it is CUDA's own, whose kernels define their entries themselves. They are CUDA C++, which is not looked into here.
    #[must_use]
    pub fn with_cuda_variants(self, mut variants: Vec<(String, String)>) -> Self {
        variants.sort();
        Self { cuda_variants: variants, ..self }
    }

    /// Joins sources given as (name, text); names end in `.metal` or `.h`.
    ///
    /// # Errors
    /// Every breach of the dialect that was found.
    pub fn from_sources<Name: AsRef<str>, Text: AsRef<str>>(sources: &[(Name, Text)]) -> Result<Self, Error> {
        let mut faults = Vec::new();
        let mut files = Vec::new();
        for (name, text) in sources {
            match Source::new(name.as_ref(), text.as_ref()).and_then(parse) {
                Ok(file) => files.push(file),
                Err(fault) => faults.push(fault),
            }
        }
        if !faults.is_empty() {
            return Err(Error::new(faults));
        }
        let mut library = Self { files: in_order_of_includes(files)?, kernels: Vec::new(), cuda_variants: Vec::new() };
        library.read_kernels(&mut faults);
        dialect::check(&library, &mut faults);
        if faults.is_empty() { Ok(library) } else { Err(Error::new(faults)) }
    }

    /// The names of the `.metal` files, sorted.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.source.name.as_str()).filter(|name| name.ends_with(".metal"))
    }

    /// The kernels in the order of files and lines.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The function constants in the order of their indices.
    pub fn function_constants(&self) -> Vec<FunctionConstant> {
        let declared = self.files.iter().flat_map(|file| &file.function_constants);
        let mut constants: Vec<_> = declared
            .map(|constant| FunctionConstant {
                name: constant.name.clone(),
                type_name: constant.type_name.clone(),
                index: constant.index,
            })
            .collect();
        constants.sort_by_key(|constant| constant.index);
        constants
    }

    /// CUDA's text in the place of a file, by `X.h` or `X.cu`.
    pub(crate) fn cuda_variants(&self) -> &[(String, String)] {
        &self.cuda_variants
    }

    /// All files, headers before those that include them.
    pub(crate) fn trees(&self) -> &[File] {
        &self.files
    }

    /// The files of one's translation unit: what it includes, directly or not, in the order a compiler reads them, and
    /// itself. Headers are read wherever they are included, so the unit of a header is all headers.
    pub(crate) fn unit(&self, name: &str) -> Vec<&File> {
        if name.ends_with(".h") {
            return self.files.iter().filter(|file| file.source.name.ends_with(".h")).collect();
        }
        let mut order = Vec::new();
        visit(&self.files, name, &mut order);
        order.into_iter().map(|index| &self.files[index]).collect()
    }

    /// C++ assertions, on one line, that a struct's layout is the one that the Rust bindings have; none if its layout is
    /// not known. `offset_of` is what the compiler calls it, if it has it.
    pub(crate) fn layout_asserts(&self, item: &Struct, offset_of: Option<&str>) -> Option<String> {
        let everything: Vec<&File> = self.files.iter().collect();
        let names = Names::of(&everything);
        let (size, fields) = names.fields(&item.name)?;
        let name = &item.name;
        let mut asserts = format!(" static_assert(sizeof({name}) == {size}, \"layout\");");
        let Some(offset_of) = offset_of else { return Some(asserts) };
        for PlacedField { field, offset, .. } in fields {
            asserts += &format!(" static_assert({offset_of}({name}, {}) == {offset}, \"layout\");", field.name);
        }
        Some(asserts)
    }

    fn read_kernels(&mut self, faults: &mut Vec<Fault>) {
        let mut kernels: Vec<Kernel> = Vec::new();
        for file in &self.files {
            let names = Names::of(&self.unit(&file.source.name));
            match kernels_of(file, &names) {
                Ok(found) => kernels.extend(found),
                Err(mut found) => faults.append(&mut found),
            }
        }
        for (index, kernel) in kernels.iter().enumerate() {
            if let Some(other) = kernels[..index].iter().find(|other| other.name == kernel.name) {
                let message = format!("another kernel is called `{}`, in {}", kernel.name, other.file);
                faults.push(Fault { file: kernel.file.clone(), line: self.line_of(kernel), message });
            }
        }
        self.kernels = kernels;
    }

    fn line_of(&self, kernel: &Kernel) -> u32 {
        let file = self.files.iter().find(|file| file.source.name == kernel.file);
        file.map_or(0, |file| file.source.line(kernel.last_token))
    }
}

/// The files of a folder with one of these extensions, as (name, text).
fn texts(directory: &Path, extensions: &[&str]) -> Result<Vec<(String, String)>, Error> {
    let unreadable = |file: &Path, why: std::io::Error| {
        let message = format!("{} can't be read: {why}", file.display());
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Error::new(vec![Fault { file: name, line: 0, message }])
    };
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|why| unreadable(directory, why))? {
        let path = entry.map_err(|why| unreadable(directory, why))?.path();
        if path.extension().is_some_and(|extension| extensions.iter().any(|wanted| extension == *wanted)) {
            let text = std::fs::read_to_string(&path).map_err(|why| unreadable(&path, why))?;
            texts.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), text));
        }
    }
    Ok(texts)
}

/// Sorted by name, but each header before the first file that includes it.
fn in_order_of_includes(mut files: Vec<File>) -> Result<Vec<File>, Error> {
    files.sort_by(|a, b| a.source.name.cmp(&b.source.name));
    let mut faults = Vec::new();
    for file in &files {
        for include in file.includes.iter().filter(|include| include.project) {
            let known = files.iter().any(|other| other.source.name == include.name);
            if !known || !include.name.ends_with(".h") {
                faults.push(file.source.fault(include.token, format!("there is no header kernels/{}", include.name)));
            }
        }
    }
    if !faults.is_empty() {
        return Err(Error::new(faults));
    }
    let mut order = Vec::new();
    let (headers, kernels): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.source.name.ends_with(".h"));
    for file in kernels.into_iter().chain(headers) {
        visit(&files, &file.source.name, &mut order);
    }
    let mut slots: Vec<Option<File>> = files.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|index| slots[index].take()).collect())
}

/// Adds what the file `name` includes and then the file itself to `order`, as far as it is not in it.
fn visit(files: &[File], name: &str, order: &mut Vec<usize>) {
    fn enter(files: &[File], name: &str, entered: &mut Vec<usize>, order: &mut Vec<usize>) {
        let Some(index) = files.iter().position(|file| file.source.name == name) else {
            return;
        };
        if entered.contains(&index) {
            return;
        }
        entered.push(index);
        for include in files[index].includes.iter().filter(|include| include.project) {
            enter(files, &include.name, entered, order);
        }
        order.push(index);
    }
    let mut entered = order.clone();
    enter(files, name, &mut entered, order);
}

/// The kernels of a file.
fn kernels_of(file: &File, names: &Names<'_>) -> Result<Vec<Kernel>, Vec<Fault>> {
    let source = &file.source;
    let conditional = conditional_tokens(source).map_err(|fault| vec![fault])?;
    let (mut kernels, mut faults) = (Vec::new(), Vec::new());
    let mut sites = Vec::new();
    for function in file.functions.iter().filter(|function| function.is_kernel) {
        let (token, name) = (function.name_token, function.name.clone());
        let Some((_, close)) = function.body.filter(|_| function.template.is_empty()) else {
            if !file.instantiations.iter().any(|instantiation| instantiation.function == function.name) {
                faults.push(source.fault(token, format!("the template `{name}` is never instantiated")));
            }
            continue;
        };
        sites
            .push((function, Site { name, arguments: &[], token, last_token: close, conditional: conditional[token] }));
    }
    for instantiation in &file.instantiations {
        let token = instantiation.tokens.start;
        let is_template = |function: &&crate::tree::Function| {
            function.is_kernel && function.name == instantiation.function && !function.template.is_empty()
        };
        let Some(function) = file.functions.iter().find(is_template) else {
            faults.push(source.fault(token, format!("`{}` is no template kernel here", instantiation.function)));
            continue;
        };
        let site = Site {
            name: instantiation.host_name.clone(),
            arguments: &instantiation.arguments,
            token,
            last_token: instantiation.tokens.end - 1,
            conditional: conditional[token],
        };
        sites.push((function, site));
    }
    sites.sort_by_key(|(_, site)| site.token);
    for (function, site) in sites {
        match kernel::read(file, function, &site, names) {
            Ok(kernel) => kernels.push(kernel),
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() { Ok(kernels) } else { Err(faults) }
}

/// For each token whether it stands within `#if`.
pub(crate) fn conditional_tokens(source: &Source) -> Result<Vec<bool>, Fault> {
    let mut depth = 0usize;
    let mut conditional = Vec::with_capacity(source.tokens.len());
    for (index, token) in source.tokens.iter().enumerate() {
        if token.kind == Kind::Directive {
            match directive_words(source.text_of(index)).0 {
                "if" | "ifdef" | "ifndef" => depth += 1,
                "endif" => {
                    depth = depth.checked_sub(1).ok_or_else(|| source.fault(index, "#endif without #if"))?;
                }
                _ => {}
            }
        }
        conditional.push(depth > 0);
    }
    if depth > 0 { Err(source.fault(source.tokens.len(), "#if without #endif")) } else { Ok(conditional) }
}

/// A field of a struct of plain data.
pub(crate) struct PlacedField<'a> {
    pub field: &'a Field,
    /// Bytes before it.
    pub offset: usize,
    /// Its array dimensions, outermost first; none if it is no array.
    pub counts: Vec<usize>,
}

/// What is known in a file by name, includes and all.
pub(crate) struct Names<'a> {
    pub scope: Scope<'a>,
    structs: HashMap<&'a str, (&'a File, &'a Struct)>,
}

impl<'a> Names<'a> {
    pub(crate) fn of(unit: &[&'a File]) -> Self {
        let mut names = Self { scope: Scope::default(), structs: HashMap::new() };
        for file in unit {
            for function in file.functions.iter().filter(|function| function.is_constexpr) {
                names.scope.functions.insert(&function.name, (file, function));
            }
            for value in &file.values {
                if let Ok(number) = evaluate(&file.source, value.expression.clone(), &names.scope) {
                    names.scope.values.insert(value.name.clone(), number);
                }
            }
            for item in &file.structs {
                names.structs.insert(&item.name, (file, item));
            }
        }
        names
    }

    /// The layout of a type; none if it is not known or no plain data.
    pub(crate) fn layout(&self, type_name: &str) -> Option<Layout> {
        if let Some(layout) = scalar_or_vector(type_name) {
            return Some(layout);
        }
        let (size, fields) = self.fields(type_name)?;
        let align = fields.iter().filter_map(|placed| self.layout(&placed.field.type_name)).map(|layout| layout.align);
        Some(Layout { size, align: align.max().unwrap_or(1) })
    }

    /// The size of a struct of plain data, and its fields; none if it is no such struct.
    pub(crate) fn fields(&self, type_name: &str) -> Option<(usize, Vec<PlacedField<'a>>)> {
        let (file, item) = self.structs.get(type_name).filter(|(_, item)| item.plain && item.template.is_empty())?;
        let (mut size, mut align, mut fields) = (0usize, 1, Vec::new());
        for field in &item.fields {
            let mut layout = self.layout(&field.type_name)?;
            let mut counts = Vec::new();
            for dimension in &field.dimensions {
                let count = evaluate(&file.source, dimension.clone(), &self.scope).ok()?;
                counts.push(usize::try_from(count).ok()?);
                layout = layout.times(counts[counts.len() - 1]);
            }
            let offset = size.next_multiple_of(layout.align);
            fields.push(PlacedField { field, offset, counts });
            size = offset + layout.size;
            align = align.max(layout.align);
        }
        Some((size.next_multiple_of(align), fields))
    }

    /// Whether buffers may hold a type: scalars and vectors, and structs of 4-byte fields; otherwise why not.
    pub(crate) fn check_record(&self, type_name: &str) -> Result<(), String> {
        let Some((file, item)) = self.structs.get(type_name) else {
            return Ok(());
        };
        if !file.source.name.ends_with(".h") {
            return Err(format!("the record `{type_name}` belongs in a header of kernels/"));
        }
        match item.fields.iter().find(|field| !["uint", "int", "float"].contains(&field.type_name.as_str())) {
            Some(field) => Err(format!("field `{}` of the record `{type_name}` is no uint, int or float", field.name)),
            None => Ok(()),
        }
    }

    /// Bytes of a struct that fits as `constant P& p`; otherwise why it doesn't.
    pub(crate) fn parameter_struct(&self, type_name: &str) -> Result<usize, String> {
        let Some((file, item)) = self.structs.get(type_name) else {
            return Err(format!("there is no struct `{type_name}`"));
        };
        if !file.source.name.ends_with(".h") {
            return Err(format!("the parameter struct `{type_name}` belongs in a header of kernels/"));
        }
        let simple = |field: &crate::tree::Field| {
            field.dimensions.is_empty() && ["uint", "float"].contains(&field.type_name.as_str())
        };
        if !item.plain || !item.template.is_empty() || item.fields.is_empty() || !item.fields.iter().all(simple) {
            return Err(format!("the parameter struct `{type_name}` may have fields of type uint and float only"));
        }
        Ok(item.fields.len() * 4)
    }
}
