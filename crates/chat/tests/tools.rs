//! Tool calls in replies, by the numbers of the field cases, each read whole, in single characters and cut at random.

mod cuts;
mod read;

use cuts::{cut, places};
use lily_chat::ReplyEvent;
use proptest::prelude::*;
use read::{calls, gather, one, open, parser, read, read_from, read_to, run, written};
use serde_json::{Value, json};

#[test]
fn case_16_text_before_a_call_is_content() {
    let text = format!(
        "Let me look.\n\n{}\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        written(&[("count", "1")])
    );
    let all = read(&text);
    assert_eq!(all.content, "Let me look.");
    assert_eq!(all.calls, [("f".into(), r#"{"count":1}"#.into()), ("now".into(), "{}".into())]);
    // And after it, as long as it is more than white space.
    assert_eq!(read(&format!("{}\n", written(&[]))).content, "");
    assert_eq!(read(&format!("A\n\n{}\nB", written(&[]))).content, "A\n\n\nB");
    assert_eq!(read(&format!("{}\n\nB\n", written(&[]))).content, "B");
    // Without calls nothing is touched.
    assert_eq!(read("\n\n a < b <tool_call> c </tool_call>\n ").content, "\n\n a < b <tool_call> c </tool_call>\n ");
}

#[test]
fn case_17_malformed_calls_are_salvaged() {
    let x = || one("f", json!({"text": "x"}));
    for text in [
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</parameter>\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</parameter>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</parameter>\n</function>",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</parameter>",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</par",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</parameter>\n<parameter=text>\ny\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n{\"text\": \"x\"}\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n{'text': 'x'}\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n{\"text\": \"x\"</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n{\"text\": \"x\"",
        "<tool_call>\n<function=f>\n<parameter name=\"text\">x</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=f><parameter=text>x</parameter></function></tool_call>",
        "<tool_call>\n<function=\"f\">\n<parameter=\"text\">\nx\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f\n<parameter=text\nx\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n stray <parameter=text>\nx\n</parameter>\n</function>\n</tool_call>\n</tool_call>",
        "<function=f>\n<parameter=text>\nx\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"x\"}}\n</tool_call>",
        "<tool_call>{'name': 'f', 'arguments': {'text': 'x'}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"x\"}\n</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"x\"}",
    ] {
        assert_eq!(calls(text), x(), "{text:?}");
        assert_eq!(read(text).content, "", "{text:?}");
    }
    let [first, second] = [("f".to_owned(), json!({"text": "x"})), ("now".to_owned(), json!({}))];
    for text in [
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</parameter>\n</function>\n<function=now>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</parameter>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=text>\nx\n</parameter>\n<function=now>\n</function>\n</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"x\"}}</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>",
    ] {
        assert_eq!(calls(text), [first.clone(), second.clone()], "{text:?}");
    }
    // An object that is no call stays text, and so does a call without a name.
    assert_eq!(read("<tool_call>\n{\"a\": 1}\n").content, "<tool_call>\n{\"a\": 1}\n");
    assert_eq!(read("<tool_call>\n<function=>\n</function>").content, "<tool_call>\n<function=>\n</function>");
    // One tag too many is forgiven right after a call; what is written about tags later is text.
    let text = format!("{}\n</tool_call>\nThe tags </tool_call> and </think>.", written(&[]));
    assert_eq!(read(&text).content, "The tags </tool_call> and </think>.");
    // An object beside parameters adds to them.
    let both =
        "<tool_call>\n<function=f>\n{\"count\": 1}\n<parameter=text>\nx\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(calls(both), one("f", json!({"count": 1, "text": "x"})));
}

#[test]
fn case_18_a_call_ends_reasoning_that_was_not_closed() {
    let text = format!("I need f.\n\n{}", written(&[("count", "1")]));
    let all = read_from(true, &text);
    assert_eq!((all.reasoning.as_str(), all.content.as_str()), ("I need f.", ""));
    assert_eq!(all.calls, [("f".into(), r#"{"count":1}"#.into())]);
    // At once, in JSON, and with the tag after all.
    assert_eq!(read_from(true, &written(&[])).calls, [("f".into(), "{}".into())]);
    assert_eq!(
        read_from(true, "so <tool_call>\n{\"name\": \"now\"}\n</tool_call>").calls,
        [("now".into(), "{}".into())]
    );
    let late = read_from(true, &format!("I need f.\n{}\n</think>\n\nDone.", written(&[])));
    assert_eq!((late.reasoning.as_str(), late.content.as_str(), late.calls.len()), ("I need f.", "Done.", 1));
    // The thought goes on until it is closed, or ends.
    let on = format!("I need f.\n{}\nBut <b>wait</b>, <tool_call> is a tag.\n\n{}\n", written(&[]), written(&[]));
    let thought = "I need f.\nBut <b>wait</b>, <tool_call> is a tag.";
    let all = read_from(true, &on);
    assert_eq!((all.reasoning.as_str(), all.content.as_str(), all.calls.len()), (thought, "", 2));
    let all = read_from(true, &format!("{on}</think>\n\nDone </think>."));
    assert_eq!((all.reasoning.as_str(), all.content.as_str(), all.calls.len()), (thought, "Done </think>.", 2));
    // Thoughts about tags are thoughts.
    for thought in
        ["A <tool_call> tag.", "<tool_call>\n<function=NAME>\n", "<tool_call>\n<function=", "<tool_call> <t", "a <t"]
    {
        let all = read_from(true, &format!("{thought}</think>\n\nyes"));
        assert_eq!((all.reasoning.as_str(), all.content.as_str()), (thought.trim_end(), "yes"), "{thought:?}");
        assert_eq!(read_from(true, thought).reasoning, thought.trim_end());
    }
}

#[test]
fn case_19_values_have_the_types_of_the_schema() {
    let text = written(&[
        ("text", "3.10.5-beta"),
        ("count", "5.0"),
        ("flag", "True"),
        ("options", "{'a': None}"),
        ("list", "[\"</parameter>\", 1.50]"),
        ("note", "null"),
    ]);
    let expected = r#"{"text":"3.10.5-beta","count":5,"flag":true,"options":{"a":null},"list":["</parameter>", 1.50],"note":null}"#;
    assert_eq!(read(&text).calls, [("f".into(), expected.into())]);
    assert_eq!(
        read(&written(&[("text", "2026-01-02"), ("note", "nul")])).calls[0].1,
        r#"{"text":"2026-01-02","note":"nul"}"#
    );
    // Nothing is known of an unknown function's parameters, nor of others than the declared.
    let unknown = "<tool_call>\n<function=g>\n<parameter=a>\n[1]\n</parameter>\n<parameter=b>\n1.x\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(calls(unknown), one("g", json!({"a": [1], "b": "1.x"})));
}

#[test]
fn case_20_strings_are_byte_exact() {
    for value in [
        "",
        "\n",
        "\n\n",
        "  leading",
        "trailing\n",
        "trailing\n\n\n",
        "a\r\nb\r\n",
        "\r\n",
        "tab\t\"quotes\" \\ back",
        "🦔 日本語 e\u{301}",
        "</tool_call>",
        "x\n</tool_call>\ny",
        "<tool_call>\n<function=f>",
        "a </parameter> b",
        "a\n</parameter>\nb",
        "</function>",
        "</function>\n</tool_call> and more",
        "</parameter",
        "<",
        "a <b></b> </p",
        "</think>",
        "<|im_end|>",
        "Say:\n<tool_call>\n<function=f>\n<parameter=text>\nhi\n</parameter>\n</function>\n</tool_call>\nEnd",
        "<function=f>\n<parameter=text>\nhi\n</parameter>\n</function>",
        "  <function=f>\n  <parameter=text>\nhi\n</parameter>\n</function>\n",
        "<tool_call>\r\n<function=f>\r\n<parameter=text>\r\nhi\r\n</parameter>\r\n</function>\r\n</tool_call>",
        "{\"json\": true}",
        "null",
        "5.0",
    ] {
        let expected = one("f", json!({"text": value, "count": 2}));
        assert_eq!(calls(&written(&[("text", value), ("count", "2")])), expected, "{value:?}");
        let last = written(&[("count", "2"), ("text", value)]);
        assert_eq!(calls(&last), one("f", json!({"count": 2, "text": value})), "{value:?}");
        assert_eq!(
            calls(&format!("{last}\n<tool_call>\n<function=now>\n</function>\n</tool_call>")).len(),
            2,
            "{value:?}"
        );
    }
}

#[test]
fn case_20_tags_in_strings_of_json_are_text() {
    for list in [r#"["</parameter></function>"]"#, r#"["a\"</parameter> <parameter=x>", "</tool_call><tool_call>"]"#] {
        let value: Value = serde_json::from_str(list).expect("JSON");
        assert_eq!(calls(&written(&[("list", list), ("count", "2")])), one("f", json!({"list": value, "count": 2})));
    }
    // A string that a line's end breaks off is none.
    let open = "<tool_call>\n<function=f>\n<parameter=list>\n[\"a\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(calls(open), one("f", json!({"list": "[\"a"})));
}

/// A quotation mark without another makes no value that swallows the next.
#[test]
fn a_string_that_is_left_open_ends_with_its_parameter() {
    let end = "</function>\n</tool_call>";
    for (name, text, value) in [
        ("options", r#"{"a": "b}"#, json!(r#"{"a": "b}"#)),
        ("options", r#"{'a': 'say "hi'}"#, json!({"a": "say \"hi"})),
        ("other", r#"[WIP] a 12" pipe"#, json!(r#"[WIP] a 12" pipe"#)),
        ("list", r#"["</parameter> <b", "c"#, json!(r#"["</parameter> <b", "c"#)),
    ] {
        let begin = format!("<tool_call>\n<function=f>\n<parameter={name}>{text}");
        let expected = one("f", json!({name: value, "count": 2}));
        for gap in ["\n", " \r\n", "\n  "] {
            let next = format!("</parameter>{gap}<parameter=count>2</parameter>\n{end}");
            assert_eq!(calls(&format!("{begin}{next}")), expected, "{text} {gap:?}");
        }
        let expected = one("f", json!({name: value}));
        for last in [format!("</parameter>\n{end}"), "</parameter>\n".into(), "</parameter>".into()] {
            assert_eq!(calls(&format!("{begin}{last}")), expected, "{text} {last:?}");
        }
        let two = format!("{begin}{end}\n<tool_call>\n<function=now>\n{end}");
        assert_eq!(calls(&two).len(), 2, "its closing tag is left out: {text}");
    }
}

#[test]
fn case_21_tags_in_pieces_do_not_leak() {
    let mut parser = parser(false, false);
    let mut seen = Vec::new();
    for piece in [
        "Hi",
        ".\n\n<",
        "tool",
        "_call",
        ">\n<func",
        "tion=f>\n<param",
        "eter=text>\na<",
        "/para",
        "meter>\n</fun",
        "ction>\n</tool_call>",
    ] {
        seen.push(parser.push(piece));
    }
    assert!(parser.finish().is_empty());
    let arguments = |json: &str| ReplyEvent::CallArguments { index: 0, json: json.into() };
    assert_eq!(seen[0], [ReplyEvent::Content("Hi".into())]);
    assert_eq!(seen[1], [ReplyEvent::Content(".".into())]);
    assert!(seen[2..5].iter().all(Vec::is_empty));
    assert_eq!(seen[5], [ReplyEvent::CallBegin { index: 0, id: "call_x0".into(), name: "f".into() }]);
    assert_eq!(seen[6], [arguments("{\"text\":\"a")]);
    assert!(seen[7].is_empty() && seen[8].is_empty());
    assert_eq!(seen[9], [arguments("\"}"), ReplyEvent::CallEnd { index: 0 }]);
}

#[test]
fn case_23_a_call_that_is_cut_gives_what_is_there() {
    let text = format!("Go.\n{}", written(&[("count", "12"), ("text", "some text")]));
    for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
        // Every beginning is read without a leak, to an end.
        let all = read(&text[..end]);
        let rest = all.content.strip_prefix("Go.").unwrap_or_default();
        assert!(rest.len() < "\n<tool_call>".len() && "\n<tool_call>".starts_with(rest), "{end}: {rest:?}");
    }
    let to = |marker: &str| &text[..text.find(marker).expect("there") + marker.len()];
    // Within a name or a value it makes no difference who has ended the text.
    for own in [false, true] {
        assert_eq!(run(false, false, own, &[to("<function=")]).calls, []);
        assert_eq!(open(to("<parameter=cou"), own), "{");
        assert_eq!(open(to("1"), own), r#"{"count":1"#);
        assert_eq!(open(to("some te"), own), r#"{"count":12,"text":"some te"#);
        assert_eq!(open(to("some text\n"), own), r#"{"count":12,"text":"some text"#);
        let json = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"x";
        assert_eq!(open(json, own), r#"{"text":"x"#);
    }
    // Outside of them the model may have left out tags.
    for (to, cut, whole) in [
        (to("<function=f>"), "{", json!({})),
        (to("12\n</parameter>"), r#"{"count":12"#, json!({"count": 12})),
        (to("some text\n</par"), r#"{"count":12,"text":"some text""#, json!({"count": 12, "text": "some text"})),
        ("<tool_call>\n<function=f>\n{\"count\": [1", "{\"count\": [1", json!({"count": [1]})),
    ] {
        assert_eq!(open(to, false), cut);
        assert_eq!(calls(to), one("f", whole));
    }
    // Whatever is there of a value leaves the arguments open.
    for (key, value, json) in [
        ("list", "[1, 'a", r#""list":[1, 'a"#),
        ("list", "[1]}", r#""list":"[1]}"#),
        ("list", "1]}", r#""list":"1]}"#),
        ("note", "nul", r#""note":"nul"#),
        ("flag", "tr", r#""flag":"tr"#),
        ("count", "", r#""count":"#),
    ] {
        let text = format!("<tool_call>\n<function=f>\n<parameter={key}>\n{value}");
        assert_eq!(open(&text, false), format!("{{{json}"));
    }
    // A call before it is complete.
    let second = format!("{}\n<tool_call>\n<function=f>\n<parameter=text>\nx", written(&[]));
    assert_eq!(read_to(false, false, &second).complete, [true, false]);
}

/// Where a quoted call has no end, the end of the call that quotes it is taken for that: what comes of it must not run.
#[test]
fn a_quote_without_an_end_leaves_the_call_open() {
    let quoting = written(&[("text", "Say:\n<function=f>\n<parameter=text>\nhi"), ("count", "1")]);
    assert!(open(&quoting, true).starts_with(r#"{"text":"Say:\n<function=f>"#));
    let two = format!("{quoting}\n<tool_call>\n<function=now>\n</function>\n</tool_call>");
    let all = read(&two);
    assert_eq!((all.complete.as_slice(), all.calls[1].0.as_str()), ([false, true].as_slice(), "now"));
}

#[test]
fn names_have_a_longest() {
    for length in [500, 512, 513, 2000] {
        let name = "n".repeat(length);
        let all = read(&format!(
            "<tool_call>\n<function={name}>\n<parameter={name}>\n1\n</parameter>\n</function>\n</tool_call>"
        ));
        assert_eq!(all.calls.len(), 1, "{length}");
        assert!(name.starts_with(&all.calls[0].0) && all.calls[0].0.len() == length.min(512));
    }
}

#[test]
fn case_24_a_primed_call_without_arguments_gives_an_empty_object() {
    for text in [
        "<tool_call>\n<function=now>\n",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "<tool_call>\n<function=now>",
    ] {
        assert_eq!(calls(text), one("now", json!({})));
    }
}

#[test]
fn case_26_arguments_come_while_they_are_written() {
    let mut parser = parser(false, false);
    parser.push("<tool_call>\n<function=f>\n<parameter=text>\n");
    for word in ["one ", "two\n", "\"three\" "] {
        match parser.push(word).as_slice() {
            [ReplyEvent::CallArguments { json, .. }] => assert!(json.contains(word.trim().trim_matches('"')), "{json}"),
            other => panic!("{word:?}: {other:?}"),
        }
    }
    // So does a text that might have been null.
    parser.push("\n</parameter>\n<parameter=note>\nnu");
    assert_eq!(parser.push("mb"), [ReplyEvent::CallArguments { index: 0, json: "\"numb".into() }]);
    // And one that might have been anything.
    parser.push("\n</parameter>\n<parameter=other>\n tr");
    assert_eq!(parser.push("ee"), [ReplyEvent::CallArguments { index: 0, json: "\" tree".into() }]);
}

#[test]
fn case_27_without_a_closing_tag_everything_is_reasoning() {
    let all = read_from(true, "on and on\n");
    assert_eq!((all.reasoning.as_str(), all.content.as_str(), all.calls.len()), ("on and on", "", 0));
}

#[test]
fn a_single_call_ends_the_reply() {
    let text = format!("{}\n{}", written(&[("count", "1")]), written(&[("count", "2")]));
    let mut single = parser(false, true);
    let first = text.find("</tool_call>").expect("there");
    let mut events = single.push(&text[..first]);
    assert!(!single.is_done());
    events.extend(single.push(&text[first..]));
    assert!(single.is_done());
    events.extend(single.push("more"));
    events.extend(single.finish());
    assert_eq!(gather(events).calls, [("f".into(), r#"{"count":1}"#.into())]);
}

#[test]
fn the_work_is_linear_in_the_text() {
    // Quadratic work would never end.
    for unit in ["<", "</parameter>", "<tool_call>", "\n", " ", "7", "</", "{", "<function=f>\n"] {
        let long = unit.repeat(100_000 / unit.len());
        for start in [
            "",
            "<tool_call>\n<function=",
            "<tool_call>\n<function=f>\n<parameter=text>\n",
            "<tool_call>\n<function=f>\n<parameter=other>\n",
            "<tool_call>\n<function=f>\n{\"a\":",
            "<tool_call>{\"a\":",
        ] {
            let mut parser = parser(true, false);
            parser.push("</think>");
            parser.push(start);
            for character in long.chars() {
                parser.push(character.encode_utf8(&mut [0; 4]));
            }
            parser.finish();
        }
    }
}

fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<function=now>",
        "<function=g>",
        "</function>",
        "<parameter=text>",
        "<parameter=count>",
        "<parameter=list>",
        "<parameter=note>",
        "<parameter name=\"text\">",
        "<function=>",
        "{\"text\": \"x\"}",
        "</parameter>",
        "<think>",
        "</think>",
        "\n",
        "\n",
        " ",
        "x",
        "null",
        "5.0",
        "[1, 'a']",
        "[\"",
        "{\"name\": \"f\", \"arguments\": {\"a\": \"}\"}}",
        "{\"name",
        "<",
        "</",
        ">",
        "é🙂",
        "\r\n",
        "\"",
        "<tool_call>\n<function=f>\n<parameter=text>\n",
        "\n</parameter>\n</function>\n</tool_call>",
    ]);
    prop::collection::vec(fragment, 0..16).prop_map(|fragments| fragments.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn cuts_do_not_change_what_is_read(
        begins in any::<bool>(),
        single in any::<bool>(),
        own in any::<bool>(),
        text in fragments(),
        places in places(),
    ) {
        let whole = run(begins, single, own, &[&text]);
        prop_assert_eq!(run(begins, single, own, &cut(&text, &places)), whole.clone());
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        prop_assert_eq!(run(begins, single, own, &characters), whole);
    }

    #[test]
    fn what_the_template_writes_is_read_back(text in "[a-z<>/\n\r \"é🙂]{0,30}", count in any::<i64>(), note in "[ -~]{0,8}") {
        let written = written(&[("text", &text), ("count", &count.to_string()), ("note", &note)]);
        let note = if note == "null" { Value::Null } else { json!(note) };
        prop_assert_eq!(calls(&written), one("f", json!({"text": text, "count": count, "note": note})));
    }
}
