//! The formats of strings that are checked, as expressions.

use serde_json::{Map, Value, json};

/// A day of the calendar, leap years and all.
const DATE: &str = "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)\
    |02-(0[1-9]|1[0-9]|2[0-8]))\
    |([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
const TIME: &str = r"(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))";
/// A number of a duration, and that of its seconds: readers take no larger ones, as pydantic no million hours or years.
const NUMBER: &str = "[0-9]{1,6}";
const SECONDS: &str = "[0-9]{1,8}";
const LABEL: &str = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
const OCTET: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
/// Groups of an IPv6 address, with at most one gap.
const IPV6: &str = "((H:){7}H|(H:){1,7}:|(H:){1,6}:H|(H:){1,5}(:H){1,2}|(H:){1,4}(:H){1,3}|(H:){1,3}(:H){1,4}\
    |(H:){1,2}(:H){1,5}|H:(:H){1,6}|:(:H){1,7}|::)";

/// The expression of a schema's format; `None` if it has none, or one that is a note to JSON Schema.
pub(super) fn of(schema: &Map<String, Value>) -> Option<String> {
    let format = schema.get("format").and_then(Value::as_str)?;
    // Each of a length's states is one for each of the expression's: without addresses in brackets these are a fifth.
    let in_brackets = format != "uri" || !schema.contains_key("maxLength");
    expression(format, in_brackets)
}

/// `in_brackets`: whether a host may be an IPv6 address.
fn expression(format: &str, in_brackets: bool) -> Option<String> {
    let days = format!("({NUMBER}Y({NUMBER}M({NUMBER}D)?)?|{NUMBER}M({NUMBER}D)?|{NUMBER}D)");
    let hours = format!("T({NUMBER}H({NUMBER}M({SECONDS}S)?)?|{NUMBER}M({SECONDS}S)?|{SECONDS}S)");
    Some(match format {
        "date" => DATE.into(),
        "time" => TIME.into(),
        "date-time" => format!("{DATE}T{TIME}"),
        "duration" => format!("P({days}({hours})?|{hours}|{NUMBER}W)"),
        "hostname" => format!(r"{LABEL}(\.{LABEL})*"),
        "email" => {
            let word = r"[A-Za-z0-9!#$%&'*+\/=?^_`{|}~-]+";
            format!(r"{word}(\.{word})*@{LABEL}(\.{LABEL})*")
        }
        "ipv4" => format!(r"{OCTET}(\.{OCTET}){{3}}"),
        "ipv6" => IPV6.replace('H', "[0-9A-Fa-f]{1,4}"),
        "uuid" => "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}".into(),
        "uri" => {
            let (user, path) = (escaped("A-Za-z0-9._~!$&'()*+,;=-"), escaped("A-Za-z0-9._~!$&'()*+,;=:@-"));
            let address = format!(r"|\[{}\]", IPV6.replace('H', "[0-9A-Fa-f]{1,4}"));
            let host = format!("({user}*{})", if in_brackets { &address } else { "" });
            let rest = format!(r"(\?({path}|[\/?])*)?(#({path}|[\/?])*)?");
            format!(
                r"[A-Za-z][A-Za-z0-9+.-]*:(\/\/({user}*@)?{host}(:[0-9]*)?(\/{path}*)*|\/?({path}+(\/{path}*)*)?){rest}"
            )
        }
        _ => return None,
    })
}

/// Says as a pattern what a schema says as a format: to the compiler some formats have other texts, a second 60 among them.
pub(super) fn spell_out(schema: &mut Map<String, Value>) {
    let Some(expression) = of(schema) else { return };
    schema.shift_remove("format");
    let pattern = Value::from(format!("^({expression})$"));
    if !schema.contains_key("pattern") {
        schema.insert("pattern".into(), pattern);
    } else if let Some(all) = schema.entry("allOf").or_insert_with(|| json!([])).as_array_mut() {
        all.push(json!({"pattern": pattern}));
    }
}

/// One of these characters of an address, or another that is escaped.
fn escaped(characters: &str) -> String {
    format!("([{characters}]|%[0-9A-Fa-f]{{2}})")
}

#[cfg(test)]
mod tests {
    use regex::Regex;
    use serde_json::json;

    use super::expression;
    use crate::grammar::schema::FORMATS;

    #[test]
    fn they_say_what_a_validator_says() {
        let texts = [
            "2024-02-29",
            "2023-02-29",
            "1900-02-29",
            "2000-02-29",
            "2023-04-31",
            "2023-12-31",
            "10:20:30Z",
            "10:20:30",
            "24:00:00Z",
            "10:20:30.5+02:00",
            "2023-12-31T23:59:59Z",
            "2023-12-31 23:59:59Z",
            "P1Y2M3D",
            "PT1H",
            "P1W",
            "P",
            "P1YT",
            "PT",
            "P1D1Y",
            "a@b.example",
            "a.b+c@d-e.example",
            "a@",
            "@b.example",
            "a..b@c.example",
            "example.org",
            "-a.example",
            "a",
            "127.0.0.1",
            "256.0.0.1",
            "1.2.3",
            "::",
            "::1",
            "1::",
            "fe80::1:2",
            "http://[::1]:8080/",
            "http://a@[fe80::1]/b",
            "http://[::g]/",
            "a@localhost",
            "1:2:3:4:5:6:7:8",
            "1:2:3:4:5:6:7:8:9",
            "1::2::3",
            "https://example.org/a?b=c#d",
            "mailto:a@b.example",
            "file:///x",
            "//x",
            "a b:c",
            "https://a b",
            "123e4567-e89b-12d3-a456-426614174000",
            "123e4567e89b12d3a456426614174000",
            "",
            "x\n",
        ];
        for format in FORMATS {
            let own = Regex::new(&format!("^({})$", expression(format, true).expect("known"))).expect("an expression");
            let schema = json!({"type": "string", "format": format});
            let validator = jsonschema::options().should_validate_formats(true).build(&schema).expect("a schema");
            let mut some = 0;
            for text in texts {
                assert_eq!(own.is_match(text), validator.is_valid(&json!(text)), "{format} {text:?}");
                some += usize::from(own.is_match(text));
            }
            assert!(some > 0, "{format}");
        }
        assert_eq!(expression("password", true), None);
    }

    #[test]
    fn a_duration_comes_to_an_end() {
        let own = Regex::new(&format!("^({})$", expression("duration", true).expect("known"))).expect("an expression");
        for text in ["P123456Y123456M123456DT123456H123456M12345678S", "P123456W", "PT31536000S"] {
            assert!(own.is_match(text), "{text}");
        }
        for text in ["P1234567Y", "P1234567M", "P1234567D", "P1234567W", "PT1234567H", "PT1234567M", "PT1M123456789S"] {
            assert!(!own.is_match(text), "{text}");
        }
    }
}
