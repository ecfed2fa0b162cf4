//! The driver: performs the machine's effects and feeds back what happened. It decides nothing; it runs in the object and,
//! over a host of its own, in tests.
//!
//! One driver per instance. An effect whose task is at work in this instance is never started again.

use super::interface::{Command, Effect, Event, HookCall, HookContext, IndexRow, ModelRequest, OpRef, Output, Reply};
use super::live::LiveText;
use super::state::ToolResult;
use super::stream;
use super::{GateAnswer, Machine, SchemaState, Verdict, World, view};
use crate::error::ApiError;
use crate::model::call::{CallContext, ResponseHead};
use crate::model::wire::Decoder;
use crate::model::{Failure, FailureKind};
use crate::port::{Random, SqlError, Storage, transaction};
use crate::signal::Signal;
use futures::channel::oneshot;
use futures::future::{Either, LocalBoxFuture, select};
use futures::stream::LocalBoxStream;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// Credentials of a provider, in memory only: they are never stored, logged or shown (design section 9).
#[derive(Clone, Default)]
pub struct Credentials {
    /// Value of the provider's `Authorization` header; `None` when the gateway holds the key.
    pub authorization: Option<String>,
}

/// A response whose head has come.
pub struct OpenedStream {
    /// Status and headers.
    pub head: ResponseHead,
    /// The body, piece by piece; an error is a transport's.
    pub body: LocalBoxStream<'static, Result<Vec<u8>, String>>,
}

/// Deadlines and batch sizes, from the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Until the first byte or comment of a response, ms.
    pub first_byte_ms: u64,
    /// Until the first event, and between events, ms.
    pub silence_ms: u64,
    /// A whole call, ms.
    pub call_ms: u64,
    /// The stream is stored this often, ms.
    pub batch_ms: u64,
    /// … or when this much has come, bytes.
    pub batch_bytes: usize,
    /// How long usage may follow the end mark, ms.
    pub trailer_ms: u64,
    /// After this a held hook is marked as pending, ms.
    pub hook_pending_ms: u64,
    /// How long what ignores its signal is still listened to, ms.
    pub grace_ms: u64,
}

impl From<&crate::config::Timing> for Timing {
    fn from(timing: &crate::config::Timing) -> Self {
        Self {
            first_byte_ms: timing.first_byte_timeout_ms,
            silence_ms: timing.silence_timeout_ms,
            call_ms: timing.call_timeout_ms,
            batch_ms: timing.stream_batch_ms,
            batch_bytes: usize::try_from(timing.stream_batch_bytes).unwrap_or(usize::MAX),
            trailer_ms: TRAILER_MS,
            hook_pending_ms: timing.hook_pending_ms,
            grace_ms: timing.stop_grace_ms,
        }
    }
}

/// How long usage may follow the end mark of an answer, ms.
const TRAILER_MS: u64 = 5_000;

/// What the driver needs of the world.
///
/// # Contract
/// [`Host::send`] begins the request before it returns: the machine's last check and the request are one turn. Dropping
/// a future or a body ends what it does.
pub trait Host: 'static {
    /// ms since 1970, UTC.
    fn now_ms(&self) -> i64;
    /// Random bits.
    fn random(&self) -> &dyn Random;
    /// The object's storage.
    fn storage(&self) -> &dyn Storage;
    /// Deadlines.
    fn timing(&self) -> Timing;
    /// Waits.
    fn sleep(&self, ms: u64) -> LocalBoxFuture<'static, ()>;
    /// Runs a task to its end.
    fn spawn(&self, task: LocalBoxFuture<'static, ()>);
    /// Asks the handlers of a hook.
    fn ask_hooks(&self, hook: HookCall, context: HookContext, signal: Signal) -> LocalBoxFuture<'static, Verdict>;
    /// Asks a gate.
    fn ask_gate(&self, name: &str, op: &OpRef) -> LocalBoxFuture<'static, GateAnswer>;
    /// Makes credentials ready.
    fn credentials(&self, provider: &str) -> LocalBoxFuture<'static, Result<Credentials, Failure>>;
    /// Sends a model request.
    fn send(
        &self,
        request: &ModelRequest,
        credentials: &Credentials,
    ) -> LocalBoxFuture<'static, Result<OpenedStream, String>>;
    /// A decoder for the response with this head.
    fn decoder(&self, context: CallContext, head: ResponseHead) -> Box<dyn Decoder>;
    /// Runs a tool.
    fn run_tool(&self, call: ToolInvocation) -> LocalBoxFuture<'static, ToolResult>;
    /// Tells the index of agents.
    fn index(&self, row: IndexRow) -> LocalBoxFuture<'static, Result<(), String>>;
    /// Shows committed events, or live ones without a number, to those who watch.
    fn publish(&self, events: &[Value]);
    /// For the operator's log.
    fn log(&self, text: &str);
}

/// One execution of a tool.
pub struct ToolInvocation {
    /// The tool.
    pub name: String,
    /// The arguments that were committed.
    pub arguments: Value,
    /// Idempotency key: the same for each execution of this call.
    pub key: String,
    /// The id the model gave the call.
    pub tool_call_id: String,
    /// Facts for its `ctx`.
    pub context: HookContext,
    /// Raised when it is to end.
    pub signal: Signal,
}

/// The driver of one instance of one agent.
pub struct Driver<H: Host> {
    machine: Machine,
    host: H,
    opened: Cell<Opened>,
    at_work: RefCell<HashMap<OpRef, Signal>>,
    credentials: RefCell<HashMap<String, Credentials>>,
    live: RefCell<Option<LiveText>>,
    waiters: RefCell<Vec<(String, oneshot::Sender<()>)>>,
    /// Events that storage did not take yet, in order.
    unfed: RefCell<VecDeque<Event>>,
    /// The last version the index is being told; an older one is not worth telling.
    telling: Cell<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Opened {
    No,
    Yes,
    Newer(i64),
}

/// How often storage is tried again before the instance gives up and starts over, and the pauses, ms.
const STORAGE_PAUSES_MS: [u64; 5] = [20, 100, 500, 2_000, 5_000];
/// Pauses between tries to tell the index, ms. What is not told then is told at the next change or opening.
const INDEX_PAUSES_MS: [u64; 4] = [0, 1_000, 5_000, 30_000];
/// Clients that may wait for submissions of one agent at once.
const WAITERS_MAX: usize = 200;

impl<H: Host> Driver<H> {
    /// A driver for this machine. Nothing happens before the first entry point is called.
    pub fn new(machine: Machine, host: H) -> Rc<Self> {
        Rc::new(Self {
            machine,
            host,
            opened: Cell::new(Opened::No),
            at_work: RefCell::default(),
            credentials: RefCell::default(),
            live: RefCell::default(),
            waiters: RefCell::default(),
            unfed: RefCell::default(),
            telling: Cell::new(0),
        })
    }

    /// The host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Whether this instance has opened the object.
    pub fn is_open(&self) -> bool {
        self.opened.get() == Opened::Yes
    }

    /// Opens the object once per instance: finds what was in flight and goes on with it. Every entry point calls it.
    pub fn open_now(self: &Rc<Self>) -> Result<(), ApiError> {
        match self.opened.get() {
            Opened::Yes => return Ok(()),
            Opened::Newer(found) => return Err(super::newer(found)),
            Opened::No => {}
        }
        let (state, output) = transaction::<_, SqlError>(self.host.storage(), |tx| self.machine.open(tx, self.world()))
            .map_err(ApiError::from)?;
        if let SchemaState::Newer(found) = state {
            self.opened.set(Opened::Newer(found));
            return self.open_now();
        }
        self.opened.set(Opened::Yes);
        self.perform(output);
        Ok(())
    }

    /// Carries out a command.
    pub fn command(self: &Rc<Self>, command: &Command) -> Result<Reply, ApiError> {
        self.open_now()?;
        let (reply, output) =
            transaction::<_, ApiError>(self.host.storage(), |tx| self.machine.command(tx, command, self.world()))?;
        self.perform(output);
        Ok(reply)
    }

    /// The object's alarm fired. It starts what is due and returns: it never waits for a run.
    pub fn alarm(self: &Rc<Self>) -> Result<(), ApiError> {
        self.open_now()?;
        let output = transaction::<_, SqlError>(self.host.storage(), |tx| {
            self.machine.event(tx, &Event::AlarmFired, self.world())
        })?;
        self.perform(output);
        Ok(())
    }

    /// Does what is due and did not fire; every entry point that only reads calls it.
    pub fn catch_up(self: &Rc<Self>) -> Result<(), ApiError> {
        self.open_now()?;
        let due = transaction::<_, SqlError>(self.host.storage(), |tx| {
            Ok(view::load(tx)?.and_then(|agent| agent.alarm_ms).is_some_and(|at_ms| at_ms <= self.host.now_ms()))
        })?;
        if due { self.alarm() } else { Ok(()) }
    }

    /// Reads in one transaction.
    pub fn read<T>(self: &Rc<Self>, body: impl Fn(&dyn crate::port::Tx) -> Result<T, SqlError>) -> Result<T, ApiError> {
        self.catch_up()?;
        transaction::<_, SqlError>(self.host.storage(), |tx| body(tx)).map_err(ApiError::from)
    }

    /// Waits until the submission settles or the time is over; the caller then reads it.
    pub async fn wait_settled(self: &Rc<Self>, request_id: &str, wait_ms: u64) {
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiters = self.waiters.borrow_mut();
            waiters.retain(|(_, waiter)| !waiter.is_canceled());
            if waiters.len() >= WAITERS_MAX {
                return;
            }
            waiters.push((request_id.to_owned(), sender));
        }
        select(receiver, self.host.sleep(wait_ms)).await;
    }

    /// What a client that connects during a call gets first: the text so far.
    pub fn live_events(&self) -> Vec<Value> {
        self.live.borrow().as_ref().map(LiveText::so_far).unwrap_or_default()
    }

    fn world(&self) -> World<'_> {
        World { now_ms: self.host.now_ms(), random: self.host.random() }
    }

    /// Feeds an event back. When storage fails again and again, the instance starts over as after a crash: nothing in
    /// memory is trusted, and the alarm or the next request opens it anew.
    fn feed(self: &Rc<Self>, event: Event) {
        // Order counts: a piece of a stream must not overtake the one before it.
        if !self.unfed.borrow().is_empty() {
            return self.unfed.borrow_mut().push_back(event);
        }
        if let Err(error) = self.try_feed(&event) {
            self.host.log(&format!("storage: {error}"));
            self.unfed.borrow_mut().push_back(event);
            self.host.spawn(Box::pin(feed_again(Rc::clone(self))));
        }
    }

    /// Feeds what waits; gives whether all of it was taken.
    fn feed_waiting(self: &Rc<Self>) -> bool {
        loop {
            let Some(event) = self.unfed.borrow().front().cloned() else { return true };
            if self.try_feed(&event).is_err() {
                return false;
            }
            self.unfed.borrow_mut().pop_front();
        }
    }

    fn try_feed(self: &Rc<Self>, event: &Event) -> Result<(), SqlError> {
        let output = transaction(self.host.storage(), |tx| self.machine.event(tx, event, self.world()))?;
        self.perform(output);
        Ok(())
    }

    fn start_over(&self) {
        self.host.log("storage does not answer: this instance starts over");
        self.opened.set(Opened::No);
        self.unfed.borrow_mut().clear();
        let at_work = std::mem::take(&mut *self.at_work.borrow_mut());
        for signal in at_work.into_values() {
            signal.raise();
        }
        self.live.borrow_mut().take();
    }

    /// Performs what a committed transaction asked for.
    fn perform(self: &Rc<Self>, output: Output) {
        if !output.events.is_empty() {
            self.host.publish(&output.events);
            self.void_lost(&output.events);
            self.wake_waiters(&output.events);
        }
        for effect in output.effects {
            self.perform_one(effect);
        }
    }

    /// What was streamed of a call that was lost with its instance is void for who watched it.
    fn void_lost(&self, events: &[Value]) {
        let lost = |event: &&Value| event.get("outcome").and_then(Value::as_str) == Some("lost");
        let voids: Vec<Value> = events
            .iter()
            .filter(lost)
            .map(|event| json!({ "type": "reset_delta", "call": event.get("call"), "op": event.get("op") }))
            .collect();
        if !voids.is_empty() {
            self.host.publish(&voids);
        }
    }

    fn wake_waiters(&self, events: &[Value]) {
        let settled: Vec<&str> = events
            .iter()
            .filter(|event| event.get("type").and_then(Value::as_str) == Some("submission"))
            .filter_map(|event| event.get("request_id").and_then(Value::as_str))
            .collect();
        if settled.is_empty() {
            return;
        }
        let mut waiters = self.waiters.borrow_mut();
        let (woken, waiting) =
            std::mem::take(&mut *waiters).into_iter().partition(|(id, _)| settled.contains(&id.as_str()));
        *waiters = waiting;
        drop(waiters);
        let woken: Vec<(String, oneshot::Sender<()>)> = woken;
        for (_, waiter) in woken {
            // A client that went away is no matter.
            let _ = waiter.send(());
        }
    }

    fn perform_one(self: &Rc<Self>, effect: Effect) {
        match effect {
            Effect::AskHooks { op, hook, context } => self.start(op, |driver, op, signal| {
                let answer = driver.host.ask_hooks(hook, context, signal.clone());
                Box::pin(ask_hooks(driver, op, answer, signal))
            }),
            Effect::AskGate { op, name } => self.start(op, |driver, op, signal| {
                let answer = driver.host.ask_gate(&name, &op);
                Box::pin(async move {
                    if let Either::Left((answer, _)) = select(answer, signal.raised()).await {
                        driver.leave(&op);
                        driver.feed(Event::GateAnswered { op, name, answer });
                    }
                })
            }),
            Effect::Authorize { op, provider } => self.start(op, |driver, op, signal| {
                let ready = driver.host.credentials(&provider);
                let deadline = driver.host.sleep(driver.host.timing().first_byte_ms);
                Box::pin(async move {
                    let ready = match select(select(ready, signal.raised()), deadline).await {
                        Either::Left((Either::Left((ready, _)), _)) => ready,
                        Either::Left((Either::Right(_), _)) => return,
                        Either::Right(_) => {
                            Err(Failure::new(FailureKind::Transient, "the credentials did not come in time"))
                        }
                    };
                    let refused = match ready {
                        Ok(credentials) => {
                            driver.credentials.borrow_mut().insert(provider, credentials);
                            None
                        }
                        Err(failure) => Some(failure),
                    };
                    driver.leave(&op);
                    driver.feed(Event::Authorized { op, refused });
                })
            }),
            Effect::CallModel { op, request } => {
                let credentials = self.credentials.borrow().get(&request.provider).cloned().unwrap_or_default();
                // Begun here and now, in the turn of the transaction that committed the intent.
                let response = self.host.send(&request, &credentials);
                self.start(op, |driver, op, signal| Box::pin(call_model(driver, op, *request, response, signal)));
            }
            Effect::RunTool { op, name, arguments, tool_call_id, context } => self.start(op, |driver, op, signal| {
                let key = op.id.clone();
                let call = ToolInvocation { name, arguments, key, tool_call_id, context, signal: signal.clone() };
                let result = driver.host.run_tool(call);
                Box::pin(run_tool(driver, op, result, signal))
            }),
            Effect::Index(row) => {
                self.telling.set(row.version);
                let driver = Rc::clone(self);
                self.host.spawn(Box::pin(tell_index(driver, row)));
            }
            Effect::Abort { op } => {
                // Its listeners may be anybody's code: no borrow is held while they are called.
                let signal = self.at_work.borrow_mut().remove(&op);
                if let Some(signal) = signal {
                    signal.raise();
                }
            }
        }
    }

    fn start(self: &Rc<Self>, op: OpRef, task: impl FnOnce(Rc<Self>, OpRef, Signal) -> LocalBoxFuture<'static, ()>) {
        let signal = Signal::default();
        {
            let mut at_work = self.at_work.borrow_mut();
            if at_work.contains_key(&op) {
                return;
            }
            at_work.insert(op.clone(), signal.clone());
        }
        let driver = Rc::clone(self);
        let task = task(Rc::clone(self), op.clone(), signal.clone());
        self.host.spawn(Box::pin(async move {
            task.await;
            let mut at_work = driver.at_work.borrow_mut();
            // The next task of the same operation may stand there by now.
            if at_work.get(&op).is_some_and(|standing| standing.same(&signal)) {
                at_work.remove(&op);
            }
        }));
    }

    pub(super) fn feed_event(self: &Rc<Self>, event: Event) {
        self.feed(event);
    }

    pub(super) fn live_text(&self) -> &RefCell<Option<LiveText>> {
        &self.live
    }

    /// An operation's task is over before its last event is fed, so that what follows from the event can start anew.
    fn leave(&self, op: &OpRef) {
        self.at_work.borrow_mut().remove(op);
    }
}

async fn feed_again<H: Host>(driver: Rc<Driver<H>>) {
    for pause_ms in STORAGE_PAUSES_MS {
        driver.host.sleep(pause_ms).await;
        if driver.feed_waiting() {
            return;
        }
    }
    driver.start_over();
}

async fn ask_hooks<H: Host>(
    driver: Rc<Driver<H>>,
    op: OpRef,
    answer: LocalBoxFuture<'static, Verdict>,
    signal: Signal,
) {
    let pending = driver.host.sleep(driver.host.timing().hook_pending_ms);
    let ended = select(answer, signal.raised());
    let verdict = match select(ended, pending).await {
        Either::Left((ended, _)) => ended,
        Either::Right(((), ended)) => {
            driver.feed(Event::HooksPending { op: op.clone() });
            ended.await
        }
    };
    if let Either::Left((verdict, _)) = verdict {
        driver.leave(&op);
        driver.feed(Event::HooksAnswered { op, verdict });
    }
}

async fn run_tool<H: Host>(
    driver: Rc<Driver<H>>,
    op: OpRef,
    result: LocalBoxFuture<'static, ToolResult>,
    signal: Signal,
) {
    let result = match select(result, signal.raised()).await {
        Either::Left((result, _)) => result,
        Either::Right(((), result)) => {
            // It got its signal: what it still answers within the grace counts, if the machine wants it.
            match select(result, driver.host.sleep(driver.host.timing().grace_ms)).await {
                Either::Left((result, _)) => result,
                Either::Right(_) => return,
            }
        }
    };
    driver.leave(&op);
    driver.feed(Event::ToolEnded { op, result });
}

async fn call_model<H: Host>(
    driver: Rc<Driver<H>>,
    op: OpRef,
    request: ModelRequest,
    response: LocalBoxFuture<'static, Result<OpenedStream, String>>,
    signal: Signal,
) {
    *driver.live.borrow_mut() = Some(LiveText::new(&op.id, request.call));
    let outcome = stream::read(&driver, &op, &request, response, &signal).await;
    driver.live.borrow_mut().take();
    if matches!(outcome, crate::model::Outcome::Failed(_)) {
        driver.host.publish(&[json!({ "type": "reset_delta", "call": request.call, "op": op.id })]);
    }
    driver.leave(&op);
    driver.feed(Event::ModelEnded { op, outcome });
}

async fn tell_index<H: Host>(driver: Rc<Driver<H>>, row: IndexRow) {
    for pause_ms in INDEX_PAUSES_MS {
        if pause_ms > 0 {
            driver.host.sleep(pause_ms).await;
        }
        if driver.telling.get() > row.version {
            return;
        }
        match driver.host.index(row.clone()).await {
            Ok(()) => return driver.feed(Event::Indexed { version: row.version }),
            Err(error) => driver.host.log(&format!("index: {error}")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
#[path = "driver_tests.rs"]
mod tests;
