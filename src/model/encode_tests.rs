#![allow(clippy::arithmetic_side_effects, clippy::type_complexity, clippy::string_slice)]

use super::super::message::Usage;
use super::*;
use serde_json::json;

fn answer(content: Vec<Block>) -> AssistantMessage {
    AssistantMessage {
        content,
        stop: Stop::Stop,
        usage: Usage::default(),
        provider: "openrouter".into(),
        model: "m/a".into(),
        aborted: false,
        error: None,
        call_faults: Vec::new(),
        reasoning_details: None,
    }
}

fn call(id: &str, name: &str, arguments: Value) -> Block {
    Block::ToolCall { id: id.into(), name: name.into(), arguments }
}

fn image() -> Block {
    Block::Image { data: "AAAA".into(), mime_type: "image/png".into() }
}

fn result(id: &str, content: Vec<Block>) -> Message {
    Message::ToolResult { tool_call_id: id.into(), tool_name: "f".into(), content, is_error: false, code: None }
}

fn one(message: &Message) -> Value {
    serde_json::from_str(&encode_message(message).unwrap().json).unwrap()
}

fn head_of(model: &str) -> RequestHead {
    RequestHead { model: model.into(), ..RequestHead::default() }
}

fn request(head: &RequestHead, messages: &[Message]) -> Value {
    let fragments: Vec<Fragment> = messages.iter().filter_map(encode_message).collect();
    serde_json::from_str(&encode_request(head, &fragments)).unwrap()
}

#[test]
fn messages() {
    let text = |text: &str| vec![Block::text(text)];
    assert_eq!(one(&Message::System { content: text("s") }), json!({"role": "system", "content": "s"}));
    let two = Message::User { content: vec![Block::text("a\"\n"), Block::text("b")] };
    assert_eq!(one(&two), json!({"role": "user", "content": "a\"\n\nb"}));
    let picture = Message::User { content: vec![Block::text("look"), image()] };
    let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    assert_eq!(one(&picture), json!({"role": "user", "content": [{"type": "text", "text": "look"}, part]}));
    assert_eq!(one(&Message::Assistant(answer(text("hi")))), json!({"role": "assistant", "content": "hi"}));
    assert_eq!(one(&result("c", vec![])), json!({"role": "tool", "tool_call_id": "c", "content": "(no tool output)"}));
}

#[test]
fn case_88_calls_only_say_null_and_arguments_are_objects() {
    let message = answer(vec![
        Block::Thinking { text: "hm".into() },
        call("c", "f", json!({"a": 1})),
        call("d", "g", json!("x")),
    ]);
    let calls = json!([
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
        {"id": "d", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    ]);
    assert_eq!(one(&Message::Assistant(message)), json!({"role": "assistant", "content": null, "tool_calls": calls}));
}

#[test]
fn case_193_what_is_never_sent() {
    let aborted = AssistantMessage { aborted: true, ..answer(vec![Block::text("half")]) };
    let failed = AssistantMessage { stop: Stop::Error, ..answer(vec![Block::text("half")]) };
    for message in [
        Message::Assistant(aborted),
        Message::Assistant(failed),
        Message::Assistant(answer(vec![])),
        Message::Assistant(answer(vec![Block::text("")])),
        Message::Assistant(answer(vec![Block::Thinking { text: "hm".into() }])),
        Message::User { content: vec![] },
        Message::User { content: vec![Block::text("")] },
        Message::System { content: vec![] },
    ] {
        assert_eq!(encode_message(&message), None, "{message:?}");
    }
}

#[test]
fn case_115_ids_and_names_fit_every_provider_and_pair() {
    for id in ["functions.read:0", "call_1|fc_2", &"x".repeat(41), "", "é"] {
        let sent = one(&Message::Assistant(answer(vec![call(id, "default_api:f g", json!({}))])));
        let sent_id = sent["tool_calls"][0]["id"].as_str().unwrap().to_owned();
        assert!(
            !sent_id.is_empty() && sent_id.len() <= CALL_ID_BYTES_MAX && sent_id.bytes().all(is_name_byte),
            "{sent_id}"
        );
        assert_eq!(one(&result(id, vec![]))["tool_call_id"], json!(sent_id));
        assert_eq!(sent["tool_calls"][0]["function"]["name"], json!("default_api_f_g"));
    }
    assert_eq!(call_id("call_abc-1"), "call_abc-1");
    assert_eq!((tool_name("").as_str(), tool_name(&"n".repeat(70)).len()), ("unknown", 64));
}

#[test]
fn case_199_images_of_results_follow_all_results() {
    let messages = [
        Message::Assistant(answer(vec![call("a", "f", json!({})), call("b", "f", json!({}))])),
        result("a", vec![image()]),
        result("b", vec![Block::text("ok"), image()]),
        Message::User { content: vec![Block::text("go on")] },
        Message::Assistant(answer(vec![call("c", "f", json!({}))])),
        result("c", vec![Block::text("one"), image()]),
    ];
    let sent = request(&head_of("m"), &messages);
    let shape: Vec<(&str, usize)> = sent["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), message["content"].as_array().map_or(0, Vec::len)))
        .collect();
    let wanted = [
        ("assistant", 0),
        ("tool", 0),
        ("tool", 0),
        ("user", 3),
        ("user", 0),
        ("assistant", 0),
        ("tool", 0),
        ("user", 2),
    ];
    assert_eq!(shape, wanted);
    assert_eq!(sent["messages"][1]["content"], json!(IMAGES_FOLLOW));
    assert!(!sent["messages"][2].to_string().contains("AAAA"));
}

#[test]
fn a_request_for_openrouter() {
    let schema = RawValue::from_string(r#"{"type":"object","properties":{"q":{"type":"string"}}}"#.into()).unwrap();
    let tools = vec![
        ToolSpec { name: "search".into(), description: "Finds \"it\"".into(), parameters: Some(schema) },
        ToolSpec { name: "now".into(), description: String::new(), parameters: None },
    ];
    let head = RequestHead {
        fallbacks: vec!["m/b".into(), "m/a".into(), "m/c".into(), "m/d".into()],
        system: Some("Be kind.".into()),
        tools,
        output_tokens_max: Some(500),
        reasoning_effort: Some("low".into()),
        session_id: Some("s".repeat(300)),
        ..head_of("m/a")
    };
    let sent = request(&head, &[Message::User { content: vec![Block::text("hi")] }]);
    let wanted = json!({
        "model": "m/a", "models": ["m/a", "m/b", "m/c"],
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}],
        "tools": [
            {"type": "function", "function": {"name": "search", "description": "Finds \"it\"",
                "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}},
            {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}
        ],
        "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 500,
        "reasoning": {"effort": "low"}, "session_id": "s".repeat(256),
        "plugins": [{"id": "context-compression", "enabled": false}]
    });
    assert_eq!(sent, wanted);
    let plain = request(&RequestHead { dialect: Dialect::Plain, tools: vec![], ..head }, &[]);
    let wanted = json!({
        "model": "m/a", "messages": [{"role": "system", "content": "Be kind."}], "stream": true,
        "stream_options": {"include_usage": true}, "max_tokens": 500, "reasoning_effort": "low"
    });
    assert_eq!(plain, wanted);
}

#[test]
fn case_62_reasoning_goes_back_to_its_model_only() {
    let details = |details: Value| {
        let reasoning_details = details.as_array().cloned();
        [Message::Assistant(AssistantMessage { reasoning_details, ..answer(vec![Block::text("hi")]) })]
    };
    let messages = details(json!([{"type": "reasoning.text", "text": "hm", "signature": "s"}]));
    for (model, back) in [("m/a", true), ("m/a:free", true), ("m/b", false), ("m/a-large", false)] {
        let sent = request(&head_of(model), &messages);
        assert_eq!(sent["messages"][0].get("reasoning_details").is_some(), back, "{model}");
    }
    assert_eq!(request(&head_of("m/a"), &details(json!([])))["messages"][0]["reasoning_details"], json!([]));
    let plain = RequestHead { dialect: Dialect::Plain, ..head_of("m/a") };
    assert_eq!(request(&plain, &messages)["messages"][0].get("reasoning_details"), None);
}

#[test]
fn fragments_are_kept_as_text() {
    let fragment = encode_message(&result("a", vec![image()])).unwrap();
    let kept: Fragment = serde_json::from_str(&serde_json::to_string(&fragment).unwrap()).unwrap();
    assert_eq!(kept, fragment);
}
