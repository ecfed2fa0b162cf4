//! `ROUTING`: which tier a Task gets.

use serde_json::Value;

use super::tiers::{TierName, Tiers};
use crate::json::{At, Problem};

closed_list! {
    /// The kind of work that a Task declares.
    TaskKind {
        Docs "docs": "Documentation.",
        Chore "chore": "Upkeep.",
        Code "code": "Code.",
        Review "review": "Review of other work.",
        Design "design": "Design.",
        Security "security": "Security.",
        Generic "generic": "None of these.",
    }
}

closed_list! {
    /// The risk that a Task declares.
    Risk {
        Low "low": "Little can go wrong.",
        Medium "medium": "Some can.",
        High "high": "Much can.",
    }
}

closed_list! {
    /// The size that a Task declares.
    Size {
        Small "s": "Small.",
        Medium "m": "Middling.",
        Large "l": "Large.",
    }
}

/// Rules or floors that are accepted.
const RULES_MAX: usize = 100;
/// Milliseconds that a classifier may be waited for.
const CLASSIFIER_TIMEOUT_MS_MAX: u64 = 60_000;

/// A condition on what a Task declares. A list that is `None` is not asked; one that is there must have the value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct When {
    /// Kinds that fit.
    pub kind: Option<Vec<TaskKind>>,
    /// Risks that fit.
    pub risk: Option<Vec<Risk>>,
    /// Sizes that fit.
    pub size: Option<Vec<Size>>,
}

impl When {
    /// Whether a Task that declares these fits. What it does not declare fits no list.
    pub fn fits(&self, kind: Option<TaskKind>, risk: Option<Risk>, size: Option<Size>) -> bool {
        fn within<T: PartialEq>(list: Option<&Vec<T>>, value: Option<T>) -> bool {
            list.is_none_or(|list| value.is_some_and(|value| list.contains(&value)))
        }
        within(self.kind.as_ref(), kind) && within(self.risk.as_ref(), risk) && within(self.size.as_ref(), size)
    }
}

/// A tier for the Tasks that fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Which Tasks.
    pub when: When,
    /// The tier; for a floor the least one.
    pub tier: TierName,
}

/// How the classifier's answer is used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Classifier {
    /// Below this probability its choice is not taken.
    pub min_probability: f64,
    /// How long it is waited for.
    pub timeout_ms: u64,
}

/// `ROUTING`, read and checked against `TIERS`.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// The tier when nothing else decides.
    pub default: TierName,
    /// The first that fits decides.
    pub rules: Vec<Rule>,
    /// Every one that fits raises.
    pub floors: Vec<Rule>,
    /// The classifier's part.
    pub classifier: Classifier,
}

impl Routing {
    /// What holds when the variable is not set: high risk is never below sonnet (design section 7).
    pub(super) fn usual(tiers: &Tiers) -> Self {
        let classifier = Classifier { min_probability: 0.5, timeout_ms: 3_000 };
        Self { default: tiers.usual(), rules: Vec::new(), floors: Self::usual_floors(tiers), classifier }
    }

    fn usual_floors(tiers: &Tiers) -> Vec<Rule> {
        let high_risk = When { risk: Some(vec![Risk::High]), ..When::default() };
        tiers.get(TierName::Sonnet).map(|tier| Rule { when: high_risk, tier: tier.name }).into_iter().collect()
    }

    pub(super) fn read(value: &Value, tiers: &Tiers) -> Result<Self, Problem> {
        let fields = At::root(value).fields(&["default", "rules", "floors", "classifier"])?;
        let usual = Self::usual(tiers);
        let rules = |name| fields.optional(name).map(|at| read_rules(&at, tiers)).transpose();
        Ok(Self {
            default: fields.optional("default").map_or(Ok(usual.default), |at| tiers.name_at(&at))?,
            rules: rules("rules")?.unwrap_or_default(),
            floors: rules("floors")?.unwrap_or(usual.floors),
            classifier: fields.optional("classifier").map_or(Ok(usual.classifier), |at| read_classifier(&at))?,
        })
    }
}

fn read_rules(list: &At<'_>, tiers: &Tiers) -> Result<Vec<Rule>, Problem> {
    let read = |entry: &At<'_>| {
        let fields = entry.fields(&["when", "tier"])?;
        Ok(Rule { when: read_when(&fields.required("when")?)?, tier: tiers.name_at(&fields.required("tier")?)? })
    };
    list.items(RULES_MAX)?.iter().map(read).collect()
}

fn read_when(entry: &At<'_>) -> Result<When, Problem> {
    let fields = entry.fields(&["kind", "risk", "size"])?;
    Ok(When {
        kind: fields.optional("kind").map(|at| read_list(&at, TaskKind::ALL)).transpose()?,
        risk: fields.optional("risk").map(|at| read_list(&at, Risk::ALL)).transpose()?,
        size: fields.optional("size").map(|at| read_list(&at, Size::ALL)).transpose()?,
    })
}

fn read_list<T: Copy>(place: &At<'_>, names: &[(&'static str, T)]) -> Result<Vec<T>, Problem> {
    place.items(names.len())?.iter().map(|at| at.one_of(names)).collect()
}

fn read_classifier(entry: &At<'_>) -> Result<Classifier, Problem> {
    let fields = entry.fields(&["min_probability", "timeout_ms"])?;
    Ok(Classifier {
        min_probability: fields.required("min_probability")?.number(0.0, 1.0)?,
        timeout_ms: fields.required("timeout_ms")?.integer(1, CLASSIFIER_TIMEOUT_MS_MAX)?,
    })
}
