//! Texts as they stand in a call: byte for byte, up to the next tag.
//!
//! What is a text here is what the parser of calls reads as one: a closing tag within it must not be followed by what
//! follows values, and a call that it quotes, which begins a line, has an end. What the parser would take for anything else
//! is not allowed, and neither is a line that begins with a closing tag outside of a quoted call: a model that writes one
//! means the end, also where the call may not end yet, and finds none any more if it is taken for text. A text that is held
//! to something has no such tags in it.

use llguidance::derivre::{Regex, RegexAst};
use serde_json::Value;

use super::branches::Branch;
use super::latitude::{Latitude, MOST_LISTED, States};
use super::reason::refused;
use super::{GrammarError, formats, lark_string};

/// What every grammar of calls has: `text` is any text with its end, `CLOSE`, to which the bracket of the tag that follows
/// belongs. A call that is quoted is read apart, so that no word of the grammar is more than its lexer can look through.
pub(super) const RULES: &str = r#"
ANY: /(?s:.*)/
CLOSE: "\n</parameter>\n<"
FOLLOWS: "<parameter=" | "<parameter name=" | "</parameter>" | "</function>" | "</tool_call>" | "<tool_call>" | "<function="
ENDS: "</parameter>" /[ \t\r\n]*/ FOLLOWS | "</tool_call>" /[ \t\r\n]*/ "<tool_call>"
UNCLOSED: ANY & ~((ANY "\n")? ("</parameter>" | "</function>") ANY)
LINE: (UNCLOSED "\n")? /[ \t\r\n]*/
NEXT: UNCLOSED "\n" /[ \t\r\n]*/
WHOLE: ~(ANY ENDS ANY)
PLAIN: WHOLE & ~(LINE "<function=" /[^>\n]*>\r?\n[ \t]*/ ("<parameter=" | "</function>") ANY)
HEAD: "<function=" /[^<>\n]+>\r?\n[ \t]*/
quote[lazy]: LINE HEAD "<parameter=" & WHOLE
quote_next[lazy]: NEXT HEAD "<parameter=" & WHOLE
empty[lazy]: LINE HEAD "</function>" & WHOLE
empty_next[lazy]: NEXT HEAD "</function>" & WHOLE
quoted[lazy]: ANY "</function>"
last[lazy]: UNCLOSED CLOSE & PLAIN
text: ((quote quoted | empty) (quote_next quoted | empty_next)*)? last
"#;

/// What no text has in it that is held to something.
const TAGS: [&str; 3] = ["</parameter>", "</tool_call>", "<function="];
/// What ends a text.
const CLOSE: &str = "\n</parameter>\n<";
/// The largest length that is counted together with an expression.
const LONGEST: u64 = 1000;
/// States of a lexer for each character of a length, and besides. A test counts them.
const STATES: (usize, usize) = (48, 100);

const UNSEEN: &str = "a string of it looks like the values beside it, and cannot be told from them";

/// What there is of a text in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Held,
    /// No text is of it.
    Nothing,
    /// All texts of it, or some that are listed, would be taken for something else.
    Unseen,
}

/// What a text must be.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Text {
    /// One of these, if any are listed.
    choices: Option<Vec<String>>,
    /// Expressions of the whole text.
    expressions: Vec<String>,
    least: u64,
    most: Option<u64>,
}

impl Text {
    /// What a schema says of texts.
    ///
    /// # Errors
    /// If no text is of it.
    pub(super) fn of(branch: &Branch<'_>, states: &States<'_>) -> Result<Self, GrammarError> {
        let mut text = Self::default();
        for list in branch.listed() {
            let listed = |known: &String| list.iter().any(|value| value.as_str() == Some(known));
            let all = || list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            text.choices = Some(match text.choices.take() {
                None => all(),
                Some(known) => known.into_iter().filter(listed).collect(),
            });
        }
        for value in branch.each("minLength") {
            text.least = text.least.max(length(value, "minLength")?);
        }
        for value in branch.each("maxLength") {
            let most = length(value, "maxLength")?;
            text.most = Some(text.most.map_or(most, |known| known.min(most)));
        }
        for pattern in branch.each("pattern").filter_map(Value::as_str) {
            text.expressions.push(states.expression(pattern)?);
        }
        text.expressions.extend(branch.each("format").filter_map(Value::as_str).filter_map(formats::expression));
        text.check()?;
        Ok(text)
    }

    /// Refuses what no text is.
    fn check(&mut self) -> Result<(), GrammarError> {
        let (least, most) = (self.least, self.most.unwrap_or(u64::MAX));
        if least > most {
            return Err(refused(format!("minLength ({least}) is greater than maxLength ({most})")));
        }
        if let Some(choices) = &mut self.choices {
            choices.retain(|choice| (least..=most).contains(&(choice.chars().count() as u64)));
            if choices.is_empty() {
                return Err(refused("none of the values that are listed is one"));
            }
            (self.least, self.most) = (0, None);
        }
        Ok(())
    }

    /// Leaves out what takes more states than there are left.
    ///
    /// # Errors
    /// If something would have to be left out, and may not be.
    pub(super) fn fit(&mut self, looks: &[&str], latitude: &Latitude<'_>, path: &str) -> Result<Fit, GrammarError> {
        if self.lists_one_of(looks) {
            latitude.leave_out(path, UNSEEN)?;
            return Ok(Fit::Unseen);
        }
        loop {
            let length = self.most.unwrap_or(0).max(self.least);
            let is_held = length > 0 || self.most.is_some();
            let key = self.terminal(looks);
            let fits = if self.expressions.is_empty() && (looks.is_empty() || !is_held) {
                let each = usize::try_from(length).unwrap_or(usize::MAX).saturating_mul(STATES.0);
                let listed = self.choices.iter().flatten().map(String::len).sum();
                Some(
                    latitude.states.take_listed(&key, listed)
                        && (!is_held || latitude.states.take(&key, each.saturating_add(STATES.1))),
                )
            } else if length > LONGEST {
                // It would not even be worth counting.
                Some(false)
            } else {
                latitude.states.take_counted(&key, &self.ast(looks))
            };
            match fits {
                None if looks.is_empty() || latitude.states.is_nothing(&self.terminal(&[]), &self.ast(&[])) => {
                    return Ok(Fit::Nothing);
                }
                None => {
                    latitude.leave_out(path, UNSEEN)?;
                    return Ok(Fit::Unseen);
                }
                Some(true) => return Ok(Fit::Held),
                Some(false) if is_held => {
                    let reason = format!(
                        "a length of {length} takes more than one reply may, with the other lengths and patterns of the tools"
                    );
                    latitude.leave_out(path, reason)?;
                    (self.least, self.most) = (0, None);
                }
                Some(false) if self.choices.is_some() => {
                    latitude.leave_out(path, MOST_LISTED)?;
                    return Ok(Fit::Unseen);
                }
                Some(false) => {
                    let reason =
                        "the pattern takes more than one reply may, with the other lengths and patterns of the tools";
                    latitude.leave_out(path, reason)?;
                    self.expressions.clear();
                }
            }
        }
    }

    /// It with its end, as the lexer is made of it.
    fn ast(&self, looks: &[&str]) -> RegexAst {
        let expression = |text: &str| RegexAst::Regex(text.to_owned());
        let mut parts: Vec<RegexAst> = self.expressions.iter().map(|text| expression(text)).collect();
        if let Some(choices) = &self.choices {
            parts.push(RegexAst::Or(choices.iter().map(|choice| RegexAst::Literal(choice.clone())).collect()));
        }
        parts.extend(self.lengths().as_deref().map(expression));
        parts.push(expression(&without(&TAGS)));
        parts.extend(looks.iter().map(|look| RegexAst::Not(Box::new(expression(look)))));
        RegexAst::Concat(vec![RegexAst::And(parts), RegexAst::Literal(CLOSE.into())])
    }

    fn lengths(&self) -> Option<String> {
        let most = self.most.map(|most| most.to_string()).unwrap_or_default();
        (self.least > 0 || self.most.is_some()).then(|| format!("(?s:.{{{},{most}}})", self.least))
    }

    /// Whether a text that is listed looks like what is beside it.
    fn lists_one_of(&self, looks: &[&str]) -> bool {
        let choices = self.choices.as_deref().unwrap_or_default();
        let looks_so =
            |look: &&str| Regex::new(look).is_ok_and(|mut look| choices.iter().any(|choice| look.is_match(choice)));
        !choices.is_empty() && looks.iter().any(looks_so)
    }

    /// Whether any text will do.
    pub(super) fn is_free(&self) -> bool {
        *self == Self::default()
    }

    /// Takes out the choices that are not `kept`. Returns whether any text is left.
    pub(super) fn keep(&mut self, kept: impl Fn(&str) -> bool) -> bool {
        let Some(choices) = &mut self.choices else { return true };
        choices.retain(|choice| kept(choice));
        !choices.is_empty()
    }

    /// It with its end, in Lark, and none of the texts that look so.
    pub(super) fn terminal(&self, looks: &[&str]) -> String {
        let mut parts: Vec<String> = self.expressions.iter().map(|expression| format!("/{expression}/")).collect();
        if let Some(choices) = &self.choices {
            let choices: Vec<String> = choices.iter().map(|choice| lark_string(choice)).collect();
            parts.push(format!("({})", choices.join(" | ")));
        }
        parts.extend(self.lengths().map(|expression| format!("/{expression}/")));
        parts.push(format!("/{}/", without(&TAGS)));
        parts.extend(looks.iter().map(|look| format!("~/{look}/")));
        format!("({}) CLOSE", parts.join(" & "))
    }
}

/// The texts that have none of these words in them, each of which has the same first character, and that nowhere else. The
/// expression says what may come, as a lexer looks through that more quickly than through what may not.
fn without(words: &[&str]) -> String {
    let (first, rests) = (&words[0][..1], words.iter().map(|word| &word[1..]).collect::<Vec<_>>());
    format!("[^{first}]*({first}{})*", other_than(first, &rests))
}

/// What begins with none of the words, up to the next place where one could begin.
fn other_than(first: &str, words: &[&str]) -> String {
    let mut heads: Vec<&str> = words.iter().map(|word| &word[..1]).collect();
    heads.dedup();
    let escaped = |head: &str| head.replace('/', "\\/");
    let mut ways = vec![format!("[^{first}{}][^{first}]*", heads.iter().map(|head| escaped(head)).collect::<String>())];
    for head in heads {
        let rests: Vec<&str> = words.iter().filter_map(|word| word.strip_prefix(head)).collect();
        if !rests.contains(&"") {
            ways.push(escaped(head) + &other_than(first, &rests));
        }
    }
    format!("({})?", ways.join("|"))
}

/// A length, which may be written as a float.
pub(super) fn length(value: &Value, name: &str) -> Result<u64, GrammarError> {
    let whole = value.as_f64().filter(|length| length.fract() == 0.0 && (0.0..=9e15).contains(length));
    let length = value.as_u64().or_else(|| whole.map(|length| length as u64));
    length.ok_or_else(|| refused(format!("{name} must be a whole number that is not negative, not {value}")))
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::{STATES, TAGS, Text, without};
    use crate::grammar::states::{Measure, measure};

    #[test]
    fn lengths_take_no_more_states_than_is_said() {
        for (least, most) in [(0, Some(20)), (0, Some(50)), (50, None), (20, Some(60)), (200, Some(200))] {
            let text = Text { least, most, ..Text::default() };
            let bound = most.unwrap_or(least) as usize * STATES.0 + STATES.1;
            let Measure::States(count) = measure(&text.ast(&[]), 2 * bound) else { panic!("{least} {most:?}") };
            assert!((bound / 3..=bound).contains(&count), "{least} {most:?}: {count}");
        }
    }

    #[test]
    fn texts_without_tags() {
        let expression = Regex::new(&format!("^{}$", without(&TAGS))).expect("an expression");
        for text in
            ["", "a", "<", "</", "</p>", "<</parameter", "</parameters>", "<function", "</tool_call\n>", "a<b></b>\n"]
        {
            assert!(expression.is_match(text), "{text:?}");
        }
        for text in ["</parameter>", "a</tool_call>b", "<<function=x>", "</p</parameter>"] {
            assert!(!expression.is_match(text), "{text:?}");
        }
    }
}
