//! What the many words for "finished" mean.

/// The meaning of a finish reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// Said all.
    Stop,
    /// Asks for tools.
    ToolCalls,
    /// Cut by the output limit.
    Length,
    /// Refused.
    ContentFilter,
    /// The provider failed.
    Error,
    /// The tool call could not be written down.
    MalformedCall,
    /// The context was too long.
    ContextOverflow,
    /// A word we do not know.
    Unknown,
}

impl Finish {
    /// The meaning of one reason, in any case.
    fn of(reason: &str) -> Self {
        match reason.trim().to_ascii_lowercase().as_str() {
            "stop" | "end" | "eos" | "eos_token" | "end_turn" | "done" | "complete" | "completed" | "stop_sequence"
            | "finish" | "finished" | "normal" => Self::Stop,
            "tool_calls" | "tool_call" | "tool_use" | "tool-calls" | "function_call" => Self::ToolCalls,
            "length" | "max_tokens" | "max_output_tokens" | "max_completion_tokens" | "model_length" => Self::Length,
            "content_filter"
            | "content-filter"
            | "refusal"
            | "safety"
            | "recitation"
            | "blocklist"
            | "prohibited_content"
            | "spii"
            | "image_safety"
            | "image_prohibited_content"
            | "sensitive"
            | "guardrail_intervened" => Self::ContentFilter,
            "error" | "network_error" | "server_error" | "abort" | "aborted" | "cancelled" | "timeout" => Self::Error,
            "malformed_function_call" | "unexpected_tool_call" | "malformed_tool_call" | "too_many_tool_calls" => {
                Self::MalformedCall
            }
            "model_context_window_exceeded" | "context_length_exceeded" | "context_window_exceeded" => {
                Self::ContextOverflow
            }
            _ => Self::Unknown,
        }
    }

    /// The meaning of a reason together with the upstream's own. Routers flatten what an upstream says (`length` to
    /// `tool_calls`, `MALFORMED_FUNCTION_CALL` to `stop`), so the upstream's word wins where it is the graver one.
    pub(crate) fn of_both(reason: &str, native: Option<&str>) -> Self {
        let told = Self::of(reason);
        let native = native.map_or(Self::Unknown, Self::of);
        match (told, native) {
            (
                Self::Stop | Self::ToolCalls | Self::Error | Self::Unknown,
                Self::Length | Self::ContentFilter | Self::MalformedCall | Self::ContextOverflow,
            ) => native,
            (Self::Unknown, Self::Stop | Self::ToolCalls) => native,
            (Self::Length, Self::ContextOverflow) => native,
            _ => told,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_d6_unusual_reasons() {
        for (reason, wanted) in [
            ("end", Finish::Stop),
            ("eos", Finish::Stop),
            ("eos_token", Finish::Stop),
            ("STOP", Finish::Stop),
            ("model_length", Finish::Length),
            ("MAX_TOKENS", Finish::Length),
            ("function_call", Finish::ToolCalls),
            ("network_error", Finish::Error),
            ("abort", Finish::Error),
            ("content_filter", Finish::ContentFilter),
            ("model_context_window_exceeded", Finish::ContextOverflow),
            ("something_new", Finish::Unknown),
        ] {
            assert_eq!(Finish::of(reason), wanted, "{reason}");
        }
    }

    #[test]
    fn case_d5_the_upstream_word_wins_where_it_is_graver() {
        for (reason, native, wanted) in [
            ("stop", "MALFORMED_FUNCTION_CALL", Finish::MalformedCall),
            ("error", "MALFORMED_FUNCTION_CALL", Finish::MalformedCall),
            ("stop", "SAFETY", Finish::ContentFilter),
            ("tool_calls", "MAX_TOKENS", Finish::Length),
            ("tool_calls", "STOP", Finish::ToolCalls),
            ("stop", "weird", Finish::Stop),
            ("length", "STOP", Finish::Length),
            ("content_filter", "refusal", Finish::ContentFilter),
            ("other", "end_turn", Finish::Stop),
        ] {
            assert_eq!(Finish::of_both(reason, Some(native)), wanted, "{reason}/{native}");
        }
    }
}
