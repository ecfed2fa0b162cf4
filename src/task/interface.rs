//! The only ways in and out of a Change's machine: commands and events in, effects and replies out.

use super::types::{AttemptOutcome, Failure, Order, TaskSpec};
use crate::model::message::Usage;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is posted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Posted {
    /// The Change's id.
    pub id: String,
    /// Hash of the canonical body: the same id with another is refused.
    pub body_sha256: String,
    /// For people and the model.
    pub title: String,
    /// For people and the model.
    pub description: String,
    /// The Tasks.
    pub tasks: Vec<TaskSpec>,
}

/// What somebody asks of a Change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Makes it.
    Create {
        /// All of it.
        posted: Posted,
    },
    /// Nothing begins any more; what runs is stopped.
    Cancel,
    /// Blocked Tasks that could go on do so.
    Unblock,
    /// A Task at rest begins anew.
    Retry {
        /// The Task.
        task_id: String,
    },
    /// A wake arrived: whatever start is owed for the Task is carried now.
    Look {
        /// The Task.
        task_id: String,
    },
    /// An agent tells of an attempt.
    Report {
        /// What it tells.
        report: Report,
    },
}

/// What an agent tells of an attempt, until it is acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The Task.
    pub task_id: String,
    /// The attempt.
    pub attempt: u32,
    /// What happened.
    pub what: Told,
}

/// See [`Report`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// Its run began.
    Started {
        /// The tier.
        tier: String,
        /// The provider.
        provider: String,
        /// The configured model.
        model: String,
    },
    /// It ended.
    Ended {
        /// How.
        outcome: AttemptOutcome,
        /// For people and later attempts.
        detail: Option<String>,
        /// The Intent, when it was completed.
        intent: Option<Value>,
        /// What `fail_task` said.
        failure: Option<Failure>,
        /// Model calls.
        calls: u32,
        /// Tokens and money.
        usage: Usage,
    },
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Put a wake into the queue. It carries no decision and may be lost.
    Wake {
        /// The Task.
        task_id: String,
    },
    /// Tell the agent to start; answer [`Event::StartAnswered`].
    Start {
        /// The agent.
        agent: String,
        /// What it is to do.
        order: Box<Order>,
    },
    /// Tell the agent to stop an attempt; answer [`Event::StopAnswered`].
    Stop {
        /// The agent.
        agent: String,
        /// The Task.
        task_id: String,
        /// The attempt.
        attempt: u32,
    },
    /// Tell D1; answer [`Event::Synced`]. A row with a lower version changes nothing there.
    Sync {
        /// What the rows are up to.
        upto: i64,
        /// The Change's row.
        change: Value,
        /// Rows of Tasks that changed.
        tasks: Vec<Value>,
    },
}

/// What happened to an effect, or to time.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The agent committed the start, or refused it for good; what may pass is not answered and asked again.
    StartAnswered {
        /// The Task.
        task_id: String,
        /// The attempt.
        attempt: u32,
        /// Why it refuses for good.
        refused: Option<String>,
    },
    /// The agent has taken the stop.
    StopAnswered {
        /// The Task.
        task_id: String,
        /// The attempt.
        attempt: u32,
    },
    /// D1 has it.
    Synced {
        /// Up to this.
        upto: i64,
    },
    /// The object's alarm fired.
    AlarmFired,
}

/// What a command answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The Change as the API shows it, and whether this command made it.
    Change {
        /// `{"id","title",…}`.
        change: Value,
        /// Made by this command.
        created: bool,
    },
    /// The Task as the API shows it.
    Task(Value),
    /// Done, nothing to show.
    Done,
}

/// What one transaction asks for, once it is committed.
#[derive(Debug, Default, PartialEq)]
pub struct Output {
    /// To perform, in order.
    pub effects: Vec<Effect>,
    /// Committed events.
    pub events: Vec<Value>,
}
