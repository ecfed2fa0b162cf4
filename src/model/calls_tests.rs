#![allow(clippy::arithmetic_side_effects, clippy::type_complexity, clippy::string_slice)]

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn arguments(pieces: &[&str]) -> Arguments {
    let mut calls = Calls::default();
    calls.add(&Piece { index: Some(0), id: Some("c"), name: Some("f"), arguments: "" });
    for arguments in pieces {
        calls.add(&Piece { index: Some(0), id: None, name: None, arguments });
    }
    assert_eq!(calls.slots().len(), 1);
    calls.slots()[0].arguments()
}

#[test]
fn arguments_that_resolve() {
    for (case, pieces, wanted) in [
        ("pieces", vec!["{\"a\"", ":1}"], json!({"a": 1})),
        ("case_83_empty", vec![""], json!({})),
        ("white space", vec![" ", "\n"], json!({})),
        ("null", vec!["null"], json!({})),
        ("case_91_snapshots", vec!["{\"a", "{\"a\":1", "{\"a\":1}"], json!({"a": 1})),
        ("the same snapshot twice", vec!["{\"a\":1}", "{\"a\":1}"], json!({"a": 1})),
        ("case_94_repeated_fragments", vec!["{\"x\":\"aa", "aa", "aa\"}"], json!({"x": "aaaaaa"})),
        ("case_95_one_full_copy_at_the_end", vec!["{\"a\"", ":1}", "{\"a\":1}"], json!({"a": 1})),
        ("nested look-alike", vec!["{\"a\":", "{\"a\":1}}"], json!({"a": {"a": 1}})),
        ("empty object, then the real one", vec!["{}", "{\"a\":1}"], json!({"a": 1})),
        ("case_97_text_after_the_object", vec!["{\"a\":1}", "</tool_call>"], json!({"a": 1})),
        ("case_98_white_space_after_the_object", vec!["{\"a\":1}", "\n"], json!({"a": 1})),
        ("case_b11_a_prefix_that_parses", vec!["{\"a\":1}", " "], json!({"a": 1})),
        ("a string that holds an object", vec!["\"{\\\"a\\\":1}\""], json!({"a": 1})),
        ("case_b14_damaged_strings", vec!["{\"t\":\"l1\n", "l2\\q\"}"], json!({"t": "l1\nl2\\q"})),
        ("half a surrogate pair", vec!["{\"t\":\"\\ud83d\"}"], json!({"t": "\u{fffd}"})),
    ] {
        assert_eq!(arguments(&pieces), Arguments::Object(wanted), "{case}");
    }
}

#[test]
fn arguments_that_must_not_be_executed() {
    for (case, pieces) in [
        ("case_b10_first_fragment_missing", vec!["path\":\"x\"}"]),
        ("two objects", vec!["{\"city\":\"A\"}", "{\"city\":\"B\"}"]),
        ("a list", vec!["[1]"]),
        ("a number", vec!["1"]),
        ("a string", vec!["\"x\""]),
        ("not a number", vec!["{\"a\":NaN}"]),
    ] {
        assert!(matches!(arguments(&pieces), Arguments::Invalid(_)), "{case}");
    }
    let deep = "{\"a\":".repeat(5_000);
    assert!(!matches!(arguments(&[&deep]), Arguments::Object(_)), "deep");
    assert!(!matches!(arguments(&[&deep, "1", &"}".repeat(5_000)]), Arguments::Object(_)), "deep and closed");
}

#[test]
fn case_101_truncated_arguments_are_never_closed() {
    for text in
        ["{", "{\"a\":1", "{\"commands\":[\"npm install\",\"npm test\"", "{\"t\":\"half", "{\"t\":\"half\\", "\"{"]
    {
        assert_eq!(arguments(&[text]), Arguments::Truncated, "{text}");
    }
    assert_eq!(arguments(&["{\"a", "{\"a\":\"x"]), Arguments::Truncated, "snapshots");
}

#[test]
fn ten_thousand_calls_with_long_ids_take_no_time() {
    let mut calls = Calls::default();
    let long = "i".repeat(10_000);
    for index in 0..10_000_i64 {
        let id = format!("{index}");
        let id = if index == 5 { &long } else { &id };
        calls.add(&Piece { index: Some(index), id: Some(id), name: Some("f"), arguments: "{}" });
    }
    assert_eq!(calls.slots().len(), 10_000);
}

proptest! {
    /// However a valid object is cut, it comes out as it went in.
    #[test]
    fn any_cut_of_an_object_resolves(text in "[a-z\"\\\\{}\\[\\]\né😀 ]{0,30}", cuts in prop::collection::vec(1_usize..6, 0..40)) {
        let object = json!({"k": text, "n": {"k": [1, text]}});
        let json = object.to_string();
        let chars: Vec<char> = json.chars().collect();
        let mut pieces = Vec::new();
        let mut at = 0;
        for cut in cuts {
            let end = (at + cut).min(chars.len());
            pieces.push(chars[at..end].iter().collect::<String>());
            at = end;
        }
        pieces.push(chars[at..].iter().collect::<String>());
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(arguments(&pieces), Arguments::Object(object));
    }

    #[test]
    fn a_truncated_object_is_never_an_object(text in "[a-z\"\\\\{}\né]{0,20}", cut in 1_usize..100) {
        let json = json!({"k": text, "n": {"k": [1, text]}}).to_string();
        let chars: Vec<char> = json.chars().collect();
        let cut = cut.min(chars.len() - 1);
        let text: String = chars[..cut].iter().collect();
        prop_assert_eq!(arguments(&[&text]), Arguments::Truncated);
    }
}
