//! The streaming parts against the same work done on the whole text, however it is cut.

mod common;
mod cuts;

use cuts::{cut, places};
use lily_chat::{Detokenizer, EmptyStopString, Piece, ReasoningSplitter, StopStrings, begins_in_reasoning};
use proptest::prelude::*;

/// Reasoning and content, each joined.
fn split(begins: bool, pushes: &[&str]) -> (String, String) {
    let mut splitter = ReasoningSplitter::new(begins);
    let mut pieces: Vec<Piece> = pushes.iter().flat_map(|text| splitter.push(text)).collect();
    pieces.extend(splitter.finish());
    let (mut reasoning, mut content) = (String::new(), String::new());
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => {
                assert!(!text.is_empty() && content.is_empty(), "reasoning comes first");
                reasoning += &text;
            }
            Piece::Content(text) => {
                assert!(!text.is_empty());
                content += &text;
            }
        }
    }
    (reasoning, content)
}

#[test]
fn reasoning_is_told_from_content() {
    let cases = [
        (true, "why\n</think>\n\nanswer\n", "why", "answer\n"),
        (true, "\n\na\n\nb\n\n</think>c", "a\n\nb", "c"),
        (true, "never closed\n", "never closed", ""),
        (true, "<think>\nagain</think>x", "again", "x"),
        (true, "</think>\n\nx", "", "x"),
        (true, "a</thin", "a</thin", ""),
        (true, "a\n</thin</think>x", "a\n</thin", "x"),
        (true, "a<</think>x</think><think>y", "a<", "x</think><think>y"),
        (true, "<", "<", ""),
        (true, "", "", ""),
        (false, "plain\n\n", "", "plain\n\n"),
        (false, "\n\nplain", "", "\n\nplain"),
        (false, "\n<think>\nwhy\n</think>\n\nx", "why", "x"),
        (false, "<thin", "", "<thin"),
        (false, "<thing> a </think> b", "", "<thing> a </think> b"),
        (false, "\n\n", "", "\n\n"),
        (false, "a <think>b</think>", "", "a <think>b</think>"),
        (false, "\n</think>\n\nx</think>", "", "x</think>"),
        (false, "</thin", "", "</thin"),
        (false, "</thing>", "", "</thing>"),
    ];
    for (begins, text, reasoning, content) in cases {
        assert_eq!(split(begins, &[text]), (reasoning.into(), content.into()), "{text:?}");
    }
}

#[test]
fn only_possible_tags_and_newlines_are_held_back() {
    let mut splitter = ReasoningSplitter::new(true);
    assert_eq!(splitter.push("a b"), [Piece::Reasoning("a b".into())]);
    assert_eq!(splitter.push("\n</thi"), []);
    assert_eq!(splitter.push("s"), [Piece::Reasoning("\n</this".into())]);
    assert_eq!(splitter.push("</think>\nx"), [Piece::Content("x".into())]);
    assert_eq!(splitter.push("\n<"), [Piece::Content("\n<".into())]);
}

#[test]
fn the_prompts_end_tells_where_the_reply_begins() {
    assert!(begins_in_reasoning("<|im_start|>assistant\n<think>\n"));
    assert!(!begins_in_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert!(!begins_in_reasoning("<|im_start|>assistant\n"));
    assert!(!begins_in_reasoning(""));
}

/// What [`StopStrings`] promises, without a stream: the text ends where a stop string is first complete.
fn stop_naively(stops: &[String], text: &str) -> (String, Option<usize>) {
    for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let complete = (0..stops.len()).filter(|&stop| text[..end].ends_with(&stops[stop]));
        if let Some(stop) = complete.max_by_key(|&stop| (stops[stop].len(), std::cmp::Reverse(stop))) {
            return (text[..end - stops[stop].len()].to_owned(), Some(stop));
        }
    }
    (text.to_owned(), None)
}

fn stop(stops: &[String], pushes: &[&str]) -> (String, Option<usize>) {
    let mut matcher = StopStrings::new(stops.to_vec()).expect("no empty one");
    let (mut out, mut hit) = (String::new(), None);
    for push in pushes {
        let stopped = matcher.push(push);
        out += &stopped.text;
        hit = stopped.hit;
    }
    (out + &matcher.finish(), hit)
}

#[test]
fn stop_strings_hold_back_and_stop() {
    let mut matcher = StopStrings::new(vec!["END".into(), "\n\n".into()]).expect("no empty one");
    assert_eq!(matcher.push("a E"), lily_chat::Stopped { text: "a ".into(), hit: None });
    assert_eq!(matcher.push("N"), lily_chat::Stopped { text: String::new(), hit: None });
    assert_eq!(matcher.push("E\n"), lily_chat::Stopped { text: "ENE".into(), hit: None });
    assert_eq!(matcher.push("\nEND"), lily_chat::Stopped { text: String::new(), hit: Some(1) });
    assert_eq!(matcher.push("more"), lily_chat::Stopped { text: String::new(), hit: Some(1) });
    assert_eq!(matcher.finish(), "");
    assert_eq!(StopStrings::new(vec!["a".into(), String::new()]).err(), Some(EmptyStopString { index: 1 }));
}

#[test]
fn stop_strings_take_linear_time() {
    // Quadratic work would be 10^12 steps here and never end.
    let stop_string = "a".repeat(1_000_000) + "b";
    let mut matcher = StopStrings::new(vec![stop_string, "aaab".into()]).expect("no empty one");
    let given: usize = (0..1_500_000).map(|_| matcher.push("a").text.len()).sum();
    assert_eq!(given + matcher.finish().len(), 1_500_000);
}

proptest! {
    #[test]
    fn cuts_do_not_change_reasoning(
        begins in any::<bool>(),
        parts in prop::collection::vec(
            prop::sample::select(vec!["<think>", "</think>", "</", "<", "think>", "</thi", "\n", "\r\n", " ", "a", "é🙂"]),
            0..14,
        ),
        places in places(),
    ) {
        let text = parts.concat();
        let whole = split(begins, &[&text]);
        prop_assert_eq!(split(begins, &cut(&text, &places)), whole.clone());
        prop_assert_eq!(split(begins, &text.split("").collect::<Vec<_>>()), whole.clone());
        let newline: &[char] = &['\n', '\r'];
        prop_assert_eq!(whole.0.trim_matches(newline), &whole.0);
    }

    #[test]
    fn stop_strings_equal_a_naive_search(
        stops in prop::collection::vec("[abé🙂]{1,4}", 0..4),
        text in "[abé🙂c]{0,40}",
        places in places(),
    ) {
        let expected = stop_naively(&stops, &text);
        prop_assert_eq!(stop(&stops, &cut(&text, &places)), expected.clone());
        prop_assert_eq!(stop(&stops, &text.split("").collect::<Vec<_>>()), expected);
    }

    #[test]
    fn pushed_tokens_equal_the_decoded_whole(ids in prop::collection::vec(0u32..6120, 0..60)) {
        pushes_equal_decode(common::tiny(), &ids);
    }

    #[test]
    fn pushed_bytes_equal_the_decoded_whole(ids in prop::collection::vec(0u32..256, 0..60)) {
        // The first 256 tokens are the single bytes: mostly invalid UTF-8.
        pushes_equal_decode(common::tiny(), &ids);
    }

    #[test]
    fn text_comes_back(text in any::<String>()) {
        use unicode_normalization::UnicodeNormalization;
        for tokenizer in [common::tiny(), common::real()] {
            let ids = tokenizer.encode(&text).expect("encodes");
            // Through this test's NFC on both sides: the tokenizer's is of an older Unicode.
            let back = pushes_equal_decode(tokenizer, &ids);
            prop_assert_eq!(back.nfc().collect::<String>(), text.nfc().collect::<String>());
        }
    }
}

fn pushes_equal_decode(tokenizer: std::sync::Arc<lily_chat::Tokenizer>, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.clone());
    let pushed: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    let joined = pushed + &detokenizer.finish();
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.bytes(id)).copied().collect();
    assert_eq!(joined, String::from_utf8_lossy(&bytes));
    joined
}

#[test]
fn a_character_split_over_tokens_comes_whole() {
    let tokenizer = common::tiny();
    let byte = |byte: u8| (0..256).find(|&id| tokenizer.bytes(id) == [byte]).expect("a byte's token");
    let mut detokenizer = Detokenizer::new(tokenizer.clone());
    let mut given = |bytes: &[u8]| bytes.iter().map(|&b| detokenizer.push(byte(b))).collect::<Vec<_>>();
    assert_eq!(given("🙂".as_bytes()), ["", "", "", "🙂"]);
    assert_eq!(given(&[0xf0, 0x9f, b'a']), ["", "", "\u{fffd}a"]);
    assert_eq!(given(&[0xff, 0xc3]), ["\u{fffd}", ""]);
    assert_eq!(given(&[0xc3, 0xa9]), ["\u{fffd}", "é"]);
    assert_eq!(given(&[0xe2, 0x82]), ["", ""]);
    assert_eq!(detokenizer.push(tokenizer.id("<|im_start|>").expect("there")), "\u{fffd}<|im_start|>");
    assert_eq!(detokenizer.push(byte(0xe2)), "");
    assert_eq!(detokenizer.finish(), "\u{fffd}");
    assert_eq!(detokenizer.push(tokenizer.id("</think>").expect("there")), "</think>");
}
