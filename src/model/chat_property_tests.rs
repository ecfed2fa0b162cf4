//! What must hold for every stream.

#![allow(clippy::arithmetic_side_effects, clippy::type_complexity, clippy::string_slice)]

use super::super::super::call::StreamEnd;
use super::super::super::message::Stop;
use super::super::super::testing::*;
use super::super::super::{Delta, Outcome, assemble::Assembler};
use proptest::prelude::*;
use serde_json::{Value, json};

fn frame() -> impl Strategy<Value = Value> {
    let text = "[a-zé😀\\n\"\\\\{} ]{0,8}";
    prop_oneof![
        text.prop_map(|text| json!({"choices": [{"index": 0, "delta": {"content": text}}]})),
        text.prop_map(|text| json!({"choices": [{"delta": {"reasoning": text, "reasoning_details": [{"type": "reasoning.text", "text": text, "index": 0}]}}]})),
        (0_i64..3, "(|a|b)", "(|f|g)", "(|\\{|\\{\\}|\\{\"k\":|1\\}|\\{\"k\":1\\})").prop_map(|(index, id, name, arguments)| {
            json!({"choices": [{"delta": {"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}}]})
        }),
        ("(|f|g)", "(|\\{|\\{\\}|\\{\"k\":|1\\}|\\{\"k\":1\\})").prop_map(|(name, arguments)| {
            json!({"choices": [{"delta": {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}}]})
        }),
        (0_u32..400).prop_map(|tokens| json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}})),
        Just(json!({"choices": null})),
        Just(json!({"choices": [{"delta": null, "finish_reason": ""}]})),
    ]
}

fn frames() -> impl Strategy<Value = Vec<String>> {
    let finish = prop_oneof!["(stop|tool_calls|length|content_filter|end|error)"];
    (prop::collection::vec(frame(), 0..8), finish, frame()).prop_map(|(frames, finish, last)| {
        let end = json!({"choices": [{"delta": {}, "finish_reason": finish}]});
        frames.into_iter().chain([end, last]).map(|frame| frame.to_string()).collect()
    })
}

fn decode(body: &[u8], sizes: &[usize]) -> (Vec<Delta>, Outcome) {
    let mut chunks = Vec::new();
    let mut rest = body;
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (chunk, after) = rest.split_at((*size).min(rest.len()));
        chunks.push(chunk);
        rest = after;
    }
    decode_chunks(&response_head(200, "text/event-stream"), chunks.into_iter(), &StreamEnd::Eof, &context())
}

fn text(frames: &[String], end: &str) -> String {
    frames.iter().map(|frame| format!("data: {frame}{end}{end}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_chunking_gives_the_same(frames in frames(), sizes in prop::collection::vec(1_usize..50, 1..10)) {
        let body = text(&frames, "\n");
        prop_assert_eq!(decode(body.as_bytes(), &sizes), decode(body.as_bytes(), &[usize::MAX]));
    }

    #[test]
    fn line_ends_and_comments_do_not_matter(frames in frames(), comment in "[a-z :{}]{0,10}", every in 1_usize..3) {
        let wanted = decode(text(&frames, "\n").as_bytes(), &[usize::MAX]);
        for end in ["\r\n", "\r"] {
            prop_assert_eq!(&decode(text(&frames, end).as_bytes(), &[7]), &wanted);
        }
        let mut commented = String::from("\u{feff}: start\n\n");
        for (at, frame) in frames.iter().enumerate() {
            if at % every == 0 {
                commented.push_str(&format!(":{comment}\n\n:{comment}\ndata: : {comment}\n\n"));
            }
            commented.push_str(&format!(":{comment}\ndata:{frame}\n: {comment}\nid: 4\n\n"));
        }
        prop_assert_eq!(&decode(commented.as_bytes(), &[usize::MAX]), &wanted);
    }

    /// A stream cut anywhere before the end of its finish chunk is no answer, and an answer of a stream cut later asks for
    /// no calls but whole ones.
    #[test]
    fn a_cut_stream_is_no_answer(frames in frames()) {
        let body = text(&frames, "\n");
        let finish = frames.len() - 2;
        let whole_at = text(&frames[..finish], "\n").len() + "data: ".len() + frames[finish].len();
        for cut in 0..body.len() {
            let outcome = decode(&body.as_bytes()[..cut], &[usize::MAX]).1;
            if cut < whole_at {
                prop_assert!(matches!(outcome, Outcome::Failed(_)), "cut at {}: {:?}", cut, outcome);
            }
            if let Outcome::Answer(answer) = outcome {
                let faulty = answer.call_faults.len();
                prop_assert!(calls(&answer).iter().all(|(_, name, arguments)| !name.is_empty() && arguments.is_object()));
                prop_assert!(answer.stop != Stop::ToolCalls || faulty <= calls(&answer).len());
            }
        }
    }

    #[test]
    fn stored_deltas_come_to_the_same(frames in frames()) {
        let (deltas, outcome) = decode(text(&frames, "\n").as_bytes(), &[usize::MAX]);
        let mut again = Assembler::new();
        for delta in &deltas {
            again.apply(&serde_json::from_str(&serde_json::to_string(delta).unwrap()).unwrap());
        }
        prop_assert_eq!(&again.message(&context()), &outcome);
        if let Outcome::Answer(answer) = outcome {
            let mut ids: Vec<String> = calls(&answer).into_iter().map(|call| call.0).collect();
            let count = ids.len();
            ids.sort();
            ids.dedup();
            prop_assert_eq!(ids.len(), count, "ids are unique");
        }
    }

    #[test]
    fn any_bytes_do_no_harm(status in prop_oneof![Just(200_u16), Just(400), Just(503)], body in prop::collection::vec(any::<u8>(), 0..120)) {
        let head = response_head(status, "");
        let whole = decode_chunks(&head, std::iter::once(body.as_slice()), &StreamEnd::Eof, &context());
        prop_assert!(matches!(&whole.1, Outcome::Failed(_)));
        prop_assert_eq!(decode_chunks(&head, body.chunks(1), &StreamEnd::Eof, &context()), whole);
    }

    #[test]
    fn any_json_does_no_harm(frames in prop::collection::vec("[\\[\\]{}:,\"a-z0-9 ]{0,30}|\\{\"(choices|error|usage|model)\":(\\[\\{\"(delta|message|error)\":\\{\"(content|tool_calls|reasoning_details)\":(1|\"a\"|\\[1\\]|\\{\\})\\}\\}\\]|1|\"x\"|\\{\\})\\}", 0..6)) {
        let frames: Vec<String> = frames;
        prop_assert!(matches!(decode(text(&frames, "\n").as_bytes(), &[usize::MAX]).1, Outcome::Failed(_)));
    }
}
