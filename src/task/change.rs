//! The machine of one Change: the only writer of its Tasks, attempts and events.
//!
//! A Task that may begin gets an attempt and is *waking*: its agent is told by a wake through the queue and by this
//! object's own alarm, until the agent has committed the start. So a lost queue loses nothing, and a wake that comes twice
//! starts nothing twice. What D1 shows is told by versioned upserts that are owed until they are acknowledged.

use super::interface::{Command, Effect, Event, Output, Posted, Reply, Report, Told};
use super::rules::{Step, change_status, next_step};
use super::types::{Attempt, AttemptOutcome, ChangeStatus, Failure, Order, Task, TaskSpec, TaskStatus, Waking};
use super::view::{change_json, task_json};
use crate::error::{ApiError, Code};
use crate::graph::{self, Next, Node, Stand};
use crate::log::{self, event_json, parse, to_json};
use crate::port::{Random, SqlError, Tx, new_id};
use crate::sabotage::{Fault, active};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Tasks of one Change.
pub const TASKS_MAX: usize = 500;
/// The version of the tables this release writes.
pub const SCHEMA_VERSION: i64 = 1;

const TABLES: &[&str] = &[
    "CREATE TABLE change (one INTEGER PRIMARY KEY CHECK (one = 1), state TEXT NOT NULL) STRICT",
    "CREATE TABLE task (position INTEGER PRIMARY KEY, state TEXT NOT NULL) STRICT",
    "CREATE TABLE log (seq INTEGER PRIMARY KEY, first INTEGER NOT NULL, body TEXT, at_ms INTEGER NOT NULL) STRICT",
    "CREATE TABLE part (seq INTEGER NOT NULL, n INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (seq, n)) STRICT, WITHOUT ROWID",
    "CREATE TABLE schema_version (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL) STRICT",
    "INSERT INTO schema_version (one, version) VALUES (1, 1)",
];

/// Intervals of the machine, from the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How long the queue is given before the alarm carries a wake, and how long anything owed waits to be sent again, ms.
    pub resend_ms: i64,
    /// From the end of an attempt to the next, ms.
    pub retry_task_delay_ms: i64,
}

/// The row of `change`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct State {
    pub(super) id: String,
    pub(super) body_sha256: String,
    pub(super) title: String,
    pub(super) description: String,
    pub(super) created_ms: i64,
    pub(super) cancelled: bool,
    pub(super) begun: bool,
    pub(super) seq: i64,
    pub(super) alarm_ms: Option<i64>,
    /// What D1 has acknowledged.
    pub(super) synced: i64,
    /// When it is told again.
    pub(super) sync_due_ms: Option<i64>,
}

/// The machine of one Change.
#[derive(Debug, Clone, Copy)]
pub struct ChangeMachine {
    settings: Settings,
}

impl ChangeMachine {
    /// A machine with these intervals.
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// After start, eviction or panic: what is owed is sent again.
    pub fn open(&self, tx: &dyn Tx, now_ms: i64, random: &dyn Random) -> Result<Output, SqlError> {
        let Some(mut unit) = Unit::load(tx, self.settings, now_ms, random)? else { return Ok(Output::default()) };
        unit.send_owed(false);
        unit.close()
    }

    /// Carries out a command. An error changes nothing.
    pub fn command(
        &self,
        tx: &dyn Tx,
        command: &Command,
        now_ms: i64,
        random: &dyn Random,
    ) -> Result<(Reply, Output), ApiError> {
        let loaded = Unit::load(tx, self.settings, now_ms, random)?;
        if let Command::Create { posted } = command {
            return create(loaded, tx, self.settings, posted, now_ms, random);
        }
        let mut unit = loaded.ok_or_else(|| ApiError::new(Code::NotFound))?;
        unit.due()?;
        let reply = match command {
            Command::Create { .. } => Reply::Done,
            Command::Cancel => {
                unit.cancel();
                unit.change_reply(false)
            }
            Command::Unblock => {
                unit.unblock();
                unit.change_reply(false)
            }
            Command::Retry { task_id } => {
                unit.retry(task_id)?;
                unit.task_reply(task_id)?
            }
            Command::Look { task_id } => {
                unit.look(task_id);
                Reply::Done
            }
            Command::Report { report } => {
                unit.report(report)?;
                Reply::Done
            }
        };
        Ok((reply, unit.close()?))
    }

    /// Takes note of an event.
    pub fn event(&self, tx: &dyn Tx, event: &Event, now_ms: i64, random: &dyn Random) -> Result<Output, SqlError> {
        let Some(mut unit) = Unit::load(tx, self.settings, now_ms, random)? else { return Ok(Output::default()) };
        match event {
            Event::StartAnswered { task_id, attempt, refused } => {
                unit.start_answered(task_id, *attempt, refused.as_deref())?;
            }
            Event::StopAnswered { task_id, attempt } => {
                if let Some(task) = unit.running(task_id, *attempt) {
                    task.stopping = false;
                }
            }
            Event::Synced { upto } => {
                unit.state.synced = unit.state.synced.max(*upto);
                if unit.state.synced >= unit.state.seq {
                    unit.state.sync_due_ms = None;
                }
            }
            Event::AlarmFired => {
                unit.state.alarm_ms = None;
                unit.due()?;
            }
        }
        unit.close()
    }

    /// The Change as the API shows it; `None` when there is none.
    pub fn change(&self, tx: &dyn Tx) -> Result<Option<Value>, SqlError> {
        Ok(load(tx)?.map(|(state, tasks)| change_json(&state, &tasks)))
    }

    /// A Task as the API shows it.
    pub fn task(&self, tx: &dyn Tx, task_id: &str) -> Result<Option<Value>, SqlError> {
        let Some((state, tasks)) = load(tx)? else { return Ok(None) };
        Ok(tasks.values().find(|task| task.id == task_id).map(|task| task_json(&state, task)))
    }

    /// Events after `after`, about `limit` of them.
    pub fn events_after(&self, tx: &dyn Tx, after: i64, limit: usize) -> Result<log::Page, SqlError> {
        if load_state(tx)?.is_none() { Ok(log::Page::default()) } else { log::events_after(tx, after, limit) }
    }
}

fn create(
    loaded: Option<Unit<'_>>,
    tx: &dyn Tx,
    settings: Settings,
    posted: &Posted,
    now_ms: i64,
    random: &dyn Random,
) -> Result<(Reply, Output), ApiError> {
    if let Some(unit) = loaded {
        if unit.state.body_sha256 != posted.body_sha256 {
            let text = format!("the id {:?} was used with another body", posted.id);
            return Err(ApiError::because(Code::Conflict, text));
        }
        return Ok((unit.change_reply(false), Output::default()));
    }
    check(posted)?;
    for statement in TABLES {
        tx.run(statement, &[])?;
    }
    let state = State {
        id: posted.id.clone(),
        body_sha256: posted.body_sha256.clone(),
        title: posted.title.clone(),
        description: posted.description.clone(),
        created_ms: now_ms,
        ..State::default()
    };
    let mut unit = Unit::new(tx, settings, now_ms, random, state, BTreeMap::new());
    unit.log("change.created", None, json!({ "title": posted.title, "tasks": posted.tasks.len() }));
    for (position, spec) in posted.tasks.iter().enumerate() {
        let position = i64::try_from(position).unwrap_or(i64::MAX);
        unit.add(position, spec.clone());
    }
    unit.advance();
    Ok((unit.change_reply(true), unit.close()?))
}

fn check(posted: &Posted) -> Result<(), ApiError> {
    if posted.tasks.is_empty() || posted.tasks.len() > TASKS_MAX {
        let text = format!("a Change has 1 to {TASKS_MAX} Tasks");
        return Err(ApiError::because(Code::GraphInvalid, text));
    }
    let nodes: Vec<Node<'_>> = posted
        .tasks
        .iter()
        .map(|task| Node { key: &task.key, after: task.after.iter().map(String::as_str).collect() })
        .collect();
    graph::validate(&nodes).map_err(|flaw| ApiError::because(Code::GraphInvalid, flaw.to_string()))
}

fn load_state(tx: &dyn Tx) -> Result<Option<State>, SqlError> {
    match tx.query("SELECT state FROM change WHERE one = 1", &[]) {
        Ok(rows) => rows.first().map(|row| parse(row.text(0)?, "change.state")).transpose(),
        Err(error) if error.message.contains("no such table") => Ok(None),
        Err(error) => Err(error),
    }
}

/// The Change and its Tasks, by their place.
type Loaded = (State, BTreeMap<i64, Task>);

fn load(tx: &dyn Tx) -> Result<Option<Loaded>, SqlError> {
    let Some(state) = load_state(tx)? else { return Ok(None) };
    let rows = tx.query("SELECT state FROM task ORDER BY position", &[])?;
    let mut tasks = BTreeMap::new();
    for row in &rows {
        let task: Task = parse(row.text(0)?, "task.state")?;
        tasks.insert(task.position, task);
    }
    Ok(Some((state, tasks)))
}

/// One transaction of the machine.
struct Unit<'a> {
    tx: &'a dyn Tx,
    settings: Settings,
    now_ms: i64,
    random: &'a dyn Random,
    state: State,
    stored_state: State,
    tasks: BTreeMap<i64, Task>,
    stored_tasks: BTreeMap<i64, Task>,
    stored_status: ChangeStatus,
    events: Vec<Value>,
    effects: Vec<Effect>,
}

impl<'a> Unit<'a> {
    fn load(tx: &'a dyn Tx, settings: Settings, now_ms: i64, random: &'a dyn Random) -> Result<Option<Self>, SqlError> {
        Ok(load(tx)?.map(|(state, tasks)| Self::new(tx, settings, now_ms, random, state, tasks)))
    }

    fn new(
        tx: &'a dyn Tx,
        settings: Settings,
        now_ms: i64,
        random: &'a dyn Random,
        state: State,
        tasks: BTreeMap<i64, Task>,
    ) -> Self {
        let stored_status = status_of(&state, &tasks);
        Self {
            tx,
            settings,
            now_ms,
            random,
            stored_state: state.clone(),
            state,
            stored_tasks: tasks.clone(),
            tasks,
            stored_status,
            events: Vec::new(),
            effects: Vec::new(),
        }
    }

    fn log(&mut self, kind: &str, task_id: Option<&str>, data: Value) -> i64 {
        self.state.seq = self.state.seq.saturating_add(1);
        let fields = json!({ "task_id": task_id, "data": data });
        self.events.push(event_json(kind, self.state.seq, self.now_ms, fields));
        self.state.seq
    }

    fn add(&mut self, position: i64, spec: TaskSpec) {
        let id = new_id("task", self.now_ms, self.random);
        let task = Task {
            id,
            position,
            spec,
            status: TaskStatus::Pending,
            reason: None,
            intent: None,
            failure: None,
            attempts: Vec::new(),
            retry_due_ms: None,
            waking: None,
            stopping: false,
            version: 0,
        };
        self.tasks.insert(position, task);
    }

    fn position(&self, task_id: &str) -> Option<i64> {
        self.tasks.values().find(|task| task.id == task_id).map(|task| task.position)
    }

    /// The Task, when this is its attempt and it has not ended.
    fn running(&mut self, task_id: &str, attempt: u32) -> Option<&mut Task> {
        let position = self.position(task_id)?;
        let task = self.tasks.get_mut(&position)?;
        let current = task.attempts.last()?;
        (current.attempt == attempt && current.outcome.is_none()).then_some(task)
    }

    fn put_status(&mut self, position: i64, status: TaskStatus, reason: Option<String>) {
        let Some(task) = self.tasks.get_mut(&position) else { return };
        if task.status == status && task.reason == reason {
            return;
        }
        task.status = status;
        task.reason.clone_from(&reason);
        let (id, key) = (task.id.clone(), task.spec.key.clone());
        self.log("task.status", Some(&id), json!({ "key": key, "status": status, "reason": reason }));
    }

    /// Gives the Task its next attempt, which is owed to its agent from now on.
    fn begin(&mut self, position: i64) {
        let due_ms = self.now_ms.saturating_add(self.settings.resend_ms);
        let Some(task) = self.tasks.get_mut(&position) else { return };
        let attempt = u32::try_from(task.attempts.len()).unwrap_or(u32::MAX).saturating_add(1);
        task.attempts.push(Attempt::new(attempt));
        task.waking = Some(Waking { attempt, due_ms });
        task.retry_due_ms = None;
        task.failure = None;
        let task_id = task.id.clone();
        self.put_status(position, TaskStatus::Ready, None);
        self.effects.push(Effect::Wake { task_id });
    }

    /// Waiting Tasks whose time has come become ready, and those that cannot go on become blocked.
    fn advance(&mut self) {
        if self.state.cancelled {
            return;
        }
        let tasks = self.tasks.clone();
        let nodes: Vec<Node<'_>> = tasks
            .values()
            .map(|task| Node { key: &task.spec.key, after: task.spec.after.iter().map(String::as_str).collect() })
            .collect();
        let stands: BTreeMap<&str, Stand> = tasks.values().map(|task| (task.spec.key.as_str(), stand(task))).collect();
        let found = graph::next(&nodes, |key| stands.get(key).copied().unwrap_or(Stand::Stuck));
        for task in tasks.values().filter(|task| stand(task) == Stand::Waiting) {
            match found.get(&task.spec.key) {
                Some(Next::Ready) => self.begin(task.position),
                Some(Next::Blocked(key)) => {
                    self.put_status(task.position, TaskStatus::Blocked, Some(format!("{DEPENDENCY}{key}")));
                }
                _ => self.put_status(task.position, TaskStatus::Pending, None),
            }
        }
    }

    /// Carries the start that is owed for a Task.
    fn look(&mut self, task_id: &str) {
        let resend = self.now_ms.saturating_add(self.settings.resend_ms);
        let Some(position) = self.position(task_id) else { return };
        let Some(waking) = self.tasks.get(&position).and_then(|task| task.waking) else { return };
        let Some(order) = self.order(position, waking.attempt) else { return };
        if let Some(task) = self.tasks.get_mut(&position) {
            task.waking = Some(Waking { due_ms: resend, ..waking });
            let agent = task.agent();
            self.effects.push(Effect::Start { agent, order: Box::new(order) });
        }
        if active(Fault::WakeAcknowledgedBeforeStart)
            && let Some(task) = self.tasks.get_mut(&position)
        {
            task.waking = None;
        }
    }

    fn order(&self, position: i64, attempt: u32) -> Option<Order> {
        let task = self.tasks.get(&position)?;
        Some(Order {
            change_id: self.state.id.clone(),
            task_id: task.id.clone(),
            attempt,
            tier: task.spec.tier,
            prompt: self.prompt(task),
        })
    }

    /// What the model is told: the Task, its Change, and what those before it gave.
    fn prompt(&self, task: &Task) -> String {
        let before: Vec<Value> = self
            .tasks
            .values()
            .filter(|other| task.spec.after.contains(&other.spec.key))
            .map(|other| json!({ "key": other.spec.key, "title": other.spec.title, "intent": other.intent }))
            .collect();
        let earlier: Vec<Value> = task
            .attempts
            .iter()
            .filter_map(|attempt| {
                Some(json!({ "n": attempt.attempt, "outcome": attempt.outcome?, "detail": attempt.detail }))
            })
            .collect();
        let packet = json!({
            "change": { "id": self.state.id, "title": self.state.title, "description": self.state.description },
            "task": { "key": task.spec.key, "title": task.spec.title, "inputs": task.spec.inputs },
            "dependencies": before, "attempts": earlier,
        });
        format!(
            "{}\n\n{}\n\nContext, as JSON:\n{packet}\n\nWhen the Task is done, call complete_task. \
             If it cannot be done, call fail_task.",
            task.spec.title, task.spec.instructions
        )
    }

    fn start_answered(&mut self, task_id: &str, attempt: u32, refused: Option<&str>) -> Result<(), SqlError> {
        let Some(position) = self.position(task_id) else { return Ok(()) };
        let Some(task) = self.tasks.get_mut(&position) else { return Ok(()) };
        if task.waking.is_none_or(|waking| waking.attempt != attempt) {
            return Ok(());
        }
        task.waking = None;
        match refused {
            None => Ok(()),
            Some(reason) => self.ended(position, AttemptOutcome::Stopped, Some(reason.to_owned())),
        }
    }

    fn report(&mut self, report: &Report) -> Result<(), SqlError> {
        // One that is not the current attempt's, or repeats what is known, changes nothing: it is acknowledged all the same.
        let now_ms = self.now_ms;
        let Some(task) = self.running(&report.task_id, report.attempt) else { return Ok(()) };
        let position = task.position;
        // Whatever it tells, the agent has committed the start.
        task.waking = None;
        let Some(attempt) = task.attempts.last_mut() else { return Ok(()) };
        match &report.what {
            Told::Started { tier, provider, model } => {
                if attempt.started_ms.is_some() && !active(Fault::SecondStartAccepted) {
                    return Ok(());
                }
                attempt.tier = Some(tier.clone());
                attempt.provider = Some(provider.clone());
                attempt.model = Some(model.clone());
                attempt.started_ms = Some(now_ms);
                self.state.begun = true;
                self.log(
                    "attempt.started",
                    Some(&report.task_id),
                    json!({ "attempt": report.attempt, "tier": tier, "provider": provider, "model": model }),
                );
                self.put_status(position, TaskStatus::Running, None);
                Ok(())
            }
            Told::Ended { outcome, detail, intent, failure, calls, usage } => {
                attempt.calls = *calls;
                attempt.usage = usage.clone();
                task.intent.clone_from(intent);
                task.failure.clone_from(failure);
                self.ended(position, *outcome, detail.clone())
            }
        }
    }

    /// The attempt is over: what follows is decided here and nowhere else.
    fn ended(&mut self, position: i64, outcome: AttemptOutcome, detail: Option<String>) -> Result<(), SqlError> {
        let (now_ms, delay_ms) = (self.now_ms, self.settings.retry_task_delay_ms);
        let Some(task) = self.tasks.get_mut(&position) else { return Ok(()) };
        let id = task.id.clone();
        let Some(attempt) = task.attempts.last_mut() else { return Ok(()) };
        attempt.outcome = Some(outcome);
        attempt.detail.clone_from(&detail);
        attempt.ended_ms = Some(now_ms);
        let number = attempt.attempt;
        task.stopping = false;
        let outcomes: Vec<AttemptOutcome> = task.attempts.iter().filter_map(|attempt| attempt.outcome).collect();
        if outcome != AttemptOutcome::Completed && task.failure.is_none() {
            let reason = outcome.name().to_owned();
            task.failure = Some(Failure { reason, detail: detail.clone().unwrap_or_default() });
        }
        self.log("attempt.ended", Some(&id), json!({ "attempt": number, "outcome": outcome, "detail": detail }));
        match next_step(&outcomes) {
            None => {}
            Some(Step::Complete) => self.put_status(position, TaskStatus::Completed, None),
            Some(Step::Retry) if self.state.cancelled => self.put_status(position, TaskStatus::Stopped, None),
            Some(Step::Retry) => {
                if let Some(task) = self.tasks.get_mut(&position) {
                    task.retry_due_ms = Some(now_ms.saturating_add(delay_ms));
                }
                self.put_status(position, TaskStatus::Retrying, None);
            }
            Some(Step::Stop { status, replan }) => {
                let reason =
                    (status == TaskStatus::Blocked).then(|| detail.unwrap_or_else(|| outcome.name().to_owned()));
                self.put_status(position, status, reason);
                if replan {
                    self.log("task.replan.requested", Some(&id), json!({ "outcomes": outcomes }));
                }
            }
        }
        self.advance();
        Ok(())
    }

    fn cancel(&mut self) {
        if self.state.cancelled {
            return;
        }
        self.state.cancelled = true;
        for position in self.tasks.keys().copied().collect::<Vec<i64>>() {
            let Some(task) = self.tasks.get_mut(&position) else { continue };
            let started = task.attempts.last().is_some_and(|attempt| attempt.outcome.is_none());
            if started {
                // Its agent may have begun: it is told, and its report ends the attempt.
                task.stopping = true;
                task.waking = None;
                self.send_stop(position);
            } else if !task.at_rest() || is_dependency(task) {
                task.retry_due_ms = None;
                self.put_status(position, TaskStatus::Stopped, None);
            }
        }
    }

    fn send_stop(&mut self, position: i64) {
        let Some(task) = self.tasks.get(&position) else { return };
        let Some(attempt) = task.attempts.last().map(|attempt| attempt.attempt) else { return };
        self.effects.push(Effect::Stop { agent: task.agent(), task_id: task.id.clone(), attempt });
    }

    fn unblock(&mut self) {
        if self.state.cancelled {
            return;
        }
        for position in self.tasks.keys().copied().collect::<Vec<i64>>() {
            let Some(task) = self.tasks.get(&position) else { continue };
            let stuck = matches!(task.status, TaskStatus::Blocked | TaskStatus::BudgetBlocked);
            if stuck && !is_dependency(task) {
                self.begin(position);
            }
        }
        self.advance();
    }

    fn retry(&mut self, task_id: &str) -> Result<(), ApiError> {
        let position = self.position(task_id).ok_or_else(|| ApiError::new(Code::NotFound))?;
        let Some(task) = self.tasks.get(&position) else { return Err(ApiError::new(Code::NotFound)) };
        if self.state.cancelled {
            return Err(ApiError::because(Code::Conflict, "the Change is cancelled"));
        }
        let may = matches!(
            task.status,
            TaskStatus::Failed | TaskStatus::Stopped | TaskStatus::Blocked | TaskStatus::BudgetBlocked
        );
        if !may || is_dependency(task) {
            let text = format!(
                "the Task is {}; only one that failed, was stopped or is blocked by itself is tried again",
                task.status.name()
            );
            return Err(ApiError::because(Code::Conflict, text));
        }
        self.begin(position);
        self.advance();
        Ok(())
    }

    /// Does what is due, and sends again what is owed.
    fn due(&mut self) -> Result<(), SqlError> {
        let now_ms = self.now_ms;
        for position in self.tasks.keys().copied().collect::<Vec<i64>>() {
            let Some(task) = self.tasks.get_mut(&position) else { continue };
            if task.retry_due_ms.is_some_and(|due| due <= now_ms) {
                task.retry_due_ms = None;
                self.begin(position);
            }
        }
        self.send_owed(true);
        Ok(())
    }

    /// Starts, stops and rows that nobody has acknowledged. `due_only` when only those whose time has come.
    fn send_owed(&mut self, due_only: bool) {
        let now_ms = self.now_ms;
        let waking: Vec<String> = self
            .tasks
            .values()
            .filter(|task| task.waking.is_some_and(|waking| !due_only || waking.due_ms <= now_ms))
            .map(|task| task.id.clone())
            .collect();
        for task_id in waking {
            self.look(&task_id);
        }
        let stopping: Vec<i64> = self.tasks.values().filter(|task| task.stopping).map(|task| task.position).collect();
        for position in stopping {
            self.send_stop(position);
        }
        let owed = self.state.synced < self.state.seq;
        if owed && (!due_only || self.state.sync_due_ms.is_none_or(|due| due <= now_ms)) {
            self.send_rows();
        }
    }

    fn send_rows(&mut self) {
        self.state.sync_due_ms = Some(self.now_ms.saturating_add(self.settings.resend_ms));
        let since = self.state.synced;
        let tasks: Vec<Value> = self
            .tasks
            .values()
            .filter(|task| task.version > since)
            .map(|task| json!({ "id": task.id, "key": task.spec.key, "title": task.spec.title, "status": task.status, "agent_id": task.agent(), "version": task.version }))
            .collect();
        let change = json!({
            "id": self.state.id, "title": self.state.title, "status": status_of(&self.state, &self.tasks),
            "created_ms": self.state.created_ms, "version": self.state.seq,
        });
        self.effects.push(Effect::Sync { upto: self.state.seq, change, tasks });
    }

    fn wake_at(&self) -> Option<i64> {
        let resend = self.now_ms.saturating_add(self.settings.resend_ms);
        let tasks = self.tasks.values().flat_map(|task| {
            [task.retry_due_ms, task.waking.map(|waking| waking.due_ms), task.stopping.then_some(resend)]
        });
        let rows = (self.state.synced < self.state.seq).then_some(self.state.sync_due_ms.unwrap_or(resend));
        tasks.chain([rows]).flatten().min()
    }

    fn close(mut self) -> Result<Output, SqlError> {
        let status = status_of(&self.state, &self.tasks);
        if status != self.stored_status || (self.stored_state.seq == 0 && self.state.seq > 0) {
            self.log("change.status", None, json!({ "status": status }));
        }
        let changed: BTreeSet<i64> = self
            .tasks
            .iter()
            .filter(|(position, task)| self.stored_tasks.get(*position) != Some(*task))
            .map(|(position, _)| *position)
            .collect();
        let visible = self.state.seq > self.stored_state.seq;
        for position in &changed {
            if let Some(task) = self.tasks.get_mut(position)
                && visible
            {
                task.version = self.state.seq;
            }
        }
        if visible {
            self.send_rows();
            log::append(self.tx, self.state.seq, &self.events, self.now_ms)?;
        }
        self.place_alarm()?;
        for position in &changed {
            if let Some(task) = self.tasks.get(position) {
                self.tx.run(
                    "INSERT INTO task (position, state) VALUES (?1, ?2) \
                     ON CONFLICT (position) DO UPDATE SET state = excluded.state",
                    &[(*position).into(), to_json(task)?.into()],
                )?;
            }
        }
        if self.state != self.stored_state {
            self.tx.run(
                "INSERT INTO change (one, state) VALUES (1, ?1) ON CONFLICT (one) DO UPDATE SET state = excluded.state",
                &[to_json(&self.state)?.into()],
            )?;
        }
        Ok(Output { effects: self.effects, events: self.events })
    }

    fn place_alarm(&mut self) -> Result<(), SqlError> {
        let wanted = self.wake_at();
        let keep = match (self.state.alarm_ms, wanted) {
            (None, None) => true,
            (Some(standing), Some(wanted)) => standing <= wanted && standing > self.now_ms,
            _ => false,
        };
        if !keep {
            self.state.alarm_ms = wanted;
            self.tx.set_alarm(wanted)?;
        }
        Ok(())
    }

    fn change_reply(&self, created: bool) -> Reply {
        Reply::Change { change: change_json(&self.state, &self.tasks), created }
    }

    fn task_reply(&self, task_id: &str) -> Result<Reply, ApiError> {
        let task = self.tasks.values().find(|task| task.id == task_id).ok_or_else(|| ApiError::new(Code::NotFound))?;
        Ok(Reply::Task(task_json(&self.state, task)))
    }
}

/// The prefix of the reason of a Task that waits for one that cannot go on.
const DEPENDENCY: &str = "dependency:";

fn is_dependency(task: &Task) -> bool {
    task.status == TaskStatus::Blocked && task.reason.as_ref().is_some_and(|reason| reason.starts_with(DEPENDENCY))
}

fn stand(task: &Task) -> Stand {
    match task.status {
        TaskStatus::Pending => Stand::Waiting,
        TaskStatus::Blocked if is_dependency(task) => Stand::Waiting,
        TaskStatus::Ready | TaskStatus::Running | TaskStatus::Retrying => Stand::Active,
        TaskStatus::Completed => Stand::Done,
        TaskStatus::Failed | TaskStatus::Stopped | TaskStatus::Blocked | TaskStatus::BudgetBlocked => Stand::Stuck,
    }
}

pub(super) fn status_of(state: &State, tasks: &BTreeMap<i64, Task>) -> ChangeStatus {
    let statuses: Vec<TaskStatus> = tasks.values().map(|task| task.status).collect();
    change_status(state.cancelled, state.begun, &statuses)
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
#[path = "change_tests.rs"]
mod tests;
