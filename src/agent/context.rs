//! What a model is sent: the transcript as text fragments, encoded once and joined for each request.

use super::interface::ToolSpec;
use super::log::{events_after, seq_of};
use crate::model::message::{AssistantMessage, Message};
use crate::model::{Delta, Outcome};
use crate::port::{SqlError, Tx};
use serde_json::Value;
use std::rc::Rc;

/// Which model a run speaks to, with the facts the request needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Target {
    /// `openrouter` or `vertex`.
    pub provider: String,
    /// `haiku`, `sonnet` or `opus`.
    pub tier: String,
    /// The models to try, best first.
    pub models: Vec<String>,
    /// Tokens the context may have.
    pub context_tokens: u64,
    /// Tokens an answer may have.
    pub max_output_tokens: u64,
    /// Reasoning level.
    pub thinking: Option<String>,
    /// US dollars per million tokens: input, output, cached input.
    pub price: (f64, f64, f64),
}

/// What stands around the transcript in a request.
#[derive(Debug)]
pub struct RequestHead<'a> {
    /// The model to speak to.
    pub target: &'a Target,
    /// System prompt.
    pub system: &'a str,
    /// Tools the model may call.
    pub tools: &'a [&'a ToolSpec],
    /// The run, for sticky routing at the provider.
    pub session_id: &'a str,
}

/// What a stream came to, folded from its deltas.
#[derive(Debug)]
pub struct Folded {
    /// Present when the end mark is there.
    pub complete: Option<Outcome>,
    /// What can be shown when it is not.
    pub partial: AssistantMessage,
}

/// A provider's wire format, as the machine needs it.
///
/// # Contract
/// Pure. [`Wire::fragment`] depends on the message alone, so that its text can be kept; [`Wire::body`] joins.
/// [`Wire::fold`] depends on the deltas and the target alone, so that an answer stored before a crash is decided on as it
/// would have been live.
pub trait Wire {
    /// One message as it stands in a request; `None` for what is never sent.
    fn fragment(&self, message: &Message) -> Option<String>;
    /// A whole request body.
    fn body(&self, head: &RequestHead<'_>, fragments: &[Rc<str>]) -> String;
    /// What a stream came to. `request_bytes` serves the estimate when the provider counted nothing.
    fn fold(&self, deltas: &[Delta], target: &Target, request_bytes: u64) -> Folded;
}

/// The encoded transcript of one agent for one wire format, kept in memory. Only committed rows enter it, so that a
/// transaction that rolls back leaves it right; when it is lost it is read again.
#[derive(Debug, Default)]
pub(super) struct ContextCache {
    provider: String,
    up_to_seq: i64,
    fragments: Vec<Rc<str>>,
}

impl ContextCache {
    /// All fragments up to the last committed row.
    pub(super) fn refresh(&mut self, tx: &dyn Tx, provider: &str, wire: &dyn Wire) -> Result<Vec<Rc<str>>, SqlError> {
        if self.provider != provider {
            *self = Self { provider: provider.to_owned(), ..Self::default() };
        }
        loop {
            let events = events_after(tx, self.up_to_seq, PAGE_EVENTS)?;
            let Some(last) = events.last() else { break };
            let up_to_seq = seq_of(last);
            self.fragments.extend(events.iter().filter_map(|event| fragment_of(event, wire)));
            self.up_to_seq = up_to_seq;
        }
        Ok(self.fragments.clone())
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

const PAGE_EVENTS: usize = 256;

/// The fragment of an event, when it is an entry that is sent.
pub(super) fn fragment_of(event: &Value, wire: &dyn Wire) -> Option<Rc<str>> {
    if event.get("type").and_then(Value::as_str) != Some("entry") {
        return None;
    }
    let message = event.get("entry")?.get("message")?;
    let message: Message = serde::Deserialize::deserialize(message).ok()?;
    wire.fragment(&message).map(Rc::from)
}
