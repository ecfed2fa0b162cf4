//! One transaction of the machine: the working set is loaded, changed, and written once at the end, with one log row for
//! all that became visible and the alarm where it must stand.

use super::Machine;
use super::interface::{Effect, HookContext, IndexRow, OpRef, Output};
use super::state::{Agent, AgentConfig, CallOp, Phase, Run, ToolOp};
use crate::error::ApiError;
use crate::log::{self, event_json, parse, to_json};
use crate::model::message::Message;
use crate::port::{Random, SqlError, Tx, new_id};
use crate::sabotage::{Fault, active};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The machine's transaction in progress.
pub(super) struct Unit<'a> {
    pub(super) tx: &'a dyn Tx,
    pub(super) machine: &'a Machine,
    pub(super) now_ms: i64,
    pub(super) random: &'a dyn Random,
    pub(super) agent: Agent,
    pub(super) config: AgentConfig,
    /// True from the opening of an instance that found work in flight until its effects are out.
    pub(super) resumed: bool,
    /// The alarm has fired, or is said to have: whether it still stands is not known, so that it is set or cleared anew.
    pub(super) alarm_fired: bool,
    stored_state: String,
    stored_config: String,
    /// Status and run as they were, to see what changed.
    stored_status: &'static str,
    events: Vec<Value>,
    effects: Vec<Effect>,
    /// False after a deletion: its last events are shown and not kept.
    keep_events: bool,
    /// The rows of `work`, once somebody asked for them.
    round: RefCell<Option<Round>>,
}

/// The tool calls of the round, as they are in the table and as they shall be.
#[derive(Default)]
struct Round {
    ops: BTreeMap<i64, ToolOp>,
    stored: BTreeSet<i64>,
    changed: BTreeSet<i64>,
}

impl<'a> Unit<'a> {
    pub(super) fn open(
        tx: &'a dyn Tx,
        machine: &'a Machine,
        now_ms: i64,
        random: &'a dyn Random,
    ) -> Result<Self, SqlError> {
        let rows = tx.query("SELECT config, state FROM agent WHERE one = 1", &[])?;
        let (stored_config, stored_state) = match rows.first() {
            Some(row) => (row.text(0)?.to_owned(), row.text(1)?.to_owned()),
            None => (String::new(), String::new()),
        };
        let agent: Agent = parse_or_default(&stored_state, "agent.state")?;
        let config = if stored_config.is_empty() {
            machine.settings.defaults.clone()
        } else {
            parse_or_default(&stored_config, "agent.config")?
        };
        let stored_status = agent.status();
        Ok(Self {
            tx,
            machine,
            now_ms,
            random,
            agent,
            config,
            resumed: false,
            alarm_fired: false,
            stored_state,
            stored_config,
            stored_status,
            events: Vec::new(),
            effects: Vec::new(),
            keep_events: true,
            round: RefCell::default(),
        })
    }

    /// Whether nothing was stored of this agent before.
    pub(super) fn is_new(&self) -> bool {
        self.stored_state.is_empty()
    }

    /// Writes what changed and gives what is to be done. Nothing has happened before the caller's commit.
    pub(super) fn close(mut self) -> Result<Output, SqlError> {
        self.write_round()?;
        let status = self.agent.status();
        if status != self.stored_status {
            self.log("status", json!({ "status": status }));
        }
        // Before the alarm is placed: while the index is owed a word the object must stay awake.
        let tell_index = status != self.stored_status || self.stored_state.is_empty();
        if tell_index {
            self.agent.index.version = self.agent.index.version.saturating_add(1);
        }
        let late_alarm = self.place_alarm()?;
        if tell_index {
            let row = self.index_row();
            self.effects.push(Effect::Index(row));
        }
        if !self.events.is_empty() && self.keep_events {
            log::append(self.tx, self.agent.seq, &self.events, self.now_ms)?;
        }
        let state = to_json(&self.agent)?;
        let config = to_json(&self.config)?;
        if self.stored_state.is_empty() {
            self.tx.run("INSERT INTO agent (one, config, state) VALUES (1, ?1, ?2)", &[config.into(), state.into()])?;
        } else if config != self.stored_config && !self.stored_config.is_empty() {
            self.tx.run("UPDATE agent SET config = ?1, state = ?2 WHERE one = 1", &[config.into(), state.into()])?;
        } else if state != self.stored_state {
            self.tx.run("UPDATE agent SET state = ?1 WHERE one = 1", &[state.into()])?;
        }
        Ok(Output { effects: self.effects, events: self.events, late_alarm })
    }

    /// The alarm stands at the earliest due time, and at most the liveness distance ahead while work is in flight
    /// (design L1). It is written only when it has to move, since it is billed as a row.
    fn place_alarm(&mut self) -> Result<Option<Option<i64>>, SqlError> {
        let wanted = self.agent.wake_at(self.now_ms, self.machine.settings.alarm_ahead_ms);
        let standing = self.agent.alarm_ms;
        let keep = match (standing, wanted) {
            (None, None) => true,
            (Some(standing), Some(wanted)) => !self.alarm_fired && standing <= wanted && standing > self.now_ms,
            _ => false,
        };
        if keep {
            return Ok(None);
        }
        self.agent.alarm_ms = wanted;
        if active(Fault::AlarmOutsideTransaction) {
            return Ok(Some(wanted));
        }
        self.tx.set_alarm(wanted)?;
        Ok(None)
    }

    pub(super) fn index_row(&self) -> IndexRow {
        IndexRow {
            version: self.agent.index.version,
            status: self.agent.status().to_owned(),
            due_ms: self.agent.work_at(self.now_ms, self.machine.settings.alarm_ahead_ms),
            deleted: self.agent.deleted,
        }
    }

    /// Adds an event to the log; gives its sequence number.
    pub(super) fn log(&mut self, kind: &str, fields: Value) -> i64 {
        self.agent.seq = self.agent.seq.saturating_add(1);
        self.events.push(event_json(kind, self.agent.seq, self.now_ms, fields));
        self.agent.seq
    }

    /// Adds an entry to the transcript; gives its sequence number.
    pub(super) fn entry(&mut self, kind: &str, message: &Message) -> Result<i64, SqlError> {
        let id = self.new_id("ent");
        let run_id = self.agent.run.as_ref().map(|run| run.id.clone());
        self.agent.entries = self.agent.entries.saturating_add(1);
        let message = serde_json::to_value(message).map_err(|error| SqlError::new(error.to_string()))?;
        let entry = json!({ "id": id, "run_id": run_id, "kind": kind, "message": message });
        Ok(self.log("entry", json!({ "entry": entry })))
    }

    /// Events of this transaction so far, which are not in the log table yet.
    pub(super) fn events(&self) -> &[Value] {
        &self.events
    }

    pub(super) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(super) fn new_id(&self, prefix: &str) -> String {
        new_id(prefix, self.now_ms, self.random)
    }

    /// Drops every row; what is left is a tombstone.
    pub(super) fn delete_everything(&mut self) -> Result<(), SqlError> {
        for table in super::schema::CONTENT_TABLES {
            self.tx.run(&format!("DELETE FROM {table}"), &[])?;
        }
        let Agent { epoch, seq, alarm_ms, index, .. } = std::mem::take(&mut self.agent);
        self.agent = Agent { epoch, seq, alarm_ms, index, deleted: true, ..Agent::default() };
        self.config = AgentConfig::default();
        self.keep_events = false;
        self.round = RefCell::default();
        Ok(())
    }

    /// The run, or an error: callers have checked that there is one.
    pub(super) fn run(&self) -> Result<&Run, SqlError> {
        self.agent.run.as_ref().ok_or_else(|| SqlError::new("no run"))
    }

    pub(super) fn run_mut(&mut self) -> Result<&mut Run, SqlError> {
        self.agent.run.as_mut().ok_or_else(|| SqlError::new("no run"))
    }

    /// The call in flight, when the run is at one.
    pub(super) fn call(&self) -> Option<&CallOp> {
        match self.agent.run.as_ref().map(|run| &run.phase) {
            Some(Phase::Call(call)) => Some(call),
            _ => None,
        }
    }

    pub(super) fn call_mut(&mut self) -> Option<&mut CallOp> {
        match self.agent.run.as_mut().map(|run| &mut run.phase) {
            Some(Phase::Call(call)) => Some(call),
            _ => None,
        }
    }

    /// The call that `op` names, if it still counts.
    pub(super) fn current_call(&self, op: &OpRef) -> Option<&CallOp> {
        let call = self.call()?;
        let epoch_fits = op.epoch == self.agent.epoch || active(Fault::EpochCheckDropped);
        (epoch_fits && call.id == op.id && call.generation == op.generation).then_some(call)
    }

    /// The tool call that `op` names, if it still counts.
    pub(super) fn current_tool(&self, op: &OpRef) -> Result<Option<ToolOp>, SqlError> {
        if op.epoch != self.agent.epoch && !active(Fault::EpochCheckDropped) {
            return Ok(None);
        }
        Ok(self.tools()?.into_iter().find(|tool| tool.id == op.id && tool.generation == op.generation))
    }

    pub(super) fn op(&self, id: &str, generation: u32) -> OpRef {
        OpRef { epoch: self.agent.epoch, id: id.to_owned(), generation }
    }

    /// The tool calls of the round, in call order.
    pub(super) fn tools(&self) -> Result<Vec<ToolOp>, SqlError> {
        self.with_round(|round| round.ops.values().cloned().collect())
    }

    pub(super) fn save_tool(&self, tool: &ToolOp) -> Result<(), SqlError> {
        self.with_round(|round| {
            round.ops.insert(tool.position, tool.clone());
            round.changed.insert(tool.position);
        })
    }

    pub(super) fn delete_tool(&self, tool: &ToolOp) -> Result<(), SqlError> {
        self.with_round(|round| {
            round.ops.remove(&tool.position);
            round.changed.insert(tool.position);
        })
    }

    fn with_round<T>(&self, body: impl FnOnce(&mut Round) -> T) -> Result<T, SqlError> {
        let mut round = self.round.borrow_mut();
        if let Some(round) = round.as_mut() {
            return Ok(body(round));
        }
        let mut loaded = Round::default();
        for row in self.tx.query("SELECT state FROM work", &[])? {
            let tool: ToolOp = parse(row.text(0)?, "work.state")?;
            loaded.stored.insert(tool.position);
            loaded.ops.insert(tool.position, tool);
        }
        let value = body(&mut loaded);
        *round = Some(loaded);
        Ok(value)
    }

    /// Each row is written at most once a transaction, whatever became of it on the way.
    fn write_round(&self) -> Result<(), SqlError> {
        let Some(round) = self.round.borrow_mut().take() else { return Ok(()) };
        for position in &round.changed {
            match round.ops.get(position) {
                Some(tool) => self.tx.run(
                    "INSERT INTO work (position, state) VALUES (?1, ?2) \
                     ON CONFLICT (position) DO UPDATE SET state = excluded.state",
                    &[(*position).into(), to_json(tool)?.into()],
                )?,
                None if round.stored.contains(position) => {
                    self.tx.run("DELETE FROM work WHERE position = ?1", &[(*position).into()])?;
                }
                None => {}
            }
        }
        Ok(())
    }

    pub(super) fn hook_context(&self) -> HookContext {
        let Some(run) = self.agent.run.as_ref() else {
            return HookContext::default();
        };
        HookContext {
            run_id: run.id.clone(),
            tier: run.tier.clone(),
            provider: run.provider.clone(),
            call: run.calls.saturating_add(u32::from(matches!(run.phase, Phase::Call(_)))),
            resumed: self.resumed,
        }
    }
}

fn parse_or_default<T: serde::de::DeserializeOwned + Default>(text: &str, what: &str) -> Result<T, SqlError> {
    if text.is_empty() { Ok(T::default()) } else { parse(text, what) }
}

/// A command's refusal, or a storage error on the way to it.
pub(super) type CommandResult<T> = Result<T, ApiError>;
