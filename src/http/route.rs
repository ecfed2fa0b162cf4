//! The routes: one table says every method and path, the scope it needs and the query it takes.
//!
//! docs/openapi.yaml is checked against [`TABLE`] by tests/openapi.rs. Another family of routes is more lines of the table,
//! a variant of [`Route`] and its arm in `build`.

use super::is_id;
use crate::config::Scope;
use crate::error::{ApiError, Code};

/// Characters of a `request_id`.
pub const REQUEST_ID_CHARS_MAX: usize = 128;
/// Characters of a signal's name.
pub const SIGNAL_NAME_CHARS_MAX: usize = 128;
/// Characters of a list's cursor.
pub const CURSOR_CHARS_MAX: usize = 1_024;
/// Entries of one page.
pub const LIMIT_MAX: u64 = 1_000;
/// Entries of one page when the query does not say.
pub const LIMIT_DEFAULT: u64 = 200;
/// Seconds that a request may wait for a submission to settle (api.md).
pub const WAIT_S_MAX: u64 = 60;
/// Sequence numbers stay within what JavaScript counts exactly (design S4).
const SEQ_MAX: u64 = 9_007_199_254_740_991;

closed_list! {
    /// An agent's status, as api.md has it.
    AgentStatus {
        Idle "idle": "Nothing to do.",
        Working "working": "A run is present.",
        Waiting "waiting": "A tool waits for a signal, a time or another agent.",
        Parked "parked": "It needs `retry`.",
        Stopping "stopping": "A stop is being carried out.",
        Stopped "stopped": "It takes no messages until `retry`.",
    }
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// `GET /healthz`.
    Healthz,
    /// `GET /v1/extensions`.
    Extensions,
    /// `GET /v1/agents`.
    ListAgents {
        /// Only agents of this status.
        status: Option<AgentStatus>,
        /// Where the page before ended.
        cursor: Option<String>,
    },
    /// Anything below `/v1/agents/{id}`, which that agent's object answers.
    Agent {
        /// The agent's id, checked.
        id: String,
        /// What is asked of it.
        call: AgentCall,
    },
}

/// What is asked of one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentCall {
    /// `GET`.
    Get,
    /// `PUT`.
    Configure,
    /// `DELETE`.
    Delete,
    /// `POST …/messages`.
    Message,
    /// `GET …/submissions/{request_id}`.
    Submission {
        /// The submission.
        request_id: String,
        /// Seconds to wait for it to settle.
        wait_s: u64,
    },
    /// `GET …/entries`.
    Entries {
        /// Only entries with a higher seq.
        after: u64,
        /// At most so many.
        limit: u64,
    },
    /// `GET …/events`.
    Events {
        /// Only events with a higher seq; see [`resume_after`].
        after: Option<u64>,
    },
    /// `POST …/interrupt`.
    Interrupt,
    /// `POST …/stop`.
    Stop,
    /// `POST …/retry`.
    Retry,
    /// `GET …/export`.
    Export,
    /// `POST …/signals/{name}`.
    Signal {
        /// The signal's name.
        name: String,
    },
}

/// Which route of the table; [`Route`] is this with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Healthz,
    Extensions,
    ListAgents,
    Get,
    Configure,
    Delete,
    Message,
    Submission,
    Entries,
    Events,
    Interrupt,
    Stop,
    Retry,
    Export,
    Signal,
}

/// One line of the table.
#[derive(Debug)]
pub struct RouteSpec {
    /// The method, upper case.
    pub method: &'static str,
    /// The path, with `{name}` for a segment that is a parameter.
    pub template: &'static str,
    /// The scope it needs; `None` needs no token.
    pub scope: Option<Scope>,
    /// The query parameters it takes.
    pub query: &'static [&'static str],
    kind: Kind,
}

const fn line(
    method: &'static str,
    template: &'static str,
    scope: Option<Scope>,
    query: &'static [&'static str],
    kind: Kind,
) -> RouteSpec {
    RouteSpec { method, template, scope, query, kind }
}

const READ: Option<Scope> = Some(Scope::Read);
const WRITE: Option<Scope> = Some(Scope::Write);
const ADMIN: Option<Scope> = Some(Scope::Admin);

/// Every route.
pub const TABLE: &[RouteSpec] = &[
    line("GET", "/healthz", None, &[], Kind::Healthz),
    line("GET", "/v1/extensions", READ, &[], Kind::Extensions),
    line("GET", "/v1/agents", READ, &["status", "cursor"], Kind::ListAgents),
    line("GET", "/v1/agents/{id}", READ, &[], Kind::Get),
    line("PUT", "/v1/agents/{id}", WRITE, &[], Kind::Configure),
    line("DELETE", "/v1/agents/{id}", ADMIN, &[], Kind::Delete),
    line("POST", "/v1/agents/{id}/messages", WRITE, &[], Kind::Message),
    line("GET", "/v1/agents/{id}/submissions/{request_id}", READ, &["wait"], Kind::Submission),
    line("GET", "/v1/agents/{id}/entries", READ, &["after", "limit"], Kind::Entries),
    line("GET", "/v1/agents/{id}/events", READ, &["after"], Kind::Events),
    line("POST", "/v1/agents/{id}/interrupt", WRITE, &[], Kind::Interrupt),
    line("POST", "/v1/agents/{id}/stop", WRITE, &[], Kind::Stop),
    line("POST", "/v1/agents/{id}/retry", WRITE, &[], Kind::Retry),
    line("GET", "/v1/agents/{id}/export", READ, &[], Kind::Export),
    line("POST", "/v1/agents/{id}/signals/{name}", WRITE, &[], Kind::Signal),
];

impl Route {
    /// The scope that a token needs; `None` for the health check.
    pub fn scope(&self) -> Option<Scope> {
        let kind = self.kind();
        // The table has every kind (tested); should it not, the strictest scope is asked for.
        TABLE.iter().find(|spec| spec.kind == kind).map_or(ADMIN, |spec| spec.scope)
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Healthz => Kind::Healthz,
            Self::Extensions => Kind::Extensions,
            Self::ListAgents { .. } => Kind::ListAgents,
            Self::Agent { call, .. } => match call {
                AgentCall::Get => Kind::Get,
                AgentCall::Configure => Kind::Configure,
                AgentCall::Delete => Kind::Delete,
                AgentCall::Message => Kind::Message,
                AgentCall::Submission { .. } => Kind::Submission,
                AgentCall::Entries { .. } => Kind::Entries,
                AgentCall::Events { .. } => Kind::Events,
                AgentCall::Interrupt => Kind::Interrupt,
                AgentCall::Stop => Kind::Stop,
                AgentCall::Retry => Kind::Retry,
                AgentCall::Export => Kind::Export,
                AgentCall::Signal { .. } => Kind::Signal,
            },
        }
    }
}

/// Finds the route. `path` is still percent-encoded, since a decoded `%2F` would look like a border; `query` is without
/// its question mark.
///
/// # Errors
/// `not_found`, `method_not_allowed` (with `details.allow`), `invalid_request`, `unknown_field`.
pub fn parse(method: &str, path: &str, query: &str) -> Result<Route, ApiError> {
    let mut allow = Vec::new();
    for spec in TABLE {
        let Some(raw) = captures(spec.template, path) else { continue };
        if spec.method != method {
            allow.push(spec.method);
            continue;
        }
        let params: Result<Vec<String>, ApiError> = raw.into_iter().map(|text| decode(text, false)).collect();
        return build(spec.kind, &params?, &Query::parse(query, spec.query)?);
    }
    if allow.is_empty() {
        return Err(ApiError::because(Code::NotFound, "There is no such path."));
    }
    let message = format!("This path has {} only.", allow.join(", "));
    Err(ApiError::because(Code::MethodNotAllowed, message).with("allow", allow))
}

/// The segments of `path` that stand where the template has a parameter, or `None` when it does not fit.
fn captures<'a>(template: &str, path: &'a str) -> Option<Vec<&'a str>> {
    let mut found = Vec::new();
    let mut segments = path.split('/');
    for wanted in template.split('/') {
        let segment = segments.next()?;
        if wanted.starts_with('{') && !segment.is_empty() {
            found.push(segment);
        } else if wanted != segment {
            return None;
        }
    }
    segments.next().is_none().then_some(found)
}

fn build(kind: Kind, params: &[String], query: &Query) -> Result<Route, ApiError> {
    let second = |name, chars_max| name_param(params.get(1), name, chars_max);
    let call = match kind {
        Kind::Healthz => return Ok(Route::Healthz),
        Kind::Extensions => return Ok(Route::Extensions),
        Kind::ListAgents => {
            return Ok(Route::ListAgents { status: query.status()?, cursor: query.text("cursor", CURSOR_CHARS_MAX)? });
        }
        Kind::Get => AgentCall::Get,
        Kind::Configure => AgentCall::Configure,
        Kind::Delete => AgentCall::Delete,
        Kind::Message => AgentCall::Message,
        Kind::Submission => AgentCall::Submission {
            request_id: second("request_id", REQUEST_ID_CHARS_MAX)?,
            wait_s: query.number("wait", 0, WAIT_S_MAX)?.unwrap_or(0),
        },
        Kind::Entries => AgentCall::Entries {
            after: query.number("after", 0, SEQ_MAX)?.unwrap_or(0),
            limit: query.number("limit", 1, LIMIT_MAX)?.unwrap_or(LIMIT_DEFAULT),
        },
        Kind::Events => AgentCall::Events { after: query.number("after", 0, SEQ_MAX)? },
        Kind::Interrupt => AgentCall::Interrupt,
        Kind::Stop => AgentCall::Stop,
        Kind::Retry => AgentCall::Retry,
        Kind::Export => AgentCall::Export,
        Kind::Signal => AgentCall::Signal { name: second("name", SIGNAL_NAME_CHARS_MAX)? },
    };
    let id = params.first().filter(|id| is_id(id)).cloned();
    let id = id.ok_or_else(|| bad("id", "the agent id must be 1 to 64 of A-Z a-z 0-9 . _ -"))?;
    Ok(Route::Agent { id, call })
}

/// Where an event stream begins: after the later of the query's `after` and the header `Last-Event-ID`.
///
/// A browser that reconnects sends the first query again and the header of what it saw last.
///
/// # Errors
/// `invalid_request` when the header is no sequence number.
pub fn resume_after(after: Option<u64>, last_event_id: Option<&str>) -> Result<u64, ApiError> {
    let header = match last_event_id.map(str::trim).filter(|text| !text.is_empty()) {
        Some(text) => whole_number(text, 0, SEQ_MAX)
            .ok_or_else(|| bad("Last-Event-ID", "the header must be a sequence number"))?,
        None => 0,
    };
    Ok(after.unwrap_or(0).max(header))
}

fn bad(field: &str, message: &str) -> ApiError {
    ApiError::because(Code::InvalidRequest, format!("{field}: {message}")).with("field", field)
}

fn name_param(param: Option<&String>, name: &str, chars_max: usize) -> Result<String, ApiError> {
    let fits = |text: &&String| text.chars().count() <= chars_max && !text.chars().any(char::is_control);
    let found = param.filter(|text| !text.is_empty()).filter(fits).cloned();
    found.ok_or_else(|| bad(name, &format!("must be 1 to {chars_max} characters, none of them a control character")))
}

fn whole_number(text: &str, min: u64, max: u64) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|number| (min..=max).contains(number))
}

/// Percent-decodes; in a query a plus is a space.
fn decode(text: &str, query: bool) -> Result<String, ApiError> {
    let fault = || ApiError::because(Code::InvalidRequest, "The address has a broken percent-encoding.");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let high = rest.next().and_then(hex_digit).ok_or_else(fault)?;
                let low = rest.next().and_then(hex_digit).ok_or_else(fault)?;
                (high << 4) | low
            }
            b'+' if query => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).map_err(|_| fault())
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// The query's parameters, each known and given once.
struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    fn parse(query: &str, known: &'static [&'static str]) -> Result<Self, ApiError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = decode(name, true)?;
            if !known.contains(&name.as_str()) {
                let name: String = name.chars().take(64).collect();
                let message = format!("The query parameter {name:?} is not known here.");
                let error = ApiError::because(Code::UnknownField, message);
                return Err(error.with("field", name).with("known", known.to_vec()));
            }
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(bad(&name, "the query parameter stands there twice"));
            }
            pairs.push((name, decode(value, true)?));
        }
        Ok(Self { pairs })
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = whole_number(text, min, max);
        number.map(Some).ok_or_else(|| bad(name, &format!("must be a whole number from {min} to {max}")))
    }

    /// A text that is not empty; an empty one is the same as none.
    fn text(&self, name: &str, chars_max: usize) -> Result<Option<String>, ApiError> {
        let Some(text) = self.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        if text.chars().count() > chars_max {
            return Err(bad(name, &format!("must be at most {chars_max} characters")));
        }
        Ok(Some(text.to_owned()))
    }

    fn status(&self) -> Result<Option<AgentStatus>, ApiError> {
        let Some(text) = self.get("status").filter(|text| !text.is_empty()) else { return Ok(None) };
        let found = AgentStatus::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, status)| Some(*status)).ok_or_else(|| {
            let names: Vec<&str> = AgentStatus::ALL.iter().map(|(name, _)| *name).collect();
            bad("status", &format!("must be one of {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
