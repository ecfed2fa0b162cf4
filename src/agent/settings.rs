//! Intervals, limits and models of the machine, from the configuration.

use super::state::AgentConfig;
use crate::config::{AgentSettings, Config, ModelProvider, Tier};
use crate::config::{Models, Provider};
use crate::model::call::Prices;
use crate::model::wire::Target;

/// What the machine decides by.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The configuration of an agent not seen before.
    pub defaults: AgentConfig,
    /// The provider of a run whose agent pins none: `openrouter` or `vertex`.
    pub provider: String,
    /// How far ahead the alarm stands while work is in flight, ms.
    pub alarm_ahead_ms: i64,
    /// How long a stop waits for what ignores its signal, ms.
    pub stop_grace_ms: i64,
    /// First bound of the backoff, ms.
    pub retry_base_ms: u64,
    /// Largest bound of the backoff, ms.
    pub retry_max_ms: u64,
    /// Retries of one call.
    pub retries_max: u32,
    /// A wait longer than this is a quota matter, not a retry (design R6), ms.
    pub retry_wait_max_ms: u64,
    /// How long a tool may run unless it says otherwise, ms.
    pub tool_timeout_ms: u64,
    /// Requests one run may dispatch, for haiku, sonnet and opus.
    pub calls_max: [u32; 3],
    /// The model of each tier and provider.
    pub targets: Vec<Target>,
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Self {
        let timing = &config.timing;
        let limits = config.calls_per_run_max;
        let provider = match config.model_provider {
            ModelProvider::Auto | ModelProvider::Openrouter => Provider::Openrouter,
            ModelProvider::Vertex => Provider::Vertex,
        };
        Self {
            defaults: AgentConfig::from(&config.agent_defaults),
            provider: provider.name().to_owned(),
            alarm_ahead_ms: signed(timing.alarm_ahead_ms),
            stop_grace_ms: signed(timing.stop_grace_ms),
            retry_base_ms: timing.retry_base_ms,
            retry_max_ms: timing.retry_max_ms,
            retries_max: small(timing.retry_count_max),
            retry_wait_max_ms: timing.retry_wait_max_ms,
            tool_timeout_ms: timing.tool_timeout_ms,
            calls_max: [small(limits.haiku), small(limits.sonnet), small(limits.opus)],
            targets: config.tiers.iter().flat_map(targets_of).collect(),
        }
    }
}

impl From<&AgentSettings> for AgentConfig {
    fn from(settings: &AgentSettings) -> Self {
        Self {
            system_prompt: settings.system_prompt.clone(),
            tier: settings.tier.name().to_owned(),
            provider: settings.provider.map(|provider| provider.name().to_owned()),
            tools: settings.tools.clone(),
            thinking: settings.thinking.map(|thinking| thinking.name().to_owned()),
        }
    }
}

fn targets_of(tier: &Tier) -> Vec<Target> {
    let target = |provider: Provider, models: &Models| Target {
        provider: provider.name().to_owned(),
        tier: tier.name.name().to_owned(),
        models: models.ids.clone(),
        context_tokens: models.context_tokens,
        max_output_tokens: models.output_tokens_max,
        thinking: tier.thinking.map(|thinking| thinking.name().to_owned()),
        prices: Prices {
            input_usd_per_million: models.price.input_usd,
            output_usd_per_million: models.price.output_usd,
            cached_usd_per_million: models.price.cached_usd,
        },
    };
    [Provider::Openrouter, Provider::Vertex]
        .into_iter()
        .filter_map(|provider| tier.at(provider).map(|models| target(provider, models)))
        .collect()
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
