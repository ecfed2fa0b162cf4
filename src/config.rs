//! The configuration: every variable of api.md, read once and checked.
//!
//! A bad value is an error that names its variable, never a default in silence. Variables that begin with `EXT_` belong
//! to extensions and are not read here. An empty value of an address, a secret or a JSON variable is the same as none,
//! since `wrangler.toml` cannot unset what it declares; an empty number is a bad value.

mod routing;
mod settings;
#[cfg(test)]
mod tests;
mod tiers;
mod timing;
mod token;

use std::fmt;

use serde_json::Value;

pub use routing::{Classifier, Risk, Routing, Rule, Size, TaskKind, When};
pub use settings::{AgentSettings, SYSTEM_PROMPT_CHARS_MAX, TOOL_NAME_CHARS_MAX, TOOLS_MAX};
pub use tiers::{Models, Price, Provider, Thinking, Tier, TierName, Tiers};
pub use timing::Timing;
pub use token::{ApiToken, Scope, TENANT_CHARS_MAX};

use crate::error::{ApiError, Code};
use crate::json::{self, Problem, ProblemKind};

/// Gives the value of a variable or secret.
pub type Vars<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// A secret. It prints as `[secret]`; [`Secret::expose`] is called at dispatch only.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[secret]")
    }
}

/// A variable with a bad value, or a missing one. The text never has the value, which may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The variable.
    pub variable: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl ConfigError {
    fn new(variable: &'static str, problem: impl Into<String>) -> Self {
        Self { variable, problem: problem.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.variable, self.problem)
    }
}
impl std::error::Error for ConfigError {}

impl From<ConfigError> for ApiError {
    fn from(error: ConfigError) -> Self {
        Self::because(Code::NotConfigured, error.to_string())
            .with("variable", error.variable)
            .with("problem", error.problem)
    }
}

closed_list! {
    /// `MODEL_PROVIDER`: which provider runs use.
    ModelProvider {
        Auto "auto": "OpenRouter first, Vertex when its day is used up.",
        Openrouter "openrouter": "OpenRouter only.",
        Vertex "vertex": "Vertex only.",
    }
}

/// `MAX_CALLS_PER_RUN`: model calls of one run, by tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallsPerRun {
    /// At haiku.
    pub haiku: u64,
    /// At sonnet.
    pub sonnet: u64,
    /// At opus.
    pub opus: u64,
}

impl CallsPerRun {
    /// The limit of this tier.
    pub fn of(self, tier: TierName) -> u64 {
        match tier {
            TierName::Haiku => self.haiku,
            TierName::Sonnet => self.sonnet,
            TierName::Opus => self.opus,
        }
    }
}

/// Everything that is configured. Its `Debug` shows no secret.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `AI_GATEWAY_BASE_URL`, without a slash at the end.
    pub gateway_base_url: Option<String>,
    /// `AI_GATEWAY_TOKEN`.
    pub gateway_token: Option<Secret>,
    /// `OPENROUTER_BASE_URL`, without a slash at the end; `None` is the gateway's path.
    pub openrouter_base_url: Option<String>,
    /// `OPENROUTER_API_KEY`; `None` is the gateway's stored key.
    pub openrouter_api_key: Option<Secret>,
    /// `OPENROUTER_TOKEN_URL`: where a short-lived bearer for `OPENROUTER_BASE_URL` is fetched. `POST`, answered by
    /// `{"access_token","expires_in"}` (seconds).
    pub openrouter_token_url: Option<String>,
    /// `VERTEX_PROJECT`.
    pub vertex_project: Option<String>,
    /// `VERTEX_LOCATION`, for entries of `TIERS` that name none.
    pub vertex_location: Option<String>,
    /// `VERTEX_SERVICE_ACCOUNT`, a JSON object; `None` is the gateway's stored key.
    pub vertex_service_account: Option<Secret>,
    /// `MODEL_PROVIDER`.
    pub model_provider: ModelProvider,
    /// `TIERS`.
    pub tiers: Tiers,
    /// `ROUTING`.
    pub routing: Routing,
    /// `WORKERS_AI_TOKEN`, for the classifier.
    pub workers_ai_token: Option<Secret>,
    /// `AGENT_DEFAULTS`.
    pub agent_defaults: AgentSettings,
    /// `AUTO_UNBLOCK`.
    pub auto_unblock: bool,
    /// `MAX_CALLS_PER_RUN`.
    pub calls_per_run_max: CallsPerRun,
    /// `DAILY_AGENT_CALLS`.
    pub daily_agent_calls_max: u64,
    /// `DAILY_OPENROUTER_CALLS`.
    pub daily_openrouter_calls_max: u64,
    /// `DAILY_SELF_CALLBACKS`.
    pub daily_self_callbacks_max: u64,
    /// `MAX_WORKING_AGENTS`; `None` is no cap.
    pub working_agents_max: Option<u64>,
    /// `RUNNER_URL`; `None` is no place to run commands in.
    pub runner_url: Option<String>,
    /// `API_TOKENS`, at least one.
    pub api_tokens: Vec<ApiToken>,
    /// `RETENTION_DAYS`; `None` keeps everything.
    pub retention_days: Option<u64>,
    /// Deadlines and intervals.
    pub timing: Timing,
}

/// The variables beside [`Timing::VARIABLES`].
pub const VARIABLES: &[&str] = &[
    "AI_GATEWAY_BASE_URL",
    "AI_GATEWAY_TOKEN",
    "OPENROUTER_BASE_URL",
    "OPENROUTER_API_KEY",
    "OPENROUTER_TOKEN_URL",
    "VERTEX_PROJECT",
    "VERTEX_LOCATION",
    "VERTEX_SERVICE_ACCOUNT",
    "MODEL_PROVIDER",
    "TIERS",
    "ROUTING",
    "WORKERS_AI_TOKEN",
    "AGENT_DEFAULTS",
    "AUTO_UNBLOCK",
    "MAX_CALLS_PER_RUN",
    "DAILY_AGENT_CALLS",
    "DAILY_OPENROUTER_CALLS",
    "DAILY_SELF_CALLBACKS",
    "MAX_WORKING_AGENTS",
    "RUNNER_URL",
    "API_TOKENS",
    "RETENTION_DAYS",
];

/// Calls, agents or days that a cap can be set to.
const CAP_MAX: u64 = 1_000_000_000;

impl Config {
    /// Reads and checks every variable.
    ///
    /// # Errors
    /// The first variable that is bad or missing; without `API_TOKENS` nothing is served (design section 9).
    pub fn from_vars(vars: &Vars<'_>) -> Result<Self, ConfigError> {
        let default_tiers = || parse("TIERS", Tiers::DEFAULT);
        let tiers = json_var(vars, "TIERS")?.map_or_else(default_tiers, Ok)?;
        let tiers = Tiers::read(&tiers).map_err(|problem| bad("TIERS", &problem))?;
        let routing = match json_var(vars, "ROUTING")? {
            Some(value) => Routing::read(&value, &tiers).map_err(|problem| bad("ROUTING", &problem))?,
            None => Routing::usual(&tiers),
        };
        let agent_defaults = match json_var(vars, "AGENT_DEFAULTS")? {
            Some(value) => {
                AgentSettings::read_defaults(&value, &tiers).map_err(|problem| bad("AGENT_DEFAULTS", &problem))?
            }
            None => AgentSettings::usual(&tiers),
        };
        let tokens = json_var(vars, "API_TOKENS")?
            .ok_or_else(|| ConfigError::new("API_TOKENS", "is not set; nothing is served without it"))?;
        Ok(Self {
            gateway_base_url: url(vars, "AI_GATEWAY_BASE_URL")?,
            gateway_token: secret(vars, "AI_GATEWAY_TOKEN")?,
            openrouter_base_url: url(vars, "OPENROUTER_BASE_URL")?,
            openrouter_api_key: secret(vars, "OPENROUTER_API_KEY")?,
            openrouter_token_url: url(vars, "OPENROUTER_TOKEN_URL")?,
            vertex_project: segment(vars, "VERTEX_PROJECT")?,
            vertex_location: segment(vars, "VERTEX_LOCATION")?,
            vertex_service_account: service_account(vars)?,
            model_provider: member(vars, "MODEL_PROVIDER", ModelProvider::ALL)?.unwrap_or(ModelProvider::Auto),
            tiers,
            routing,
            workers_ai_token: secret(vars, "WORKERS_AI_TOKEN")?,
            agent_defaults,
            auto_unblock: member(vars, "AUTO_UNBLOCK", &[("true", true), ("false", false)])?.unwrap_or(true),
            calls_per_run_max: calls_per_run(vars)?,
            daily_agent_calls_max: integer(vars, "DAILY_AGENT_CALLS", 0, CAP_MAX)?.unwrap_or(400),
            daily_openrouter_calls_max: integer(vars, "DAILY_OPENROUTER_CALLS", 0, CAP_MAX)?.unwrap_or(45),
            daily_self_callbacks_max: integer(vars, "DAILY_SELF_CALLBACKS", 0, CAP_MAX)?.unwrap_or(2_000),
            working_agents_max: integer(vars, "MAX_WORKING_AGENTS", 1, CAP_MAX)?,
            runner_url: url(vars, "RUNNER_URL")?,
            api_tokens: token::read(&tokens).map_err(|problem| bad("API_TOKENS", &problem))?,
            retention_days: integer(vars, "RETENTION_DAYS", 1, 36_500)?,
            timing: Timing::from_vars(vars)?,
        })
    }

    /// The tier of this name (`haiku`, `sonnet`, `opus`), when it is configured.
    pub fn tier(&self, name: &str) -> Option<&Tier> {
        let (_, name) = TierName::ALL.iter().find(|(text, _)| *text == name)?;
        self.tiers.get(*name)
    }
}

fn bad(variable: &'static str, problem: &Problem) -> ConfigError {
    let text = match &problem.kind {
        ProblemKind::Unknown(known) => format!("{}: unknown field; known: {}", problem.path, known.join(", ")),
        ProblemKind::Invalid | ProblemKind::TooLarge(..) => problem.to_string(),
    };
    ConfigError::new(variable, text)
}

fn parse(variable: &'static str, text: &str) -> Result<Value, ConfigError> {
    json::parse(text.as_bytes()).map_err(|problem| bad(variable, &problem))
}

/// The value, unless it is missing or blank.
fn present(vars: &Vars<'_>, variable: &str) -> Option<String> {
    vars(variable).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn json_var(vars: &Vars<'_>, variable: &'static str) -> Result<Option<Value>, ConfigError> {
    present(vars, variable).map(|text| parse(variable, &text)).transpose()
}

fn url(vars: &Vars<'_>, variable: &'static str) -> Result<Option<String>, ConfigError> {
    let Some(text) = present(vars, variable) else { return Ok(None) };
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let host = rest.and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or("");
    let odd = |char: char| char.is_whitespace() || char.is_control();
    if host.is_empty() || host.contains('@') || text.contains(odd) || text.contains(['?', '#', '{', '}']) {
        let problem = "must be an http:// or https:// address without credentials, query, fragment or {placeholder}";
        return Err(ConfigError::new(variable, problem));
    }
    Ok(Some(text.trim_end_matches('/').to_owned()))
}

fn secret(vars: &Vars<'_>, variable: &'static str) -> Result<Option<Secret>, ConfigError> {
    let Some(text) = present(vars, variable) else { return Ok(None) };
    // It becomes a header's value, and the platform's error for a bad one would print it.
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ConfigError::new(variable, "has white space or characters that a header cannot carry"));
    }
    Ok(Some(Secret(text)))
}

/// A name that becomes a part of an address.
fn segment(vars: &Vars<'_>, variable: &'static str) -> Result<Option<String>, ConfigError> {
    let Some(text) = present(vars, variable) else { return Ok(None) };
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte)) {
        return Err(ConfigError::new(variable, "may have letters, digits, hyphen, dot, underscore and colon only"));
    }
    Ok(Some(text))
}

fn service_account(vars: &Vars<'_>) -> Result<Option<Secret>, ConfigError> {
    const VARIABLE: &str = "VERTEX_SERVICE_ACCOUNT";
    let Some(text) = present(vars, VARIABLE) else { return Ok(None) };
    // Google adds fields to these files, so only those we need are looked at.
    let value = json::parse(text.as_bytes()).map_err(|_| ConfigError::new(VARIABLE, "is not valid JSON"))?;
    for field in ["client_email", "private_key"] {
        if value.get(field).and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(ConfigError::new(VARIABLE, format!("{field}: must be a string that is not empty")));
        }
    }
    Ok(Some(Secret(text)))
}

fn member<T: Copy>(
    vars: &Vars<'_>,
    variable: &'static str,
    list: &[(&'static str, T)],
) -> Result<Option<T>, ConfigError> {
    let Some(text) = vars(variable) else { return Ok(None) };
    let found = list.iter().find(|(name, _)| *name == text.trim());
    found.map(|(_, member)| Some(*member)).ok_or_else(|| {
        let names: Vec<&str> = list.iter().map(|(name, _)| *name).collect();
        ConfigError::new(variable, format!("must be one of {}", names.join(", ")))
    })
}

fn integer(vars: &Vars<'_>, variable: &'static str, min: u64, max: u64) -> Result<Option<u64>, ConfigError> {
    vars(variable).map(|text| whole_number(&text, variable, min, max)).transpose()
}

fn whole_number(text: &str, variable: &'static str, min: u64, max: u64) -> Result<u64, ConfigError> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| ConfigError::new(variable, format!("must be a whole number from {min} to {max}")))
}

fn calls_per_run(vars: &Vars<'_>) -> Result<CallsPerRun, ConfigError> {
    const VARIABLE: &str = "MAX_CALLS_PER_RUN";
    let Some(text) = vars(VARIABLE) else { return Ok(CallsPerRun { haiku: 16, sonnet: 32, opus: 32 }) };
    let numbers: Result<Vec<u64>, ConfigError> =
        text.split(',').map(|part| whole_number(part, VARIABLE, 1, CAP_MAX)).collect();
    match numbers?.as_slice() {
        [haiku, sonnet, opus] => Ok(CallsPerRun { haiku: *haiku, sonnet: *sonnet, opus: *opus }),
        _ => Err(ConfigError::new(VARIABLE, "must be three numbers, for haiku, sonnet and opus, such as 16,32,32")),
    }
}
