//! How fast a streamed answer is decoded on the host: `cargo run --release --example decode`.
//!
//! Prints one line of JSON: MB/s of bytes read for ordinary text, for one large tool call in small pieces and in one piece,
//! and how time grows with the size (1 is linear). `make bench` shows them; each number is the best of five passes.
#![allow(clippy::print_stdout, clippy::arithmetic_side_effects, clippy::cast_precision_loss)]

use agentdo::model::call::{CallContext, ResponseHead, StreamEnd};
use agentdo::model::chat::ChatDecoder;
use agentdo::model::{Delta, Outcome};
use serde_json::{Value, json};
use std::time::Instant;

/// What a network hands over at once, bytes.
const READ_BYTES: usize = 4 * 1024;
/// Deltas are handed on when there are this many, as the driver does.
const BATCH_DELTAS: usize = 200;
const PASSES: usize = 5;
/// Read at least this much in one pass, bytes.
const PASS_BYTES: usize = 40_000_000;

fn main() {
    let text = decoded(&text_stream(8_000_000));
    let twice = decoded(&text_stream(16_000_000));
    let pieces = decoded(&call_stream(500_000, 24));
    let pieces_twice = decoded(&call_stream(1_000_000, 24));
    let whole = decoded(&call_stream(500_000, 500_000));
    let figures = json!({
        "text_mb_per_s": text.rate(),
        "call_in_pieces_mb_per_s": pieces.rate(),
        "call_in_one_piece_mb_per_s": whole.rate(),
        "text_time_growth": twice.seconds / text.seconds / (twice.bytes / text.bytes),
        "call_time_growth": pieces_twice.seconds / pieces.seconds / (pieces_twice.bytes / pieces.bytes),
    });
    println!("{figures}");
}

struct Measured {
    bytes: f64,
    seconds: f64,
}

impl Measured {
    fn rate(&self) -> f64 {
        (self.bytes / 1_000_000.0 / self.seconds).round()
    }
}

fn decoded(body: &str) -> Measured {
    // Small bodies several times a pass: the clock of the system may tick in milliseconds.
    let times = PASS_BYTES.div_ceil(body.len());
    let passes = (0..PASSES).map(|_| {
        let began = Clock::now();
        (0..times).for_each(|_| decode(body));
        began.seconds()
    });
    Measured { bytes: body.len() as f64, seconds: passes.fold(f64::INFINITY, f64::min) / times as f64 }
}

fn decode(body: &str) {
    let content_type = Some("text/event-stream".to_owned());
    let mut decoder = ChatDecoder::new(ResponseHead { status: 200, content_type, headers: Vec::new() });
    let mut deltas: Vec<Delta> = Vec::new();
    for bytes in body.as_bytes().chunks(READ_BYTES) {
        decoder.push(bytes, &mut deltas);
        if deltas.len() >= BATCH_DELTAS {
            deltas.clear();
        }
    }
    let outcome = decoder.end(&StreamEnd::Eof, &CallContext::default());
    assert!(matches!(outcome, Outcome::Answer(_)), "the stream was not read as an answer");
}

/// CPU time of this thread where the system tells it, so that what else runs on the machine counts little.
enum Clock {
    Cpu(u64),
    Wall(Instant),
}

impl Clock {
    fn now() -> Self {
        cpu_ns().map_or_else(|| Self::Wall(Instant::now()), Self::Cpu)
    }

    fn seconds(&self) -> f64 {
        match self {
            Self::Cpu(began) => (cpu_ns().unwrap_or(*began) - began) as f64 / 1e9,
            Self::Wall(began) => began.elapsed().as_secs_f64(),
        }
    }
}

fn cpu_ns() -> Option<u64> {
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
}

/// Ordinary text: about 16 characters a chunk, each in OpenRouter's envelope.
fn text_stream(bytes: usize) -> String {
    stream(bytes, |_| json!({ "content": "some more text, " }))
}

/// One tool call with `bytes` of arguments, `piece` of them a chunk.
fn call_stream(bytes: usize, piece: usize) -> String {
    let arguments = json!({ "content": "line of a file\n".repeat(bytes / 16) }).to_string();
    let mut body = frame(
        json!({ "tool_calls": [{ "index": 0, "id": "call_1", "function": { "name": "write", "arguments": "" } }] }),
        None,
    );
    for part in arguments.as_bytes().chunks(piece) {
        let part = String::from_utf8_lossy(part);
        body += &frame(json!({ "tool_calls": [{ "index": 0, "function": { "arguments": part } }] }), None);
    }
    body + &frame(json!({}), Some("tool_calls")) + "data: [DONE]\n\n"
}

fn stream(bytes: usize, delta: impl Fn(usize) -> Value) -> String {
    let mut body = String::with_capacity(bytes + 1_000);
    let mut n = 0;
    while body.len() < bytes {
        body += &frame(delta(n), None);
        n += 1;
    }
    body + &frame(json!({}), Some("stop")) + "data: [DONE]\n\n"
}

fn frame(delta: Value, finish: Option<&str>) -> String {
    let chunk = json!({
        "id": "gen-1764500000-abcdefghijklmnopqrst", "provider": "Stand-in", "model": "some/model:free",
        "object": "chat.completion.chunk", "created": 1_764_500_000,
        "choices": [{ "index": 0, "delta": delta, "finish_reason": finish, "native_finish_reason": finish }],
    });
    format!("data: {chunk}\n\n")
}
