//! Stop strings over a stream of text.

/// A stop string was empty: it would end every reply before its first character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stop string {index} is empty; leave it out or give it at least one character")]
pub struct EmptyStopString {
    /// The string's place in the list given to [`StopStrings::new`].
    pub index: usize,
}

/// What a push gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Text that is safe to give out: it belongs to no stop string, whatever follows.
    pub text: String,
    /// The stop string that ended the text, by its place in the list; from then on every push gives no text.
    pub hit: Option<usize>,
}

/// Finds the first of several stop strings in a text that comes in pieces.
///
/// The text ends where, read byte by byte, a stop string is first complete; if several are complete at the same byte,
/// the longest (the one that begins first) wins, and of equal ones the first in the list. What precedes it is given
/// out, it and what follows are not. Text that may yet turn out to begin a stop string is held back.
///
/// An Aho–Corasick automaton: the time is linear in the text however the stop strings overlap, and nothing is kept
/// but the automaton's state, because the text held back is always a prefix of a stop string.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    nodes: Vec<Node>,
    state: usize,
    hit: Option<usize>,
}

/// A prefix of at least one stop string.
#[derive(Clone, Debug, Default)]
struct Node {
    /// `stops[stop][..depth]` is the prefix.
    stop: usize,
    depth: usize,
    /// The node of the longest proper suffix that is also a prefix of some stop string.
    fail: usize,
    /// The longest stop string that the prefix ends with.
    complete: Option<usize>,
    next: Vec<(u8, usize)>,
}

impl Node {
    fn step(&self, byte: u8) -> Option<usize> {
        self.next.iter().find(|(key, _)| *key == byte).map(|(_, node)| *node)
    }
}

const ROOT: usize = 0;

impl StopStrings {
    /// A matcher for `stops`; with none, all text passes through.
    ///
    /// # Errors
    /// If a stop string is empty.
    pub fn new(stops: Vec<String>) -> Result<Self, EmptyStopString> {
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(EmptyStopString { index });
        }
        let nodes = build(&stops);
        Ok(Self { stops, nodes, state: ROOT, hit: None })
    }

    /// Takes the next piece of the text.
    pub fn push(&mut self, text: &str) -> Stopped {
        if self.hit.is_some() {
            return Stopped { text: String::new(), hit: self.hit };
        }
        let held = self.state;
        for (index, &byte) in text.as_bytes().iter().enumerate() {
            self.state = self.advance(self.state, byte);
            if let Some(stop) = self.nodes[self.state].complete {
                self.hit = Some(stop);
                let matched = self.stops[stop].len();
                self.state = ROOT;
                // The completing byte is a character's last, because a stop string ends with a whole character.
                return Stopped { text: self.join(held, &text[..=index], matched), hit: self.hit };
            }
        }
        Stopped { text: self.join(held, text, self.nodes[self.state].depth), hit: None }
    }

    /// Ends the text: gives what was held back.
    pub fn finish(&mut self) -> String {
        let node = &self.nodes[self.state];
        let held = self.stops.get(node.stop).map_or("", |stop| &stop[..node.depth]).to_owned();
        self.state = ROOT;
        held
    }

    fn advance(&self, mut state: usize, byte: u8) -> usize {
        loop {
            if let Some(next) = self.nodes[state].step(byte) {
                return next;
            }
            if state == ROOT {
                return ROOT;
            }
            state = self.nodes[state].fail;
        }
    }

    /// The text held at `node`, then `text`, without the last `keep` bytes.
    fn join(&self, node: usize, text: &str, keep: usize) -> String {
        let node = &self.nodes[node];
        let give = node.depth + text.len() - keep;
        let held = self.stops.get(node.stop).map_or("", |stop| &stop[..node.depth]);
        let mut out = String::with_capacity(give);
        out.push_str(&held[..give.min(held.len())]);
        out.push_str(&text[..give.saturating_sub(held.len())]);
        out
    }
}

fn build(stops: &[String]) -> Vec<Node> {
    let mut nodes = vec![Node::default()];
    for (index, stop) in stops.iter().enumerate() {
        let mut at = ROOT;
        for (depth, byte) in stop.bytes().enumerate() {
            at = match nodes[at].step(byte) {
                Some(next) => next,
                None => {
                    nodes.push(Node { stop: index, depth: depth + 1, ..Node::default() });
                    let new = nodes.len() - 1;
                    nodes[at].next.push((byte, new));
                    new
                }
            };
        }
        nodes[at].complete.get_or_insert(index);
    }
    // Breadth first, so that a node's failure links, all shorter, are known before it is reached.
    let mut queue = std::collections::VecDeque::from([ROOT]);
    while let Some(at) = queue.pop_front() {
        for (byte, child) in nodes[at].next.clone() {
            let mut fail = nodes[at].fail;
            let mut target = if at == ROOT { Some(ROOT) } else { nodes[fail].step(byte) };
            while target.is_none() && fail != ROOT {
                fail = nodes[fail].fail;
                target = nodes[fail].step(byte);
            }
            let target = target.unwrap_or(ROOT);
            nodes[child].fail = target;
            if nodes[child].complete.is_none() {
                nodes[child].complete = nodes[target].complete;
            }
            queue.push_back(child);
        }
    }
    nodes
}
