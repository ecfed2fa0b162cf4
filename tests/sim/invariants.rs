//! What must hold, whatever happens. The world outside keeps these books; they outlive every crash.

use crate::tools::Counter;
use agentdo::agent::state::{Agent, CallStep, Phase, ToolOp, ToolStep};
use agentdo::agent::{OpRef, RESTARTS_MAX, view};
use agentdo::model::Delta;
use agentdo::model::message::{Block, Message, Usage};
use agentdo::platform::host::HostStorage;
use agentdo::port::{SqlError, Tx, transaction};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// An invariant that does not hold.
#[derive(Debug, Clone)]
pub struct Violation {
    pub invariant: &'static str,
    pub detail: String,
}

pub type Check<T = ()> = Result<T, Violation>;

/// A violation of `invariant`.
pub fn broken<T>(invariant: &'static str, detail: impl Into<String>) -> Check<T> {
    Err(Violation { invariant, detail: detail.into() })
}

pub fn require(holds: bool, invariant: &'static str, detail: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { broken(invariant, detail()) }
}

/// What is committed.
#[derive(Debug, Clone, Default)]
pub struct Stored {
    pub agent: Agent,
    pub tools: Vec<ToolOp>,
    pub deltas: Vec<Delta>,
}

impl Stored {
    pub fn in_flight(&self) -> bool {
        self.agent.ending.is_some() || self.agent.run.as_ref().is_some_and(|run| run.parked.is_none())
    }

    pub fn step(&self) -> Option<CallStep> {
        match self.agent.run.as_ref().map(|run| &run.phase) {
            Some(Phase::Call(call)) => Some(call.step),
            _ => None,
        }
    }
}

/// Reads what is committed, and the events after `after`.
pub fn read(storage: &HostStorage, after: i64) -> (Stored, Vec<Value>) {
    let reading = |tx: &dyn Tx| -> Result<(Stored, Vec<Value>), SqlError> {
        let Some(agent) = view::load(tx)? else {
            return Ok(Default::default());
        };
        let mut stored = Stored { agent, ..Stored::default() };
        match stored.agent.run.as_ref().map(|run| &run.phase) {
            Some(Phase::Tools { .. }) => {
                for row in tx.query("SELECT state FROM work ORDER BY position", &[])? {
                    stored.tools.push(serde_json::from_str(row.text(0)?).unwrap());
                }
            }
            Some(Phase::Call(call)) if call.step == CallStep::Dispatched => {
                for row in tx.query("SELECT body FROM chunk ORDER BY n", &[])? {
                    for batch in row.text(0)?.lines() {
                        let deltas: Vec<Delta> = serde_json::from_str(batch).unwrap();
                        stored.deltas.extend(deltas);
                    }
                }
            }
            _ => {}
        }
        let events = if stored.agent.seq > after { view::events_after(tx, after, 100_000)?.events } else { Vec::new() };
        Ok((stored, events))
    };
    transaction(storage, reading).unwrap()
}

/// A request that the model saw.
#[derive(Debug)]
pub struct Seen {
    pub run_id: String,
    pub inputs: Vec<String>,
}

#[derive(Debug, Default)]
struct Started {
    op: String,
    sent: bool,
    excused: bool,
}

/// The books.
#[derive(Default)]
pub struct Books {
    pub log: Vec<Value>,
    pub counts: BTreeMap<String, usize>,
    pub requests: Vec<Seen>,
    pub tools: Counter,
    /// Tools that run now, by operation.
    pub running: BTreeSet<String>,
    /// Accepted inputs and the hash of their body; those that were refused.
    pub accepted: BTreeMap<String, String>,
    pub refused: BTreeSet<String>,
    /// By operation, since its last request: the generation that asked the hooks last.
    pub hooks_asked: BTreeMap<String, u32>,
    pub hooks_answered: BTreeSet<(String, u32)>,
    /// Gates whose last word for the operation, since its last request, was go.
    pub gates_went: BTreeSet<(String, String)>,
    /// Runs that a committed stop or interrupt ended.
    pub marked_runs: BTreeSet<String>,
    /// A stop is committed, and no `retry` since.
    pub stopped: bool,
    /// A message or a configuration was accepted: the agent exists.
    pub made: bool,
    /// Answers that stood complete in the stream log when their instance died.
    pub adoptable: BTreeSet<String>,
    /// Deaths that may count against an operation.
    pub counted_deaths: u32,
    pub index: (i64, String, Option<i64>),
    started: Vec<Started>,
    ended: usize,
    owed: Vec<String>,
    settled: BTreeMap<String, Value>,
    usage: Usage,
    tool_starts: BTreeSet<String>,
}

impl Books {
    /// New events of the log, as they are committed.
    pub fn note(&mut self, stored: &Stored, events: Vec<Value>) -> Check {
        for event in events {
            let seq = i64::try_from(self.log.len()).unwrap_or(0) + 1;
            require(event["seq"] == seq, "events have no gap and no repeat", || format!("wanted {seq}, got {event}"))?;
            self.note_one(&event)?;
            *self.counts.entry(event["type"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
            self.log.push(event);
        }
        let last = i64::try_from(self.log.len()).unwrap_or(0);
        require(stored.agent.seq == last, "events have no gap and no repeat", || {
            format!("the agent says {}, the log has {last}", stored.agent.seq)
        })?;
        require(stored.agent.usage == self.usage, "usage is the sum of the calls", || {
            format!("{:?} and {:?}", stored.agent.usage, self.usage)
        })?;
        require(stored.step() != Some(CallStep::Ended), "an ended call is decided on at once", String::new)
    }

    fn note_one(&mut self, event: &Value) -> Check {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        match event["type"].as_str().unwrap_or_default() {
            "entry" => self.note_entry(event)?,
            "submission" => {
                let id = text("request_id");
                let known = self.accepted.contains_key(&id);
                require(known, "what settles was accepted", || id.clone())?;
                let proper = match text("status").as_str() {
                    "done" => event["answer_seq"].is_i64() && event["reason"].is_null(),
                    "unanswered" => event["answer_seq"].is_null() && event["reason"].is_string(),
                    _ => false,
                };
                require(proper, "a submission settles with an answer or a reason", || event.to_string())?;
                if let Some(before) = self.settled.insert(id, event.clone()) {
                    return broken("a submission settles exactly once", format!("{before} and then {event}"));
                }
            }
            "call_started" => {
                require(self.started.len() == self.ended, "one call at a time", || event.to_string())?;
                self.started.push(Started { op: text("op"), ..Started::default() });
            }
            "call_ended" => {
                self.ended += 1;
                require(self.started.len() == self.ended, "each call ends once", || event.to_string())?;
                let usage: Usage = serde_json::from_value(event["usage"].clone()).unwrap();
                self.usage.add(&usage);
            }
            "tool_started" => {
                self.tool_starts.insert(text("op"));
            }
            _ => {}
        }
        Ok(())
    }

    fn note_entry(&mut self, event: &Value) -> Check {
        let message: Message = serde_json::from_value(event["entry"]["message"].clone()).unwrap();
        if let Message::ToolResult { tool_call_id, .. } = &message {
            let fits = self.owed.first() == Some(tool_call_id);
            require(fits, "each tool call has one result, in call order", || {
                format!("result of {tool_call_id}, owed are {:?}", self.owed)
            })?;
            self.owed.remove(0);
            return Ok(());
        }
        match message {
            Message::Assistant(assistant) if assistant.aborted => Ok(()),
            message => {
                require(self.owed.is_empty(), "each tool call has one result, in call order", || {
                    format!("{message:?} while owed are {:?}", self.owed)
                })?;
                if let Message::Assistant(assistant) = message {
                    for block in assistant.content {
                        if let Block::ToolCall { id, .. } = block {
                            self.owed.push(id);
                        }
                    }
                }
                Ok(())
            }
        }
    }

    /// A request leaves.
    pub fn request(&mut self, op: &OpRef, run_id: &str, gates: &[&str], hooks: bool) -> Check {
        require(!self.stopped, "nothing leaves after a stop", || format!("{op:?}"))?;
        require(!self.marked_runs.contains(run_id), "nothing leaves after a stop or interrupt of its run", || {
            format!("{op:?} of {run_id}")
        })?;
        require(!self.adoptable.contains(&op.id), "a complete answer is adopted, not asked for again", || {
            format!("{op:?}")
        })?;
        let Some(started) = self.started.last_mut().filter(|started| started.op == op.id && !started.sent) else {
            return broken("intent first: call_started is committed before the request", format!("{op:?}"));
        };
        require(!started.excused, "each dispatch has its own call_started", || format!("{op:?}"))?;
        started.sent = true;
        require(
            self.ended + 1 == self.started.len(),
            "intent first: call_started is committed before the request",
            || format!("{op:?}: its call has ended"),
        )?;
        if hooks {
            let asked = self.hooks_asked.remove(&op.id);
            let own = asked.is_some_and(|asked| self.hooks_answered.contains(&(op.id.clone(), asked)));
            require(own, "each request passed its own hook", || format!("{op:?}: asked in generation {asked:?}"))?;
        }
        for gate in gates {
            let own = self.gates_went.remove(&((*gate).to_owned(), op.id.clone()));
            require(own, "each request passed its own gates", || format!("{op:?} at {gate}"))?;
        }
        Ok(())
    }

    /// A tool begins.
    pub fn tool(&mut self, op: &OpRef, tool_call_id: &str, name: &str, resource: Option<&str>, hooks: bool) -> Check {
        require(!self.stopped, "nothing leaves after a stop", || format!("tool {op:?}"))?;
        let intent = self.tool_starts.contains(&op.id);
        require(intent, "intent first: tool_started is committed before the tool runs", || format!("{op:?}"))?;
        require(self.owed.iter().any(|owed| owed == tool_call_id), "a tool runs while its result is owed", || {
            format!("{op:?} {tool_call_id}")
        })?;
        if hooks {
            // A tool that runs again after a crash keeps the answer its arguments were committed with.
            let asked = self.hooks_asked.get(&op.id);
            let own = asked.is_some_and(|asked| self.hooks_answered.contains(&(op.id.clone(), *asked)));
            require(own, "each tool call passed its own hook", || format!("{op:?}: asked in generation {asked:?}"))?;
        }
        let ran = self.tools.begin(tool_call_id, &op.id, name);
        ran.or_else(|detail| broken("an unsafe tool runs at most once, a safe one under one key", detail))?;
        if let Some(resource) = resource {
            let held = self.tools.hold(resource, &op.id);
            held.or_else(|detail| broken("tools of one resource do not overlap", detail))?;
        }
        require(self.running.insert(op.id.clone()), "a tool is not started while it runs", || format!("{op:?}"))?;
        require(self.running.len() <= 4, "at most four tools at once", || format!("{:?}", self.running))
    }

    /// A tool is over, or left behind.
    pub fn tool_over(&mut self, op: &str) {
        self.running.remove(op);
        self.tools.release(op);
    }

    /// The instance is alive and has performed all it was asked for: nothing that was announced may be missing.
    pub fn nothing_unsent(&self) -> Check {
        let unsent = self.started.iter().find(|started| !started.sent && !started.excused);
        require(unsent.is_none(), "each call_started has its request", || format!("{unsent:?}"))
    }

    /// The instance died.
    pub fn died(&mut self, stored: &Stored) {
        self.running.clear();
        self.tools.release_all();
        for started in &mut self.started {
            started.excused |= !started.sent;
        }
        let held = match stored.agent.run.as_ref().map(|run| &run.phase) {
            Some(Phase::Call(call)) => {
                matches!(call.step, CallStep::Backoff | CallStep::GateWait(_))
                    || (call.step == CallStep::Hooks && call.pending)
            }
            Some(Phase::Tools { .. }) => stored.tools.iter().all(|tool| match tool.step {
                ToolStep::Hooks => tool.pending,
                ToolStep::Started => false,
                ToolStep::Queued | ToolStep::Done => true,
            }),
            None => true,
        };
        self.counted_deaths += u32::from(!held);
        if let Some(Phase::Call(call)) = stored.agent.run.as_ref().map(|run| &run.phase) {
            let ended = stored.deltas.iter().any(|delta| matches!(delta, Delta::Finish(_)));
            let said = stored.deltas.iter().any(|delta| matches!(delta, Delta::Text(_) | Delta::Call { .. }));
            if call.step == CallStep::Dispatched && ended && said {
                self.adoptable.insert(call.id.clone());
            }
        }
    }

    /// What must hold of the committed state at every moment: the alarm is the only rescue.
    pub fn at_rest_between(&self, stored: &Stored, alarm: Option<i64>, now_ms: i64, ahead_ms: i64) -> Check {
        if stored.in_flight() {
            let Some(alarm) = alarm else {
                return broken("work in flight has an alarm", format!("{:?}", stored.agent.run));
            };
            let waits = matches!(stored.step(), Some(CallStep::Backoff | CallStep::GateWait(_)));
            require(waits || alarm <= now_ms + ahead_ms, "the alarm is near while work is in flight", || {
                format!("{} ms ahead", alarm - now_ms)
            })?;
        }
        require(stored.agent.alarm_ms == alarm, "the state knows what the alarm stands at", || {
            format!("{:?} and {alarm:?}", stored.agent.alarm_ms)
        })?;
        if let Some(parked) = stored.agent.run.as_ref().and_then(|run| run.parked.as_ref()) {
            require(self.counted_deaths >= RESTARTS_MAX, "holds, waits and deploys never park", || {
                format!("{} after {} deaths that count", parked.reason, self.counted_deaths)
            })?;
        }
        Ok(())
    }

    /// What must hold when nothing is going on any more.
    pub fn at_the_end(&self, storage: &HostStorage, stored: &Stored, all_suffixes: bool) -> Check {
        let status = stored.agent.status();
        let rests = matches!(status, "idle" | "stopped" | "parked");
        require(rests, "every run finishes from the alarm alone", || {
            format!("status {status}, run {:?}, ending {:?}", stored.agent.run, stored.agent.ending)
        })?;
        require(storage.alarm().is_none(), "no alarm at rest", || format!("{:?}", storage.alarm()))?;
        let call_in_flight = usize::from(stored.step() == Some(CallStep::Dispatched));
        require(self.started.len() == self.ended + call_in_flight, "each call ends once", || {
            format!("{} started, {} ended", self.started.len(), self.ended)
        })?;
        if stored.agent.run.is_none() {
            require(self.owed.is_empty(), "each tool call has one result, in call order", || {
                format!("owed at rest: {:?}", self.owed)
            })?;
        }
        self.submissions(storage, stored, status)?;
        self.replays(storage, all_suffixes)?;
        // What the index is to hear is owed until it has acknowledged, and the alarm stands as long; a run may go on while it
        // still shows the state before.
        let (version, shown, _) = &self.index;
        let knows = *version == stored.agent.index.version && (shown == status || *version == 0);
        require(knows || stored.agent.run.is_some(), "at rest the index knows the agent", || {
            format!("the index has {:?}, the agent {status} {:?}", self.index, stored.agent.index)
        })
    }

    fn submissions(&self, storage: &HostStorage, stored: &Stored, status: &str) -> Check {
        let rows = transaction(storage, |tx| {
            let mut rows = Vec::new();
            // An object that only refused has no tables.
            if view::load(tx)?.is_none() {
                return Ok((rows, 0, 0));
            }
            for row in tx.query("SELECT request_id FROM submission ORDER BY position", &[])? {
                rows.extend(view::stored_submission(tx, row.text(0)?)?);
            }
            let count = |sql: &str| -> Result<i64, SqlError> {
                tx.query(sql, &[])?.first().map_or(Ok(0), |row| row.integer(0))
            };
            let left = count(
                "SELECT (SELECT COUNT(*) FROM work) + (SELECT COUNT(*) FROM chunk) + (SELECT COUNT(*) FROM memo)",
            )?;
            let queued = count("SELECT COUNT(*) FROM submission WHERE status = 'queued'")?;
            Ok::<_, SqlError>((rows, left, queued))
        });
        let (rows, left, queued) = rows.unwrap();
        require(left == 0 || stored.agent.run.is_some(), "nothing is left behind in the tables", || {
            format!("{left} rows")
        })?;
        require(queued == i64::from(stored.agent.queued), "the count of what waits is right", || {
            format!("{queued} wait, the agent says {}", stored.agent.queued)
        })?;
        require(rows.len() == self.accepted.len(), "nothing accepted is lost, nothing refused is stored", || {
            format!("{} rows, {} accepted", rows.len(), self.accepted.len())
        })?;
        for row in &rows {
            let hash = self.accepted.get(&row.request_id);
            require(hash == Some(&row.body_sha256), "nothing accepted is lost, nothing refused is stored", || {
                format!("{} with {}", row.request_id, row.body_sha256)
            })?;
            let event = self.settled.get(&row.request_id);
            require(
                row.settled() || status == "parked",
                "every accepted input settles, or a park says why not",
                || format!("{} is {} while the agent is {status}", row.request_id, row.status),
            )?;
            require(row.settled() == event.is_some(), "a submission settles exactly once", || row.request_id.clone())?;
            let Some(event) = event else { continue };
            let same = event["status"] == *row.status
                && event["reason"].as_str() == row.reason.as_deref()
                && event["answer_seq"].as_i64() == row.answer;
            require(same, "what is settled never changes", || format!("{event} and {} {:?}", row.status, row.reason))?;
            if let Some(answer) = row.answer {
                self.answered(&row.request_id, row.entry, answer)?;
            }
        }
        Ok(())
    }

    /// The answer is an answer, comes after the input, and the model had seen the input.
    fn answered(&self, request_id: &str, entry: Option<i64>, answer: i64) -> Check {
        let event = usize::try_from(answer - 1).ok().and_then(|at| self.log.get(at)).cloned().unwrap_or_default();
        let message = serde_json::from_value(event["entry"]["message"].clone());
        let proper = matches!(message, Ok(Message::Assistant(message)) if !message.aborted);
        require(proper && entry.is_some_and(|entry| entry < answer), "an answer follows its input", || {
            format!("{request_id}: entry {entry:?}, answer {event}")
        })?;
        let begins = format!("{request_id}.");
        let run_id = event["entry"]["run_id"].as_str().unwrap_or_default();
        let asked = self
            .requests
            .iter()
            .any(|request| request.run_id == run_id && request.inputs.iter().any(|input| input.starts_with(&begins)));
        require(asked, "the model saw what it answered", || format!("{request_id} was in no request of {run_id}"))
    }

    fn replays(&self, storage: &HostStorage, all_suffixes: bool) -> Check {
        let length = self.log.len();
        // All of them where it is cheap; else one that differs from scenario to scenario.
        let starts = if all_suffixes { 0..=length } else { length * (length % 7) / 7..=length * (length % 7) / 7 };
        for start in starts {
            let after = i64::try_from(start).unwrap_or(0);
            let events = transaction(storage, |tx| view::events_after(tx, after, 100_000)).unwrap().events;
            require(events == self.log[start..], "replay from any number is the rest of the log", || {
                format!("from {start}: {} events, wanted {}", events.len(), length - start)
            })?;
        }
        Ok(())
    }
}
