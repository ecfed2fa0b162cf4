//! The model outside: it reads each request as a strict server would, and answers by what the transcript says.
//!
//! A message may carry a plan (`plan look+write,slow`): one group of tools for each round that the model asks for before
//! it answers. So the answers follow from the transcript alone, whatever crashed before.

use crate::manners::{Manner, Reach};
use agentdo::agent::{Folded, RequestHead, Target, Wire};
use agentdo::model::encode::Fragment;
use agentdo::model::message::{AssistantMessage, Block, Message, Stop, Usage, text_of};
use agentdo::model::{Delta, Failure, FailureKind, Outcome};
use serde_json::{Value, json};
use std::rc::Rc;

/// A format as simple as can be: a request is a JSON list of neutral messages.
pub struct PlainWire;

impl Wire for PlainWire {
    fn fragment(&self, message: &Message) -> Option<Fragment> {
        match message {
            Message::Assistant(assistant) if assistant.aborted => None,
            message => Some(Fragment {
                json: serde_json::to_string(message).unwrap(),
                is_tool_result: false,
                trailing_images: None,
                reasoning: None,
            }),
        }
    }

    fn body(&self, head: &RequestHead<'_>, fragments: &[Rc<Fragment>]) -> String {
        let tools: Vec<&str> = head.tools.iter().map(|tool| tool.name).collect();
        let tools = serde_json::to_string(&tools).unwrap();
        let system = serde_json::to_string(head.system).unwrap();
        format!(
            "{{\"system\":{system},\"tools\":{tools},\"messages\":[{}]}}",
            fragments.iter().map(|fragment| fragment.json.as_str()).collect::<Vec<_>>().join(",")
        )
    }

    fn fold(&self, deltas: &[Delta], target: &Target, request_bytes: u64) -> Folded {
        let mut content: Vec<Block> = Vec::new();
        let mut arguments = String::new();
        let mut usage = None;
        let mut finish = None;
        for delta in deltas {
            match delta {
                Delta::Text(piece) => match content.last_mut() {
                    Some(Block::Text { text }) => text.push_str(piece),
                    _ => content.push(Block::text(piece)),
                },
                Delta::Call { id, name, arguments: piece, .. } => {
                    if let (Some(id), Some(name)) = (id, name) {
                        close_call(&mut content, &mut arguments);
                        content.push(Block::ToolCall { id: id.clone(), name: name.clone(), arguments: Value::Null });
                    }
                    arguments.push_str(piece);
                }
                Delta::Usage(counted) => usage = Some(counted.clone()),
                Delta::Finish(reason) => finish = Some(reason.clone()),
                _ => {}
            }
        }
        close_call(&mut content, &mut arguments);
        let estimate = Usage { input_tokens: request_bytes / 4, estimated: true, ..Usage::default() };
        let stop = match finish.as_deref() {
            Some("tool_calls") => Stop::ToolCalls,
            Some("length") => Stop::Length,
            Some(_) => Stop::Stop,
            None => Stop::Aborted,
        };
        let partial = AssistantMessage {
            content,
            stop,
            usage: usage.unwrap_or(estimate),
            provider: target.provider.clone(),
            model: target.models.first().cloned().unwrap_or_default(),
            aborted: finish.is_none(),
            error: None,
            call_faults: Vec::new(),
            reasoning_details: None,
        };
        let complete = finish.map(|_| {
            if partial.content.is_empty() {
                let mut failure = Failure::new(FailureKind::Empty, "nothing was said");
                failure.partial = Some(Box::new(partial.clone()));
                Outcome::Failed(failure)
            } else {
                Outcome::Answer(partial.clone())
            }
        });
        Folded { complete, partial }
    }
}

fn close_call(content: &mut [Block], text: &mut String) {
    if let Some(Block::ToolCall { arguments, .. }) = content.last_mut()
        && arguments.is_null()
    {
        *arguments = serde_json::from_str(text).unwrap_or_else(|_| json!({}));
    }
    text.clear();
}

/// The messages of a request, or why no server would take it.
pub fn read_request(body: &str) -> Result<Vec<Message>, String> {
    let body: Value = serde_json::from_str(body).map_err(|error| format!("not JSON: {error}"))?;
    let messages: Vec<Message> =
        serde_json::from_value(body["messages"].clone()).map_err(|error| format!("messages: {error}"))?;
    let mut owed: Vec<String> = Vec::new();
    let mut ids = std::collections::BTreeSet::new();
    for message in &messages {
        if let Message::ToolResult { tool_call_id, .. } = message {
            if owed.first() != Some(tool_call_id) {
                return Err(format!("result of {tool_call_id}, but owed are {owed:?}"));
            }
            owed.remove(0);
            continue;
        }
        if !owed.is_empty() {
            return Err(format!("no result for {owed:?}"));
        }
        let content = match message {
            Message::Assistant(assistant) => {
                for block in &assistant.content {
                    if let Block::ToolCall { id, .. } = block {
                        if !ids.insert(id.clone()) {
                            return Err(format!("call id {id} is used twice"));
                        }
                        owed.push(id.clone());
                    }
                }
                &assistant.content
            }
            Message::User { content } | Message::System { content } | Message::ToolResult { content, .. } => content,
        };
        if content.is_empty() {
            return Err("an empty message".to_owned());
        }
    }
    if !owed.is_empty() {
        return Err(format!("no result for {owed:?}"));
    }
    match messages.last() {
        Some(Message::User { .. } | Message::ToolResult { .. }) => Ok(messages),
        _ => Err("the last message is not for the model to answer".to_owned()),
    }
}

/// All text of people in a request: which inputs the model has seen.
pub fn inputs_of(messages: &[Message]) -> Vec<String> {
    let texts = messages.iter().filter_map(|message| match message {
        Message::User { content } => Some(text_of(content)),
        _ => None,
    });
    texts.collect()
}

/// What the model is going to stream for this transcript: pieces in the order of the wire, the finish mark not included.
fn pieces(messages: &[Message], next_call: &mut u64) -> (Vec<Delta>, &'static str) {
    let asked = messages.iter().rposition(|message| match message {
        Message::User { content } => text_of(content).contains("plan "),
        _ => false,
    });
    let (plan, rest) = match asked.and_then(|at| messages.get(at).map(|message| (message, at))) {
        Some((Message::User { content }, at)) => (text_of(content), &messages[at..]),
        _ => (String::new(), messages),
    };
    let rounds = rest
        .iter()
        .filter(|message| {
            matches!(message, Message::Assistant(assistant)
                if assistant.content.iter().any(|block| matches!(block, Block::ToolCall { .. })))
        })
        .count();
    let plan = plan.split("plan ").nth(1).unwrap_or_default().to_owned();
    let group = plan.split(',').nth(rounds).unwrap_or_default();
    let tools: Vec<&str> = group.split('+').map(str::trim).filter(|name| !name.is_empty()).collect();
    if tools.is_empty() {
        let words = ["The answer ", "comes in ", "pieces."];
        return (words.iter().map(|word| Delta::Text((*word).to_owned())).collect(), "stop");
    }
    let mut deltas = vec![Delta::Text("I look. ".to_owned())];
    for (index, name) in tools.into_iter().enumerate() {
        *next_call += 1;
        let id = format!("c{next_call}");
        let (name, bad) = name.strip_prefix('!').map_or((name, false), |name| (name, true));
        let index = i64::try_from(index).ok();
        let arguments = format!("\"{id}\"{}}}", if bad { ",\"bad\":1" } else { "" });
        deltas.push(Delta::Call { index, id: Some(id), name: Some(name.to_owned()), arguments: "{\"of\":".to_owned() });
        deltas.push(Delta::Call { index, id: None, name: None, arguments });
    }
    (deltas, "tool_calls")
}

/// What comes back, each part with its delay since the part before.
pub enum Part {
    Batch(Vec<Delta>),
    End(Outcome),
}

/// Answers a request in this manner.
pub fn answer(
    messages: &[Message],
    manner: Manner,
    next_call: &mut u64,
    fold: &dyn Fn(&[Delta]) -> Folded,
) -> Vec<(i64, Part)> {
    let (mut deltas, mut finish) = pieces(messages, next_call);
    let tokens = u64::try_from(messages.len()).unwrap_or(0) * 10;
    let usage = Usage { input_tokens: tokens, output_tokens: 7, cost_usd: 0.25, ..Usage::default() };
    let failed = |kind, retry_after_ms, partial: Option<AssistantMessage>| {
        let mut failure = Failure::new(kind, "the model failed");
        failure.retry_after_ms = retry_after_ms;
        failure.partial = partial.map(Box::new);
        Part::End(Outcome::Failed(failure))
    };
    match manner {
        Manner::Refuse { kind, retry_after_ms } => return vec![(30, failed(kind, retry_after_ms, None))],
        Manner::Cut => {
            deltas.truncate(2);
            let partial = fold(&deltas).partial;
            return vec![(40, Part::Batch(deltas)), (300, failed(FailureKind::Transient, None, Some(partial)))];
        }
        Manner::Empty => deltas.clear(),
        Manner::Length if finish == "tool_calls" => finish = "length",
        _ => {}
    }
    let mut parts: Vec<(i64, Part)> = Vec::new();
    for pair in deltas.chunks(2) {
        parts.push((120, Part::Batch(pair.to_vec())));
    }
    let late_ms = if matches!(manner, Manner::UsageLate) { 4_000 } else { 30 };
    let last = [Delta::Finish(finish.to_owned())];
    parts.push((60, Part::Batch(last.to_vec())));
    deltas.extend(last);
    let last = [Delta::Usage(usage)];
    parts.push((late_ms, Part::Batch(last.to_vec())));
    deltas.extend(last);
    let outcome = fold(&deltas).complete.unwrap();
    parts.push((5, Part::End(outcome)));
    if let Manner::Slow(factor) = manner {
        for part in &mut parts {
            part.0 *= factor;
        }
    }
    parts
}

/// What an ended operation still sends.
pub fn after_abort(reach: Reach) -> Option<i64> {
    match reach {
        Reach::Obeys => Some(20),
        Reach::Silent => None,
        Reach::Ignores => Some(-1),
    }
}
