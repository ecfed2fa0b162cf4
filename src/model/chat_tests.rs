//! Ends, finish reasons, error bodies, usage and the shapes of deltas: rows of wire-cases.md.

#![allow(clippy::arithmetic_side_effects, clippy::type_complexity, clippy::string_slice)]

use super::super::FailureKind as Kind;
use super::super::call::{CallContext, StreamEnd};
use super::super::message::{Block, Stop};
use super::super::testing::*;
use super::*;

const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const HI: &str = r#"{"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":13,"completion_tokens":16,"cost":0.000093}}"#;

#[test]
fn streams_cut_before_their_finish_are_transient() {
    for (case, frames) in [
        ("case_01_content_then_eof", vec![r#"{"choices":[{"delta":{"content":"par"}}]}"#]),
        (
            "case_02_half_a_call",
            vec![
                r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"path\":\"a"}}]}}]}"#,
            ],
        ),
        (
            "case_08_a_whole_call_then_eof",
            vec![
                r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}"#,
            ],
        ),
        ("case_05_finish_null", vec![HI, r#"{"choices":[{"delta":{},"finish_reason":null}]}"#]),
        (
            "case_23_finish_empty",
            vec![
                r#"{"choices":[{"delta":{"role":null,"content":"x","tool_calls":null},"finish_reason":""}],"usage":null}"#,
            ],
        ),
        ("done alone is no success", vec![HI, "[DONE]"]),
        ("only done", vec!["[DONE]"]),
        ("usage is no end", vec![HI, USAGE]),
    ] {
        let failure = failure(stream(&frames));
        assert_eq!(failure.kind, Kind::Transient, "{case}");
        let partial = failure.partial;
        assert!(partial.is_none_or(|partial| partial.aborted && calls(&partial).is_empty()), "{case}");
    }
    let partial = failure(stream(&[HI])).partial.unwrap();
    assert_eq!((partial.content, partial.aborted), (vec![Block::text("Hi")], true));
}

#[test]
fn case_02_abort_and_broken_transport() {
    let head = response_head(200, "text/event-stream");
    let (body, context) = (sse(&[HI]), context());
    let aborted = failure(decode_with(&head, body.as_bytes(), &StreamEnd::Aborted, &context).1);
    assert_eq!(aborted.kind, Kind::Aborted);
    assert_eq!(aborted.partial.map(|partial| partial.stop), Some(Stop::Aborted));
    let broken = StreamEnd::Broken("reset; Authorization: Bearer abcdefgh".into());
    let broken_one = failure(decode_with(&head, body.as_bytes(), &broken, &context).1);
    assert_eq!(broken_one.kind, Kind::Transient);
    assert!(!broken_one.message.contains("abcdefgh") && broken_one.partial.is_some());
    let finished = decode_with(&head, sse(&[HI, STOP]).as_bytes(), &broken, &context).1;
    assert_text(finished, Stop::Stop, "Hi");
    assert_failure(decode_with(&head, b"", &broken, &context).1, Kind::Transient);
}

#[test]
fn finished_answers() {
    for (case, frames, text) in [
        ("case_05_no_done_after_the_finish", vec![HI, STOP], "Hi"),
        ("case_16_done", vec![HI, STOP, "[DONE]"], "Hi"),
        (
            "case_13_numbers_and_several_ends",
            vec![r#"{"choices":[{"delta":{"content":1}}]}"#, STOP, STOP, "[DONE]", "[DONE]", HI],
            "1",
        ),
        ("case_20_end", vec![HI, r#"{"choices":[{"delta":{},"finish_reason":"end"}]}"#], "Hi"),
        ("case_20_unknown_keeps_content", vec![HI, r#"{"choices":[{"delta":{},"finish_reason":"zzz"}]}"#], "Hi"),
        (
            "case_a6_content_in_the_finish",
            vec![
                r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"REPLACE>\n"},"finish_reason":"stop","native_finish_reason":"STOP"}]}"#,
            ],
            "REPLACE>\n",
        ),
        ("case_43_usage_without_choices", vec![HI, STOP, USAGE, "[DONE]"], "Hi"),
        ("case_46_usage_alone", vec![HI, STOP, r#"{"usage":{"prompt_tokens":1}}"#], "Hi"),
        ("case_47_choices_null", vec![HI, r#"{"choices":null,"usage":{}}"#, STOP], "Hi"),
        (
            "case_53_first_chunk_empty",
            vec![r#"{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}"#, HI, STOP],
            "Hi",
        ),
        ("case_55_no_delta", vec![r#"{"choices":[{"index":0,"finish_reason":null}]}"#, HI, STOP], "Hi"),
        ("case_56_role_empty", vec![r#"{"choices":[{"delta":{"role":"","content":"Hi"}}]}"#, STOP], "Hi"),
        ("case_58_content_null", vec![r#"{"choices":[{"delta":{"content":null}}]}"#, HI, STOP], "Hi"),
        (
            "case_59_delta_null",
            vec![r#"{"choices":[{"delta":null,"content_filter_offsets":{"a":1}}]}"#, HI, STOP],
            "Hi",
        ),
        (
            "case_a10_null_everywhere",
            vec![
                r#"{"choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null}],"usage":null,"error":null}"#,
                r#"{"choices":[null]}"#,
                HI,
                STOP,
            ],
            "Hi",
        ),
        ("case_a11_no_object", vec!["null", "1", "\"x\"", "[]", HI, STOP], "Hi"),
        ("case_139_comment_as_data", vec![": OPENROUTER PROCESSING", HI, STOP], "Hi"),
        ("data that is no json", vec!["ping", HI, STOP], "Hi"),
        (
            "parts",
            vec![
                r#"{"choices":[{"delta":{"content":[{"type":"text","text":"H"},{"type":"text","text":"i"}]}}]}"#,
                STOP,
            ],
            "Hi",
        ),
        (
            "a second choice is not ours",
            vec![HI, r#"{"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"stop"}]}"#, STOP],
            "Hi",
        ),
        (
            "case_d10_content_after_the_finish",
            vec![
                r#"{"choices":[{"delta":{"content":"H"},"finish_reason":"stop"}]}"#,
                r#"{"choices":[{"delta":{"content":"i"}}]}"#,
            ],
            "Hi",
        ),
        ("case_196_lone_surrogate", vec![r#"{"choices":[{"delta":{"content":"a\ud83d"}}]}"#, STOP], "a\u{fffd}"),
        ("nul", vec![r#"{"choices":[{"delta":{"content":"a\u0000"}}]}"#, STOP], "a\0"),
        ("cost not a number", vec![HI, STOP, r#"{"choices":[],"usage":{"prompt_tokens":1,"cost":NaN}}"#], "Hi"),
        ("debris after the finish", vec![HI, STOP, "{\"choices\":[{\"del"], "Hi"),
        (
            "case_b7_message_repeats_the_stream",
            vec![HI, r#"{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}"#],
            "Hi",
        ),
        (
            "case_b7_message_completes_the_stream",
            vec![HI, r#"{"choices":[{"message":{"content":"Hi there"},"finish_reason":"stop"}]}"#],
            "Hi there",
        ),
    ] {
        let answer = answer(stream(&frames));
        let got = (answer.stop, super::super::message::text_of(&answer.content));
        assert_eq!(got, (Stop::Stop, text.to_owned()), "{case}");
    }
}

#[test]
fn finish_reasons_that_are_no_answer() {
    for (case, frame, kind) in [
        (
            "case_22_content_filter",
            r#"{"choices":[{"delta":{},"finish_reason":"content_filter","native_finish_reason":"refusal"}]}"#,
            Kind::ContentFilter,
        ),
        (
            "case_d5_malformed_under_stop",
            r#"{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop","native_finish_reason":"MALFORMED_FUNCTION_CALL"}]}"#,
            Kind::MalformedCall,
        ),
        (
            "case_d5_malformed_under_error",
            r#"{"choices":[{"finish_reason":"error","native_finish_reason":"MALFORMED_FUNCTION_CALL","message":{"role":"assistant","content":null}}]}"#,
            Kind::MalformedCall,
        ),
        ("error without an error object", r#"{"choices":[{"delta":{},"finish_reason":"error"}]}"#, Kind::Transient),
        (
            "case_d6_window_exceeded",
            r#"{"choices":[{"delta":{},"finish_reason":"model_context_window_exceeded"}]}"#,
            Kind::ContextOverflow,
        ),
        ("case_d6_unknown_with_nothing", r#"{"choices":[{"delta":{},"finish_reason":"zzz"}]}"#, Kind::InvalidRequest),
        ("nothing at all", STOP, Kind::Empty),
        ("white space only", r#"{"choices":[{"delta":{"content":" \n"},"finish_reason":"stop"}]}"#, Kind::Empty),
        ("reasoning only", r#"{"choices":[{"delta":{"reasoning":"hm"},"finish_reason":"stop"}]}"#, Kind::Empty),
        ("tool_calls without a call", r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#, Kind::Empty),
        (
            "length with nothing usable",
            r#"{"choices":[{"delta":{"reasoning":"hm"},"finish_reason":"length"}]}"#,
            Kind::Truncated,
        ),
        (
            "case_d7_length_in_a_full_window",
            r#"{"choices":[{"delta":{},"finish_reason":"length"}],"usage":{"prompt_tokens":995,"completion_tokens":0}}"#,
            Kind::ContextOverflow,
        ),
        ("refused", r#"{"choices":[{"delta":{"refusal":"I cannot"},"finish_reason":"stop"}]}"#, Kind::ContentFilter),
    ] {
        let failure = failure(stream(&[frame]));
        assert_eq!(failure.kind, kind, "{case}");
    }
    let refusal = failure(stream(&[
        r#"{"choices":[{"delta":{},"finish_reason":"content_filter","native_finish_reason":"refusal"}]}"#,
    ]));
    assert!(refusal.message.contains("refusal"), "{}", refusal.message);
}

#[test]
fn length_and_its_disguises() {
    let length = r#"{"choices":[{"delta":{"content":"Hi"},"finish_reason":"length"}]}"#;
    assert_text(stream(&[length]), Stop::Length, "Hi");
    // case_26: the count says what the reason does not.
    let at_limit = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":300}}"#;
    assert_text(stream(&[HI, STOP, at_limit]), Stop::Length, "Hi");
    let native = r#"{"choices":[{"delta":{},"finish_reason":"stop","native_finish_reason":"MAX_TOKENS"}]}"#;
    assert_text(stream(&[HI, native]), Stop::Length, "Hi");
}

#[test]
fn errors_inside_streams() {
    for (case, frames, kind) in [
        ("case_10_error_frame", vec![r#"{"error":{"message":"boom"}}"#], Kind::Transient),
        (
            "case_28_error_with_choices",
            vec![
                r#"{"error":{"code":502,"message":"m","metadata":{"error_type":"provider_unavailable"}},"choices":[{"delta":{"content":""},"finish_reason":"error"}]}"#,
            ],
            Kind::Transient,
        ),
        ("case_29_error_then_close", vec![HI, r#"{"error":{"type":"x","message":"m"}}"#], Kind::Transient),
        (
            "case_d2_error_with_empty_choices",
            vec![
                r#"{"id":"g","choices":[],"error":{"code":502,"message":"Worker local total request limit reached (33/32)"}}"#,
            ],
            Kind::Transient,
        ),
        ("case_32_no_choices", vec![r#"{"id":"x","error":{"code":400,"message":"bad"}}"#], Kind::InvalidRequest),
        ("error after the finish", vec![HI, STOP, r#"{"error":{"code":502,"message":"late"}}"#], Kind::Transient),
        (
            "error inside the choice",
            vec![
                r#"{"choices":[{"delta":{"content":"a"},"error":{"code":429,"message":"slow"},"finish_reason":"error"}]}"#,
            ],
            Kind::RateLimited,
        ),
        ("error as a string", vec![HI, r#"{"error":"overloaded"}"#], Kind::Transient),
        (
            "case_d4_daily_quota",
            vec![
                r#"{"error":{"message":"Rate limit exceeded: free-models-per-day","code":429,"metadata":{"headers":{"X-RateLimit-Limit":"200","X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1743292800000"},"provider_name":"Google AI Studio"}},"user_id":"user_x"}"#,
            ],
            Kind::QuotaExhausted,
        ),
        ("a frame with a hole", vec![HI, r#"{"choices":[{"delta":"#, STOP], Kind::Transient),
        (
            "the error comes first",
            vec![r#"{"error":{"code":401,"message":"No auth"}}"#, HI, STOP],
            Kind::Authentication,
        ),
    ] {
        let failure = failure(stream(&frames));
        assert_eq!(failure.kind, kind, "{case}: {failure:?}");
    }
    let named = failure(stream(&[
        r#"{"error":{"code":502,"message":"Upstream died","metadata":{"error_type":"provider_unavailable"}},"choices":[]}"#,
    ]));
    assert!(named.message.contains("Upstream died") && named.message.contains("provider_unavailable"), "{named:?}");
    assert_eq!(named.status, Some(502));
    let daily = failure(stream(&[
        r#"{"error":{"message":"Rate limit exceeded: free-models-per-day","code":429,"metadata":{"headers":{"X-RateLimit-Reset":"1743292800000"}}}}"#,
    ]));
    assert_eq!(daily.retry_after_ms, Some(42_800_000));
    assert_failure(stream_bytes(b"event: error\ndata: {\"message\":\"m\"}\n\n"), Kind::Transient);
    assert_failure(stream_bytes(b"event: error\ndata: all is lost\n\n"), Kind::Transient);
}

#[test]
fn bodies_that_are_no_stream() {
    let plain = r#"{"id":"x","model":"m/b","choices":[{"index":0,"message":{"role":"assistant","content":"Hello","refusal":null,"reasoning":null},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"cost":0.5}}"#;
    for kind in ["application/json", "text/event-stream", ""] {
        let answer = assert_text(body(200, kind, plain), Stop::Stop, "Hello");
        assert_eq!((answer.model.as_str(), answer.usage.cost_usd, answer.usage.estimated), ("m/b", 0.5, false));
    }
    let call = r#"{"choices":[{"message":{"tool_calls":[{"id":"x","function":{"name":"f","arguments":"{}"}},{"function":{"name":"f","arguments":{"a":1}}}]},"finish_reason":"tool_calls"}]}"#;
    assert_calls(body(200, "application/json", call), &[("x", "f", json!({})), ("call_2", "f", json!({"a": 1}))]);
    for (case, status, content_type, text, kind) in [
        (
            "case_31_error_with_200",
            200,
            "application/json",
            r#"{"error":{"code":429,"message":"slow down"}}"#,
            Kind::RateLimited,
        ),
        (
            "case_35_code_400_in_200",
            200,
            "application/json",
            r#"{"error":{"code":400,"message":"Provider returned error","metadata":{"raw":"…"}}}"#,
            Kind::InvalidRequest,
        ),
        (
            "case_34_no_choices",
            200,
            "application/json",
            r#"{"object":"chat.completion","choices":[]}"#,
            Kind::Transient,
        ),
        (
            "pretty-printed",
            200,
            "text/event-stream",
            "{\n  \"error\": {\n    \"code\": 401,\n    \"message\": \"no\"\n  }\n}\n",
            Kind::Authentication,
        ),
        ("case_a2_nothing", 200, "text/event-stream", "", Kind::Transient),
        ("only comments", 200, "text/event-stream", ": OPENROUTER PROCESSING\n\n", Kind::Transient),
        ("html with 200", 200, "text/html", "<!DOCTYPE html><title>Oops</title>", Kind::Transient),
        ("case_37_html_521", 521, "text/html", "<!DOCTYPE html><title>Web server is down</title>", Kind::Transient),
        ("case_38_html_404", 404, "text/html", "<html><title>Error 404</title></html>", Kind::InvalidRequest),
        (
            "case_40_gateway_2005",
            400,
            "application/json",
            r#"{"success":false,"result":[],"messages":[],"error":[{"code":2005,"message":"Failed to get response from provider"}]}"#,
            Kind::Transient,
        ),
        ("text with 200", 200, "text/plain", "upstream connect error", Kind::Transient),
        (
            "an error as an event",
            429,
            "text/event-stream",
            "data: {\"error\":{\"code\":429,\"message\":\"m\"}}\n\n",
            Kind::RateLimited,
        ),
        ("half a json body", 200, "application/json", r#"{"choices":[{"message":{"content":"He"#, Kind::Transient),
        (
            "json without a finish reason",
            200,
            "application/json",
            r#"{"choices":[{"message":{"content":"Hello"}}]}"#,
            Kind::Transient,
        ),
        (
            "google in a list",
            503,
            "application/json",
            r#"[{"error":{"code":503,"status":"UNAVAILABLE","message":"m"}}]"#,
            Kind::Transient,
        ),
        ("not found", 404, "application/json", r#"{"detail":"Not Found"}"#, Kind::InvalidRequest),
    ] {
        let failure = failure(body(status, content_type, text));
        assert_eq!(failure.kind, kind, "{case}: {failure:?}");
        assert!(!failure.message.contains('<'), "{case}: {}", failure.message);
    }
}

#[test]
fn usage_and_the_model() {
    let frames = [
        r#"{"model":"m/a","choices":[{"delta":{"content":"Hi"}}],"usage":{"prompt_tokens":13,"completion_tokens":1}}"#,
        r#"{"model":"m/a","choices":[{"delta":{},"finish_reason":"stop"}],"usage":{}}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":13,"completion_tokens":16,"cost":0.5,"prompt_tokens_details":{"cached_tokens":3},"completion_tokens_details":{"reasoning_tokens":2}}}"#,
        r#"{"choices":[],"usage":null}"#,
    ];
    let answer = answer(stream(&frames));
    let wanted = Usage {
        input_tokens: 10,
        output_tokens: 16,
        cached_tokens: 3,
        reasoning_tokens: 2,
        cost_usd: 0.5,
        estimated: false,
    };
    assert_eq!((answer.usage, answer.model.as_str(), answer.provider.as_str()), (wanted, "m/a", "openrouter"));
}

#[test]
fn case_e7_no_usage_is_estimated() {
    let usage = answer(stream(&[HI, STOP])).usage;
    let wanted =
        Usage { input_tokens: 100, output_tokens: 1, cost_usd: 0.000_102, estimated: true, ..Usage::default() };
    assert_eq!(usage, wanted);
    let partial = failure(stream(&[HI])).partial.unwrap();
    assert!(partial.usage.estimated && partial.usage.input_tokens == 100);
    // Tokens told, money not.
    let told = answer(stream(&[HI, STOP, r#"{"usage":{"prompt_tokens":1000000,"completion_tokens":1}}"#])).usage;
    assert!(told.estimated && (told.cost_usd - 1.000_002).abs() < 1e-9, "{told:?}");
}

#[test]
fn case_c1_the_same_reasoning_in_three_fields() {
    let chunk = r#"{"choices":[{"index":0,"delta":{"reasoning_content":"**Counting","reasoning":"**Counting","reasoning_details":[{"type":"reasoning.summary","summary":"**Counting","format":"openai-responses-v1","index":0}],"content":"","role":"assistant"}}]}"#;
    let more = r#"{"choices":[{"index":0,"delta":{"reasoning":"**","reasoning_details":[{"type":"reasoning.summary","summary":"**","index":0}]}}]}"#;
    let answer = answer(stream(&[chunk, more, HI, STOP]));
    assert_eq!(answer.content, [Block::Thinking { text: "**Counting**".into() }, Block::text("Hi")]);
    let wanted =
        json!([{"type": "reasoning.summary", "summary": "**Counting**", "format": "openai-responses-v1", "index": 0}]);
    assert_eq!(json!(answer.reasoning_details), wanted);
}

#[test]
fn progress_is_told_apart_from_life() {
    let mut decoder = ChatDecoder::new(response_head(200, "text/event-stream"));
    let mut deltas = Vec::new();
    decoder.push(b": OPENROUTER PROCESSING\n\n", &mut deltas);
    assert!(!decoder.saw_event() && !decoder.finished() && !decoder.done());
    decoder.push(sse(&[HI]).as_bytes(), &mut deltas);
    assert!(decoder.saw_event() && decoder.events() == 1 && !decoder.finished());
    decoder.push(sse(&[STOP]).as_bytes(), &mut deltas);
    assert!(decoder.finished() && !decoder.done());
    decoder.push(b"data: [DONE]\n\n", &mut deltas);
    assert!(decoder.done());
    let count = deltas.len();
    decoder.push(sse(&[HI]).as_bytes(), &mut deltas);
    assert_eq!(deltas.len(), count);
    assert_text(decoder.end(&StreamEnd::Eof, &CallContext::default()), Stop::Stop, "Hi");
}

#[path = "chat_call_tests.rs"]
mod calls;
#[path = "chat_property_tests.rs"]
mod properties;
