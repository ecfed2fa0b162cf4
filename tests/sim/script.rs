//! What the clients do: two scripts that are enumerated, and scripts by seed.

use crate::manners::below;
use agentdo::agent::Command;
use agentdo::agent::state::{AgentConfig, Mode};
use agentdo::model::message::Block;
use agentdo::platform::host::SeededRandom;
use serde_json::json;
use std::fmt;

/// When a client acts: so many ms after the step before, once the log has this event so many times (or the world has
/// come to rest without it).
#[derive(Debug, Clone)]
pub struct Step {
    pub once: Option<(&'static str, usize)>,
    pub delay_ms: i64,
    pub command: Command,
}

/// The steps of the clients, in order.
#[derive(Debug, Clone, Default)]
pub struct Script {
    pub name: String,
    pub steps: Vec<Step>,
}

impl fmt::Display for Script {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.name)?;
        for step in &self.steps {
            let once = step.once.map_or(String::new(), |(kind, count)| format!(" once {count} {kind}"));
            let what = match &step.command {
                Command::Submit { request_id, body_sha256, content, mode } => {
                    let text = agentdo::model::message::text_of(content);
                    format!("submit {request_id} {mode:?} {text:?} hash {body_sha256}")
                }
                other => format!("{other:?}"),
            };
            write!(formatter, "[+{}ms{once}: {what}] ", step.delay_ms)?;
        }
        Ok(())
    }
}

impl Script {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), steps: Vec::new() }
    }

    pub fn then(mut self, delay_ms: i64, command: Command) -> Self {
        self.steps.push(Step { once: None, delay_ms, command });
        self
    }

    pub fn once(mut self, kind: &'static str, count: usize, delay_ms: i64, command: Command) -> Self {
        self.steps.push(Step { once: Some((kind, count)), delay_ms, command });
        self
    }
}

/// An input with its plan.
pub fn submit(request_id: &str, mode: Mode, plan: &str) -> Command {
    let text = if plan.is_empty() { format!("{request_id}.") } else { format!("{request_id}. plan {plan}") };
    Command::Submit {
        request_id: request_id.to_owned(),
        body_sha256: format!("sha-{request_id}"),
        content: vec![Block::text(text)],
        mode,
    }
}

pub fn stop() -> Command {
    Command::Stop { reason: Some("enough".to_owned()) }
}

/// Script 1: one turn.
pub fn one_turn() -> Script {
    Script::new("one turn").then(0, submit("m1", Mode::FollowUp, ""))
}

/// Where script 2 is stopped: the event of the log, its number, and how long after it.
pub const STOPS: [(&str, usize, i64); 6] = [
    // While the third call's hook is asked, its gates or credentials, and while it streams.
    ("tool_ended", 3, 4),
    ("tool_ended", 3, 40),
    ("call_started", 3, 150),
    // While tools run.
    ("tool_started", 1, 20),
    ("tool_started", 3, 30),
    // While the second call is on its way (held or in backoff, when the world is rough).
    ("call_ended", 1, 7_000),
];

/// Script 2: two tool rounds with a steer and a stop, then `retry` and another message.
pub fn two_rounds(stop_at: usize) -> Script {
    let (kind, count, delay_ms) = STOPS[stop_at];
    Script::new(format!("two rounds, stopped at {count} {kind} + {delay_ms} ms"))
        .then(0, submit("m1", Mode::FollowUp, "look+write,edit+edit"))
        .once("call_ended", 1, 10, submit("s1", Mode::Steer, ""))
        .once(kind, count, delay_ms, stop())
        .then(9_000, Command::Retry)
        .then(10, submit("m2", Mode::FollowUp, "write"))
}

/// The same with an interrupt that keeps what waits, and a follow-up in the queue.
pub fn interrupted(stop_at: usize, keep_queue: bool) -> Script {
    let (kind, count, delay_ms) = STOPS[stop_at];
    Script::new(format!("two rounds, interrupted at {count} {kind} + {delay_ms} ms, keep_queue {keep_queue}"))
        .then(0, submit("m1", Mode::FollowUp, "look+write,edit+edit"))
        .then(5, submit("f1", Mode::FollowUp, "look"))
        .once(kind, count, delay_ms, Command::Interrupt { keep_queue })
        .once("call_started", 2, 50, submit("s2", Mode::Steer, ""))
        .then(9_000, submit("m2", Mode::FollowUp, "write"))
}

/// Nobody ends it: several tools, a steer and a follow-up join the run.
pub fn undisturbed() -> Script {
    Script::new("undisturbed")
        .then(0, submit("m1", Mode::FollowUp, "look+write+slow,nosuch+!look+fail"))
        .once("call_started", 1, 30, submit("s1", Mode::Steer, ""))
        .once("call_started", 2, 30, submit("f1", Mode::FollowUp, "look+look+look+look+look+write"))
}

/// Anything, by the seed. It ends with `retry`, so that a stop or a park is not the end.
pub fn random(random: &SeededRandom, seed: u64) -> Script {
    let mut script = Script::new(format!("random {seed}"));
    let events = ["call_started", "tool_started", "tool_ended", "call_ended", "submission", "status"];
    let mut sent: Vec<Command> = Vec::new();
    let count = 3 + random.below(8);
    for n in 0..count {
        let delay_ms = match random.below(6) {
            0 => below(random, 10),
            1 => below(random, 90_000),
            _ => below(random, 2_500),
        };
        let command = match random.below(20) {
            0..=8 => {
                let mode = [Mode::FollowUp, Mode::Steer, Mode::Reject][random.below(3)];
                let command = submit(&format!("r{n}"), mode, &plan(random));
                sent.push(command.clone());
                command
            }
            9 | 10 => stop(),
            11 => Command::Interrupt { keep_queue: true },
            12 => Command::Interrupt { keep_queue: false },
            13..=15 => Command::Retry,
            16 => Command::Signal {
                name: "go".to_owned(),
                request_id: format!("sig{}", random.below(3)),
                call: None,
                value: json!(n),
            },
            17 => Command::Configure {
                config: AgentConfig {
                    system_prompt: format!("prompt {n}"),
                    tier: ["haiku", "sonnet"][random.below(2)].to_owned(),
                    tools: (random.below(2) == 0).then(|| vec!["look".to_owned(), "write".to_owned()]),
                    ..AgentConfig::default()
                },
            },
            // The same again, or the same id with another body.
            _ if !sent.is_empty() => {
                let mut again = sent[random.below(sent.len())].clone();
                if random.below(3) == 0
                    && let Command::Submit { body_sha256, .. } = &mut again
                {
                    "other".clone_into(body_sha256);
                }
                again
            }
            _ => Command::Retry,
        };
        let once = (random.below(3) == 0).then(|| (events[random.below(events.len())], 1 + random.below(5)));
        script.steps.push(Step { once, delay_ms, command });
    }
    script.then(30_000, Command::Retry)
}

fn plan(random: &SeededRandom) -> String {
    let names = ["look", "write", "edit", "slow", "fail", "nosuch", "!look", "look", "write"];
    let rounds: Vec<String> = (0..random.below(4))
        .map(|_| {
            let tools: Vec<&str> = (0..1 + random.below(6)).map(|_| names[random.below(names.len())]).collect();
            tools.join("+")
        })
        .collect();
    rounds.join(",")
}
