//! The Durable Object of one agent: entry points in, the driver behind them.

// The macro adds functions of its own without a word about them.
#![allow(missing_docs)]

use super::protocol::{self, Ask};
use super::sql::DurableStorage;
use super::world::{PlatformRandom, now_ms, sleep};
use super::{catalog, events, index, model};
use crate::agent::driver::{Credentials, Driver, Host, OpenedStream, Timing, ToolInvocation};
use crate::agent::state::ToolResult;
use crate::agent::{Command, GateAnswer, HookCall, HookContext, IndexRow, ModelRequest, OpRef, Reply, Verdict, view};
use crate::config::Config;
use crate::error::{ApiError, Code, tool_code};
use crate::hook::{Ctx, CtxWorld, Registry, ToolCall, ToolOutput, dispatch};
use crate::model::call::ResponseHead;
use crate::model::discreet::Discreet;
use crate::model::wire::{ChatReading, Decoder};
use crate::model::{Failure, FailureKind};
use crate::port::{Random, RowCounts, Storage, new_id, transaction};
use crate::signal::Signal;
use futures::future::LocalBoxFuture;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::rc::Rc;
use worker::wasm_bindgen::prelude::*;
use worker::{
    DurableObject, Env, Request, Response, Result, State, WebSocket, WebSocketPair, durable_object, js_sys,
    wasm_bindgen, wasm_bindgen_futures,
};

/// One logical agent.
#[durable_object(fetch)]
pub struct AgentDO {
    state: Rc<State>,
    ready: std::result::Result<Rc<Driver<CloudflareHost>>, ApiError>,
    /// Random per instance, so that one can see from outside that the object left memory.
    instance: String,
}

impl DurableObject for AgentDO {
    fn new(state: State, env: Env) -> Self {
        let state = Rc::new(state);
        let ready = super::edge::config(&env)
            .map(|config| {
                let registry = catalog::registry();
                let machine = catalog::machine(&config, &registry);
                Driver::new(machine, CloudflareHost::new(Rc::clone(&state), env, config, registry))
            })
            .map_err(|error| error.to_error());
        let instance = new_id("obj", now_ms(), &PlatformRandom);
        Self { state, ready, instance }
    }

    async fn fetch(&self, mut request: Request) -> Result<Response> {
        let answer = match self.driver() {
            Ok(driver) => {
                if request.headers().get("upgrade")?.is_some() {
                    self.watch(&driver, &request)
                } else {
                    let body = request.bytes().await?;
                    match serde_json::from_slice::<Ask>(&body) {
                        Ok(ask) => self.answer(&driver, ask).await,
                        Err(error) => Err(ApiError::because(Code::InvalidRequest, error.to_string())),
                    }
                }
            }
            Err(error) => Err(error),
        };
        match answer {
            Ok(response) => Ok(response),
            Err(error) => {
                if let Some(text) = &error.log {
                    worker::console_error!("{}: {text}", error.code.name());
                }
                protocol::error(&error)
            }
        }
    }
}

/// Handlers that the macro has no arguments or names for.
#[wasm_bindgen]
impl AgentDO {
    /// The alarm. It starts what is due and returns: no second alarm fires while a handler is at work.
    #[wasm_bindgen(js_name = alarm)]
    pub fn alarm_js(&self) -> std::result::Result<(), JsValue> {
        let fired = self.driver().and_then(|driver| driver.alarm());
        // Only storage can have failed; the platform then tries again.
        fired.map_err(|error| JsValue::from_str(&error.to_string()))
    }

    /// Watchers have nothing to say; what they send is ignored.
    #[wasm_bindgen(js_name = webSocketMessage)]
    pub fn web_socket_message(&self, _socket: JsValue, _message: JsValue) {}

    /// A watcher went away.
    #[wasm_bindgen(js_name = webSocketClose)]
    pub fn web_socket_close(&self, _socket: JsValue, _code: JsValue, _reason: JsValue, _clean: JsValue) {}

    /// A watcher's connection failed.
    #[wasm_bindgen(js_name = webSocketError)]
    pub fn web_socket_error(&self, _socket: JsValue, _error: JsValue) {}
}

impl AgentDO {
    /// The driver, opened: what was in flight goes on.
    fn driver(&self) -> std::result::Result<Rc<Driver<CloudflareHost>>, ApiError> {
        let driver = Rc::clone(self.ready.as_ref().map_err(Clone::clone)?);
        if driver.is_open() {
            return Ok(driver);
        }
        // Before the opening shows what it did: a socket must first get what the instance before committed and did not send.
        let sockets = events::reopen(&self.state);
        driver.open_now()?;
        for socket in sockets {
            pump(Rc::clone(&driver), socket);
        }
        Ok(driver)
    }

    fn watch(&self, driver: &Rc<Driver<CloudflareHost>>, request: &Request) -> std::result::Result<Response, ApiError> {
        let unavailable = |error: worker::Error| ApiError::new(Code::AgentUnavailable).logged(&format!("{error:?}"));
        present(driver)?;
        if self.state.get_websockets().len() >= events::SOCKETS_MAX {
            return Err(ApiError::because(Code::RateLimited, "too many clients watch this agent"));
        }
        let address = request.inner().url();
        let (_, query) = protocol::path_and_query(&address);
        let after = query.strip_prefix("after=").and_then(|value| value.parse().ok());
        let pair = WebSocketPair::new().map_err(unavailable)?;
        events::accept(&self.state, &pair.server, after.unwrap_or(0));
        pump(Rc::clone(driver), pair.server);
        let mut response = Response::from_websocket(pair.client).map_err(unavailable)?;
        if let Ok(Some(protocol)) = request.headers().get("sec-websocket-protocol") {
            response.headers_mut().set("sec-websocket-protocol", &protocol).map_err(unavailable)?;
        }
        Ok(response)
    }

    async fn answer(&self, driver: &Rc<Driver<CloudflareHost>>, ask: Ask) -> std::result::Result<Response, ApiError> {
        let (status, body) = match ask {
            Ask::Command { command } => self.carry_out(driver, &command)?,
            Ask::Agent => {
                present(driver)?;
                (200, self.shown(driver)?)
            }
            Ask::Submission { request_id, wait_ms } => {
                present(driver)?;
                let mut found = read_submission(driver, &request_id)?;
                if wait_ms > 0 && !found.1 {
                    driver.wait_settled(&request_id, wait_ms).await;
                    present(driver)?;
                    found = read_submission(driver, &request_id)?;
                }
                (200, json!({ "submission": found.0 }))
            }
            Ask::Entries { after, limit } => {
                present(driver)?;
                let (entries, next) = driver.read(|tx| view::entries(tx, after, limit))?;
                (200, json!({ "entries": entries, "next": next }))
            }
            Ask::Export { from } => {
                present(driver)?;
                let (lines, next) = driver.read(|tx| view::export(tx, from))?;
                (200, json!({ "lines": lines, "next": next }))
            }
            Ask::Wake => {
                driver.catch_up()?;
                let due_ms = driver.read(view::load)?.and_then(|agent| agent.alarm_ms);
                (200, json!({ "due_ms": due_ms }))
            }
        };
        protocol::json(status, &body)
            .map_err(|error| ApiError::new(Code::AgentUnavailable).logged(&format!("{error:?}")))
    }

    fn carry_out(
        &self,
        driver: &Rc<Driver<CloudflareHost>>,
        command: &Command,
    ) -> std::result::Result<(u16, Value), ApiError> {
        // A status is 202 when work goes on after the answer.
        let accepted = if matches!(command, Command::Stop { .. } | Command::Interrupt { .. }) { 202 } else { 200 };
        let reply = driver.command(command)?;
        if matches!(command, Command::Delete) {
            events::close_all(&self.state);
        }
        Ok(match reply {
            Reply::Submission { submission, created } => {
                (if created { 202 } else { 200 }, json!({ "submission": submission }))
            }
            // Read again: only after the command was committed are its queue and its timers what they are.
            Reply::Agent(_) => (accepted, self.shown(driver)?),
            Reply::Done => (200, json!({ "ok": true })),
        })
    }

    /// The agent as the API shows it.
    fn shown(&self, driver: &Rc<Driver<CloudflareHost>>) -> std::result::Result<Value, ApiError> {
        let agent = driver.read(view::agent)?.ok_or_else(|| ApiError::new(Code::NotFound))?;
        Ok(json!({ "agent": self.named(agent) }))
    }

    /// The agent with its id, and what this instance has cost so far.
    fn named(&self, mut agent: Value) -> Value {
        let Ok(driver) = &self.ready else { return agent };
        let RowCounts { rows_read, rows_written, statements } = driver.host().storage().row_counts();
        if let Some(fields) = agent.as_object_mut() {
            fields.insert("id".to_owned(), json!(driver.host().agent));
            fields.insert(
                "instance".to_owned(),
                json!({ "id": self.instance, "rows_read": rows_read, "rows_written": rows_written, "statements": statements }),
            );
        }
        agent
    }
}

/// Refuses to show an agent that never was, or is no more (design S6).
fn present(driver: &Rc<Driver<CloudflareHost>>) -> std::result::Result<(), ApiError> {
    match driver.read(view::load)? {
        None => Err(ApiError::new(Code::NotFound)),
        Some(agent) if agent.deleted => Err(ApiError::new(Code::AgentDeleted)),
        Some(_) => Ok(()),
    }
}

fn read_submission(
    driver: &Rc<Driver<CloudflareHost>>,
    request_id: &str,
) -> std::result::Result<(Value, bool), ApiError> {
    let found = driver.read(|tx| match view::stored_submission(tx, request_id)? {
        Some(stored) => Ok(Some((view::submission_json(tx, &stored)?, stored.settled()))),
        None => Ok(None),
    })?;
    found.ok_or_else(|| ApiError::new(Code::NotFound))
}

/// Brings a socket up to date, a page at a time, so that a long transcript never fills the memory.
fn pump(driver: Rc<Driver<CloudflareHost>>, socket: WebSocket) {
    let page = move |driver: &Rc<Driver<CloudflareHost>>, socket: &WebSocket| {
        let read = |after: i64| {
            transaction(driver.host().storage(), |tx| view::events_after(tx, after, events::PAGE_EVENTS)).ok()
        };
        events::replay(socket, read, || driver.live_events())
    };
    if matches!(page(&driver, &socket), events::Replay::More) {
        wasm_bindgen_futures::spawn_local(async move {
            loop {
                sleep(0).await;
                if matches!(page(&driver, &socket), events::Replay::Done) {
                    return;
                }
            }
        });
    }
}

/// The world of one agent's driver.
pub(super) struct CloudflareHost {
    state: Rc<State>,
    env: Env,
    config: Rc<Config>,
    registry: Rc<Registry>,
    storage: Rc<DurableStorage>,
    tenant: String,
    agent: String,
    keys: model::Keys,
    extension_env: Rc<BTreeMap<String, String>>,
}

impl CloudflareHost {
    fn new(state: Rc<State>, env: Env, config: Rc<Config>, registry: Rc<Registry>) -> Self {
        let name = state.id().name().unwrap_or_default();
        let (tenant, agent) = name.split_once('/').unwrap_or(("", &name));
        Self {
            storage: Rc::new(DurableStorage::new(&state)),
            tenant: tenant.to_owned(),
            agent: agent.to_owned(),
            keys: model::Keys::default(),
            extension_env: Rc::new(extension_env(&env)),
            state,
            env,
            config,
            registry,
        }
    }

    fn ctx(&self, context: &HookContext, signal: Signal) -> Ctx {
        Ctx {
            agent_id: self.agent.clone(),
            run_id: context.run_id.clone(),
            tier: context.tier.clone(),
            provider: context.provider.clone(),
            phase: "generation",
            call: context.call,
            resumed: context.resumed,
            signal,
            world: Rc::new(ObjectWorld { storage: Rc::clone(&self.storage), env: Rc::clone(&self.extension_env) }),
        }
    }
}

fn extension_env(env: &Env) -> BTreeMap<String, String> {
    let env: &js_sys::Object = env.unchecked_ref();
    js_sys::Object::keys(env)
        .iter()
        .filter_map(|key| key.as_string())
        .filter(|name| name.starts_with("EXT_"))
        .filter_map(|name| {
            let value = js_sys::Reflect::get(env, &JsValue::from_str(&name)).ok()?.as_string()?;
            Some((name, value))
        })
        .collect()
}

impl Host for CloudflareHost {
    fn now_ms(&self) -> i64 {
        now_ms()
    }

    fn random(&self) -> &dyn Random {
        &PlatformRandom
    }

    fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    fn timing(&self) -> Timing {
        Timing::from(&self.config.timing)
    }

    fn sleep(&self, ms: u64) -> LocalBoxFuture<'static, ()> {
        sleep(ms)
    }

    fn spawn(&self, task: LocalBoxFuture<'static, ()>) {
        wasm_bindgen_futures::spawn_local(task);
    }

    fn ask_hooks(&self, hook: HookCall, context: HookContext, signal: Signal) -> LocalBoxFuture<'static, Verdict> {
        let ctx = self.ctx(&context, signal);
        let timeout_ms = self.config.timing.hook_timeout_ms;
        match hook {
            HookCall::BeforeAgentRequest => {
                Box::pin(dispatch::before_agent_request(self.registry.handlers("before_agent_request"), ctx))
            }
            HookCall::ToolCall { tool_call_id, tool_name, input } => {
                let handlers = self.registry.handlers("tool_call");
                Box::pin(async move {
                    dispatch::tool_call(handlers, &tool_call_id, &tool_name, input, ctx, timeout_ms).await
                })
            }
        }
    }

    fn ask_gate(&self, name: &str, _: &OpRef) -> LocalBoxFuture<'static, GateAnswer> {
        // No gate is registered in this release; an unknown one fails closed.
        let reason = format!("there is no gate {name}");
        Box::pin(async move { GateAnswer::No(reason) })
    }

    fn credentials(&self, provider: &str) -> LocalBoxFuture<'static, std::result::Result<Credentials, Failure>> {
        if provider == "openrouter" {
            return Box::pin(self.keys.clone().openrouter(Rc::clone(&self.config)));
        }
        let failure = Failure::new(FailureKind::InvalidRequest, format!("this release does not speak to {provider}"));
        Box::pin(async move { Err(failure) })
    }

    fn send(
        &self,
        request: &ModelRequest,
        credentials: &Credentials,
    ) -> LocalBoxFuture<'static, std::result::Result<OpenedStream, String>> {
        model::send(&self.config, request, credentials, new_id("ev", now_ms(), &PlatformRandom))
    }

    fn decoder(&self, context: crate::model::call::CallContext, head: ResponseHead) -> Box<dyn Decoder> {
        let secrets = self.keys.secrets(&self.config);
        Box::new(Discreet::new(Box::new(ChatReading::new(head, context)), secrets))
    }

    fn run_tool(&self, call: ToolInvocation) -> LocalBoxFuture<'static, ToolResult> {
        let Some(registered) = self.registry.tool(&call.name).cloned() else {
            let result = ToolResult::error(tool_code::TOOL_UNAVAILABLE, "The tool is not registered any more.");
            return Box::pin(async move { result });
        };
        let ctx = self.ctx(&call.context, call.signal);
        let running = registered.tool.execute(ToolCall {
            key: call.key,
            tool_call_id: call.tool_call_id,
            arguments: call.arguments,
            ctx,
        });
        Box::pin(async move {
            match running.await {
                Ok(ToolOutput { content, is_error }) => {
                    let code = is_error.then(|| tool_code::TOOL_FAILED.to_owned());
                    ToolResult { content, is_error, code }
                }
                Err(message) => {
                    let message: String = message.chars().take(TOOL_MESSAGE_CHARS_MAX).collect();
                    ToolResult::error(tool_code::TOOL_FAILED, format!("The tool failed: {message}"))
                }
            }
        })
    }

    fn index(&self, row: IndexRow) -> LocalBoxFuture<'static, std::result::Result<(), String>> {
        let (env, tenant, agent) = (self.env.clone(), self.tenant.clone(), self.agent.clone());
        Box::pin(async move { index::upsert(&env, &tenant, &agent, &row).await.map_err(|error| format!("{error:?}")) })
    }

    fn publish(&self, events: &[Value]) {
        events::publish(&self.state, events);
    }

    fn log(&self, text: &str) {
        worker::console_error!("agent {}/{}: {text}", self.tenant, self.agent);
    }
}

/// Characters of a tool's exception that the model is shown.
const TOOL_MESSAGE_CHARS_MAX: usize = 8_000;

/// Bytes of a memo: it stands in one cell (design S3).
const MEMO_BYTES_MAX: usize = 256 * 1024;

/// What `ctx` reaches.
struct ObjectWorld {
    storage: Rc<DurableStorage>,
    env: Rc<BTreeMap<String, String>>,
}

impl CtxWorld for ObjectWorld {
    fn memo(&self, namespace: &str, run_id: &str, name: &str, value: Value) -> std::result::Result<Value, String> {
        let bytes = value.to_string().len();
        if bytes > MEMO_BYTES_MAX {
            return Err(format!("a memo of {bytes} bytes is above {MEMO_BYTES_MAX}"));
        }
        transaction(&*self.storage, |tx| view::memo(tx, run_id, &format!("{namespace}/{name}"), &value))
            .map_err(|error| error.message)
    }

    fn env(&self) -> Rc<BTreeMap<String, String>> {
        Rc::clone(&self.env)
    }

    fn log(&self, namespace: &str, level: &str, text: &str) {
        let line = format!("{namespace}: {text}");
        match level {
            "error" => worker::console_error!("{line}"),
            "warn" => worker::console_warn!("{line}"),
            _ => worker::console_log!("{line}"),
        }
    }

    fn now_ms(&self) -> i64 {
        now_ms()
    }

    fn sleep(&self, ms: u64) -> LocalBoxFuture<'static, ()> {
        sleep(ms)
    }
}
