//! The Worker of the end-to-end tests. It makes its entry points without `export!`, since it has a route of its own, which
//! runs the conformance checks of the SQL port inside a Durable Object. Tools and hooks are in `extensions/`; here are
//! those that panic, which only Rust can.

#![cfg(target_family = "wasm")]
// The macros of `worker` add functions without a word about them.
#![allow(missing_docs)]

use agentdo::agent::ToolSpec;
use agentdo::agent::state::Replay;
use agentdo::hook::{Ctx, Extension, Registrar, Tool, ToolCall, ToolOutput};
use agentdo::platform::cloudflare;
use futures::future::LocalBoxFuture;
use serde_json::{Value, json};
use std::rc::Rc;
use wasm_bindgen::prelude::*;
use worker::{
    Context, DurableObject, Env, MessageBatch, Request, Response, Result, ScheduleContext, ScheduledEvent, State,
    durable_object, event,
};

pub use agentdo::{AgentDO, ChangeDO, LedgerDO};

#[wasm_bindgen(module = "/extensions/index.js")]
extern "C" {
    fn extensions() -> js_sys::Array;
}

fn register(on: &mut agentdo::Extensions) {
    on.rust(&Panics).javascript(&extensions());
}

#[event(start)]
fn start() {
    cloudflare::start(register);
}

#[event(fetch)]
async fn fetch(request: Request, env: Env, context: Context) -> Result<Response> {
    if request.path() == "/conformance" {
        return env.durable_object("CONFORMANCE")?.get_by_name("one")?.fetch_with_request(request).await;
    }
    cloudflare::fetch(request, env, context).await
}

#[event(scheduled)]
async fn scheduled(event: ScheduledEvent, env: Env, context: ScheduleContext) {
    cloudflare::scheduled(event, env, context).await;
}

#[event(queue)]
async fn queue(batch: MessageBatch<JsValue>, env: Env, _: Context) -> Result<()> {
    cloudflare::queue(batch, env).await;
    Ok(())
}

/// Answers with what each check of the SQL port found on its own storage.
#[durable_object(fetch)]
pub struct ConformanceDO {
    state: State,
}

impl DurableObject for ConformanceDO {
    fn new(state: State, _: Env) -> Self {
        Self { state }
    }

    async fn fetch(&self, _: Request) -> Result<Response> {
        let checks: Vec<Value> = cloudflare::conformance(&self.state)
            .await
            .into_iter()
            .map(|check| json!({ "name": check.name, "problem": check.outcome.err() }))
            .collect();
        Response::ok(json!(checks).to_string())
    }
}

/// A class without this handler has no alarm.
#[wasm_bindgen]
impl ConformanceDO {
    /// Never reached: the checks clear the alarm they set.
    #[wasm_bindgen(js_name = alarm)]
    pub fn alarm_js(&self) {}
}

/// What kills the wasm instance: a tool `panic`, and `before_agent_request` of agents whose id has `hookpanic`.
struct Panics;

impl Extension for Panics {
    fn name(&self) -> &str {
        "panics"
    }

    fn register(&self, on: &mut Registrar<'_>) {
        on.tool(Rc::new(PanicTool));
        on.on(
            "before_agent_request",
            Rc::new(|_: &mut Value, ctx: &Ctx| {
                assert!(!ctx.agent_id.contains("hookpanic"), "the hook panics, as it should");
                Ok(Value::Null)
            }),
        );
    }
}

struct PanicTool;

impl Tool for PanicTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "panic".to_owned(),
            description: "Panics.".to_owned(),
            parameters: json!({ "type": "object", "properties": {}, "additionalProperties": false }),
            replay: Replay::Safe,
            timeout_ms: None,
            resource: None,
        }
    }

    fn execute(&self, _: ToolCall) -> LocalBoxFuture<'static, std::result::Result<ToolOutput, String>> {
        Box::pin(async { panic!("the tool panics, as it should") })
    }
}
