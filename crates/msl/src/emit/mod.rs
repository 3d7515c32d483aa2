//! What is made of the sources. Every build edits the text that Metal compiles and leaves its lines where they are.

mod check;
mod cuda;
mod host;
mod metal;
mod rust;

use std::fmt::Write;
use std::ops::Range;

use crate::body::{Declaration, ThreadgroupArray, declarations};
use crate::kernel::Kernel;
use crate::library::{Library, conditional_tokens};
use crate::parse::directive_words;
use crate::token::{Kind, Source};
use crate::tree::File;

/// Changes to a file's text, none of which moves a line.
struct Edits<'a> {
    source: &'a Source,
    changes: Vec<(Range<usize>, String)>,
}

impl<'a> Edits<'a> {
    fn new(source: &'a Source) -> Self {
        Self { source, changes: Vec::new() }
    }

    /// Puts `text` in the place of tokens; the line ends among them stay, behind it.
    fn replace(&mut self, tokens: Range<usize>, text: &str) {
        let bytes = self.source.tokens[tokens.start].start..self.source.tokens[tokens.end - 1].end;
        let line_ends = self.source.text[bytes.clone()].matches('\n').count();
        self.changes.push((bytes, text.to_owned() + &"\n".repeat(line_ends)));
    }

    fn remove(&mut self, tokens: Range<usize>) {
        self.replace(tokens, "");
    }

    /// Puts `text`, which has no line ends, behind a token.
    fn insert_behind(&mut self, token: usize, text: &str) {
        let at = self.source.tokens[token].end;
        self.changes.push((at..at, text.to_owned()));
    }

    /// The changed text. Of two changes at one place the one made first comes first.
    fn apply(mut self) -> String {
        self.changes.sort_by_key(|(bytes, _)| (bytes.start, bytes.end));
        let mut changed = String::new();
        let mut at = 0;
        for (bytes, text) in &self.changes {
            changed.push_str(&self.source.text[at..bytes.start]);
            changed.push_str(text);
            at = bytes.end;
        }
        changed + &self.source.text[at..]
    }
}

/// The texts of files one after another, each edited by `edit` and under the `#line` of its beginning. Includes and
/// `#pragma once` are taken out, as headers stand before those that include them.
fn joined(files: &[&File], mut edit: impl FnMut(&File, &mut Edits<'_>)) -> String {
    let mut text = String::new();
    for file in files {
        let mut edits = Edits::new(&file.source);
        for (index, token) in file.source.tokens.iter().enumerate() {
            if token.kind == Kind::Directive && is_resolved(file.source.text_of(index)) {
                edits.remove(index..index + 1);
            }
        }
        edit(file, &mut edits);
        let _ = writeln!(text, "#line 1 \"kernels/{}\"", file.source.name);
        text.push_str(&edits.apply());
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}

fn is_resolved(directive: &str) -> bool {
    let (name, rest) = directive_words(directive);
    name == "include" || (name == "pragma" && rest == "once")
}

/// The `<…>` headers that files include, each once, as include lines; those that stand within `#if` under
/// `__METAL_VERSION__ >= 400`, as nothing but Metal 4's headers needs one.
fn system_includes(files: &[&File]) -> String {
    let (mut always, mut guarded): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for file in files {
        let conditional = conditional_tokens(&file.source).expect("the parsed library has matched every #if");
        for include in file.includes.iter().filter(|include| !include.project) {
            let list = if conditional[include.token] { &mut guarded } else { &mut always };
            if !list.contains(&include.name.as_str()) {
                list.push(&include.name);
            }
        }
    }
    let lines = |names: &[&str]| names.iter().fold(String::new(), |lines, name| lines + "#include <" + name + ">\n");
    let mut text = lines(&always);
    if !guarded.is_empty() {
        text += &format!("#if __METAL_VERSION__ >= 400\n{}#endif\n", lines(&guarded));
    }
    text
}

/// The kernels of a file.
fn kernels_of<'a>(library: &'a Library, file: &File) -> impl Iterator<Item = &'a Kernel> {
    let name = file.source.name.clone();
    library.kernels().iter().filter(move |kernel| kernel.file == name)
}

/// The threadgroup arrays of a file, in its order.
fn threadgroup_arrays(file: &File) -> Vec<ThreadgroupArray> {
    let mut arrays = Vec::new();
    for (open, close) in file.functions.iter().filter_map(|function| function.body) {
        let found = declarations(&file.source, open, close).expect("the parsed library has read every body");
        arrays.extend(found.into_iter().filter_map(|declaration| match declaration {
            Declaration::Threadgroup(array) => Some(array),
            _ => None,
        }));
    }
    arrays
}

/// An array's dimensions as they are spelled, with their brackets.
fn spelled_dimensions(source: &Source, array: &ThreadgroupArray) -> String {
    array.dimensions.iter().fold(String::new(), |all, one| all + "[" + &source.spelled(one.clone()) + "]")
}

/// Takes the attributes of kernels out and puts `void_text` in the place of their `void`.
fn unmark_kernels(file: &File, edits: &mut Edits<'_>, void_text: &str) {
    for function in file.functions.iter().filter(|function| function.is_kernel) {
        for attribute in &function.attributes {
            edits.remove(attribute.clone());
        }
        edits.replace(function.returns..function.returns + 1, void_text);
        for attribute in function.parameters.iter().filter_map(|parameter| parameter.attribute.as_ref()) {
            edits.remove(attribute.tokens.clone());
        }
    }
}
