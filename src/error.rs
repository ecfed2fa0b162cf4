//! Errors as data: one table says every code that a client can meet, with its status, text and hint.
//!
//! docs/errors.md has a paragraph for each code; a test checks both directions.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::json::{Problem, ProblemKind};
use crate::port::SqlError;

macro_rules! codes {
    ($($variant:ident $name:literal $status:literal $retryable:literal $message:literal $hint:literal;)*) => {
        /// The stable code of an error that HTTP answers with.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = concat!("`", $name, "`, HTTP ", stringify!($status), ": ", $message)] $variant,)*
        }

        impl Code {
            /// Every code, in the order of docs/errors.md.
            pub const ALL: &[Code] = &[$(Code::$variant,)*];

            /// The code as clients see it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The HTTP status it is answered with.
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// Whether the same request may succeed later without a change.
            pub const fn retryable(self) -> bool {
                match self { $(Self::$variant => $retryable,)* }
            }

            /// What happened, when nothing more exact is known.
            pub const fn message(self) -> &'static str {
                match self { $(Self::$variant => $message,)* }
            }

            /// What the reader can do about it.
            pub const fn hint(self) -> &'static str {
                match self { $(Self::$variant => $hint,)* }
            }

            /// The code of this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    InvalidRequest "invalid_request" 400 false "The request is not valid." "The message names the part that is wrong; docs/openapi.yaml has the shape.";
    UnknownField "unknown_field" 400 false "The request has a field that is not known." "Remove the field that details.field names, or correct its spelling.";
    Unauthorized "unauthorized" 401 false "A valid token is needed." "Send Authorization: Bearer <token>; API_TOKENS holds the SHA-256 of each token.";
    Forbidden "forbidden" 403 false "The token lacks the scope for this." "Use a token whose scopes have the one that details.scope names.";
    NotFound "not_found" 404 false "There is nothing of this name." "Check the path and the id; ids belong to the tenant of the token.";
    DeadLetterNotFound "dead_letter_not_found" 404 false "There is no dead letter of this id." "GET /v1/dead-letters lists them; one that was replayed is gone.";
    MethodNotAllowed "method_not_allowed" 405 false "The path does not have this method." "The header Allow lists the methods that it has.";
    Conflict "conflict" 409 false "The request contradicts what is stored." "Use a new id for a new request, or read what is stored under this one.";
    AgentBusy "agent_busy" 409 false "The agent is working and the message asked to be rejected then." "Send it with when_busy steer or follow_up, or again when the agent is idle.";
    AgentStopped "agent_stopped" 409 false "The agent is stopped and takes no messages." "POST /v1/agents/{id}/retry starts it again.";
    FileConflict "file_conflict" 409 false "The file changed since it was read." "Read the file again and apply the change to what it holds now.";
    SignalAmbiguous "signal_ambiguous" 409 false "More than one call waits for this signal." "Name the call in the field call; details.calls lists them.";
    AgentDeleted "agent_deleted" 410 false "The agent was deleted." "Use another agent id; a deleted one does not come back.";
    TooLarge "too_large" 413 false "The request is larger than the limit." "details.limit says how much is accepted; send less, or in parts.";
    GraphInvalid "graph_invalid" 422 false "The graph is not valid; nothing was stored." "The message names the cycle, or the key that is unknown or repeated.";
    SchemaInvalid "schema_invalid" 422 false "The JSON Schema uses what is not supported, or is not valid." "details.path names the place; docs/errors.md lists the keywords.";
    RateLimited "rate_limited" 429 true "There were too many requests." "Wait as long as Retry-After says.";
    NotConfigured "not_configured" 503 false "The configuration is not complete or not valid." "Correct the variable that details.variable names and deploy again.";
    StorageUnavailable "storage_unavailable" 503 true "The storage did not answer; nothing was changed." "Send the same request again; the log has the cause under ref.";
    SchemaOlder "schema_older" 503 true "The stored data is of an older version and its migration failed." "The log has the cause under ref; the data is unchanged.";
    SchemaNewer "schema_newer" 503 false "The stored data is of a newer version than this deployment." "Deploy the version that wrote it, or a later one.";
    AgentUnavailable "agent_unavailable" 503 true "The agent did not answer in time." "Send the same request again, with the same request_id; it is not carried out twice.";
}

/// Codes that a tool result carries. A model reads them, HTTP does not answer with them.
pub mod tool_code {
    /// The object died while the tool ran; its effect is unknown.
    pub const INTERRUPTED: &str = "interrupted";
    /// The arguments do not fit the tool's schema, or are no JSON object.
    pub const INVALID_ARGUMENTS: &str = "invalid_arguments";
    /// A hook blocked the call.
    pub const BLOCKED: &str = "blocked";
    /// There is no such tool, or this agent may not use it.
    pub const TOOL_UNAVAILABLE: &str = "tool_unavailable";
    /// The tool ran and reported an error.
    pub const TOOL_FAILED: &str = "tool_failed";
    /// The tool did not end in its time.
    pub const TOOL_TIMEOUT: &str = "tool_timeout";
    /// The run was stopped or interrupted before the tool ended.
    pub const STOPPED: &str = "stopped";
    /// The model's answer was cut by its output limit, so none of its calls was executed.
    pub const TRUNCATED: &str = "truncated";
    /// The answer had more calls than are carried out.
    pub const TOO_MANY_CALLS: &str = "too_many_calls";
    /// There is no place to run commands in.
    pub const SANDBOX_UNAVAILABLE: &str = "sandbox_unavailable";

    /// Every code of a tool result, in the order of docs/errors.md.
    pub const ALL: &[&str] = &[
        INTERRUPTED,
        INVALID_ARGUMENTS,
        BLOCKED,
        TOOL_UNAVAILABLE,
        TOOL_FAILED,
        TOOL_TIMEOUT,
        STOPPED,
        TRUNCATED,
        TOO_MANY_CALLS,
        SANDBOX_UNAVAILABLE,
    ];
}

/// One error as a client sees it, and what the log says beside it.
///
/// As JSON it is the inner object of api.md, `{"code","message","hint","retryable","details","ref"}`, so that an object
/// can answer the Worker with it; [`ApiError::body`] is the whole answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Wire", try_from = "Wire")]
pub struct ApiError {
    /// The code, which decides the status and whether to retry.
    pub code: Code,
    /// What is wrong with this request, for people.
    pub message: String,
    /// What to do about it; the code's own text unless set.
    pub hint: Option<Box<str>>,
    /// Facts for programs, such as `field`, `limit`, `variable`.
    pub details: Map<String, Value>,
    /// Matches the log line. Empty until the caller, who has the random source, sets it.
    pub reference: String,
    /// What only the log may say. Never part of the JSON.
    pub log: Option<Box<str>>,
}

impl ApiError {
    /// An error with the code's own text.
    pub fn new(code: Code) -> Self {
        Self::because(code, code.message())
    }

    /// An error that says what exactly is wrong.
    pub fn because(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, details: Map::new(), reference: String::new(), log: None }
    }

    /// Adds one fact to the details.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// Replaces the code's own hint.
    #[must_use]
    pub fn with_hint(mut self, hint: &str) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets `ref`, unless one is set: what an object reported keeps the reference of the object's log line.
    #[must_use]
    pub fn with_ref(mut self, reference: &str) -> Self {
        if self.reference.is_empty() {
            reference.clone_into(&mut self.reference);
        }
        self
    }

    /// Says how many seconds to wait, which becomes `Retry-After`.
    #[must_use]
    pub fn retry_after_s(self, seconds: u64) -> Self {
        self.with("retry_after_s", seconds)
    }

    /// What only the log may say, such as the text of a store's error.
    #[must_use]
    pub fn logged(mut self, text: &str) -> Self {
        self.log = Some(text.into());
        self
    }

    /// The whole body of the answer: `{"error":{…}}`.
    pub fn body(&self) -> Value {
        json!({ "error": Wire::from(self.clone()).into_value() })
    }

    /// Headers that belong to this error beside the content type: `WWW-Authenticate`, `Allow`, `Retry-After`.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        if self.code == Code::Unauthorized {
            headers.push(("WWW-Authenticate", "Bearer".to_owned()));
        }
        if let (Code::MethodNotAllowed, Some(Value::Array(allow))) = (self.code, self.details.get("allow")) {
            let methods: Vec<&str> = allow.iter().filter_map(Value::as_str).collect();
            headers.push(("Allow", methods.join(", ")));
        }
        let stated = self.details.get("retry_after_s").and_then(Value::as_u64);
        // A 429 without the header would be repeated at once by many clients.
        let fallback = (self.code == Code::RateLimited).then_some(1);
        if let Some(seconds) = stated.or(fallback) {
            headers.push(("Retry-After", seconds.to_string()));
        }
        headers
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.code.name(), self.message)
    }
}
impl std::error::Error for ApiError {}

impl From<Code> for ApiError {
    fn from(code: Code) -> Self {
        Self::new(code)
    }
}

impl From<SqlError> for ApiError {
    fn from(error: SqlError) -> Self {
        Self::new(Code::StorageUnavailable).logged(&error.message)
    }
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        let place = if problem.path.is_empty() { "the body" } else { problem.path.as_str() };
        let message = format!("{place}: {}", problem.problem);
        let error = match problem.kind {
            ProblemKind::Invalid => Self::because(Code::InvalidRequest, message),
            ProblemKind::Unknown(known) => Self::because(Code::UnknownField, message).with("known", known.to_vec()),
            ProblemKind::TooLarge(limit, unit) => {
                Self::because(Code::TooLarge, message).with("limit", limit).with("unit", unit)
            }
        };
        if problem.path.is_empty() { error } else { error.with("field", problem.path) }
    }
}

/// The JSON form. A field that is not known is let through: the object may run a newer version than the Worker.
#[derive(Serialize, Deserialize)]
struct Wire {
    code: String,
    message: String,
    #[serde(default)]
    hint: String,
    #[serde(default)]
    retryable: bool,
    #[serde(default)]
    details: Map<String, Value>,
    #[serde(default, rename = "ref")]
    reference: String,
}

impl Wire {
    fn into_value(self) -> Value {
        json!({
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "retryable": self.retryable,
            "details": self.details,
            "ref": self.reference,
        })
    }
}

impl From<ApiError> for Wire {
    fn from(error: ApiError) -> Self {
        Self {
            code: error.code.name().to_owned(),
            message: error.message,
            hint: error.hint.map_or_else(|| error.code.hint().to_owned(), Into::into),
            retryable: error.code.retryable(),
            details: error.details,
            reference: error.reference,
        }
    }
}

impl TryFrom<Wire> for ApiError {
    type Error = String;

    fn try_from(wire: Wire) -> Result<Self, String> {
        let code = Code::from_name(&wire.code).ok_or_else(|| format!("unknown error code {:?}", wire.code))?;
        Ok(Self {
            code,
            message: wire.message,
            hint: (!wire.hint.is_empty() && wire.hint != code.hint()).then(|| wire.hint.into()),
            details: wire.details,
            reference: wire.reference,
            log: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_body_has_the_shape_of_the_contract() {
        let error = ApiError::because(Code::AgentBusy, "busy").with("run", "run_1").with_ref("ref_1");
        assert_eq!(
            error.body(),
            json!({"error": {"code": "agent_busy", "message": "busy", "hint": Code::AgentBusy.hint(), "retryable": false,
                "details": {"run": "run_1"}, "ref": "ref_1"}})
        );
    }

    #[test]
    fn every_code_survives_the_way_from_the_object_to_the_worker() {
        for code in Code::ALL {
            let error = ApiError::new(*code).with("a", 1).with_ref("ref_2");
            let text = serde_json::to_string(&error).unwrap();
            let back: ApiError = serde_json::from_str(&text).unwrap();
            assert_eq!(back, error, "{text}");
            assert_eq!(back.with_ref("other").reference, "ref_2");
        }
        assert!(serde_json::from_value::<ApiError>(json!({"code": "no_such", "message": ""})).is_err());
    }

    #[test]
    fn the_text_of_the_store_stays_out_of_the_body() {
        let error = ApiError::from(SqlError::new("near \"SELEC\": syntax error"));
        assert_eq!(error.code, Code::StorageUnavailable);
        assert!(!error.body().to_string().contains("SELEC"));
        assert_eq!(error.log.as_deref(), Some("near \"SELEC\": syntax error"));
    }

    #[test]
    fn headers_go_with_their_codes() {
        assert_eq!(ApiError::new(Code::Unauthorized).headers(), [("WWW-Authenticate", "Bearer".to_owned())]);
        assert_eq!(ApiError::new(Code::RateLimited).retry_after_s(7).headers(), [("Retry-After", "7".to_owned())]);
        let error = ApiError::new(Code::MethodNotAllowed).with("allow", vec!["GET", "PUT"]);
        assert_eq!(error.headers(), [("Allow", "GET, PUT".to_owned())]);
    }

    /// The paragraphs of docs/errors.md by their heading.
    fn paragraphs() -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for section in include_str!("../docs/errors.md").split("\n### ").skip(1) {
            let (title, text) = section.split_once('\n').unwrap();
            let text = text.split("\n## ").next().unwrap();
            let code = title.trim().trim_matches('`').to_owned();
            assert!(found.insert(code.clone(), text.trim().to_owned()).is_none(), "{code} stands there twice");
        }
        found
    }

    #[test]
    fn each_code_has_a_paragraph_and_each_paragraph_a_code() {
        let documented = paragraphs();
        let mut known: Vec<&str> = Code::ALL.iter().map(|code| code.name()).collect();
        known.extend(tool_code::ALL);
        for code in &known {
            let text = documented.get(*code).unwrap_or_else(|| panic!("docs/errors.md lacks {code}"));
            assert!(text.len() > 60, "{code}: {text:?} is no paragraph");
        }
        for code in Code::ALL {
            let status = format!("HTTP {}", code.status());
            assert!(documented[code.name()].starts_with(&status), "{}: begins with {status}", code.name());
        }
        for code in documented.keys() {
            assert!(known.contains(&code.as_str()), "docs/errors.md has {code}, the code does not");
        }
        known.sort_unstable();
        known.dedup();
        assert_eq!(known.len(), documented.len());
    }
}
