//! For tests: a response fed in every way a network may cut it.

#![allow(clippy::arithmetic_side_effects, clippy::type_complexity, clippy::string_slice)]

use super::assemble::Assembler;
use super::call::{CallContext, Prices, ResponseHead, StreamEnd};
use super::chat::ChatDecoder;
use super::message::{AssistantMessage, Block, Stop, text_of};
use super::{Delta, Failure, FailureKind, Outcome};
use serde_json::Value;

pub(crate) fn context() -> CallContext {
    CallContext {
        provider: "openrouter".into(),
        model: "m/asked".into(),
        output_tokens_max: Some(300),
        window_tokens: Some(1_000),
        prompt_bytes: 400,
        prices: Prices { input_usd_per_million: 1.0, output_usd_per_million: 2.0, cached_usd_per_million: 0.5 },
        now_ms: 1_743_250_000_000,
    }
}

pub(crate) fn response_head(status: u16, content_type: &str) -> ResponseHead {
    let content_type = (!content_type.is_empty()).then(|| content_type.to_owned());
    ResponseHead { status, content_type, headers: Vec::new() }
}

/// The frames as an event stream, without `[DONE]`.
pub(crate) fn sse(frames: &[&str]) -> String {
    frames.iter().map(|frame| format!("data: {frame}\n\n")).collect()
}

pub(crate) fn decode_chunks<'a>(
    head: &ResponseHead,
    chunks: impl Iterator<Item = &'a [u8]>,
    end: &StreamEnd,
    context: &CallContext,
) -> (Vec<Delta>, Outcome) {
    let mut decoder = ChatDecoder::new(head.clone());
    let mut deltas = Vec::new();
    for chunk in chunks {
        decoder.push(chunk, &mut deltas);
    }
    if *end != StreamEnd::Aborted {
        decoder.flush(&mut deltas);
    }
    (deltas, decoder.end(end, context))
}

/// Feeds a body whole, byte by byte and split at every offset, and asserts that all of them, and the stored deltas folded
/// again, come to the same.
pub(crate) fn decode_with(
    head: &ResponseHead,
    body: &[u8],
    end: &StreamEnd,
    context: &CallContext,
) -> (Vec<Delta>, Outcome) {
    let whole = decode_chunks(head, std::iter::once(body), end, context);
    assert_eq!(decode_chunks(head, body.chunks(1), end, context), whole, "byte by byte");
    for at in 0..=body.len() {
        let (one, two) = body.split_at(at);
        assert_eq!(decode_chunks(head, [one, two].into_iter(), end, context), whole, "split at {at}");
    }
    let mut again = Assembler::new();
    for delta in &whole.0 {
        let stored = serde_json::to_string(delta).unwrap();
        again.apply(&serde_json::from_str(&stored).unwrap());
    }
    if *end != StreamEnd::Aborted && (again.finish_reason().is_some() || again.has_error()) {
        assert_eq!(again.message(context), whole.1, "from stored deltas");
    } else {
        assert!(matches!(again.message(context), Outcome::Failed(_)), "no end mark, no answer");
    }
    whole
}

/// An event stream of these frames, ended by the end of the body.
pub(crate) fn stream(frames: &[&str]) -> Outcome {
    stream_bytes(sse(frames).as_bytes())
}

pub(crate) fn stream_bytes(body: &[u8]) -> Outcome {
    decode_with(&response_head(200, "text/event-stream"), body, &StreamEnd::Eof, &context()).1
}

pub(crate) fn body(status: u16, content_type: &str, body: &str) -> Outcome {
    decode_with(&response_head(status, content_type), body.as_bytes(), &StreamEnd::Eof, &context()).1
}

#[track_caller]
pub(crate) fn answer(outcome: Outcome) -> AssistantMessage {
    match outcome {
        Outcome::Answer(answer) => answer,
        Outcome::Failed(failure) => panic!("no answer: {failure:?}"),
    }
}

#[track_caller]
pub(crate) fn failure(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failed(failure) => failure,
        Outcome::Answer(answer) => panic!("no failure: {answer:?}"),
    }
}

#[track_caller]
pub(crate) fn assert_failure(outcome: Outcome, kind: FailureKind) -> Failure {
    let failure = failure(outcome);
    assert_eq!(failure.kind, kind, "{failure:?}");
    failure
}

#[track_caller]
pub(crate) fn assert_text(outcome: Outcome, stop: Stop, text: &str) -> AssistantMessage {
    let answer = answer(outcome);
    assert_eq!((answer.stop, text_of(&answer.content).as_str()), (stop, text), "{answer:?}");
    answer
}

/// The calls of an answer: id, name, arguments.
pub(crate) fn calls(answer: &AssistantMessage) -> Vec<(String, String, Value)> {
    let calls = answer.content.iter().filter_map(|block| match block {
        Block::ToolCall { id, name, arguments } => Some((id.clone(), name.clone(), arguments.clone())),
        _ => None,
    });
    calls.collect()
}

/// Asserts complete calls: stop, ids, names and arguments, and no fault.
#[track_caller]
pub(crate) fn assert_calls(outcome: Outcome, wanted: &[(&str, &str, Value)]) {
    let answer = answer(outcome);
    let wanted: Vec<_> =
        wanted.iter().map(|(id, name, args)| ((*id).to_owned(), (*name).to_owned(), args.clone())).collect();
    assert_eq!(calls(&answer), wanted);
    assert_eq!((answer.stop, &answer.call_faults), (Stop::ToolCalls, &Vec::new()), "{answer:?}");
}
