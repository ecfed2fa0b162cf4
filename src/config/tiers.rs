//! `TIERS`: which models a tier stands for, at which provider and price.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::json::{At, Problem};

closed_list! {
    /// A tier of model strength, weakest first.
    TierName {
        Haiku "haiku": "Quick and cheap.",
        Sonnet "sonnet": "The middle.",
        Opus "opus": "The strongest.",
    }
}

closed_list! {
    /// Where model calls go.
    Provider {
        Openrouter "openrouter": "OpenRouter, or any server that speaks chat completions.",
        Vertex "vertex": "Vertex AI.",
    }
}

closed_list! {
    /// How much a model is to reason before it answers.
    Thinking {
        Off "off": "Not at all, where the model allows it.",
        Minimal "minimal": "As little as the model allows.",
        Low "low": "A little.",
        Medium "medium": "Some.",
        High "high": "Much.",
        Xhigh "xhigh": "As much as the model allows.",
    }
}

/// Models of a fallback list that are accepted.
const MODELS_MAX: usize = 8;
/// Characters of a model id or location.
const MODEL_CHARS_MAX: usize = 200;
/// Tokens of a context window that are believed.
const TOKENS_MAX: u64 = 100_000_000;
/// US dollars per million tokens that are believed.
const PRICE_USD_MAX: f64 = 100_000.0;

/// US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Price {
    /// Prompt tokens.
    pub input_usd: f64,
    /// Completion tokens.
    pub output_usd: f64,
    /// Prompt tokens read from a cache.
    pub cached_usd: f64,
}

/// What a tier is at one provider.
#[derive(Debug, Clone, PartialEq)]
pub struct Models {
    /// Model ids in order of preference, at least one. Vertex has exactly one.
    pub ids: Vec<String>,
    /// Vertex's location of the model, when the entry has one of its own.
    pub location: Option<String>,
    /// Tokens of the context window, the least of the list.
    pub context_tokens: u64,
    /// Tokens an answer may have.
    pub output_tokens_max: u64,
    /// What it costs.
    pub price: Price,
}

/// One tier; it has models of at least one provider.
#[derive(Debug, Clone, PartialEq)]
pub struct Tier {
    /// Which.
    pub name: TierName,
    /// Its models at OpenRouter.
    pub openrouter: Option<Models>,
    /// Its model at Vertex.
    pub vertex: Option<Models>,
    /// Its thinking level, unless an agent or hook says otherwise.
    pub thinking: Option<Thinking>,
}

impl Tier {
    /// The tier's models at this provider.
    pub fn at(&self, provider: Provider) -> Option<&Models> {
        match provider {
            Provider::Openrouter => self.openrouter.as_ref(),
            Provider::Vertex => self.vertex.as_ref(),
        }
    }
}

/// The tiers that are configured, at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct Tiers(BTreeMap<TierName, Tier>);

impl Tiers {
    /// The variable's value when it is not set.
    pub(super) const DEFAULT: &str = include_str!("tiers_default.json");

    pub(super) fn read(value: &Value) -> Result<Self, Problem> {
        let fields = At::root(value).fields(&["haiku", "sonnet", "opus"])?;
        let mut tiers = BTreeMap::new();
        for (text, name) in TierName::ALL {
            if let Some(entry) = fields.optional(text) {
                tiers.insert(*name, read_tier(&entry, *name)?);
            }
        }
        if tiers.is_empty() {
            return Err(Problem::invalid("", "has no tier; at least one of haiku, sonnet, opus is needed"));
        }
        Ok(Self(tiers))
    }

    /// The tier of this name, when it is configured.
    pub fn get(&self, name: TierName) -> Option<&Tier> {
        self.0.get(&name)
    }

    /// The next stronger tier that is configured: where escalation goes.
    pub fn above(&self, name: TierName) -> Option<&Tier> {
        self.0.values().find(|tier| tier.name > name)
    }

    /// All configured tiers, weakest first.
    pub fn iter(&self) -> impl Iterator<Item = &Tier> {
        self.0.values()
    }

    /// Sonnet, or the weakest there is: what an agent gets when nothing says otherwise.
    pub(super) fn usual(&self) -> TierName {
        let first = self.0.keys().next().copied().unwrap_or(TierName::Sonnet);
        if self.0.contains_key(&TierName::Sonnet) { TierName::Sonnet } else { first }
    }

    /// Reads a tier's name, which must be one that is configured.
    pub(super) fn name_at(&self, place: &At<'_>) -> Result<TierName, Problem> {
        let name = place.one_of(TierName::ALL)?;
        if self.0.contains_key(&name) { Ok(name) } else { Err(place.problem("is not among TIERS")) }
    }
}

fn read_tier(entry: &At<'_>, name: TierName) -> Result<Tier, Problem> {
    let fields = entry.fields(&["openrouter", "vertex", "thinking"])?;
    let tier = Tier {
        name,
        openrouter: fields.optional("openrouter").map(|at| read_openrouter(&at)).transpose()?,
        vertex: fields.optional("vertex").map(|at| read_vertex(&at)).transpose()?,
        thinking: fields.optional("thinking").map(|at| at.one_of(Thinking::ALL)).transpose()?,
    };
    if tier.openrouter.is_none() && tier.vertex.is_none() {
        return Err(entry.problem("needs openrouter or vertex"));
    }
    Ok(tier)
}

fn read_openrouter(entry: &At<'_>) -> Result<Models, Problem> {
    let fields = entry.fields(&["models", "context", "max_output", "price"])?;
    let list = fields.required("models")?;
    let places = list.items(MODELS_MAX)?;
    let ids: Result<Vec<String>, Problem> =
        places.iter().map(|at| at.name(MODEL_CHARS_MAX).map(str::to_owned)).collect();
    let ids = ids?;
    if ids.is_empty() {
        return Err(list.problem("needs at least one model"));
    }
    let (context_tokens, output_tokens_max, price) = read_sizes(&fields)?;
    Ok(Models { ids, location: None, context_tokens, output_tokens_max, price })
}

fn read_vertex(entry: &At<'_>) -> Result<Models, Problem> {
    let fields = entry.fields(&["model", "location", "context", "max_output", "price"])?;
    let ids = vec![fields.required("model")?.name(MODEL_CHARS_MAX)?.to_owned()];
    let location = fields.optional("location").map(|at| at.name(MODEL_CHARS_MAX).map(str::to_owned)).transpose()?;
    let (context_tokens, output_tokens_max, price) = read_sizes(&fields)?;
    Ok(Models { ids, location, context_tokens, output_tokens_max, price })
}

fn read_sizes(fields: &crate::json::Fields<'_>) -> Result<(u64, u64, Price), Problem> {
    let context = fields.required("context")?.integer(1, TOKENS_MAX)?;
    let output = fields.required("max_output")?;
    let output_tokens = output.integer(1, TOKENS_MAX)?;
    if output_tokens > context {
        return Err(output.problem("is larger than context"));
    }
    Ok((context, output_tokens, fields.optional("price").map_or(Ok(Price::default()), |at| read_price(&at))?))
}

fn read_price(entry: &At<'_>) -> Result<Price, Problem> {
    let fields = entry.fields(&["in", "out", "cached"])?;
    let input_usd = fields.required("in")?.number(0.0, PRICE_USD_MAX)?;
    let output_usd = fields.required("out")?.number(0.0, PRICE_USD_MAX)?;
    let cached = fields.optional("cached").map(|at| at.number(0.0, PRICE_USD_MAX)).transpose()?;
    // Without a price of its own a cached token counts as any other, so that cost is never told too low.
    Ok(Price { input_usd, output_usd, cached_usd: cached.unwrap_or(input_usd) })
}
