//! Tokens guessed from bytes: four bytes a token. Coarse on purpose; everything made of it is marked as an estimate.

use super::message::{Block, Message};

/// Bytes that count as one token.
const BYTES_PER_TOKEN: u64 = 4;
/// What one image counts, tokens. Its base64 size says nothing about what a model charges.
const IMAGE_TOKENS: u64 = 1_200;
/// Role, separators and ids of one message, tokens.
const MESSAGE_TOKENS: u64 = 4;

/// Tokens of this many bytes of text, rounded up.
pub fn tokens_of_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Tokens of a text.
pub fn tokens_of_text(text: &str) -> u64 {
    tokens_of_bytes(u64::try_from(text.len()).unwrap_or(u64::MAX))
}

/// Tokens of a message's content. Thinking counts: some providers get it back.
pub fn tokens_of_content(content: &[Block]) -> u64 {
    content
        .iter()
        .map(|block| match block {
            Block::Text { text } | Block::Thinking { text } => tokens_of_text(text),
            Block::ToolCall { name, arguments, .. } => {
                tokens_of_text(name).saturating_add(tokens_of_text(&arguments.to_string()))
            }
            Block::Image { .. } => IMAGE_TOKENS,
        })
        .fold(0, u64::saturating_add)
}

/// Tokens of a message as it is sent.
pub fn tokens_of_message(message: &Message) -> u64 {
    let content = match message {
        Message::System { content } | Message::User { content } | Message::ToolResult { content, .. } => content,
        Message::Assistant(answer) => &answer.content,
    };
    tokens_of_content(content).saturating_add(MESSAGE_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_up_and_never_overflows() {
        assert_eq!(tokens_of_text(""), 0);
        assert_eq!(tokens_of_text("a"), 1);
        assert_eq!(tokens_of_text("abcd"), 1);
        assert_eq!(tokens_of_text("abcde"), 2);
        assert_eq!(tokens_of_bytes(u64::MAX), u64::MAX / 4 + 1);
    }

    #[test]
    fn an_image_is_not_counted_by_its_base64() {
        let image = Block::Image { data: "A".repeat(1_000_000), mime_type: "image/png".into() };
        assert_eq!(tokens_of_content(&[image, Block::text("abcd")]), IMAGE_TOKENS + 1);
    }

    #[test]
    fn a_message_counts_more_than_its_content() {
        let message = Message::User { content: vec![Block::text("abcdefgh")] };
        assert_eq!(tokens_of_message(&message), 2 + MESSAGE_TOKENS);
    }
}
