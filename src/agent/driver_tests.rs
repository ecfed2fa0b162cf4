//! The driver over a world whose time stands still until it is moved.

use super::*;
use crate::agent::state::Mode;
use crate::agent::{Catalog, Settings, ToolSpec};
use crate::model::encode::Dialect;
use crate::model::message::Block;
use crate::model::wire::{ChatReading, ChatWire, Target, Wire};
use crate::platform::host::{HostStorage, SeededRandom};
use crate::port::{RowCounts, Tx};
use futures::channel::mpsc;
use futures::executor::{LocalPool, LocalSpawner};
use futures::future::LocalBoxFuture;
use futures::task::LocalSpawnExt;
use futures::{FutureExt, StreamExt};
use std::task::{Poll, Waker};

type Bytes = mpsc::UnboundedSender<Result<Vec<u8>, String>>;

/// Storage that can be made to fail.
struct Flaky {
    inner: HostStorage,
    failing: Cell<bool>,
}

impl Storage for Flaky {
    fn transact(&self, body: &mut dyn FnMut(&dyn Tx) -> Result<(), SqlError>) -> Result<(), SqlError> {
        if self.failing.get() { Err(SqlError::new("storage is away")) } else { self.inner.transact(body) }
    }

    fn row_counts(&self) -> RowCounts {
        self.inner.row_counts()
    }
}

/// What the world saw and gives, shared between the test and the host.
struct World {
    now_ms: Cell<i64>,
    sleepers: RefCell<Vec<(i64, Waker)>>,
    requests: RefCell<Vec<(ModelRequest, Bytes)>>,
    hooks: RefCell<Vec<oneshot::Sender<Verdict>>>,
    keys: RefCell<Vec<oneshot::Sender<()>>>,
    tools: RefCell<Vec<(String, oneshot::Sender<ToolResult>)>>,
    published: RefCell<Vec<Value>>,
    index_fails: Cell<u32>,
    indexed: RefCell<Vec<IndexRow>>,
    hold_keys: Cell<bool>,
    hold_heads: Cell<bool>,
}

struct TestHost {
    world: Rc<World>,
    storage: Rc<Flaky>,
    random: SeededRandom,
    spawner: LocalSpawner,
}

impl Host for TestHost {
    fn now_ms(&self) -> i64 {
        self.world.now_ms.get()
    }
    fn random(&self) -> &dyn Random {
        &self.random
    }
    fn storage(&self) -> &dyn Storage {
        &*self.storage
    }
    fn timing(&self) -> Timing {
        Timing::from(&crate::config::Timing::default())
    }
    fn sleep(&self, ms: u64) -> LocalBoxFuture<'static, ()> {
        let world = Rc::clone(&self.world);
        let until = world.now_ms.get() + i64::try_from(ms).unwrap();
        Box::pin(futures::future::poll_fn(move |context| {
            if world.now_ms.get() >= until {
                return Poll::Ready(());
            }
            world.sleepers.borrow_mut().push((until, context.waker().clone()));
            Poll::Pending
        }))
    }
    fn spawn(&self, task: LocalBoxFuture<'static, ()>) {
        self.spawner.spawn_local(task).unwrap();
    }
    fn ask_hooks(&self, _: HookCall, _: HookContext, _: Signal) -> LocalBoxFuture<'static, Verdict> {
        let (sender, receiver) = oneshot::channel();
        self.world.hooks.borrow_mut().push(sender);
        Box::pin(receiver.map(|verdict| verdict.unwrap_or_default()))
    }
    fn ask_gate(&self, _: &str, _: &OpRef) -> LocalBoxFuture<'static, GateAnswer> {
        Box::pin(std::future::ready(GateAnswer::Go))
    }
    fn credentials(&self, _: &str) -> LocalBoxFuture<'static, Result<Credentials, Failure>> {
        if !self.world.hold_keys.get() {
            return Box::pin(std::future::ready(Ok(Credentials::default())));
        }
        let (sender, receiver) = oneshot::channel();
        self.world.keys.borrow_mut().push(sender);
        Box::pin(receiver.map(|_| Ok(Credentials::default())))
    }
    fn send(&self, request: &ModelRequest, _: &Credentials) -> LocalBoxFuture<'static, Result<OpenedStream, String>> {
        let (sender, body) = mpsc::unbounded();
        self.world.requests.borrow_mut().push((request.clone(), sender));
        if self.world.hold_heads.get() {
            return Box::pin(std::future::pending());
        }
        let head = ResponseHead { status: 200, content_type: Some("text/event-stream".into()), headers: Vec::new() };
        Box::pin(std::future::ready(Ok(OpenedStream { head, body: body.boxed_local() })))
    }
    fn decoder(&self, context: CallContext, head: ResponseHead) -> Box<dyn Decoder> {
        Box::new(ChatReading::new(head, context))
    }
    fn run_tool(&self, call: ToolInvocation) -> LocalBoxFuture<'static, ToolResult> {
        let (sender, receiver) = oneshot::channel();
        self.world.tools.borrow_mut().push((call.key, sender));
        Box::pin(async move {
            match receiver.await {
                Ok(result) => result,
                Err(_) => std::future::pending().await,
            }
        })
    }
    fn index(&self, row: IndexRow) -> LocalBoxFuture<'static, Result<(), String>> {
        let fails = self.world.index_fails.get();
        if fails > 0 {
            self.world.index_fails.set(fails - 1);
            return Box::pin(std::future::ready(Err("D1 is away".into())));
        }
        self.world.indexed.borrow_mut().push(row);
        Box::pin(std::future::ready(Ok(())))
    }
    fn publish(&self, events: &[Value]) {
        self.world.published.borrow_mut().extend_from_slice(events);
    }
    fn log(&self, _: &str) {}
}

struct Bench {
    world: Rc<World>,
    storage: Rc<Flaky>,
    driver: Rc<Driver<TestHost>>,
    pool: LocalPool,
    hooks: bool,
}

fn machine(hooks: bool) -> Machine {
    let config = crate::config::Config::from_vars(&|name| {
        (name == "API_TOKENS").then(|| format!(r#"[{{"sha256":"{}","tenant":"t","scopes":["read"]}}]"#, "0".repeat(64)))
    })
    .unwrap();
    let tool = ToolSpec {
        name: "look".into(),
        description: String::new(),
        parameters: json!({"type": "object"}),
        replay: super::super::state::Replay::Safe,
        timeout_ms: None,
        resource: None,
    };
    let catalog = Catalog { tools: vec![tool], handles_before_agent_request: hooks, ..Catalog::default() };
    let wire: Rc<dyn Wire> = Rc::new(ChatWire { dialect: Dialect::Plain });
    let mut settings = Settings::from(&config);
    settings.targets.iter_mut().for_each(|target: &mut Target| target.models.truncate(1));
    Machine::new(settings, catalog, vec![("openrouter".into(), wire)], Rc::new(|_, _| Ok(())))
}

impl Bench {
    fn new(hooks: bool) -> Self {
        let storage = Rc::new(Flaky { inner: HostStorage::in_memory().unwrap(), failing: Cell::new(false) });
        Self::over(storage, hooks, 1_000_000)
    }

    /// An instance over storage that may hold something already.
    fn over(storage: Rc<Flaky>, hooks: bool, now_ms: i64) -> Self {
        let pool = LocalPool::new();
        let world = Rc::new(World {
            now_ms: Cell::new(now_ms),
            sleepers: RefCell::default(),
            requests: RefCell::default(),
            hooks: RefCell::default(),
            keys: RefCell::default(),
            tools: RefCell::default(),
            published: RefCell::default(),
            index_fails: Cell::new(0),
            indexed: RefCell::default(),
            hold_keys: Cell::new(false),
            hold_heads: Cell::new(false),
        });
        let host = TestHost {
            world: Rc::clone(&world),
            storage: Rc::clone(&storage),
            random: SeededRandom::new(7),
            spawner: pool.spawner(),
        };
        Self { driver: Driver::new(machine(hooks), host), world, storage, pool, hooks }
    }

    fn run(&mut self) {
        self.pool.run_until_stalled();
    }

    fn advance(&mut self, ms: i64) {
        self.run();
        self.world.now_ms.set(self.world.now_ms.get() + ms);
        let now_ms = self.world.now_ms.get();
        for (_, waker) in std::mem::take(&mut *self.world.sleepers.borrow_mut()) {
            waker.wake();
        }
        self.run();
        if self.storage.inner.alarm().is_some_and(|due| due <= now_ms) {
            self.storage.inner.put_alarm(None);
            self.driver.alarm().unwrap();
            self.run();
        }
    }

    fn submit(&mut self, id: &str) {
        let command = Command::Submit {
            request_id: id.into(),
            body_sha256: "h".into(),
            content: vec![Block::text("hello")],
            mode: Mode::FollowUp,
        };
        self.driver.command(&command).unwrap();
        self.run();
    }

    fn requests(&self) -> usize {
        self.world.requests.borrow().len()
    }

    /// Sends bytes as the body of the last request.
    fn stream(&mut self, text: &str) {
        let sender = self.world.requests.borrow().last().unwrap().1.clone();
        let _ = sender.unbounded_send(Ok(text.as_bytes().to_vec()));
        self.run();
    }

    fn text(&mut self, text: &str) {
        self.stream(&format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"content": text}}]})));
    }

    fn finish(&mut self) {
        self.stream(&format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})));
    }

    fn done(&mut self) {
        self.stream("data: [DONE]\n\n");
    }

    fn status(&self) -> String {
        self.agent()["status"].as_str().unwrap().to_owned()
    }

    fn agent(&self) -> Value {
        transaction::<_, SqlError>(&self.storage.inner, view::agent).unwrap().unwrap()
    }

    fn submission(&self, id: &str) -> Value {
        transaction::<_, SqlError>(&self.storage.inner, |tx| {
            let stored = view::stored_submission(tx, id)?.unwrap();
            view::submission_json(tx, &stored)
        })
        .unwrap()
    }

    fn count(&self, table: &str) -> i64 {
        let sql = format!("SELECT COUNT(*) FROM {table}");
        transaction::<_, SqlError>(&self.storage.inner, |tx| tx.query(&sql, &[])?[0].integer(0)).unwrap()
    }

    /// Batches in the stream log: a line each.
    fn batches(&self) -> i64 {
        let sql = "SELECT COALESCE(SUM(length(body) - length(replace(body, char(10), ''))), 0) FROM chunk";
        transaction::<_, SqlError>(&self.storage.inner, |tx| tx.query(sql, &[])?[0].integer(0)).unwrap()
    }

    fn kinds(&self) -> Vec<String> {
        self.world.published.borrow().iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }

    /// The process dies; another instance opens over the same storage when the alarm fires.
    fn die(self) -> Self {
        let due = self.storage.inner.alarm().expect("work in flight has an alarm");
        let Self { world, storage, driver, pool, hooks } = self;
        drop((pool, driver));
        let mut next = Self::over(storage, hooks, due.max(world.now_ms.get()));
        next.storage.inner.put_alarm(None);
        next.driver.alarm().unwrap();
        next.run();
        next
    }
}

#[test]
fn a_message_is_answered_and_its_events_are_shown_once_committed() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    assert_eq!(bench.requests(), 1);
    bench.text("Hi ");
    bench.text("there");
    bench.finish();
    bench.done();
    assert_eq!(bench.submission("r1")["answer"]["text"], "Hi there");
    assert_eq!(bench.status(), "idle");
    let wanted = [
        "run_started",
        "entry",
        "status",
        "call_started",
        "delta",
        "delta",
        "call_ended",
        "entry",
        "submission",
        "run_ended",
        "status",
    ];
    assert_eq!(bench.kinds(), wanted);
    assert_eq!(bench.storage.inner.alarm(), None);
    assert_eq!(bench.world.indexed.borrow().last().unwrap().status, "idle");
}

#[test]
fn the_intent_is_committed_before_the_request_leaves() {
    let mut bench = Bench::new(false);
    bench.world.hold_heads.set(true);
    bench.submit("r1");
    // The head has not come, so all that is stored was stored before the request.
    assert_eq!(bench.kinds().last().unwrap(), "call_started");
    assert_eq!(bench.requests(), 1);
}

#[test]
fn a_stop_cuts_a_held_stream_and_keeps_what_was_seen() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    bench.text("half an ans");
    bench.driver.command(&Command::Stop { reason: None }).unwrap();
    bench.run();
    assert_eq!(bench.status(), "stopped");
    assert!(bench.world.requests.borrow()[0].1.is_closed(), "the body was dropped, so the request was aborted");
    assert_eq!(bench.submission("r1")["reason"], "stopped");
    let shown = bench.world.published.borrow().iter().any(|event| {
        event["entry"]["message"]["aborted"] == true && event["entry"]["message"]["content"][0]["text"] == "half an ans"
    });
    assert!(shown);
    bench.advance(3_600_000);
    assert_eq!(bench.requests(), 1);
}

#[test]
fn a_stop_ends_a_hook_that_never_returns_and_its_late_answer_is_dropped() {
    let mut bench = Bench::new(true);
    bench.submit("r1");
    bench.advance(6_000);
    bench.driver.command(&Command::Stop { reason: None }).unwrap();
    bench.run();
    assert_eq!(bench.status(), "stopped");
    let late = bench.world.hooks.borrow_mut().remove(0);
    let _ = late.send(Verdict::default());
    bench.advance(60_000);
    assert_eq!(bench.requests(), 0);
}

#[test]
fn a_stop_while_credentials_are_fetched_lets_no_request_out() {
    let mut bench = Bench::new(false);
    bench.world.hold_keys.set(true);
    bench.submit("r1");
    bench.driver.command(&Command::Stop { reason: None }).unwrap();
    let key = bench.world.keys.borrow_mut().remove(0);
    let _ = key.send(());
    bench.advance(60_000);
    assert_eq!((bench.requests(), bench.status().as_str()), (0, "stopped"));
}

#[test]
fn a_hold_outlives_deaths_without_counting_and_one_request_leaves() {
    let mut bench = Bench::new(true);
    bench.submit("r1");
    for _ in 0..20 {
        assert_eq!(bench.world.hooks.borrow().len(), 1, "asked once per instance");
        bench.advance(6_000);
        assert_eq!(bench.status(), "working");
        bench = bench.die();
    }
    let hook = bench.world.hooks.borrow_mut().remove(0);
    let _ = hook.send(Verdict::default());
    bench.run();
    assert_eq!(bench.requests(), 1);
    bench.text("at last");
    bench.finish();
    bench.done();
    assert_eq!(bench.submission("r1")["answer"]["text"], "at last");
}

#[test]
fn no_first_byte_silence_and_the_total_end_a_call_and_it_is_tried_again() {
    for case in ["head", "byte", "silence", "total"] {
        let mut bench = Bench::new(false);
        bench.world.hold_heads.set(case == "head");
        bench.submit("r1");
        let waits: &[i64] = match case {
            "head" | "byte" => &[30_000, 30_100],
            // Comments are life and not progress: they hold off the first deadline, not the second.
            "silence" => &[50_000, 50_000, 50_000, 30_100],
            _ => &[100_000, 100_000, 100_000, 100_000, 100_000, 100_100],
        };
        for wait in waits {
            match case {
                "silence" => bench.stream(": PROCESSING\n\n"),
                "total" => bench.text("x"),
                _ => {}
            }
            assert_eq!(bench.requests(), 1, "{case}");
            bench.advance(*wait);
        }
        assert_eq!(bench.agent()["waits"][0]["for"], "backoff", "{case}");
        bench.world.hold_heads.set(false);
        bench.advance(1_100);
        assert_eq!(bench.requests(), 2, "{case}");
    }
}

#[test]
fn the_stream_is_stored_every_half_second_or_eight_kibibytes_and_not_for_each_piece() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    for _ in 0..100 {
        bench.text("word ");
    }
    assert_eq!(bench.batches(), 0);
    bench.advance(500);
    assert_eq!(bench.batches(), 1);
    for _ in 0..100 {
        bench.text(&"x".repeat(100));
    }
    assert_eq!(bench.batches(), 2);
    assert_eq!(bench.count("chunk"), 1, "batches share a row until it is full");
    bench.finish();
    bench.done();
    assert_eq!(bench.count("chunk"), 0, "no row of the stream outlives the answer");
}

#[test]
fn an_answer_whose_end_mark_is_stored_is_adopted_after_a_crash() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    bench.text("whole");
    bench.finish();
    bench.advance(500);
    let bench = bench.die();
    assert_eq!(bench.requests(), 0, "nothing is asked again");
    assert_eq!(bench.submission("r1")["answer"]["text"], "whole");
}

#[test]
fn a_partial_is_shown_as_aborted_after_a_crash_and_the_call_goes_out_again() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    bench.text("part");
    bench.advance(500);
    let mut bench = bench.die();
    assert_eq!(bench.requests(), 1);
    assert!(!bench.world.requests.borrow()[0].0.body.contains("part"), "a partial is never sent back");
    bench.text("all");
    bench.finish();
    bench.done();
    assert_eq!(bench.submission("r1")["answer"]["text"], "all");
}

#[test]
fn an_answer_without_its_trailer_is_complete_after_a_while() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    bench.text("no usage follows");
    bench.finish();
    bench.advance(4_000);
    assert_eq!(bench.submission("r1")["status"], "placed");
    bench.advance(1_600);
    assert_eq!(bench.submission("r1")["answer"]["text"], "no usage follows");
}

#[test]
fn storage_that_is_away_for_a_moment_loses_nothing() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    bench.text("kept");
    bench.storage.failing.set(true);
    bench.finish();
    bench.done();
    bench.advance(50);
    bench.storage.failing.set(false);
    bench.advance(600);
    assert_eq!(bench.submission("r1")["answer"]["text"], "kept");
    assert_eq!(bench.requests(), 1);
}

#[test]
fn when_storage_stays_away_the_instance_starts_over_as_after_a_crash() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    bench.text("lost");
    bench.storage.failing.set(true);
    bench.finish();
    bench.done();
    for _ in 0..6 {
        bench.world.now_ms.set(bench.world.now_ms.get() + 5_000);
        for (_, waker) in std::mem::take(&mut *bench.world.sleepers.borrow_mut()) {
            waker.wake();
        }
        bench.run();
    }
    bench.storage.failing.set(false);
    bench.advance(30_000);
    assert_eq!(bench.requests(), 2, "the call goes out again");
    bench.text("again");
    bench.finish();
    bench.done();
    assert_eq!(bench.submission("r1")["answer"]["text"], "again");
}

#[test]
fn a_tool_that_ignores_its_signal_is_left_behind_and_a_stop_takes_no_longer_than_the_grace() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    let call = json!({"choices": [{"index": 0, "delta": {"tool_calls": [
        {"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}]});
    bench.stream(&format!("data: {call}\n\ndata: [DONE]\n\n"));
    assert_eq!(bench.world.tools.borrow().len(), 1);
    bench.driver.command(&Command::Stop { reason: None }).unwrap();
    bench.advance(4_900);
    assert_eq!(bench.status(), "stopping");
    bench.advance(200);
    assert_eq!(bench.status(), "stopped");
    let (_, late) = bench.world.tools.borrow_mut().remove(0);
    let _ = late.send(ToolResult { content: vec![Block::text("late")], is_error: false, code: None });
    bench.advance(60_000);
    let results: Vec<Value> = bench
        .world
        .published
        .borrow()
        .iter()
        .filter(|event| event["entry"]["kind"] == "tool_result")
        .map(|event| event["entry"]["message"]["code"].clone())
        .collect();
    assert_eq!(results, [json!("interrupted")]);
}

#[test]
fn the_index_is_told_until_it_has_heard() {
    let mut bench = Bench::new(false);
    bench.world.index_fails.set(3);
    bench.submit("r1");
    bench.text("x");
    bench.finish();
    bench.done();
    for _ in 0..8 {
        bench.advance(10_000);
    }
    assert_eq!(bench.world.indexed.borrow().last().unwrap().status, "idle");
    assert_eq!(bench.storage.inner.alarm(), None, "nothing is armed once it has");
}

#[test]
fn who_waits_for_a_submission_is_woken_when_it_settles() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    let driver = Rc::clone(&bench.driver);
    let woken = Rc::new(Cell::new(false));
    let flag = Rc::clone(&woken);
    let waiting = async move {
        driver.wait_settled("r1", 60_000).await;
        flag.set(true);
    };
    bench.pool.spawner().spawn_local(waiting).unwrap();
    bench.run();
    assert!(!woken.get());
    bench.text("x");
    bench.finish();
    bench.done();
    assert!(woken.get());
}

#[test]
fn a_client_that_connects_during_a_call_gets_the_text_so_far() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    bench.text("so ");
    bench.text("far");
    let live = bench.driver.live_events();
    assert_eq!(live.len(), 1);
    assert_eq!((live[0]["offset"].as_u64(), live[0]["text"].as_str()), (Some(0), Some("so far")));
    bench.finish();
    bench.done();
    assert!(bench.driver.live_events().is_empty());
}

#[path = "driver_case_tests.rs"]
mod cases;
