//! What is said to and heard from a model: the neutral messages, the wire decoders and encoders, and the classification of
//! what came back into typed outcomes (design R5). All of it is pure; bytes come in, values come out.

pub mod assemble;
pub mod call;
mod calls;
pub mod chat;
pub mod classify;
pub mod discreet;
pub mod encode;
pub mod estimate;
mod finish;
pub mod headers;
mod lenient;
pub mod message;
mod redact;
pub mod sse;
#[cfg(test)]
mod testing;
mod usage;
mod wait;
pub mod wire;

use message::AssistantMessage;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A piece of a streamed answer, in the order of the wire. The stream log stores these, and [`assemble::Assembler`] folds
/// them into a message, live and after a crash alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delta {
    /// Answer text.
    Text(String),
    /// Reasoning text.
    Thinking(String),
    /// Part of a tool call, as the provider identified it; the assembler decides which call it belongs to.
    Call {
        /// The provider's index of the call, opaque.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<i64>,
        /// The call's id, when this piece has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The tool's name, when this piece has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// A piece of the arguments' JSON text, possibly empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        arguments: String,
    },
    /// One `reasoning_details` item, verbatim. An empty array stands for a list without items, which is to be echoed too.
    Reasoning(Value),
    /// The model that answers, as the provider names it.
    Model(String),
    /// Tokens and money, as the provider counts them; a later one replaces an earlier.
    Usage(message::Usage),
    /// The upstream's own finish reason, where it says more than the next [`Delta::Finish`] (`MALFORMED_FUNCTION_CALL`
    /// under `stop`).
    NativeFinish(String),
    /// The provider's finish reason: the end mark. Without it an answer is not complete.
    Finish(String),
    /// An error object the provider sent inside the stream, shortened and without credentials. It outranks a finish
    /// reason, whichever came first.
    Error(Value),
}

/// What one model call came to (design R5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A complete answer; its [`message::Stop`] says whether it asks for tools or was cut by the output limit.
    Answer(AssistantMessage),
    /// No usable answer.
    Failed(Failure),
}

/// Why a model call gave no usable answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind, which decides what follows.
    pub kind: FailureKind,
    /// For people: provider's words, at most 2 KiB, without credentials.
    pub message: String,
    /// HTTP status, when there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How long the provider asks us to wait (Retry-After, reset time), ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What had arrived before it failed: shown as an aborted entry, never sent back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<Box<AssistantMessage>>,
}

impl Failure {
    /// A failure of this kind with these words and nothing else known.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), status: None, retry_after_ms: None, partial: None }
    }
}

/// The typed outcomes of design R5 that are not an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Network, 5xx, a cut or stalled stream: retried (design R6).
    Transient,
    /// 429 that passes within two minutes: retried after its time.
    RateLimited,
    /// Used up for the day.
    QuotaExhausted,
    /// A wrong or missing credential.
    Authentication,
    /// The provider refuses the request as it is.
    InvalidRequest,
    /// The context does not fit the model.
    ContextOverflow,
    /// Refused by a content filter.
    ContentFilter,
    /// A tool call that cannot be parsed at all.
    MalformedCall,
    /// Cut by the output limit with nothing usable.
    Truncated,
    /// No text and no call, or reasoning only.
    Empty,
    /// We ended it ourselves.
    Aborted,
}
