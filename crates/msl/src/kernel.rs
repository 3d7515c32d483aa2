//! Kernels as their callers see them: one for each `host_name`.

use std::ops::Range;

use crate::body::{Declaration, ThreadgroupArray, declarations};
use crate::error::Fault;
use crate::evaluate::{Scope, evaluate};
use crate::layout::{Layout, is_builtin_type, scalar_or_vector, vector};
use crate::library::Names;
use crate::token::Source;
use crate::tree::{Attribute, File, Function, Parameter};

/// Bytes of threadgroup memory that every Apple GPU has.
const THREADGROUP_BYTES: usize = 32 * 1024;
/// Threads of a threadgroup at most.
const MAX_THREADS: u32 = 1024;
/// Buffer slots of a kernel at most.
const SLOTS: u32 = 31;

/// What a kernel does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `device const T*`: reads only.
    Read,
    /// `device T*`: reads and writes.
    Write,
}

/// A buffer argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name in the source.
    pub name: String,
    /// `[[buffer(slot)]]`
    pub slot: u32,
    /// From const-ness.
    pub access: Access,
    /// The element's type as in the source, template parameters replaced.
    pub element: String,
    /// Bytes of an element.
    pub element_bytes: usize,
}

/// A position that a kernel asks for, by the name of its attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// `uint3 [[threadgroup_position_in_grid]]`
    ThreadgroupInGrid,
    /// `uint [[thread_index_in_threadgroup]]`
    ThreadInThreadgroup,
    /// `uint [[simdgroup_index_in_threadgroup]]`
    SimdgroupInThreadgroup,
    /// `uint [[thread_index_in_simdgroup]]`
    LaneInSimdgroup,
}

const POSITIONS: &[(&str, &str, Position)] = &[
    ("threadgroup_position_in_grid", "uint3", Position::ThreadgroupInGrid),
    ("thread_index_in_threadgroup", "uint", Position::ThreadInThreadgroup),
    ("simdgroup_index_in_threadgroup", "uint", Position::SimdgroupInThreadgroup),
    ("thread_index_in_simdgroup", "uint", Position::LaneInSimdgroup),
];

/// A kernel that a device can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The function's name, or the `host_name` of an instantiation.
    pub name: String,
    /// The function's name.
    pub function: String,
    /// The file it stands in.
    pub file: String,
    /// Buffers in order of their slots, without the parameter struct.
    pub arguments: Vec<Argument>,
    /// The slot and the type of `constant P& p`, if there is one.
    pub parameters: Option<(u32, String)>,
    /// Bytes of the parameter struct, 0 if there is none.
    pub parameters_size: usize,
    /// `max_total_threads_per_threadgroup`, or 1024.
    pub max_threads: u32,
    /// Bytes of its threadgroup arrays.
    pub threadgroup_bytes: u32,
    /// Whether it stands within `#if`, so that not every build has it.
    pub conditional: bool,
    /// What each parameter of the function is, in their order.
    pub(crate) bindings: Vec<Binding>,
    /// `<…>` behind the function's name; empty if it is no template.
    pub(crate) template_arguments: String,
    /// The token behind which the kernel can be named: the `}` of the function or the `;` of the instantiation.
    pub(crate) last_token: usize,
}

/// What a parameter of a kernel is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// A buffer or the parameter struct in a slot.
    Slot(u32),
    /// A position.
    Position(Position),
}

/// Where a kernel becomes one: its function or an instantiation of it.
pub(crate) struct Site<'a> {
    pub name: String,
    pub arguments: &'a [Range<usize>],
    pub token: usize,
    pub last_token: usize,
    pub conditional: bool,
}

/// Reads a kernel's signature and storage.
pub(crate) fn read(file: &File, function: &Function, site: &Site<'_>, names: &Names<'_>) -> Result<Kernel, Fault> {
    let source = &file.source;
    let fault = |message: String| source.fault(site.token, message);
    if site.arguments.len() != function.template.len() {
        return Err(fault(format!(
            "`{}` takes {} template arguments, not {}",
            function.name,
            function.template.len(),
            site.arguments.len()
        )));
    }
    let mut scope = names.scope.clone();
    for (parameter, argument) in function.template.iter().zip(site.arguments) {
        if parameter.is_type {
            scope.types.insert(parameter.name.clone(), source.spelled(argument.clone()));
        } else {
            let value = evaluate(source, argument.clone(), &scope)
                .map_err(|why| fault(format!("template argument `{}`: {why}", parameter.name)))?;
            scope.values.insert(parameter.name.clone(), value);
        }
    }
    let mut kernel = Kernel {
        name: site.name.clone(),
        function: function.name.clone(),
        file: source.name.clone(),
        arguments: Vec::new(),
        parameters: None,
        parameters_size: 0,
        max_threads: MAX_THREADS,
        threadgroup_bytes: 0,
        conditional: site.conditional,
        bindings: Vec::new(),
        template_arguments: match site.arguments {
            [] => String::new(),
            [first, ..] => {
                let last = &site.arguments[site.arguments.len() - 1];
                format!("<{}>", source.spelled(first.start..last.end))
            }
        },
        last_token: site.last_token,
    };
    for parameter in &function.parameters {
        let binding = argument(source, parameter, &scope, names, &mut kernel)?;
        kernel.bindings.push(binding);
    }
    check_slots(source, function, &kernel)?;
    kernel.arguments.sort_by_key(|argument| argument.slot);
    if let Some(threads) = &function.max_threads {
        let value = evaluate(source, threads.clone(), &scope)
            .map_err(|why| source.fault(threads.start, format!("max_total_threads_per_threadgroup: {why}")))?;
        kernel.max_threads =
            u32::try_from(value).ok().filter(|value| (1..=MAX_THREADS).contains(value)).ok_or_else(|| {
                source.fault(threads.start, format!("a threadgroup has 1 to {MAX_THREADS} threads, not {value}"))
            })?;
    }
    kernel.threadgroup_bytes = storage(source, function, &mut scope, names, &kernel.name)?;
    Ok(kernel)
}

fn argument(
    source: &Source,
    parameter: &Parameter,
    scope: &Scope<'_>,
    names: &Names<'_>,
    kernel: &mut Kernel,
) -> Result<Binding, Fault> {
    let declared = source.spelled(parameter.tokens.clone());
    let fault = |message: String| source.fault(parameter.tokens.start, message);
    let Some(attribute) = &parameter.attribute else {
        return Err(fault(format!("the argument `{declared}` of a kernel needs [[buffer(n)]] or a position")));
    };
    if attribute.name == "buffer" {
        return buffer(source, parameter, attribute, scope, names, kernel);
    }
    let Some((_, type_name, position)) = POSITIONS.iter().find(|(name, ..)| *name == attribute.name) else {
        return Err(fault(format!(
            "[[{}]] is not in the dialect: buffers, {}",
            attribute.name,
            POSITIONS.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ")
        )));
    };
    let mut words = declared.split(' ').filter(|word| *word != "const");
    if words.next() != Some(type_name) || words.count() != 1 {
        return Err(fault(format!("write `{type_name} name [[{}]]`", attribute.name)));
    }
    Ok(Binding::Position(*position))
}

fn buffer(
    source: &Source,
    parameter: &Parameter,
    attribute: &Attribute,
    scope: &Scope<'_>,
    names: &Names<'_>,
    kernel: &mut Kernel,
) -> Result<Binding, Fault> {
    let tokens = parameter.tokens.clone();
    let form = "a buffer is `device const T* name [[buffer(n)]]`, `device T* name …` or, last, `constant P& name …`";
    let fault = |message: String| source.fault(tokens.start, message);
    let slot = evaluate(source, attribute.argument.clone(), scope)
        .ok()
        .and_then(|slot| u32::try_from(slot).ok())
        .filter(|slot| *slot < SLOTS)
        .ok_or_else(|| fault(format!("a buffer slot is a number from 0 to {}", SLOTS - 1)))?;
    let name_token = tokens.end - 1;
    if tokens.len() < 4 || !source.is_word(name_token) {
        return Err(fault(form.to_owned()));
    }
    let (mut space, mut is_const, mut type_tokens) = ("", false, Vec::new());
    for index in tokens.start..name_token - 1 {
        match source.text_of(index) {
            word @ ("device" | "constant" | "threadgroup" | "thread") => space = word,
            "const" => is_const = true,
            _ => type_tokens.push(index),
        }
    }
    let (Some(&first), Some(&last)) = (type_tokens.first(), type_tokens.last()) else {
        return Err(fault(form.to_owned()));
    };
    let spelled = source.spelled(first..last + 1);
    let type_name = scope.types.get(&spelled).unwrap_or(&spelled);
    let name = source.text_of(name_token).to_owned();
    match (space, source.text_of(name_token - 1)) {
        ("device", "*") => {
            let layout = names
                .layout(type_name)
                .ok_or_else(|| fault(format!("`{type_name}` is no element type: its size is not known")))?;
            names.check_record(type_name).map_err(fault)?;
            let access = if is_const { Access::Read } else { Access::Write };
            let element = type_name.clone();
            kernel.arguments.push(Argument { name, slot, access, element, element_bytes: layout.size });
        }
        ("constant", "&") => {
            if kernel.parameters.is_some() {
                return Err(fault("a kernel has one parameter struct at most".to_owned()));
            }
            kernel.parameters_size = names.parameter_struct(type_name).map_err(fault)?;
            kernel.parameters = Some((slot, type_name.clone()));
        }
        _ => return Err(fault(form.to_owned())),
    }
    Ok(Binding::Slot(slot))
}

fn check_slots(source: &Source, function: &Function, kernel: &Kernel) -> Result<(), Fault> {
    let mut seen = Vec::new();
    for (parameter, binding) in function.parameters.iter().zip(&kernel.bindings) {
        let Binding::Slot(slot) = *binding else {
            continue;
        };
        if seen.contains(&slot) {
            return Err(source.fault(parameter.tokens.start, format!("slot {slot} is taken by another buffer")));
        }
        seen.push(slot);
    }
    seen.sort_unstable();
    if let Some(gap) = (0..seen.len()).find(|&index| seen[index] as usize != index) {
        return Err(source.fault(function.name_token, format!("slot {gap} is left out: slots are counted from 0")));
    }
    match &kernel.parameters {
        Some((slot, _)) if *slot as usize + 1 != seen.len() => {
            Err(source.fault(function.name_token, "the parameter struct has the last slot".to_owned()))
        }
        _ => Ok(()),
    }
}

/// Bytes of the threadgroup arrays of a kernel, laid out in the order of declaration.
fn storage(
    source: &Source,
    function: &Function,
    scope: &mut Scope<'_>,
    names: &Names<'_>,
    kernel: &str,
) -> Result<u32, Fault> {
    let Some((open, close)) = function.body else {
        return Ok(0);
    };
    let mut bytes = 0usize;
    for declaration in declarations(source, open, close)? {
        match declaration {
            Declaration::Value { name, expression } => {
                if let Ok(value) = evaluate(source, expression, scope) {
                    scope.values.insert(name, value);
                } else {
                    scope.values.remove(&name);
                }
            }
            Declaration::Alias { name, type_name } => {
                let resolved = scope.types.get(&type_name).cloned().unwrap_or(type_name);
                scope.types.insert(name, resolved);
            }
            Declaration::Threadgroup(array) => {
                let layout = array_layout(source, &array, scope, names)?;
                bytes = bytes.next_multiple_of(layout.align) + layout.size;
                if bytes > THREADGROUP_BYTES {
                    return Err(source.fault(
                        array.declarator.start,
                        format!("`{kernel}` needs {bytes} bytes of threadgroup memory here; {THREADGROUP_BYTES} is all there is"),
                    ));
                }
            }
        }
    }
    Ok(bytes as u32)
}

fn array_layout(
    source: &Source,
    array: &ThreadgroupArray,
    scope: &Scope<'_>,
    names: &Names<'_>,
) -> Result<Layout, Fault> {
    let fault = |message: String| source.fault(array.declarator.start, message);
    let type_name = resolve(&array.type_name, scope);
    let element = names.layout(&type_name).ok_or_else(|| fault(format!("the size of `{type_name}` is not known")))?;
    array.dimensions.iter().try_fold(element, |layout, dimension| {
        let count = evaluate(source, dimension.clone(), scope)
            .map_err(|why| fault(format!("size of `{}`: {why}", array.name)))?;
        usize::try_from(count)
            .ok()
            .filter(|count| (1..=THREADGROUP_BYTES).contains(count))
            .map(|count| layout.times(count))
            .ok_or_else(|| fault(format!("`{}` can't have {count} elements", array.name)))
    })
}

/// A type's name with template parameters replaced, also in `vec<T, 4>`.
fn resolve(type_name: &str, scope: &Scope<'_>) -> String {
    if let Some(replaced) = scope.types.get(type_name) {
        return replaced.clone();
    }
    match vector(type_name) {
        Some((scalar, width)) if !is_builtin_type(type_name) => {
            let scalar = scope.types.get(scalar).map_or(scalar, String::as_str);
            let joined = format!("{scalar}{width}");
            if scalar_or_vector(&joined).is_some() { joined } else { type_name.to_owned() }
        }
        _ => type_name.to_owned(),
    }
}
