//! Cuts a source into tokens. Comments and white space lie between tokens and stay in the text.

use crate::error::Fault;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or keyword.
    Word,
    /// An integer or floating-point literal.
    Number,
    /// A string or character literal, with its quotes.
    Quoted,
    /// A whole preprocessor line, from `#` to before its end.
    Directive,
    /// `::`, `->`, or one character. Longer operators are adjacent tokens, so that `>>` can close two argument lists.
    Symbol,
}

/// A token: bytes `start..end` of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
    /// Counted from 1.
    pub line: u32,
}

/// A source file and its tokens.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// The file's name within the kernels' directory.
    pub name: String,
    pub text: String,
    pub tokens: Vec<Token>,
}

impl Source {
    /// Cuts `text` into tokens; faults are an unfinished comment or literal and characters that no token begins with.
    pub(crate) fn new(name: &str, text: &str) -> Result<Self, Fault> {
        let tokens = Cutter { name, text, at: 0, line: 1 }.cut()?;
        Ok(Self { name: name.to_owned(), text: text.to_owned(), tokens })
    }

    /// The text of token `index`; empty past the end.
    pub(crate) fn text_of(&self, index: usize) -> &str {
        self.tokens.get(index).map_or("", |token| &self.text[token.start..token.end])
    }

    /// Whether token `index` is this word or symbol.
    pub(crate) fn is(&self, index: usize, text: &str) -> bool {
        self.text_of(index) == text
    }

    /// Whether token `index` is a name or keyword.
    pub(crate) fn is_word(&self, index: usize) -> bool {
        self.tokens.get(index).is_some_and(|token| token.kind == Kind::Word)
    }

    /// Whether nothing lies between token `index` and the next.
    pub(crate) fn adjacent(&self, index: usize) -> bool {
        match (self.tokens.get(index), self.tokens.get(index + 1)) {
            (Some(token), Some(next)) => token.end == next.start,
            _ => false,
        }
    }

    /// Whether tokens `index` and `index + 1` spell the operator `text` of two characters.
    pub(crate) fn is_pair(&self, index: usize, text: &str) -> bool {
        self.adjacent(index) && self.is(index, &text[..1]) && self.is(index + 1, &text[1..])
    }

    /// The line of token `index`; past the end, that of the last token.
    pub(crate) fn line(&self, index: usize) -> u32 {
        self.tokens.get(index).or(self.tokens.last()).map_or(0, |token| token.line)
    }

    /// The text from the first to the last token of `tokens`, each separated by one blank where anything separated them.
    pub(crate) fn spelled(&self, tokens: std::ops::Range<usize>) -> String {
        let mut spelled = String::new();
        for index in tokens.clone() {
            spelled.push_str(self.text_of(index));
            if index + 1 < tokens.end && !self.adjacent(index) {
                spelled.push(' ');
            }
        }
        spelled
    }

    /// A fault at the line of token `index`.
    pub(crate) fn fault(&self, index: usize, message: impl Into<String>) -> Fault {
        Fault { file: self.name.clone(), line: self.line(index), message: message.into() }
    }
}

struct Cutter<'a> {
    name: &'a str,
    text: &'a str,
    at: usize,
    line: u32,
}

impl Cutter<'_> {
    fn cut(mut self) -> Result<Vec<Token>, Fault> {
        let bytes = self.text.as_bytes();
        let mut tokens: Vec<Token> = Vec::new();
        while self.at < bytes.len() {
            let (start, line) = (self.at, self.line);
            let rest = &self.text[start..];
            let kind = match bytes[start] {
                byte if byte.is_ascii_whitespace() => {
                    self.line += u32::from(byte == b'\n');
                    self.at += 1;
                    continue;
                }
                _ if rest.starts_with("//") => {
                    self.at += rest.find('\n').unwrap_or(rest.len());
                    continue;
                }
                _ if rest.starts_with("/*") => {
                    let length = rest.find("*/").ok_or_else(|| self.fault("this comment is never closed"))? + 2;
                    self.advance(length);
                    continue;
                }
                b'#' if tokens.last().is_none_or(|last| last.line < line) => {
                    self.advance(directive_length(rest));
                    Kind::Directive
                }
                b'"' | b'\'' => {
                    let length = quoted_length(rest).ok_or_else(|| self.fault("this literal is never closed"))?;
                    self.at += length;
                    Kind::Quoted
                }
                byte if byte.is_ascii_alphabetic() || byte == b'_' => {
                    self.at += rest.find(|c: char| !is_word_character(c)).unwrap_or(rest.len());
                    Kind::Word
                }
                byte if byte.is_ascii_digit() || (byte == b'.' && starts_with_digit(&rest[1..])) => {
                    self.at += number_length(rest);
                    Kind::Number
                }
                byte if byte.is_ascii_punctuation() && !b"@`$\\".contains(&byte) => {
                    self.at += if rest.starts_with("::") || rest.starts_with("->") { 2 } else { 1 };
                    Kind::Symbol
                }
                _ => {
                    let character = rest.chars().next().unwrap_or_default();
                    return Err(self.fault(format!("`{character}` means nothing outside a comment")));
                }
            };
            tokens.push(Token { kind, start, end: self.at, line });
        }
        Ok(tokens)
    }

    fn advance(&mut self, length: usize) {
        let passed = &self.text[self.at..self.at + length];
        self.line += passed.matches('\n').count() as u32;
        self.at += length;
    }

    fn fault(&self, message: impl Into<String>) -> Fault {
        Fault { file: self.name.to_owned(), line: self.line, message: message.into() }
    }
}

fn is_word_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// The length of the preprocessor line that `text` begins with, continued lines included, a trailing comment not.
fn directive_length(text: &str) -> usize {
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches(['\n', '\r']);
        if let Some(comment) = content.find("//") {
            return end + content[..comment].trim_end().len();
        }
        if !content.ends_with('\\') {
            return end + content.trim_end().len();
        }
        end += line.len();
    }
    text.trim_end().len()
}

/// The length of the quoted literal that `text` begins with; none if its line ends first.
fn quoted_length(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '\n' => return None,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// The length of the numeric literal that `text` begins with: digits, letters, points, and signs after an exponent.
fn number_length(text: &str) -> usize {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let exponents: &[char] = if hexadecimal { &['p', 'P'] } else { &['e', 'E'] };
    let mut previous = ' ';
    text.find(|c: char| {
        let signed = matches!(c, '+' | '-') && exponents.contains(&previous);
        previous = c;
        !(is_word_character(c) || c == '.' || signed)
    })
    .unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spell(text: &str) -> Vec<String> {
        let source = Source::new("t.metal", text).expect("tokens");
        (0..source.tokens.len()).map(|index| source.text_of(index).to_owned()).collect()
    }

    #[test]
    fn words_numbers_and_symbols() {
        assert_eq!(spell("a_1->b::c>>=2"), ["a_1", "->", "b", "::", "c", ">", ">", "=", "2"]);
        assert_eq!(
            spell("0xffu 1e-6f .5 1.0e+3 0x1p-3f 3-4"),
            ["0xffu", "1e-6f", ".5", "1.0e+3", "0x1p-3f", "3", "-", "4"]
        );
        assert_eq!(spell(r#"host_name("a\"b") 'c'"#), ["host_name", "(", r#""a\"b""#, ")", "'c'"]);
    }

    #[test]
    fn comments_are_no_tokens_and_lines_are_counted() {
        let source = Source::new("t.metal", "/* a\n b */ x // y\n#define A \\\n 1 // c\nz # w").expect("tokens");
        let seen: Vec<_> = source.tokens.iter().map(|t| (&source.text[t.start..t.end], t.line)).collect();
        assert_eq!(seen, [("x", 2), ("#define A \\\n 1", 3), ("z", 5), ("#", 5), ("w", 5)]);
    }

    #[test]
    fn unfinished_pieces_are_faults_with_a_line() {
        for (text, line) in [("\n/* a", 2), ("\n\n\"a\n\"", 3), ("a\n@", 2), ("é", 1)] {
            assert_eq!(Source::new("t.metal", text).expect_err(text).line, line, "{text}");
        }
    }
}
