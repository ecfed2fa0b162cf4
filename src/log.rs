//! The log: what clients replay. One row holds all events of one transaction, so that events cost numbers and not rows.

use crate::port::{Row, SqlError, Tx};
use chrono::{DateTime, SecondsFormat};
use serde_json::{Value, json};

/// Bytes of text in one cell; longer text lies in table `part` (design S3; the platform refuses 2 MB).
const CELL_BYTES_MAX: usize = 512 * 1024;

/// Adds the events of one transaction; `last_seq` is the number of the last of them.
pub(crate) fn append(tx: &dyn Tx, last_seq: i64, events: &[Value], now_ms: i64) -> Result<(), SqlError> {
    let count = i64::try_from(events.len()).map_err(|error| SqlError::new(error.to_string()))?;
    let first = last_seq.saturating_sub(count).saturating_add(1);
    let body = to_json(&events)?;
    let sql = "INSERT INTO log (seq, first, body, at_ms) VALUES (?1, ?2, ?3, ?4)";
    if body.len() <= CELL_BYTES_MAX {
        tx.run(sql, &[last_seq.into(), first.into(), body.into(), now_ms.into()])?;
        return Ok(());
    }
    tx.run(sql, &[last_seq.into(), first.into(), None::<String>.into(), now_ms.into()])?;
    for (n, piece) in pieces(&body, CELL_BYTES_MAX).enumerate() {
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        tx.run("INSERT INTO part (seq, n, body) VALUES (?1, ?2, ?3)", &[last_seq.into(), n.into(), piece.into()])?;
    }
    Ok(())
}

/// Events in order, and whether there may be more after them.
#[derive(Debug, Default)]
pub struct Page {
    /// The events.
    pub events: Vec<Value>,
    /// Bytes of the rows they stand in.
    pub bytes: usize,
    /// Whether more may follow.
    pub more: bool,
}

/// A page ends at this many bytes: messages may be large, and 128 MB are shared by all objects of an isolate.
const PAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The events after `after`, about `limit` of them or [`PAGE_BYTES_MAX`]: whole rows are read, at least one.
pub(crate) fn events_after(tx: &dyn Tx, after: i64, limit: usize) -> Result<Page, SqlError> {
    let mut page = Page::default();
    let mut from = after;
    loop {
        let rows = tx.query("SELECT seq, first, body FROM log WHERE seq > ?1 ORDER BY seq LIMIT 16", &[from.into()])?;
        if rows.is_empty() {
            return Ok(page);
        }
        for row in &rows {
            from = row.integer(0)?;
            let (events, bytes) = row_events(tx, row)?;
            page.events.extend(events.into_iter().filter(|event| seq_of(event) > after));
            page.bytes = page.bytes.saturating_add(bytes);
            if page.events.len() >= limit || page.bytes >= PAGE_BYTES_MAX {
                return Ok(Page { more: true, ..page });
            }
        }
    }
}

/// The events of a row, and how many bytes they are.
fn row_events(tx: &dyn Tx, row: &Row) -> Result<(Vec<Value>, usize), SqlError> {
    match row.optional_text(2)? {
        Some(body) => Ok((parse(body, "log.body")?, body.len())),
        None => {
            let parts = tx.query("SELECT body FROM part WHERE seq = ?1 ORDER BY n", &[row.integer(0)?.into()])?;
            let mut body = String::new();
            for part in &parts {
                body.push_str(part.text(0)?);
            }
            Ok((parse(&body, "part.body")?, body.len()))
        }
    }
}

/// The one event with this number.
pub(crate) fn event(tx: &dyn Tx, seq: i64) -> Result<Option<Value>, SqlError> {
    let rows = tx.query("SELECT seq, first, body FROM log WHERE seq >= ?1 ORDER BY seq LIMIT 1", &[seq.into()])?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    Ok(row_events(tx, row)?.0.into_iter().find(|event| seq_of(event) == seq))
}

/// The number of an event, 0 when it has none.
pub(crate) fn seq_of(event: &Value) -> i64 {
    event.get("seq").and_then(Value::as_i64).unwrap_or(0)
}

/// An event as clients see it.
pub(crate) fn event_json(kind: &str, seq: i64, now_ms: i64, fields: Value) -> Value {
    let mut event = json!({ "seq": seq, "type": kind, "at": rfc3339(now_ms) });
    if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
        event.extend(fields);
    }
    event
}

/// A time as the API shows it: RFC 3339, UTC, ms.
pub fn rfc3339(at_ms: i64) -> String {
    DateTime::from_timestamp_millis(at_ms).unwrap_or_default().to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// JSON text of a cell, as a value; `what` names the cell in the error.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(text: &str, what: &str) -> Result<T, SqlError> {
    serde_json::from_str(text).map_err(|error| SqlError::new(format!("{what}: {error}")))
}

/// A value as JSON text for a cell.
pub(crate) fn to_json<T: serde::Serialize>(value: &T) -> Result<String, SqlError> {
    serde_json::to_string(value).map_err(|error| SqlError::new(error.to_string()))
}

/// `text` in pieces of at most `bytes_max` bytes, cut between characters.
fn pieces(text: &str, bytes_max: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut end = rest.len().min(bytes_max.max(4));
        while !rest.is_char_boundary(end) {
            end = end.saturating_sub(1);
        }
        let (piece, tail) = rest.split_at_checked(end)?;
        rest = tail;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_join_to_the_text_and_never_split_a_character() {
        let text = "aé漢🦀".repeat(50);
        for bytes_max in [4, 5, 7, 64, 10_000] {
            let all: Vec<&str> = pieces(&text, bytes_max).collect();
            assert!(all.iter().all(|piece| piece.len() <= bytes_max));
            assert_eq!(all.concat(), text);
        }
    }
}
