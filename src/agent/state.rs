//! The working set of one agent: what resuming needs, and nothing that can be derived.

use crate::model::message::{Block, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How an agent is configured (api.md, `PUT /v1/agents/{id}`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentConfig {
    /// The system prompt.
    pub system_prompt: String,
    /// `haiku`, `sonnet` or `opus`.
    pub tier: String,
    /// `openrouter` or `vertex`, when it is pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Names of the tools it may use; `None` means all that are registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Reasoning level, when it differs from the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
}

/// The `state` of the one row of table `agent`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Agent {
    /// Raised when an instance opens with work in flight; events of an older instance are dropped.
    pub epoch: i64,
    /// Sequence number of the last event.
    pub seq: i64,
    /// How many submissions were ever accepted.
    pub accepted: i64,
    /// How many submissions wait.
    pub queued: u32,
    /// How many entries the transcript has.
    pub entries: i64,
    /// Tokens and money of all calls.
    pub usage: Usage,
    /// What the one alarm stands at, as this object last set it.
    pub alarm_ms: Option<i64>,
    /// Refuses messages until `retry`.
    pub stopped: bool,
    /// A tombstone: everything else is gone.
    pub deleted: bool,
    /// A stop or interrupt that is being carried out.
    pub ending: Option<Ending>,
    /// The current run.
    pub run: Option<Run>,
    /// The last failures with the same cause.
    pub failures: Option<Failures>,
    /// Why the whole agent is parked (the breaker), when it is.
    pub parked: Option<Parked>,
    /// What the index of agents was last told.
    pub index: IndexMark,
}

/// The state of the index row: a versioned upsert that is sent until it is acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IndexMark {
    /// Raised with each change that the index must hear of.
    pub version: i64,
    /// The last version the index took, as far as it is stored.
    pub acknowledged: i64,
}

/// Runs that ended with the same reason, one after another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// The reason.
    pub reason: Reason,
    /// How many in a row.
    pub count: u32,
}

/// Why something is parked, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    /// Such as `repeated_failure`, `hook_crash`, `call_crash`, `tool_crash`.
    pub reason: String,
    /// ms since 1970, UTC.
    pub since_ms: i64,
}

/// A committed mark: the run is to end (design X1, X2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Stop or interrupt.
    pub kind: EndingKind,
    /// What the client said, for the log.
    pub note: Option<String>,
    /// By then what has not answered is left behind, ms since 1970.
    pub due_ms: i64,
}

/// What follows when the run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndingKind {
    /// The agent refuses messages; queued inputs settle `stopped`.
    Stop,
    /// The agent goes on with its queue.
    Interrupt,
}

/// Why a submission got no answer (shapes.md, closed list).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Reason {
    Stopped,
    Interrupted,
    Reset,
    Deleted,
    Budget,
    Quota,
    Timeout,
    ModelError,
    ContentFilter,
    Config,
    ContextOverflow,
    Empty,
    HookCancelled,
    RepeatedFailure,
}

impl Reason {
    /// The word of the closed list.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Interrupted => "interrupted",
            Self::Reset => "reset",
            Self::Deleted => "deleted",
            Self::Budget => "budget",
            Self::Quota => "quota",
            Self::Timeout => "timeout",
            Self::ModelError => "model_error",
            Self::ContentFilter => "content_filter",
            Self::Config => "config",
            Self::ContextOverflow => "context_overflow",
            Self::Empty => "empty",
            Self::HookCancelled => "hook_cancelled",
            Self::RepeatedFailure => "repeated_failure",
        }
    }

    /// Whether it is the work that failed, and not somebody who ended it.
    pub fn counts_as_failure(self) -> bool {
        !matches!(self, Self::Stopped | Self::Interrupted | Self::Reset | Self::Deleted)
    }
}

/// The work that answers one or more submissions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// `run_…`.
    pub id: String,
    /// ms since 1970, UTC.
    pub started_ms: i64,
    /// Fixed for the run.
    pub tier: String,
    /// Fixed for the run.
    pub provider: String,
    /// Request ids of the submissions placed and not yet settled.
    pub placed: Vec<String>,
    /// Model requests dispatched.
    pub calls: u32,
    /// Answers in a row that the output limit cut in their tool calls.
    pub truncated_in_a_row: u32,
    /// Why it is parked, when it is: `retry` goes on.
    pub parked: Option<Parked>,
    /// Where it stands.
    pub phase: Phase,
}

/// Where a run stands. Only the current phase is stored; entering one is one transaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// On the way of a model call (design R2).
    Call(CallOp),
    /// Tool calls are at work; they are rows of `work`.
    Tools {
        /// The earliest time one of them is due, ms since 1970.
        due_ms: Option<i64>,
    },
}

/// The model call in flight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallOp {
    /// `call_…`: names the operation in effects and events.
    pub id: String,
    /// Raised whenever what was asked before must not count any more.
    pub generation: u32,
    /// Where it stands on the way of design R2.
    pub step: CallStep,
    /// Retries after transient failures (design R6).
    pub retries: u32,
    /// Empty answers (design R8).
    pub empties: u32,
    /// Times it was cut off by a crash since it last made progress (design L3).
    pub restarts: u32,
    /// The same, while its hooks were asked: a hold clears these and not the ones above.
    pub hook_restarts: u32,
    /// Its hooks have held it for a while: a death now is a hold, not a crash.
    pub pending: bool,
    /// When a backoff or a waiting gate is due, ms since 1970.
    pub due_ms: Option<i64>,
    /// Since when it waits so, ms since 1970.
    #[serde(default)]
    pub since_ms: Option<i64>,
    /// Bytes of the request that was dispatched, for the estimate of a lost call.
    pub request_bytes: u64,
}

/// The steps of a call, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStep {
    /// `before_agent_request` has been asked.
    Hooks,
    /// Gate number `n` of the configured list has been asked.
    Gate(u32),
    /// A gate said to come back at `due_ms`.
    GateWait(u32),
    /// Credentials are being read; the next transaction dispatches.
    Authorize,
    /// `call_started` is committed and the request has left.
    Dispatched,
    /// Waiting before it goes out again.
    Backoff,
    /// Its end is on record; what follows is decided in the same transaction.
    Ended,
}

/// Whether a tool may run again after a crash (design T3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// It may: it is idempotent under its call id.
    Safe,
    /// It must not: after a crash it is answered `interrupted`.
    #[default]
    Unsafe,
}

/// One tool call of the current round: a row of `work`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolOp {
    /// Its place in the assistant message, from 0.
    pub position: i64,
    /// `tool_…`: names the operation, and is the tool's idempotency key.
    pub id: String,
    /// See [`CallOp::generation`].
    pub generation: u32,
    /// Where it stands.
    pub step: ToolStep,
    /// The id the model gave the call.
    pub tool_call_id: String,
    /// The tool.
    pub name: String,
    /// Final once the step is `started`.
    pub arguments: Value,
    /// Fixed when it starts.
    pub replay: Replay,
    /// How long it may run, ms.
    pub timeout_ms: u64,
    /// What it works on: tools that name the same resource run one after another.
    pub resource: Option<String>,
    /// See [`CallOp::restarts`].
    pub restarts: u32,
    /// See [`CallOp::pending`].
    pub pending: bool,
    /// When it times out, ms since 1970.
    pub due_ms: Option<i64>,
    /// What it gave, once it is done; its entry follows when all before it are done.
    pub result: Option<ToolResult>,
}

/// The steps of a tool call, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolStep {
    /// Waits for one of the places, or for its resource.
    Queued,
    /// `tool_call` has been asked.
    Hooks,
    /// `tool_started` is committed and it runs.
    Started,
    /// It has its result.
    Done,
}

/// What a tool call gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// For the model.
    pub content: Vec<Block>,
    /// True when it failed or never ran.
    pub is_error: bool,
    /// A stable code, when the error is ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

impl ToolResult {
    /// A result that is an error of ours, with its code and the words for the model.
    pub fn error(code: &str, text: impl Into<String>) -> Self {
        Self { content: vec![Block::text(text)], is_error: true, code: Some(code.to_owned()) }
    }
}

/// A submission's mode (design I2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Joins after the current tool round.
    Steer,
    /// Joins after the answer.
    FollowUp,
    /// Refused while busy.
    Reject,
}

impl Mode {
    /// The word in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Steer => "steer",
            Self::FollowUp => "follow_up",
            Self::Reject => "reject",
        }
    }
}

impl Agent {
    /// The status the API shows; derived, never stored.
    pub fn status(&self) -> &'static str {
        if self.deleted {
            "deleted"
        } else if self.stopped {
            "stopped"
        } else if self.ending.is_some() {
            "stopping"
        } else if self.parked.is_some() || self.run.as_ref().is_some_and(|run| run.parked.is_some()) {
            "parked"
        } else if self.run.is_some() {
            "working"
        } else {
            "idle"
        }
    }

    /// Whether nothing goes on by itself: what the index shows then is its last word for a while.
    pub fn rests(&self) -> bool {
        self.run.as_ref().is_none_or(|run| run.parked.is_some())
    }

    /// When the object must be awake next (design L1): the earliest due time, and `ahead_ms` from now while work is in
    /// flight, since an object without events is evicted and nothing else would wake it.
    pub fn wake_at(&self, now_ms: i64, ahead_ms: i64) -> Option<i64> {
        // At rest the only thing that may be owed is the index's word (design A3).
        let owed = self.rests() && self.index.acknowledged < self.index.version;
        let owed = owed.then(|| now_ms.saturating_add(ahead_ms));
        [self.work_at(now_ms, ahead_ms), owed].into_iter().flatten().min()
    }

    /// The same without what is owed to the index: what the index is told, since once it has heard nothing is owed.
    pub fn work_at(&self, now_ms: i64, ahead_ms: i64) -> Option<i64> {
        // While the run is being ended nothing else of it is looked at, so that nothing else may set the alarm: a tool whose
        // time is over would have it fire without a pause until the grace is over.
        if let Some(ending) = self.ending.as_ref() {
            return Some(ending.due_ms.min(now_ms.saturating_add(ahead_ms)));
        }
        let (due, in_flight) = match self.run.as_ref() {
            None => (None, false),
            Some(run) => match &run.phase {
                Phase::Call(call) => {
                    let waits = matches!(call.step, CallStep::Backoff | CallStep::GateWait(_));
                    (call.due_ms, !waits && run.parked.is_none())
                }
                Phase::Tools { due_ms } => (*due_ms, run.parked.is_none()),
            },
        };
        let liveness = in_flight.then(|| now_ms.saturating_add(ahead_ms));
        [due, liveness].into_iter().flatten().min()
    }
}
