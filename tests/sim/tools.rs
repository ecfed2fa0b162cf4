//! The tools outside, with a counter of their own that no crash of the object touches.

use agentdo::agent::ToolSpec;
use agentdo::agent::state::{Replay, ToolResult};
use agentdo::model::message::Block;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What is registered. `slow` runs past its time now and then; calls of `edit` must not overlap.
pub fn registered() -> Vec<ToolSpec> {
    let tool = |name: &str, replay, timeout_ms, resource: Option<&str>| ToolSpec {
        name: name.to_owned(),
        description: String::new(),
        parameters: json!({ "type": "object" }),
        replay,
        timeout_ms,
        resource: resource.map(str::to_owned),
    };
    vec![
        tool("look", Replay::Safe, None, None),
        tool("write", Replay::Unsafe, None, None),
        tool("edit", Replay::Unsafe, None, Some("file")),
        tool("slow", Replay::Safe, Some(20_000), None),
        tool("fail", Replay::Unsafe, None, None),
    ]
}

/// Arguments with `bad` in them do not fit any tool.
pub fn check_arguments(_tool: &str, arguments: &Value) -> Result<(), String> {
    if arguments.get("bad").is_some() { Err("bad is not known".to_owned()) } else { Ok(()) }
}

/// How long the tool takes, ms; `draw` is below 1000.
pub fn takes_ms(name: &str, draw: i64) -> i64 {
    match name {
        "slow" => 2_000 + draw * 30,
        "edit" => 400 + draw,
        _ => 50 + draw / 4,
    }
}

/// What the tool gives.
pub fn result(name: &str) -> ToolResult {
    ToolResult { content: vec![Block::text(format!("{name} is done"))], is_error: name == "fail", code: None }
}

/// Executions of one tool call, as the world outside counted them.
#[derive(Debug, Default)]
pub struct Counter {
    /// By the model's id of the call: the idempotency keys it came with, one for each execution.
    executions: BTreeMap<String, Vec<String>>,
    running: BTreeMap<String, String>,
}

impl Counter {
    /// A tool begins; the complaint when it must not.
    pub fn begin(&mut self, tool_call_id: &str, key: &str, name: &str) -> Result<(), String> {
        let keys = self.executions.entry(tool_call_id.to_owned()).or_default();
        keys.push(key.to_owned());
        if keys.iter().any(|known| known != key) {
            return Err(format!("{name} of {tool_call_id} came under the keys {keys:?}"));
        }
        let unsafe_tool = registered().iter().any(|tool| tool.name == name && tool.replay == Replay::Unsafe);
        if unsafe_tool && keys.len() > 1 {
            return Err(format!("{name} of {tool_call_id} was executed {} times", keys.len()));
        }
        Ok(())
    }

    /// Calls of one resource must not overlap while their instance lives.
    pub fn hold(&mut self, resource: &str, key: &str) -> Result<(), String> {
        match self.running.insert(resource.to_owned(), key.to_owned()) {
            Some(other) if other != key => Err(format!("{key} began while {other} held {resource}")),
            _ => Ok(()),
        }
    }

    /// The holder of a resource ended or was left behind.
    pub fn release(&mut self, key: &str) {
        self.running.retain(|_, holder| holder != key);
    }

    /// The instance died: nothing of it counts as running.
    pub fn release_all(&mut self) {
        self.running.clear();
    }
}
