use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::*;

fn tokens() -> String {
    json!([{"sha256": "ab".repeat(32), "tenant": "acme", "scopes": ["read", "write"]}]).to_string()
}

fn config(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let mut vars: BTreeMap<String, String> = BTreeMap::from([("API_TOKENS".to_owned(), tokens())]);
    vars.extend(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    Config::from_vars(&|name| vars.get(name).cloned())
}

fn problem(variable: &str, value: &str) -> String {
    let error = config(&[(variable, value)]).expect_err(value);
    assert_eq!(error.variable, variable, "{error}");
    error.problem
}

#[test]
fn with_tokens_only_everything_has_its_default() {
    let config = config(&[]).unwrap();
    assert_eq!(config.tiers.iter().count(), 3);
    for name in ["haiku", "sonnet", "opus"] {
        let tier = config.tier(name).unwrap();
        assert!(tier.openrouter.as_ref().unwrap().ids.iter().all(|id| id.ends_with("free")));
        assert!(tier.at(Provider::Vertex).unwrap().ids[0].starts_with("gemini-"));
    }
    assert_eq!(config.tier("Haiku"), None);
    assert_eq!(config.tiers.above(TierName::Sonnet).unwrap().name, TierName::Opus);
    assert_eq!(config.tiers.above(TierName::Opus), None);
    assert_eq!(config.calls_per_run_max.of(TierName::Haiku), 16);
    assert_eq!((config.daily_agent_calls_max, config.daily_openrouter_calls_max), (400, 45));
    assert_eq!(config.timing, Timing::default());
    assert_eq!(config.timing.liveness_interval_ms, 60_000);
    assert_eq!(config.agent_defaults.tier, TierName::Sonnet);
    assert!(config.auto_unblock && config.working_agents_max.is_none());
}

#[test]
fn exactly_the_listed_variables_are_read() {
    let asked = RefCell::new(BTreeSet::new());
    let vars = |name: &str| {
        asked.borrow_mut().insert(name.to_owned());
        (name == "API_TOKENS").then(tokens)
    };
    Config::from_vars(&vars).unwrap();
    let listed: BTreeSet<String> =
        VARIABLES.iter().copied().chain(Timing::VARIABLES.iter().map(|(name, _)| *name)).map(str::to_owned).collect();
    assert_eq!(asked.into_inner(), listed);
}

#[test]
fn without_tokens_nothing_is_configured() {
    for value in [None, Some(""), Some("  "), Some("[]")] {
        let error = Config::from_vars(&|name| value.filter(|_| name == "API_TOKENS").map(str::to_owned)).unwrap_err();
        assert_eq!(error.variable, "API_TOKENS");
        let error = ApiError::from(error);
        assert_eq!((error.code, error.code.status()), (Code::NotConfigured, 503));
        assert_eq!(error.details["variable"], "API_TOKENS");
    }
}

#[test]
fn a_bad_value_names_its_variable_and_place() {
    for (variable, value, part) in [
        ("API_TOKENS", "{", "not valid JSON"),
        ("API_TOKENS", r#"[{"sha256":"sk-secret","tenant":"a","scopes":["read"]}]"#, "[0].sha256: must be the SHA-256"),
        ("TIERS", "haiku", "not valid JSON"),
        ("TIERS", "{}", "has no tier"),
        (
            "TIERS",
            r#"{"haiku":{"openrouter":{"models":[],"context":1,"max_output":1}}}"#,
            "haiku.openrouter.models: needs",
        ),
        (
            "TIERS",
            r#"{"haiku":{"openrouter":{"models":["a"],"context":9,"max_output":10}}}"#,
            "haiku.openrouter.max_output: is larger",
        ),
        ("TIERS", r#"{"haiku":{"openrouter":{"models":["a"],"contxt":9}}}"#, "haiku.openrouter.contxt: unknown field"),
        ("TIERS", r#"{"haiku":{"thinking":"low"}}"#, "haiku: needs openrouter or vertex"),
        ("TIERS", r#"{"haiku":{},"haiku":{}}"#, "twice"),
        ("ROUTING", r#"{"default":"mythos"}"#, "default: must be one of haiku, sonnet, opus"),
        (
            "ROUTING",
            r#"{"rules":[{"when":{"kind":["doc"]},"tier":"haiku"}]}"#,
            "rules[0].when.kind[0]: must be one of docs",
        ),
        ("ROUTING", r#"{"classifier":{"min_probability":1.5,"timeout_ms":1}}"#, "classifier.min_probability: must be"),
        ("AGENT_DEFAULTS", r#"{"tools":["a b"]}"#, "tools[0]: may have"),
        ("AGENT_DEFAULTS", r#"{"prompt":"x"}"#, "prompt: unknown field"),
        ("MODEL_PROVIDER", "openai", "must be one of auto, openrouter, vertex"),
        ("AUTO_UNBLOCK", "yes", "must be one of true, false"),
        ("MAX_CALLS_PER_RUN", "16,32", "three numbers"),
        ("MAX_CALLS_PER_RUN", "16,x,32", "whole number"),
        ("DAILY_AGENT_CALLS", "-1", "whole number"),
        ("DAILY_AGENT_CALLS", "", "whole number"),
        ("MAX_WORKING_AGENTS", "0", "from 1"),
        ("LIVENESS_INTERVAL_MS", "1e3", "whole number from 1"),
        ("CALL_TIMEOUT_MS", "99999999999999999999999", "whole number"),
        ("STREAM_BATCH_BYTES", "0", "from 1 to 1048576"),
        ("AI_GATEWAY_BASE_URL", "gateway.example", "http://"),
        ("AI_GATEWAY_BASE_URL", "https://gateway.ai.cloudflare.com/v1/{account}/{gateway}", "placeholder"),
        ("OPENROUTER_BASE_URL", "https://user:secret@host/", "credentials"),
        ("OPENROUTER_API_KEY", "two words", "white space"),
        ("VERTEX_PROJECT", "a/b", "letters"),
        ("VERTEX_SERVICE_ACCOUNT", r#"{"client_email":"a@b"}"#, "private_key"),
    ] {
        let text = problem(variable, value);
        assert!(text.contains(part), "{variable}={value}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn case_local_server_with_one_tier() {
    let tiers = r#"{"haiku":{"openrouter":{"models":["local"],"context":4096,"max_output":512}}}"#;
    let config = config(&[
        ("TIERS", tiers),
        ("OPENROUTER_BASE_URL", "http://127.0.0.1:8080/v1/"),
        ("OPENROUTER_TOKEN_URL", "http://127.0.0.1:8081/token"),
        ("MODEL_PROVIDER", "openrouter"),
        ("LIVENESS_INTERVAL_MS", "50"),
    ])
    .unwrap();
    assert_eq!(config.openrouter_base_url.as_deref(), Some("http://127.0.0.1:8080/v1"));
    assert_eq!(config.agent_defaults.tier, TierName::Haiku);
    assert_eq!(config.routing.default, TierName::Haiku);
    assert!(config.routing.floors.is_empty());
    assert_eq!(config.tier("haiku").unwrap().at(Provider::Openrouter).unwrap().price, Price::default());
    assert_eq!(config.timing.liveness_interval_ms, 50);
    assert_eq!(config.model_provider, ModelProvider::Openrouter);
}

#[test]
fn a_tier_that_is_not_configured_cannot_be_named() {
    let tiers = r#"{"haiku":{"openrouter":{"models":["local"],"context":4096,"max_output":512}}}"#;
    let error = config(&[("TIERS", tiers), ("AGENT_DEFAULTS", r#"{"tier":"opus"}"#)]).unwrap_err();
    assert_eq!(error.to_string(), "AGENT_DEFAULTS: tier: is not among TIERS");
}

#[test]
fn routing_of_the_shapes_page_is_read() {
    let routing = r#"{"default":"sonnet","rules":[{"when":{"kind":["docs","chore"],"size":["s"]},"tier":"haiku"}],
        "floors":[{"when":{"risk":["high"]},"tier":"sonnet"}],"classifier":{"min_probability":0.5,"timeout_ms":3000}}"#;
    let routing = config(&[("ROUTING", routing)]).unwrap().routing;
    let when = &routing.rules[0].when;
    assert!(when.fits(Some(TaskKind::Docs), None, Some(Size::Small)));
    assert!(!when.fits(Some(TaskKind::Docs), None, None));
    assert!(!when.fits(Some(TaskKind::Code), Some(Risk::Low), Some(Size::Small)));
    assert_eq!(routing.floors, config(&[]).unwrap().routing.floors);
}

#[test]
fn debug_prints_no_secret() {
    let config = config(&[
        ("AI_GATEWAY_TOKEN", "hunter2-gateway"),
        ("OPENROUTER_API_KEY", "hunter2-openrouter"),
        ("WORKERS_AI_TOKEN", "hunter2-workers"),
        ("VERTEX_SERVICE_ACCOUNT", r#"{"client_email":"hunter2@x","private_key":"hunter2"}"#),
    ])
    .unwrap();
    let text = format!("{config:?}");
    assert!(!text.contains("hunter2") && !text.contains("abab"), "{text}");
    assert_eq!(config.gateway_token.unwrap().expose(), "hunter2-gateway");
}
