//! Address spaces: every pointer and reference names its own, and none is taken for another.

use std::collections::HashMap;

use crate::dialect::Known;
use crate::error::Fault;
use crate::layout::{is_builtin_type, vector};
use crate::token::Source;
use crate::tree::{File, Function};

const SPACES: &[&str] = &["device", "threadgroup", "thread", "constant"];

/// An address space, and whether what is there may be changed.
#[derive(Clone, Copy)]
struct Place<'a> {
    space: &'a str,
    is_const: bool,
}

/// A variable that lies in an address space or points into it.
struct Placed<'a> {
    place: Place<'a>,
    /// The type of what lies there, as a single word.
    type_name: &'a str,
}

/// Adds the breaches in a function: its parameters and its body.
pub(crate) fn check(file: &File, function: &Function, known: &Known<'_>, faults: &mut Vec<Fault>) {
    let source = &file.source;
    let is_type = |name: &str| {
        is_builtin_type(name)
            || name == "auto"
            || known.types.contains(name)
            || function.template.iter().any(|parameter| parameter.is_type && parameter.name == name)
    };
    let start = function.parameters.first().map_or(function.name_token, |parameter| parameter.tokens.start);
    let end = match function.body {
        Some((_, close)) => close,
        None => function.parameters.last().map_or(start, |parameter| parameter.tokens.end),
    };
    let mut placed: HashMap<&str, Placed<'_>> = HashMap::new();
    for index in start..end {
        let text = source.text_of(index);
        if text == "reinterpret_cast" && source.is(index + 1, "<") {
            cast(source, index, &placed, faults);
        }
        if text.starts_with("atomic_") && text.ends_with("_explicit") {
            atomic(source, index, &placed, faults);
        }
        if !is_type(text) || [".", "->"].contains(&source.text_of(index.wrapping_sub(1))) {
            continue;
        }
        let after = source.behind_angles(index + 1);
        let Some(declarator) = declarator(source, after) else {
            if source.is_word(after) {
                let place = place_before(source, index);
                let place = Place { space: place.space_or("thread"), ..place };
                placed.insert(source.text_of(after), Placed { place, type_name: text });
                converted_vector(source, after, text, &placed, faults);
            }
            continue;
        };
        if declarator == Declarator::Function {
            faults.push(source.fault(index, "there are no function pointers"));
            continue;
        }
        let place = place_before(source, index);
        if place.space.is_empty() {
            let what = source.text_of(after);
            faults.push(source.fault(
                index,
                format!("`{text} {what}` names no address space: device, threadgroup, thread or constant"),
            ));
            continue;
        }
        let name = if declarator == Declarator::Array { after + 2 } else { after + 1 };
        if source.is_word(name) {
            placed.insert(source.text_of(name), Placed { place, type_name: text });
            if source.is(name + 1, "=") {
                compare(source, name + 2, place, &placed, faults);
            }
        } else if source.is(name, ")") && is_cast(source, index) {
            compare(source, name + 1, place, &placed, faults);
        }
    }
}

#[derive(PartialEq)]
enum Declarator {
    /// `T* name`, `T& name`, `T*` in a cast or template list
    Plain,
    /// `T (&name)[n]`
    Array,
    /// `T (*name)(…)`
    Function,
}

/// What the `*`, `&` or `(` at `index`, behind a type, declares; none if it declares nothing.
fn declarator(source: &Source, index: usize) -> Option<Declarator> {
    let is_mark = |index: usize| source.is(index, "*") || source.is(index, "&");
    if is_mark(index) {
        let next = index + 1;
        let closes = [")", ">", ",", "*", "&"].contains(&source.text_of(next));
        return (source.is_word(next) || closes).then_some(Declarator::Plain);
    }
    if source.is(index, "(") && is_mark(index + 1) && source.is_word(index + 2) && source.is(index + 3, ")") {
        if source.is(index + 4, "[") {
            return Some(Declarator::Array);
        }
        if source.is(index + 1, "*") && source.is(index + 4, "(") {
            return Some(Declarator::Function);
        }
    }
    None
}

impl<'a> Place<'a> {
    fn space_or(self, other: &'a str) -> &'a str {
        if self.space.is_empty() { other } else { self.space }
    }
}

/// What stands before the type at `index`, in the same declaration; an empty space if none is named.
fn place_before(source: &Source, index: usize) -> Place<'_> {
    let mut place = Place { space: "", is_const: false };
    for at in (0..index).rev() {
        let text = source.text_of(at);
        if let Some(space) = SPACES.iter().find(|space| **space == text) {
            place.space = space;
        } else if text == "const" || text == "constexpr" {
            place.is_const = true;
        } else if !["volatile", "static", "metal", "::"].contains(&text) {
            break;
        }
    }
    place
}

/// Whether the type at `index` stands in `(space T*)`.
fn is_cast(source: &Source, index: usize) -> bool {
    let mut at = index;
    while at > 0 && (source.is_word(at) || source.is(at, "::")) {
        at -= 1;
    }
    source.is(at, "(") && at > 0 && !source.is_word(at - 1)
}

/// A `reinterpret_cast<space T*>(…)` keeps the address space.
fn cast(source: &Source, index: usize, placed: &HashMap<&str, Placed<'_>>, faults: &mut Vec<Fault>) {
    let Some(close) = source.closing_angle(index + 1) else {
        return;
    };
    // The type's words end before its `*` or `&`.
    let mark = (index + 2..close).rfind(|&at| source.is(at, "*") || source.is(at, "&")).unwrap_or(close);
    let mut place = Place { space: "", is_const: false };
    for at in index + 2..mark {
        place.space = SPACES.iter().find(|space| source.is(at, space)).copied().unwrap_or(place.space);
        place.is_const |= source.is(at, "const");
    }
    if !place.space.is_empty() && source.is(close + 1, "(") {
        compare(source, close + 2, place, placed, faults);
    }
}

/// The pointer that the expression at `start` begins with points into `place`, as far as one can see.
fn compare(
    source: &Source,
    start: usize,
    place: Place<'_>,
    placed: &HashMap<&str, Placed<'_>>,
    faults: &mut Vec<Fault>,
) {
    let mut at = start;
    while source.is(at, "(") || source.is(at, "&") {
        at += 1;
    }
    let by_address = at > start && source.is(at - 1, "&");
    let Some(found) = placed.get(source.text_of(at)) else {
        return;
    };
    // `a[i]` alone is a value, not a pointer into where `a` points, and a local value may be the start of an offset.
    let is_pointer = by_address || [";", "+", ")", ","].contains(&source.text_of(at + 1));
    let is_offset = found.place.space == "thread" && source.is(at + 1, "+");
    if !is_pointer || is_offset {
        return;
    }
    let (name, is, wanted) = (source.text_of(at), found.place, place.space);
    if is.space != wanted {
        let message = format!("`{name}` lies in {}, not in {wanted}: address spaces can't be cast", is.space);
        faults.push(source.fault(at, message));
    } else if is.is_const && !place.is_const {
        let message =
            format!("`{name}` is const: the recorder takes it for unchanged, so nothing may make it writable");
        faults.push(source.fault(at, message));
    }
}

/// Atomic functions work on atomic types only.
fn atomic(source: &Source, index: usize, placed: &HashMap<&str, Placed<'_>>, faults: &mut Vec<Fault>) {
    let mut at = index + 1;
    while source.is(at, "(") || source.is(at, "&") {
        at += 1;
    }
    let Some(found) = placed.get(source.text_of(at)) else {
        return;
    };
    if is_builtin_type(found.type_name) && !found.type_name.starts_with("atomic_") {
        let name = source.text_of(at);
        faults
            .push(source.fault(at, format!("`{name}` is of type {}, not atomic_uint or atomic_int", found.type_name)));
    }
}

/// `float4 v = a[i]` with `half4* a`, and `half h = b` with `bfloat b`: Metal converts neither by itself.
fn converted_vector(
    source: &Source,
    name: usize,
    type_name: &str,
    placed: &HashMap<&str, Placed<'_>>,
    faults: &mut Vec<Fault>,
) {
    if !source.is(name + 1, "=") {
        return;
    }
    let Some(from) = placed.get(source.text_of(name + 2)) else {
        return;
    };
    let after = match source.is(name + 3, "[") {
        true => source.closing(name + 3).map_or(name + 3, |close| close + 1),
        false => name + 3,
    };
    let sixteen = |name: &str| name == "half" || name == "bfloat";
    let is_vector = |name: &str| is_builtin_type(name) && vector(name).is_some();
    let differ = from.type_name != type_name
        && (is_vector(from.type_name) && is_vector(type_name) || sixteen(from.type_name) && sixteen(type_name));
    if differ && source.is(after, ";") {
        faults.push(
            source
                .fault(name, format!("{} does not become {type_name} by itself: write {type_name}(…)", from.type_name)),
        );
    }
}
