//! Ids against MODEL.md, tiktoken and Hugging Face's own pipeline, for the real vocabulary and the small checkpoint's.

mod common;

use lily_chat::{ChatTemplate, Prompt, Tokenizer, tiktoken};
use proptest::prelude::*;
use serde_json::{Value, json};

#[test]
fn the_real_vocabulary_gives_the_models_goldens() {
    let tokenizer = common::real();
    assert_eq!(tokenizer.vocabulary(), 248_077);
    assert_eq!(tokenizer.encode("The capital of France is").expect("encodes"), [760, 6511, 314, 9338, 369]);
    let numbers = (1..700).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
    assert_eq!(tokenizer.encode(&numbers).expect("encodes").len(), 2687);

    let template = common::real_template();
    let prompt = Prompt {
        messages: vec![json!({ "role": "user", "content": "Name the two colors of a chessboard." })],
        add_generation_prompt: true,
        ..Prompt::default()
    };
    let text = ChatTemplate::from_source(&template).expect("compiles").render(&prompt).expect("renders");
    let expected = [
        248_045, 846, 198, 657, 279, 1330, 7736, 314, 264, 31_634, 2402, 13, 248_046, 198, 248_045, 74_455, 198,
        248_068, 198,
    ];
    assert_eq!(tokenizer.encode(&text).expect("encodes"), expected);
}

#[test]
fn the_real_vocabulary_encodes_as_tiktoken_does() {
    let goldens: Vec<(String, Vec<u32>)> =
        serde_json::from_slice(&common::fixture("tiktoken_goldens.json")).expect("JSON");
    for (text, ids) in goldens {
        assert_eq!(common::real().encode(&text).expect("encodes"), ids, "{text:?}");
    }
}

#[test]
fn derived_merges_are_as_many_as_the_published() {
    let file: Value = serde_json::from_slice(&common::real_files().0).expect("JSON");
    assert_eq!(file["model"]["merges"].as_array().map(Vec::len), Some(247_587));
    assert_eq!(file["added_tokens"].as_array().map(Vec::len), Some(26));
}

#[test]
fn added_tokens_have_their_declared_ids() {
    for (tokenizer, first) in [(common::real(), 248_044), (common::tiny(), 6080)] {
        for (id, token) in (first..).zip(tiktoken::ADDED_TOKENS) {
            assert_eq!(tokenizer.id(token.content), Some(id));
            assert_eq!(tokenizer.encode(token.content).expect("encodes"), [id]);
            assert_eq!(tokenizer.bytes(id), token.content.as_bytes());
            assert_eq!(tokenizer.is_special(id), token.special);
            let inside = format!("a{}b", token.content);
            assert_eq!(tokenizer.encode(&inside).expect("encodes")[1], id);
        }
        assert_eq!(tokenizer.vocabulary(), first as usize + 33);
        let past = tokenizer.vocabulary() as u32;
        assert_eq!((tokenizer.bytes(past), tokenizer.is_special(past)), (&[][..], false));
        assert_eq!(tokenizer.bytes(u32::MAX), b"");
    }
    assert_eq!(common::tiny().vocabulary(), 6113);
}

#[test]
fn text_in_nfd_gives_the_ids_of_nfc() {
    let tokenizer = common::real();
    assert_eq!(tokenizer.encode("e\u{301}").expect("encodes"), tokenizer.encode("\u{e9}").expect("encodes"));
}

/// Hugging Face's whole pipeline over the same file.
fn peer() -> &'static tokenizers::Tokenizer {
    static PEER: std::sync::OnceLock<tokenizers::Tokenizer> = std::sync::OnceLock::new();
    PEER.get_or_init(|| tokenizers::Tokenizer::from_file(common::tiny_folder().join("tokenizer.json")).expect("loads"))
}

#[test]
fn every_seventh_character_is_split_as_by_hugging_face() {
    // Between letters, digits, spaces and punctuation, a character's class shows in how the text splits.
    let mut text = String::new();
    for c in ('\0'..=char::MAX).filter(|c| !c.is_control()).step_by(7) {
        text.extend(["a", "1", " ", ".", "\n"].iter().flat_map(|before| [before.to_string(), c.to_string()]));
        text.push_str("b ");
        text.push(c);
        text.push_str("1 ");
        if text.len() > 20_000 {
            assert_same_as_peer(&text);
            text.clear();
        }
    }
}

fn assert_same_as_peer(text: &str) {
    let theirs = peer().encode_fast(text, false).expect("encodes");
    let ours = common::tiny().encode(text).expect("encodes");
    if ours != theirs.get_ids() {
        let at = ours.iter().zip(theirs.get_ids()).take_while(|(a, b)| a == b).count();
        panic!(
            "differs after {:?} ({at} ids) of {} bytes",
            common::tiny().decode(&ours[at.saturating_sub(9)..at]),
            text.len()
        );
    }
}

/// Text that touches the pattern's corners: runs of white space, contractions, marks, added tokens and parts of them.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[ \t\r\n\u{a0}\u{3000}]{0,4}",
        4 => "[a-zA-Z'’ſé]{0,6}",
        2 => "[0-9²½.,;:!?(){}<>|/_-]{0,4}",
        2 => "\\PC{0,4}",
        1 => any::<String>(),
        1 => prop::sample::select(tiktoken::ADDED_TOKENS.map(|token| token.content.to_owned()).to_vec()),
        1 => Just("<|im_".to_owned()),
        1 => Just("e\u{301}\u{323}".to_owned()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn ids_are_those_of_hugging_face(text in any_text()) {
        let theirs = peer().encode_fast(text.as_str(), false).expect("encodes");
        prop_assert_eq!(common::tiny().encode(&text).expect("encodes"), theirs.get_ids());
    }

    #[test]
    fn the_bytes_of_the_ids_are_the_normalized_text(text in any_text()) {
        use unicode_normalization::UnicodeNormalization;
        for tokenizer in [common::tiny(), common::real()] {
            let ids = tokenizer.encode(&text).expect("encodes");
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.bytes(id)).copied().collect();
            prop_assert_eq!(String::from_utf8(bytes).expect("UTF-8").nfc().collect::<String>(), text.nfc().collect::<String>());
        }
    }
}

/// A mark of Unicode 15 before one of a lower class: reordered by its rules, not by those of the library's older version.
#[test]
fn newer_marks_are_normalized_as_by_hugging_face() {
    for text in ["\u{1e08f}\u{c55}", "e\u{1e08f}\u{323}\u{301}", "e\u{301}\u{323}\u{1e08f}"] {
        assert_same_as_peer(text);
    }
}

#[test]
fn text_without_structure_is_encoded() {
    let runs = ["a", " ", "\n", " \n", "🙂", "e\u{301}", "\u{301}", "漢", "<|im_start|>", "<|im_", "'", "x  ", "\0"];
    for run in runs {
        let text = run.repeat(200_000 / run.len());
        for text in [text.clone(), text + "x"] {
            let ids = common::tiny().encode(&text).expect("encodes");
            let length: usize = ids.iter().map(|&id| common::tiny().bytes(id).len()).sum();
            assert!(length <= text.len() && length >= text.len() / 2, "{run:?}: {length} of {}", text.len());
        }
    }
}

#[test]
fn a_long_run_is_merged_as_a_whole_but_for_the_cuts() {
    let spaces = " ".repeat(100_000);
    let theirs = peer().encode_fast(spaces.as_str(), false).expect("encodes").get_ids().len();
    let ours = common::tiny().encode(&spaces).expect("encodes").len();
    assert!(ours.abs_diff(theirs) <= 14, "{ours} ids, {theirs} merged at once");
}

#[test]
fn one_tokenizer_serves_many_threads() {
    let text = std::fs::read_to_string(common::tiny_folder().join("reference/eval.txt")).expect("text");
    let expected = common::tiny().encode(&text).expect("encodes");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(common::tiny().encode(&text).expect("encodes"), expected));
        }
    });
}

/// The small checkpoint's files with one change each.
fn load(change: impl FnOnce(&mut Value, &mut Value)) -> Result<Tokenizer, String> {
    let read =
        |name| serde_json::from_slice(&std::fs::read(common::tiny_folder().join(name)).expect(name)).expect(name);
    let (mut tokenizer, mut config) = (read("tokenizer.json"), read("tokenizer_config.json"));
    change(&mut tokenizer, &mut config);
    Tokenizer::from_files(tokenizer.to_string().as_bytes(), Some(config.to_string().as_bytes()))
        .map_err(|error| error.to_string())
}

#[test]
fn wrong_files_are_refused_by_name() {
    let cut = Tokenizer::from_files(b"{\"model\": ", None).expect_err("cut").to_string();
    assert!(cut.contains("tokenizer.json") && cut.contains("EOF"), "{cut}");
    let refused = |change: fn(&mut Value, &mut Value), words: &str| {
        let error = load(change).expect_err(words);
        assert!(error.contains(words), "{error}");
    };
    refused(|file, _| file["normalizer"]["type"] = "NFKC".into(), "not NFC");
    refused(|file, _| file["pre_tokenizer"] = Value::Null, "pre-tokenizer is missing");
    refused(|file, _| file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x+".into(), "split pattern");
    refused(|file, _| file["model"]["dropout"] = 0.5.into(), "dropout");
    refused(|file, _| file["model"]["type"] = "Unigram".into(), "Unigram");
    refused(|file, _| file["model"]["vocab"]["!"] = 1.into(), "token 1 ");
    refused(|_, config| config["added_tokens_decoder"]["6080"]["content"] = "<other>".into(), "already stands for");
    refused(|_, config| config["added_tokens_decoder"]["17"] = json!({ "content": "<x>" }), "already stands for");
    refused(
        |_, config| config["added_tokens_decoder"]["6200"] = json!({ "content": "<think>" }),
        "already declared as 6104",
    );
    refused(|_, config| config["added_tokens_decoder"]["4294967295"] = json!({ "content": "<x>" }), "ids go up to");
    refused(|_, config| config["added_tokens_decoder"]["x"] = json!({ "content": "<x>" }), "no token id");
    refused(|_, config| config["added_tokens_decoder"]["6200"] = json!({ "content": "" }), "can't be empty");
    refused(|_, config| config["added_tokens_decoder"]["6200"] = json!({ "content": "x", "lstrip": true }), "lstrip");
    refused(
        |file, _| drop(file["model"]["vocab"].as_object_mut().map(|vocabulary| vocabulary.swap_remove("!"))),
        "vocabulary",
    );
}

#[test]
fn markers_are_text_even_where_declared_special() {
    let tokenizer = load(|file, config| {
        for token in file["added_tokens"].as_array_mut().expect("tokens") {
            token["special"] = true.into();
        }
        config["added_tokens_decoder"] = json!({});
    });
    let tokenizer = tokenizer.expect("loads");
    let ids = tokenizer.encode("<|im_start|><think>a</think><tool_call>b</tool_call><|fim_pad|>").expect("encodes");
    assert_eq!(tokenizer.decode(&ids), "<think>a</think><tool_call>b</tool_call>");
}

#[test]
fn a_pattern_that_matches_nothing_takes_a_character_at_a_time() {
    let pattern = r"x*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let tokenizer = load(|file, _| file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern.into());
    let tokenizer = tokenizer.expect("loads");
    let text = "é xx🙂\n";
    assert_eq!(tokenizer.decode(&tokenizer.encode(text).expect("encodes")), text);
}

#[test]
fn ranks_that_can_not_be_are_refused() {
    use tiktoken::{RanksError, parse_ranks, tokenizer_json_from_ranks};
    assert_eq!(parse_ranks("IQ== 0\nIg== 1\n"), Ok(vec![b"!".to_vec(), b"\"".to_vec()]));
    for (text, line) in [("IQ== 1", 1), ("IQ== 0\nIg==", 2), ("?? 0", 1), (" 0", 1)] {
        assert_eq!(parse_ranks(text), Err(RanksError::Line { line, expected: line - 1 }), "{text:?}");
    }
    let twice = [b"a".to_vec(), b"a".to_vec()];
    assert_eq!(tokenizer_json_from_ranks(&twice), Err(RanksError::Duplicate { rank: 1 }));
}
