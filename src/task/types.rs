//! What a Task and its attempts are, as they are stored and shown.

use crate::config::{Risk, Size, TaskKind, TierName};
use crate::model::message::Usage;
use serde::{Deserialize, Serialize};
use serde_json::Value;

closed_list! {
    /// Where a Task stands (api.md).
    TaskStatus {
        Pending "pending": "Something before it is not done.",
        Ready "ready": "Free to begin; its agent has not begun yet.",
        Running "running": "Its agent is at work on it.",
        Retrying "retrying": "A further attempt begins in a moment.",
        Completed "completed": "Done, with its Intent.",
        Failed "failed": "Ended without success; `retry` begins anew.",
        Blocked "blocked": "It cannot go on; its reason says why.",
        BudgetBlocked "budget_blocked": "A cap is reached.",
        Stopped "stopped": "Somebody stopped it.",
    }
}

closed_list! {
    /// Where a Change stands (api.md).
    ChangeStatus {
        Open "open": "Nothing has begun.",
        Running "running": "Work goes on.",
        Completed "completed": "Every Task is completed.",
        Failed "failed": "A Task failed or was stopped, and nothing can go on.",
        Blocked "blocked": "Nothing can go on before somebody acts.",
        BudgetBlocked "budget_blocked": "A cap is reached.",
        Cancelled "cancelled": "Somebody cancelled it.",
    }
}

closed_list! {
    /// How an attempt ended (design section 7).
    AttemptOutcome {
        Completed "completed": "`complete_task` was called.",
        Failed "failed": "`fail_task` was called.",
        NoOutcome "no_outcome": "The run ended without either.",
        Timeout "timeout": "The run took too long.",
        Quota "quota": "The provider is used up for the day.",
        Budget "budget": "A cap is reached.",
        Transport "transport": "The provider could not be reached or gave nothing usable.",
        Config "config": "The request cannot succeed as it is configured.",
        Stopped "stopped": "Somebody stopped it.",
        Parked "parked": "It was cut off too often.",
    }
}

/// A Task as it was posted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Unique in its Change.
    pub key: String,
    /// For people and the model.
    pub title: String,
    /// For the model.
    pub instructions: String,
    /// Declared kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<TaskKind>,
    /// Declared risk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    /// Declared size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// The tier, when it is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierName>,
    /// The agent, when it is named; else the Task has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Keys of Tasks that must be completed before.
    #[serde(default)]
    pub after: Vec<String>,
    /// What it is going to touch.
    #[serde(default)]
    pub claims: Vec<String>,
    /// Any JSON object, for the model.
    #[serde(default)]
    pub inputs: Value,
}

/// A Task: a row of the Change's object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// `task_…`.
    pub id: String,
    /// Its place in the posted list, from 0.
    pub position: i64,
    /// As it was posted.
    pub spec: TaskSpec,
    /// Where it stands.
    pub status: TaskStatus,
    /// Why it is blocked: `dependency:<key>`, or the agent's reason.
    pub reason: Option<String>,
    /// The Intent of `complete_task`.
    pub intent: Option<Value>,
    /// Reason and detail of `fail_task`, or of the last attempt.
    pub failure: Option<Failure>,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// When the next attempt begins, while retrying, ms since 1970.
    pub retry_due_ms: Option<i64>,
    /// The attempt whose start its agent has not confirmed, and when it is asked again.
    pub waking: Option<Waking>,
    /// The agent has been asked to stop this attempt and has not confirmed.
    pub stopping: bool,
    /// Number of the event that last changed it: its version for other stores.
    pub version: i64,
}

/// A start that is owed until the agent has committed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waking {
    /// The attempt, from 1.
    pub attempt: u32,
    /// When the alarm carries it again, ms since 1970.
    pub due_ms: i64,
}

/// Why a Task failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// A reason of `fail_task`, or the outcome of the last attempt.
    pub reason: String,
    /// For people.
    pub detail: String,
}

/// One attempt of a Task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// From 1.
    pub attempt: u32,
    /// The tier it runs at.
    pub tier: Option<String>,
    /// The provider it runs at.
    pub provider: Option<String>,
    /// The model it is configured with.
    pub model: Option<String>,
    /// `None` while it runs.
    pub outcome: Option<AttemptOutcome>,
    /// For people and later attempts.
    pub detail: Option<String>,
    /// When its agent began, ms since 1970.
    pub started_ms: Option<i64>,
    /// When it ended, ms since 1970.
    pub ended_ms: Option<i64>,
    /// Model calls.
    pub calls: u32,
    /// Tokens and money.
    pub usage: Usage,
}

impl Attempt {
    /// An attempt that has not begun.
    pub fn new(attempt: u32) -> Self {
        Self {
            attempt,
            tier: None,
            provider: None,
            model: None,
            outcome: None,
            detail: None,
            started_ms: None,
            ended_ms: None,
            calls: 0,
            usage: Usage::default(),
        }
    }
}

impl Task {
    /// The agent that works on it: the one it names, or one of its own.
    pub fn agent(&self) -> String {
        self.spec.agent.clone().unwrap_or_else(|| self.id.replace('_', "-"))
    }

    /// Whether it can change no more by itself.
    pub fn at_rest(&self) -> bool {
        !matches!(self.status, TaskStatus::Pending | TaskStatus::Ready | TaskStatus::Running | TaskStatus::Retrying)
    }
}

/// What an agent is to do: one attempt of a Task. Starting it twice is starting it once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The Change.
    pub change_id: String,
    /// The Task.
    pub task_id: String,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The tier, when it is named.
    pub tier: Option<TierName>,
    /// What the model is told.
    pub prompt: String,
}
