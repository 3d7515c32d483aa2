//! A schema's `pattern`, which may match anywhere in a text, as an expression of the whole text.

use llguidance::regex_to_lark;
use regex_syntax::Parser;
use regex_syntax::hir::{Dot, Hir, HirKind, Look, Repetition};

use super::GrammarError;
use super::reason::{of_compiler, refused};

/// Alternatives that a pattern with anchors within may come to.
const MOST: usize = 64;

/// Bytes of a pattern, and of the expression that it becomes: a class of letters alone comes to some 5,000.
const LONGEST: (usize, usize) = (8 << 10, 64 << 10);
const STANDS_FOR: &str = "expression that the pattern stands for";

fn check_length(what: &str, bytes: usize, most: usize) -> Result<(), GrammarError> {
    if bytes > most {
        return Err(refused(format!("the {what} has {bytes} bytes; at most {most} are taken")));
    }
    Ok(())
}

/// Refuses an expression of a whole text that a pattern must not be as long as. What else may be wrong with it is for the compiler
/// to say.
pub(super) fn check_expression(expression: &str) -> Result<(), GrammarError> {
    check_length("expression", expression.len(), LONGEST.0)?;
    let bytes = Parser::new().parse(expression).map_or(0, |parsed| parsed.to_string().len());
    check_length(STANDS_FOR, bytes, LONGEST.1)
}

/// What a pattern says of whole texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// As it stands between slashes in Lark.
    pub(super) expression: String,
    /// Characters that the text has besides.
    pub(super) least: u64,
    pub(super) most: Option<u64>,
}

/// Digits and letters are ASCII's, as in JSON Schema.
pub(super) fn anywhere(pattern: &str) -> Result<Whole, GrammarError> {
    check_length("pattern", pattern.len(), LONGEST.0)?;
    let parsed = Parser::new().parse(&regex_to_lark(pattern, "dw"));
    let parsed = parsed.map_err(|error| of_compiler(&error.to_string(), true))?;
    let whole: Result<Vec<Hir>, GrammarError> = sequences(&parsed)?.into_iter().map(whole).collect();
    let (any_length, least, most) = apart(Hir::alternation(whole?));
    let expression = regex_to_lark(&any_length.to_string(), "");
    check_length(STANDS_FOR, expression.len(), LONGEST.1)?;
    Ok(Whole { expression, least, most })
}

/// An expression that is nothing but so many characters of a class as one of any length, and the length.
fn apart(expression: Hir) -> (Hir, u64, Option<u64>) {
    match expression.kind() {
        HirKind::Repetition(many)
            if matches!(many.sub.kind(), HirKind::Class(_))
                && (many.min > 1 || many.max.is_some_and(|most| most > 1)) =>
        {
            let any = Hir::repetition(Repetition { min: 0, max: None, ..many.clone() });
            (any, many.min.into(), many.max.map(u64::from))
        }
        _ => (expression, 0, None),
    }
}

/// Whether there is a longest text of an expression.
pub(super) fn ends(expression: &str) -> bool {
    Parser::new().parse(expression).is_ok_and(|parsed| parsed.properties().maximum_len().is_some())
}

/// Whether a part looks around: anchors do.
fn looks(part: &Hir) -> bool {
    !part.properties().look_set().is_empty()
}

/// The alternatives, each as the parts that follow each other, so that each has its anchors at its ends.
fn sequences(part: &Hir) -> Result<Vec<Vec<Hir>>, GrammarError> {
    Ok(match part.kind() {
        HirKind::Capture(capture) => sequences(&capture.sub)?,
        HirKind::Alternation(parts) => parts.iter().map(sequences).collect::<Result<Vec<_>, _>>()?.concat(),
        HirKind::Concat(parts) => {
            let mut all = vec![Vec::new()];
            for part in parts {
                let mut next = if looks(part) { sequences(part)? } else { vec![vec![part.clone()]] };
                if all.len() * next.len() > MOST {
                    return Err(refused("the pattern has too many alternatives with anchors"));
                }
                // Nothing is copied for each part of a long pattern.
                if next.len() == 1
                    && let Some(end) = next.pop()
                {
                    all.iter_mut().for_each(|begin| begin.extend_from_slice(&end));
                } else {
                    all = all.iter().flat_map(|begin| next.iter().map(|end| [&begin[..], end].concat())).collect();
                }
            }
            all
        }
        _ => vec![vec![part.clone()]],
    })
}

/// The texts that a sequence matches some part of, or the part that its anchors say.
fn whole(mut parts: Vec<Hir>) -> Result<Hir, GrammarError> {
    let is = |look: Look| move |part: &&Hir| *part.kind() == HirKind::Look(look);
    let begins = parts.iter().take_while(is(Look::Start)).count();
    parts.drain(..begins);
    let ends = parts.iter().rev().take_while(is(Look::End)).count();
    parts.truncate(parts.len() - ends);
    if parts.iter().any(looks) {
        return Err(refused("look-around, of which \\b and \\B are some, and anchors within are not supported"));
    }
    let sub = Box::new(Hir::dot(Dot::AnyChar));
    let anything = Hir::repetition(Repetition { min: 0, max: None, greedy: true, sub });
    if begins == 0 {
        parts.insert(0, anything.clone());
    }
    if ends == 0 {
        parts.push(anything);
    }
    Ok(Hir::concat(parts))
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::{Whole, anywhere};

    #[test]
    fn it_matches_whole_texts_where_the_pattern_matches_somewhere() {
        let texts = ["", "a", "b", "ab", "xab", "abx", "xabx", "a/b", "7", "٣", "a\nb", "c", "xc"];
        for pattern in [
            "ab",
            "^ab",
            "ab$",
            "^ab$",
            "^(ab|b$|c)$",
            "^a|b$",
            "(^a|c)b?",
            "a|^c$",
            "a/b",
            r"\d",
            "",
            "^$",
            "^",
            "[^b]$",
            "(^|x)ab($|x)",
            "^[a-z]{2,3}$",
            "^[^a]{2,}$",
            "^.?$",
            r"^[\s\S]{1,2}$",
            "[a-z]{2,3}",
        ] {
            let own = Regex::new(&pattern.replace(r"\d", "[0-9]")).expect("a pattern");
            let Whole { expression, least, most } = anywhere(pattern).expect("fine");
            let whole = Regex::new(&format!("^(?:{expression})$")).expect("an expression");
            for text in texts {
                let length = text.chars().count() as u64;
                let is_whole = whole.is_match(text) && length >= least && most.is_none_or(|most| length <= most);
                assert_eq!(is_whole, own.is_match(text), "{pattern} {text:?}");
            }
        }
        for (pattern, reason) in [
            (r"\bx", "look-around"),
            ("a^b", "anchors within"),
            ("(?=a)b", "look-around"),
            ("a(", "unclosed group (character 2)"),
            ("(^a)*", "anchors within"),
            (&"(a|b)".repeat(50_000), "at most 8192"),
            (&r"\pL".repeat(2000), "at most 65536"),
        ] {
            let given = anywhere(pattern).expect_err("refused").to_string();
            assert!(given.contains(reason), "{pattern}: {given}");
        }
    }
}
