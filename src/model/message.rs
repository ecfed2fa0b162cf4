//! The neutral form of what is said to and heard from a model; api.md shows it to clients as it is.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One part of a message's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// Reasoning that the provider showed. Never sent to another provider or model.
    Thinking {
        /// The reasoning text, empty when the provider hid it.
        text: String,
    },
    /// A tool call asked for by the model.
    ToolCall {
        /// The call's id, unique within the message.
        id: String,
        /// The tool's name as the model gave it; it may be unknown here.
        name: String,
        /// The arguments: an object, or what the model sent when it was none (see [`AssistantMessage::call_faults`]).
        arguments: Value,
    },
    /// An image.
    Image {
        /// Base64 without a data-URL prefix.
        data: String,
        /// Such as `image/png`.
        mime_type: String,
    },
}

impl Block {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// The text of all text blocks, joined.
pub fn text_of(content: &[Block]) -> String {
    content
        .iter()
        .filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// It said all it had to say.
    Stop,
    /// It asks for tool calls.
    ToolCalls,
    /// The output limit cut it (design R8: outranks tool calls).
    Length,
    /// We cut it: stop, interrupt, crash.
    Aborted,
    /// The provider reported an error.
    Error,
}

/// Tokens and money of one call. `estimated` when the provider did not say (design R4).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Prompt tokens that were not read from a cache.
    pub input_tokens: u64,
    /// Completion tokens, reasoning included.
    pub output_tokens: u64,
    /// Prompt tokens read from a cache.
    pub cached_tokens: u64,
    /// Completion tokens that were reasoning.
    pub reasoning_tokens: u64,
    /// US dollars.
    pub cost_usd: f64,
    /// True when any of it is our estimate.
    pub estimated: bool,
}

impl Usage {
    /// The sum; estimated when either part is.
    pub fn add(&mut self, other: &Usage) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
        self.cost_usd += other.cost_usd;
        self.estimated |= other.estimated;
    }
}

/// A tool call whose arguments cannot be executed, and why (the text is for the model).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFault {
    /// The call.
    pub tool_call_id: String,
    /// What is wrong with its arguments.
    pub problem: String,
}

/// An assistant message: what one model call answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// Text, thinking and tool calls in the order they came.
    pub content: Vec<Block>,
    /// Why it ended.
    pub stop: Stop,
    /// What it used.
    pub usage: Usage,
    /// `openrouter` or `vertex`.
    pub provider: String,
    /// The model that answered, which a fallback list may have chosen.
    pub model: String,
    /// A partial that was cut off: shown, never sent back to a model (design R3).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aborted: bool,
    /// What went wrong, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Calls that cannot be executed as they stand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub call_faults: Vec<CallFault>,
    /// OpenRouter's `reasoning_details`, verbatim and in order, for replay to the same provider and model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_details: Option<Vec<Value>>,
}

/// One message of a transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// Instructions or a note of the system.
    System {
        /// Text blocks.
        content: Vec<Block>,
    },
    /// Input of a person, a Task or another agent.
    User {
        /// Text and images.
        content: Vec<Block>,
    },
    /// An answer of the model.
    Assistant(AssistantMessage),
    /// The result of one tool call.
    ToolResult {
        /// The call it answers.
        tool_call_id: String,
        /// The tool's name.
        tool_name: String,
        /// Text (and images) for the model.
        content: Vec<Block>,
        /// True when the tool failed, was blocked or never ran.
        is_error: bool,
        /// A stable code of docs/errors.md when it is an error of ours.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
}
