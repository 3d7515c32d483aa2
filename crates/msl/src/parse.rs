//! A recursive-descent parser of what stands at file scope. Bodies of functions are only matched bracket by bracket:
//! `body` reads them.

use std::ops::Range;

use crate::error::Fault;
use crate::token::{Kind, Source};
use crate::tree::{
    Attribute, Field, File, Function, FunctionConstant, Include, Instantiation, Parameter, Struct, TemplateParameter,
    Value,
};

/// Parses a file.
pub(crate) fn parse(source: Source) -> Result<File, Fault> {
    let mut parser = Parser { at: 0, template: Vec::new(), file: empty(source) };
    while parser.at < parser.file.source.tokens.len() {
        parser.item()?;
    }
    Ok(parser.file)
}

fn empty(source: Source) -> File {
    File {
        source,
        includes: Vec::new(),
        function_constants: Vec::new(),
        values: Vec::new(),
        structs: Vec::new(),
        functions: Vec::new(),
        instantiations: Vec::new(),
        aliases: Vec::new(),
    }
}

struct Parser {
    at: usize,
    file: File,
    /// The parameters of the template that the next item is one of.
    template: Vec<TemplateParameter>,
}

impl Parser {
    fn item(&mut self) -> Result<(), Fault> {
        if self.is_directive() {
            return self.directive();
        }
        match self.file.source.text_of(self.at) {
            ";" => self.at += 1,
            "using" => self.alias()?,
            "typedef" => {
                let end = self.find(";")?;
                self.file.aliases.push((self.file.source.text_of(end - 1).to_owned(), end - 1));
                self.at = end + 1;
            }
            "static_assert" => self.at = self.find(";")? + 1,
            "enum" => {
                let name = self.at + if self.file.source.is(self.at + 1, "class") { 2 } else { 1 };
                self.file.aliases.push((self.word(name)?, name));
                self.at = self.find(";")? + 1;
            }
            "constant" => self.constant()?,
            "struct" => self.structure()?,
            "template" => return self.template(),
            "namespace" | "extern" | "class" | "union" => {
                return Err(self.fault("only structs, functions and constants stand outside of functions"));
            }
            _ => self.function(None)?,
        }
        self.template.clear();
        Ok(())
    }

    fn directive(&mut self) -> Result<(), Fault> {
        let (name, rest) = directive_words(self.file.source.text_of(self.at));
        match name {
            "include" => {
                let (open, close) = (rest.chars().next(), rest.chars().last());
                let project = open == Some('"');
                if rest.len() < 3 || !matches!((open, close), (Some('"'), Some('"')) | (Some('<'), Some('>'))) {
                    return Err(self.fault("write #include \"header.h\" or #include <metal_stdlib>"));
                }
                let name = rest[1..rest.len() - 1].to_owned();
                self.file.includes.push(Include { token: self.at, name, project });
            }
            "define" | "undef" => {
                return Err(self.fault("macros are not in the dialect: use constexpr, a function or a template"));
            }
            "pragma" | "else" | "endif" => {}
            "if" if rest.starts_with("__METAL_VERSION__ ") => {}
            "if" | "ifdef" | "ifndef" | "elif" => {
                return Err(self.fault("kernels are one source: `#if __METAL_VERSION__ >= 400` is the only condition"));
            }
            _ => return Err(self.fault(format!("#{name} is not in the dialect"))),
        }
        self.at += 1;
        Ok(())
    }

    fn alias(&mut self) -> Result<(), Fault> {
        let end = self.find(";")?;
        if self.file.source.is(self.at + 2, "=") {
            self.file.aliases.push((self.word(self.at + 1)?, self.at + 1));
        } else if !(self.file.source.is(self.at + 1, "namespace") && self.file.source.is(self.at + 2, "metal")) {
            return Err(self.fault("write `using namespace metal;` or `using name = type;`"));
        }
        self.at = end + 1;
        Ok(())
    }

    /// `constant T NAME [[function_constant(n)]];` or `constant constexpr T NAME = …;`
    fn constant(&mut self) -> Result<(), Fault> {
        let first = self.at;
        let end = self.find(";")?;
        if self.file.source.is(first + 1, "constexpr") {
            self.at = end + 1;
            return self.values(first + 2, end);
        }
        let Some(open) = (first..end).find(|&index| self.is_attribute(index)) else {
            return Err(self.fault("a constant is `constant constexpr T NAME = …;` or has [[function_constant(n)]]"));
        };
        let (attributes, after) = self.attribute_list(open)?;
        let index = match attributes.as_slice() {
            [Attribute { name, argument, .. }] if name == "function_constant" => {
                self.file.source.spelled(argument.clone()).parse().ok()
            }
            _ => None,
        };
        let Some(index) = index.filter(|_| after == end && open == first + 3) else {
            return Err(self.fault("write `constant uint NAME [[function_constant(n)]];`"));
        };
        let constant = FunctionConstant {
            name: self.word(first + 2)?,
            type_name: self.word(first + 1)?,
            index,
            first,
            name_token: first + 2,
            attribute: open..after,
        };
        self.file.function_constants.push(constant);
        self.at = end + 1;
        Ok(())
    }

    /// The names and initialisers of a constexpr declaration whose type starts at `start`.
    fn values(&mut self, start: usize, end: usize) -> Result<(), Fault> {
        for declared in self.file.source.split_at_commas(start..end)? {
            let Some(equals) = declared.clone().find(|&index| self.file.source.is(index, "=")) else {
                return Err(self.file.source.fault(start, "a constexpr needs a value"));
            };
            let name = (declared.start..equals).take_while(|&index| !self.file.source.is(index, "[")).last();
            let Some(name) = name.filter(|&index| self.file.source.is_word(index)) else {
                return Err(self.file.source.fault(start, "a constexpr needs a name"));
            };
            let value = Value {
                name: self.file.source.text_of(name).to_owned(),
                name_token: name,
                expression: equals + 1..declared.end,
            };
            self.file.values.push(value);
        }
        Ok(())
    }

    fn structure(&mut self) -> Result<(), Fault> {
        let name_token = self.at + 1;
        let name = self.word(name_token)?;
        let specialised =
            self.file.source.closing_angle(name_token + 1).filter(|_| self.file.source.is(name_token + 1, "<"));
        let open = specialised.unwrap_or(name_token) + 1;
        if self.file.source.is(open, ";") {
            self.at = open + 1;
            return Ok(());
        }
        if !self.file.source.is(open, "{") {
            return Err(self.fault("write `struct Name { … };` with no base and no attributes"));
        }
        let close = self.file.source.closing(open)?;
        if !self.file.source.is(close + 1, ";") {
            return Err(self.file.source.fault(close, "`;` is missing after a struct"));
        }
        let (mut fields, mut plain) = (Vec::new(), specialised.is_none());
        let template = self.template.clone();
        self.at = open + 1;
        while self.at < close {
            if self.is_directive() {
                plain = false;
                self.directive()?;
                continue;
            }
            let end = self.member_end(close)?;
            if ["static", "using", "static_assert", "constexpr"].contains(&self.file.source.text_of(self.at))
                && !self.file.source.is(end, "{")
            {
                plain = false;
                self.at = end + 1;
            } else if self.file.source.is(self.at, "template") || (self.at..end).any(|i| self.file.source.is(i, "(")) {
                plain = false;
                let template = self.template.clone();
                if self.file.source.is(self.at, "template") {
                    self.template_parameters()?;
                }
                self.function(Some(&name))?;
                self.template = template;
            } else {
                self.fields(self.at..end, &mut fields)?;
                self.at = end + 1;
            }
        }
        self.at = close + 2;
        if specialised.is_some() {
            return Ok(());
        }
        self.file.structs.push(Struct { name, name_token, template, fields, plain, last: close + 1 });
        Ok(())
    }

    /// The end of the member at hand: its `;`, or the `{` of a method.
    fn member_end(&self, close: usize) -> Result<usize, Fault> {
        (self.at..close)
            .find(|&index| self.file.source.is(index, ";") || self.file.source.is(index, "{"))
            .ok_or_else(|| self.fault("this member of a struct has no end"))
    }

    fn fields(&self, tokens: Range<usize>, fields: &mut Vec<Field>) -> Result<(), Fault> {
        let source = &self.file.source;
        let mut type_name = String::new();
        for (position, declared) in source.split_at_commas(tokens)?.into_iter().enumerate() {
            let bracket = declared.clone().find(|&index| source.is(index, "[")).unwrap_or(declared.end);
            let name_token = bracket.saturating_sub(1);
            if position == 0 {
                type_name = source.spelled(declared.start..name_token);
            }
            if !source.is_word(name_token) || type_name.is_empty() {
                return Err(source.fault(declared.start, "a field is `type name;`"));
            }
            let mut dimensions = Vec::new();
            let mut open = bracket;
            while open < declared.end {
                let close = source.closing(open)?;
                dimensions.push(open + 1..close);
                open = close + 1;
            }
            let name = source.text_of(name_token).to_owned();
            fields.push(Field { name, name_token, type_name: type_name.clone(), dimensions });
        }
        Ok(())
    }

    fn template(&mut self) -> Result<(), Fault> {
        if self.is_attribute(self.at + 1) {
            return self.instantiation();
        }
        self.template_parameters()?;
        match self.file.source.text_of(self.at) {
            "using" => {
                self.template.clear();
                self.alias()
            }
            "constant" => Err(self.fault("a constant is no template: use a constexpr in the function that needs it")),
            "template" => Err(self.fault("a template of a template is not in the dialect")),
            _ => self.item(),
        }
    }

    /// `template <typename T, int N>`
    fn template_parameters(&mut self) -> Result<(), Fault> {
        let open = self.at + 1;
        if !self.file.source.is(open, "<") {
            return Err(self.fault(
                "an explicit instantiation is `template [[host_name(\"…\")]] [[kernel]] decltype(f<…>) f<…>;`",
            ));
        }
        let close = self
            .file
            .source
            .closing_angle(open)
            .ok_or_else(|| self.fault("the parameters of this template have no end"))?;
        for parameter in self.file.source.split_at_commas(open + 1..close)? {
            let end = parameter.clone().find(|&index| self.file.source.is(index, "=")).unwrap_or(parameter.end);
            let is_type =
                self.file.source.is(parameter.start, "typename") || self.file.source.is(parameter.start, "class");
            self.template.push(TemplateParameter { name: self.word(end - 1)?, is_type });
        }
        self.at = close + 1;
        Ok(())
    }

    fn instantiation(&mut self) -> Result<(), Fault> {
        let first = self.at;
        let form = "write `template [[host_name(\"…\")]] [[kernel]] decltype(f<…>) f<…>;`";
        let end = self.find(";")?;
        let (attributes, after) = self.attribute_list(first + 1)?;
        let named = attributes.iter().find(|attribute| attribute.name == "host_name");
        let kernel = attributes.iter().any(|attribute| attribute.name == "kernel");
        let Some(host_name) = named.map(|named| self.file.source.spelled(named.argument.clone())) else {
            return Err(self.fault(form));
        };
        let source = &self.file.source;
        let open = after + 1;
        let close = if source.is(after, "decltype") { source.closing(open)? } else { after };
        let (inner, outer) = (source.spelled(open + 1..close), source.spelled(close + 1..end));
        let angle = close + 2;
        if !kernel || close == after || inner != outer || !source.is(angle, "<") || !source.is(end - 1, ">") {
            return Err(self.fault(form));
        }
        let instantiation = Instantiation {
            host_name: host_name.trim_matches('"').to_owned(),
            function: self.word(close + 1)?,
            arguments: source.split_at_commas(angle + 1..end - 1)?,
            tokens: first..end + 1,
        };
        self.file.instantiations.push(instantiation);
        self.at = end + 1;
        Ok(())
    }

    /// A function, a kernel, or a method of `owner`.
    fn function(&mut self, owner: Option<&str>) -> Result<(), Fault> {
        let first = self.at;
        let (mut attributes, mut max_threads, mut is_kernel) = (Vec::new(), None, false);
        let mut returns = None;
        let mut before_angle = None;
        let open = loop {
            if self.is_attribute(self.at) {
                let (list, after) = self.attribute_list(self.at)?;
                for attribute in list {
                    match attribute.name.as_str() {
                        "kernel" => is_kernel = true,
                        "max_total_threads_per_threadgroup" => max_threads = Some(attribute.argument),
                        name => return Err(self.fault(format!("[[{name}]] is not an attribute of a function here"))),
                    }
                }
                attributes.push(self.at..after);
                self.at = after;
                continue;
            }
            match self.file.source.text_of(self.at) {
                "(" | "<" if self.at == first => return Err(self.fault("a declaration begins with a type")),
                "(" => break self.at,
                "kernel" => return Err(self.fault("write [[kernel]]")),
                "" | ";" | "=" | "{" | "}" | "[" => {
                    return Err(self.file.source.fault(
                        first,
                        "a variable outside of functions is `constant constexpr T NAME = …;`, never mutable",
                    ));
                }
                "<" => {
                    before_angle = Some(self.at - 1);
                    let close = self.file.source.closing_angle(self.at);
                    self.at = close.ok_or_else(|| self.fault("`<` has no match"))?;
                }
                "inline" | "static" | "constexpr" | "METAL_FUNC" | "const" => {}
                _ => returns = returns.or(Some(self.at)),
            }
            self.at += 1;
        };
        // An explicit specialisation has arguments between its name and `(`.
        let name_token = before_angle.filter(|_| self.file.source.is(open - 1, ">")).unwrap_or(open - 1);
        let name = if owner.is_some() && (first..open).any(|index| self.file.source.is(index, "operator")) {
            "operator".to_owned()
        } else {
            self.word(name_token)?
        };
        let close = self.file.source.closing(open)?;
        let parameters = self.parameters(open + 1..close)?;
        let body = self.body(close)?;
        let template = self.template.clone();
        let owner = owner.map(str::to_owned);
        let returns = returns.unwrap_or(name_token);
        let function = Function {
            name,
            name_token,
            template,
            attributes,
            is_kernel,
            is_constexpr: (first..name_token).any(|index| self.file.source.is(index, "constexpr")),
            owner,
            returns,
            parameters,
            body,
            max_threads,
        };
        if is_kernel && (function.body.is_none() || returns + 1 != name_token || !self.file.source.is(returns, "void"))
        {
            return Err(self.file.source.fault(name_token, "a kernel is `[[kernel]] void name(…) { … }`"));
        }
        self.file.functions.push(function);
        Ok(())
    }

    /// Passes what follows the parameters' `)` at `close`, and gives the braces of the body.
    fn body(&mut self, close: usize) -> Result<Option<(usize, usize)>, Fault> {
        let begins = (close + 1..self.file.source.tokens.len())
            .find(|&index| self.file.source.is(index, "{") || self.file.source.is(index, ";"))
            .ok_or_else(|| self.file.source.fault(close, "this function has no body"))?;
        if self.file.source.is(begins, ";") {
            self.at = begins + 1;
            return Ok(None);
        }
        let ends = self.file.source.closing(begins)?;
        self.at = ends + 1;
        Ok(Some((begins, ends)))
    }

    fn parameters(&self, tokens: Range<usize>) -> Result<Vec<Parameter>, Fault> {
        let mut parameters = Vec::new();
        for declared in self.file.source.split_at_commas(tokens)? {
            let open = declared.clone().find(|&index| self.is_attribute(index));
            let attribute = match open {
                Some(open) => self.attribute_list(open)?.0.pop(),
                None => None,
            };
            parameters.push(Parameter { tokens: declared.start..open.unwrap_or(declared.end), attribute });
        }
        Ok(parameters)
    }

    /// The attributes at `[[` and directly after, and the token behind them.
    fn attribute_list(&self, mut at: usize) -> Result<(Vec<Attribute>, usize), Fault> {
        let source = &self.file.source;
        let mut attributes = Vec::new();
        while self.is_attribute(at) {
            let close = source.closing(at)?;
            for one in source.split_at_commas(at + 2..close - 1)? {
                let argument =
                    if source.is(one.start + 1, "(") { one.start + 2..one.end - 1 } else { one.end..one.end };
                attributes.push(Attribute { name: self.word(one.start)?, argument, tokens: at..close + 1 });
            }
            at = close + 1;
        }
        Ok((attributes, at))
    }

    fn is_directive(&self) -> bool {
        self.file.source.tokens.get(self.at).is_some_and(|token| token.kind == Kind::Directive)
    }

    fn is_attribute(&self, index: usize) -> bool {
        self.file.source.is_pair(index, "[[")
    }

    fn word(&self, index: usize) -> Result<String, Fault> {
        if !self.file.source.is_word(index) {
            let found = self.file.source.text_of(index);
            return Err(self.file.source.fault(index, format!("a name is expected here, not `{found}`")));
        }
        Ok(self.file.source.text_of(index).to_owned())
    }

    /// The next `text` outside of brackets.
    fn find(&self, text: &str) -> Result<usize, Fault> {
        let mut index = self.at;
        while index < self.file.source.tokens.len() {
            match self.file.source.text_of(index) {
                found if found == text => return Ok(index),
                "(" | "[" | "{" => index = self.file.source.closing(index)?,
                _ => {}
            }
            index += 1;
        }
        Err(self.fault(format!("`{text}` is missing after this")))
    }

    fn fault(&self, message: impl Into<String>) -> Fault {
        self.file.source.fault(self.at, message)
    }
}

/// The name of a preprocessor line and what follows it.
pub(crate) fn directive_words(line: &str) -> (&str, &str) {
    let line = line.trim_start_matches('#').trim_start();
    let end = line.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(line.len());
    (&line[..end], line[end..].trim())
}
