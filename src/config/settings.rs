//! What an agent is set to: the body of `PUT /v1/agents/{id}`, and `AGENT_DEFAULTS` for those not yet configured.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::tiers::{Provider, Thinking, TierName, Tiers};
use crate::json::{At, Problem};

/// Characters of a system prompt.
pub const SYSTEM_PROMPT_CHARS_MAX: usize = 65_536;
/// Tools that an agent may name.
pub const TOOLS_MAX: usize = 128;
/// Characters of a tool's name, the least that the providers accept.
pub const TOOL_NAME_CHARS_MAX: usize = 64;

const FIELDS: &[&str] = &["system_prompt", "tier", "provider", "tools", "thinking"];

/// An agent's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentSettings {
    /// The system prompt.
    pub system_prompt: String,
    /// Its tier.
    pub tier: TierName,
    /// The provider it is pinned to; `None` leaves the choice to `MODEL_PROVIDER` and the quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,
    /// The tools it may use; `None` is all that are registered, an empty list none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Its thinking level; `None` is the tier's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
}

impl AgentSettings {
    /// What holds when `AGENT_DEFAULTS` is not set.
    pub(super) fn usual(tiers: &Tiers) -> Self {
        Self {
            system_prompt: "You are an agent. Do what you are asked with the tools you have, and say what you did."
                .to_owned(),
            tier: tiers.usual(),
            provider: None,
            tools: None,
            thinking: None,
        }
    }

    pub(super) fn read_defaults(value: &Value, tiers: &Tiers) -> Result<Self, Problem> {
        let place = At::root(value);
        let fields = place.fields(FIELDS)?;
        let usual = Self::usual(tiers);
        let tier = fields.optional("tier").map_or(Ok(usual.tier), |at| tiers.name_at(&at))?;
        let prompt = fields.optional("system_prompt").map(|at| read_prompt(&at)).transpose()?;
        Self::read_rest(&place, prompt.unwrap_or(usual.system_prompt), tier)
    }

    /// Reads the body of a request; whether the tier is configured is for [`super::Config::tier`] to say.
    pub fn read(value: &Value) -> Result<Self, Problem> {
        let place = At::root(value);
        let fields = place.fields(FIELDS)?;
        let prompt = read_prompt(&fields.required("system_prompt")?)?;
        let tier = fields.required("tier")?.one_of(TierName::ALL)?;
        Self::read_rest(&place, prompt, tier)
    }

    fn read_rest(place: &At<'_>, system_prompt: String, tier: TierName) -> Result<Self, Problem> {
        let fields = place.fields(FIELDS)?;
        Ok(Self {
            system_prompt,
            tier,
            provider: fields.optional("provider").map(|at| at.one_of(Provider::ALL)).transpose()?,
            tools: fields.optional("tools").map(|at| read_tools(&at)).transpose()?,
            thinking: fields.optional("thinking").map(|at| at.one_of(Thinking::ALL)).transpose()?,
        })
    }
}

fn read_prompt(place: &At<'_>) -> Result<String, Problem> {
    place.text(SYSTEM_PROMPT_CHARS_MAX).map(str::to_owned)
}

fn read_tools(list: &At<'_>) -> Result<Vec<String>, Problem> {
    let mut tools: Vec<String> = Vec::new();
    for place in list.items(TOOLS_MAX)? {
        let name = place.name(TOOL_NAME_CHARS_MAX)?;
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-') {
            return Err(place.problem("may have letters, digits, underscore and hyphen only"));
        }
        if tools.iter().any(|other| other == name) {
            return Err(place.problem("stands there twice"));
        }
        tools.push(name.to_owned());
    }
    Ok(tools)
}
