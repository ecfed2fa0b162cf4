//! A Change and its Tasks as the API shows them.

use super::change::{State, status_of};
use super::types::Task;
use crate::log::rfc3339;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(super) fn change_json(state: &State, tasks: &BTreeMap<i64, Task>) -> Value {
    let tasks_json: Vec<Value> = tasks
        .values()
        .map(|task| {
            json!({
                "id": task.id, "key": task.spec.key, "title": task.spec.title, "status": task.status,
                "agent_id": task.agent(), "after": task.spec.after,
            })
        })
        .collect();
    json!({
        "id": state.id, "title": state.title, "status": status_of(state, tasks),
        "created_at": rfc3339(state.created_ms), "tasks": tasks_json,
    })
}

pub(super) fn task_json(state: &State, task: &Task) -> Value {
    let attempts: Vec<Value> = task
        .attempts
        .iter()
        .map(|attempt| {
            json!({
                "attempt": attempt.attempt, "tier": attempt.tier, "provider": attempt.provider, "model": attempt.model,
                "status": if attempt.outcome.is_some() { "ended" } else { "running" }, "outcome": attempt.outcome,
                "started_at": attempt.started_ms.map(rfc3339), "ended_at": attempt.ended_ms.map(rfc3339),
                "calls": attempt.calls, "usage": attempt.usage,
            })
        })
        .collect();
    json!({
        "id": task.id, "key": task.spec.key, "change_id": state.id, "title": task.spec.title, "status": task.status,
        "reason": task.reason, "agent_id": task.agent(), "intent": task.intent, "failure": task.failure,
        "attempts": attempts,
    })
}
