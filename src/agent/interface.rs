//! The only ways in and out of the machine (design A3).

use super::state::{AgentConfig, Mode, Replay, ToolResult};
use crate::model::message::Block;
use crate::model::{Delta, Failure, Outcome};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What somebody asks of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// One input.
    Submit {
        /// The client's id: the same id is the same submission, always.
        request_id: String,
        /// Hash of the canonical body: the same id with another is refused.
        body_sha256: String,
        /// Text and images.
        content: Vec<Block>,
        /// What to do while busy.
        mode: Mode,
    },
    /// Ends the run; messages are refused until `Retry`.
    Stop {
        /// For the log.
        reason: Option<String>,
    },
    /// Ends the run and keeps the agent.
    Interrupt {
        /// Whether queued inputs stay.
        keep_queue: bool,
    },
    /// Ends a stop and a park.
    Retry,
    /// A value for a tool that waits, now or later.
    Signal {
        /// The signal's name.
        name: String,
        /// The client's id: a repeat changes nothing.
        request_id: String,
        /// The tool call it is for, when several could wait.
        call: Option<String>,
        /// Any JSON.
        value: Value,
    },
    /// Ends everything and forgets it; only a tombstone stays.
    Delete,
    /// Replaces the configuration; it counts from the next request on.
    Configure {
        /// All of it.
        config: AgentConfig,
    },
}

/// What a command answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// A submission, and whether this command made it (202) or it was there (200).
    Submission {
        /// As the API shows it.
        submission: Value,
        /// Made by this command.
        created: bool,
    },
    /// Done; the agent as the API shows it.
    Agent(Value),
    /// Done, nothing to show.
    Done,
}

/// Names an operation in flight: every effect carries it, every event brings it back, and one of an older epoch or
/// generation is dropped. That is the whole fence against stale instances, late hooks and tools left behind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OpRef {
    /// The instance's epoch.
    pub epoch: i64,
    /// The operation: `call_…` or `tool_…`.
    pub id: String,
    /// The operation's generation.
    pub generation: u32,
}

/// What the driver is to do. It decides nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask the handlers of one hook; answer [`Event::HooksAnswered`], and [`Event::HooksPending`] when it takes long.
    AskHooks {
        /// The operation that waits.
        op: OpRef,
        /// What the handlers see.
        hook: HookCall,
        /// Facts for the handlers' `ctx`.
        context: HookContext,
    },
    /// Ask one gate; answer [`Event::GateAnswered`].
    AskGate {
        /// The operation that waits.
        op: OpRef,
        /// The gate's name.
        name: String,
    },
    /// Make the credentials ready, then answer [`Event::Authorized`].
    Authorize {
        /// The operation that waits.
        op: OpRef,
        /// `openrouter` or `vertex`.
        provider: String,
    },
    /// Send the request; answer [`Event::StreamBatch`] as it comes and [`Event::ModelEnded`] once.
    CallModel {
        /// The operation.
        op: OpRef,
        /// All that the request needs but credentials.
        request: Box<ModelRequest>,
    },
    /// Run the tool; answer [`Event::ToolEnded`] once.
    RunTool {
        /// The operation; its id is the tool's idempotency key.
        op: OpRef,
        /// The tool's name.
        name: String,
        /// The arguments that were committed.
        arguments: Value,
        /// The id the model gave the call.
        tool_call_id: String,
        /// Facts for the tool's `ctx`.
        context: HookContext,
    },
    /// Tell the index of agents; answer [`Event::Indexed`].
    Index(IndexRow),
    /// End the operation: its signal is aborted, and what it answers later no longer counts.
    Abort {
        /// The operation.
        op: OpRef,
    },
}

/// One dispatch of a hook.
#[derive(Debug, Clone, PartialEq)]
pub enum HookCall {
    /// May hold the call, by not returning.
    BeforeAgentRequest,
    /// May change the input or block the call.
    ToolCall {
        /// The id the model gave the call.
        tool_call_id: String,
        /// The tool's name.
        tool_name: String,
        /// The object that will run.
        input: Value,
    },
}

/// Facts for a handler's `ctx` (hooks.md).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HookContext {
    /// The run.
    pub run_id: String,
    /// Its tier.
    pub tier: String,
    /// Its provider.
    pub provider: String,
    /// Number of the call within the run, from 1.
    pub call: u32,
    /// True after a crash.
    pub resumed: bool,
}

/// A model request, ready to send.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// `openrouter` or `vertex`.
    pub provider: String,
    /// The first model asked for.
    pub model: String,
    /// Its tier.
    pub tier: String,
    /// The encoded body.
    pub body: String,
    /// The run, as session for the provider and in the gateway's metadata.
    pub run_id: String,
    /// Number of the call within the run, from 1.
    pub call: u32,
    /// Try of this call, from 1.
    pub attempt: u32,
}

/// What the index of agents is to hold: an upsert that a lower version never undoes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexRow {
    /// Rises with each change.
    pub version: i64,
    /// As the API shows it.
    pub status: String,
    /// When the object wants to be awake, ms since 1970; a sweep wakes it when that is long past.
    pub due_ms: Option<i64>,
    /// A tombstone.
    pub deleted: bool,
}

/// A handler that failed, and what it was doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookReport {
    /// The extension's name.
    pub namespace: String,
    /// The event it handled.
    pub event: String,
    /// What went wrong.
    pub message: String,
}

/// What the handlers of one hook said, together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// The input as they left it (`tool_call`).
    pub input: Option<Value>,
    /// Blocked, with the reason.
    pub block: Option<String>,
    /// Handlers that failed.
    pub reports: Vec<HookReport>,
}

/// What a gate said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateAnswer {
    /// Pass.
    Go,
    /// Not now: ask again then (ms since 1970).
    Wait(i64),
    /// No: the run ends with this reason in its log.
    No(String),
}

/// What happened to an effect, or to time.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// All handlers returned.
    HooksAnswered {
        /// The operation that waited.
        op: OpRef,
        /// What they said.
        verdict: Verdict,
    },
    /// The handlers have not returned for a while: from now on a death is a hold.
    HooksPending {
        /// The operation that waits.
        op: OpRef,
    },
    /// The gate answered.
    GateAnswered {
        /// The operation that waited.
        op: OpRef,
        /// The gate.
        name: String,
        /// What it said.
        answer: GateAnswer,
    },
    /// Credentials are ready in the driver's memory, or cannot be had.
    Authorized {
        /// The operation that waited.
        op: OpRef,
        /// Why not.
        refused: Option<Failure>,
    },
    /// A piece of the stream, for the stream log.
    StreamBatch {
        /// The call.
        op: OpRef,
        /// In the order of the wire.
        deltas: Vec<Delta>,
    },
    /// The call ended; it comes once.
    ModelEnded {
        /// The call.
        op: OpRef,
        /// What it came to.
        outcome: Outcome,
    },
    /// The tool ended; it comes once.
    ToolEnded {
        /// The tool call.
        op: OpRef,
        /// What it gave.
        result: ToolResult,
    },
    /// The index took this version.
    Indexed {
        /// The version.
        version: i64,
    },
    /// The object's alarm fired, or somebody saw that it is due.
    AlarmFired,
}

/// What one transaction of the machine asks for, once it is committed.
#[derive(Debug, Default, PartialEq)]
pub struct Output {
    /// To perform, in order.
    pub effects: Vec<Effect>,
    /// Committed events, to show to those who watch.
    pub events: Vec<Value>,
    /// Only set by a sabotaged build: the alarm to set after the commit.
    pub late_alarm: Option<Option<i64>>,
}

/// A tool as the machine knows it; its code is with the driver.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// For the model.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Value,
    /// Whether it may run again after a crash.
    pub replay: Replay,
    /// How long it may run, ms; the default when `None`.
    pub timeout_ms: Option<u64>,
    /// What it works on, when calls of it must not overlap.
    pub resource: Option<String>,
}
