//! One scenario: an object with its storage, its alarm and its instances, and a driver over the machine that performs
//! effects by putting their answers on a queue in virtual time. It decides nothing, like the real one.

use crate::coverage::Coverage;
use crate::faults::{Kind, Lateness, Plan};
use crate::invariants::{Books, Check, Seen, Stored, Violation, broken, read, require};
use crate::manners::{GateManner, HookManner, Manner, Manners, Reach, below};
use crate::model::{Part, PlainWire, after_abort, answer, inputs_of, read_request};
use crate::script::Script;
use crate::tools;
use agentdo::agent::state::{AgentConfig, CallStep, Phase, ToolResult, ToolStep};
use agentdo::agent::{
    Catalog, Command, Effect, Event, GateAnswer, HookCall, HookReport, Machine, ModelRequest, OpRef, Output, Reply,
    SchemaState, Settings, Target, Verdict, Wire, World as Given,
};
use agentdo::error::{ApiError, Code};
use agentdo::model::{Delta, Failure, FailureKind, Outcome};
use agentdo::platform::host::{HostStorage, SeededRandom};
use agentdo::port::{Row, SqlError, Storage, Tx, Value};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

const BEGIN_MS: i64 = 1_750_000_000_000;
const AHEAD_MS: i64 = 30_000;
const STOP_GRACE_MS: i64 = 5_000;
/// Hooks that take longer are pending.
const PENDING_AFTER_MS: i64 = 5_000;
/// The platform tries a failed alarm handler again after 2 s, then twice as long each time, and drops it after six.
const ALARM_RETRY_MS: i64 = 2_000;
const ALARM_TRIES_MAX: u32 = 6;
const STEPS_MAX: u64 = 6_000;
const VIRTUAL_MS_MAX: i64 = 400 * 3_600_000;

enum Item {
    Answer { instance: u64, event: Box<Event> },
    Client(usize),
}

/// What became of a transaction.
enum Ran<T> {
    Done(T),
    Died,
}

/// How a scenario went.
#[derive(Debug, Default, Clone)]
pub struct Shape {
    /// Effects of each transaction, in order: where faults can be put.
    pub effects: Vec<(u64, u64)>,
    pub parked_once: Option<String>,
    pub status: String,
    pub last_reasons: Vec<String>,
    pub tool_executions: usize,
}

/// A world.
pub struct World<'a> {
    manners: &'a Manners,
    script: &'a Script,
    plan: &'a Plan,
    coverage: &'a mut Coverage,
    trace: bool,
    now_ms: i64,
    storage: HostStorage,
    ids: SeededRandom,
    chance: SeededRandom,
    machine: Option<Rc<Machine>>,
    instance: u64,
    queue: BTreeMap<(i64, u64), Item>,
    order: u64,
    /// Answers of dead instances and ended operations that will come at a bad moment.
    limbo: Vec<Event>,
    next_step: usize,
    step_pending: bool,
    transactions: u64,
    effects: u64,
    again_left: u32,
    asked_hooks: usize,
    asked_tool_hooks: usize,
    asked_gates: usize,
    asked_credentials: usize,
    asked_model: usize,
    aborted: usize,
    next_call: u64,
    alarm_fires: Option<(i64, i64)>,
    alarm_tries: u32,
    alarm_retry_at: Option<i64>,
    deaths: u32,
    books: Books,
    stored: Stored,
    shape: Shape,
}

/// Storage in memory that keeps its prepared statements: most of a scenario's time would go into preparing them.
fn fresh_storage() -> HostStorage {
    let connection = rusqlite::Connection::open_in_memory().unwrap();
    connection.set_prepared_statement_cache_capacity(256);
    HostStorage::over(connection)
}

fn settings(models: bool) -> Settings {
    let target = |tier: &str| Target {
        provider: "openrouter".to_owned(),
        tier: tier.to_owned(),
        models: vec![format!("model-{tier}")],
        context_tokens: 100_000,
        max_output_tokens: 1_000,
        ..Target::default()
    };
    Settings {
        defaults: AgentConfig { tier: "haiku".to_owned(), ..AgentConfig::default() },
        provider: "openrouter".to_owned(),
        alarm_ahead_ms: AHEAD_MS,
        stop_grace_ms: STOP_GRACE_MS,
        retry_base_ms: 1_000,
        retry_max_ms: 30_000,
        retry_wait_max_ms: 120_000,
        retries_max: 3,
        tool_timeout_ms: 60_000,
        calls_max: [20, 20, 20],
        targets: if models { vec![target("haiku"), target("sonnet")] } else { Vec::new() },
    }
}

impl<'a> World<'a> {
    pub fn new(
        script: &'a Script,
        manners: &'a Manners,
        plan: &'a Plan,
        coverage: &'a mut Coverage,
        trace: bool,
    ) -> Self {
        Self {
            manners,
            script,
            plan,
            coverage,
            trace,
            now_ms: BEGIN_MS,
            storage: fresh_storage(),
            ids: SeededRandom::new(plan.seed),
            chance: SeededRandom::new(plan.seed ^ 0x5eed),
            machine: None,
            instance: 0,
            queue: BTreeMap::new(),
            order: 0,
            limbo: Vec::new(),
            next_step: 0,
            step_pending: false,
            transactions: 0,
            effects: 0,
            again_left: plan.again.as_ref().map_or(0, |again| again.times),
            asked_hooks: 0,
            asked_tool_hooks: 0,
            asked_gates: 0,
            asked_credentials: 0,
            asked_model: 0,
            aborted: 0,
            next_call: 0,
            alarm_fires: None,
            alarm_tries: 0,
            alarm_retry_at: None,
            deaths: 0,
            books: Books::default(),
            stored: Stored::default(),
            shape: Shape::default(),
        }
    }

    /// Runs until nothing is going on any more.
    pub fn run(mut self) -> (u64, Result<Shape, Violation>) {
        let outcome = self.run_to_rest();
        self.coverage.scenarios += 1;
        self.coverage.transactions += self.transactions;
        let shape = std::mem::take(&mut self.shape);
        (self.transactions, outcome.map(|()| shape))
    }

    fn run_to_rest(&mut self) -> Check {
        let mut steps = 0u64;
        loop {
            steps += 1;
            let within = steps < STEPS_MAX && self.now_ms - BEGIN_MS < VIRTUAL_MS_MAX;
            require(within, "every run finishes from the alarm alone", || {
                format!("after {steps} steps, {} ms: {:?}", self.now_ms - BEGIN_MS, self.stored.agent)
            })?;
            self.clients_look(false);
            self.limbo_speaks()?;
            let alarm = self.next_alarm();
            let first = self.queue.keys().next().copied();
            match (first, alarm) {
                (None, None) => {
                    self.clients_look(true);
                    if self.queue.is_empty() {
                        break;
                    }
                }
                (Some((at_ms, order)), alarm) if alarm.is_none_or(|alarm| at_ms < alarm) => {
                    self.now_ms = self.now_ms.max(at_ms);
                    match self.queue.remove(&(at_ms, order)) {
                        Some(Item::Answer { instance, event }) => self.deliver(instance, *event)?,
                        Some(Item::Client(step)) => self.client(step)?,
                        None => {}
                    }
                    if self.plan.stray_alarms && self.machine.is_some() && self.chance.below(6) == 0 {
                        self.feed(&Event::AlarmFired)?;
                    }
                }
                (_, Some(at_ms)) => {
                    self.now_ms = self.now_ms.max(at_ms);
                    self.fire_alarm()?;
                }
                (Some(_), None) => {}
            }
            self.overdue()?;
        }
        self.shape.status = self.stored.agent.status().to_owned();
        self.shape.last_reasons = self
            .books
            .log
            .iter()
            .filter(|event| event["type"] == "submission")
            .map(|event| event["reason"].as_str().unwrap_or("done").to_owned())
            .collect();
        let all_suffixes = self.plan.faults.is_empty();
        self.books.at_the_end(&self.storage, &self.stored, all_suffixes)
    }

    /// A stop is over within its grace. Only a death, or an alarm that is late, makes it longer.
    fn overdue(&self) -> Check {
        let Some(ending) = self.stored.agent.ending.as_ref() else { return Ok(()) };
        let late_ms = match self.plan.lateness {
            Lateness::Never => 0,
            Lateness::Ms(ms) => ms,
            Lateness::Random => 20_000_000,
        };
        let slack_ms = late_ms + i64::from(self.deaths) * 130_000;
        require(self.now_ms <= ending.due_ms + slack_ms, "a stop ends within its grace", || {
            format!("{} ms over", self.now_ms - ending.due_ms)
        })
    }

    // ---- the platform ----

    fn next_alarm(&mut self) -> Option<i64> {
        let alarm = self.storage.alarm()?;
        if let Some((known, fires)) = self.alarm_fires
            && known == alarm
        {
            return Some(fires);
        }
        let late_ms = match self.plan.lateness {
            Lateness::Never => 0,
            Lateness::Ms(ms) => ms,
            Lateness::Random => [0, 700, 40_000, 10_000_000][self.chance.below(4)],
        };
        let fires = alarm.max(self.now_ms) + late_ms;
        self.alarm_fires = Some((alarm, fires));
        Some(fires)
    }

    /// The platform takes the alarm off and calls the handler; one that dies is called again, six times.
    fn fire_alarm(&mut self) -> Check {
        self.storage.put_alarm(None);
        self.alarm_fires = None;
        let handled = self.wake()? && self.feed(&Event::AlarmFired)?;
        if handled {
            self.alarm_tries = 0;
            if self.plan.stray_alarms && self.machine.is_some() {
                self.feed(&Event::AlarmFired)?;
            }
            return Ok(());
        }
        if self.storage.alarm().is_none() && self.alarm_tries < ALARM_TRIES_MAX {
            let at_ms = self.now_ms + (ALARM_RETRY_MS << self.alarm_tries);
            self.alarm_tries += 1;
            self.storage.put_alarm(Some(at_ms));
            self.alarm_retry_at = Some(at_ms);
        }
        Ok(())
    }

    /// An instance, if there is none: it looks at what is stored. False when it died of that.
    fn wake(&mut self) -> Check<bool> {
        if self.machine.is_some() {
            return Ok(true);
        }
        let models = self.plan.models_gone_from.is_none_or(|from| self.instance < from);
        let catalog = Catalog {
            tools: tools::registered(),
            handles_before_agent_request: self.manners.handles_before_agent_request,
            handles_tool_call: self.manners.handles_tool_call,
            gates: self.manners.gates.iter().map(|name| (*name).to_owned()).collect(),
        };
        let wire: Rc<dyn Wire> = Rc::new(PlainWire);
        let wires = vec![("openrouter".to_owned(), wire)];
        let machine = Rc::new(Machine::new(settings(models), catalog, wires, Rc::new(tools::check_arguments)));
        self.machine = Some(Rc::clone(&machine));
        let opened = self.transact("open", |tx, given| machine.open(tx, given))?;
        match opened {
            Ran::Died => Ok(false),
            Ran::Done(Err(error)) => self.died_of(&error),
            Ran::Done(Ok((state, output))) => {
                require(state == SchemaState::Ready, "the schema fits", || format!("{state:?}"))?;
                self.perform("open", output)
            }
        }
    }

    /// A storage error while an event is fed kills the driver, and with it the instance.
    fn died_of(&mut self, error: &SqlError) -> Check<bool> {
        let injected = error.message.contains("injected");
        require(injected, "no transaction fails by itself", || error.to_string())?;
        self.die(Kind::StorageError, "");
        Ok(false)
    }

    /// One transaction, with the fault that the plan has for it.
    fn transact<T: HasOutput, E: From<SqlError> + std::fmt::Debug>(
        &mut self,
        label: &'static str,
        mut body: impl FnMut(&dyn Tx, Given<'_>) -> Result<T, E>,
    ) -> Check<Ran<Result<T, E>>> {
        self.transactions += 1;
        let fault = self.plan.fault_at_transaction(self.transactions);
        let before = fault == Some(Kind::BeforeCommit) || self.again(Kind::BeforeCommit, label);
        let fail_at = match fault {
            Some(Kind::StorageError) => Some(1 + self.chance.below(6)),
            _ => None,
        };
        let given = Given { now_ms: self.now_ms, random: &self.ids };
        let mut outcome: Option<Result<T, E>> = None;
        let failed = Cell::new(false);
        let committed = self.storage.transact(&mut |tx| {
            let failing = Failing { inner: tx, left: Cell::new(fail_at.unwrap_or(usize::MAX)), failed: &failed };
            let ran = body(if fail_at.is_some() { &failing } else { tx }, given);
            let keep = ran.is_ok() && !before;
            outcome = Some(ran);
            if keep { Ok(()) } else { Err(SqlError::new("rolled back")) }
        });
        if self.trace {
            let at = self.now_ms - BEGIN_MS;
            let fate = if before { " DIES BEFORE COMMIT" } else { "" };
            eprintln!("{at:>9} ms  tx {} {label}{fate} {:?}", self.transactions, outcome.as_ref().map(Result::is_ok));
        }
        if before {
            self.die(Kind::BeforeCommit, label);
            return Ok(Ran::Died);
        }
        let Some(outcome) = outcome else {
            return broken("no transaction fails by itself", format!("{committed:?}"));
        };
        if failed.get() {
            self.coverage.storage_errors += 1;
            require(outcome.is_err(), "a storage error is not swallowed", || label.to_owned())?;
        }
        let Ok(value) = outcome else { return Ok(Ran::Done(outcome)) };
        self.committed(value.output(), label)?;
        if fault == Some(Kind::AfterCommit) || self.again(Kind::AfterCommit, label) {
            self.die(Kind::AfterCommit, label);
            self.check_between()?;
            return Ok(Ran::Died);
        }
        if let Some(alarm) = value.output().late_alarm {
            self.storage.put_alarm(alarm);
        }
        self.check_between()?;
        Ok(Ran::Done(Ok(value)))
    }

    /// Whether the plan's crash loop strikes here once more.
    fn again(&mut self, kind: Kind, label: &str) -> bool {
        let strikes = self.again_left > 0
            && self.plan.again.as_ref().is_some_and(|again| again.kind == kind && again.label == label);
        self.again_left -= u32::from(strikes);
        strikes
    }

    fn committed(&mut self, output: &Output, label: &str) -> Check {
        self.look();
        let known = self.books.log.len();
        let (stored, events) = read(&self.storage, i64::try_from(known).unwrap_or(0));
        self.stored = stored;
        require(output.events == events, "what is shown is what is committed", || {
            format!("{label}: shown {:?}, committed {events:?}", output.events)
        })?;
        if self.trace {
            for event in &events {
                eprintln!("{:>14} {event}", "");
            }
        }
        self.books.note(&self.stored, events)?;
        self.look();
        Ok(())
    }

    fn check_between(&mut self) -> Check {
        let alarm = self.storage.alarm();
        let tried_again = alarm.is_some() && alarm == self.alarm_retry_at;
        if tried_again {
            return Ok(());
        }
        self.books.at_rest_between(&self.stored, alarm, self.now_ms, AHEAD_MS)
    }

    /// For the coverage table.
    fn look(&mut self) {
        let agent = &self.stored.agent;
        self.coverage.seen("status", agent.status());
        if agent.ending.is_some() {
            self.coverage.seen("step", "Ending");
        }
        for parked in agent.run.iter().filter_map(|run| run.parked.as_ref()).chain(&agent.parked) {
            self.coverage.seen_parked(&parked.reason);
            self.shape.parked_once = Some(parked.reason.clone());
        }
        if let Some(step) = self.stored.step() {
            let name = match step {
                CallStep::Hooks => "Hooks",
                CallStep::Gate(_) => "Gate",
                CallStep::GateWait(_) => "GateWait",
                CallStep::Authorize => "Authorize",
                CallStep::Dispatched => "Dispatched",
                CallStep::Backoff => "Backoff",
                CallStep::Ended => "Ended",
            };
            self.coverage.seen("step", name);
        }
        for tool in &self.stored.tools {
            let name = match tool.step {
                ToolStep::Queued => "Tool Queued",
                ToolStep::Hooks => "Tool Hooks",
                ToolStep::Started => "Tool Started",
                ToolStep::Done => "Tool Done",
            };
            self.coverage.seen("step", name);
        }
    }

    fn die(&mut self, kind: Kind, label: &str) {
        for row in rows(&self.stored, label, kind) {
            self.coverage.died(row, kind);
        }
        if self.trace {
            eprintln!("{:>14} the instance dies ({kind:?})", "");
        }
        self.books.died(&self.stored);
        self.deaths += 1;
        self.machine = None;
        self.instance += 1;
        let dead = std::mem::take(&mut self.queue);
        for (key, item) in dead {
            match item {
                Item::Client(_) => {
                    self.queue.insert(key, item);
                }
                Item::Answer { event, .. } if self.plan.late_answers => self.limbo.push(*event),
                Item::Answer { .. } => {}
            }
        }
    }

    // ---- the driver ----

    fn schedule(&mut self, after_ms: i64, item: Item) {
        self.order += 1;
        self.queue.insert((self.now_ms + after_ms, self.order), item);
    }

    fn answer_in(&mut self, after_ms: i64, event: Event) {
        let instance = self.instance;
        self.schedule(after_ms, Item::Answer { instance, event: Box::new(event) });
    }

    fn deliver(&mut self, instance: u64, event: Event) -> Check {
        if instance != self.instance {
            return Ok(());
        }
        match op_of(&event) {
            Some(op) if op.epoch < self.stored.agent.epoch => self.feed_late(&event),
            _ => self.feed(&event).map(|_| ()),
        }
    }

    /// Late answers come when an instance is at work, and best of all just after it asked the same thing again.
    fn limbo_speaks(&mut self) -> Check {
        while self.machine.is_some() && !self.limbo.is_empty() && self.chance.below(3) == 0 {
            let index = self.chance.below(self.limbo.len());
            let event = self.limbo.swap_remove(index);
            self.feed_late(&event)?;
        }
        Ok(())
    }

    fn feed_late(&mut self, event: &Event) -> Check {
        self.coverage.stale_events += 1;
        let stale = op_of(event).is_some_and(|op| op.epoch < self.stored.agent.epoch);
        let before = stale.then(|| self.storage_text());
        if self.feed(event)? && stale {
            let after = self.storage_text();
            require(before.as_deref() == Some(&*after), "an event of an older instance changes nothing", || {
                format!("{event:?}")
            })?;
        }
        Ok(())
    }

    fn storage_text(&self) -> String {
        let mut text = String::new();
        let sql =
            ["SELECT state FROM agent", "SELECT state FROM work ORDER BY position", "SELECT COUNT(*) || '' FROM chunk"];
        let read = self.storage.transact(&mut |tx| {
            for sql in sql {
                for row in tx.query(sql, &[])? {
                    text.push_str(row.text(0)?);
                }
            }
            Ok(())
        });
        read.unwrap();
        text
    }

    /// Feeds an event to the living instance; false when that killed it.
    fn feed(&mut self, event: &Event) -> Check<bool> {
        let Some(machine) = self.machine.clone() else { return Ok(false) };
        let label = event_label(event);
        self.coverage.seen("event", label);
        self.overheard(event);
        let ran = self.transact(label, |tx, given| machine.event(tx, event, given))?;
        match ran {
            Ran::Died => Ok(false),
            Ran::Done(Err(error)) => self.died_of(&error),
            Ran::Done(Ok(output)) => self.perform(label, output),
        }
    }

    /// What the world outside knows by an answer.
    fn overheard(&mut self, event: &Event) {
        match event {
            Event::HooksAnswered { op, .. } => {
                self.books.hooks_answered.insert((op.id.clone(), op.generation));
            }
            Event::ToolEnded { op, .. } => self.books.tool_over(&op.id),
            _ => {}
        }
    }

    /// Performs effects in order; false when the instance died on the way.
    fn perform(&mut self, label: &'static str, output: Output) -> Check<bool> {
        let transaction = self.transactions;
        self.shape.effects.push((transaction, u64::try_from(output.effects.len()).unwrap_or(0)));
        for effect in output.effects {
            self.effects += 1;
            let name = effect_label(&effect);
            self.coverage.seen("effect", name);
            if self.trace {
                eprintln!("{:>14} effect {} {name} {:?}", "", self.effects, effect_op(&effect));
            }
            self.perform_one(effect)?;
            if self.plan.fault_at_effect(self.effects) || self.again(Kind::AfterEffect, name) {
                self.die(Kind::AfterEffect, label);
                self.check_between()?;
                return Ok(false);
            }
        }
        self.books.nothing_unsent()?;
        let waiting = self.plan.fault_at_transaction(transaction) == Some(Kind::Waiting);
        if waiting || self.again(Kind::Waiting, label) {
            self.die(Kind::Waiting, label);
            self.check_between()?;
            return Ok(false);
        }
        Ok(true)
    }

    fn perform_one(&mut self, effect: Effect) -> Check {
        match effect {
            Effect::AskHooks { op, hook: HookCall::BeforeAgentRequest, .. } => {
                let manner = next(&self.manners.hooks, &mut self.asked_hooks);
                self.hook(op, manner.unwrap_or(HookManner::After(15)), None);
                self.rush_late_answers();
            }
            Effect::AskHooks { op, hook: HookCall::ToolCall { input, .. }, .. } => {
                let manner = next(&self.manners.tool_hooks, &mut self.asked_tool_hooks);
                self.hook(op, manner.unwrap_or(HookManner::After(15)), Some(input));
                self.rush_late_answers();
            }
            Effect::AskGate { op, name } => {
                let asked = name.clone();
                let manner = next(&self.manners.gate_answers, &mut self.asked_gates).unwrap_or(GateManner::Go);
                let went = &mut self.books.gates_went;
                went.remove(&(name.clone(), op.id.clone()));
                let answer = match manner {
                    GateManner::Go => {
                        went.insert((name, op.id.clone()));
                        GateAnswer::Go
                    }
                    GateManner::WaitMs(ms) => GateAnswer::Wait(self.now_ms + 10 + ms),
                    GateManner::No => GateAnswer::No("the gate says no".to_owned()),
                };
                self.answer_in(10, Event::GateAnswered { op, name: asked, answer });
            }
            Effect::Authorize { op, .. } => {
                let refused = self.manners.credentials_refused.contains(&self.asked_credentials);
                let takes = next(&self.manners.credentials_ms, &mut self.asked_credentials).unwrap_or(20);
                let refused = refused.then(|| Failure::new(FailureKind::Transient, "no token"));
                self.answer_in(takes, Event::Authorized { op, refused });
            }
            Effect::CallModel { op, request } => self.call_model(op, &request)?,
            Effect::RunTool { op, name, arguments, tool_call_id, .. } => {
                let resource =
                    tools::registered().into_iter().find(|tool| tool.name == name).and_then(|tool| tool.resource);
                let hooks = self.manners.handles_tool_call;
                self.books.tool(&op, &tool_call_id, &name, resource.as_deref(), hooks)?;
                let of = arguments.get("of").and_then(serde_json::Value::as_str);
                require(of == Some(&*tool_call_id), "a tool gets the arguments of its call", || arguments.to_string())?;
                self.shape.tool_executions += 1;
                let takes = tools::takes_ms(&name, below(&self.chance, 1_000));
                self.answer_in(takes, Event::ToolEnded { op, result: tools::result(&name) });
            }
            Effect::Index(row) => {
                let (known, ..) = self.books.index;
                if row.version >= known {
                    self.books.index = (row.version, row.status, row.due_ms);
                }
                self.answer_in(15, Event::Indexed { version: row.version });
            }
            Effect::Abort { op } => self.abort(&op),
        }
        Ok(())
    }

    fn hook(&mut self, op: OpRef, manner: HookManner, input: Option<serde_json::Value>) {
        self.books.hooks_asked.insert(op.id.clone(), op.generation);
        let mut verdict = Verdict::default();
        let mut takes = 15;
        match manner {
            HookManner::After(ms) => takes = ms,
            HookManner::Fails => verdict.reports.push(HookReport {
                namespace: "test".to_owned(),
                event: "some_hook".to_owned(),
                message: "it threw".to_owned(),
            }),
            HookManner::Blocks => verdict.block = input.as_ref().map(|_| "not this one".to_owned()),
            HookManner::Changes => {
                verdict.input = input.map(|mut input| {
                    input["changed"] = json!(true);
                    input
                });
            }
        }
        if takes >= PENDING_AFTER_MS {
            self.answer_in(PENDING_AFTER_MS, Event::HooksPending { op: op.clone() });
        }
        self.answer_in(takes, Event::HooksAnswered { op, verdict });
    }

    /// The worst moment for a late answer is when the same question has just been asked again.
    fn rush_late_answers(&mut self) {
        for event in std::mem::take(&mut self.limbo) {
            if self.chance.below(4) == 0 {
                self.limbo.push(event);
            } else {
                self.answer_in(1, event);
            }
        }
    }

    fn call_model(&mut self, op: OpRef, request: &ModelRequest) -> Check {
        let hooks = self.manners.handles_before_agent_request;
        self.books.request(&op, &request.run_id, &self.manners.gates, hooks)?;
        let messages = read_request(&request.body);
        let messages =
            messages.or_else(|detail| broken("every request is valid", format!("{detail}: {}", request.body)))?;
        self.books.requests.push(Seen { run_id: request.run_id.clone(), inputs: inputs_of(&messages) });
        let manner = next(&self.manners.model, &mut self.asked_model).unwrap_or(Manner::Well);
        let target = settings(true).targets.into_iter().find(|target| target.tier == request.tier).unwrap_or_default();
        let bytes = u64::try_from(request.body.len()).unwrap_or(0);
        let fold = |deltas: &[Delta]| PlainWire.fold(deltas, &target, bytes);
        let parts = answer(&messages, manner, &mut self.next_call, &fold);
        let mut at_ms = 0;
        for (delay_ms, part) in parts {
            at_ms += delay_ms;
            let op = op.clone();
            let event = match part {
                Part::Batch(deltas) => Event::StreamBatch { op, deltas },
                Part::End(outcome) => Event::ModelEnded { op, outcome },
            };
            self.answer_in(at_ms, event);
        }
        Ok(())
    }

    fn abort(&mut self, op: &OpRef) {
        let reach = next(&self.manners.reach, &mut self.aborted).unwrap_or(Reach::Obeys);
        self.books.tool_over(&op.id);
        let keys: Vec<(i64, u64)> = self
            .queue
            .iter()
            .filter(|(_, item)| matches!(item, Item::Answer { event, .. } if op_of(event) == Some(op)))
            .map(|(key, _)| *key)
            .collect();
        let mut dispatched = false;
        for key in keys {
            let Some(Item::Answer { event, .. }) = self.queue.remove(&key) else { continue };
            let event = *event;
            dispatched |= matches!(event, Event::ModelEnded { .. } | Event::ToolEnded { .. });
            match (&reach, &event) {
                // What ignores its signal answers after the grace, or at a worse moment.
                (Reach::Ignores, Event::ModelEnded { .. } | Event::ToolEnded { .. }) if self.chance.below(2) == 0 => {
                    self.answer_in(30_000, event);
                }
                (Reach::Ignores, _) => self.limbo.push(event),
                _ => {}
            }
        }
        if let Some(after_ms) = after_abort(reach).filter(|after_ms| *after_ms >= 0 && dispatched) {
            let op = op.clone();
            let event = if op.id.starts_with("tool") {
                Event::ToolEnded { op, result: ToolResult::error("stopped", "it heard the signal") }
            } else {
                let failure = Failure::new(FailureKind::Aborted, "it heard the signal");
                Event::ModelEnded { op, outcome: Outcome::Failed(failure) }
            };
            self.answer_in(after_ms, event);
        }
    }

    // ---- the clients ----

    /// Puts the next step of the clients on the queue, when its time has come, or when nothing else is going on.
    fn clients_look(&mut self, anyway: bool) {
        let Some(step) = self.script.steps.get(self.next_step).filter(|_| !self.step_pending) else { return };
        let come = step.once.is_none_or(|(kind, count)| self.books.counts.get(kind).copied().unwrap_or(0) >= count);
        if come || anyway {
            self.step_pending = true;
            self.schedule(step.delay_ms, Item::Client(self.next_step));
        }
    }

    fn client(&mut self, step: usize) -> Check {
        let command = self.script.steps[step].command.clone();
        let alive = self.wake()?;
        let Some(machine) = self.machine.clone().filter(|_| alive) else {
            self.schedule(1_000, Item::Client(step));
            return Ok(());
        };
        let label = command_label(&command);
        self.coverage.seen("command", label);
        let run_before = self.stored.agent.run.as_ref().map(|run| run.id.clone());
        let reply = RefCell::new(None);
        let committed_before = self.transactions;
        let ran = self.transact(label, |tx, given| {
            let (said, output) = machine.command(tx, &command, given)?;
            *reply.borrow_mut() = Some(said);
            Ok::<_, ApiError>(output)
        })?;
        let kind = self.plan.fault_at_transaction(committed_before + 1);
        let (done, output) = match ran {
            Ran::Done(Err(error)) => {
                if error.code == Code::StorageUnavailable {
                    let injected = kind == Some(Kind::StorageError);
                    require(injected, "no transaction fails by itself", || format!("{error:?}"))?;
                    self.schedule(1_000, Item::Client(step));
                    return Ok(());
                }
                self.refused(&command, &error)?;
                (true, None)
            }
            Ran::Done(Ok(output)) => (true, Some(output)),
            Ran::Died => {
                let label_again = self.plan.again.as_ref().filter(|again| again.label == label).map(|again| again.kind);
                let was_committed = [kind, label_again].contains(&Some(Kind::AfterCommit));
                if !was_committed {
                    self.schedule(1_000, Item::Client(step));
                    return Ok(());
                }
                (!self.plan.client_repeats, None)
            }
        };
        if let Some(reply) = reply.into_inner() {
            self.accepted(&command, &reply, run_before)?;
        }
        if let Some(output) = output {
            // A death of an effect is not the client's concern: it has its answer.
            self.perform(label, output)?;
        }
        if done {
            self.next_step = step + 1;
            self.step_pending = false;
        } else {
            self.schedule(1_500, Item::Client(step));
        }
        Ok(())
    }

    fn accepted(&mut self, command: &Command, reply: &Reply, run_before: Option<String>) -> Check {
        match (command, reply) {
            (Command::Submit { request_id, body_sha256, .. }, Reply::Submission { submission, created }) => {
                let known = self.books.accepted.get(request_id);
                require(known.is_some() != *created || known == Some(body_sha256), "one id, one submission", || {
                    format!("{submission} created {created}")
                })?;
                self.books.made = true;
                self.books.refused.remove(request_id);
                self.books.accepted.insert(request_id.clone(), body_sha256.clone());
            }
            (Command::Configure { .. }, _) => self.books.made = true,
            (Command::Stop { .. }, _) => {
                self.books.marked_runs.extend(run_before);
                self.books.stopped = true;
            }
            (Command::Interrupt { .. }, _) => self.books.marked_runs.extend(run_before),
            (Command::Retry, _) => self.books.stopped = false,
            _ => {}
        }
        Ok(())
    }

    fn refused(&mut self, command: &Command, error: &ApiError) -> Check {
        let Command::Submit { request_id, body_sha256, mode, .. } = command else {
            // Only a message or a configuration makes an agent.
            if error.code == Code::NotFound && !self.books.made {
                return Ok(());
            }
            return broken("only a message can be refused", format!("{command:?}: {error:?}"));
        };
        let known = self.books.accepted.get(request_id);
        let agent = &self.stored.agent;
        let right = match error.code {
            Code::Conflict => known.is_some_and(|hash| hash != body_sha256),
            Code::AgentStopped => known.is_none() && matches!(agent.status(), "stopped" | "stopping"),
            Code::AgentBusy => known.is_none() && agent.run.is_some() && *mode == agentdo::agent::state::Mode::Reject,
            _ => false,
        };
        require(right, "a message is refused for a reason", || {
            format!("{request_id}: {error:?} while {}", agent.status())
        })?;
        if known.is_none() {
            self.books.refused.insert(request_id.clone());
        }
        Ok(())
    }
}

/// What a transaction asks for.
trait HasOutput {
    fn output(&self) -> &Output;
}
impl HasOutput for Output {
    fn output(&self) -> &Output {
        self
    }
}
impl HasOutput for (SchemaState, Output) {
    fn output(&self) -> &Output {
        &self.1
    }
}

/// A transaction one of whose statements fails.
struct Failing<'a> {
    inner: &'a dyn Tx,
    left: Cell<usize>,
    failed: &'a Cell<bool>,
}

impl Failing<'_> {
    fn step(&self) -> Result<(), SqlError> {
        self.left.set(self.left.get().saturating_sub(1));
        if self.left.get() == 0 {
            self.failed.set(true);
            return Err(SqlError::new("injected"));
        }
        Ok(())
    }
}

impl Tx for Failing<'_> {
    fn execute(&self, sql: &str, params: &[Value]) -> Result<u64, SqlError> {
        self.step()?;
        self.inner.execute(sql, params)
    }
    fn query(&self, sql: &str, params: &[Value]) -> Result<Vec<Row>, SqlError> {
        self.step()?;
        self.inner.query(sql, params)
    }
    fn set_alarm(&self, at_ms: Option<i64>) -> Result<(), SqlError> {
        self.step()?;
        self.inner.set_alarm(at_ms)
    }
}

fn next<T: Copy>(list: &[T], asked: &mut usize) -> Option<T> {
    let found = list.get(*asked).copied();
    *asked += 1;
    found
}

/// The rows of the crash table that an instance dies in.
fn rows(stored: &Stored, label: &str, kind: Kind) -> Vec<&'static str> {
    let mut rows = Vec::new();
    if label == "Submit" {
        rows.push("submit");
    }
    let agent = &stored.agent;
    let index_told = agent.index.acknowledged >= agent.index.version;
    if !index_told && (agent.index.version > 0 || kind != Kind::BeforeCommit) {
        rows.push("index row unacknowledged");
    }
    if agent.ending.is_some() {
        rows.push("stop marked, not finished");
        return rows;
    }
    match agent.run.as_ref().map(|run| &run.phase) {
        Some(Phase::Call(call)) => rows.push(match call.step {
            CallStep::Hooks if call.pending => "hook held (pending)",
            CallStep::Hooks => "hook asked",
            CallStep::Gate(_) => "gate asked",
            CallStep::GateWait(_) => "gate waiting",
            CallStep::Authorize => "credentials asked",
            CallStep::Backoff | CallStep::Ended => "backoff",
            CallStep::Dispatched if stored.deltas.is_empty() => "dispatched, nothing stored",
            CallStep::Dispatched if stored.deltas.iter().any(|delta| matches!(delta, Delta::Finish(_))) => {
                "dispatched, end mark stored"
            }
            CallStep::Dispatched => "dispatched, part stored",
        }),
        Some(Phase::Tools { .. }) => rows.extend(stored.tools.iter().map(|tool| match tool.step {
            ToolStep::Queued => "tool queued",
            ToolStep::Hooks if tool.pending => "tool hook held (pending)",
            ToolStep::Hooks => "tool hook asked",
            ToolStep::Started if tool.replay == agentdo::agent::state::Replay::Safe => "tool at work, replay-safe",
            ToolStep::Started => "tool at work, unsafe",
            ToolStep::Done => "tool result stored, others at work",
        })),
        None => {}
    }
    rows
}

fn op_of(event: &Event) -> Option<&OpRef> {
    match event {
        Event::HooksAnswered { op, .. }
        | Event::HooksPending { op }
        | Event::GateAnswered { op, .. }
        | Event::Authorized { op, .. }
        | Event::StreamBatch { op, .. }
        | Event::ModelEnded { op, .. }
        | Event::ToolEnded { op, .. } => Some(op),
        Event::Indexed { .. } | Event::AlarmFired => None,
    }
}

fn event_label(event: &Event) -> &'static str {
    match event {
        Event::HooksAnswered { op, .. } if op.id.starts_with("tool") => "ToolHooksAnswered",
        Event::HooksAnswered { .. } => "HooksAnswered",
        Event::HooksPending { op } if op.id.starts_with("tool") => "ToolHooksPending",
        Event::HooksPending { .. } => "HooksPending",
        Event::GateAnswered { .. } => "GateAnswered",
        Event::Authorized { .. } => "Authorized",
        Event::StreamBatch { .. } => "StreamBatch",
        Event::ModelEnded { .. } => "ModelEnded",
        Event::ToolEnded { .. } => "ToolEnded",
        Event::Indexed { .. } => "Indexed",
        Event::AlarmFired => "AlarmFired",
    }
}

fn effect_label(effect: &Effect) -> &'static str {
    match effect {
        Effect::AskHooks { hook: HookCall::BeforeAgentRequest, .. } => "AskHooks",
        Effect::AskHooks { .. } => "AskToolHooks",
        Effect::AskGate { .. } => "AskGate",
        Effect::Authorize { .. } => "Authorize",
        Effect::CallModel { .. } => "CallModel",
        Effect::RunTool { .. } => "RunTool",
        Effect::Index(_) => "Index",
        Effect::Abort { .. } => "Abort",
    }
}

fn effect_op(effect: &Effect) -> Option<&OpRef> {
    match effect {
        Effect::AskHooks { op, .. }
        | Effect::AskGate { op, .. }
        | Effect::Authorize { op, .. }
        | Effect::CallModel { op, .. }
        | Effect::RunTool { op, .. }
        | Effect::Abort { op } => Some(op),
        Effect::Index(_) => None,
    }
}

fn command_label(command: &Command) -> &'static str {
    match command {
        Command::Submit { .. } => "Submit",
        Command::Stop { .. } => "Stop",
        Command::Interrupt { .. } => "Interrupt",
        Command::Retry => "Retry",
        Command::Signal { .. } => "Signal",
        Command::Configure { .. } => "Configure",
        Command::Delete => "Delete",
    }
}
