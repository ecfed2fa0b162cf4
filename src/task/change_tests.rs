//! The machine of a Change over real SQLite, with agents, a queue and D1 that lose, double and delay.

use super::*;
use crate::model::message::Usage;
use crate::platform::host::{HostStorage, SeededRandom};
use crate::port::transaction;
use std::collections::VecDeque;

const SETTINGS: Settings = Settings { resend_ms: 30_000, retry_task_delay_ms: 5_000 };

fn spec(key: &str, after: &[&str]) -> TaskSpec {
    TaskSpec {
        key: key.into(),
        title: format!("Task {key}"),
        instructions: "Do it.".into(),
        kind: None,
        risk: None,
        size: None,
        tier: None,
        agent: None,
        after: after.iter().map(|key| (*key).to_owned()).collect(),
        claims: Vec::new(),
        inputs: Value::Null,
    }
}

fn posted(tasks: Vec<TaskSpec>) -> Posted {
    Posted { id: "c1".into(), body_sha256: "h".into(), title: "A change".into(), description: String::new(), tasks }
}

/// A Change, and a world that keeps its own books.
struct World {
    storage: HostStorage,
    machine: ChangeMachine,
    random: SeededRandom,
    now_ms: i64,
    effects: VecDeque<Effect>,
    /// What D1 holds: version and status of each Task.
    rows: BTreeMap<String, (i64, String)>,
    change_row: Option<(i64, String)>,
    /// Starts that an agent has committed: each attempt once, however often it is asked.
    started: BTreeSet<(String, u32)>,
    starts_asked: u32,
    events: Vec<Value>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            storage: HostStorage::in_memory().unwrap(),
            machine: ChangeMachine::new(SETTINGS),
            random: SeededRandom::new(seed),
            now_ms: 1_000_000,
            effects: VecDeque::new(),
            rows: BTreeMap::new(),
            change_row: None,
            started: BTreeSet::new(),
            starts_asked: 0,
            events: Vec::new(),
        }
    }

    fn take(&mut self, output: Output) {
        self.effects.extend(output.effects);
        self.events.extend(output.events);
    }

    fn command(&mut self, command: &Command) -> Result<Reply, ApiError> {
        let (machine, now_ms) = (self.machine, self.now_ms);
        let done = transaction::<_, ApiError>(&self.storage, |tx| machine.command(tx, command, now_ms, &self.random));
        let (reply, output) = done?;
        self.take(output);
        Ok(reply)
    }

    fn event(&mut self, event: &Event) {
        let (machine, now_ms) = (self.machine, self.now_ms);
        let output =
            transaction::<_, SqlError>(&self.storage, |tx| machine.event(tx, event, now_ms, &self.random)).unwrap();
        self.take(output);
    }

    fn create(&mut self, tasks: Vec<TaskSpec>) {
        self.command(&Command::Create { posted: posted(tasks) }).unwrap();
    }

    fn change(&self) -> Value {
        transaction::<_, SqlError>(&self.storage, |tx| self.machine.change(tx)).unwrap().unwrap()
    }

    fn task(&self, key: &str) -> Value {
        let change = self.change();
        let found = change["tasks"].as_array().unwrap().iter().find(|task| task["key"] == key).unwrap();
        let id = found["id"].as_str().unwrap().to_owned();
        transaction::<_, SqlError>(&self.storage, |tx| self.machine.task(tx, &id)).unwrap().unwrap()
    }

    fn status(&self, key: &str) -> String {
        self.task(key)["status"].as_str().unwrap().to_owned()
    }

    fn tell(&mut self, task_id: &str, attempt: u32, what: Told) {
        let report = Report { task_id: task_id.into(), attempt, what };
        self.command(&Command::Report { report }).unwrap();
    }

    fn begins(&mut self, task_id: &str, attempt: u32) {
        let what = Told::Started { tier: "haiku".into(), provider: "openrouter".into(), model: "tier-haiku".into() };
        self.tell(task_id, attempt, what);
    }

    fn ends(&mut self, task_id: &str, attempt: u32, outcome: AttemptOutcome) {
        let intent = (outcome == AttemptOutcome::Completed).then(|| json!({ "summary": "done", "effects": [] }));
        let usage = Usage::default();
        self.tell(task_id, attempt, Told::Ended { outcome, detail: None, intent, failure: None, calls: 1, usage });
    }

    /// The object dies and opens again; what was asked and not answered is lost.
    fn die(&mut self) {
        self.effects.clear();
        let (machine, now_ms) = (self.machine, self.now_ms);
        let output = transaction::<_, SqlError>(&self.storage, |tx| machine.open(tx, now_ms, &self.random)).unwrap();
        self.take(output);
    }

    fn fire_alarm(&mut self) -> bool {
        let Some(due) = self.storage.alarm() else { return false };
        self.now_ms = self.now_ms.max(due);
        self.storage.put_alarm(None);
        self.event(&Event::AlarmFired);
        true
    }

    /// Performs what is asked, without faults: each attempt ends with what `outcome` says.
    fn settle(&mut self, outcome: impl Fn(&str, u32) -> AttemptOutcome) {
        for _ in 0..10_000 {
            let Some(effect) = self.effects.pop_front() else {
                if self.fire_alarm() {
                    continue;
                }
                return;
            };
            match effect {
                Effect::Wake { task_id } => {
                    self.command(&Command::Look { task_id }).unwrap();
                }
                Effect::Start { order, .. } => {
                    let (id, attempt) = (order.task_id.clone(), order.attempt);
                    self.event(&Event::StartAnswered { task_id: id.clone(), attempt, refused: None });
                    if self.started.insert((id.clone(), attempt)) {
                        self.begins(&id, attempt);
                        self.ends(&id, attempt, outcome(&id, attempt));
                    }
                }
                Effect::Stop { task_id, attempt, .. } => {
                    self.event(&Event::StopAnswered { task_id: task_id.clone(), attempt });
                    self.ends(&task_id, attempt, AttemptOutcome::Stopped);
                }
                Effect::Sync { upto, change, tasks } => {
                    self.put_rows(&change, &tasks);
                    self.event(&Event::Synced { upto });
                }
            }
        }
        panic!("it does not come to rest");
    }

    fn put_rows(&mut self, change: &Value, tasks: &[Value]) {
        let row = |value: &Value| (value["version"].as_i64().unwrap(), value["status"].as_str().unwrap().to_owned());
        let newer =
            |standing: Option<&(i64, String)>, version: i64| standing.is_none_or(|(stored, _)| version > *stored);
        let found = row(change);
        if newer(self.change_row.as_ref(), found.0) {
            self.change_row = Some(found);
        }
        for task in tasks {
            let found = row(task);
            let id = task["id"].as_str().unwrap().to_owned();
            if newer(self.rows.get(&id), found.0) {
                self.rows.insert(id, found);
            }
        }
    }

    fn all_done(&self) -> bool {
        self.change()["status"] == "completed"
    }
}

fn completes(_: &str, _: u32) -> AttemptOutcome {
    AttemptOutcome::Completed
}

#[test]
fn tasks_are_done_in_an_order_the_graph_allows() {
    let mut world = World::new(1);
    world.create(vec![spec("c", &["a", "b"]), spec("a", &[]), spec("b", &["a"])]);
    assert_eq!(world.change()["status"], "open");
    assert_eq!((world.status("a").as_str(), world.status("b").as_str()), ("ready", "pending"));
    world.settle(completes);
    assert!(world.all_done());
    let order: Vec<&str> = world
        .events
        .iter()
        .filter(|event| event["type"] == "task.status" && event["data"]["status"] == "completed")
        .map(|event| event["data"]["key"].as_str().unwrap())
        .collect();
    assert_eq!(order, ["a", "b", "c"]);
    assert_eq!(world.storage.alarm(), None, "nothing is armed at rest");
    let seqs: Vec<i64> = world.events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (1..=i64::try_from(seqs.len()).unwrap()).collect::<Vec<i64>>());
}

#[test]
fn what_those_before_gave_is_in_the_prompt() {
    let mut world = World::new(2);
    world.create(vec![spec("a", &[]), spec("b", &["a"])]);
    let mut prompts = Vec::new();
    while let Some(effect) = world.effects.pop_front() {
        match effect {
            Effect::Wake { task_id } => {
                world.command(&Command::Look { task_id }).unwrap();
            }
            Effect::Start { order, .. } => {
                prompts.push(order.prompt.clone());
                world.begins(&order.task_id, order.attempt);
                world.ends(&order.task_id, order.attempt, AttemptOutcome::Completed);
            }
            _ => {}
        }
    }
    assert_eq!(prompts.len(), 2);
    assert!(prompts[1].contains("\"summary\":\"done\"") && prompts[1].contains("complete_task"));
}

#[test]
fn a_bad_graph_is_refused_and_nothing_is_stored() {
    let mut world = World::new(3);
    let error =
        world.command(&Command::Create { posted: posted(vec![spec("a", &["b"]), spec("b", &["a"])]) }).unwrap_err();
    assert_eq!(error.code, Code::GraphInvalid);
    assert!(error.message.contains("\"a\""));
    assert_eq!(world.command(&Command::Cancel).unwrap_err().code, Code::NotFound);
}

#[test]
fn the_same_id_with_the_same_body_is_the_same_change_and_with_another_is_refused() {
    let mut world = World::new(4);
    world.create(vec![spec("a", &[])]);
    let again = world.command(&Command::Create { posted: posted(vec![spec("a", &[])]) }).unwrap();
    assert!(matches!(again, Reply::Change { created: false, .. }));
    let mut other = posted(vec![spec("z", &[])]);
    other.body_sha256 = "other".into();
    assert_eq!(world.command(&Command::Create { posted: other }).unwrap_err().code, Code::Conflict);
}

#[test]
fn a_task_that_fails_twice_stops_and_blocks_those_behind_it_until_it_is_tried_again() {
    let mut world = World::new(5);
    world.create(vec![spec("a", &[]), spec("b", &["a"]), spec("c", &["b"])]);
    world.settle(|_, _| AttemptOutcome::Failed);
    assert_eq!((world.status("a").as_str(), world.change()["status"].as_str()), ("failed", Some("failed")));
    assert_eq!(world.task("b")["reason"], "dependency:a");
    assert_eq!(world.task("c")["reason"], "dependency:b");
    assert!(world.events.iter().any(|event| event["type"] == "task.replan.requested"));
    assert_eq!(world.task("a")["attempts"].as_array().unwrap().len(), 2);
    let id = world.task("a")["id"].as_str().unwrap().to_owned();
    world.command(&Command::Retry { task_id: id }).unwrap();
    world.settle(completes);
    assert!(world.all_done());
}

#[test]
fn a_transport_failure_is_tried_once_more_after_the_pause() {
    let mut world = World::new(6);
    world.create(vec![spec("a", &[])]);
    world.settle(|_, attempt| if attempt == 1 { AttemptOutcome::Transport } else { AttemptOutcome::Completed });
    assert!(world.all_done());
    let attempts = world.task("a")["attempts"].clone();
    assert_eq!((&attempts[0]["outcome"], &attempts[1]["outcome"]), (&json!("transport"), &json!("completed")));
    let at = |index: usize, field: &str| {
        chrono::DateTime::parse_from_rfc3339(attempts[index][field].as_str().unwrap()).unwrap()
    };
    assert!((at(1, "started_at") - at(0, "ended_at")).num_milliseconds() >= SETTINGS.retry_task_delay_ms);
}

#[test]
fn after_a_cancel_nothing_begins_and_what_runs_is_stopped() {
    let mut world = World::new(7);
    world.create(vec![spec("a", &[]), spec("b", &["a"]), spec("d", &[])]);
    let ids: Vec<String> = ["a", "d"].iter().map(|key| world.task(key)["id"].as_str().unwrap().to_owned()).collect();
    world.begins(&ids[0], 1);
    world.command(&Command::Cancel).unwrap();
    let begun = world.events.len();
    world.settle(completes);
    assert_eq!(world.change()["status"], "cancelled");
    for key in ["a", "b", "d"] {
        assert_eq!(world.status(key), "stopped", "{key}");
    }
    assert!(!world.events.iter().skip(begun).any(|event| event["type"] == "attempt.started"));
}

#[test]
fn a_budget_stop_is_lifted_by_unblock() {
    let mut world = World::new(8);
    world.create(vec![spec("a", &[]), spec("b", &["a"])]);
    world.settle(|_, _| AttemptOutcome::Budget);
    assert_eq!(world.change()["status"], "budget_blocked");
    world.command(&Command::Unblock).unwrap();
    world.settle(completes);
    assert!(world.all_done());
}

#[test]
fn reports_that_are_late_or_doubled_change_nothing() {
    let mut world = World::new(9);
    world.create(vec![spec("a", &[]), spec("b", &["a"])]);
    world.settle(completes);
    let before = (world.change(), world.events.len());
    let id = world.task("a")["id"].as_str().unwrap().to_owned();
    for outcome in [AttemptOutcome::Completed, AttemptOutcome::Failed] {
        world.ends(&id, 1, outcome);
        world.begins(&id, 1);
        world.ends(&id, 2, outcome);
    }
    assert_eq!((world.change(), world.events.len()), before);
}

/// Random graphs under a queue that loses and doubles, agents that answer late or never, D1 that is away, and deaths of
/// the object at any moment.
fn stormy(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed);
    let count = 1 + world.random.below(8);
    let keys: Vec<String> = (0..count).map(|n| format!("k{n}")).collect();
    let tasks: Vec<TaskSpec> = (0..count)
        .map(|n| {
            let after: Vec<&str> = (0..n).filter(|_| world.random.below(3) == 0).map(|m| keys[m].as_str()).collect();
            spec(&keys[n], &after)
        })
        .collect();
    let edges: BTreeMap<String, Vec<String>> =
        tasks.iter().map(|task| (task.key.clone(), task.after.clone())).collect();
    world.create(tasks);
    let mut working: Vec<(String, u32)> = Vec::new();
    let mut storm = 400;
    for step in 0..20_000 {
        let calm = storm == 0;
        storm -= usize::from(!calm);
        if !calm && world.random.below(25) == 0 {
            world.die();
        }
        // Agents finish their work, sometimes telling it twice.
        if !working.is_empty() && (calm || world.random.below(3) == 0) {
            let (id, attempt) = working.remove(world.random.below(working.len()));
            let outcome =
                if world.random.below(6) == 0 { AttemptOutcome::Transport } else { AttemptOutcome::Completed };
            for _ in 0..=usize::from(world.random.below(4) == 0) {
                world.ends(&id, attempt, outcome);
            }
        }
        let Some(effect) = world.effects.pop_front() else {
            if working.is_empty() && !world.fire_alarm() {
                break;
            }
            if !working.is_empty() && !calm {
                world.fire_alarm();
            }
            continue;
        };
        let lost = !calm && world.random.below(4) == 0;
        let again = !calm && world.random.below(4) == 0;
        if again {
            world.effects.push_back(effect.clone());
        }
        match effect {
            _ if lost => {}
            Effect::Wake { task_id } => {
                world.command(&Command::Look { task_id }).map_err(|error| error.to_string())?;
            }
            Effect::Start { order, .. } => {
                world.starts_asked += 1;
                let (id, attempt) = (order.task_id.clone(), order.attempt);
                // The agent commits the start once; its answer may be lost.
                if world.started.insert((id.clone(), attempt)) {
                    // What it tells may be told twice.
                    for _ in 0..=usize::from(!calm && world.random.below(3) == 0) {
                        world.begins(&id, attempt);
                    }
                    working.push((id.clone(), attempt));
                }
                if calm || world.random.below(3) > 0 {
                    world.event(&Event::StartAnswered { task_id: id, attempt, refused: None });
                }
            }
            Effect::Stop { task_id, attempt, .. } => world.event(&Event::StopAnswered { task_id, attempt }),
            Effect::Sync { upto, change, tasks } => {
                world.put_rows(&change, &tasks);
                if calm || world.random.below(2) == 0 {
                    world.event(&Event::Synced { upto });
                }
            }
        }
        if step == 19_999 {
            return Err("it does not come to rest".into());
        }
    }
    check(&world, &edges)
}

fn check(world: &World, edges: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    let change = world.change();
    let rest = ["completed", "failed"];
    if !rest.contains(&change["status"].as_str().unwrap()) {
        return Err(format!("at rest the Change is {}", change["status"]));
    }
    let mut completed: Vec<String> = Vec::new();
    for event in &world.events {
        let key = event["data"]["key"].as_str().unwrap_or("").to_owned();
        match event["data"]["status"].as_str() {
            Some("completed") if event["type"] == "task.status" => {
                if completed.contains(&key) {
                    return Err(format!("{key} completed twice"));
                }
                completed.push(key);
            }
            Some("ready") if event["type"] == "task.status" => {
                let open: Vec<&String> = edges[&key].iter().filter(|before| !completed.contains(before)).collect();
                if !open.is_empty() {
                    return Err(format!("{key} became ready before {open:?} were done"));
                }
            }
            _ => {}
        }
    }
    let mut begun = BTreeSet::new();
    for event in world.events.iter().filter(|event| event["type"] == "attempt.started") {
        if !begun.insert((event["task_id"].clone().to_string(), event["data"]["attempt"].as_i64())) {
            return Err(format!("an attempt began twice: {event}"));
        }
    }
    for task in change["tasks"].as_array().unwrap() {
        let (id, status) = (task["id"].as_str().unwrap(), task["status"].as_str().unwrap());
        if world.rows.get(id).map(|(_, status)| status.as_str()) != Some(status) {
            return Err(format!("D1 has {:?} for a Task that is {status}", world.rows.get(id)));
        }
    }
    if world.change_row.as_ref().map(|(_, status)| status.as_str()) != change["status"].as_str() {
        return Err("D1 tells another status of the Change".into());
    }
    if world.storage.alarm().is_some() {
        return Err("an alarm stands at rest".into());
    }
    Ok(())
}

#[test]
fn a_change_under_storm_comes_to_rest_with_each_task_done_at_most_once() {
    for seed in 0..400 {
        if let Err(problem) = stormy(seed) {
            panic!("seed {seed}: {problem}");
        }
    }
}

#[cfg(agentdo_sabotage)]
#[test]
fn sabotage_turns_the_storm_red() {
    for fault in [Fault::WakeAcknowledgedBeforeStart, Fault::SecondStartAccepted] {
        crate::sabotage::set(Some(fault));
        let red =
            (0..400).any(|seed| std::panic::catch_unwind(|| stormy(seed)).map_or(true, |outcome| outcome.is_err()));
        crate::sabotage::set(None);
        assert!(red, "{fault:?} goes unnoticed");
    }
}
