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
use super::latitude::{Latitude, Need, States};
use super::pattern::{Whole, ends};
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
#[derive(Clone, Debug, Default, PartialEq)]
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
            text.end_at(length(value, "maxLength")?);
        }
        for pattern in branch.each("pattern").filter_map(Value::as_str) {
            text.hold_to(states.expression(pattern)?);
        }
        text.expressions.extend(branch.0.iter().filter_map(|schema| formats::of(schema)));
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

    /// What a name must be.
    pub(super) fn of_pattern(pattern: Whole) -> Self {
        let mut text = Self::default();
        text.hold_to(pattern);
        text
    }

    fn hold_to(&mut self, pattern: Whole) {
        self.expressions.push(pattern.expression);
        self.least = self.least.max(pattern.least);
        pattern.most.into_iter().for_each(|most| self.end_at(most));
    }

    fn end_at(&mut self, most: u64) {
        self.most = Some(self.most.map_or(most, |known| known.min(most)));
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
            let texts = std::slice::from_ref(self);
            let what = match (self.length(), &self.choices) {
                (1.., _) => format!("a length of {}", self.length()),
                (0, Some(_)) => "a list of values".into(),
                (0, None) => "the pattern".into(),
            };
            let reason = match Self::count(texts, looks, latitude.states) {
                Ok(Some(count)) => match latitude.states.take(Need::from([(self.terminal(looks), (count, what))])) {
                    Ok(()) => return Ok(Fit::Held),
                    Err(reason) => reason,
                },
                Ok(None) if looks.is_empty() || Self::count(texts, &[], latitude.states) == Ok(None) => {
                    return Ok(Fit::Nothing);
                }
                Ok(None) => {
                    latitude.leave_out(path, UNSEEN)?;
                    return Ok(Fit::Unseen);
                }
                Err(reason) => format!("{what} {reason}"),
            };
            latitude.leave_out(path, reason)?;
            if self.least > 0 || self.most.is_some() {
                (self.least, self.most) = (0, None);
            } else if self.choices.is_some() {
                return Ok(Fit::Unseen);
            } else {
                self.expressions.clear();
            }
        }
    }

    /// How many states there are to texts that may stand in the same place; `None` if there is none.
    ///
    /// # Errors
    /// What is said of texts that have too many.
    pub(super) fn count(texts: &[Self], looks: &[&str], states: &States<'_>) -> Result<Option<usize>, &'static str> {
        let beside: Vec<&str> = std::iter::once("call").chain(looks.iter().copied()).collect();
        let (listed, texts): (Vec<Self>, Vec<Self>) = texts
            .iter()
            .filter(|text| !text.is_free())
            .cloned()
            .partition(|text| text.choices.is_some() && !text.has_expressions());
        // Of values that are listed there is one for each byte, whatever is beside them.
        let bytes = listed.iter().flat_map(|text| &text.choices).flatten().map(String::len).sum();
        if texts.is_empty() {
            return Ok(Some(bytes));
        }
        let expression = |texts: &[Self]| RegexAst::Or(texts.iter().map(|text| text.ast(looks)).collect());
        let counted = states.count(&beside, &texts, &expression)?;
        Ok(counted.map(|count| count.saturating_add(bytes)))
    }

    /// It with its end, as the lexer is made of it.
    fn ast(&self, looks: &[&str]) -> RegexAst {
        let expression = |text: &str| RegexAst::Regex(text.to_owned());
        let mut parts = self.parts();
        parts.push(expression(&without(&TAGS)));
        parts.extend(looks.iter().map(|look| RegexAst::Not(Box::new(expression(look)))));
        RegexAst::Concat(vec![RegexAst::And(parts), RegexAst::Literal(CLOSE.into())])
    }

    /// All of which it is.
    pub(super) fn parts(&self) -> Vec<RegexAst> {
        let mut parts: Vec<RegexAst> = self.expressions.iter().cloned().map(RegexAst::Regex).collect();
        if let Some(choices) = &self.choices {
            parts.push(RegexAst::Or(choices.iter().map(|choice| RegexAst::Literal(choice.clone())).collect()));
        }
        parts.extend(self.lengths().map(RegexAst::Regex));
        parts
    }

    pub(super) fn of_any_length(&self) -> Self {
        Self { least: 0, most: None, ..self.clone() }
    }

    /// What it is held to at most, or else at least.
    pub(super) fn length(&self) -> u64 {
        self.most.unwrap_or(0).max(self.least)
    }

    /// Whether all its expressions come to an end.
    pub(super) fn ends(&self) -> bool {
        self.expressions.iter().all(|expression| ends(expression))
    }

    pub(super) fn has_expressions(&self) -> bool {
        !self.expressions.is_empty()
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

    /// Takes out the choices that are not `kept`. Returns whether any text is left, and whether all are.
    pub(super) fn keep(&mut self, kept: impl Fn(&str) -> bool) -> (bool, bool) {
        let Some(choices) = &mut self.choices else { return (true, true) };
        let all = choices.len();
        choices.retain(|choice| kept(choice));
        (!choices.is_empty(), choices.len() == all)
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

    use super::{TAGS, Text, without};
    use crate::grammar::latitude::States;
    use crate::grammar::states::{Counter, Measure, measure_up_to};

    /// What lengths are said to take is no less than what they do, and no more than twice as much.
    #[test]
    fn lengths_take_no_more_states_than_is_said() {
        for looks in [&[][..], &[r"\s*null\s*(\n(?s:.*))?"]] {
            for (least, most) in [(0, Some(20)), (0, Some(50)), (50, None), (20, Some(60)), (200, Some(200))] {
                let counter = Counter::default();
                let text = Text { least, most, ..Text::default() };
                let count = Text::count(std::slice::from_ref(&text), looks, &States::new(&counter));
                let (made, _) = measure_up_to(&text.ast(looks), 100_000, u64::MAX);
                let (Ok(Some(count)), Measure::States(made)) = (count, made) else { panic!("{count:?} {made:?}") };
                assert!((made..=2 * made).contains(&count), "{least} {most:?}: {count}, {made}");
            }
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
