//! The words of errors: codes and types that are words, and, as the last resort, prose.

use super::super::FailureKind;
use super::super::lenient::head;
use super::super::redact::redact;
use super::super::wait::header;
use regex_lite::Regex;
use std::sync::LazyLock;

/// Matched against lower-case text.
const OVERFLOW: [&str; 19] = [
    r"input token count.{0,80}exceeds the maximum",
    r"maximum context length is [\d,]+",
    r"exceeds? (the )?(model'?s )?maximum context length",
    r"exceeds? (the|this|the model'?s|this model'?s) (model'?s )?context (window|length|size)",
    r"prompt (is )?too long",
    r"input is too long for requested model",
    r"maximum prompt length is",
    r"reduce the length of the messages",
    r"longer than the model'?s context length",
    r"exceeds the maximum allowed input length",
    r"exceeded model token limit",
    r"range of input length should be",
    r"exceeds the available context size",
    r"context window exceeds limit",
    r"too large for model with \d+ maximum context length",
    r"prompt exceeds max length",
    r"tokens in request more than max tokens allowed",
    r"context[_ ]length[_ ]exceeded",
    r"(context|token) (window|limit) (is )?exceeded",
];

/// A text with one of these is about a rate even where it reads like an overflow ("exceeds the limit of 30000 tokens per
/// minute").
const NO_OVERFLOW: [&str; 8] =
    ["rate limit", "rate-limit", "too many requests", "per minute", "(tpm", "(rpm", "throttl", "overloaded"];

static OVERFLOW_REGEXES: LazyLock<Vec<Regex>> =
    LazyLock::new(|| OVERFLOW.iter().filter_map(|pattern| Regex::new(pattern).ok()).collect());

/// A refusal that may be about the length of the context. `words` are in lower case.
pub(super) fn may_be_overflow(words: &str, status: Option<u16>) -> bool {
    matches!(status, None | Some(400 | 413 | 422)) && is_overflow(words)
}

fn is_overflow(words: &str) -> bool {
    let words = head(words, 8 * 1024);
    !NO_OVERFLOW.iter().any(|exclusion| words.contains(exclusion))
        && !words.contains("quota")
        && OVERFLOW_REGEXES.iter().any(|regex| regex.is_match(words))
}

/// What prose says, for an error with no structure at all. Digits in it are never read as a status.
pub(super) fn kind(words: &str, status: Option<u16>) -> Option<FailureKind> {
    let has = |any: &[&str]| any.iter().any(|part| words.contains(part));
    if may_be_overflow(words, status) {
        Some(FailureKind::ContextOverflow)
    } else if has(&["rate limit", "rate-limit", "too many requests", "per minute"]) {
        Some(FailureKind::RateLimited)
    } else if has(&["invalid api key", "incorrect api key", "no auth credentials", "unauthorized"]) {
        Some(FailureKind::Authentication)
    } else if has(&["insufficient credits", "requires more credits", "exceeded your current quota"]) {
        Some(FailureKind::QuotaExhausted)
    } else {
        None
    }
}

/// Error types and codes of OpenRouter, OpenAI, Anthropic and their imitators.
pub(super) fn kind_of_code(code: &str) -> Option<FailureKind> {
    Some(match code.to_ascii_lowercase().as_str() {
        "context_length_exceeded"
        | "token_limit_exceeded"
        | "string_too_long"
        | "exceed_context_size_error"
        | "model_context_window_exceeded" => FailureKind::ContextOverflow,
        "authentication"
        | "authentication_error"
        | "authenticationerror"
        | "invalid_api_key"
        | "permission_denied"
        | "permission_error"
        | "permissiondeniederror"
        | "unauthorized"
        | "unauthenticated" => FailureKind::Authentication,
        "payment_required"
        | "insufficient_quota"
        | "insufficient_credits"
        | "billing_error"
        | "billing_hard_limit_reached" => FailureKind::QuotaExhausted,
        "rate_limit_exceeded" | "rate_limit_error" | "ratelimiterror" | "rate_limited" | "too_many_requests" => {
            FailureKind::RateLimited
        }
        "provider_overloaded"
        | "provider_unavailable"
        | "overloaded_error"
        | "overloaded"
        | "server"
        | "timeout"
        | "server_error"
        | "internal_server_error"
        | "internalservererror"
        | "internal_error"
        | "api_error"
        | "timeout_error"
        | "service_unavailable"
        | "serviceunavailableerror" => FailureKind::Transient,
        "content_policy_violation" | "refusal" | "content_filter" | "moderation_blocked" => FailureKind::ContentFilter,
        "invalid_request"
        | "invalid_request_error"
        | "invalidrequesterror"
        | "badrequesterror"
        | "bad_request"
        | "invalid_prompt"
        | "not_found"
        | "not_found_error"
        | "notfounderror"
        | "model_not_found"
        | "precondition_failed"
        | "payload_too_large"
        | "request_too_large"
        | "unprocessable"
        | "max_tokens_exceeded"
        | "unprocessable_entity" => FailureKind::InvalidRequest,
        _ => return None,
    })
}

/// An error page in a few words: its title and Cloudflare's ray id, never its markup.
pub(super) fn of_html(status: u16, body: &str, headers: &[(String, String)]) -> String {
    let lower = body.to_ascii_lowercase();
    let title = lower.find("<title").and_then(|start| {
        let open = start.checked_add(lower.get(start..)?.find('>')?)?.checked_add(1)?;
        let close = open.checked_add(lower.get(open..)?.find("</title")?)?;
        body.get(open..close)
    });
    let title =
        title.map(|title| title.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|title| !title.is_empty());
    let ray = header(headers, "cf-ray").map(str::to_owned).or_else(|| ray_id(body));
    let mut words = format!("HTTP {status} with an HTML page");
    if let Some(title) = title {
        words = format!("{words}: {}", redact(&title, 256));
    }
    if let Some(ray) = ray {
        words = format!("{words} (ray id {})", head(&ray, 64));
    }
    words
}

fn ray_id(body: &str) -> Option<String> {
    let (_, after) = body.split_once("Ray ID")?;
    let after = after.trim_start_matches([':', ' ']);
    // The id stands in markup of its own.
    let text = match after.strip_prefix('<') {
        Some(tag) => tag.split_once('>')?.1,
        None => after,
    };
    let id: String = text.chars().take_while(char::is_ascii_alphanumeric).take(32).collect();
    (id.len() >= 8).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        assert_eq!(OVERFLOW_REGEXES.len(), OVERFLOW.len());
    }

    #[test]
    fn overflow_in_the_words_of_many() {
        for words in [
            "the input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            "this endpoint's maximum context length is 262144 tokens. however, you requested about 264896 tokens",
            "prompt is too long: 210000 tokens > 200000 maximum",
            "input is too long for requested model.",
            "please reduce the length of the messages or completion.",
            "tokens in request more than max tokens allowed",
            "the request exceeds the available context size.",
            "your input exceeds the context window of this model",
        ] {
            assert!(may_be_overflow(words, Some(400)), "{words}");
            assert!(!may_be_overflow(words, Some(429)), "{words}");
        }
    }

    #[test]
    fn case_202_tokens_per_minute_is_no_overflow() {
        let words = "request too large: prompt is too long, exceeds the limit of 30000 tokens per minute";
        assert!(!may_be_overflow(words, Some(400)));
    }

    #[test]
    fn case_37_a_page_in_a_few_words() {
        let page =
            "<!DOCTYPE html><title>\n api.x | 521: Web server is down</title>… Ray ID: <strong>8f2ab34cd5e6</strong>";
        assert_eq!(
            of_html(521, page, &[]),
            "HTTP 521 with an HTML page: api.x | 521: Web server is down (ray id 8f2ab34cd5e6)"
        );
    }
}
