//! The text of a stream in progress, for those who watch: `delta` events carry the offset in their block and no number.

use crate::model::Delta;
use serde_json::{Value, json};

/// What has been streamed of one call.
pub(super) struct LiveText {
    op: String,
    call: u32,
    blocks: Vec<(&'static str, String, usize)>,
}

impl LiveText {
    /// Nothing yet, of this operation and call number.
    pub(super) fn new(op: &str, call: u32) -> Self {
        Self { op: op.to_owned(), call, blocks: Vec::new() }
    }

    /// Takes what came and gives the events to show. Blocks are text or thinking in the order they came; `offset` counts
    /// UTF-16 code units, as strings of JavaScript do.
    pub(super) fn push(&mut self, deltas: &[Delta]) -> Vec<Value> {
        let mut events: Vec<Value> = Vec::new();
        let mut piece = String::new();
        let mut kind = "text";
        for delta in deltas {
            let (delta_kind, text) = match delta {
                Delta::Text(text) => ("text", text),
                Delta::Thinking(text) => ("thinking", text),
                _ => continue,
            };
            if delta_kind != kind && !piece.is_empty() {
                events.extend(self.add(kind, &std::mem::take(&mut piece)));
            }
            kind = delta_kind;
            piece.push_str(text);
        }
        events.extend(self.add(kind, &piece));
        events
    }

    fn add(&mut self, kind: &'static str, text: &str) -> Option<Value> {
        if text.is_empty() {
            return None;
        }
        if self.blocks.last().is_none_or(|(last, _, _)| *last != kind) {
            self.blocks.push((kind, String::new(), 0));
        }
        let block = self.blocks.len().saturating_sub(1);
        let (_, so_far, length) = self.blocks.last_mut()?;
        let offset = *length;
        so_far.push_str(text);
        *length = length.saturating_add(text.encode_utf16().count());
        Some(json!({
            "type": "delta", "call": self.call, "op": self.op, "block": block, "kind": kind, "offset": offset, "text": text,
        }))
    }

    /// All of it, each block as one delta from offset 0.
    pub(super) fn so_far(&self) -> Vec<Value> {
        self.blocks
            .iter()
            .enumerate()
            .map(|(block, (kind, text, _))| {
                json!({
                    "type": "delta", "call": self.call, "op": self.op, "block": block, "kind": kind, "offset": 0, "text": text,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::LiveText;
    use crate::model::Delta;

    #[test]
    fn offsets_continue_in_a_block_and_begin_anew_in_the_next() {
        let mut live = LiveText::new("call_1", 1);
        let first = live.push(&[Delta::Thinking("hm".into()), Delta::Text("a🦀".into())]);
        let second = live.push(&[Delta::Text("b".into()), Delta::Finish("stop".into())]);
        let seen: Vec<(u64, u64, &str)> = first
            .iter()
            .chain(&second)
            .map(|e| (e["block"].as_u64().unwrap(), e["offset"].as_u64().unwrap(), e["text"].as_str().unwrap()))
            .collect();
        assert_eq!(seen, [(0, 0, "hm"), (1, 0, "a🦀"), (1, 3, "b")]);
        let start = live.so_far();
        assert_eq!(start.len(), 2);
        assert_eq!(start[1]["text"], "a🦀b");
    }
}
