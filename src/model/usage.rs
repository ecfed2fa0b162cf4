//! Tokens and money as chat-completions servers count them.

use super::lenient::{count, number, object};
use super::message::Usage;
use serde_json::Value;

/// The usage of a frame: at the top level, or inside a choice (Moonshot). None when the frame tells none.
pub(crate) fn of_frame(frame: &Value) -> Option<Usage> {
    let inside = frame.get("choices").and_then(Value::as_array).and_then(|choices| choices.iter().find_map(read));
    read(frame).or(inside)
}

/// Reads `holder.usage`. Its cost is marked estimated when the provider tells none; [`Usage::cost_usd`] is then 0 and the
/// assembler fills it in from the prices.
fn read(holder: &Value) -> Option<Usage> {
    let usage = object(holder, "usage")?;
    let prompt = count(usage, "prompt_tokens").or_else(|| count(usage, "input_tokens"));
    let completion = count(usage, "completion_tokens").or_else(|| count(usage, "output_tokens"));
    let prompt_details = usage.get("prompt_tokens_details").or_else(|| usage.get("input_tokens_details"));
    let completion_details = usage.get("completion_tokens_details").or_else(|| usage.get("output_tokens_details"));
    let cached = prompt_details
        .and_then(|details| count(details, "cached_tokens"))
        .or_else(|| count(usage, "prompt_cache_hit_tokens"))
        .or_else(|| count(usage, "cached_tokens"));
    let cost = cost_usd(usage);
    if prompt.is_none() && completion.is_none() && cost.is_none() {
        return None;
    }
    let (prompt, cached) = (prompt.unwrap_or(0), cached.unwrap_or(0));
    Some(Usage {
        // The prompt count includes what was read from the cache (and what was written to it, which was not read).
        input_tokens: prompt.saturating_sub(cached),
        // The completion count includes reasoning: never add it.
        output_tokens: completion.unwrap_or(0),
        cached_tokens: cached.min(prompt),
        reasoning_tokens: completion_details.and_then(|details| count(details, "reasoning_tokens")).unwrap_or(0),
        cost_usd: cost.unwrap_or(0.0),
        estimated: cost.is_none(),
    })
}

/// What the provider says it cost. With an own key at OpenRouter the upstream's bill comes on top.
fn cost_usd(usage: &Value) -> Option<f64> {
    let money = |holder: &Value, key: &str| number(holder, key).filter(|dollars| *dollars >= 0.0);
    let details = usage.get("cost_details");
    let upstream = details.and_then(|details| money(details, "upstream_inference_cost")).or_else(|| {
        let prompt = details.and_then(|details| money(details, "upstream_inference_prompt_cost"))?;
        let completion = details.and_then(|details| money(details, "upstream_inference_completions_cost"))?;
        Some(prompt + completion)
    });
    let own_key = usage.get("is_byok").and_then(Value::as_bool).unwrap_or(false);
    match money(usage, "cost") {
        Some(cost) if own_key => Some(cost + upstream.unwrap_or(0.0)),
        Some(cost) => Some(cost),
        None => upstream,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn usage(usage: Value) -> Option<Usage> {
        of_frame(&json!({ "usage": usage }))
    }

    #[test]
    fn case_49_empty_usage_is_no_usage() {
        assert_eq!(usage(json!({})), None);
        assert_eq!(usage(Value::Null), None);
        assert_eq!(usage(json!([])), None);
        assert_eq!(usage(json!({"prompt_tokens": null})), None);
    }

    #[test]
    fn case_e1_usage_inside_the_choice() {
        let frame = json!({"choices": [null, {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}]});
        assert_eq!(of_frame(&frame).map(|usage| (usage.input_tokens, usage.output_tokens)), Some((3, 2)));
    }

    #[test]
    fn case_e2_where_cached_tokens_are() {
        for extra in [
            json!({"prompt_tokens_details": {"cached_tokens": 4}}),
            json!({"prompt_cache_hit_tokens": 4}),
            json!({"cached_tokens": 4, "prompt_tokens_details": null}),
        ] {
            let mut given = json!({"prompt_tokens": 10, "completion_tokens": 1});
            if let (Some(given), Some(extra)) = (given.as_object_mut(), extra.as_object()) {
                given.extend(extra.clone());
            }
            let read = usage(given).unwrap_or_default();
            assert_eq!((read.input_tokens, read.cached_tokens), (6, 4), "{extra}");
        }
    }

    #[test]
    fn case_e3_reasoning_is_part_of_completion() {
        let read = usage(json!({"prompt_tokens": 1, "completion_tokens": 10,
            "completion_tokens_details": {"reasoning_tokens": 7}}))
        .unwrap_or_default();
        assert_eq!((read.output_tokens, read.reasoning_tokens), (10, 7));
    }

    #[test]
    fn case_e4_more_cached_than_prompt_is_not_negative() {
        let read = usage(json!({"prompt_tokens": 3, "completion_tokens": 1, "cached_tokens": 9})).unwrap_or_default();
        assert_eq!((read.input_tokens, read.cached_tokens), (0, 3));
    }

    #[test]
    fn case_e5_cost_with_an_own_key() {
        let cost = |given: Value| usage(given).map(|usage| (usage.cost_usd, usage.estimated));
        let upstream = json!({"upstream_inference_cost": 0.5});
        assert_eq!(cost(json!({"cost": 0.1, "is_byok": true, "cost_details": upstream})), Some((0.6, false)));
        assert_eq!(cost(json!({"cost": 0.1, "is_byok": false, "cost_details": upstream})), Some((0.1, false)));
        assert_eq!(cost(json!({"cost": null, "cost_details": upstream})), Some((0.5, false)));
        let parts = json!({"upstream_inference_cost": null, "upstream_inference_prompt_cost": 0.25,
            "upstream_inference_completions_cost": 0.25});
        assert_eq!(cost(json!({"cost": null, "cost_details": parts})), Some((0.5, false)));
        assert_eq!(cost(json!({"prompt_tokens": 1})), Some((0.0, true)));
        assert_eq!(cost(json!({"prompt_tokens": 1, "cost": -1})), Some((0.0, true)));
        assert_eq!(cost(json!({"prompt_tokens": 1, "cost": "NaN"})), Some((0.0, true)));
    }

    #[test]
    fn numbers_as_strings_and_floats() {
        let read = usage(json!({"prompt_tokens": "13", "completion_tokens": 2.0})).unwrap_or_default();
        assert_eq!((read.input_tokens, read.output_tokens), (13, 2));
    }
}
