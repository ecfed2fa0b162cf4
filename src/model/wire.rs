//! A provider's wire format as the rest needs it, and the one of chat completions.

use super::assemble::Assembler;
use super::call::{CallContext, Prices, ResponseHead, StreamEnd};
use super::chat::ChatDecoder;
use super::encode::{Dialect, Fragment, RequestHead as ChatHead, ToolSpec, encode_message, encode_request};
use super::message::{AssistantMessage, Message};
use super::{Delta, Outcome};
use serde_json::Value;
use serde_json::value::to_raw_value;
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
    /// US dollars per million tokens.
    pub prices: Prices,
}

impl Target {
    /// The facts an outcome needs besides the stream.
    pub fn call_context(&self, request_bytes: u64, now_ms: i64) -> CallContext {
        CallContext {
            provider: self.provider.clone(),
            model: self.models.first().cloned().unwrap_or_default(),
            output_tokens_max: Some(self.max_output_tokens),
            window_tokens: Some(self.context_tokens),
            prompt_bytes: request_bytes,
            prices: self.prices,
            now_ms,
        }
    }
}

/// A tool as a request declares it.
#[derive(Debug, Clone, Copy)]
pub struct Declaration<'a> {
    /// Its name.
    pub name: &'a str,
    /// For the model.
    pub description: &'a str,
    /// JSON Schema of its arguments.
    pub parameters: &'a Value,
}

/// What stands around the transcript in a request.
#[derive(Debug)]
pub struct RequestHead<'a> {
    /// The model to speak to.
    pub target: &'a Target,
    /// System prompt.
    pub system: &'a str,
    /// Tools the model may call.
    pub tools: &'a [Declaration<'a>],
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

/// A provider's wire format.
///
/// # Contract
/// Pure. [`Wire::fragment`] depends on the message alone, so that its text can be kept; [`Wire::body`] joins.
/// [`Wire::fold`] depends on the deltas and the target alone, so that an answer stored before a crash is decided on as it
/// would have been live.
pub trait Wire {
    /// One message as it stands in a request; `None` for what is never sent.
    fn fragment(&self, message: &Message) -> Option<Fragment>;
    /// A whole request body.
    fn body(&self, head: &RequestHead<'_>, fragments: &[Rc<Fragment>]) -> String;
    /// What a stream came to. `request_bytes` serves the estimate when the provider counted nothing.
    fn fold(&self, deltas: &[Delta], target: &Target, request_bytes: u64) -> Folded;
}

/// Turns the bytes of one response into deltas, and its end into an outcome.
///
/// # Contract
/// Linear in the bytes. `end` is called once. An answer is complete only with its end mark, whatever the transport says.
pub trait Decoder {
    /// Takes bytes; adds what they hold to `deltas`.
    fn push(&mut self, bytes: &[u8], deltas: &mut Vec<Delta>);
    /// How many events have come; comments do not count.
    fn events(&self) -> u64;
    /// The end mark has come; usage may follow.
    fn finished(&self) -> bool;
    /// Nothing more follows.
    fn done(&self) -> bool;
    /// What it all came to.
    fn end(self: Box<Self>, end: StreamEnd) -> Outcome;
}

/// Chat completions: OpenRouter, or any other server that speaks it.
#[derive(Debug, Clone, Copy)]
pub struct ChatWire {
    /// Which fields the server knows.
    pub dialect: Dialect,
}

impl Wire for ChatWire {
    fn fragment(&self, message: &Message) -> Option<Fragment> {
        encode_message(message)
    }

    fn body(&self, head: &RequestHead<'_>, fragments: &[Rc<Fragment>]) -> String {
        let mut models = head.target.models.iter().cloned();
        let tools = head.tools.iter().map(|tool| ToolSpec {
            name: tool.name.to_owned(),
            description: tool.description.to_owned(),
            parameters: to_raw_value(tool.parameters).ok(),
        });
        let chat = ChatHead {
            dialect: self.dialect,
            model: models.next().unwrap_or_default(),
            fallbacks: models.collect(),
            system: (!head.system.is_empty()).then(|| head.system.to_owned()),
            tools: tools.collect(),
            output_tokens_max: Some(head.target.max_output_tokens),
            reasoning_effort: head.target.thinking.clone(),
            session_id: Some(head.session_id.to_owned()),
        };
        encode_request(&chat, fragments.iter().map(Rc::as_ref))
    }

    fn fold(&self, deltas: &[Delta], target: &Target, request_bytes: u64) -> Folded {
        let mut assembler = Assembler::new();
        for delta in deltas {
            assembler.apply(delta);
        }
        let context = target.call_context(request_bytes, 0);
        let complete = assembler.finish_reason().is_some().then(|| assembler.message(&context));
        Folded { complete, partial: assembler.partial(&context) }
    }
}

/// A chat-completions response being read.
pub struct ChatReading {
    decoder: ChatDecoder,
    context: CallContext,
}

impl ChatReading {
    /// A reading of the body that follows `head`.
    pub fn new(head: ResponseHead, context: CallContext) -> Self {
        Self { decoder: ChatDecoder::new(head), context }
    }
}

impl Decoder for ChatReading {
    fn push(&mut self, bytes: &[u8], deltas: &mut Vec<Delta>) {
        self.decoder.push(bytes, deltas);
    }

    fn events(&self) -> u64 {
        self.decoder.events()
    }

    fn finished(&self) -> bool {
        self.decoder.finished()
    }

    fn done(&self) -> bool {
        self.decoder.done()
    }

    fn end(self: Box<Self>, end: StreamEnd) -> Outcome {
        self.decoder.end(&end, &self.context)
    }
}
