use super::*;
use proptest::prelude::*;
use serde_json::json;

fn refused<T: Request + std::fmt::Debug>(body: impl AsRef<[u8]>) -> ApiError {
    parse::<T>(body.as_ref()).expect_err("the body must be refused")
}

fn field(error: &ApiError) -> &str {
    error.details.get("field").and_then(Value::as_str).unwrap_or("")
}

#[test]
fn a_message_has_its_defaults() {
    let body = parse::<MessageBody>(br#"{"request_id":"r1","text":"hello"}"#).unwrap().content;
    assert_eq!(body.when_busy, WhenBusy::FollowUp);
    assert_eq!(body.blocks(), [Block::text("hello")]);
    let image = json!({"type": "image", "data": "iVBORw==", "mime_type": "image/png"});
    let body = json!({"request_id": "r1", "text": "", "images": [image], "when_busy": "steer"}).to_string();
    let body = parse::<MessageBody>(body.as_bytes()).unwrap().content;
    assert_eq!(body.blocks(), [Block::Image { data: "iVBORw==".to_owned(), mime_type: "image/png".to_owned() }]);
}

#[test]
fn what_is_wrong_with_a_message_is_named() {
    use Code::{InvalidRequest, TooLarge, UnknownField};
    let image =
        |data: &str, mime: &str| json!({"request_id": "r", "text": "t", "images": [{"data": data, "mime_type": mime}]});
    for (body, code, name) in [
        (json!({"text": "t"}), InvalidRequest, "request_id"),
        (json!({"request_id": "r"}), InvalidRequest, "text"),
        (json!({"request_id": "r", "text": null}), InvalidRequest, "text"),
        (json!({"request_id": 1, "text": "t"}), InvalidRequest, "request_id"),
        (json!({"request_id": "", "text": "t"}), InvalidRequest, "request_id"),
        (json!({"request_id": "a\nb", "text": "t"}), InvalidRequest, "request_id"),
        (json!({"request_id": "r", "text": ""}), InvalidRequest, "text"),
        (json!({"request_id": "r", "text": "t", "when_busy": "wait"}), InvalidRequest, "when_busy"),
        (json!({"request_id": "r", "text": "t", "image": []}), UnknownField, "image"),
        (json!({"request_id": "r", "text": "t", "images": [{"url": "x"}]}), UnknownField, "images[0].url"),
        (json!({"request_id": "r", "text": "t", "images": {}}), InvalidRequest, "images"),
        (image("data:image/png;base64,aaaa", "image/png"), InvalidRequest, "images[0].data"),
        (image("aaa", "image/png"), InvalidRequest, "images[0].data"),
        (image("====", "image/png"), InvalidRequest, "images[0].data"),
        (image("aaaa", "image/svg+xml"), InvalidRequest, "images[0].mime_type"),
        (json!({"request_id": "r".repeat(129), "text": "t"}), TooLarge, "request_id"),
        (json!({"request_id": "r", "text": "t".repeat(TEXT_BYTES_MAX + 1)}), TooLarge, "text"),
        (json!({"request_id": "r", "text": "t", "images": vec![0; 9]}), TooLarge, "images"),
        (json!([]), InvalidRequest, ""),
        (json!("text"), InvalidRequest, ""),
        (json!(null), InvalidRequest, ""),
    ] {
        let error = refused::<MessageBody>(body.to_string());
        assert_eq!((error.code, field(&error)), (code, name), "{error}");
        assert!(error.message.contains(name), "{error}");
    }
}

#[test]
fn what_is_no_json_is_refused_clearly() {
    let deep = format!(r#"{{"request_id":"r","value":{}1{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let reserved = r#"{"request_id":"r","value":{"$serde_json::private::RawValue":"[[1"}}"#;
    for (body, part) in [
        (&b""[..], "is empty"),
        (b" \n", "is empty"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (br#"{"request_id":"r","value":NaN}"#, "not valid JSON"),
        (br#"{"request_id":"r","value":1e999}"#, "not valid JSON"),
        (br#"{"request_id":"r","value":"\ud800"}"#, "not valid JSON"),
        (br#"{"request_id":"r","value":1,"value":2}"#, "\"value\" stands there twice"),
        (br#"{"request_id":"r","value":{"a":{"b":1,"b":1}}}"#, "\"b\" stands there twice"),
        (br#"{"request_id":"r","value":1} x"#, "trailing"),
        (deep.as_bytes(), "nested deeper than 64"),
        (reserved.as_bytes(), "reserved key"),
    ] {
        let error = refused::<SignalBody>(body);
        assert_eq!(error.code, Code::InvalidRequest);
        assert!(error.message.contains(part), "{error}");
    }
}

#[test]
fn a_body_above_the_limit_is_too_large() {
    let error = refused::<StopBody>(vec![b' '; BODY_BYTES_MAX + 1]);
    assert_eq!((error.code, &error.details["limit"]), (Code::TooLarge, &json!(BODY_BYTES_MAX)));
    let error = refused::<SignalBody>(json!({"request_id": "r", "value": "v".repeat(VALUE_BYTES_MAX)}).to_string());
    assert_eq!((error.code, field(&error)), (Code::TooLarge, "value"));
}

#[test]
fn no_body_is_an_empty_one_where_nothing_is_required() {
    assert_eq!(parse::<StopBody>(b"").unwrap(), parse::<StopBody>(b" {} ").unwrap());
    assert!(parse::<InterruptBody>(b"").unwrap().content.keep_queue);
    assert!(!parse::<InterruptBody>(br#"{"keep_queue":false}"#).unwrap().content.keep_queue);
    parse::<RetryBody>(b"").unwrap();
    assert_eq!(field(&refused::<RetryBody>(br#"{"force":true}"#)), "force");
    assert_eq!(refused::<ConfigureBody>(b"").code, Code::InvalidRequest);
}

#[test]
fn a_signal_may_carry_null_but_must_carry_something() {
    assert_eq!(parse::<SignalBody>(br#"{"request_id":"r","value":null}"#).unwrap().content.value, Value::Null);
    assert_eq!(field(&refused::<SignalBody>(br#"{"request_id":"r"}"#)), "value");
}

#[test]
fn an_agent_is_configured() {
    let body =
        json!({"system_prompt": "p", "tier": "opus", "provider": "vertex", "tools": ["read_file"], "thinking": "high"});
    let settings = parse::<ConfigureBody>(body.to_string().as_bytes()).unwrap().content.0;
    assert_eq!(serde_json::to_value(&settings).unwrap(), body);
    for (body, name) in [
        (json!({"system_prompt": "p"}), "tier"),
        (json!({"system_prompt": "p", "tier": "gpt"}), "tier"),
        (json!({"system_prompt": "p", "tier": "opus", "tools": ["a", "a"]}), "tools[1]"),
        (json!({"system_prompt": "p", "tier": "opus", "thinking": "very"}), "thinking"),
    ] {
        assert_eq!(field(&refused::<ConfigureBody>(body.to_string())), name);
    }
}

#[test]
fn the_hash_sees_what_is_said_and_not_how() {
    let hash = |body: &str| parse::<SignalBody>(body.as_bytes()).unwrap().sha256;
    let one = hash(r#"{"request_id":"r","value":{"a":1,"b":"é","c":[1.5]}}"#);
    assert_eq!(one, hash("{ \"value\": {\"c\":[15e-1], \"b\":\"\\u00e9\", \"a\":1.0},\n\"request_id\":\"r\"}"));
    assert_ne!(one, hash(r#"{"request_id":"r","value":{"a":1,"b":"é","c":[1.6]}}"#));
    assert_eq!(one.len(), 64);
}

#[test]
fn canonical_numbers_are_those_of_rfc_8785() {
    for (text, wanted) in [
        ("1e21", "1e+21"),
        ("1E20", "100000000000000000000"),
        ("-0.0", "0"),
        ("1e-7", "1e-7"),
        ("0.000001", "0.000001"),
        ("333333333.33333329", "333333333.3333333"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("9007199254740993", "9007199254740993"),
        ("2.0", "2"),
    ] {
        assert_eq!(json::canonical(&json::parse(text.as_bytes()).unwrap()), wanted, "{text}");
    }
    let value = json!({"\u{20ac}": 1, "\r": 2, "\u{fb33}": 3, "1": 4, "\u{1f600}": 5, "\u{80}": 6, "\u{f6}": 7});
    let canonical = json::canonical(&value);
    assert_eq!(
        canonical,
        "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"\u{f6}\":7,\"\u{20ac}\":1,\"\u{1f600}\":5,\"\u{fb33}\":3}"
    );
}

fn parse_all(bytes: &[u8]) {
    let _ = parse::<MessageBody>(bytes);
    let _ = parse::<ConfigureBody>(bytes);
    let _ = parse::<StopBody>(bytes);
    let _ = parse::<InterruptBody>(bytes);
    let _ = parse::<RetryBody>(bytes);
    let _ = parse::<SignalBody>(bytes);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        parse_all(&bytes);
    }

    #[test]
    fn nothing_that_looks_like_a_body_panics(
        text in r#"\{("(request_id|text|value|images|tools|tier|x)":("[^"]{0,5}"|\[\]|\{\}|-?[0-9.e]{1,6}|null|\[\{"data":".{0,4}"\}\]),?){0,4}\}?"#,
    ) {
        parse_all(text.as_bytes());
    }

    #[test]
    fn canonical_text_is_json_of_the_same_value(text in r#"-?[1-9][0-9]{0,20}(\.[0-9]{1,20})?(e-?[0-9]{1,2})?"#) {
        let value = json::parse(text.as_bytes()).unwrap();
        let back = json::parse(json::canonical(&value).as_bytes()).unwrap();
        prop_assert_eq!(back.as_f64(), value.as_f64());
        prop_assert_eq!(json::canonical(&back), json::canonical(&value));
    }
}
