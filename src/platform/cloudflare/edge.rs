//! The Worker's own `fetch`: who asks, for what, within which limits; then the object answers, within a deadline.

use super::index::{self, D1Schema};
use super::protocol::{self, Ask, ExportPage, json};
use super::world::{PlatformRandom, now_ms, sleep, variable};
use super::{catalog, protocol::ask};
use crate::agent::Command;
use crate::agent::state::{AgentConfig, Mode};
use crate::agent::view::ExportFrom;
use crate::config::{Config, ConfigError};
use crate::error::{ApiError, Code};
use crate::http::body::{self, ConfigureBody, InterruptBody, MessageBody, RetryBody, SignalBody, StopBody, WhenBusy};
use crate::http::route::resume_after;
use crate::http::{AgentCall, Credentials, Principal, Route, admit, auth, sse};
use crate::port::new_id;
use futures::channel::mpsc;
use futures::future::{Either, LocalBoxFuture, select};
use futures::{StreamExt, pin_mut};
use serde_json::{Value, json as object};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use worker::{Context, Env, Headers, Request, Response, Result, WebSocket, WebsocketEvent, wasm_bindgen_futures};

type Answer = std::result::Result<Response, ApiError>;

thread_local! {
    static CONFIG: RefCell<Option<Rc<Config>>> = const { RefCell::new(None) };
    static INSTANCE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The configuration; read once per instance when it is good, each time while it is not.
pub(super) fn config(env: &Env) -> std::result::Result<Rc<Config>, Box<ConfigError>> {
    if let Some(config) = CONFIG.with(|config| config.borrow().clone()) {
        return Ok(config);
    }
    let config = Rc::new(Config::from_vars(&|name| variable(env, name)).map_err(Box::new)?);
    CONFIG.with(|cached| *cached.borrow_mut() = Some(Rc::clone(&config)));
    Ok(config)
}

impl ConfigError {
    /// As the API shows it.
    pub(super) fn to_error(&self) -> ApiError {
        ApiError::from(self.clone())
    }
}

/// The `fetch` of a Worker made with `export!`.
pub async fn fetch(request: Request, env: Env, _: Context) -> Result<Response> {
    let reference = new_id("ref", now_ms(), &PlatformRandom);
    match serve(request, &env).await {
        Ok(response) => Ok(response),
        Err(error) => {
            let error = error.with_ref(&reference);
            let detail = error.log.as_deref().unwrap_or("");
            worker::console_log!("{} {}: {} {detail}", error.reference, error.code.name(), error.message);
            protocol::error(&error)
        }
    }
}

fn internal(error: worker::Error) -> ApiError {
    ApiError::new(Code::AgentUnavailable).logged(&format!("{error:?}"))
}

async fn serve(mut request: Request, env: &Env) -> Answer {
    let config = config(env).map_err(|error| error.to_error())?;
    let address = request.inner().url();
    let (path, query) = protocol::path_and_query(&address);
    let header = |name: &str| request.headers().get(name).ok().flatten();
    let (authorization, protocols) = (header("authorization"), header("sec-websocket-protocol"));
    let credentials = Credentials { authorization: authorization.as_deref(), websocket_protocol: protocols.as_deref() };
    // As it was sent: the crate's enumeration takes a method it does not know for GET.
    let method = request.inner().method();
    let admitted = admit(&config, &method, path, query, &credentials)?;
    let Some(principal) = admitted.principal else { return health() };
    fit_schema(env).await?;
    match admitted.route {
        Route::Healthz => health(),
        Route::Extensions => json(200, &catalog::registry().describe()).map_err(internal),
        Route::ListAgents { status, cursor } => {
            let status = status.map(|status| status.name());
            let page = index::list(env, &principal.tenant, status, cursor.as_deref()).await;
            let page = page.map_err(|error| ApiError::new(Code::StorageUnavailable).logged(&format!("{error:?}")))?;
            json(200, &page).map_err(internal)
        }
        Route::Agent { id, call } => {
            agent(&mut request, Caller { env, config: &config, principal: &principal, id: &id, protocols }, call).await
        }
    }
}

/// `ok`, the version, and an id that is random per wasm instance: it changes when a panic rebuilt it.
fn health() -> Answer {
    let instance = INSTANCE.with(|instance| {
        let mut instance = instance.borrow_mut();
        if instance.is_empty() {
            *instance = new_id("ins", now_ms(), &PlatformRandom);
        }
        instance.clone()
    });
    json(200, &object!({ "ok": true, "version": env!("CARGO_PKG_VERSION"), "instance": instance })).map_err(internal)
}

async fn fit_schema(env: &Env) -> std::result::Result<(), ApiError> {
    let schema = index::schema(env).await;
    let known = index::D1_SCHEMA_VERSION;
    match schema.map_err(|error| ApiError::new(Code::StorageUnavailable).logged(&format!("{error:?}")))? {
        D1Schema::Fits => Ok(()),
        D1Schema::Older(found) => Err(ApiError::because(
            Code::SchemaOlder,
            format!("D1 has schema version {found}, this release needs {known}: apply the migrations"),
        )),
        D1Schema::Newer(found) => Err(ApiError::because(
            Code::SchemaNewer,
            format!("D1 has schema version {found}, this release knows {known}: deploy the newer release"),
        )),
    }
}

struct Caller<'a> {
    env: &'a Env,
    config: &'a Config,
    principal: &'a Principal,
    id: &'a str,
    protocols: Option<String>,
}

async fn agent(request: &mut Request, caller: Caller<'_>, call: AgentCall) -> Answer {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let asked = match call {
        AgentCall::Export => return export(&caller).await,
        AgentCall::Events { after } => return watch(request, &caller, after).await,
        AgentCall::Get => Ask::Agent,
        AgentCall::Submission { request_id, wait_s } => {
            Ask::Submission { request_id, wait_ms: wait_s.saturating_mul(1_000) }
        }
        AgentCall::Entries { after, limit } => {
            Ask::Entries { after: number(after), limit: usize::try_from(limit).unwrap_or(usize::MAX) }
        }
        AgentCall::Message => {
            let body = read::<MessageBody>(request).await?;
            let (request_id, when_busy) = (body.content.request_id.clone(), body.content.when_busy);
            let mode = match when_busy {
                WhenBusy::Steer => Mode::Steer,
                WhenBusy::FollowUp => Mode::FollowUp,
                WhenBusy::Reject => Mode::Reject,
            };
            command(Command::Submit { request_id, body_sha256: body.sha256, content: body.content.blocks(), mode })
        }
        AgentCall::Configure => {
            let ConfigureBody(settings) = read::<ConfigureBody>(request).await?.content;
            let config = AgentConfig::from(&settings);
            if caller.config.tier(&config.tier).is_none() {
                let message = format!("tier: {} is not configured in TIERS", config.tier);
                return Err(ApiError::because(Code::InvalidRequest, message).with("field", "tier"));
            }
            command(Command::Configure { config })
        }
        AgentCall::Delete => command(Command::Delete),
        AgentCall::Stop => command(Command::Stop { reason: read::<StopBody>(request).await?.content.reason }),
        AgentCall::Interrupt => {
            command(Command::Interrupt { keep_queue: read::<InterruptBody>(request).await?.content.keep_queue })
        }
        AgentCall::Retry => {
            read::<RetryBody>(request).await?;
            command(Command::Retry)
        }
        AgentCall::Signal { name } => {
            let body = read::<SignalBody>(request).await?.content;
            command(Command::Signal { name, request_id: body.request_id, call: body.call, value: body.value })
        }
    };
    let wait_ms = if let Ask::Submission { wait_ms, .. } = &asked { *wait_ms } else { 0 };
    let asking = ask(caller.env, &caller.principal.tenant, caller.id, &asked);
    within(caller.config, wait_ms, Box::pin(asking)).await
}

fn command(command: Command) -> Ask {
    Ask::Command { command }
}

/// An object whose instance panicked never answers: each call races a deadline.
async fn within(config: &Config, extra_ms: u64, asking: LocalBoxFuture<'_, Result<Response>>) -> Answer {
    let deadline = sleep(config.timing.agent_call_timeout_ms.saturating_add(extra_ms));
    let mut response = match select(asking, deadline).await {
        Either::Left((response, _)) => response.map_err(internal)?,
        Either::Right(_) => {
            return Err(ApiError::because(Code::AgentUnavailable, "the agent's object did not answer in time"));
        }
    };
    if response.status_code() < 400 {
        return Ok(response);
    }
    Err(protocol::read_error(&response.bytes().await.map_err(internal)?))
}

async fn read<T: body::Request>(request: &mut Request) -> std::result::Result<body::Body<T>, ApiError> {
    let limit = body::BODY_BYTES_MAX;
    let declared = request.headers().get("content-length").ok().flatten().and_then(|text| text.parse::<usize>().ok());
    if declared.is_some_and(|length| length > limit) {
        return Err(body::too_large(limit));
    }
    let mut bytes = Vec::new();
    // A request without a body has no stream.
    if let Ok(mut stream) = request.stream() {
        while let Some(piece) = stream.next().await {
            bytes.extend(piece.map_err(|_| ApiError::because(Code::InvalidRequest, "the body ended too early"))?);
            if bytes.len() > limit {
                return Err(body::too_large(limit));
            }
        }
    }
    body::parse::<T>(&bytes)
}

/// The whole agent as JSON Lines, a page at a time, so that neither the object nor the Worker ever holds all of it. The
/// first page is fetched before the answer begins: what is refused is refused with its status.
async fn export(caller: &Caller<'_>) -> Answer {
    let first = export_page(caller.env, caller.config, &caller.principal.tenant, caller.id, ExportFrom::Agent).await?;
    let (env, config) = (caller.env.clone(), caller.config.clone());
    let (tenant, id) = (caller.principal.tenant.clone(), caller.id.to_owned());
    let pages = futures::stream::unfold(Some(first), move |page| {
        let (env, config, tenant, id) = (env.clone(), config.clone(), tenant.clone(), id.clone());
        async move {
            let page = page?;
            let text: String = page.lines.iter().map(|line| format!("{line}\n")).collect();
            let next = match page.next {
                None => None,
                Some(from) => match export_page(&env, &config, &tenant, &id, from).await {
                    Ok(page) => Some(page),
                    // The status has left already: the last line says that the export is not whole.
                    Err(error) => {
                        Some(ExportPage { lines: vec![object!({ "type": "error", "error": error })], next: None })
                    }
                },
            };
            Some((Ok::<Vec<u8>, worker::Error>(text.into_bytes()), next))
        }
    });
    let headers = Headers::new();
    headers.set("content-type", "application/x-ndjson; charset=utf-8").map_err(internal)?;
    Ok(Response::from_stream(Box::pin(pages)).map_err(internal)?.with_headers(headers))
}

async fn export_page(
    env: &Env,
    config: &Config,
    tenant: &str,
    id: &str,
    from: ExportFrom,
) -> std::result::Result<ExportPage, ApiError> {
    let asked = Ask::Export { from };
    let mut response = within(config, 0, Box::pin(ask(env, tenant, id, &asked))).await?;
    let bytes = response.bytes().await.map_err(internal)?;
    serde_json::from_slice(&bytes).map_err(|error| ApiError::new(Code::AgentUnavailable).logged(&error.to_string()))
}

/// The agent's events: a WebSocket goes through to the object; for SSE the Worker holds one and turns it into text, so that
/// the object can hibernate while somebody watches.
async fn watch(request: &Request, caller: &Caller<'_>, after: Option<u64>) -> Answer {
    let header = |name: &str| request.headers().get(name).ok().flatten();
    let after = resume_after(after, header("last-event-id").as_deref())?;
    let upgrade = header("upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket"));
    let names_protocol = caller.protocols.is_some();
    let protocol = (upgrade && names_protocol).then_some(auth::WEBSOCKET_PROTOCOL);
    let opening = protocol::open_events(caller.env, &caller.principal.tenant, caller.id, after, protocol);
    let response = within(caller.config, 0, Box::pin(opening)).await?;
    if upgrade {
        return Ok(response);
    }
    let socket = response.websocket().ok_or_else(|| ApiError::new(Code::AgentUnavailable))?;
    socket.accept().map_err(internal)?;
    sse_response(socket, caller.config.timing.keep_alive_ms).map_err(internal)
}

/// Texts, and their bytes, that may wait for a slow client before its stream is ended; it then resumes by `Last-Event-ID`.
const SSE_BACKLOG_MAX: usize = 4_096;
const SSE_BACKLOG_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What waits for a slow client. It takes one text of any size, so that every client makes progress.
struct Backlog {
    sender: mpsc::Sender<std::result::Result<Vec<u8>, worker::Error>>,
    bytes: Rc<Cell<usize>>,
}

impl Backlog {
    /// Adds a text; false when the client is gone or too slow.
    fn add(&mut self, text: String) -> bool {
        let waiting = self.bytes.get();
        if waiting > SSE_BACKLOG_BYTES_MAX {
            return false;
        }
        self.bytes.set(waiting.saturating_add(text.len()));
        self.sender.try_send(Ok(text.into_bytes())).is_ok()
    }
}

fn sse_response(socket: WebSocket, keep_alive_ms: u64) -> Result<Response> {
    let (sender, receiver) = mpsc::channel(SSE_BACKLOG_MAX);
    let bytes = Rc::new(Cell::new(0_usize));
    let backlog = Backlog { sender, bytes: Rc::clone(&bytes) };
    let receiver = receiver.inspect(move |text: &std::result::Result<Vec<u8>, worker::Error>| {
        bytes.set(bytes.get().saturating_sub(text.as_ref().map_or(0, Vec::len)));
    });
    wasm_bindgen_futures::spawn_local(forward(socket, backlog, keep_alive_ms));
    let headers = Headers::new();
    headers.set("content-type", sse::CONTENT_TYPE)?;
    headers.set("cache-control", "no-store")?;
    Ok(Response::from_stream(receiver)?.with_headers(headers))
}

/// Carries events from the object's socket to the client until either is gone, and closes the socket then.
async fn forward(socket: WebSocket, mut backlog: Backlog, keep_alive_ms: u64) {
    let Ok(messages) = socket.events() else { return };
    pin_mut!(messages);
    let mut quiet = sleep(keep_alive_ms);
    // The head of the response leaves with the first byte; a client should not wait for the first event.
    let mut open = backlog.add(sse::KEEP_ALIVE.to_owned());
    while open {
        match select(messages.next(), quiet).await {
            Either::Left((message, standing)) => {
                quiet = standing;
                let text = match message {
                    Some(Ok(WebsocketEvent::Message(message))) => message.text(),
                    _ => break,
                };
                let Some(event) = text.and_then(|text| serde_json::from_str::<Value>(&text).ok()) else { continue };
                open = backlog.add(sse::event(&event));
            }
            Either::Right(_) => {
                quiet = sleep(keep_alive_ms);
                open = backlog.add(sse::KEEP_ALIVE.to_owned());
            }
        }
    }
    // Closing a socket that is closed already is no matter.
    let _ = socket.close(Some(1000), Some("done"));
}
