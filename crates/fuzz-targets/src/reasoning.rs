//! The splitter of reasoning and content.

use lily_chat::{Piece, ReasoningSplitter};

use crate::stream::{characters, pieces};

const NEWLINES: [char; 2] = ['\n', '\r'];

/// The first byte says whether the reply begins in reasoning; the rest is its text, cut at bytes 255.
///
/// However it is cut, reasoning and content are what a search of the whole text finds, and reasoning comes first.
pub fn reasoning(data: &[u8]) {
    let Some((&flags, rest)) = data.split_first() else { return };
    let begins = flags & 1 == 1;
    let pieces = pieces(rest);
    let whole = pieces.concat();
    let expected = searched(begins, &whole);
    for pushes in [vec![whole.clone()], characters(&whole), pieces] {
        let (reasoning, content) = split(begins, &pushes);
        assert_eq!((reasoning.as_str(), content.as_str()), expected, "in {pushes:?}");
    }
}

fn split(begins: bool, pushes: &[String]) -> (String, String) {
    let mut splitter = ReasoningSplitter::new(begins);
    let mut given: Vec<Piece> = pushes.iter().flat_map(|text| splitter.push(text)).collect();
    given.extend(splitter.finish());
    let (mut reasoning, mut content) = (String::new(), String::new());
    for piece in given {
        match piece {
            Piece::Reasoning(text) => {
                assert!(!text.is_empty() && content.is_empty(), "reasoning after content");
                reasoning += &text;
            }
            Piece::Content(text) => {
                assert!(!text.is_empty(), "an empty piece");
                content += &text;
            }
        }
    }
    (reasoning, content)
}

/// The same without a stream.
fn searched(begins: bool, text: &str) -> (&str, &str) {
    let start = text.trim_start_matches(NEWLINES);
    let thought = match (start.strip_prefix("<think>"), start.strip_prefix("</think>")) {
        (Some(thought), _) => thought,
        (_, Some(content)) => return ("", content.trim_start_matches(NEWLINES)),
        _ if begins => start,
        _ => return ("", text),
    };
    match thought.split_once("</think>") {
        Some((thought, content)) => (thought.trim_matches(NEWLINES), content.trim_start_matches(NEWLINES)),
        None => (thought.trim_matches(NEWLINES), ""),
    }
}
