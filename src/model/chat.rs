//! Decodes a chat-completions response: the event stream, and whatever may come in its place (a plain JSON completion, an
//! error body with status 200, an HTML page, nothing).
//!
//! What a body is shows in its first byte; content types lie. Every field is optional, `null` and `""` count as absent, and
//! no set of values is closed.

use super::assemble::Assembler;
use super::call::{CallContext, ResponseHead, StreamEnd};
use super::classify;
use super::lenient::{array, head, number_of, object, parse_frame, text};
use super::message::Usage;
use super::sse::{SseEvent, SseParser};
use super::usage;
use super::{Delta, Outcome};
use serde_json::{Value, json};

/// The largest body read as a whole, bytes. What is beyond it is dropped, and an answer cut that way is a failure.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Stream,
    /// Begins like JSON. Events may still follow.
    Json,
    Html,
}

/// The decoder of one response. Push the chunks, then end it once.
#[derive(Debug)]
pub struct ChatDecoder {
    response: ResponseHead,
    shape: Option<Shape>,
    parser: SseParser,
    body: Vec<u8>,
    assembler: Assembler,
    /// The index of the choice we follow: the first one seen.
    choice: Option<i64>,
    model: Option<String>,
    usage: Option<Usage>,
    refused: bool,
    done: bool,
    ended: bool,
    skipped: u64,
}

impl ChatDecoder {
    /// A decoder for the body that follows this head.
    pub fn new(response: ResponseHead) -> Self {
        Self {
            response,
            shape: None,
            parser: SseParser::new(),
            body: Vec::new(),
            assembler: Assembler::new(),
            choice: None,
            model: None,
            usage: None,
            refused: false,
            done: false,
            ended: false,
            skipped: 0,
        }
    }

    /// Takes the next bytes of the body and appends the deltas they complete. Never fails: what is wrong with the bytes
    /// shows in the outcome.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<Delta>) {
        if self.done || self.ended {
            return;
        }
        if self.shape.is_none() {
            self.shape = if self.response.is_success() { shape_of(bytes) } else { Some(Shape::Html) };
        }
        if self.shape != Some(Shape::Stream) && !self.saw_event() {
            let room = BODY_BYTES_MAX.saturating_sub(self.body.len());
            self.body.extend(bytes.iter().take(room));
        }
        if self.shape != Some(Shape::Html) {
            let mut events = Vec::new();
            let result = self.parser.push(bytes, &mut events);
            self.take_events(events, out);
            if let Err(error) = result {
                self.fail(&error.to_string(), out);
            }
        }
    }

    /// True once an event came. Comments do not count: they are life, not progress.
    pub fn saw_event(&self) -> bool {
        self.parser.events() > 0
    }

    /// Events so far; a change is progress.
    pub fn events(&self) -> u64 {
        self.parser.events()
    }

    /// Data of events that was no JSON and was passed over.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// True once a finish reason came. Usage may still follow; its absence is no error.
    pub fn finished(&self) -> bool {
        self.assembler.finish_reason().is_some()
    }

    /// True once the end mark `[DONE]` or an error of the provider came: nothing that follows matters.
    pub fn done(&self) -> bool {
        self.done || self.assembler.has_error()
    }

    /// Reads what the end of the body completes: an event without its blank line, a body read as a whole. Optional before
    /// [`ChatDecoder::end`], for a driver that wants these deltas in its log.
    pub fn flush(&mut self, out: &mut Vec<Delta>) {
        if self.ended {
            return;
        }
        self.ended = true;
        let mut events = Vec::new();
        // Its error was reported by the push that met it, or concerns an end nobody will read.
        let _ = self.parser.end(&mut events);
        if !self.done {
            self.take_events(events, out);
        }
        if self.response.is_success()
            && !self.saw_event()
            && let Some(frame) = parse_frame(&self.whole_body())
            && classify::error_in(&frame).is_none()
        {
            self.take_frame(&frame, out);
        }
    }

    /// What the call came to.
    pub fn end(mut self, end: &StreamEnd, context: &CallContext) -> Outcome {
        if *end == StreamEnd::Aborted {
            return Outcome::Failed(self.assembler.cut(end, context));
        }
        self.flush(&mut Vec::new());
        if self.finished() || self.assembler.has_error() {
            return self.assembler.message(context);
        }
        if self.response.is_success() && (self.saw_event() || *end != StreamEnd::Eof) {
            return Outcome::Failed(self.assembler.cut(end, context));
        }
        let failure = classify::response(&self.response, &self.whole_body(), context.now_ms);
        Outcome::Failed(self.assembler.failed(failure, context))
    }

    fn whole_body(&self) -> String {
        match self.shape {
            Some(Shape::Stream) => self.parser.stray(),
            _ => String::from_utf8_lossy(&self.body).trim_start_matches('\u{feff}').trim().to_owned(),
        }
    }

    fn take_events(&mut self, events: Vec<SseEvent>, out: &mut Vec<Delta>) {
        for event in events {
            if self.done {
                return;
            }
            self.take_event(&event, out);
        }
    }

    fn take_event(&mut self, event: &SseEvent, out: &mut Vec<Delta>) {
        let data = event.data.trim();
        if data == "[DONE]" {
            self.done = true;
            return;
        }
        let is_error = event.event.as_deref() == Some("error");
        match parse_frame(data) {
            Some(Value::Array(frames)) => frames.iter().for_each(|frame| self.take_frame(frame, out)),
            Some(frame @ Value::Object(_)) if is_error && classify::error_in(&frame).is_none() => {
                self.emit(Delta::Error(classify::scrubbed(&json!({ "error": frame }))), out);
            }
            Some(frame) if !is_error || frame.is_object() => self.take_frame(&frame, out),
            _ if is_error => self.fail(head(data, 2048), out),
            // A frame we cannot read may hold part of a call: going on would make a hole. After the finish it is debris.
            None if data.starts_with(['{', '[']) && !self.finished() => {
                self.fail("the stream carried an event that is not valid JSON", out);
            }
            _ => self.skipped = self.skipped.saturating_add(1),
        }
    }

    fn take_frame(&mut self, frame: &Value, out: &mut Vec<Delta>) {
        if !frame.is_object() {
            self.skipped = self.skipped.saturating_add(1);
            return;
        }
        if !self.assembler.has_error() {
            if let Some(model) = text(frame, "model")
                && self.model.as_deref() != Some(model)
            {
                self.model = Some(model.to_owned());
                self.emit(Delta::Model(model.to_owned()), out);
            }
            for choice in array(frame, "choices") {
                self.take_choice(choice, out);
            }
        }
        // The last usage wins; it is a report, never an end.
        if let Some(usage) = usage::of_frame(frame)
            && self.usage.as_ref() != Some(&usage)
        {
            self.usage = Some(usage.clone());
            self.emit(Delta::Usage(usage), out);
        }
        if let Some(error) = classify::error_in(frame)
            && !self.assembler.has_error()
        {
            self.emit(Delta::Error(error), out);
        }
    }

    fn take_choice(&mut self, choice: &Value, out: &mut Vec<Delta>) {
        if !choice.is_object() {
            return;
        }
        let index = choice.get("index").and_then(Value::as_i64).unwrap_or(0);
        if *self.choice.get_or_insert(index) != index {
            return;
        }
        let reason = text(choice, "finish_reason");
        if let Some(delta) = object(choice, "delta") {
            self.take_delta(delta, out);
        } else if let Some(message) = object(choice, "message") {
            self.take_message(message, reason.is_some(), out);
        }
        if let Some(reason) = reason
            && !self.finished()
        {
            let native = text(choice, "native_finish_reason").filter(|native| !native.eq_ignore_ascii_case(reason));
            let native = native.or(self.refused.then_some("refusal"));
            if let Some(native) = native {
                self.emit(Delta::NativeFinish(native.to_owned()), out);
            }
            self.emit(Delta::Finish(reason.to_owned()), out);
        }
    }

    fn take_delta(&mut self, delta: &Value, out: &mut Vec<Delta>) {
        self.take_reasoning(delta, out);
        let content = content_of(delta.get("content"));
        self.emit_thinking(content.thinking, out);
        self.emit_text(content.text, out);
        self.take_refusal(delta, out);
        self.take_calls(delta, false, out);
    }

    /// A whole message where a delta is expected. It may repeat what was streamed before it.
    fn take_message(&mut self, message: &Value, is_last: bool, out: &mut Vec<Delta>) {
        if !self.assembler.has_thinking() && !self.assembler.has_reasoning() {
            self.take_reasoning(message, out);
        }
        let content = content_of(message.get("content"));
        let streamed = self.assembler.text();
        if streamed.is_empty() {
            self.emit_thinking(content.thinking, out);
            self.emit_text(content.text, out);
        } else if let Some(rest) = content.text.strip_prefix(&streamed) {
            self.emit_text(rest.to_owned(), out);
        } else if !is_last {
            self.emit_text(content.text, out);
        }
        self.take_refusal(message, out);
        self.take_calls(message, true, out);
    }

    fn take_reasoning(&mut self, delta: &Value, out: &mut Vec<Delta>) {
        let fields = ["reasoning_content", "reasoning", "reasoning_text"];
        let plain = fields.iter().find_map(|field| text(delta, field));
        let details = delta.get("reasoning_details").and_then(Value::as_array);
        // The same words come in several fields: show one.
        let shown = plain.map(str::to_owned).unwrap_or_else(|| {
            let items = details.into_iter().flatten();
            items.filter_map(|item| text(item, "text").or_else(|| text(item, "summary"))).collect()
        });
        self.emit_thinking(shown, out);
        let Some(details) = details else { return };
        if details.is_empty() && !self.assembler.has_reasoning() {
            self.emit(Delta::Reasoning(json!([])), out);
        }
        for item in details.iter().filter(|item| item.is_object()) {
            self.emit(Delta::Reasoning(item.clone()), out);
        }
    }

    fn take_refusal(&mut self, delta: &Value, out: &mut Vec<Delta>) {
        if let Some(refusal) = text(delta, "refusal") {
            self.refused = true;
            self.emit_text(refusal.to_owned(), out);
        }
    }

    fn take_calls(&mut self, delta: &Value, whole: bool, out: &mut Vec<Delta>) {
        let calls = array(delta, "tool_calls");
        for (position, call) in calls.iter().enumerate() {
            let mut piece = call_piece(call);
            // Without index and id only the place in the array tells siblings apart.
            if let Delta::Call { index: index @ None, id, .. } = &mut piece
                && (whole || (id.is_none() && calls.len() > 1))
            {
                *index = i64::try_from(position).ok();
            }
            self.emit_call(piece, out);
        }
        if let Some(function) = object(delta, "function_call") {
            let mut piece = call_piece(function);
            if let Delta::Call { index, .. } = &mut piece {
                *index = Some(0);
            }
            self.emit_call(piece, out);
        }
    }

    fn emit_call(&mut self, piece: Delta, out: &mut Vec<Delta>) {
        // Finalisers send calls with nothing in them.
        let blank = matches!(&piece, Delta::Call { id: None, name: None, arguments, .. } if arguments.is_empty());
        if !blank {
            self.emit(piece, out);
        }
    }

    fn emit_text(&mut self, text: String, out: &mut Vec<Delta>) {
        if !text.is_empty() {
            self.emit(Delta::Text(text), out);
        }
    }

    fn emit_thinking(&mut self, text: String, out: &mut Vec<Delta>) {
        if !text.is_empty() && text != "[REDACTED]" {
            self.emit(Delta::Thinking(text), out);
        }
    }

    fn fail(&mut self, words: &str, out: &mut Vec<Delta>) {
        if !self.assembler.has_error() {
            self.emit(Delta::Error(classify::scrubbed(&json!({"error": {"message": words}}))), out);
        }
    }

    fn emit(&mut self, delta: Delta, out: &mut Vec<Delta>) {
        self.assembler.apply(&delta);
        out.push(delta);
    }
}

/// What a body is, by its first byte; None while there is only white space.
fn shape_of(bytes: &[u8]) -> Option<Shape> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace() && !matches!(byte, 0xEF | 0xBB | 0xBF))?;
    Some(match first {
        b'{' | b'[' => Shape::Json,
        b'<' => Shape::Html,
        _ => Shape::Stream,
    })
}

#[derive(Default)]
struct Content {
    text: String,
    thinking: String,
}

/// Content as a string, a scalar (some servers send numbers), or a list of parts.
fn content_of(value: Option<&Value>) -> Content {
    let mut content = Content::default();
    match value {
        Some(Value::String(text)) => content.text.clone_from(text),
        Some(scalar @ (Value::Number(_) | Value::Bool(_))) => content.text = scalar.to_string(),
        Some(Value::Array(parts)) => {
            for part in parts {
                let inner = content_of(part.get("thinking"));
                content.thinking.push_str(&inner.text);
                match part {
                    Value::String(text) => content.text.push_str(text),
                    _ => content.text.push_str(text(part, "text").unwrap_or_default()),
                }
            }
        }
        _ => {}
    }
    content
}

fn call_piece(call: &Value) -> Delta {
    let function = object(call, "function").unwrap_or(call);
    #[allow(clippy::cast_possible_truncation)]
    let index = call.get("index").and_then(number_of).map(|index| index as i64);
    let id = match call.get("id") {
        Some(Value::String(id)) => Some(id.clone()),
        Some(Value::Number(id)) => Some(id.to_string()),
        _ => None,
    };
    let arguments = match function.get("arguments") {
        Some(Value::String(arguments)) => arguments.clone(),
        None | Some(Value::Null) => String::new(),
        Some(whole) => whole.to_string(),
    };
    Delta::Call {
        index,
        id: id.filter(|id| !id.is_empty()),
        name: text(function, "name").map(str::to_owned),
        arguments,
    }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
