//! What the dialect forbids, apart from what the parser refuses and what concerns pointers.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::body::{Declaration, begins_statement, calls, declarations};
use crate::error::Fault;
use crate::layout::is_builtin_type;
use crate::library::Library;
use crate::pointers;
use crate::token::{Kind, Source};
use crate::tree::{File, Function};

/// Words with no place in a kernel, and what to do instead.
const FORBIDDEN: &[(&str, &str)] = &[
    ("double", "there is none on the GPU: use float"),
    ("goto", "use loops and conditions"),
    ("virtual", "functions are called by name"),
    ("new", "there is no heap"),
    ("delete", "there is no heap"),
    ("try", "there are no exceptions"),
    ("throw", "there are no exceptions"),
    ("catch", "there are no exceptions"),
    ("typeid", "there is no type information at run time"),
    ("dynamic_cast", "there is no type information at run time"),
    ("thread_local", "use a local variable"),
    ("mutable", "use a local variable"),
    ("const_cast", "what is const stays so: the recorder relies on it"),
    ("asm", "each platform has its own"),
    ("std", "Metal's own library is `metal`"),
    ("printf", "a kernel has nowhere to print"),
    ("atomic_ulong", "64-bit atomics are not on every GPU"),
    ("atomic_long", "64-bit atomics are not on every GPU"),
    ("atomic_float", "the order of additions would be left to chance"),
    ("INFINITY", "fast math takes it for impossible: use FLT_MAX"),
    ("NAN", "fast math takes it for impossible"),
    ("isnan", "fast math takes NaN for impossible: look at the bits"),
    ("isinf", "fast math takes infinity for impossible: look at the bits"),
    ("isfinite", "fast math takes infinity for impossible: look at the bits"),
];

/// Names of Metal's library, which all files use by `using namespace metal`: one more of the kind makes calls ambiguous. Those
/// that begin with `simd_`, `quad_` or `atomic_` are taken too.
const METAL_NAMES: &[&str] = &[
    "abs",
    "absdiff",
    "acos",
    "acosh",
    "addsat",
    "all",
    "any",
    "array",
    "as_type",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "atomic",
    "ceil",
    "clamp",
    "clz",
    "copysign",
    "cos",
    "cosh",
    "cospi",
    "cross",
    "ctz",
    "determinant",
    "dextents",
    "distance",
    "distance_squared",
    "divide",
    "dot",
    "exp",
    "exp10",
    "exp2",
    "extents",
    "extract_bits",
    "fabs",
    "faceforward",
    "fast",
    "fdim",
    "floor",
    "fma",
    "fmax",
    "fmax3",
    "fmedian3",
    "fmin",
    "fmin3",
    "fmod",
    "fract",
    "frexp",
    "hadd",
    "ilogb",
    "insert_bits",
    "isnormal",
    "isordered",
    "isunordered",
    "ldexp",
    "length",
    "length_squared",
    "log",
    "log10",
    "log2",
    "logb",
    "mad24",
    "madhi",
    "madsat",
    "matrix",
    "max",
    "max3",
    "median3",
    "min",
    "min3",
    "mix",
    "modf",
    "mul24",
    "mulhi",
    "nextafter",
    "normalize",
    "numeric_limits",
    "popcount",
    "pow",
    "powr",
    "precise",
    "reflect",
    "refract",
    "reverse_bits",
    "rhadd",
    "rint",
    "rotate",
    "round",
    "rsqrt",
    "sampler",
    "saturate",
    "select",
    "sign",
    "signbit",
    "sin",
    "sincos",
    "sinh",
    "sinpi",
    "smoothstep",
    "sqrt",
    "step",
    "subsat",
    "tan",
    "tanh",
    "tanpi",
    "tensor",
    "transpose",
    "trunc",
    "vec",
];

/// Adds all breaches in a library.
pub(crate) fn check(library: &Library, faults: &mut Vec<Fault>) {
    for file in library.trees() {
        let unit = library.unit(&file.source.name);
        let known = Known::of(&unit);
        words(&file.source, faults);
        lambdas(&file.source, faults);
        file_scope(file, faults);
        for function in &file.functions {
            if let Err(fault) = body(file, function, &known, faults) {
                faults.push(fault);
            }
            pointers::check(file, function, &known, faults);
        }
        recursion(file, &unit, faults);
    }
    clashes(library, faults);
}

/// The names of a file and what it includes.
pub(crate) struct Known<'a> {
    /// Structs, aliases and enums.
    pub types: HashSet<&'a str>,
    pub functions: HashSet<&'a str>,
    /// Constants that are known when a kernel is compiled.
    constants: HashSet<&'a str>,
    function_constants: HashSet<&'a str>,
}

impl<'a> Known<'a> {
    fn of(unit: &[&'a File]) -> Self {
        let mut known = Self {
            types: HashSet::new(),
            functions: HashSet::new(),
            constants: HashSet::new(),
            function_constants: HashSet::new(),
        };
        for file in unit {
            known.types.extend(file.structs.iter().map(|item| item.name.as_str()));
            known.types.extend(file.aliases.iter().map(|(name, _)| name.as_str()));
            known.functions.extend(
                file.functions
                    .iter()
                    .filter(|function| function.owner.is_none())
                    .map(|function| function.name.as_str()),
            );
            let computed = file.functions.iter().filter(|function| function.is_constexpr);
            known.constants.extend(computed.map(|function| function.name.as_str()));
            known.constants.extend(file.values.iter().map(|value| value.name.as_str()));
            known.function_constants.extend(file.function_constants.iter().map(|constant| constant.name.as_str()));
        }
        known
    }
}

fn words(source: &Source, faults: &mut Vec<Fault>) {
    for (index, token) in source.tokens.iter().enumerate() {
        let text = source.text_of(index);
        match token.kind {
            Kind::Word => {
                if let Some((_, instead)) = FORBIDDEN.iter().find(|(word, _)| *word == text) {
                    faults.push(source.fault(index, format!("`{text}` is not in the dialect: {instead}")));
                }
            }
            Kind::Number if is_double(text) => {
                faults.push(source.fault(index, format!("`{text}` is a double in C++: write {text}f")));
            }
            _ => {}
        }
    }
}

fn is_double(number: &str) -> bool {
    let hexadecimal = number.starts_with("0x") || number.starts_with("0X");
    let real = number.contains('.') || number.contains(if hexadecimal { ['p', 'P'] } else { ['e', 'E'] });
    real && !number.ends_with(['f', 'F', 'h', 'H'])
}

/// A `[` that follows no value and opens no attribute begins a lambda.
fn lambdas(source: &Source, faults: &mut Vec<Fault>) {
    for index in 1..source.tokens.len() {
        if !source.is(index, "[") || source.is_pair(index, "[[") || source.is_pair(index - 1, "[[") {
            continue;
        }
        let before = source.text_of(index - 1);
        let is_value = (source.is_word(index - 1) && before != "return") || ["]", ")", ">"].contains(&before);
        if !is_value {
            faults.push(source.fault(index, "lambdas are not in the dialect: write a function"));
        }
    }
}

/// Function constants and kernels have their files.
fn file_scope(file: &File, faults: &mut Vec<Fault>) {
    let source = &file.source;
    for constant in &file.function_constants {
        if source.name != "model.h" {
            faults.push(source.fault(constant.first, "function constants are declared in model.h only"));
        }
        if !["uint", "float"].contains(&constant.type_name.as_str()) {
            faults.push(source.fault(constant.first, "a function constant is a uint or a float"));
        }
        let twin = file.function_constants.iter().find(|other| other.index == constant.index);
        if twin.is_some_and(|twin| twin.first < constant.first) {
            faults.push(source.fault(constant.first, format!("function constant {} is there already", constant.index)));
        }
    }
    if source.name.ends_with(".h") {
        for kernel in file.functions.iter().filter(|function| function.is_kernel) {
            faults.push(source.fault(kernel.name_token, "kernels stand in .metal files"));
        }
    }
}

/// Arrays have constant sizes, threadgroup storage belongs to kernels, nothing is static or a function's address.
fn body(file: &File, function: &Function, known: &Known<'_>, faults: &mut Vec<Fault>) -> Result<(), Fault> {
    let source = &file.source;
    let Some((open, close)) = function.body else {
        return Ok(());
    };
    let mut constants: HashSet<&str> = known.constants.clone();
    constants.extend(function.template.iter().map(|parameter| parameter.name.as_str()));
    let declared = declarations(source, open, close)?;
    for declaration in &declared {
        match declaration {
            Declaration::Value { name, expression }
                if expression.clone().all(|index| is_constant_part(source, index, &constants, known)) =>
            {
                constants.insert(name);
            }
            Declaration::Threadgroup(array) if !function.is_kernel || !array.outermost => {
                faults.push(source.fault(
                    array.declarator.start,
                    "threadgroup storage is declared in a kernel itself, outside of its inner blocks: hand a pointer on",
                ));
            }
            _ => {}
        }
    }
    for index in open..close {
        let text = source.text_of(index);
        if text == "static" && !source.is(index + 1, "constexpr") && !source.is(index + 1, "constant") {
            faults.push(source.fault(index, "a function keeps nothing between calls: no static variables"));
        }
        if known.functions.contains(text) && is_function_value(source, index) {
            faults.push(
                source
                    .fault(index, format!("the function `{text}` can only be called: there are no function pointers")),
            );
        }
        if let Some(dimension) = local_array(source, index, known, &function.template) {
            let end = source.closing(dimension - 1)?;
            let variable = (dimension..end).find(|&index| !is_constant_part(source, index, &constants, known));
            if let Some(variable) = variable {
                let name = source.text_of(variable);
                let why = if known.function_constants.contains(name) {
                    "is bound too late for the size of an array: use a template parameter or a constant that bounds it"
                } else {
                    "is no constant: arrays have constant sizes"
                };
                faults.push(source.fault(variable, format!("`{name}` {why}")));
            }
        }
    }
    Ok(())
}

fn is_constant_part(source: &Source, index: usize, constants: &HashSet<&str>, known: &Known<'_>) -> bool {
    if !source.is_word(index) {
        return true;
    }
    let text = source.text_of(index);
    let qualified = source.is(index + 1, "::") || (index > 0 && source.is(index - 1, "::"));
    qualified
        || constants.contains(text)
        || is_builtin_type(text)
        || known.types.contains(text)
        || ["sizeof", "min", "max", "true", "false"].contains(&text)
}

/// Whether a function's name stands where it is not called, declared or instantiated.
fn is_function_value(source: &Source, index: usize) -> bool {
    let before = if index == 0 { "" } else { source.text_of(index - 1) };
    if [".", "->", "::"].contains(&before) {
        return false;
    }
    let after = source.behind_angles(index + 1);
    let declares = source.is_word(index - 1) && before != "return";
    !source.is(after, "(")
        && !declares
        && !source.is(after, "::")
        && (before == "&" || ["=", "(", ",", "return"].contains(&before))
        && [",", ")", ";"].contains(&source.text_of(after))
}

/// The token after the `[` of a local array declared by the type at `index`; none if nothing of the kind begins there.
fn local_array(
    source: &Source,
    index: usize,
    known: &Known<'_>,
    template: &[crate::tree::TemplateParameter],
) -> Option<usize> {
    let text = source.text_of(index);
    let is_type = is_builtin_type(text)
        || known.types.contains(text)
        || template.iter().any(|parameter| parameter.is_type && parameter.name == text);
    let begins = begins_statement(source, index)
        || ["const", "thread", "threadgroup", "constexpr"].contains(&source.text_of(index - 1));
    if !is_type || !begins {
        return None;
    }
    let after = source.behind_angles(index + 1);
    (source.is_word(after) && source.is(after + 1, "[")).then_some(after + 2)
}

/// No function calls itself by way of others. What a call through a variable reaches is not looked at.
fn recursion(file: &File, unit: &[&File], faults: &mut Vec<Fault>) {
    let node = |function: &Function| match &function.owner {
        Some(owner) => format!("{owner}::{}", function.name),
        None => function.name.clone(),
    };
    let mut graph: HashMap<String, Vec<String>> = HashMap::new();
    for other in unit {
        for function in &other.functions {
            let Some((open, close)) = function.body else {
                continue;
            };
            let edges = graph.entry(node(function)).or_default();
            for (name, token) in calls(&other.source, open..close) {
                if [".", "->"].contains(&other.source.text_of(token - 1)) {
                    continue;
                }
                edges.extend(function.owner.as_ref().map(|owner| format!("{owner}::{name}")));
                edges.push(name);
            }
        }
    }
    for function in &file.functions {
        let start = node(function);
        let mut reached: Vec<&str> = Vec::new();
        let mut open: Vec<&str> = vec![&start];
        while let Some(name) = open.pop() {
            for called in graph.get(name).into_iter().flatten() {
                if !reached.contains(&called.as_str()) && graph.contains_key(called) {
                    reached.push(called);
                    open.push(called);
                }
            }
        }
        if reached.contains(&start.as_str()) {
            let message = format!("`{}` calls itself or something of its name: there is no recursion", function.name);
            faults.push(file.source.fault(function.name_token, message));
        }
    }
}

/// All files become one Metal library: names of file scope are given once.
fn clashes(library: &Library, faults: &mut Vec<Fault>) {
    let mut first: BTreeMap<String, &str> = BTreeMap::new();
    for file in library.trees() {
        let source = &file.source;
        let functions = file.functions.iter().filter(|function| function.owner.is_none());
        let mut names: Vec<(&str, usize)> = functions.map(|one| (one.name.as_str(), one.name_token)).collect();
        names.extend(file.structs.iter().map(|one| (one.name.as_str(), one.name_token)));
        names.extend(file.values.iter().map(|one| (one.name.as_str(), one.name_token)));
        names.extend(file.function_constants.iter().map(|one| (one.name.as_str(), one.name_token)));
        names.extend(file.aliases.iter().map(|(name, token)| (name.as_str(), *token)));
        for (name, token) in names {
            let prefixes = ["simd_", "simdgroup_", "quad_", "atomic_"];
            if METAL_NAMES.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                faults.push(source.fault(token, format!("`{name}` is a name of Metal's library")));
            }
            let owner = *first.entry(name.to_owned()).or_insert(&source.name);
            if owner != source.name {
                let message =
                    format!("`{name}` is defined in kernels/{owner} too, and all files become one Metal library");
                faults.push(source.fault(token, message));
            }
        }
    }
}
