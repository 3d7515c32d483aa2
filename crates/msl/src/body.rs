//! What a function's body declares and calls.

use std::ops::Range;

use crate::error::Fault;
use crate::token::Source;

/// A name in `threadgroup T name[…][…];`
#[derive(Clone, Debug)]
pub(crate) struct ThreadgroupArray {
    pub name: String,
    pub type_name: String,
    /// The expressions between the brackets, outermost first.
    pub dimensions: Vec<Range<usize>>,
    /// The word `threadgroup` that begins the declaration.
    pub keyword: usize,
    /// The name and its dimensions.
    pub declarator: Range<usize>,
    /// Whether it stands directly in the body, in no inner block.
    pub outermost: bool,
}

/// A declaration that a body makes, in the order of the source.
#[derive(Clone, Debug)]
pub(crate) enum Declaration {
    /// `constexpr T name = expression`, also `const` if the expression turns out constant.
    Value { name: String, expression: Range<usize> },
    /// `using name = type;`
    Alias { name: String, type_name: String },
    /// Storage of the threadgroup.
    Threadgroup(ThreadgroupArray),
}

/// The constants and threadgroup arrays that the body between the braces `open` and `close` declares.
pub(crate) fn declarations(source: &Source, open: usize, close: usize) -> Result<Vec<Declaration>, Fault> {
    let mut found = Vec::new();
    let mut depth = 0usize;
    let mut index = open;
    while index < close {
        match source.text_of(index) {
            "{" => depth += 1,
            "}" => depth -= 1,
            "constexpr" | "const" if begins_statement(source, index) => values(source, index, close, &mut found)?,
            "using" if source.is(index + 2, "=") => {
                let end = end_of_statement(source, index, close)?;
                let name = source.text_of(index + 1).to_owned();
                found.push(Declaration::Alias { name, type_name: source.spelled(index + 3..end) });
            }
            "threadgroup" if begins_statement(source, index) => {
                let end = end_of_statement(source, index, close)?;
                let arrays = threadgroup_arrays(source, index, end, depth == 1)?;
                found.extend(arrays.into_iter().map(Declaration::Threadgroup));
            }
            _ => {}
        }
        index += 1;
    }
    Ok(found)
}

/// Whether a statement begins at token `index`.
pub(crate) fn begins_statement(source: &Source, index: usize) -> bool {
    use crate::token::Kind;
    let Some(before) = index.checked_sub(1) else {
        return true;
    };
    source.tokens[before].kind == Kind::Directive || ["{", "}", ";", ")", ":", "else"].contains(&source.text_of(before))
}

fn end_of_statement(source: &Source, start: usize, close: usize) -> Result<usize, Fault> {
    (start..close)
        .find(|&index| source.is(index, ";"))
        .ok_or_else(|| source.fault(start, "`;` is missing after this declaration"))
}

fn values(source: &Source, start: usize, close: usize, found: &mut Vec<Declaration>) -> Result<(), Fault> {
    let end = end_of_statement(source, start, close)?;
    for declared in source.split_at_commas(start + 1..end)? {
        let Some(equals) = declared.clone().find(|&index| source.is(index, "=")) else {
            continue;
        };
        let name = equals - 1;
        if source.is_word(name) {
            let expression = equals + 1..declared.end;
            found.push(Declaration::Value { name: source.text_of(name).to_owned(), expression });
        }
    }
    Ok(())
}

/// The arrays and variables that `threadgroup` at `start` declares; none if it declares a pointer or reference.
fn threadgroup_arrays(
    source: &Source,
    start: usize,
    end: usize,
    outermost: bool,
) -> Result<Vec<ThreadgroupArray>, Fault> {
    let mut after = start + 1;
    while after < end && !["[", "=", ",", "*", "&", "(", "{"].contains(&source.text_of(after)) {
        after = match source.is(after, "<") {
            true => source.closing_angle(after).map_or(end, |angle| angle + 1),
            false => after + 1,
        };
    }
    if after < end && ["*", "&", "("].contains(&source.text_of(after)) {
        return Ok(Vec::new());
    }
    let first = after - 1;
    if first <= start + 1 || !source.is_word(first) {
        return Err(source.fault(start, "write `threadgroup T name[size];`"));
    }
    let type_name = source.spelled(start + 1..first);
    let mut arrays = Vec::new();
    for declarator in source.split_at_commas(first..end)? {
        let mut dimensions = Vec::new();
        let mut at = declarator.start + 1;
        while at < declarator.end {
            if !source.is(at, "[") {
                return Err(source.fault(at, "threadgroup storage has no initialiser"));
            }
            let bracket = source.closing(at)?;
            dimensions.push(at + 1..bracket);
            at = bracket + 1;
        }
        let name = source.text_of(declarator.start).to_owned();
        arrays.push(ThreadgroupArray {
            name,
            type_name: type_name.clone(),
            dimensions,
            keyword: start,
            declarator,
            outermost,
        });
    }
    Ok(arrays)
}

/// The names called between two tokens, each with the token of its name; templates' arguments may stand in between.
pub(crate) fn calls(source: &Source, tokens: Range<usize>) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for index in tokens {
        if !source.is_word(index) {
            continue;
        }
        if source.is(source.behind_angles(index + 1), "(") {
            found.push((source.text_of(index).to_owned(), index));
        }
    }
    found
}
