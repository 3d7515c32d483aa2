//! A radix tree over runs of tokens. A node stands for the sequence of all tokens from the root to its end; some carry a
//! value.

use std::collections::HashMap;

/// Names a node. Never used twice, so that a stale one finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Id(u64);

const ROOT: Id = Id(0);

struct Node<V> {
    parent: Id,
    /// The tokens that it adds to its parent's.
    run: Vec<u32>,
    /// Tokens from the root to its end.
    length: usize,
    /// By the first token of their runs.
    children: HashMap<u32, Id>,
    value: Option<V>,
}

/// The tree. Besides the root, a node has a value or at least two children.
pub(crate) struct Tree<V> {
    nodes: HashMap<Id, Node<V>>,
    next: u64,
    /// Tokens in all runs.
    tokens: usize,
}

impl<V> Tree<V> {
    /// Bytes that an insertion takes at most beside the tokens': a node, and one where a run is split.
    pub(crate) const MOST_BYTES_OF_NODES: u64 = 2 * size_of::<Node<V>>() as u64;

    pub(crate) fn new() -> Self {
        let root = Node { parent: ROOT, run: Vec::new(), length: 0, children: HashMap::new(), value: None };
        Self { nodes: HashMap::from([(ROOT, root)]), next: 1, tokens: 0 }
    }

    /// Bytes that the runs take.
    pub(crate) fn bytes(&self) -> u64 {
        (self.tokens * size_of::<u32>() + (self.nodes.len() - 1) * size_of::<Node<V>>()) as u64
    }

    pub(crate) fn get(&self, id: Id) -> Option<&V> {
        self.nodes.get(&id)?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut V> {
        self.nodes.get_mut(&id)?.value.as_mut()
    }

    /// The nodes with values that stand for beginnings of `tokens`, or all of it, shortest first.
    pub(crate) fn path(&self, tokens: &[u32]) -> Vec<Id> {
        let mut found = Vec::new();
        let mut node = &self.nodes[&ROOT];
        while let Some(&id) = tokens.get(node.length).and_then(|token| node.children.get(token)) {
            let child = &self.nodes[&id];
            if !tokens[node.length..].starts_with(&child.run) {
                break;
            }
            if child.value.is_some() {
                found.push(id);
            }
            node = child;
        }
        found
    }

    /// The node with a value that stands for exactly these tokens.
    pub(crate) fn find(&self, tokens: &[u32]) -> Option<Id> {
        self.path(tokens).pop().filter(|id| self.nodes[id].length == tokens.len())
    }

    /// The nodes with values above one that others build on too: those at which the tree parts, or right above.
    pub(crate) fn shared(&self, id: Id) -> Vec<Id> {
        let mut found = Vec::new();
        let mut parts = false;
        let mut at = self.nodes.get(&id);
        while let Some(parent) = at.filter(|node| !node.run.is_empty()).map(|node| node.parent) {
            let node = &self.nodes[&parent];
            parts |= node.children.len() > 1;
            if parts && node.value.is_some() {
                found.push(parent);
                parts = false;
            }
            at = Some(node);
        }
        found
    }

    /// The tokens that a node stands for.
    pub(crate) fn tokens(&self, id: Id) -> Vec<u32> {
        let mut runs = Vec::new();
        let mut at = self.nodes.get(&id);
        while let Some(node) = at.filter(|node| !node.run.is_empty()) {
            runs.push(&node.run[..]);
            at = self.nodes.get(&node.parent);
        }
        runs.into_iter().rev().flatten().copied().collect()
    }

    /// Puts a value where there is none, at the node for `tokens`, of which there is at least one; the value that is
    /// there already stays.
    pub(crate) fn insert(&mut self, tokens: &[u32], value: V) -> Id {
        let mut id = ROOT;
        loop {
            let length = self.nodes[&id].length;
            let rest = &tokens[length..];
            let Some(&first) = rest.first() else { break };
            let Some(&child) = self.nodes[&id].children.get(&first) else {
                id = self.attach(id, rest, tokens.len());
                break;
            };
            let run = &self.nodes[&child].run;
            let common = run.iter().zip(rest).take_while(|(a, b)| a == b).count();
            id = if common == run.len() { child } else { self.split(child, common) };
        }
        let node = self.nodes.get_mut(&id).expect("it was found or made");
        node.value.get_or_insert(value);
        id
    }

    fn new_node(&mut self, parent: Id, run: Vec<u32>, length: usize) -> Id {
        let id = Id(self.next);
        self.next += 1;
        self.nodes.insert(id, Node { parent, run, length, children: HashMap::new(), value: None });
        id
    }

    fn attach(&mut self, parent: Id, run: &[u32], length: usize) -> Id {
        self.tokens += run.len();
        let id = self.new_node(parent, run.to_vec(), length);
        self.node(parent).children.insert(run[0], id);
        id
    }

    /// Makes a node in the middle of one's run, `at` tokens into it.
    fn split(&mut self, id: Id, at: usize) -> Id {
        let node = self.node(id);
        let (parent, length) = (node.parent, node.length - node.run.len() + at);
        let rest = node.run.split_off(at);
        let head = std::mem::replace(&mut node.run, rest);
        let (first_of_head, first_of_rest) = (head[0], node.run[0]);
        let middle = self.new_node(parent, head, length);
        self.node(id).parent = middle;
        self.node(middle).children.insert(first_of_rest, id);
        self.node(parent).children.insert(first_of_head, middle);
        middle
    }

    /// Takes a value out, and the nodes that are there for nothing else.
    pub(crate) fn remove(&mut self, id: Id) -> Option<V> {
        let value = self.nodes.get_mut(&id)?.value.take()?;
        let mut id = id;
        while id != ROOT {
            let node = &self.nodes[&id];
            if node.value.is_some() || node.children.len() > 1 {
                break;
            }
            if let Some(&only) = node.children.values().next() {
                self.merge(id, only);
                break;
            }
            let node = self.nodes.remove(&id).expect("it was just there");
            self.tokens -= node.run.len();
            self.node(node.parent).children.remove(&node.run[0]);
            id = node.parent;
        }
        Some(value)
    }

    /// Makes a node without a value part of its only child.
    fn merge(&mut self, id: Id, only: Id) {
        let Node { parent, mut run, .. } = self.nodes.remove(&id).expect("the caller saw it");
        let first = run[0];
        let child = self.node(only);
        run.append(&mut child.run);
        child.run = run;
        child.parent = parent;
        self.node(parent).children.insert(first, only);
    }

    fn node(&mut self, id: Id) -> &mut Node<V> {
        self.nodes.get_mut(&id).expect("nodes name only nodes that are there")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{ROOT, Tree};

    impl<V> Tree<V> {
        /// What must always hold.
        fn check(&self, values: usize) {
            assert_eq!(self.nodes.values().filter(|node| node.value.is_some()).count(), values);
            let mut tokens = 0;
            for (&id, node) in &self.nodes {
                tokens += node.run.len();
                for (first, child) in &node.children {
                    let child = &self.nodes[child];
                    assert_eq!((child.run[0], child.parent), (*first, id));
                    assert_eq!(child.length, node.length + child.run.len());
                }
                assert!(id == ROOT || node.value.is_some() || node.children.len() > 1, "a node for nothing");
            }
            assert_eq!(tokens, self.tokens);
        }
    }

    #[test]
    fn splits_and_merges() {
        let mut tree = Tree::new();
        let long = tree.insert(&[1, 2, 3, 4], 'a');
        let fork = tree.insert(&[1, 2, 9], 'b');
        assert_eq!(tree.nodes.len(), 4);
        assert_eq!(tree.path(&[1, 2, 3, 4, 5]), [long]);
        let middle = tree.insert(&[1, 2], 'c');
        assert_eq!((tree.shared(long), tree.shared(middle)), (vec![middle], vec![]));
        let longer = tree.insert(&[1, 2, 3, 4, 5], 'e');
        assert_eq!(tree.shared(longer), [middle], "nothing else builds on the one in between");
        let other = tree.insert(&[1, 2, 3, 4, 6, 6], 'f');
        assert_eq!(tree.shared(longer), [long, middle]);
        assert_eq!((tree.remove(longer), tree.remove(other)), (Some('e'), Some('f')));
        assert_eq!(tree.path(&[1, 2, 3, 4, 5]), [middle, long]);
        assert_eq!(tree.find(&[1, 2, 3]), None);
        assert_eq!(tree.tokens(fork), [1, 2, 9]);
        assert_eq!(tree.insert(&[1, 2], 'd'), middle);
        assert_eq!(tree.remove(middle), Some('c'));
        assert_eq!(tree.remove(middle), None);
        assert_eq!(tree.remove(fork), Some('b'));
        assert_eq!(tree.nodes.len(), 2, "the fork is gone");
        assert_eq!(tree.path(&[1, 2, 3, 4]), [long]);
        assert_eq!(tree.remove(long), Some('a'));
        assert_eq!(tree.nodes.len(), 1);
        tree.check(0);
    }

    proptest! {
        #[test]
        fn does_what_a_map_does(
            steps in prop::collection::vec((prop::collection::vec(0u32..3, 1..7), any::<bool>()), 1..60)
        ) {
            let mut tree = Tree::new();
            let mut map = BTreeMap::new();
            for (number, (tokens, removes)) in steps.into_iter().enumerate() {
                if removes {
                    let removed = tree.find(&tokens).and_then(|id| tree.remove(id));
                    prop_assert_eq!(removed, map.remove(&tokens));
                } else {
                    let id = tree.insert(&tokens, number);
                    prop_assert_eq!(tree.tokens(id), &tokens[..]);
                    map.entry(tokens.clone()).or_insert(number);
                }
                tree.check(map.len());
                let values = |ids: Vec<_>| ids.into_iter().map(|id| *tree.get(id).expect("a value")).collect::<Vec<_>>();
                let beginnings: Vec<usize> =
                    (1..=tokens.len()).filter_map(|length| map.get(&tokens[..length]).copied()).collect();
                prop_assert_eq!(values(tree.path(&tokens)), beginnings);
            }
        }
    }
}
