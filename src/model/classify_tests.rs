#![allow(clippy::arithmetic_side_effects, clippy::type_complexity, clippy::string_slice)]

use super::FailureKind as Kind;
use super::*;

const NOW: i64 = 1_777_380_000_000;

fn failure(status: u16, body: &str) -> Failure {
    let head = ResponseHead { status, ..ResponseHead::default() };
    response(&head, body, NOW)
}

#[test]
fn bodies_and_their_kinds() {
    for (case, status, body, kind) in [
        (
            "case_40_gateway_2005",
            400,
            r#"{"success":false,"error":[{"code":2005,"message":"Failed to get response from provider"}]}"#,
            Kind::Transient,
        ),
        (
            "gateway 2001",
            400,
            r#"{"success":false,"error":[{"code":2001,"message":"no gateway"}]}"#,
            Kind::InvalidRequest,
        ),
        (
            "gateway 2003",
            429,
            r#"{"success":false,"error":[{"code":2003,"message":"Rate limited"}]}"#,
            Kind::RateLimited,
        ),
        (
            "gateway 2009",
            401,
            r#"{"name":"AiGatewayError","httpCode":401,"internalCode":2009,"message":"Unauthorized"}"#,
            Kind::Authentication,
        ),
        ("gateway 2021", 402, r#"{"error":[{"code":2021,"message":"no credit"}]}"#, Kind::QuotaExhausted),
        (
            "gateway 2045",
            429,
            r#"{"error":[{"code":2045,"message":"Spend limit exceeded: rule 'x'"}]}"#,
            Kind::QuotaExhausted,
        ),
        ("gateway 7003", 404, r#"{"error":[{"code":7003,"message":"x"}]}"#, Kind::InvalidRequest),
        (
            "gateway without a known code",
            424,
            r#"{"error":[{"code":9,"message":"blocked by guardrail"}]}"#,
            Kind::InvalidRequest,
        ),
        ("body code before status", 502, r#"{"error":{"code":429,"message":"slow"}}"#, Kind::RateLimited),
        ("code as a string of digits", 200, r#"{"error":{"code":"503","message":"m"}}"#, Kind::Transient),
        ("code as a word", 200, r#"{"error":{"code":"server_error"}}"#, Kind::Transient),
        (
            "OpenAI quota",
            429,
            r#"{"error":{"type":"insufficient_quota","code":"insufficient_quota","message":"m"}}"#,
            Kind::QuotaExhausted,
        ),
        (
            "a generic type and a telling status",
            401,
            r#"{"error":{"type":"invalid_request_error","message":"m"}}"#,
            Kind::Authentication,
        ),
        (
            "OpenAI key",
            401,
            r#"{"error":{"type":"invalid_request_error","code":"invalid_api_key","message":"m"}}"#,
            Kind::Authentication,
        ),
        (
            "vLLM",
            400,
            r#"{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000","type":"BadRequestError","code":400}"#,
            Kind::ContextOverflow,
        ),
        (
            "overloaded",
            529,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            Kind::Transient,
        ),
        (
            "error_type overflow",
            400,
            r#"{"error":{"code":400,"message":"x","metadata":{"error_type":"context_length_exceeded"}}}"#,
            Kind::ContextOverflow,
        ),
        (
            "error_type refusal",
            400,
            r#"{"error":{"code":400,"message":"x","metadata":{"error_type":"content_policy_violation"}}}"#,
            Kind::ContentFilter,
        ),
        (
            "moderation",
            403,
            r#"{"error":{"code":403,"message":"x","metadata":{"reasons":["violence"],"flagged_input":"…"}}}"#,
            Kind::ContentFilter,
        ),
        (
            "case_203_overflow",
            400,
            r#"{"error":{"code":400,"message":"This endpoint's maximum context length is 262144 tokens. However, you requested about 264896 tokens (64896 of text input, 200000 in the output)."}}"#,
            Kind::ContextOverflow,
        ),
        (
            "case_205_overflow",
            400,
            r#"{"error":{"message":"tokens in request more than max tokens allowed"}}"#,
            Kind::ContextOverflow,
        ),
        (
            "overflow told by the upstream",
            400,
            r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"prompt is too long: 9 tokens\"}}"}}}"#,
            Kind::ContextOverflow,
        ),
        (
            "case_202_tokens_per_minute",
            429,
            r#"{"error":{"message":"Request too large: exceeds the limit of 30000 tokens per minute, prompt is too long","code":429}}"#,
            Kind::RateLimited,
        ),
        (
            "case_206_body_too_large",
            413,
            r#"{"error":{"code":413,"message":"Payload too large","metadata":{"error_type":"payload_too_large"}}}"#,
            Kind::InvalidRequest,
        ),
        ("case_205_unknown_400", 400, r#"{"error":{"message":"something odd 429 503"}}"#, Kind::InvalidRequest),
        (
            "case_211_too_many_models",
            400,
            r#"{"error":{"code":400,"message":"'models' array must have 3 items or fewer."}}"#,
            Kind::InvalidRequest,
        ),
        (
            "case_212_credits",
            402,
            r#"{"error":{"code":402,"message":"requires more credits, or fewer max_tokens. You requested up to 64000 tokens, but can only afford 2666"}}"#,
            Kind::QuotaExhausted,
        ),
        (
            "in-flight budget",
            402,
            r#"{"error":{"code":402,"message":"x","metadata":{"limit_source":"openrouter_in_flight_budget","reason":"in_flight_budget_exhausted"}}}"#,
            Kind::RateLimited,
        ),
        (
            "case_c4_signature",
            400,
            r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"messages.1.content.0: Invalid `signature` in `thinking` block\"}}","provider_name":"Azure"}}}"#,
            Kind::InvalidRequest,
        ),
        (
            "case_c4_the_same_text_with_502",
            502,
            r#"{"error":{"message":"Provider returned error","code":502,"metadata":{"raw":"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\"}}"}}}"#,
            Kind::Transient,
        ),
        (
            "case_d9_digits_in_prose",
            200,
            r#"{"error":{"message":"request req_50312 of 429 bytes failed"}}"#,
            Kind::Transient,
        ),
        (
            "free variant ended",
            404,
            r#"{"error":{"code":404,"message":"x","availability":{"code":"free_variant_ended","retryable":false}}}"#,
            Kind::InvalidRequest,
        ),
        (
            "capacity",
            429,
            r#"{"error":{"code":429,"message":"x","availability":{"code":"capacity_exhausted","retryable":true,"retry_after":5}}}"#,
            Kind::RateLimited,
        ),
        (
            "unavailable for now",
            404,
            r#"{"error":{"code":404,"message":"x","availability":{"code":"new_word","retryable":true}}}"#,
            Kind::Transient,
        ),
        ("google auth", 200, r#"{"error":{"status":"UNAUTHENTICATED","message":"x"}}"#, Kind::Authentication),
        (
            "google overflow",
            400,
            r#"{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."}}"#,
            Kind::ContextOverflow,
        ),
        ("prose rate limit", 200, r#"{"error":"Rate limit reached"}"#, Kind::RateLimited),
        ("empty 401", 401, "", Kind::Authentication),
        ("empty 429", 429, "", Kind::RateLimited),
        ("empty 502", 502, "", Kind::Transient),
        ("empty 524", 524, "", Kind::Transient),
        ("empty 408", 408, "", Kind::Transient),
        ("empty 422", 422, "", Kind::InvalidRequest),
        ("a redirect", 302, "", Kind::InvalidRequest),
        (
            "cloudflare api",
            403,
            r#"{"success":false,"errors":[{"code":10000,"message":"Authentication error"}]}"#,
            Kind::Authentication,
        ),
        ("text", 503, "no healthy upstream", Kind::Transient),
    ] {
        let failure = failure(status, body);
        assert_eq!(failure.kind, kind, "{case}: {failure:?}");
        assert!(!failure.message.is_empty(), "{case}");
    }
}

#[test]
fn daily_counts_are_told_from_those_of_a_minute() {
    let openrouter = |message: &str, limit: &str, reset: &str| {
        let headers = json!({"X-RateLimit-Limit": limit, "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset});
        json!({"error": {"message": message, "code": 429, "metadata": {"headers": headers}}}).to_string()
    };
    let google = |quota: &str| {
        json!({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "m", "details": [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota}]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}]}})
        .to_string()
    };
    let source = |source: &str| json!({"error": {"code": 429, "metadata": {"limit_source": source}}}).to_string();
    let midnight = 40_800_000;
    for (case, body, kind, wait) in [
        (
            "case_208_free_models_per_day",
            openrouter("Rate limit exceeded: free-models-per-day. Add 10 credits", "50", "1777420800000"),
            Kind::QuotaExhausted,
            Some(midnight),
        ),
        (
            "the limit alone",
            openrouter("Rate limit exceeded", "1000", "1777420800000"),
            Kind::QuotaExhausted,
            Some(midnight),
        ),
        (
            "a reset that has passed",
            openrouter("Rate limit exceeded: free-models-per-day", "50", "1700000000000"),
            Kind::QuotaExhausted,
            Some(midnight),
        ),
        (
            "per minute",
            openrouter("Rate limit exceeded: free-models-per-min", "20", "1777380030000"),
            Kind::RateLimited,
            Some(30_000),
        ),
        (
            "a long wait is a quota",
            openrouter("Rate limit exceeded", "7", "1777380130000"),
            Kind::QuotaExhausted,
            Some(130_000),
        ),
        ("daily source", source("openrouter_free_tier_daily"), Kind::QuotaExhausted, Some(midnight)),
        ("minute source", source("openrouter_free_tier_per_minute"), Kind::RateLimited, None),
        ("upstream pool", source("upstream_provider_shared_pool"), Kind::RateLimited, None),
        (
            "case_184_google_per_day",
            google("GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
            Kind::QuotaExhausted,
            Some(midnight),
        ),
        ("google per minute", google("GenerateRequestsPerMinutePerProjectPerModel"), Kind::RateLimited, Some(34_000)),
    ] {
        let failure = failure(429, &body);
        assert_eq!((failure.kind, failure.retry_after_ms), (kind, wait), "{case}: {failure:?}");
    }
}

#[test]
fn retry_after_of_the_headers() {
    let with = |status: u16, seconds: &str| {
        let headers = vec![("Retry-After".to_owned(), seconds.to_owned())];
        response(&ResponseHead { status, content_type: None, headers }, "", NOW)
    };
    assert_eq!((with(429, "7").kind, with(429, "7").retry_after_ms), (Kind::RateLimited, Some(7_000)));
    assert_eq!(with(503, "7").retry_after_ms, Some(7_000));
    assert_eq!(with(503, "120").kind, Kind::Transient);
    assert_eq!(with(503, "121").kind, Kind::QuotaExhausted);
    assert_eq!(with(401, "7").retry_after_ms, None);
}

#[test]
fn messages_are_bounded_and_clean() {
    let long = json!({"error": {"code": 401, "message": format!("key sk-abcdefghijklmnop {}", "é".repeat(3_000))}})
        .to_string();
    let message = failure(401, &long).message;
    assert!(message.len() <= MESSAGE_BYTES_MAX && !message.contains("abcdefgh"), "{message}");
    let raw = r#"{"error":{"code":400,"message":"Provider returned error","metadata":{"raw":"{\"error\":{\"message\":\"bad schema\"}}","provider_name":"Azure"}}}"#;
    assert_eq!(failure(400, raw).message, "Provider returned error (Azure): bad schema");
    assert_eq!(failure(400, r#"{"error":[{"code":2005,"message":"m"}]}"#).message, "gateway 2005: m");
    let html = failure(502, "<html><title>502 Bad\n Gateway</title><body>secret</body></html>");
    assert_eq!(html.message, "HTTP 502 with an HTML page: 502 Bad Gateway");
}

#[test]
fn what_is_no_error_is_none() {
    for frame in [
        r#"{"error":null}"#,
        r#"{"error":{}}"#,
        r#"{"error":""}"#,
        r#"{"error":false,"choices":[{"error":null}]}"#,
        "{}",
        "1",
    ] {
        assert_eq!(error_in(&serde_json::from_str(frame).unwrap()), None, "{frame}");
    }
}

#[test]
fn stored_errors_are_without_the_answer_and_bounded() {
    let frame = json!({"choices": [{"delta": {"content": "x"}}], "error": {"message": "y".repeat(100_000), "key": "Bearer abcdefghij"}});
    let stored = error_in(&frame).unwrap().to_string();
    assert!(stored.len() < 4_000 && !stored.contains("choices") && !stored.contains("abcdefghij"));
    let mut deep = json!({});
    for _ in 0..100 {
        deep = json!({ "a": deep });
    }
    assert!(scrubbed(&json!({ "error": deep })).to_string().len() < 100);
}
