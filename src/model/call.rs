//! What is known of one model call apart from its bytes: who is asked, what it may cost, how the body ended.

use super::message::Usage;

/// US dollars per million tokens. Zero is a price too: a free model.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Prices {
    /// Prompt tokens that were not read from a cache.
    pub input_usd_per_million: f64,
    /// Completion tokens, reasoning included.
    pub output_usd_per_million: f64,
    /// Prompt tokens read from a cache.
    pub cached_usd_per_million: f64,
}

impl Prices {
    /// What this many tokens cost, US dollars.
    #[allow(clippy::cast_precision_loss)]
    pub fn cost_usd(&self, usage: &Usage) -> f64 {
        let part = |tokens: u64, price: f64| tokens as f64 * price / 1_000_000.0;
        part(usage.input_tokens, self.input_usd_per_million)
            + part(usage.output_tokens, self.output_usd_per_million)
            + part(usage.cached_tokens, self.cached_usd_per_million)
    }
}

/// The facts an outcome needs besides the deltas. It must be the same when stored deltas are folded again after a crash,
/// `now_ms` excepted: that only turns times of day into times to wait.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallContext {
    /// `openrouter` or another provider's name.
    pub provider: String,
    /// The model asked for; the answer may name another.
    pub model: String,
    /// The output limit sent with the request, tokens.
    pub output_tokens_max: Option<u64>,
    /// The model's context window, tokens: without it a silent overflow is not recognised.
    pub window_tokens: Option<u64>,
    /// Size of the request as sent, bytes: the input estimate when the provider tells no usage.
    pub prompt_bytes: u64,
    /// Prices, for when the provider tells no cost.
    pub prices: Prices,
    /// The time now, ms since 1970.
    pub now_ms: i64,
}

/// Status and headers of a provider's response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResponseHead {
    /// HTTP status.
    pub status: u16,
    /// The content type, when there was one.
    pub content_type: Option<String>,
    /// All headers; names in any case.
    pub headers: Vec<(String, String)>,
}

impl ResponseHead {
    /// True for 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// How a response's body ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// The body ended, or the driver stopped waiting for usage after the finish reason.
    Eof,
    /// We cut it. On Workers an abort looks like the end of the body, so the driver must check its signal first.
    Aborted,
    /// The transport failed, with its own words.
    Broken(String),
}
