//! What belongs together by brackets.

use std::ops::Range;

use crate::error::Fault;
use crate::token::Source;

impl Source {
    /// The index of the bracket that closes the one at `open`, which is `(`, `[` or `{`; faults if there is none.
    pub(crate) fn closing(&self, open: usize) -> Result<usize, Fault> {
        let mut expected = Vec::new();
        for index in open..self.tokens.len() {
            match self.text_of(index) {
                "(" => expected.push(")"),
                "[" => expected.push("]"),
                "{" => expected.push("}"),
                closing @ (")" | "]" | "}") => {
                    if expected.pop() != Some(closing) {
                        return Err(self.fault(index, format!("`{closing}` closes nothing that is open here")));
                    }
                    if expected.is_empty() {
                        return Ok(index);
                    }
                }
                _ => {}
            }
        }
        Err(self.fault(open, format!("`{}` is never closed", self.text_of(open))))
    }

    /// The `>` that closes the template list at `open`; none if what stands there is no such list.
    pub(crate) fn closing_angle(&self, open: usize) -> Option<usize> {
        let mut depth = 0;
        let mut index = open;
        while index < self.tokens.len() {
            match self.text_of(index) {
                "<" => depth += 1,
                ">" => {
                    depth -= 1;
                    if depth == 0 {
                        return Some(index);
                    }
                }
                "(" | "[" => index = self.closing(index).ok()?,
                ";" | "{" | "}" | ")" | "]" => return None,
                _ => {}
            }
            index += 1;
        }
        None
    }

    /// The token behind the template list at `index`; `index` itself if there is none.
    pub(crate) fn behind_angles(&self, index: usize) -> usize {
        let close = if self.is(index, "<") { self.closing_angle(index) } else { None };
        close.map_or(index, |close| close + 1)
    }

    /// Splits at the commas outside of brackets and template lists; nothing gives no pieces.
    pub(crate) fn split_at_commas(&self, tokens: Range<usize>) -> Result<Vec<Range<usize>>, Fault> {
        let mut pieces = Vec::new();
        let mut start = tokens.start;
        let mut index = tokens.start;
        while index < tokens.end {
            match self.text_of(index) {
                "," => {
                    pieces.push(start..index);
                    start = index + 1;
                }
                "(" | "[" | "{" => index = self.closing(index)?,
                "<" => {
                    if let Some(close) = self.closing_angle(index).filter(|&close| close < tokens.end) {
                        index = close;
                    }
                }
                _ => {}
            }
            index += 1;
        }
        if start < tokens.end {
            pieces.push(start..tokens.end);
        }
        match pieces.iter().find(|piece| piece.is_empty()) {
            Some(empty) => Err(self.fault(empty.start, "nothing stands before this comma")),
            None => Ok(pieces),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_find_their_match() {
        let source = Source::new("t.metal", "f(a[b(1)], {2}) }").expect("tokens");
        assert_eq!(source.closing(1), Ok(13));
        let source = Source::new("t.metal", "f(\n a]").expect("tokens");
        assert_eq!(source.closing(1).expect_err("mismatch").line, 2);
        assert!(source.closing(3).is_err());
    }

    #[test]
    fn template_lists_are_told_from_comparisons() {
        let source = Source::new("t.metal", "f<g<8>, (a > b)>(1) a < b; c >").expect("tokens");
        assert_eq!(source.closing_angle(1), Some(12));
        assert_eq!(source.behind_angles(1), 13);
        let less = (0..source.tokens.len()).rfind(|&index| source.is(index, "<")).expect("<");
        assert_eq!(source.closing_angle(less), None);
        assert_eq!(source.behind_angles(less), less);
    }

    #[test]
    fn commas_within_brackets_split_nothing() {
        let source = Source::new("t.metal", "f(a, b), g<1, 2>, c[{3, 4}]").expect("tokens");
        let pieces = source.split_at_commas(0..source.tokens.len()).expect("pieces");
        let spelled: Vec<_> = pieces.into_iter().map(|piece| source.spelled(piece)).collect();
        assert_eq!(spelled, ["f(a, b)", "g<1, 2>", "c[{3, 4}]"]);
        assert_eq!(source.split_at_commas(0..0), Ok(vec![]));
        let source = Source::new("t.metal", "a,\n,b").expect("tokens");
        assert_eq!(source.split_at_commas(0..4).expect_err("empty piece").line, 2);
    }
}
