//! Integer constant expressions: sizes of threadgroup arrays, numbers of threads.

use std::collections::HashMap;
use std::ops::Range;

use crate::token::{Kind, Source};
use crate::tree::{File, Function};

/// The values of names, and the sizes of types by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope<'a> {
    /// Of constexprs and template parameters.
    pub values: HashMap<String, i64>,
    /// What template parameters and aliases stand for.
    pub types: HashMap<String, String>,
    /// Functions that are `constexpr`.
    pub functions: HashMap<&'a str, (&'a File, &'a Function)>,
}

/// The value of an integer expression over literals, names of `scope`, casts, `min` and `max`; otherwise what it stumbled at.
pub(crate) fn evaluate(source: &Source, tokens: Range<usize>, scope: &Scope<'_>) -> Result<i64, String> {
    let mut evaluator = Evaluator { source, at: tokens.start, end: tokens.end, scope };
    let value = evaluator.choice()?;
    if evaluator.at != tokens.end {
        return Err(evaluator.stumble());
    }
    Ok(value)
}

struct Evaluator<'a> {
    source: &'a Source,
    at: usize,
    end: usize,
    scope: &'a Scope<'a>,
}

/// Binary operators by how tightly they bind, loosest first. Longer spellings stand before their beginnings.
const LEVELS: &[&[&str]] = &[
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

impl Evaluator<'_> {
    fn choice(&mut self) -> Result<i64, String> {
        let condition = self.binary(0)?;
        if !self.take("?") {
            return Ok(condition);
        }
        let chosen = self.choice()?;
        if !self.take(":") {
            return Err(self.stumble());
        }
        let other = self.choice()?;
        Ok(if condition != 0 { chosen } else { other })
    }

    fn binary(&mut self, level: usize) -> Result<i64, String> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.is_operator(operator)) {
            self.at += operator.len();
            let right = self.binary(level + 1)?;
            left = apply(operator, left, right).ok_or_else(|| format!("`{left} {operator} {right}` has no value"))?;
        }
        Ok(left)
    }

    /// Whether this very operator stands here, not a longer one that begins like it.
    fn is_operator(&self, operator: &str) -> bool {
        if operator.len() == 2 {
            return self.at + 1 < self.end && self.source.is_pair(self.at, operator);
        }
        let longer = ["||", "&&", "<<", ">>", "<=", ">="];
        self.at < self.end
            && self.source.is(self.at, operator)
            && !longer.iter().any(|pair| pair.starts_with(operator) && self.source.is_pair(self.at, pair))
    }

    fn unary(&mut self) -> Result<i64, String> {
        if self.take("-") {
            return self.unary()?.checked_neg().ok_or_else(|| self.stumble());
        }
        if self.take("+") {
            return self.unary();
        }
        if self.take("!") {
            return Ok(i64::from(self.unary()? == 0));
        }
        self.primary()
    }

    fn primary(&mut self) -> Result<i64, String> {
        if self.take("(") {
            let value = self.choice()?;
            return if self.take(")") { Ok(value) } else { Err(self.stumble()) };
        }
        let token = self.source.tokens.get(self.at).filter(|_| self.at < self.end).ok_or_else(|| self.stumble())?;
        let text = self.source.text_of(self.at);
        match token.kind {
            Kind::Number => {
                let value = integer(text).ok_or_else(|| format!("`{text}` is no integer"))?;
                self.at += 1;
                Ok(value)
            }
            Kind::Word if text == "true" || text == "false" => {
                self.at += 1;
                Ok(i64::from(text == "true"))
            }
            Kind::Word if self.source.is(self.at + 1, "(") => self.call(text),
            Kind::Word => {
                let value = *self.scope.values.get(text).ok_or_else(|| format!("`{text}` is no constant here"))?;
                self.at += 1;
                Ok(value)
            }
            _ => Err(self.stumble()),
        }
    }

    fn call(&mut self, name: &str) -> Result<i64, String> {
        self.at += 2;
        if name == "sizeof" {
            let start = self.at;
            while self.at < self.end && !self.source.is(self.at, ")") {
                self.at += 1;
            }
            let type_name = self.source.spelled(start..self.at);
            self.at += 1;
            let resolved = self.scope.types.get(&type_name).unwrap_or(&type_name);
            return match crate::layout::scalar_or_vector(resolved) {
                Some(layout) => Ok(layout.size as i64),
                None => Err(format!("the size of `{type_name}` is not known")),
            };
        }
        let mut arguments = vec![self.choice()?];
        while self.take(",") {
            arguments.push(self.choice()?);
        }
        if !self.take(")") {
            return Err(self.stumble());
        }
        match (name, arguments.as_slice()) {
            ("uint" | "int" | "ushort" | "short" | "ulong" | "size_t", [value]) => Ok(*value),
            ("min", [a, b]) => Ok(*a.min(b)),
            ("max", [a, b]) => Ok(*a.max(b)),
            _ => self.result_of(name, &arguments),
        }
    }

    /// The result of a `constexpr` function that is one `return`.
    fn result_of(&self, name: &str, arguments: &[i64]) -> Result<i64, String> {
        let unknown = || format!("`{name}` is no constexpr function of one return");
        let (file, function) = self.scope.functions.get(name).ok_or_else(unknown)?;
        let (open, close) = function.body.ok_or_else(unknown)?;
        let source = &file.source;
        if !source.is(open + 1, "return") || !source.is(close - 1, ";") || arguments.len() != function.parameters.len()
        {
            return Err(unknown());
        }
        let mut scope = self.scope.clone();
        // Without it: a function that calls itself would never end.
        scope.functions.remove(name);
        for (parameter, value) in function.parameters.iter().zip(arguments) {
            scope.values.insert(source.text_of(parameter.tokens.end - 1).to_owned(), *value);
        }
        evaluate(source, open + 2..close - 1, &scope)
    }

    fn take(&mut self, symbol: &str) -> bool {
        let found = self.at < self.end && self.source.is(self.at, symbol);
        self.at += usize::from(found);
        found
    }

    fn stumble(&self) -> String {
        if self.at < self.end {
            format!("`{}` is not understood in a constant expression", self.source.text_of(self.at))
        } else {
            "a constant expression ends too early".to_owned()
        }
    }
}

fn apply(operator: &str, left: i64, right: i64) -> Option<i64> {
    let shift = u32::try_from(right).ok().filter(|&shift| shift < 63);
    match operator {
        "||" => Some(i64::from(left != 0 || right != 0)),
        "&&" => Some(i64::from(left != 0 && right != 0)),
        "|" => Some(left | right),
        "^" => Some(left ^ right),
        "&" => Some(left & right),
        "==" => Some(i64::from(left == right)),
        "!=" => Some(i64::from(left != right)),
        "<=" => Some(i64::from(left <= right)),
        ">=" => Some(i64::from(left >= right)),
        "<" => Some(i64::from(left < right)),
        ">" => Some(i64::from(left > right)),
        "<<" => left.checked_shl(shift?),
        ">>" => left.checked_shr(shift?),
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        "/" => left.checked_div(right),
        "%" => left.checked_rem(right),
        _ => None,
    }
}

/// The value of an integer literal, suffixes `u` and `l` allowed.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) => i64::from_str_radix(hexadecimal, 16).ok(),
        None => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<i64, String> {
        let source = Source::new("t.metal", text).expect("tokens");
        let mut scope = Scope::default();
        scope.values.insert("BM".to_owned(), 32);
        scope.types.insert("T".to_owned(), "half".to_owned());
        evaluate(&source, 0..source.tokens.len(), &scope)
    }

    #[test]
    fn expressions_have_the_value_c_gives_them() {
        for (text, expected) in [
            ("BM * (BM + 8)", 1280),
            ("2 + 3 * 4 - 20 / 3 % 4", 12),
            ("1 << 4 | 1", 17),
            ("-(3) + +4", 1),
            ("BM >= 32 ? BM > 32 ? 1 : 2 : 3", 2),
            ("BM == 32 && !(BM != 32) || 0", 1),
            ("uint(0x10u) ^ 1", 17),
            ("max(BM, 4) / min(2, 3)", 16),
            ("sizeof(T) * sizeof(float4)", 32),
            ("6 & 3", 2),
            ("256 >> 3", 32),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_has_no_value_is_named() {
        for (text, part) in [
            ("tid", "tid"),
            ("1 / 0", "1 / 0"),
            ("f(1)", "`f`"),
            ("1.5f", "1.5f"),
            ("2 +", "too early"),
            ("1 2", "`2`"),
        ] {
            assert!(value(text).expect_err(text).contains(part), "{text}");
        }
    }
}
