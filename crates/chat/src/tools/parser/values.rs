//! Parameters: their values, and where they end.

use super::{CallParser, Place, Quote};
use crate::tools::coerce::quoted;
use crate::tools::events::ReplyEvent;
use crate::tools::markup::{self, Ending, FUNCTION_CLOSE, Found, PARAMETER_CLOSE, after};
use crate::tools::value::Value;

impl CallParser {
    pub(super) fn begin_parameter(&mut self, key: String, events: &mut Vec<ReplyEvent>) {
        let value = if self.keys.contains(&key) {
            Value::dropped()
        } else {
            let value = Value::new(self.options.tools.expected(&self.function, &key));
            let before = if self.keys.is_empty() { '{' } else { ',' };
            self.argument(format!("{before}{}:{}", quoted(&key), value.begin()), events);
            self.keys.insert(key);
            value
        };
        self.place = Place::Value { value, begun: false, newline: false, begins_line: true, quote: Quote::No };
    }

    fn end_parameter(&mut self, events: &mut Vec<ReplyEvent>) {
        if let Place::Value { value, .. } = std::mem::replace(&mut self.place, Place::Call) {
            self.argument(value.end(), events);
        }
    }

    /// Text of a value, with the newline before it that turned out not to belong to a tag. Gives the text's length.
    fn value_text(&mut self, text: &str, events: &mut Vec<ReplyEvent>) -> usize {
        if let Place::Value { begins_line, quote, .. } = &mut self.place
            && !text.trim_matches(markup::SPACE).is_empty()
        {
            *begins_line = false;
            if *quote == Quote::Ended {
                *quote = Quote::No;
            }
        }
        self.value_newline(events);
        self.value_json(text, events);
        text.len()
    }

    /// The newline that has been held back, if there is one.
    fn value_newline(&mut self, events: &mut Vec<ReplyEvent>) {
        if let Place::Value { newline, .. } = &mut self.place
            && std::mem::take(newline)
        {
            self.newline(events);
        }
    }

    fn newline(&mut self, events: &mut Vec<ReplyEvent>) {
        self.value_json("\n", events);
    }

    fn value_json(&mut self, text: &str, events: &mut Vec<ReplyEvent>) {
        if let Place::Value { value, .. } = &mut self.place {
            let json = value.push(text);
            self.argument(json, events);
        }
    }

    /// [`CallParser::step`] within a value.
    pub(super) fn step_value(&mut self, text: &str, end: bool, events: &mut Vec<ReplyEvent>) -> Option<usize> {
        let Place::Value { value, begun, newline, begins_line, quote } = &mut self.place else { return Some(0) };
        if !std::mem::replace(begun, true) && text.starts_with('\n') {
            return Some(1);
        }
        let plain = text.find(['\n', '<']).unwrap_or(text.len());
        if plain > 0 {
            return Some(self.value_text(&text[..plain], events));
        }
        if text.starts_with('\n') {
            *begins_line = true;
            if std::mem::replace(newline, true) {
                self.newline(events);
            }
            return Some(1);
        }
        let in_string = !*newline && value.is_quoted();
        let before = *quote;
        let ending = match *quote {
            Quote::Within if text.starts_with(FUNCTION_CLOSE) => {
                *quote = Quote::Ended;
                self.value_newline(events);
                self.value_json(FUNCTION_CLOSE, events);
                return Some(FUNCTION_CLOSE.len());
            }
            Quote::Within => match after(text, FUNCTION_CLOSE) {
                Found::Maybe => Found::Maybe,
                _ => Found::No,
            },
            Quote::No | Quote::Ended => match if *begins_line { markup::quoted_call(text) } else { Found::No } {
                Found::Yes(bytes) => {
                    *quote = Quote::Within;
                    // Its newline is read next: it may be doubled.
                    return Some(self.value_text(&text[..bytes - 1], events));
                }
                Found::Maybe if !end => return None,
                _ if in_string => markup::ending_of_string(text, &self.options.tools),
                _ => markup::ending(text, &self.options.tools),
            },
        };
        match ending {
            Found::Maybe if !end => None,
            Found::Yes(Ending::Own) => {
                self.end_parameter(events);
                Some(PARAMETER_CLOSE.len())
            }
            Found::No => Some(self.value_text("<", events)),
            // The text was cut within the tags that end the value, unless all there is of them is one character.
            Found::Maybe if text.len() == 1 || before == Quote::Within => Some(self.value_text("<", events)),
            // The value has run into a quoted call, whose end was missing, and has taken this call's end for it.
            Found::Yes(Ending::Outer) | Found::Maybe
                if before == Quote::Ended && after(text, PARAMETER_CLOSE) == Found::No =>
            {
                if let Place::Value { value, .. } = std::mem::replace(&mut self.place, Place::Called) {
                    self.leave_open(&value.cut(), events);
                }
                Some(0)
            }
            Found::Yes(Ending::Outer) | Found::Maybe => {
                self.end_parameter(events);
                Some(0)
            }
        }
    }
}
