//! From a reply's tokens to what a client may see: detokenised, ended at a stop string, told apart into reasoning,
//! content and calls, with each token kept beside the text it gave.
//!
//! Stop strings are looked for in the answer, its calls included, and not in what was thought before.

use lily_backend::Sample;
use lily_chat::{Detokenizer, EmptyStopString, ReplyEvent, ReplyParser, StopStrings, Tokenizer};
use std::collections::VecDeque;
use std::sync::Arc;

/// What to give out, and the tokens whose text ends in it or, for those that gave no text, before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pub(crate) events: Vec<ReplyEvent>,
    pub(crate) tokens: Vec<Sample>,
}

/// A reply in the making.
pub(crate) struct ReplyText {
    detokenizer: Detokenizer,
    stops: StopStrings,
    parser: ReplyParser,
    /// Tokens whose text has not been given out to its end, oldest first.
    pending: VecDeque<Pending>,
    /// The newest tokens, as long as they have given no text: bytes of a character that is not complete.
    textless: Vec<Sample>,
    /// Bytes of text made so far.
    made: usize,
    /// Bytes of text that the stop strings have let through.
    given: usize,
    stopped: bool,
    /// The stop string that ended the text, by its place in the list.
    stop_string: Option<usize>,
    /// What was let through and not yet taken; markers give tokens without text.
    ready: Delta,
    /// Tokens that ended before the first of the content.
    before_content: usize,
    content_begun: bool,
    reasoned: bool,
    /// Calls that have begun.
    calls: usize,
}

struct Pending {
    sample: Sample,
    /// Where its text begins and ends, in bytes of the reply's text. Tokens that make up a character together have the
    /// same.
    start: usize,
    end: usize,
}

impl ReplyText {
    /// `primed`: the reply's beginning, which the prompt gave.
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        stops: Vec<String>,
        parser: ReplyParser,
        primed: &str,
    ) -> Result<Self, EmptyStopString> {
        let mut text = Self {
            detokenizer: Detokenizer::new(tokenizer),
            stops: StopStrings::new(stops)?,
            parser,
            pending: VecDeque::new(),
            textless: Vec::new(),
            made: 0,
            given: 0,
            stopped: false,
            stop_string: None,
            ready: Delta::default(),
            before_content: 0,
            content_begun: false,
            reasoned: false,
            calls: 0,
        };
        let events = text.parser.push(primed);
        text.take_events(events);
        Ok(text)
    }

    /// Takes the next token; gives the text that is certain now, if any.
    pub(crate) fn push(&mut self, sample: Sample) -> Option<Delta> {
        let text = self.detokenizer.push(sample.token);
        self.textless.push(sample);
        if text.is_empty() {
            return None;
        }
        self.take(&text);
        if self.stop_string.is_some() || self.parser.is_done() {
            self.stopped = true;
            return None;
        }
        (!self.ready.events.is_empty()).then(|| std::mem::take(&mut self.ready))
    }

    /// True once a stop string, or the only call there may be, has ended the text; then only [`Self::finish`] is left
    /// to call.
    pub(crate) fn stopped(&self) -> bool {
        self.stopped
    }

    /// Ends the text: gives what was held back. `by_model`: whether the model has ended it.
    pub(crate) fn finish(&mut self, by_model: bool) -> Delta {
        if self.stopped {
            self.give_cut_tokens();
        } else {
            let text = self.detokenizer.finish();
            self.take(&text);
            if self.stop_string.is_some() {
                self.stopped = true;
                self.give_cut_tokens();
            } else {
                let held = self.stops.finish();
                self.release(&held);
            }
        }
        let events = if by_model && !self.stopped { self.parser.finish() } else { self.parser.cut() };
        self.take_events(events);
        std::mem::take(&mut self.ready)
    }

    /// Whether the reply is one that calls tools, all of which are to be run.
    pub(crate) fn calls_tools(&self) -> bool {
        self.calls > 0 && !self.cut_a_call()
    }

    /// Whether a call was cut, which must not be run.
    pub(crate) fn cut_a_call(&self) -> bool {
        self.parser.was_cut()
    }

    /// Which stop string ended the text, if one did, by its place in the list.
    pub(crate) fn stop_string(&self) -> Option<usize> {
        self.stop_string
    }

    /// How many tokens came before the content, if there was an end of the reasoning.
    pub(crate) fn content_start(&self) -> Option<usize> {
        (self.content_begun && !self.parser.reasoning_was_open()).then_some(self.before_content)
    }

    /// Tokens of reasoning, its markers included, among those whose text was given out.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        if self.reasoned { self.before_content } else { 0 }
    }

    /// Takes the next of the text: the stop strings see what is no reasoning.
    fn take(&mut self, text: &str) {
        self.attach(text);
        let (thought, answer) = text.split_at(self.parser.before_content(text));
        if !thought.is_empty() {
            // What they held before the reasoning began comes before it.
            let held = self.stops.finish();
            self.release(&(held + thought));
        }
        let stopped = self.stops.push(answer);
        self.release(&stopped.text);
        self.stop_string = stopped.hit;
    }

    /// Text has come: it belongs to the tokens that had none, which together hold its bytes.
    fn attach(&mut self, text: &str) {
        let start = self.made;
        self.made += text.len();
        let end = self.made;
        self.pending.extend(self.textless.drain(..).map(|sample| Pending { sample, start, end }));
    }

    /// Passes on text that the stop strings let through, a token at a time.
    fn release(&mut self, text: &str) {
        let mut rest = text;
        while let Some(first) = self.pending.front()
            && first.end - self.given <= rest.len()
        {
            let (part, after) = rest.split_at(first.end - self.given);
            self.pass(part);
            self.give_first();
            rest = after;
        }
        self.pass(rest);
    }

    /// The text ends within `pending`: a token that gave some of its text counts as given, those after it do not.
    fn give_cut_tokens(&mut self) {
        if let Some(cut) = self.pending.front().filter(|first| first.start < self.given).map(|first| first.end) {
            while self.pending.front().is_some_and(|first| first.end == cut) {
                self.give_first();
            }
        }
        self.pending.clear();
        self.textless.clear();
    }

    fn give_first(&mut self) {
        if let Some(first) = self.pending.pop_front() {
            self.before_content += usize::from(!self.content_begun);
            self.ready.tokens.push(first.sample);
        }
    }

    fn pass(&mut self, text: &str) {
        self.given += text.len();
        let events = self.parser.push(text);
        self.content_begun = self.parser.is_past_reasoning();
        self.take_events(events);
    }

    fn take_events(&mut self, events: Vec<ReplyEvent>) {
        for event in events {
            self.reasoned |= matches!(event, ReplyEvent::Reasoning(_));
            self.calls += usize::from(matches!(event, ReplyEvent::CallBegin { .. }));
            event.join(&mut self.ready.events);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Delta, ReplyText};
    use crate::reply::Reply;
    use lily_backend::Sample;
    use lily_chat::{ReplyEvent, ReplyParser, Tokenizer};
    use std::sync::Arc;

    fn tokenizer() -> Arc<Tokenizer> {
        let json = include_bytes!("../../../models/tiny/tokenizer.json");
        Arc::new(Tokenizer::from_files(json, None).expect("the embedded tokenizer"))
    }

    fn new_text(tokenizer: Arc<Tokenizer>, stops: Vec<String>, reasoning: Option<bool>) -> ReplyText {
        ReplyText::new(tokenizer, stops, ReplyParser::new(reasoning, None), "").expect("no empty stop")
    }

    /// Everything that comes of `text`, its tokens as ids, and the reasoning tokens.
    fn run(text: &str, stops: &[&str], reasoning: Option<bool>) -> (Reply, Vec<u32>, usize) {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode(text).expect("any text");
        let stops = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut reply = new_text(Arc::clone(&tokenizer), stops, reasoning);
        let mut all = Reply::default();
        let mut add = |delta: Delta| {
            all.extend(delta.events);
            all.tokens.extend(delta.tokens);
        };
        for &token in &ids {
            if let Some(delta) = reply.push(Sample { token, logprob: None, top: Vec::new() }) {
                assert!(!delta.events.is_empty());
                add(delta);
            }
            if reply.stopped() {
                break;
            }
        }
        add(reply.finish(true));
        let given = all.tokens.iter().map(|sample| sample.token).collect();
        (all, given, reply.reasoning_tokens())
    }

    #[test]
    fn every_token_is_given_with_its_text() {
        let text = "Hello 🦔 wörld,\n\n日本語.";
        let (all, tokens, reasoning) = run(text, &[], None);
        assert_eq!((all.content.as_str(), reasoning), (text, 0));
        assert_eq!(tokens, tokenizer().encode(text).expect("any text"));
    }

    #[test]
    fn reasoning_is_told_apart_and_counted() {
        let (all, tokens, reasoning) = run("Two and two.\n</think>\n\nFour", &[], Some(true));
        assert_eq!((all.reasoning.as_str(), all.content.as_str()), ("Two and two.", "Four"));
        let count = |text: &str| tokenizer().encode(text).expect("any text").len();
        assert_eq!(reasoning, count("Two and two.\n</think>\n\n"));
        assert_eq!(tokens.len(), reasoning + count("Four"));
    }

    #[test]
    fn a_stop_string_may_begin_and_end_within_tokens() {
        let text = "one two three four";
        let tokenizer = tokenizer();
        for stop in ["two", "o th", " four", "e", "r f", "nothing"] {
            let (all, tokens, _) = run(text, &[stop], None);
            let expected = text.split(stop).next().expect("split gives one");
            assert_eq!(all.content, expected, "{stop:?}");
            // The tokens' own text reaches just as far, give or take the token that was cut.
            let whole: String = tokenizer.decode(&tokens);
            assert!(whole.starts_with(expected), "{stop:?}: {whole:?}");
            let without_last = tokenizer.decode(&tokens[..tokens.len().saturating_sub(1)]);
            assert!(expected.is_empty() || without_last.len() < expected.len(), "{stop:?}: {whole:?}");
        }
    }

    #[test]
    fn a_stop_string_ends_the_answer_and_not_the_thought() {
        let text = "One, two.\n\nSo </b> it is.\n</think>\n\n\nOne, two\nthree";
        for (stop, content) in
            [("two", "One, "), ("\n", "One, two"), ("O", ""), ("</think>", "One, two\nthree"), ("\nthr", "One, two")]
        {
            let (all, tokens, reasoning) = run(text, &[stop, "nothing"], Some(true));
            assert_eq!(
                (all.reasoning.as_str(), all.content.as_str()),
                ("One, two.\n\nSo </b> it is.", content),
                "{stop:?}"
            );
            assert!(tokens.len() >= reasoning && text.starts_with(&tokenizer().decode(&tokens)), "{stop:?}");
        }
        // What would begin a stop string is not held back where none is looked for.
        let tokenizer = tokenizer();
        let mut reply = new_text(Arc::clone(&tokenizer), vec!["Hm, yes".into()], Some(true));
        let given: String = (tokenizer.encode("Hm,").expect("any text").into_iter())
            .filter_map(|token| reply.push(Sample { token, logprob: None, top: Vec::new() }))
            .flat_map(|delta| delta.events)
            .map(|event| if let ReplyEvent::Reasoning(text) = event { text } else { panic!("{event:?}") })
            .collect();
        assert_eq!(given, "Hm,");
        // Reasoning that the model opens itself, and a stop string that began before it.
        for (text, reasoning, content) in [
            ("<think>\nNo no.\n</think>\n\nNo no", "No no.", "No "),
            ("\n\nNo no", "", "\n\nNo "),
            ("<b> no", "", "<b> "),
        ] {
            let (all, ..) = run(text, &["no", ">x"], Some(false));
            assert_eq!((all.reasoning.as_str(), all.content.as_str()), (reasoning, content), "{text:?}");
        }
    }

    #[test]
    fn an_unfinished_character_becomes_a_replacement() {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode("a🦔").expect("any text");
        let mut reply = new_text(Arc::clone(&tokenizer), Vec::new(), None);
        let mut tokens = 0;
        for &token in &ids[..ids.len() - 1] {
            tokens +=
                reply.push(Sample { token, logprob: None, top: Vec::new() }).map_or(0, |delta| delta.tokens.len());
        }
        let last = reply.finish(true);
        assert_eq!(last.events, [ReplyEvent::Content("\u{fffd}".into())]);
        assert_eq!(tokens + last.tokens.len(), ids.len() - 1);
    }
}
