//! Writes chat-completions requests.
//!
//! A transcript message becomes a [`Fragment`] of JSON text once; a request joins fragments. So the history is neither
//! parsed nor written again for each call, and what a fragment says depends on its message alone.

use super::lenient::head;
use super::message::{AssistantMessage, Block, Message, Stop, text_of};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// The most models one request may name; OpenRouter refuses more.
pub const MODELS_MAX: usize = 3;
/// The longest `session_id`, bytes.
pub const SESSION_ID_BYTES_MAX: usize = 256;
/// The longest id of a tool call that every provider takes, bytes.
pub const CALL_ID_BYTES_MAX: usize = 40;
/// The longest tool name, bytes.
pub const TOOL_NAME_BYTES_MAX: usize = 64;

const NO_OUTPUT: &str = "(no tool output)";
const IMAGES_FOLLOW: &str = "(the images follow after the tool results)";
const IMAGES_HERE: &str = "Images from the tool results above:";

/// Which fields a server knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// OpenRouter, directly or through the gateway.
    #[default]
    OpenRouter,
    /// Any other chat-completions server: standard fields only.
    Plain,
}

/// A tool as the model sees it.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON Schema of its arguments; none for a tool without arguments.
    pub parameters: Option<Box<RawValue>>,
}

/// A request without its history.
#[derive(Debug, Clone, Default)]
pub struct RequestHead {
    /// Which fields the server knows.
    pub dialect: Dialect,
    /// The model to ask.
    pub model: String,
    /// Models to fall back to, in order (OpenRouter); at most [`MODELS_MAX`] in all are sent.
    pub fallbacks: Vec<String>,
    /// The system prompt.
    pub system: Option<String>,
    /// The tools. They must be in every request of a loop, also in those that carry results.
    pub tools: Vec<ToolSpec>,
    /// The output limit, tokens.
    pub output_tokens_max: Option<u64>,
    /// `minimal`, `low`, `medium`, `high` …; none leaves it to the model.
    pub reasoning_effort: Option<String>,
    /// Keeps a conversation on one upstream, for its prompt cache (OpenRouter).
    pub session_id: Option<String>,
}

/// One message as JSON text, made once and kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fragment {
    /// A JSON object.
    pub json: String,
    /// True for the result of a tool. Trailing images wait for the last result in a row.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_tool_result: bool,
    /// Content parts, joined by commas, that cannot stand in a tool result and follow in a user message after all results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trailing_images: Option<String>,
    /// Reasoning to give back, to the model it came from only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ReasoningFragment>,
}

/// `reasoning_details` of an assistant message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningFragment {
    /// The provider that sent it.
    pub provider: String,
    /// The model that sent it.
    pub model: String,
    /// A JSON array.
    pub json: String,
}

impl Fragment {
    fn plain(json: Option<String>) -> Option<Self> {
        json.map(|json| Self { json, is_tool_result: false, trailing_images: None, reasoning: None })
    }
}

/// The JSON of one message. None for what is never sent: partials, errors, empty messages.
pub fn encode_message(message: &Message) -> Option<Fragment> {
    match message {
        Message::System { content } => {
            let text = lines_of(content)?;
            Fragment::plain(json_of(&Text { role: "system", content: &text }))
        }
        Message::User { content } => {
            let has_images = content.iter().any(|block| matches!(block, Block::Image { .. }));
            if !has_images {
                let text = lines_of(content)?;
                return Fragment::plain(json_of(&Text { role: "user", content: &text }));
            }
            let parts: Vec<Part<'_>> = content.iter().filter_map(Part::of).collect();
            Fragment::plain(json_of(&Parts { role: "user", content: &parts }))
        }
        Message::Assistant(answer) => encode_answer(answer),
        Message::ToolResult { tool_call_id, content, .. } => {
            let images: Vec<String> =
                content.iter().filter(|block| matches!(block, Block::Image { .. })).filter_map(Part::json_of).collect();
            let text = lines_of(content);
            let text = text.as_deref().unwrap_or(if images.is_empty() { NO_OUTPUT } else { IMAGES_FOLLOW });
            let json = json_of(&ToolOutput { role: "tool", tool_call_id: &call_id(tool_call_id), content: text })?;
            let trailing_images = (!images.is_empty()).then(|| images.join(","));
            Some(Fragment { json, is_tool_result: true, trailing_images, reasoning: None })
        }
    }
}

fn encode_answer(answer: &AssistantMessage) -> Option<Fragment> {
    if answer.aborted || matches!(answer.stop, Stop::Aborted | Stop::Error) {
        return None;
    }
    let calls: Vec<Call> = answer.content.iter().filter_map(Call::of).collect();
    let text = text_of(&answer.content);
    let text = (!text.trim().is_empty()).then_some(text);
    if text.is_none() && calls.is_empty() {
        return None;
    }
    // A turn of calls alone says null: some upstreams refuse an empty string.
    let json = json_of(&Answer { role: "assistant", content: text.as_deref(), tool_calls: &calls })?;
    let reasoning = answer.reasoning_details.as_ref().and_then(|details| {
        let (provider, model) = (answer.provider.clone(), answer.model.clone());
        Some(ReasoningFragment { provider, model, json: json_of(details)? })
    });
    Some(Fragment { reasoning, ..Fragment::plain(Some(json))? })
}

/// The body of a request. `fragments` are the history in order, each call's results right after it.
pub fn encode_request<'a>(head: &RequestHead, fragments: impl IntoIterator<Item = &'a Fragment>) -> String {
    let open_router = head.dialect == Dialect::OpenRouter;
    let mut body = Body(String::from("{"));
    body.field("model", &text_json(&head.model));
    if open_router && !head.fallbacks.is_empty() {
        let mut models: Vec<&str> = Vec::new();
        for model in std::iter::once(&head.model).chain(&head.fallbacks) {
            if !models.contains(&model.as_str()) && models.len() < MODELS_MAX {
                models.push(model);
            }
        }
        body.field("models", &json_of(&models).unwrap_or_default());
    }
    body.field("messages", &messages(head, fragments));
    if !head.tools.is_empty() {
        let tools: Vec<String> = head.tools.iter().filter_map(tool_json).collect();
        body.field("tools", &format!("[{}]", tools.join(",")));
    }
    body.field("stream", "true");
    body.field("stream_options", r#"{"include_usage":true}"#);
    if let Some(tokens) = head.output_tokens_max {
        body.field("max_tokens", &tokens.to_string());
    }
    if let Some(effort) = head.reasoning_effort.as_deref().filter(|effort| !effort.is_empty()) {
        match head.dialect {
            Dialect::OpenRouter => body.field("reasoning", &format!(r#"{{"effort":{}}}"#, text_json(effort))),
            Dialect::Plain => body.field("reasoning_effort", &text_json(effort)),
        }
    }
    if open_router {
        if let Some(session) = head.session_id.as_deref().filter(|session| !session.is_empty()) {
            body.field("session_id", &text_json(self::head(session, SESSION_ID_BYTES_MAX)));
        }
        // On by default for small windows: an overflow has to be an error, for we compact ourselves.
        body.field("plugins", r#"[{"id":"context-compression","enabled":false}]"#);
    }
    body.0.push('}');
    body.0
}

fn messages<'a>(head: &RequestHead, fragments: impl IntoIterator<Item = &'a Fragment>) -> String {
    let mut list = String::from("[");
    let mut add = |json: &str| {
        if list.len() > 1 {
            list.push(',');
        }
        list.push_str(json);
    };
    if let Some(system) = head.system.as_deref().filter(|system| !system.trim().is_empty())
        && let Some(json) = json_of(&Text { role: "system", content: system })
    {
        add(&json);
    }
    let mut images: Vec<&str> = Vec::new();
    for fragment in fragments {
        if !fragment.is_tool_result && !images.is_empty() {
            add(&images_message(&images));
            images.clear();
        }
        match fragment.reasoning.as_ref().filter(|reasoning| goes_back(reasoning, head)) {
            Some(reasoning) => {
                let open = fragment.json.strip_suffix('}').unwrap_or(&fragment.json);
                add(&format!(r#"{open},"reasoning_details":{}}}"#, reasoning.json));
            }
            None => add(&fragment.json),
        }
        images.extend(fragment.trailing_images.as_deref());
    }
    if !images.is_empty() {
        add(&images_message(&images));
    }
    list.push(']');
    list
}

fn images_message(images: &[&str]) -> String {
    let intro = text_json(IMAGES_HERE);
    format!(r#"{{"role":"user","content":[{{"type":"text","text":{intro}}},{}]}}"#, images.join(","))
}

/// Reasoning goes back to the provider and model it came from. An answer may name a dated form of the model asked for, and
/// variants (`:free`) are the same model.
fn goes_back(reasoning: &ReasoningFragment, head: &RequestHead) -> bool {
    fn base(model: &str) -> &str {
        model.split(':').next().unwrap_or(model)
    }
    let dated = |rest: &str| {
        rest.strip_prefix('-')
            .is_some_and(|date| date.starts_with("20") && date.chars().all(|char| char.is_ascii_digit() || char == '-'))
    };
    let (from, to) = (base(&reasoning.model), base(&head.model));
    head.dialect == Dialect::OpenRouter
        && reasoning.provider == "openrouter"
        && from.strip_prefix(to).is_some_and(|rest| rest.is_empty() || dated(rest))
}

fn tool_json(tool: &ToolSpec) -> Option<String> {
    let parameters = tool.parameters.as_ref().map_or(r#"{"type":"object","properties":{}}"#, |schema| schema.get());
    let name = text_json(&tool_name(&tool.name));
    let description = text_json(&tool.description);
    Some(format!(
        r#"{{"type":"function","function":{{"name":{name},"description":{description},"parameters":{parameters}}}}}"#
    ))
}

/// A call's id as every provider takes it: itself, or a name made of its hash, the same for call and result.
fn call_id(id: &str) -> String {
    let fits = !id.is_empty() && id.len() <= CALL_ID_BYTES_MAX && id.bytes().all(is_name_byte);
    if fits {
        return id.to_owned();
    }
    let hash = Sha256::digest(id.as_bytes());
    let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("call_{hex}")
}

/// A tool's name as every provider takes it. Models make up names; one bad name in the history would fail every request.
fn tool_name(name: &str) -> String {
    let clean: String = name
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() || matches!(char, '_' | '-') { char } else { '_' })
        .collect();
    if clean.is_empty() { "unknown".to_owned() } else { head(&clean, TOOL_NAME_BYTES_MAX).to_owned() }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// The text blocks, one under the other; None when they say nothing.
fn lines_of(content: &[Block]) -> Option<String> {
    let lines = content.iter().filter_map(|block| match block {
        Block::Text { text } if !text.is_empty() => Some(text.as_str()),
        _ => None,
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    (!text.trim().is_empty()).then_some(text)
}

/// A JSON object under construction, with room for the first field.
struct Body(String);

impl Body {
    fn field(&mut self, name: &str, json: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push('"');
        self.0.push_str(name);
        self.0.push_str("\":");
        self.0.push_str(json);
    }
}

/// None cannot happen for what is written here: all keys are strings.
fn json_of<T: Serialize + ?Sized>(value: &T) -> Option<String> {
    serde_json::to_string(value).ok()
}

fn text_json(text: &str) -> String {
    json_of(text).unwrap_or_else(|| "\"\"".to_owned())
}

#[derive(Serialize)]
struct Text<'a> {
    role: &'static str,
    content: &'a str,
}

#[derive(Serialize)]
struct Parts<'a> {
    role: &'static str,
    content: &'a [Part<'a>],
}

#[derive(Serialize)]
struct ToolOutput<'a> {
    role: &'static str,
    tool_call_id: &'a str,
    content: &'a str,
}

#[derive(Serialize)]
struct Answer<'a> {
    role: &'static str,
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tool_calls: &'a [Call],
}

#[derive(Serialize)]
struct Call {
    id: String,
    r#type: &'static str,
    function: Function,
}

#[derive(Serialize)]
struct Function {
    name: String,
    arguments: String,
}

impl Call {
    fn of(block: &Block) -> Option<Self> {
        let Block::ToolCall { id, name, arguments } = block else { return None };
        // Always an object: a broken string replayed fails every later request.
        let arguments = match arguments {
            Value::Object(_) => arguments.to_string(),
            _ => "{}".to_owned(),
        };
        let function = Function { name: tool_name(name), arguments };
        Some(Self { id: call_id(id), r#type: "function", function })
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    Text { text: &'a str },
    ImageUrl { image_url: ImageUrl },
}

#[derive(Serialize)]
struct ImageUrl {
    url: String,
}

impl<'a> Part<'a> {
    fn of(block: &'a Block) -> Option<Self> {
        match block {
            Block::Text { text } if !text.trim().is_empty() => Some(Self::Text { text }),
            Block::Image { data, mime_type } => {
                Some(Self::ImageUrl { image_url: ImageUrl { url: format!("data:{mime_type};base64,{data}") } })
            }
            _ => None,
        }
    }

    fn json_of(block: &Block) -> Option<String> {
        Part::of(block).as_ref().and_then(json_of)
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
