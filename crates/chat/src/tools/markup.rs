//! The tags around calls: whether a text begins with something that opens a call or ends a value. Each question may
//! have to wait for more text, so that a text cut anywhere is read as the whole is.

use super::ToolSet;

pub(crate) const OPEN: &str = "<tool_call>";
pub(crate) const CLOSE: &str = "</tool_call>";
pub(crate) const FUNCTION: &str = "<function=";
pub(crate) const FUNCTION_CLOSE: &str = "</function>";
pub(crate) const PARAMETER: &str = "<parameter=";
/// As some other models have it.
pub(crate) const NAMED_PARAMETER: &str = "<parameter name=";
pub(crate) const PARAMETER_CLOSE: &str = "</parameter>";

/// White space around tags.
pub(crate) const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];
/// White space between two tags beyond which they are not taken to belong together. A bound on what is held back.
const WIDEST: usize = 64;
/// Bytes of the longest name that is waited for.
pub(crate) const LONGEST_NAME: usize = 512;

/// Whether a text begins with what is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found<T> {
    Yes(T),
    No,
    /// The text is a beginning of it.
    Maybe,
}

impl<T> Found<T> {
    fn and<U>(self, next: impl FnOnce(T) -> Found<U>) -> Found<U> {
        match self {
            Self::Yes(found) => next(found),
            Self::No => Found::No,
            Self::Maybe => Found::Maybe,
        }
    }

    /// This or else the other. Tags begin alike: what may yet be this can be the other as well.
    fn or(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Yes(_) => self,
            Self::No => other(),
            Self::Maybe => match other() {
                Self::No => Self::Maybe,
                other => other,
            },
        }
    }
}

/// How a call opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Up to and with `<function=`, this many bytes.
    Markup(usize),
    /// Up to the brace of a JSON object, this many bytes.
    Json(usize),
}

/// The text after `tag`.
pub(crate) fn after<'t>(text: &'t str, tag: &str) -> Found<&'t str> {
    match text.strip_prefix(tag) {
        Some(rest) => Found::Yes(rest),
        None if tag.starts_with(text) => Found::Maybe,
        None => Found::No,
    }
}

/// The text after white space.
fn after_space(text: &str) -> Found<&str> {
    let rest = text.trim_start_matches(SPACE);
    if text.len() - rest.len() > WIDEST {
        return Found::No;
    }
    if rest.is_empty() { Found::Maybe } else { Found::Yes(rest) }
}

fn after_any<'t>(text: &'t str, tags: &[&str]) -> Found<&'t str> {
    tags.iter().fold(Found::No, |found, tag| found.or(|| after(text, tag)))
}

/// The name up to `end`, and what follows.
fn name(text: &str, end: char) -> Found<(&str, &str)> {
    match text.find([end, '\n']) {
        Some(at) if at <= LONGEST_NAME && text[at..].starts_with(end) => {
            Found::Yes((&text[..at], &text[at + end.len_utf8()..]))
        }
        None if text.len() <= LONGEST_NAME => Found::Maybe,
        _ => Found::No,
    }
}

/// `name` up to `end`, if a function is called so.
fn known<'t>(text: &'t str, end: char, tools: &ToolSet) -> Found<&'t str> {
    match name(text, end) {
        Found::Yes((name, rest)) if tools.contains(name.trim()) => Found::Yes(rest),
        Found::Maybe if tools.some_begins_with(text.trim_start()) || tools.contains(text.trim()) => Found::Maybe,
        _ => Found::No,
    }
}

/// Whether a call opens here, within content. A bare `<function=NAME>`, as the model writes it at times, is one if it
/// begins a line and NAME is known. A call has a name: `<function=>` is text.
pub(crate) fn opening(text: &str, begins_line: bool, tools: &ToolSet) -> Found<Opening> {
    let at = |rest: &str| text.len() - rest.len();
    let whole = after(text, OPEN).and(after_space).and(|rest| match rest.starts_with('{') {
        true => Found::Yes(Opening::Json(at(rest))),
        false => after(rest, FUNCTION).and(|rest| match rest.chars().next() {
            None => Found::Maybe,
            Some('>' | '\n') => Found::No,
            Some(_) => Found::Yes(Opening::Markup(at(rest))),
        }),
    });
    whole.or(|| match begins_line {
        true => {
            after(text, FUNCTION).and(|rest| known(rest, '>', tools).and(|_| Found::Yes(Opening::Markup(at(rest)))))
        }
        false => Found::No,
    })
}

/// Whether a call to a known function opens here, within reasoning, where a tag alone may be a thought about tags.
pub(crate) fn call_in_reasoning(text: &str, tools: &ToolSet) -> Found<()> {
    after(text, OPEN).and(after_space).and(|rest| {
        let name = match rest.strip_prefix('{') {
            None => return after(rest, FUNCTION).and(|rest| known(rest, '>', tools).and(|_| Found::Yes(()))),
            Some(body) => after_space(body).and(|rest| after(rest, "\"name\"")).and(after_space),
        };
        let name = name.and(|rest| after(rest, ":")).and(after_space).and(|rest| after(rest, "\""));
        name.and(|rest| known(rest, '"', tools)).and(|_| Found::Yes(()))
    })
}

/// As [`opening`], within reasoning.
pub(crate) fn opening_in_reasoning(text: &str, tools: &ToolSet) -> Found<Opening> {
    call_in_reasoning(text, tools).and(|()| opening(text, false, tools))
}

/// What ends a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its own closing tag.
    Own,
    /// The closing tags of the call; its own was left out.
    Outer,
}

/// Whether a value ends here. A closing tag ends it only if what must follow follows, as a value may be a text about
/// tags.
pub(crate) fn ending(text: &str, tools: &ToolSet) -> Found<Ending> {
    const FOLLOWING: [&str; 6] = [PARAMETER, NAMED_PARAMETER, PARAMETER_CLOSE, FUNCTION_CLOSE, CLOSE, OPEN];
    let next_function = |rest| after(rest, FUNCTION).and(|rest| known(rest, '>', tools));
    let own = after(text, PARAMETER_CLOSE).and(after_space);
    let own = own.and(|rest| after_any(rest, &FOLLOWING).or(|| next_function(rest)));
    let own = own.and(|_| Found::Yes(Ending::Own));
    let next_call = |rest| after_space(rest).and(|rest| after(rest, OPEN)).and(|_| Found::Yes(Ending::Outer));
    let function = || after(text, FUNCTION_CLOSE).and(after_space).and(|rest| after(rest, CLOSE)).and(next_call);
    let call = || after(text, CLOSE).and(next_call);
    own.or(|| function().or(call))
}

/// As [`ending`], where the value may be within a string of JSON, in which tags are text. No such string goes over a
/// line's end: with one between the tags it is none, but a text with a quotation mark in it, or JSON that lacks one.
pub(crate) fn ending_of_string(text: &str, tools: &ToolSet) -> Found<Ending> {
    ending(text, tools).and(|ending| {
        let rest = text.split_once('>').map_or("", |(_, rest)| rest);
        let space = &rest[..rest.len() - rest.trim_start_matches(SPACE).len()];
        if space.contains('\n') { Found::Yes(ending) } else { Found::No }
    })
}

/// Whether a call that is quoted in a value opens here: a line with `<function=NAME>` and after it what a call goes on
/// with. Up to its closing tag it is text. Gives the bytes of the line.
pub(crate) fn quoted_call(text: &str) -> Found<usize> {
    let line = after(text, FUNCTION).and(|rest| name(rest, '>')).and(|(_, rest)| after_any(rest, &["\n", "\r\n"]));
    line.and(|rest| {
        let tag = rest.trim_start_matches([' ', '\t']);
        match tag.is_empty() {
            _ if rest.len() - tag.len() > WIDEST => Found::No,
            true => Found::Maybe,
            false => after_any(tag, &[PARAMETER, FUNCTION_CLOSE]).and(|_| Found::Yes(text.len() - rest.len())),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{Ending, Found, Opening, call_in_reasoning, ending, opening};
    use crate::ToolSet;
    use serde_json::json;

    fn tools() -> ToolSet {
        ToolSet::new(&[json!({"function": {"name": "get_weather"}})])
    }

    /// Every beginning of what is found may become it.
    fn beginnings<T: PartialEq + std::fmt::Debug>(text: &str, find: impl Fn(&str) -> Found<T>) {
        assert!(matches!(find(text), Found::Yes(_)), "{text:?}");
        for end in 1..text.len() {
            assert!(find(&text[..end]) != Found::No, "{:?}", &text[..end]);
        }
    }

    #[test]
    fn openings() {
        let (tools, markup) = (tools(), "<tool_call>\n<function=g");
        beginnings(markup, |text| opening(text, false, &tools));
        beginnings("<tool_call> {", |text| opening(text, false, &tools));
        beginnings("<function=get_weather>", |text| opening(text, true, &tools));
        assert_eq!(opening(markup, false, &tools), Found::Yes(Opening::Markup(markup.len() - 1)));
        for text in [
            "<tool_call>x",
            "<tool>",
            "<function=other>",
            "<function=get_weather\n",
            "<b>",
            "<tool_call><b",
            "<tool_call>\n<function=>",
        ] {
            assert_eq!(opening(text, true, &tools), Found::No, "{text:?}");
        }
        assert_eq!(opening("<function=get_weather>", false, &tools), Found::No);
        assert_eq!(opening(&format!("<tool_call>{}", " ".repeat(1000)), true, &tools), Found::No);
    }

    #[test]
    fn calls_in_reasoning_are_to_known_functions() {
        let tools = tools();
        for text in ["<tool_call>\n<function=get_weather>", "<tool_call>\n{\"name\": \"get_weather\""] {
            beginnings(text, |text| call_in_reasoning(text, &tools));
        }
        for text in ["<tool_call> tags", "<tool_call>\n<function=NAME>", "<tool_call>{\"x\"", "<function=get_weather>"]
        {
            assert_eq!(call_in_reasoning(text, &tools), Found::No, "{text:?}");
        }
    }

    #[test]
    fn endings() {
        for (text, found) in [
            ("</parameter>\n</function>", Found::Yes(Ending::Own)),
            ("</parameter>\n<parameter=", Found::Yes(Ending::Own)),
            ("</parameter></parameter>", Found::Yes(Ending::Own)),
            ("</parameter>\n<parameter name=", Found::Yes(Ending::Own)),
            ("</parameter>\n<function=get_weather>", Found::Yes(Ending::Own)),
            ("</parameter>\n<function=get_we", Found::Maybe),
            ("</parameter>\n<function=other>", Found::No),
            ("</parameter>\n", Found::Maybe),
            ("</parameter> is a tag", Found::No),
            ("</function>\n</tool_call>\n<tool_call>", Found::Yes(Ending::Outer)),
            ("</tool_call>\n<tool_call>", Found::Yes(Ending::Outer)),
            ("</function>\n</tool_call>\n", Found::Maybe),
            ("</function>\n</tool_call>\nx", Found::No),
            ("</tool_call> x", Found::No),
            ("</", Found::Maybe),
            ("</p>", Found::No),
            ("<p", Found::No),
        ] {
            assert_eq!(ending(text, &tools()), found, "{text:?}");
        }
    }
}
