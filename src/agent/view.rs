//! What the API shows of an agent: reads only, derived from what is stored.

use super::schema;
use super::state::{Agent, CallStep, Phase};
pub use crate::log::Page;
use crate::log::{self, parse, rfc3339, seq_of};
use crate::model::message::{Message, text_of};
use crate::port::{Row, SqlError, Tx};
use serde_json::{Value, json};

/// A row of `submission`.
pub struct StoredSubmission {
    /// `sub_…`.
    pub id: String,
    /// The client's id.
    pub request_id: String,
    /// Hash of the canonical body.
    pub body_sha256: String,
    /// `queued`, `placed`, `done` or `unanswered`.
    pub status: String,
    /// Sequence number of its entry, once placed.
    pub entry: Option<i64>,
    /// Sequence number of its answer, once done.
    pub answer: Option<i64>,
    /// Why it is unanswered.
    pub reason: Option<String>,
}

impl StoredSubmission {
    /// Whether it has settled.
    pub fn settled(&self) -> bool {
        matches!(self.status.as_str(), "done" | "unanswered")
    }
}

/// The submission with this request id.
pub fn stored_submission(tx: &dyn Tx, request_id: &str) -> Result<Option<StoredSubmission>, SqlError> {
    if !schema::present(tx)? {
        return Ok(None);
    }
    let rows = tx.query(
        "SELECT id, request_id, body_sha256, status, entry, answer, reason FROM submission WHERE request_id = ?1",
        &[request_id.into()],
    )?;
    rows.first().map(read_submission).transpose()
}

fn read_submission(row: &Row) -> Result<StoredSubmission, SqlError> {
    Ok(StoredSubmission {
        id: row.text(0)?.to_owned(),
        request_id: row.text(1)?.to_owned(),
        body_sha256: row.text(2)?.to_owned(),
        status: row.text(3)?.to_owned(),
        entry: row.optional_integer(4)?,
        answer: row.optional_integer(5)?,
        reason: row.optional_text(6)?.map(str::to_owned),
    })
}

/// A submission as the API shows it, with the text of its answer.
pub fn submission_json(tx: &dyn Tx, stored: &StoredSubmission) -> Result<Value, SqlError> {
    let answer = match stored.answer {
        None => Value::Null,
        Some(seq) => {
            let event = log::event(tx, seq)?;
            let message = event.as_ref().and_then(|event| event.get("entry")?.get("message")).cloned();
            let text = match message.map(serde_json::from_value::<Message>) {
                Some(Ok(Message::Assistant(message))) => text_of(&message.content),
                _ => String::new(),
            };
            json!({ "text": text, "seq": seq })
        }
    };
    Ok(json!({
        "id": stored.id, "request_id": stored.request_id, "status": stored.status, "reason": stored.reason,
        "entry": stored.entry, "answer": answer,
    }))
}

/// The working set; `None` for an agent that never was.
pub fn load(tx: &dyn Tx) -> Result<Option<Agent>, SqlError> {
    if !schema::present(tx)? {
        return Ok(None);
    }
    let rows = tx.query("SELECT state FROM agent WHERE one = 1", &[])?;
    rows.first().map(|row| parse(row.text(0)?, "agent.state")).transpose()
}

/// The agent as the API shows it, less its id; `None` for one that never was.
pub fn agent(tx: &dyn Tx) -> Result<Option<Value>, SqlError> {
    let Some(agent) = load(tx)? else {
        return Ok(None);
    };
    let rows = tx.query(
        "SELECT request_id, id, mode FROM submission WHERE status = 'queued' ORDER BY position LIMIT 200",
        &[],
    )?;
    let queued = rows
        .iter()
        .map(|row| Ok(json!({ "request_id": row.text(0)?, "id": row.text(1)?, "when_busy": row.text(2)? })))
        .collect::<Result<Vec<Value>, SqlError>>()?;
    Ok(Some(agent_json(&agent, queued)))
}

pub(super) fn agent_json(agent: &Agent, queued: Vec<Value>) -> Value {
    let run = agent.run.as_ref().map(|run| {
        json!({
            "id": run.id, "task_id": null, "attempt": null, "tier": run.tier, "provider": run.provider,
            "model": format!("tier-{}{}", run.tier, if run.provider == "vertex" { "-vertex" } else { "" }),
            "calls": run.calls, "started_at": rfc3339(run.started_ms),
        })
    });
    let parked = agent.parked.as_ref().or_else(|| agent.run.as_ref().and_then(|run| run.parked.as_ref()));
    json!({
        "status": agent.status(), "run": run, "queued": queued,
        "parked": parked.map(|parked| json!({ "reason": parked.reason, "since": rfc3339(parked.since_ms) })),
        "waits": waits(agent), "next_wake_at": agent.alarm_ms.map(rfc3339), "last_seq": agent.seq,
        "entries": agent.entries, "usage": agent.usage,
    })
}

fn waits(agent: &Agent) -> Vec<Value> {
    let Some(Phase::Call(call)) = agent.run.as_ref().map(|run| &run.phase) else {
        return Vec::new();
    };
    let waits_for = match call.step {
        CallStep::Backoff => "backoff",
        CallStep::GateWait(_) => "slot",
        _ => return Vec::new(),
    };
    vec![json!({ "for": waits_for, "since": call.since_ms.map(rfc3339), "until": call.due_ms.map(rfc3339) })]
}

/// Events after `after`, about `limit` of them, or fewer when they are large.
pub fn events_after(tx: &dyn Tx, after: i64, limit: usize) -> Result<Page, SqlError> {
    if !schema::present(tx)? {
        return Ok(Page::default());
    }
    log::events_after(tx, after, limit)
}

/// Entries after `after`, at most `limit` of them and about [`ENTRY_BYTES_MAX`], and where the next page begins when there may be one.
pub fn entries(tx: &dyn Tx, after: i64, limit: usize) -> Result<(Vec<Value>, Option<i64>), SqlError> {
    let mut found = Vec::new();
    let mut from = after;
    let mut bytes = 0_usize;
    if !schema::present(tx)? {
        return Ok((found, None));
    }
    loop {
        let page = log::events_after(tx, from, ENTRY_SCAN_EVENTS)?;
        for event in &page.events {
            let Some(entry) = event.get("entry").and_then(Value::as_object) else {
                continue;
            };
            if found.len() >= limit {
                let next = found.last().map_or(from, seq_of);
                return Ok((found, Some(next)));
            }
            let mut shown = serde_json::Map::new();
            shown.insert("seq".to_owned(), event.get("seq").cloned().unwrap_or(Value::Null));
            shown.insert("created_at".to_owned(), event.get("at").cloned().unwrap_or(Value::Null));
            shown.extend(entry.clone());
            found.push(Value::Object(shown));
        }
        from = page.events.last().map_or(from, seq_of);
        if !page.more {
            return Ok((found, None));
        }
        bytes = bytes.saturating_add(page.bytes);
        if bytes >= ENTRY_BYTES_MAX && !found.is_empty() {
            return Ok((found, Some(from)));
        }
    }
}

const ENTRY_SCAN_EVENTS: usize = 256;
/// Bytes of the log that one page of entries may come from.
const ENTRY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A memo of a run: the first writer wins, and gets or gives the value that holds.
pub fn memo(tx: &dyn Tx, run_id: &str, name: &str, value: &Value) -> Result<Value, SqlError> {
    tx.run(
        "INSERT INTO memo (run_id, name, value) VALUES (?1, ?2, ?3) ON CONFLICT (run_id, name) DO NOTHING",
        &[run_id.into(), name.into(), value.to_string().into()],
    )?;
    let rows = tx.query("SELECT value FROM memo WHERE run_id = ?1 AND name = ?2", &[run_id.into(), name.into()])?;
    rows.first().map_or(Ok(Value::Null), |row| parse(row.text(0)?, "memo.value"))
}

/// Where a page of an export begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportFrom {
    /// The line about the agent itself.
    Agent,
    /// Entries after this sequence number.
    Entries(i64),
    /// Submissions after this one, in order of acceptance.
    Submissions(i64),
}

/// A page of an export: its lines, and where the next page begins when there is one.
pub fn export(tx: &dyn Tx, from: ExportFrom) -> Result<(Vec<Value>, Option<ExportFrom>), SqlError> {
    match from {
        ExportFrom::Agent => {
            let rows = tx.query("SELECT config, state FROM agent WHERE one = 1", &[])?;
            let Some(row) = rows.first() else { return Ok((Vec::new(), None)) };
            let config: Value = parse(row.text(0)?, "agent.config")?;
            let agent: Agent = parse(row.text(1)?, "agent.state")?;
            let line = json!({
                "type": "agent", "format": EXPORT_FORMAT, "config": config, "usage": agent.usage, "last_seq": agent.seq,
            });
            Ok((vec![line], Some(ExportFrom::Entries(0))))
        }
        ExportFrom::Entries(after) => {
            let (found, next) = entries(tx, after, EXPORT_PAGE)?;
            let next = next.map_or(ExportFrom::Submissions(0), ExportFrom::Entries);
            Ok((found.into_iter().map(|entry| json!({ "type": "entry", "entry": entry })).collect(), Some(next)))
        }
        ExportFrom::Submissions(after) => {
            let rows = tx.query(
                "SELECT position, request_id, body_sha256, status, reason, entry, answer FROM submission \
                 WHERE position > ?1 AND status IN ('done', 'unanswered') ORDER BY position LIMIT ?2",
                &[after.into(), i64::try_from(EXPORT_PAGE).unwrap_or(i64::MAX).into()],
            )?;
            let lines = rows.iter().map(submission_line).collect::<Result<Vec<Value>, SqlError>>()?;
            let last = rows.last().map(|row| row.integer(0)).transpose()?;
            let next = last.filter(|_| rows.len() >= EXPORT_PAGE).map(ExportFrom::Submissions);
            Ok((lines, next))
        }
    }
}

fn submission_line(row: &Row) -> Result<Value, SqlError> {
    Ok(json!({
        "type": "submission",
        "submission": {
            "request_id": row.text(1)?, "body_sha256": row.text(2)?, "status": row.text(3)?,
            "reason": row.optional_text(4)?, "entry": row.optional_integer(5)?, "answer": row.optional_integer(6)?,
        },
    }))
}

/// Raised when the lines of an export change their meaning.
const EXPORT_FORMAT: u32 = 1;
const EXPORT_PAGE: usize = 200;
