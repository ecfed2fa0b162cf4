//! What the Worker and an object say to each other: JSON over `fetch`, one envelope type.

use crate::agent::Command;
use crate::agent::view::ExportFrom;
use crate::error::{ApiError, Code};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use worker::{Env, Headers, Method, Request, RequestInit, Response, Result};

/// Host name of object requests; it is never resolved.
const OBJECT_URL: &str = "https://agent.internal/";

/// What the Worker asks of an agent's object. Its events go by WebSocket: `GET /events?after=N`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// Carry out a command.
    Command {
        /// The command.
        command: Command,
    },
    /// The agent as the API shows it.
    Agent,
    /// One submission.
    Submission {
        /// Its request id.
        request_id: String,
        /// How long to wait for it to settle, ms.
        wait_ms: u64,
    },
    /// A page of entries.
    Entries {
        /// After this sequence number.
        after: i64,
        /// At most so many.
        limit: usize,
    },
    /// A page of an export.
    Export {
        /// Where it begins.
        from: ExportFrom,
    },
    /// Look whether something is due.
    Wake,
}

/// The object's name of an agent.
pub(super) fn object_name(tenant: &str, agent: &str) -> String {
    format!("{tenant}/{agent}")
}

/// Asks an agent's object.
pub(super) async fn ask(env: &Env, tenant: &str, agent: &str, ask: &Ask) -> Result<Response> {
    let body = serde_json::to_string(ask)?;
    let headers = Headers::new();
    headers.set("content-type", "application/json")?;
    let mut init = RequestInit::new();
    init.with_method(Method::Post).with_headers(headers).with_body(Some(body.into()));
    let request = Request::new_with_init(OBJECT_URL, &init)?;
    stub(env, tenant, agent)?.fetch_with_request(request).await
}

/// Opens the event stream of an agent's object.
pub(super) async fn open_events(
    env: &Env,
    tenant: &str,
    agent: &str,
    after: u64,
    protocol: Option<&str>,
) -> Result<Response> {
    let headers = Headers::new();
    headers.set("upgrade", "websocket")?;
    if let Some(protocol) = protocol {
        headers.set("sec-websocket-protocol", protocol)?;
    }
    let mut init = RequestInit::new();
    init.with_headers(headers);
    let request = Request::new_with_init(&format!("{OBJECT_URL}events?after={after}"), &init)?;
    stub(env, tenant, agent)?.fetch_with_request(request).await
}

fn stub(env: &Env, tenant: &str, agent: &str) -> Result<worker::Stub> {
    env.durable_object("AGENTS")?.get_by_name(&object_name(tenant, agent))
}

/// Path and query of an absolute address. The runtime has parsed and normalised it; the crate's own URL type would bring
/// the tables of international domain names along, a quarter of this Worker's size.
pub(super) fn path_and_query(address: &str) -> (&str, &str) {
    let without_fragment = address.split('#').next().unwrap_or(address);
    let (before, query) = without_fragment.split_once('?').unwrap_or((without_fragment, ""));
    let after_scheme = before.split_once("://").map_or(before, |(_, rest)| rest);
    let path = after_scheme.find('/').and_then(|at| after_scheme.get(at..)).unwrap_or("/");
    (path, query)
}

/// A JSON answer.
pub(super) fn json(status: u16, body: &Value) -> Result<Response> {
    let headers = Headers::new();
    headers.set("content-type", "application/json")?;
    Ok(Response::builder().with_status(status).with_headers(headers).fixed(body.to_string().into_bytes()))
}

/// An error as an object answers it; the Worker adds the reference.
pub(super) fn error(error: &ApiError) -> Result<Response> {
    let mut response = json(error.code.status(), &error.body())?;
    for (name, value) in error.headers() {
        response.headers_mut().set(name, &value)?;
    }
    Ok(response)
}

/// A page of an export, as an object answers it.
#[derive(Debug, Deserialize)]
pub(super) struct ExportPage {
    /// JSON documents, one a line.
    pub(super) lines: Vec<Value>,
    /// Where the next page begins.
    pub(super) next: Option<ExportFrom>,
}

/// The error in an object's answer.
pub(super) fn read_error(body: &[u8]) -> ApiError {
    #[derive(Deserialize)]
    struct Answer {
        error: ApiError,
    }
    serde_json::from_slice::<Answer>(body).map_or_else(|_| ApiError::new(Code::AgentUnavailable), |answer| answer.error)
}
