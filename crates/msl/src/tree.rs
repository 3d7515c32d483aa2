//! What the parser finds in one file. Everything points into the file's tokens by index.

use std::ops::Range;

use crate::token::Source;

/// A parsed file.
#[derive(Debug)]
pub(crate) struct File {
    pub source: Source,
    pub includes: Vec<Include>,
    pub function_constants: Vec<FunctionConstant>,
    pub values: Vec<Value>,
    pub structs: Vec<Struct>,
    /// Kernels, helpers and methods.
    pub functions: Vec<Function>,
    pub instantiations: Vec<Instantiation>,
    /// Names that `using X = …`, `typedef` and `enum` make.
    pub aliases: Vec<(String, usize)>,
}

/// `#include "name"` or `#include <name>`.
#[derive(Debug)]
pub(crate) struct Include {
    pub token: usize,
    pub name: String,
    /// Whether it is a file of the kernels' directory, in quotes.
    pub project: bool,
}

/// `constant uint HIDDEN [[function_constant(0)]];`
#[derive(Debug)]
pub(crate) struct FunctionConstant {
    pub name: String,
    pub type_name: String,
    pub index: u32,
    /// The word `constant`.
    pub first: usize,
    pub name_token: usize,
    /// The attribute with its brackets.
    pub attribute: Range<usize>,
}

/// `constant constexpr uint HEAD = 256;` or the like in a struct.
#[derive(Debug)]
pub(crate) struct Value {
    pub name: String,
    pub name_token: usize,
    /// Of the initialiser.
    pub expression: Range<usize>,
}

/// A struct of file scope.
#[derive(Debug)]
pub(crate) struct Struct {
    pub name: String,
    pub name_token: usize,
    pub template: Vec<TemplateParameter>,
    pub fields: Vec<Field>,
    /// Whether it has methods or anything else but fields.
    pub plain: bool,
    /// The last token, `;`.
    pub last: usize,
}

/// A field of a struct.
#[derive(Debug)]
pub(crate) struct Field {
    pub name: String,
    pub name_token: usize,
    pub type_name: String,
    /// The expressions between the brackets, outermost first.
    pub dimensions: Vec<Range<usize>>,
}

/// A parameter of a template.
#[derive(Clone, Debug)]
pub(crate) struct TemplateParameter {
    pub name: String,
    /// Whether it stands for a type rather than for a number.
    pub is_type: bool,
}

/// A function with a body, or only declared.
#[derive(Debug)]
pub(crate) struct Function {
    pub name: String,
    pub name_token: usize,
    pub template: Vec<TemplateParameter>,
    /// `[[…]]` before the name, each with its brackets.
    pub attributes: Vec<Range<usize>>,
    pub is_kernel: bool,
    pub is_constexpr: bool,
    /// The struct it is a method of.
    pub owner: Option<String>,
    /// The first token of the return type.
    pub returns: usize,
    pub parameters: Vec<Parameter>,
    /// The tokens of `{` and `}`.
    pub body: Option<(usize, usize)>,
    /// The number in `max_total_threads_per_threadgroup(…)`.
    pub max_threads: Option<Range<usize>>,
}

/// A parameter of a function.
#[derive(Debug)]
pub(crate) struct Parameter {
    /// The declaration without its attribute.
    pub tokens: Range<usize>,
    pub attribute: Option<Attribute>,
}

/// `[[name(argument)]]`
#[derive(Debug)]
pub(crate) struct Attribute {
    pub name: String,
    pub argument: Range<usize>,
    /// With its brackets.
    pub tokens: Range<usize>,
}

/// `template [[host_name("…")]] [[kernel]] decltype(f<…>) f<…>;`
#[derive(Debug)]
pub(crate) struct Instantiation {
    pub host_name: String,
    pub function: String,
    /// What stands between `<` and `>`, an item an argument.
    pub arguments: Vec<Range<usize>>,
    /// From `template` to `;`.
    pub tokens: Range<usize>,
}
