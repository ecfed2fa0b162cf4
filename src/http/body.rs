//! The bodies that requests carry: their fields, limits and refusals.

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use super::route::REQUEST_ID_CHARS_MAX;
use crate::config::AgentSettings;
use crate::error::{ApiError, Code};
use crate::json::{self, At, Problem};
use crate::model::message::Block;

/// Bytes of a body.
pub const BODY_BYTES_MAX: usize = 1_048_576;
/// Bytes of a message's text: half a body, so that its entry stays below the limit of a cell (design S3).
pub const TEXT_BYTES_MAX: usize = 524_288;
/// Images of a message.
pub const IMAGES_MAX: usize = 8;
/// Bytes of an image's base64 text.
pub const IMAGE_BYTES_MAX: usize = 1_000_000;
/// Characters of the reason of a stop.
pub const REASON_CHARS_MAX: usize = 1_000;
/// Bytes of a signal's value as JSON.
pub const VALUE_BYTES_MAX: usize = 262_144;
/// Characters of a tool call's id.
pub const CALL_ID_CHARS_MAX: usize = 256;

/// Image types that the providers accept.
const MIME_TYPES: &[(&str, &str)] = &[
    ("image/png", "image/png"),
    ("image/jpeg", "image/jpeg"),
    ("image/gif", "image/gif"),
    ("image/webp", "image/webp"),
];

closed_list! {
    /// What happens to a message that finds the agent at work (design I2).
    WhenBusy {
        Steer "steer": "It joins after the current round of tools.",
        FollowUp "follow_up": "It follows the answer.",
        Reject "reject": "It is refused with `agent_busy`, and not stored.",
    }
}

/// A body and the hash that tells whether a repeat is the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Body<T> {
    /// The body.
    pub content: T,
    /// SHA-256 over the canonical JSON (RFC 8785), hex: order of keys, white space and escapes do not matter.
    pub sha256: String,
}

/// A body that can be read.
pub trait Request: Sized {
    /// Whether no body at all is the same as `{}`: so where no field is required.
    const EMPTY_ALLOWED: bool;

    /// Reads the fields.
    fn read(value: &Value) -> Result<Self, Problem>;
}

/// Reads a body.
///
/// # Errors
/// `too_large`, `invalid_request`, `unknown_field`, with `details.field` where there is one.
pub fn parse<T: Request>(bytes: &[u8]) -> Result<Body<T>, ApiError> {
    if bytes.len() > BODY_BYTES_MAX {
        return Err(too_large(BODY_BYTES_MAX));
    }
    let blank = bytes.iter().all(u8::is_ascii_whitespace);
    let value = if blank && T::EMPTY_ALLOWED { Value::Object(serde_json::Map::new()) } else { json::parse(bytes)? };
    let content = T::read(&value)?;
    Ok(Body { content, sha256: json::sha256_hex(json::canonical(&value).as_bytes()) })
}

/// The refusal of a body above its limit, for a caller that stops reading there.
pub fn too_large(limit_bytes: usize) -> ApiError {
    let message = format!("The body is above the limit of {limit_bytes} bytes.");
    ApiError::because(Code::TooLarge, message).with("limit", limit_bytes).with("unit", "bytes")
}

/// `POST …/messages`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageBody {
    /// The client's id of this message: the same id is the same message, always.
    pub request_id: String,
    /// The text; it may be empty when there are images.
    pub text: String,
    /// Images, as [`Block::Image`].
    pub images: Vec<Block>,
    /// What to do when the agent is at work.
    pub when_busy: WhenBusy,
}

impl Request for MessageBody {
    const EMPTY_ALLOWED: bool = false;

    fn read(value: &Value) -> Result<Self, Problem> {
        let fields = At::root(value).fields(&["request_id", "text", "images", "when_busy"])?;
        let request_id = fields.required("request_id")?.name(REQUEST_ID_CHARS_MAX)?.to_owned();
        let text = fields.required("text")?;
        let images = fields.optional("images").map(|at| read_images(&at)).transpose()?.unwrap_or_default();
        let content = text.text(usize::MAX)?;
        if content.len() > TEXT_BYTES_MAX {
            return Err(Problem::too_large(text.path, TEXT_BYTES_MAX, "bytes"));
        }
        if content.is_empty() && images.is_empty() {
            return Err(text.problem("must not be empty without images"));
        }
        let when_busy = fields.optional("when_busy").map(|at| at.one_of(WhenBusy::ALL)).transpose()?;
        Ok(Self { request_id, text: content.to_owned(), images, when_busy: when_busy.unwrap_or(WhenBusy::FollowUp) })
    }
}

impl MessageBody {
    /// The message's content: its text, unless that is empty, and its images.
    pub fn blocks(self) -> Vec<Block> {
        let text = (!self.text.is_empty()).then(|| Block::text(self.text));
        text.into_iter().chain(self.images).collect()
    }
}

fn read_images(list: &At<'_>) -> Result<Vec<Block>, Problem> {
    list.items(IMAGES_MAX)?.iter().map(read_image).collect()
}

fn read_image(place: &At<'_>) -> Result<Block, Problem> {
    let fields = place.fields(&["type", "data", "mime_type"])?;
    // A content block of an entry can be sent back as it is.
    fields.optional("type").map_or(Ok("image"), |at| at.one_of(&[("image", "image")]))?;
    let data = fields.required("data")?;
    let base64 = data.text(IMAGE_BYTES_MAX)?;
    if !is_base64(base64) {
        return Err(data.problem("must be base64, padded, without a data: prefix"));
    }
    let mime_type = fields.required("mime_type")?.one_of(MIME_TYPES)?.to_owned();
    Ok(Block::Image { data: base64.to_owned(), mime_type })
}

/// Whether the text has the shape of standard base64 with its padding.
fn is_base64(text: &str) -> bool {
    let content = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    !content.is_empty() && text.len().is_multiple_of(4) && content.bytes().all(fits)
}

/// `PUT /v1/agents/{id}`. Whether its tier is configured is for the caller to check ([`crate::config::Config::tier`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigureBody(pub AgentSettings);

impl Request for ConfigureBody {
    const EMPTY_ALLOWED: bool = false;

    fn read(value: &Value) -> Result<Self, Problem> {
        AgentSettings::read(value).map(Self)
    }
}

/// `POST …/stop`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopBody {
    /// Why, for people.
    pub reason: Option<String>,
}

impl Request for StopBody {
    const EMPTY_ALLOWED: bool = true;

    fn read(value: &Value) -> Result<Self, Problem> {
        let fields = At::root(value).fields(&["reason"])?;
        Ok(Self {
            reason: fields.optional("reason").map(|at| at.text(REASON_CHARS_MAX).map(str::to_owned)).transpose()?,
        })
    }
}

/// `POST …/interrupt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptBody {
    /// Whether the queued inputs stay; they do unless told otherwise.
    pub keep_queue: bool,
}

impl Request for InterruptBody {
    const EMPTY_ALLOWED: bool = true;

    fn read(value: &Value) -> Result<Self, Problem> {
        let fields = At::root(value).fields(&["keep_queue"])?;
        Ok(Self { keep_queue: fields.optional("keep_queue").map_or(Ok(true), |at| at.boolean())? })
    }
}

/// `POST …/retry`: no fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryBody {}

impl Request for RetryBody {
    const EMPTY_ALLOWED: bool = true;

    fn read(value: &Value) -> Result<Self, Problem> {
        At::root(value).fields(&[]).map(|_| Self {})
    }
}

/// `POST …/signals/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SignalBody {
    /// What the waiting tool gets; any JSON, also `null`.
    pub value: Value,
    /// The tool call it is for, when more than one may wait.
    pub call: Option<String>,
    /// The client's id of this signal: a repeat changes nothing.
    pub request_id: String,
}

impl Request for SignalBody {
    const EMPTY_ALLOWED: bool = false;

    fn read(value: &Value) -> Result<Self, Problem> {
        let fields = At::root(value).fields(&["value", "call", "request_id"])?;
        let content = fields.required("value")?;
        if content.value.to_string().len() > VALUE_BYTES_MAX {
            return Err(Problem::too_large(content.path, VALUE_BYTES_MAX, "bytes"));
        }
        Ok(Self {
            value: content.value.clone(),
            call: fields.optional("call").map(|at| at.name(CALL_ID_CHARS_MAX).map(str::to_owned)).transpose()?,
            request_id: fields.required("request_id")?.name(REQUEST_ID_CHARS_MAX)?.to_owned(),
        })
    }
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
