//! A compiler's complaint in words that whoever wrote the format can use: where in it, and what is wrong.
//!
//! llguidance tells of the grammar that it was given, which for an expression is one of ours around it, of settings of its own, and
//! draws what it means over several lines.

use super::GrammarError;

/// Characters of a reason that a client is told.
const LONGEST: usize = 1000;

/// What an expression's compiler begins with, and what stands before what is wrong.
const EXPRESSION: (&str, &str) = ("regex parse error:\n", "\nerror: ");

/// What may be said, and what is said in its place and in that of the rest of the line.
type Plainer = (&'static str, fn(&str) -> String);

/// Of all of it, where no part is at fault.
const TOO_MUCH: &str = "all together is more than one grammar may be; declare less, or list and bound less of it";

const PLAINER: [Plainer; 15] = [
    ("panic: assertion failed: grammar.symbols.len()", |_| TOO_MUCH.into()),
    ("panic: ", |_| "the compiler of grammars cannot work it out".into()),
    ("initial lexer configuration (grammar) too big", |_| TOO_MUCH.into()),
    ("lexer precomputation failed", |_| TOO_MUCH.into()),
    ("grammar size (number of symbols) too big", |_| TOO_MUCH.into()),
    ("fuel exhausted when checking relevance of lexemes", |_| TOO_MUCH.into()),
    ("Unable to determine if regex is empty", |_| {
        "whether any text is of its pattern, its format and its lengths together takes too long to tell".into()
    }),
    ("Regex is empty", |_| "no text is of its pattern, its format and its lengths together".into()),
    ("Failed to generate regex for ", |_| "bounds of so many digits are not supported".into()),
    ("circular references with sibling keys are not supported", |_| {
        "a reference that leads back to itself can have no other keywords beside it".into()
    }),
    ("Unimplemented keys: [", |rest| {
        format!("the schema has keywords that are not supported: {}", rest.trim_end_matches(']'))
    }),
    ("oneOf constraints are not supported", |_| {
        "oneOf is supported only where no value can be of two of its schemas".into()
    }),
    ("Only absolute $ref's (#/...) are supported", |rest| {
        let reference = rest.rsplit_once("; ref ").map_or("", |(_, reference)| reference);
        format!("only references within the schema, as #/$defs/name, are supported, not {reference}")
    }),
    ("unknown special token: ", |rest| {
        format!("unknown special token: {}", rest.split("; following").next().unwrap_or_default())
    }),
    ("lookarounds not supported yet", |_| "look-around, of which \\b and \\B are some, is not supported".into()),
];

/// Why a compiler did not take a grammar. Of a text of the client's own it says where; `ours` is around what the client wrote.
pub(super) fn of_compiler(complaint: &str, ours: bool) -> GrammarError {
    let (place, wrong) = place(complaint);
    let wrong = expression(wrong).unwrap_or_else(|| plainer(wrong));
    refused(match place {
        Some((line, column)) if !ours => format!("line {line}, column {column}: {wrong}"),
        _ => wrong,
    })
}

/// The reason, not longer than anybody reads.
pub(super) fn refused(reason: impl Into<String>) -> GrammarError {
    let mut told = reason.into();
    if let Some((end, _)) = told.char_indices().nth(LONGEST) {
        told.truncate(end);
        told.push('…');
    }
    GrammarError::Refused(told)
}

/// "at 2(4): " or "2(4): " in front, and what follows.
fn place(complaint: &str) -> (Option<(u32, u32)>, &str) {
    let read = || {
        let (place, rest) = complaint.strip_prefix("at ").unwrap_or(complaint).split_once("): ")?;
        let (line, column) = place.split_once('(')?;
        Some(((line.parse().ok()?, column.parse().ok()?), rest))
    };
    read().map_or((None, complaint), |(place, rest)| (Some(place), rest))
}

/// What is wrong with an expression, and at which of its characters if it is of one line.
fn expression(complaint: &str) -> Option<String> {
    let (drawn, wrong) = complaint.split_once(EXPRESSION.0)?.1.split_once(EXPRESSION.1)?;
    let wrong = wrong.lines().next().unwrap_or_default();
    let (_, marks) = drawn.split_once('\n').filter(|(_, marks)| marks.trim_matches([' ', '^']).is_empty())?;
    // Its lines are indented.
    let character = marks.find('^')?.saturating_sub(4) + 1;
    Some(format!("invalid regular expression: {wrong} (character {character})"))
}

/// The first line, without what only the maintainers of llguidance could use.
fn plainer(complaint: &str) -> String {
    // Of an expression that is of several lines the last line says what is wrong.
    let line = match complaint.split_once(EXPRESSION.0) {
        Some((_, drawn)) => drawn.rsplit_once(EXPRESSION.1).map_or("", |(_, wrong)| wrong).lines().next(),
        None => complaint.lines().next(),
    };
    let line = line.unwrap_or_default().trim_end();
    let line = line.split_once(" (in regex): ").map_or(line, |(_, wrong)| wrong);
    let line = line.strip_prefix("failed to compile JSON schema: ").unwrap_or(line);
    let say = |(begin, say): &Plainer| {
        let (before, rest) = line.split_once(begin)?;
        Some(format!("{before}{}", say(rest)))
    };
    PLAINER.iter().find_map(say).unwrap_or_else(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{GrammarError, LONGEST, TOO_MUCH, of_compiler, refused};

    fn told(complaint: &str, ours: bool) -> String {
        match of_compiler(complaint, ours) {
            GrammarError::Refused(reason) => reason,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn an_expression_is_told_of_by_its_characters() {
        let drawn = "regex parse error:\n    a{5,2}\n     ^^^^^\nerror: the start must be <= the end";
        let plain = "invalid regular expression: the start must be <= the end (character 2)";
        assert_eq!(told(drawn, false), plain);
        let in_lark = format!(
            "at 1(8): invalid regex \"a{{5,2}}\" (in regex): {drawn}\n   1 | start: /a{{5,2}}/\n              ^"
        );
        assert_eq!(told(&in_lark, true), plain);
        assert_eq!(told(&in_lark, false), format!("line 1, column 8: {plain}"));
        let lines = "regex parse error:\n~~~~\n1: a\n2: (\n   ^\n~~~~\nerror: unclosed group";
        assert_eq!(told(lines, true), "unclosed group");
    }

    #[test]
    fn settings_of_the_compiler_are_not_told_of() {
        for (complaint, plain) in [
            (
                "Unimplemented keys: [\"if\", \"then\"]",
                "the schema has keywords that are not supported: \"if\", \"then\"",
            ),
            (
                "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
                "oneOf is supported only where no value can be of two of its schemas",
            ),
            (
                "Only absolute $ref's (#/...) are supported without 'referencing' feature; ref 'http://a.example/b'",
                "only references within the schema, as #/$defs/name, are supported, not 'http://a.example/b'",
            ),
            (
                "failed to compile JSON schema: Unsatisfiable schema: Regex is empty:  (And (SearchRegex /^a$/) (Regex /(?s:.{5,})/))",
                "Unsatisfiable schema: no text is of its pattern, its format and its lengths together",
            ),
            (
                "Unable to determine if regex is empty:  (And (SearchRegex /^a/) (Regex /b/))",
                "whether any text is of its pattern, its format and its lengths together takes too long to tell",
            ),
            (
                "failed to compile JSON schema: Failed to generate regex for float range: min=Some(-3.4e38), max=None",
                "bounds of so many digits are not supported",
            ),
            (
                "circular references with sibling keys are not supported: json-schema:///#/$defs/d0",
                "a reference that leads back to itself can have no other keywords beside it",
            ),
            ("fuel exhausted when checking relevance of lexemes (1000000)", TOO_MUCH),
            ("Invalid type: foo\n\n<backtrace>", "Invalid type: foo"),
            ("panic: assertion failed: grammar.symbols.len() < u16::MAX as usize - 10", TOO_MUCH),
            ("panic: attempt to negate with overflow", "the compiler of grammars cannot work it out"),
            ("initial lexer configuration (grammar) too big (limit for this grammar: 1000000)", TOO_MUCH),
            ("grammar size (number of symbols) too big (limit for this grammar: 500000)", TOO_MUCH),
        ] {
            assert_eq!(told(complaint, false), plain);
        }
        let special =
            "at 1(8): unknown special token: \"<x>\"; following special tokens are available: ⟦<y>⟧\n   1 | start: <x>";
        assert_eq!(told(special, false), "line 1, column 8: unknown special token: \"<x>\"");
        let around =
            "at 1(8): invalid regex \"\\b\" (in regex): lookarounds not supported yet; WordUnicode in regex /\\b/";
        assert_eq!(told(around, true), "look-around, of which \\b and \\B are some, is not supported");
    }

    #[test]
    fn what_is_no_place_stays() {
        assert_eq!(told("f(x): y", false), "f(x): y");
        assert_eq!(told("2(4): unknown name: \"y\"\n   1 | start: x", false), "line 2, column 4: unknown name: \"y\"");
        let GrammarError::Refused(long) = refused("é".repeat(LONGEST + 7)) else { panic!() };
        assert_eq!(long.chars().count(), LONGEST + 1);
    }
}
