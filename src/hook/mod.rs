//! Extension points (hooks.md): who is registered, and how their answers become one. Pure: the JavaScript host lies in
//! `platform/`, an extension in Rust implements [`Extension`].

pub mod dispatch;
mod registry;

pub use registry::{CheckSchema, EVENTS, Registered, RegisteredTool, Registrar, Registry};

use crate::agent::ToolSpec;
use crate::model::message::Block;
use crate::signal::Signal;
use futures::future::LocalBoxFuture;
use serde_json::Value;
use std::collections::BTreeMap;
use std::rc::Rc;

/// An extension in Rust. It is registered anew whenever the wasm instance is built.
pub trait Extension {
    /// The namespace of its reports, memos and logs; unique.
    fn name(&self) -> &str;
    /// Registers its handlers and tools.
    fn register(&self, on: &mut Registrar<'_>);
}

/// What a handler left: the event, which it may have changed in place, and what it returned (`null` for nothing).
#[derive(Debug, Clone, PartialEq)]
pub struct Handled {
    /// The event as the handler left it.
    pub event: Value,
    /// The returned value.
    pub returned: Value,
}

/// A handler of one event.
pub trait Handler {
    /// Handles it. An `Err` is a throw.
    fn handle(&self, event: Value, ctx: Ctx) -> LocalBoxFuture<'static, Result<Handled, String>>;
}

/// A plain function as a handler in Rust: it gets the event and may change it.
impl<F> Handler for F
where
    F: Fn(&mut Value, &Ctx) -> Result<Value, String>,
{
    fn handle(&self, mut event: Value, ctx: Ctx) -> LocalBoxFuture<'static, Result<Handled, String>> {
        let returned = self(&mut event, &ctx);
        Box::pin(std::future::ready(returned.map(|returned| Handled { event, returned })))
    }
}

/// What every handler and tool gets beside the event (hooks.md).
#[derive(Clone)]
pub struct Ctx {
    /// The agent.
    pub agent_id: String,
    /// The run.
    pub run_id: String,
    /// `haiku`, `sonnet` or `opus`.
    pub tier: String,
    /// `openrouter` or `vertex`.
    pub provider: String,
    /// `generation` or `compaction`.
    pub phase: &'static str,
    /// Number of the call within the run, from 1.
    pub call: u32,
    /// True after a crash.
    pub resumed: bool,
    /// Ends with the run.
    pub signal: Signal,
    /// The world behind `memo`, `env`, `log` and `now`.
    pub world: Rc<dyn CtxWorld>,
}

impl Ctx {
    /// The configured model, before routing: `tier-haiku`, or `tier-haiku-vertex`.
    pub fn model_id(&self) -> String {
        format!("tier-{}{}", self.tier, if self.provider == "vertex" { "-vertex" } else { "" })
    }
}

/// The part of `ctx` that reaches the world.
pub trait CtxWorld {
    /// First writer wins, durable for the run: gives the value that holds.
    fn memo(&self, namespace: &str, run_id: &str, name: &str, value: Value) -> Result<Value, String>;
    /// The variables whose names begin with `EXT_`.
    fn env(&self) -> Rc<BTreeMap<String, String>>;
    /// A line for the operator.
    fn log(&self, namespace: &str, level: &str, text: &str);
    /// ms since 1970, UTC.
    fn now_ms(&self) -> i64;
    /// Waits.
    fn sleep(&self, ms: u64) -> LocalBoxFuture<'static, ()>;
}

/// One execution of a tool.
#[derive(Clone)]
pub struct ToolCall {
    /// Idempotency key: the same for each execution of this call.
    pub key: String,
    /// The id the model gave the call.
    pub tool_call_id: String,
    /// The committed arguments.
    pub arguments: Value,
    /// As for handlers.
    pub ctx: Ctx,
}

/// What a tool gives.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolOutput {
    /// For the model.
    pub content: Vec<Block>,
    /// True when it failed in a way the model should see as an error.
    pub is_error: bool,
}

/// A tool.
pub trait Tool {
    /// Its name, schema and policies.
    fn spec(&self) -> ToolSpec;
    /// Executes it. An `Err` is a throw: the model sees its text as an error.
    fn execute(&self, call: ToolCall) -> LocalBoxFuture<'static, Result<ToolOutput, String>>;
}
