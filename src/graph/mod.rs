//! Dependency graphs: Tasks of a Change and agents of a graph use this one module. Pure: keys in, decisions out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A node as it is declared: its key, and the keys it comes after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node<'a> {
    /// Unique among the nodes.
    pub key: &'a str,
    /// Keys of nodes that must be done before.
    pub after: Vec<&'a str>,
}

/// What is wrong with a graph; each names the keys it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// Two nodes have this key.
    RepeatedKey(String),
    /// A node comes after a key that no node has.
    UnknownKey {
        /// The node.
        key: String,
        /// The key it names.
        after: String,
    },
    /// A node names the same key twice.
    RepeatedEdge {
        /// The node.
        key: String,
        /// The key it names.
        after: String,
    },
    /// A node comes after itself.
    SelfEdge(String),
    /// These come after each other, in this order and round again.
    Cycle(Vec<String>),
}

impl std::fmt::Display for Flaw {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RepeatedKey(key) => write!(formatter, "the key {key:?} is used twice"),
            Self::UnknownKey { key, after } => write!(formatter, "{key:?} comes after {after:?}, which is not there"),
            Self::RepeatedEdge { key, after } => write!(formatter, "{key:?} names {after:?} twice"),
            Self::SelfEdge(key) => write!(formatter, "{key:?} comes after itself"),
            Self::Cycle(keys) => {
                let shown: Vec<String> = keys.iter().chain(keys.first()).map(|key| format!("{key:?}")).collect();
                write!(formatter, "{} come after each other", shown.join(" after "))
            }
        }
    }
}

/// Checks a whole graph.
///
/// # Errors
/// The first flaw, in the order of [`Flaw`].
pub fn validate(nodes: &[Node<'_>]) -> Result<(), Flaw> {
    let mut keys = BTreeSet::new();
    for node in nodes {
        if !keys.insert(node.key) {
            return Err(Flaw::RepeatedKey(node.key.to_owned()));
        }
    }
    for node in nodes {
        let mut seen = BTreeSet::new();
        for after in &node.after {
            let (key, name) = (node.key.to_owned(), (*after).to_owned());
            if *after == node.key {
                return Err(Flaw::SelfEdge(key));
            }
            if !keys.contains(after) {
                return Err(Flaw::UnknownKey { key, after: name });
            }
            if !seen.insert(*after) {
                return Err(Flaw::RepeatedEdge { key, after: name });
            }
        }
    }
    find_cycle(nodes).map_or(Ok(()), |cycle| Err(Flaw::Cycle(cycle)))
}

/// Takes away what depends on nothing until nothing more can be taken; what is left goes in circles.
fn find_cycle(nodes: &[Node<'_>]) -> Option<Vec<String>> {
    let mut waits: BTreeMap<&str, usize> = nodes.iter().map(|node| (node.key, node.after.len())).collect();
    let followers = followers(nodes);
    let mut free: VecDeque<&str> = waits.iter().filter(|(_, count)| **count == 0).map(|(key, _)| *key).collect();
    while let Some(key) = free.pop_front() {
        waits.remove(key);
        for follower in followers.get(key).into_iter().flatten() {
            if let Some(count) = waits.get_mut(follower) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    free.push_back(follower);
                }
            }
        }
    }
    // Every node that is left comes after one that is left: following those must come round.
    let left: BTreeMap<&str, &str> = nodes
        .iter()
        .filter(|node| waits.contains_key(node.key))
        .filter_map(|node| node.after.iter().find(|after| waits.contains_key(**after)).map(|after| (node.key, *after)))
        .collect();
    let mut path: Vec<&str> = Vec::new();
    let mut at = *left.keys().next()?;
    loop {
        if let Some(start) = path.iter().position(|key| *key == at) {
            return Some(path.iter().skip(start).map(|key| (*key).to_owned()).collect());
        }
        path.push(at);
        at = left.get(at)?;
    }
}

/// For each key, the keys that come after it.
fn followers<'a>(nodes: &[Node<'a>]) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut followers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        for after in &node.after {
            followers.entry(after).or_default().push(node.key);
        }
    }
    followers
}

/// How far a node is, as its graph sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// Not begun: it may become ready, or blocked.
    Waiting,
    /// Begun and not ended, or free to begin.
    Active,
    /// Ended well: those after it may go on.
    Done,
    /// Ended otherwise, or stuck: those after it cannot begin.
    Stuck,
}

/// What follows for one waiting node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Everything before it is done.
    Ready,
    /// This key before it is stuck.
    Blocked(String),
    /// Something before it is not done.
    Waits,
}

/// What follows for each waiting node, given how far the others are. A blocked node blocks those after it, so one pass
/// gives the whole cascade.
pub fn next(nodes: &[Node<'_>], stand: impl Fn(&str) -> Stand) -> BTreeMap<String, Next> {
    let mut stands: BTreeMap<&str, Stand> = nodes.iter().map(|node| (node.key, stand(node.key))).collect();
    let mut found: BTreeMap<String, Next> = BTreeMap::new();
    // A cascade is at most as long as the graph has nodes.
    for _ in 0..=nodes.len() {
        let mut changed = false;
        for node in nodes {
            if stands.get(node.key) != Some(&Stand::Waiting) {
                continue;
            }
            let next = next_of(node, &stands);
            if matches!(next, Next::Blocked(_)) {
                stands.insert(node.key, Stand::Stuck);
                changed = true;
            }
            found.insert(node.key.to_owned(), next);
        }
        if !changed {
            break;
        }
    }
    found
}

fn next_of(node: &Node<'_>, stands: &BTreeMap<&str, Stand>) -> Next {
    if let Some(stuck) = node.after.iter().find(|after| stands.get(**after) == Some(&Stand::Stuck)) {
        return Next::Blocked((*stuck).to_owned());
    }
    let ready = node.after.iter().all(|after| stands.get(after) == Some(&Stand::Done));
    if ready { Next::Ready } else { Next::Waits }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node<'a>(key: &'a str, after: &[&'a str]) -> Node<'a> {
        Node { key, after: after.to_vec() }
    }

    #[test]
    fn flaws_are_named() {
        let flaw = |nodes: &[Node<'_>]| validate(nodes).unwrap_err().to_string();
        assert_eq!(flaw(&[node("a", &[]), node("a", &[])]), "the key \"a\" is used twice");
        assert_eq!(flaw(&[node("a", &["b"])]), "\"a\" comes after \"b\", which is not there");
        assert_eq!(flaw(&[node("b", &[]), node("a", &["b", "b"])]), "\"a\" names \"b\" twice");
        assert_eq!(flaw(&[node("a", &["a"])]), "\"a\" comes after itself");
        let round =
            flaw(&[node("x", &[]), node("a", &["b"]), node("b", &["c", "x"]), node("c", &["a"]), node("d", &["a"])]);
        assert_eq!(round, "\"a\" after \"b\" after \"c\" after \"a\" come after each other");
        assert_eq!(validate(&[node("a", &[]), node("b", &["a"]), node("c", &["a", "b"])]), Ok(()));
    }

    #[test]
    fn a_stuck_node_blocks_all_behind_it_and_names_the_nearest() {
        let nodes = [node("a", &[]), node("b", &["a"]), node("c", &["b"]), node("d", &[]), node("e", &["d", "c"])];
        let found = next(&nodes, |key| match key {
            "a" => Stand::Stuck,
            "d" => Stand::Done,
            _ => Stand::Waiting,
        });
        assert_eq!(found["b"], Next::Blocked("a".into()));
        assert_eq!(found["c"], Next::Blocked("b".into()));
        assert_eq!(found["e"], Next::Blocked("c".into()));
    }

    proptest! {
        /// Edges that only lead back in the order of the list can have no circle; one edge that leads on makes one exactly
        /// when its end leads back to its start.
        #[test]
        fn a_graph_without_circles_completes_in_an_order_it_allows(edges in proptest::collection::vec((0usize..12, 0usize..12), 0..40)) {
            let keys: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
            let nodes: Vec<Node<'_>> = (0..12)
                .map(|n| {
                    let mut after: Vec<&str> = edges.iter().filter(|(a, b)| a.max(b) == &n && a != b).map(|(a, b)| keys[*a.min(b)].as_str()).collect();
                    after.sort_unstable();
                    after.dedup();
                    Node { key: &keys[n], after }
                })
                .collect();
            prop_assert_eq!(validate(&nodes), Ok(()));
            let mut done: Vec<String> = Vec::new();
            while done.len() < nodes.len() {
                let found = next(&nodes, |key| if done.iter().any(|d| d == key) { Stand::Done } else { Stand::Waiting });
                let ready: Vec<String> = found.into_iter().filter(|(_, next)| *next == Next::Ready).map(|(key, _)| key).collect();
                prop_assert!(!ready.is_empty());
                for key in &ready {
                    let node = nodes.iter().find(|node| node.key == key).unwrap();
                    prop_assert!(node.after.iter().all(|after| done.iter().any(|d| d == after)));
                }
                done.extend(ready);
            }
        }
    }
}
