//! A Worker of your own: everything AgentDO has, with one tool in Rust and one handler in JavaScript.

// A Worker's entry points exist on wasm only; so that `cargo check` on the host has nothing to say, neither is the rest.
#![cfg(target_family = "wasm")]

use agentdo::agent::ToolSpec;
use agentdo::agent::state::Replay;
use agentdo::hook::{Extension, Registrar, Tool, ToolCall, ToolOutput};
use agentdo::model::message::Block;
use futures::future::LocalBoxFuture;
use serde_json::json;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The extension in Rust. Its name is the namespace of its tools and reports.
struct Words;

impl Extension for Words {
    fn name(&self) -> &str {
        "words"
    }

    fn register(&self, on: &mut Registrar<'_>) {
        on.tool(Rc::new(WordCount));
    }
}

/// Models are bad at counting.
struct WordCount;

impl Tool for WordCount {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "word_count".to_owned(),
            description: "Counts the words of a text.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": { "text": { "type": "string", "maxLength": 100_000 } },
                "required": ["text"],
                "additionalProperties": false,
            }),
            // Counting twice does no harm, so it may run again after a crash.
            replay: Replay::Safe,
            timeout_ms: None,
            resource: None,
        }
    }

    fn execute(&self, call: ToolCall) -> LocalBoxFuture<'static, Result<ToolOutput, String>> {
        // The arguments fit the schema: that was checked.
        let words =
            call.arguments.get("text").and_then(|text| text.as_str()).map_or(0, |text| text.split_whitespace().count());
        let output = ToolOutput { content: vec![Block::text(&words.to_string())], is_error: false };
        Box::pin(std::future::ready(Ok(output)))
    }
}

#[wasm_bindgen(module = "/extensions/index.js")]
extern "C" {
    fn extensions() -> js_sys::Array;
}

fn register(on: &mut agentdo::Extensions) {
    on.rust(&Words).javascript(&extensions());
}

agentdo::export!(register = crate::register);
