//! Folds deltas into a message.
//!
//! One assembler is fed live, another from the stored deltas after a crash; both must come to the same outcome, so nothing
//! but the deltas and the [`CallContext`] may enter into it.

use super::call::{CallContext, StreamEnd};
use super::calls::{Arguments, Calls, Piece, Slot};
use super::classify;
use super::estimate::tokens_of_bytes;
use super::finish::Finish;
use super::lenient::{KEPT_DEPTH_MAX, deeper_than, text};
use super::message::{AssistantMessage, Block, CallFault, Stop, Usage};
use super::{Delta, Failure, FailureKind, Outcome};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Part of the answer, in the order of the wire.
#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Thinking(String),
    /// The position of the call among all calls.
    Call(usize),
}

/// The fold. See the module.
#[derive(Debug, Clone, Default)]
pub struct Assembler {
    parts: Vec<Part>,
    calls: Calls,
    reasoning: Option<Vec<Value>>,
    model: Option<String>,
    usage: Option<Usage>,
    finish: Option<String>,
    native: Option<String>,
    error: Option<Value>,
}

impl Assembler {
    /// An assembler without deltas.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next delta.
    pub fn apply(&mut self, delta: &Delta) {
        match delta {
            Delta::Text(piece) if piece.is_empty() => {}
            Delta::Text(piece) => match self.parts.last_mut() {
                Some(Part::Text(text)) => text.push_str(piece),
                _ => self.parts.push(Part::Text(piece.clone())),
            },
            Delta::Thinking(piece) if piece.is_empty() => {}
            Delta::Thinking(piece) => match self.parts.last_mut() {
                Some(Part::Thinking(text)) => text.push_str(piece),
                _ => self.parts.push(Part::Thinking(piece.clone())),
            },
            Delta::Call { index, id, name, arguments } => {
                let filled = |text: &'_ Option<String>| text.clone().filter(|text| !text.is_empty());
                let (id, name) = (filled(id), filled(name));
                let piece = Piece { index: *index, id: id.as_deref(), name: name.as_deref(), arguments };
                if self.calls.add(&piece) {
                    self.parts.push(Part::Call(self.calls.slots().len().saturating_sub(1)));
                }
            }
            // No provider nests them; one too deep to be read again is left out.
            Delta::Reasoning(item) if deeper_than(item, KEPT_DEPTH_MAX) => {}
            Delta::Reasoning(item) => add_reasoning(self.reasoning.get_or_insert_default(), item),
            Delta::Model(model) => self.model = Some(model.clone()),
            Delta::Usage(usage) => self.usage = Some(usage.clone()),
            Delta::NativeFinish(reason) if self.finish.is_none() => self.native = Some(reason.clone()),
            Delta::NativeFinish(_) => {}
            // The first finish wins; empty means not finished.
            Delta::Finish(reason) if self.finish.is_none() && !reason.is_empty() => self.finish = Some(reason.clone()),
            Delta::Finish(_) => {}
            Delta::Error(error) => {
                self.error.get_or_insert_with(|| error.clone());
            }
        }
    }

    /// The provider's finish reason, once it came: the end mark.
    pub fn finish_reason(&self) -> Option<&str> {
        self.finish.as_deref()
    }

    /// True when the provider reported an error inside the stream.
    pub fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// The text so far, of all text parts.
    pub(crate) fn text(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None })
            .collect()
    }

    pub(crate) fn has_thinking(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Thinking(_)))
    }

    pub(crate) fn has_reasoning(&self) -> bool {
        self.reasoning.is_some()
    }

    /// What had arrived when the answer was cut: text and thinking only, marked aborted.
    pub fn partial(&self, context: &CallContext) -> AssistantMessage {
        let content = self
            .parts
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(Block::Text { text: text.clone() }),
                Part::Thinking(text) => Some(Block::Thinking { text: text.clone() }),
                Part::Call(_) => None,
            })
            .collect();
        AssistantMessage {
            content,
            stop: Stop::Aborted,
            usage: self.usage(context),
            provider: context.provider.clone(),
            model: self.model.clone().unwrap_or_else(|| context.model.clone()),
            aborted: true,
            error: None,
            call_faults: Vec::new(),
            reasoning_details: None,
        }
    }

    /// The failure of a stream that we or the transport cut, or that just ended. It keeps what had arrived.
    pub fn cut(&self, end: &StreamEnd, context: &CallContext) -> Failure {
        match end {
            StreamEnd::Aborted => self.failed(Failure::new(FailureKind::Aborted, "the call was stopped"), context),
            StreamEnd::Eof => {
                let words = "the stream ended before its finish reason";
                self.failed(Failure::new(FailureKind::Transient, words), context)
            }
            StreamEnd::Broken(words) => self.failed(classify::transport(words), context),
        }
    }

    /// What the answer came to, all deltas being in (design R8). Without a finish reason it is a cut stream.
    pub fn message(&self, context: &CallContext) -> Outcome {
        if let Some(error) = &self.error {
            return Outcome::Failed(self.failed(classify::value(error, None, &[], context.now_ms), context));
        }
        let Some(reason) = &self.finish else { return Outcome::Failed(self.cut(&StreamEnd::Eof, context)) };
        let fail = |kind: FailureKind, words: &str| {
            let native = self.native.as_deref().map(|native| format!(" ({native})")).unwrap_or_default();
            Outcome::Failed(
                self.failed(Failure::new(kind, format!("{words}: finish reason {reason}{native}")), context),
            )
        };
        let finish = Finish::of_both(reason, self.native.as_deref());
        match finish {
            Finish::ContentFilter => return fail(FailureKind::ContentFilter, "refused by a content filter"),
            Finish::Error => return fail(FailureKind::Transient, "the provider ended with an error"),
            Finish::MalformedCall => return fail(FailureKind::MalformedCall, "the model wrote a malformed tool call"),
            Finish::ContextOverflow => return fail(FailureKind::ContextOverflow, "the context does not fit"),
            Finish::Stop | Finish::ToolCalls | Finish::Length | Finish::Unknown => {}
        }
        let calls = self.finished_calls();
        let has_text = !self.text().trim().is_empty();
        let length = finish == Finish::Length || calls.truncated || self.reached_limit(context);
        let usable = has_text || !calls.blocks.is_empty();
        if !usable && self.fills_window(context) {
            return fail(FailureKind::ContextOverflow, "nothing came and the context window is full");
        }
        if calls.nameless && !length {
            return fail(FailureKind::MalformedCall, "a tool call came without a name");
        }
        if !usable {
            return match finish {
                _ if length => fail(FailureKind::Truncated, "the output limit left nothing usable"),
                Finish::Unknown => fail(FailureKind::InvalidRequest, "nothing usable came"),
                _ => fail(FailureKind::Empty, "the answer has no text and no tool call"),
            };
        }
        let stop = match () {
            () if length => Stop::Length,
            () if !calls.blocks.is_empty() => Stop::ToolCalls,
            () => Stop::Stop,
        };
        Outcome::Answer(AssistantMessage {
            content: self.content(&calls.blocks, has_text),
            stop,
            error: (finish == Finish::Unknown).then(|| format!("unknown finish reason: {reason}")),
            call_faults: calls.faults,
            reasoning_details: self.reasoning.clone(),
            aborted: false,
            ..self.partial(context)
        })
    }

    /// Adds what had arrived to a failure, if anything had.
    pub(crate) fn failed(&self, failure: Failure, context: &CallContext) -> Failure {
        let mut partial = self.partial(context);
        if partial.content.is_empty() && self.usage.is_none() {
            return failure;
        }
        if failure.kind != FailureKind::Aborted {
            partial.stop = Stop::Error;
        }
        partial.error = Some(failure.message.clone());
        Failure { partial: Some(Box::new(partial)), ..failure }
    }

    fn content(&self, calls: &[(usize, Block)], has_text: bool) -> Vec<Block> {
        let mut content = Vec::new();
        let mut after_call = false;
        for part in &self.parts {
            match part {
                // White space around calls is template debris, and some upstreams refuse a blank text block.
                Part::Text(text) if text.trim().is_empty() && (after_call || !has_text) => {}
                Part::Text(text) => content.push(Block::Text { text: text.clone() }),
                Part::Thinking(text) => content.push(Block::Thinking { text: text.clone() }),
                Part::Call(at) => {
                    after_call = true;
                    let position = calls.binary_search_by_key(at, |(position, _)| *position);
                    content.extend(position.ok().and_then(|found| calls.get(found)).map(|(_, block)| block.clone()));
                }
            }
        }
        content
    }

    fn finished_calls(&self) -> FinishedCalls {
        let mut finished = FinishedCalls::default();
        let mut ids = BTreeSet::new();
        // Ids the provider gave come first, so that one we make up never takes one of them.
        let given: BTreeSet<&str> = self.calls.slots().iter().filter_map(|slot| slot.id.as_deref()).collect();
        for (at, slot) in self.calls.slots().iter().enumerate().filter(|(_, slot)| !slot.is_phantom()) {
            let Some(name) = &slot.name else {
                finished.nameless = true;
                continue;
            };
            let id = unique_id(slot, at, &given, &mut ids);
            let (arguments, problem) = match slot.arguments() {
                Arguments::Object(object) if deeper_than(&object, KEPT_DEPTH_MAX) => {
                    let words = format!(
                        "The arguments are nested deeper than {KEPT_DEPTH_MAX} levels. Nothing was executed; issue the call \
                         again with flatter ones."
                    );
                    (Value::Object(Map::new()), Some(words))
                }
                Arguments::Object(object) => (object, None),
                Arguments::Truncated => {
                    finished.truncated = true;
                    let words = "The arguments were cut off before their end. Nothing was executed; issue the call again, \
                                 with smaller pieces if they were long.";
                    (Value::Object(Map::new()), Some(words.to_owned()))
                }
                Arguments::Invalid(problem) => {
                    let words = format!(
                        "The arguments are not valid: {problem}. Nothing was executed; issue the call again with one \
                         complete JSON object."
                    );
                    (Value::Object(Map::new()), Some(words))
                }
            };
            finished.faults.extend(problem.map(|problem| CallFault { tool_call_id: id.clone(), problem }));
            finished.blocks.push((at, Block::ToolCall { id, name: name.clone(), arguments }));
        }
        finished
    }

    /// Usage as told, costs filled in from the prices; else an estimate from the bytes.
    fn usage(&self, context: &CallContext) -> Usage {
        let mut usage = self.usage.clone().unwrap_or_else(|| Usage {
            input_tokens: tokens_of_bytes(context.prompt_bytes),
            output_tokens: tokens_of_bytes(self.bytes()),
            estimated: true,
            ..Usage::default()
        });
        if usage.estimated {
            usage.cost_usd = context.prices.cost_usd(&usage);
        }
        usage
    }

    fn bytes(&self) -> u64 {
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) | Part::Thinking(text) => text.len(),
            Part::Call(at) => self.calls.slots().get(*at).map_or(0, Slot::bytes),
        });
        u64::try_from(parts.fold(0, usize::saturating_add)).unwrap_or(u64::MAX)
    }

    /// Routers report a cut answer as `tool_calls` or `stop`; the count betrays it.
    fn reached_limit(&self, context: &CallContext) -> bool {
        let told = self.usage.as_ref().map(|usage| usage.output_tokens);
        told.is_some() && told == context.output_tokens_max && told != Some(0)
    }

    /// The prompt as told fills at least 99 % of the window: a silent overflow when nothing comes.
    fn fills_window(&self, context: &CallContext) -> bool {
        let Some((window, usage)) = context.window_tokens.zip(self.usage.as_ref()) else { return false };
        let prompt = usage.input_tokens.saturating_add(usage.cached_tokens);
        window > 0 && prompt.saturating_mul(100) >= window.saturating_mul(99)
    }
}

#[derive(Default)]
struct FinishedCalls {
    /// Position and block, in order of position.
    blocks: Vec<(usize, Block)>,
    faults: Vec<CallFault>,
    truncated: bool,
    nameless: bool,
}

/// The call's id, or one made of its position; a repeated one gets a suffix.
fn unique_id(slot: &Slot, at: usize, given: &BTreeSet<&str>, used: &mut BTreeSet<String>) -> String {
    let wanted = slot.id.clone().unwrap_or_else(|| format!("call_{}", at.saturating_add(1)));
    let mut id = wanted.clone();
    let mut suffix = at;
    while used.contains(&id) || (given.contains(id.as_str()) && slot.id.as_deref() != Some(id.as_str())) {
        suffix = suffix.saturating_add(1);
        id = format!("{wanted}_{suffix}");
    }
    used.insert(id.clone());
    id
}

/// Adds a `reasoning_details` item. Text and summaries come in fragments: consecutive ones of a kind and an index are one
/// item, whose signature may come with the last fragment. Others stay as they are.
fn add_reasoning(items: &mut Vec<Value>, item: &Value) {
    let Value::Object(fields) = item else {
        if let Value::Array(several) = item {
            several.iter().for_each(|item| add_reasoning(items, item));
        }
        return;
    };
    let fragment = matches!(text(item, "type"), Some("reasoning.text" | "reasoning.summary"));
    let (false, Some(Value::Object(last))) = (!fragment, items.last_mut()) else {
        items.push(item.clone());
        return;
    };
    let same =
        |key: &str| last.get(key) == fields.get(key) || (key == "id" && fields.get(key).is_none_or(Value::is_null));
    if !["type", "index", "id"].into_iter().all(same) {
        items.push(item.clone());
        return;
    }
    for (key, value) in fields {
        match (last.get_mut(key), value) {
            (_, Value::Null) => {}
            (Some(Value::String(so_far)), Value::String(more)) if key == "text" || key == "summary" => {
                so_far.push_str(more);
            }
            (Some(_), Value::String(more)) if more.is_empty() => {}
            _ => {
                last.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn case_c3_signed_reasoning_in_fragments() {
        let mut items = Vec::new();
        for item in [
            json!({"type": "reasoning.text", "text": "a", "index": 0, "format": "x"}),
            json!({"type": "reasoning.text", "text": "b", "index": 0, "signature": null}),
            json!({"type": "reasoning.text", "text": "", "index": 0, "signature": "sig"}),
            json!({"type": "reasoning.encrypted", "data": "d", "index": 0}),
            json!({"type": "reasoning.encrypted", "data": "e", "index": 0}),
            json!({"type": "reasoning.text", "text": "c", "index": 1}),
        ] {
            add_reasoning(&mut items, &item);
        }
        let wanted = json!([
            {"type": "reasoning.text", "text": "ab", "index": 0, "format": "x", "signature": "sig"},
            {"type": "reasoning.encrypted", "data": "d", "index": 0},
            {"type": "reasoning.encrypted", "data": "e", "index": 0},
            {"type": "reasoning.text", "text": "c", "index": 1},
        ]);
        assert_eq!(json!(items), wanted);
    }

    #[test]
    fn case_62_an_empty_list_is_kept() {
        let mut assembler = Assembler::new();
        for delta in [Delta::Reasoning(json!([])), Delta::Text("a".into()), Delta::Finish("stop".into())] {
            assembler.apply(&delta);
        }
        let Outcome::Answer(answer) = assembler.message(&CallContext::default()) else { panic!("no answer") };
        assert_eq!(answer.reasoning_details, Some(vec![]));
    }

    #[test]
    fn without_a_finish_it_is_a_cut_stream() {
        let mut assembler = Assembler::new();
        assembler.apply(&Delta::Text("a".into()));
        let Outcome::Failed(failure) = assembler.message(&CallContext::default()) else { panic!("no failure") };
        assert_eq!(failure.kind, FailureKind::Transient);
        assert!(failure.partial.is_some());
    }

    #[test]
    fn a_partial_holds_no_calls() {
        let mut assembler = Assembler::new();
        let call = Delta::Call { index: Some(0), id: Some("c".into()), name: Some("f".into()), arguments: "{}".into() };
        for delta in [Delta::Thinking("hm".into()), Delta::Text("a".into()), call] {
            assembler.apply(&delta);
        }
        let partial = assembler.partial(&CallContext::default());
        assert_eq!(partial.content, [Block::Thinking { text: "hm".into() }, Block::text("a")]);
        assert_eq!((partial.stop, partial.aborted, partial.usage.estimated), (Stop::Aborted, true, true));
    }

    #[test]
    fn the_first_finish_and_the_first_error_win() {
        let mut assembler = Assembler::new();
        let error = |code: u16| Delta::Error(json!({"error": {"code": code}}));
        for delta in [
            Delta::Finish(String::new()),
            Delta::Finish("stop".into()),
            Delta::Finish("length".into()),
            error(401),
            error(502),
        ] {
            assembler.apply(&delta);
        }
        assert_eq!(assembler.finish_reason(), Some("stop"));
        let Outcome::Failed(failure) = assembler.message(&CallContext::default()) else { panic!("no failure") };
        assert_eq!(failure.kind, FailureKind::Authentication);
    }
}
