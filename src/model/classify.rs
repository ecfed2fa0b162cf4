//! One classifier for every error a provider or the gateway sends (design R5).
//!
//! Structure before prose, and the body before the status: the gateway reports a failed upstream as 400, and OpenRouter
//! sends its errors with 200 once a stream has begun. The order is: gateway envelope, HTML or nothing, code of the body,
//! availability, limit source and error type, Google's status, words as the last resort, status.

use super::call::ResponseHead;
use super::lenient::{array, head, number, object, parse_frame, text};
use super::redact::redact;
use super::sse::SseParser;
use super::wait::{WAIT_MS_MAX, limit_in_metadata, until_midnight_ms, wait_ms};
use super::{Failure, FailureKind};
use serde_json::{Value, json};

#[path = "classify_words.rs"]
mod words;

/// The longest message, bytes.
pub const MESSAGE_BYTES_MAX: usize = 2 * 1024;
/// How much of an upstream's own words goes into the message, bytes.
const RAW_BYTES_MAX: usize = 1024;
/// How deep an error object is kept.
const DEPTH_MAX: usize = 6;
/// How many elements of a list or fields of an object of an error are kept.
const ITEMS_MAX: usize = 16;

/// The failure of a response whose body is no answer. A body of any kind and any status will do, also 200.
pub fn response(response: &ResponseHead, body: &str, now_ms: i64) -> Failure {
    let status = Some(response.status);
    let body = body.trim_start_matches('\u{feff}').trim();
    if let Some(value) = parse_frame(body).or_else(|| in_event(body)).filter(|value| !value.is_null()) {
        return classify(&value, status, &response.headers, now_ms);
    }
    let told = if body.is_empty() {
        format!("HTTP {} with an empty body", response.status)
    } else if body.starts_with('<') || response.content_type.as_deref().is_some_and(|kind| kind.contains("html")) {
        words::of_html(response.status, body, &response.headers)
    } else {
        format!("HTTP {}: {}", response.status, redact(body, RAW_BYTES_MAX))
    };
    let kind = kind_of_status(status);
    let wait = wait_ms(&response.headers, &[], now_ms);
    finish(kind, told, status, wait)
}

/// The failure told by an error object alone: one inside a stream, with what is known of the response around it.
pub fn value(error: &Value, status: Option<u16>, headers: &[(String, String)], now_ms: i64) -> Failure {
    classify(error, status, headers, now_ms)
}

/// The failure of a transport that broke, with its own words.
pub fn transport(words: &str) -> Failure {
    let words = redact(words, MESSAGE_BYTES_MAX.saturating_sub(64));
    Failure::new(FailureKind::Transient, format!("the connection failed: {words}"))
}

/// The error inside a frame, ready to be stored; None when the frame holds none. Empty errors are no errors.
pub(crate) fn error_in(frame: &Value) -> Option<Value> {
    let told = |error: &Value| match error {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    };
    let direct = ["error", "errors"].iter().any(|key| frame.get(key).is_some_and(told));
    let marked = ["object", "type"].iter().any(|key| text(frame, key) == Some("error"))
        || text(frame, "name") == Some("AiGatewayError");
    if direct || marked {
        return Some(scrubbed(frame));
    }
    let choice = array(frame, "choices").iter().find_map(|choice| choice.get("error").filter(|error| told(error)));
    choice.map(|error| scrubbed(&json!({ "error": error })))
}

/// An error as it may be stored: without the answer around it, bounded, without credentials.
pub(crate) fn scrubbed(error: &Value) -> Value {
    let kept = match error {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(key, _)| !matches!(key.as_str(), "choices" | "usage" | "result"));
            Value::Object(fields.map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        other => other.clone(),
    };
    scrub(&kept, DEPTH_MAX)
}

fn scrub(value: &Value, depth: usize) -> Value {
    let Some(below) = depth.checked_sub(1) else { return Value::Null };
    match value {
        Value::String(text) => Value::String(redact(text, MESSAGE_BYTES_MAX)),
        Value::Array(items) => Value::Array(items.iter().take(ITEMS_MAX).map(|item| scrub(item, below)).collect()),
        Value::Object(fields) => Value::Object(
            fields.iter().take(ITEMS_MAX).map(|(key, value)| (head(key, 64).to_owned(), scrub(value, below))).collect(),
        ),
        other => other.clone(),
    }
}

/// Some servers refuse a stream request with an event stream of one event.
fn in_event(body: &str) -> Option<Value> {
    let mut events = Vec::new();
    let mut parser = SseParser::new();
    parser.push(body.as_bytes(), &mut events).ok()?;
    parser.end(&mut events).ok()?;
    events.iter().find_map(|event| parse_frame(&event.data).filter(Value::is_object))
}

/// The error objects of a body: the outermost first, then what an upstream said inside it.
struct Facts {
    envelope: Value,
    error: Value,
    upstream: Option<Value>,
    status: Option<u16>,
}

fn classify(body: &Value, http: Option<u16>, headers: &[(String, String)], now_ms: i64) -> Failure {
    let facts = Facts::read(body, http);
    let gateway = facts.gateway_code();
    let kind = match gateway.and_then(kind_of_gateway) {
        Some(kind) => kind,
        None => facts.kind(),
    };
    let errors: Vec<&Value> = [Some(&facts.error), facts.upstream.as_ref()].into_iter().flatten().collect();
    let wait = wait_ms(headers, &errors, now_ms);
    let daily = gateway.is_none() && facts.is_daily();
    let (kind, wait) = match kind {
        FailureKind::RateLimited if daily => {
            // A short retry delay beside a daily count is about the minute; the day ends at its reset, else at midnight.
            let reset = wait.filter(|wait| *wait > WAIT_MS_MAX);
            (FailureKind::QuotaExhausted, Some(reset.unwrap_or_else(|| until_midnight_ms(now_ms))))
        }
        kind => (kind, wait),
    };
    finish(kind, facts.message(gateway), facts.status, wait)
}

fn finish(kind: FailureKind, message: String, status: Option<u16>, wait: Option<u64>) -> Failure {
    let waits = matches!(kind, FailureKind::RateLimited | FailureKind::Transient);
    let kind = if waits && wait.is_some_and(|wait| wait > WAIT_MS_MAX) { FailureKind::QuotaExhausted } else { kind };
    let waits = waits || kind == FailureKind::QuotaExhausted;
    Failure {
        status,
        retry_after_ms: wait.filter(|_| waits),
        ..Failure::new(kind, redact(&message, MESSAGE_BYTES_MAX))
    }
}

impl Facts {
    fn read(body: &Value, http: Option<u16>) -> Self {
        // Google sends a list of one in streams that are no event streams.
        let envelope = match body {
            Value::Array(items) => items.iter().find(|item| item.is_object()).cloned().unwrap_or(Value::Null),
            other => other.clone(),
        };
        let inside = ["error", "errors"].iter().find_map(|key| match envelope.get(key) {
            Some(Value::Array(items)) => items.iter().find(|item| item.is_object()).cloned(),
            Some(Value::Object(fields)) if !fields.is_empty() => Some(Value::Object(fields.clone())),
            Some(Value::String(words)) if !words.is_empty() => Some(json!({ "message": words })),
            _ => None,
        });
        let in_choice = || array(&envelope, "choices").iter().find_map(|choice| object(choice, "error")).cloned();
        let error = inside.or_else(in_choice).unwrap_or_else(|| envelope.clone());
        let upstream = upstream_of(&error);
        let body_status = ["code", "status", "statusCode", "status_code"]
            .iter()
            .find_map(|key| number(&error, key))
            .or_else(|| number(&envelope, "httpCode"))
            .or_else(|| number(&envelope, "code"));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let body_status = body_status.filter(|code| (400.0..600.0).contains(code)).map(|code| code as u16);
        let refused = http.filter(|status| !(200..300).contains(status));
        Self { envelope, error, upstream, status: body_status.or(refused) }
    }

    fn gateway_code(&self) -> Option<u32> {
        let is_gateway = self.envelope.get("error").is_some_and(Value::is_array)
            || self.envelope.get("errors").is_some_and(Value::is_array)
            || text(&self.envelope, "name") == Some("AiGatewayError")
            || self.envelope.get("internalCode").is_some_and(Value::is_number);
        if !is_gateway {
            return None;
        }
        let code = number(&self.error, "code").or_else(|| number(&self.envelope, "internalCode"))?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Some(code as u32)
    }

    fn kind(&self) -> FailureKind {
        let kind = self
            .kind_of_codes()
            .or_else(|| self.kind_of_availability())
            .or_else(|| self.kind_of_metadata())
            .or_else(|| self.kind_of_google())
            .or_else(|| self.status.map(|status| kind_of_status(Some(status))));
        // A plain refusal says nothing of its cause: here, and where nothing at all is told, the words have to.
        match kind {
            None => words::kind(&self.words(), self.status).unwrap_or(FailureKind::Transient),
            Some(FailureKind::InvalidRequest) if words::may_be_overflow(&self.words(), self.status) => {
                FailureKind::ContextOverflow
            }
            Some(kind) => kind,
        }
    }

    fn all(&self) -> impl Iterator<Item = &Value> {
        [Some(&self.error), self.upstream.as_ref()].into_iter().flatten()
    }

    /// Codes and types that are words.
    fn kind_of_codes(&self) -> Option<FailureKind> {
        let codes = self.all().flat_map(|error| [text(error, "code"), text(error, "type")]);
        let kind = codes.flatten().find_map(words::kind_of_code)?;
        // `invalid_request_error` is what some call everything: a status that says more wins.
        let by_status = self.status.map(|status| kind_of_status(Some(status)));
        Some(by_status.filter(|_| kind == FailureKind::InvalidRequest).unwrap_or(kind))
    }

    fn kind_of_availability(&self) -> Option<FailureKind> {
        let availability = object(&self.error, "availability")?;
        let retryable = availability.get("retryable").and_then(Value::as_bool);
        match text(availability, "code") {
            Some("capacity_exhausted") => Some(FailureKind::RateLimited),
            Some("temporarily_unavailable" | "model_unavailable_upstream") => Some(FailureKind::Transient),
            Some(
                "model_not_found"
                | "wrong_endpoint"
                | "no_endpoints"
                | "model_deprecated"
                | "region_restricted"
                | "privacy_restricted"
                | "constraint_filtered"
                | "free_variant_ended",
            ) => Some(FailureKind::InvalidRequest),
            _ => {
                retryable.map(|retryable| if retryable { FailureKind::Transient } else { FailureKind::InvalidRequest })
            }
        }
    }

    fn kind_of_metadata(&self) -> Option<FailureKind> {
        let metadata = object(&self.error, "metadata")?;
        let source = match text(metadata, "limit_source") {
            Some("openrouter_in_flight_budget") => Some(FailureKind::RateLimited),
            Some("openrouter_credits" | "openrouter_key_limit") => Some(FailureKind::QuotaExhausted),
            Some(source) if source.starts_with("openrouter_free_tier") || source.starts_with("upstream_provider") => {
                Some(FailureKind::RateLimited)
            }
            _ => None,
        };
        let flagged = self.status == Some(403)
            && (metadata.get("flagged_input").is_some_and(|input| !input.is_null())
                || !array(metadata, "reasons").is_empty());
        source
            .or_else(|| text(metadata, "error_type").and_then(words::kind_of_code))
            .or(flagged.then_some(FailureKind::ContentFilter))
    }

    fn kind_of_google(&self) -> Option<FailureKind> {
        self.all().find_map(|error| match text(error, "status")? {
            "RESOURCE_EXHAUSTED" => Some(FailureKind::RateLimited),
            "UNAUTHENTICATED" | "PERMISSION_DENIED" => Some(FailureKind::Authentication),
            "INVALID_ARGUMENT" | "FAILED_PRECONDITION" | "OUT_OF_RANGE" | "NOT_FOUND" | "UNIMPLEMENTED" => {
                Some(FailureKind::InvalidRequest)
            }
            "UNAVAILABLE" | "INTERNAL" | "DEADLINE_EXCEEDED" | "ABORTED" | "CANCELLED" | "UNKNOWN" => {
                Some(FailureKind::Transient)
            }
            _ => None,
        })
    }

    /// A count of the day, told from one of the minute.
    fn is_daily(&self) -> bool {
        match self.error.get("metadata").and_then(|metadata| text(metadata, "limit_source")) {
            Some("openrouter_free_tier_daily") => return true,
            Some(_) => return false,
            None => {}
        }
        let quota_per_day = self.all().any(|error| {
            let violations = array(error, "details").iter().flat_map(|detail| array(detail, "violations"));
            violations.into_iter().any(|violation| {
                ["quotaId", "quotaMetric"]
                    .iter()
                    .any(|key| text(violation, key).is_some_and(|id| id.contains("PerDay") || id.ends_with("_per_day")))
            })
        });
        // OpenRouter's free tier counts 50 or 1,000 requests a day and 20 a minute.
        let free_tier = limit_in_metadata(&self.error).is_some_and(|limit| limit == 50.0 || limit == 1_000.0);
        let words = self.words();
        quota_per_day || words.contains("free-models-per-day") || (free_tier && !words.contains("free-models-per-min"))
    }

    fn words(&self) -> String {
        let all = self.all().filter_map(words_of).collect::<Vec<_>>();
        let raw = self.error.get("metadata").and_then(|metadata| text(metadata, "raw")).unwrap_or_default();
        format!("{} {raw}", all.join(" ")).to_lowercase()
    }

    fn message(&self, gateway: Option<u32>) -> String {
        let mut message = match gateway {
            Some(code) => format!("gateway {code}: "),
            None => String::new(),
        };
        match words_of(&self.error) {
            Some(words) => message.push_str(&words),
            None => message.push_str(&redact(&self.error.to_string(), RAW_BYTES_MAX)),
        }
        let metadata = self.error.get("metadata").unwrap_or(&Value::Null);
        let raw = self.upstream.as_ref().and_then(words_of).or_else(|| text(metadata, "raw").map(str::to_owned));
        let tags = [text(metadata, "provider_name"), text(metadata, "error_type")];
        let tags: Vec<&str> = tags.into_iter().flatten().collect();
        if !tags.is_empty() {
            message = format!("{message} ({})", tags.join(", "));
        }
        match raw {
            Some(raw) if !message.contains(&raw) => format!("{message}: {}", redact(&raw, RAW_BYTES_MAX)),
            _ => message,
        }
    }
}

/// What the upstream of a router said: JSON, often JSON in a string.
fn upstream_of(error: &Value) -> Option<Value> {
    let raw = error.get("metadata")?.get("raw")?;
    let parsed = match raw {
        Value::String(text) => parse_frame(head(text, 64 * 1024))?,
        other => other.clone(),
    };
    let first = match &parsed {
        Value::Array(items) => items.first()?,
        other => other,
    };
    Some(object(first, "error").unwrap_or(first).clone()).filter(Value::is_object)
}

fn words_of(error: &Value) -> Option<String> {
    let detail = || match error.get("detail") {
        Some(Value::Null) | None => None,
        Some(Value::String(words)) => Some(words.clone()),
        Some(other) => Some(other.to_string()),
    };
    let found = ["message", "error", "msg", "title"].iter().find_map(|key| text(error, key));
    found.map(str::to_owned).or_else(detail)
}

fn kind_of_gateway(code: u32) -> Option<FailureKind> {
    match code {
        2003 => Some(FailureKind::RateLimited),
        2005 => Some(FailureKind::Transient),
        2009 | 10_000 => Some(FailureKind::Authentication),
        2021 | 2045 => Some(FailureKind::QuotaExhausted),
        2001 | 7003 => Some(FailureKind::InvalidRequest),
        _ => None,
    }
}

/// The last resort. A success whose body is no answer is a fault of the server.
fn kind_of_status(status: Option<u16>) -> FailureKind {
    match status.unwrap_or(200) {
        401 | 403 | 407 => FailureKind::Authentication,
        402 => FailureKind::QuotaExhausted,
        429 => FailureKind::RateLimited,
        408 | 409 | 425 | 499 => FailureKind::Transient,
        501 | 505 => FailureKind::InvalidRequest,
        300..=499 => FailureKind::InvalidRequest,
        _ => FailureKind::Transient,
    }
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
