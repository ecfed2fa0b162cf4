//! Server-sent events: one event of a stream as text.

use serde_json::Value;

/// A comment that keeps the connection open; clients drop it.
pub const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// The content type of an event stream.
pub const CONTENT_TYPE: &str = "text/event-stream; charset=utf-8";

/// Formats an event that has a `type` and, when it is durable, a `seq`.
pub fn event(value: &Value) -> String {
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("");
    let seq = value.get("seq").and_then(Value::as_u64);
    frame(kind, seq, &value.to_string())
}

/// Formats an event whose JSON is text already.
///
/// Only a durable event has a `seq` and so an `id:`; a browser keeps the last id it saw, and resumes after it.
pub fn frame(kind: &str, seq: Option<u64>, json: &str) -> String {
    let mut text = String::with_capacity(json.len().saturating_add(64));
    if let Some(seq) = seq {
        text.push_str("id: ");
        text.push_str(&seq.to_string());
        text.push('\n');
    }
    // A kind with a line end would forge fields; it then arrives as a plain message.
    if !kind.is_empty() && !kind.contains(['\n', '\r', '\0']) {
        text.push_str("event: ");
        text.push_str(kind);
        text.push('\n');
    }
    // JSON text of ours has one line; text of someone else may be laid out over several.
    for line in json.split(['\n', '\r']) {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_durable_event_has_an_id_and_a_delta_has_none() {
        let text = event(&json!({"type": "entry", "seq": 7, "data": "a\nb"}));
        assert_eq!(text, "id: 7\nevent: entry\ndata: {\"data\":\"a\\nb\",\"seq\":7,\"type\":\"entry\"}\n\n");
        assert_eq!(event(&json!({"type": "delta"})), "event: delta\ndata: {\"type\":\"delta\"}\n\n");
    }

    #[test]
    fn nothing_in_an_event_forges_a_field() {
        assert_eq!(frame("a\nid: 9", None, "{}"), "data: {}\n\n");
        assert_eq!(frame("a", None, "{\r\n}"), "event: a\ndata: {\ndata: \ndata: }\n\n");
        assert_eq!(event(&json!([])), "data: []\n\n");
    }
}
