//! Tool calls in streams: rows F to H and P-B of wire-cases.md.

#![allow(clippy::arithmetic_side_effects, clippy::type_complexity, clippy::string_slice)]

use super::super::super::FailureKind as Kind;
use super::super::super::message::{Block, Stop};
use super::super::super::testing::*;
use serde_json::{Value, json};

/// A stream of these `tool_calls` entries, one a chunk, ended with this finish reason.
fn tool_stream(entries: &[Value], finish: &str) -> super::Outcome {
    let mut frames: Vec<String> = entries
        .iter()
        .map(|entry| {
            let entries = if entry.is_array() { entry.clone() } else { json!([entry]) };
            json!({"choices": [{"delta": {"tool_calls": entries}}]}).to_string()
        })
        .collect();
    frames.push(json!({"choices": [{"delta": {}, "finish_reason": finish}]}).to_string());
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    stream(&frames)
}

/// One entry; `id` and `name` as given, also empty.
fn piece(index: Value, id: Value, name: Value, arguments: &str) -> Value {
    json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

#[test]
fn calls_that_come_out_whole() {
    let none = Value::Null;
    let p = |index: i64, id: &str, name: &str, arguments: &str| piece(json!(index), json!(id), json!(name), arguments);
    let cases: Vec<(&str, Vec<Value>, Vec<(&str, &str, Value)>)> = vec![
        (
            "plain",
            vec![p(0, "c", "f", ""), json!({"index": 0, "function": {"arguments": "{\"p\":1}"}})],
            vec![("c", "f", json!({"p": 1}))],
        ),
        (
            "case_64_index_0_without_ids",
            vec![p(0, "", "a", "{}"), p(0, "", "b", "{}")],
            vec![("call_1", "a", json!({})), ("call_2", "b", json!({}))],
        ),
        (
            "case_64_same_name",
            vec![p(0, "", "a", "{\"x\":1}"), p(0, "", "a", "{\"x\":2}")],
            vec![("call_1", "a", json!({"x": 1})), ("call_2", "a", json!({"x": 2}))],
        ),
        (
            "case_65_two_ids_on_one_index",
            vec![p(0, "call_a", "r", "{\"path\":\"a\"}"), p(0, "call_b", "r", "{\"path\":\"b\"}")],
            vec![("call_a", "r", json!({"path": "a"})), ("call_b", "r", json!({"path": "b"}))],
        ),
        (
            "case_71_no_index_and_spread",
            vec![piece(none.clone(), json!("a"), json!("f"), "{}"), piece(none.clone(), json!("b"), json!("f"), "{}")],
            vec![("a", "f", json!({})), ("b", "f", json!({}))],
        ),
        (
            "case_73_index_null",
            vec![
                piece(none.clone(), json!("a"), json!("f"), "{\"x\""),
                piece(none.clone(), none.clone(), none.clone(), ":1}"),
            ],
            vec![("a", "f", json!({"x": 1}))],
        ),
        (
            "case_76_empty_strings",
            vec![p(0, "call_8c1f", "calculator", "{"), p(0, "", "", "\"x\":1}")],
            vec![("call_8c1f", "calculator", json!({"x": 1}))],
        ),
        (
            "case_77_first_index_1",
            vec![p(1, "call_x", "get_weather", ""), json!({"index": 1, "function": {"arguments": "{}"}})],
            vec![("call_x", "get_weather", json!({}))],
        ),
        (
            "case_80_append_to_the_last",
            vec![
                piece(none.clone(), json!("a"), json!("f"), ""),
                json!({"function": {"arguments": "{"}}),
                json!({"function": {"arguments": "}"}}),
            ],
            vec![("a", "f", json!({}))],
        ),
        (
            "case_82_whole_calls_without_index",
            vec![
                json!({"id": "a", "function": {"name": "f", "arguments": "{\"n\":1}"}}),
                json!({"id": "b", "function": {"name": "f", "arguments": "{\"n\":2}"}}),
            ],
            vec![("a", "f", json!({"n": 1})), ("b", "f", json!({"n": 2}))],
        ),
        ("case_83_empty_arguments", vec![p(0, "c", "list", "")], vec![("c", "list", json!({}))]),
        (
            "case_98_trailing_white_space",
            vec![p(0, "c", "f", "{\"a\":1}"), p(0, "", "", "\n")],
            vec![("c", "f", json!({"a": 1}))],
        ),
        (
            "case_110_one_id_twice",
            vec![p(0, "functions.eval:301", "e", "{\"a\":1}"), p(1, "functions.eval:301", "e", "{\"a\":2}")],
            vec![("functions.eval:301", "e", json!({"a": 1})), ("functions.eval:301_2", "e", json!({"a": 2}))],
        ),
        (
            "case_110_one_id_twice_in_pieces",
            vec![p(0, "x", "e", "{\"a\":1}"), p(1, "x", "e", ""), p(1, "x", "", "{\"a\":2}")],
            vec![("x", "e", json!({"a": 1})), ("x_2", "e", json!({"a": 2}))],
        ),
        ("case_113_no_id", vec![p(0, "", "f", "{}")], vec![("call_1", "f", json!({}))]),
        (
            "a made-up id never takes a given one",
            vec![p(0, "", "f", "{}"), p(1, "call_1", "g", "{}")],
            vec![("call_1_1", "f", json!({})), ("call_1", "g", json!({}))],
        ),
        (
            "case_b2_arguments_first",
            vec![json!({"index": 0, "function": {"arguments": "{\"p\":"}}), p(0, "call_9", "read", "1}")],
            vec![("call_9", "read", json!({"p": 1}))],
        ),
        (
            "case_b2_without_index",
            vec![
                json!({"function": {"arguments": "{\"p\":"}}),
                piece(none.clone(), json!("call_9"), json!("read"), "1}"),
            ],
            vec![("call_9", "read", json!({"p": 1}))],
        ),
        (
            "case_b3_the_id_changes",
            vec![p(0, "a1", "read", "{\"p"), piece(json!(0), json!("a2"), none.clone(), "\":1}")],
            vec![("a1", "read", json!({"p": 1}))],
        ),
        (
            "case_b4_index_0_with_distinct_ids",
            vec![
                p(0, "0", "w", ""),
                p(0, "0", "", "{\"city\":\"A\"}"),
                p(0, "1", "w", ""),
                p(0, "1", "", "{\"city\":\"B\"}"),
            ],
            vec![("0", "w", json!({"city": "A"})), ("1", "w", json!({"city": "B"}))],
        ),
        (
            "case_b4_an_older_id_goes_on",
            vec![p(0, "0", "w", ""), p(0, "1", "w", ""), p(0, "0", "", "{\"a\":1}"), p(0, "1", "", "{\"b\":1}")],
            vec![("0", "w", json!({"a": 1})), ("1", "w", json!({"b": 1}))],
        ),
        (
            "case_b8_finalizer",
            vec![
                p(0, "c", "f", "{}"),
                piece(json!(0), none.clone(), none.clone(), ""),
                piece(json!(7), none.clone(), none.clone(), ""),
            ],
            vec![("c", "f", json!({}))],
        ),
        (
            "a finalizer that repeats the name",
            vec![p(0, "", "f", "{\"a\":1}"), p(0, "", "f", "")],
            vec![("call_1", "f", json!({"a": 1}))],
        ),
        (
            "the name with each piece",
            vec![
                piece(none.clone(), none.clone(), json!("f"), "{\"a\""),
                piece(none.clone(), none.clone(), json!("f"), ":1}"),
            ],
            vec![("call_1", "f", json!({"a": 1}))],
        ),
        (
            "siblings in one chunk without index and id",
            vec![
                json!([{"function": {"name": "a", "arguments": "{\"x\""}}, {"function": {"name": "b", "arguments": "{\"y\""}}]),
                json!([{"function": {"arguments": ":1}"}}, {"function": {"arguments": ":2}"}}]),
            ],
            vec![("call_1", "a", json!({"x": 1})), ("call_2", "b", json!({"y": 2}))],
        ),
        (
            "interleaved",
            vec![p(0, "a", "f", "{\"x\""), p(1, "b", "g", "{\"y\""), p(0, "", "", ":1}"), p(1, "", "", ":2}")],
            vec![("a", "f", json!({"x": 1})), ("b", "g", json!({"y": 2}))],
        ),
        (
            "arguments as an object",
            vec![json!({"index": 0, "id": 5, "function": {"name": "f", "arguments": {"a": 1}}})],
            vec![("5", "f", json!({"a": 1}))],
        ),
        (
            "case_104_index_as_a_string",
            vec![
                json!({"index": "0", "id": "a", "function": {"name": "f", "arguments": "{"}}),
                json!({"index": 0, "function": {"arguments": "}"}}),
            ],
            vec![("a", "f", json!({}))],
        ),
    ];
    for (case, entries, wanted) in cases {
        println!("{case}");
        for finish in ["tool_calls", "stop", "eos_token", "zzz"] {
            let answer = answer(tool_stream(&entries, finish));
            let wanted: Vec<_> =
                wanted.iter().map(|(id, name, args)| ((*id).to_owned(), (*name).to_owned(), args.clone())).collect();
            assert_eq!((calls(&answer), answer.stop, answer.call_faults.len()), (wanted, Stop::ToolCalls, 0), "{case}");
        }
    }
}

#[test]
fn case_b1_text_and_call_in_one_delta() {
    let frame = r#"{"choices":[{"delta":{"content":"Let me look.","tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"read","arguments":""}}]}}]}"#;
    let more =
        r#"{"choices":[{"delta":{"content":"\n","tool_calls":[{"index":0,"function":{"arguments":"{\"p\":1}"}}]}}]}"#;
    let end = r#"{"choices":[{"delta":{"content":" "},"finish_reason":"stop"}]}"#;
    let answer = answer(stream(&[frame, more, end]));
    let call = Block::ToolCall { id: "call_1".into(), name: "read".into(), arguments: json!({"p": 1}) };
    // case_b12: white space after a call is debris.
    assert_eq!(answer.content, [Block::text("Let me look."), call]);
}

#[test]
fn case_b12_text_after_a_call_is_kept() {
    let frames = [
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}"#,
        r#"{"choices":[{"delta":{"content":"done"},"finish_reason":"tool_calls"}]}"#,
    ];
    assert_eq!(answer(stream(&frames)).content.last(), Some(&Block::text("done")));
}

#[test]
fn truncated_calls_are_a_cut_answer_whatever_the_reason() {
    let whole = piece(json!(0), json!("a"), json!("f"), "{}");
    for (case, text, finish) in [
        ("case_b16_length", "{\"path\":\"a\",\"text\":\"hel", "length"),
        ("case_100_said_stop", "{\"content\":\"half", "stop"),
        ("case_26_said_tool_calls", "{\"a\":", "tool_calls"),
        ("case_104_not_ending_in_a_brace", "{\"a\":1", "tool_calls"),
    ] {
        let cut = piece(json!(1), json!("c"), json!("write"), text);
        let answer = answer(tool_stream(&[whole.clone(), cut], finish));
        assert_eq!(answer.stop, Stop::Length, "{case}");
        assert_eq!(calls(&answer)[1], ("c".into(), "write".into(), json!({})), "{case}");
        assert_eq!(answer.call_faults.len(), 1, "{case}");
        assert_eq!(answer.call_faults[0].tool_call_id, "c", "{case}");
    }
    // case_103: a whole call of a cut answer is no exception.
    assert_eq!(answer(tool_stream(&[whole], "length")).stop, Stop::Length);
}

#[test]
fn faulty_calls_stay_visible() {
    for (case, text) in [
        ("case_b10_first_fragment_missing", "path\":\"x\"}"),
        ("case_b4_two_objects", "{\"city\":\"A\"}{\"city\":\"B\"}"),
        ("a list", "[]"),
    ] {
        let answer = answer(tool_stream(&[piece(json!(0), json!("c"), json!("f"), text)], "tool_calls"));
        assert_eq!(answer.stop, Stop::ToolCalls, "{case}");
        assert_eq!(calls(&answer), [("c".into(), "f".into(), json!({}))], "{case}");
        assert!(
            answer.call_faults.iter().any(|fault| fault.tool_call_id == "c" && !fault.problem.is_empty()),
            "{case}"
        );
    }
}

#[test]
fn case_b2_a_call_without_a_name() {
    let nameless = json!({"index": 0, "id": "c", "function": {"arguments": "{}"}});
    assert_failure(tool_stream(&[nameless], "tool_calls"), Kind::MalformedCall);
    assert_failure(tool_stream(&[json!({"index": 0, "id": "c", "function": {}})], "tool_calls"), Kind::Empty);
}

#[test]
fn tool_calls_without_a_call_but_text_is_an_answer() {
    let frame = r#"{"choices":[{"delta":{"content":"Hi"},"finish_reason":"tool_calls"}]}"#;
    assert_text(stream(&[frame]), Stop::Stop, "Hi");
}

#[test]
fn case_b7_whole_message_in_a_stream() {
    let frame = r#"{"choices":[{"message":{"tool_calls":[{"id":"x","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}"#;
    assert_calls(stream(&[frame]), &[("x", "f", json!({}))]);
    let streamed = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"f","arguments":"{\"a\":1}"}}]}}]}"#;
    let repeated = r#"{"choices":[{"message":{"content":null,"tool_calls":[{"id":"x","function":{"name":"f","arguments":"{\"a\":1}"}}]},"finish_reason":"tool_calls"}]}"#;
    assert_calls(stream(&[streamed, repeated]), &[("x", "f", json!({"a": 1}))]);
}

#[test]
fn legacy_function_call() {
    let frames = [
        r#"{"choices":[{"delta":{"function_call":{"name":"f","arguments":"{\"a\""}}}]}"#,
        r#"{"choices":[{"delta":{"function_call":{"arguments":":1}"}}}]}"#,
        r#"{"choices":[{"delta":{},"finish_reason":"function_call"}]}"#,
    ];
    assert_calls(stream(&frames), &[("call_1", "f", json!({"a": 1}))]);
}
