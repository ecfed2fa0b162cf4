//! How long a provider asks us to wait, in all the places where one says so.

use super::lenient::{array, number, number_of, text};
use chrono::{DateTime, NaiveDateTime};
use serde_json::Value;

/// A wait longer than this is a matter of quota, not of retrying (design R6), ms.
pub(crate) const WAIT_MS_MAX: u64 = 120_000;
/// Longer waits than a year are nonsense, ms.
const NONSENSE_MS: f64 = 366.0 * 24.0 * 3_600_000.0;
const DAY_MS: i64 = 24 * 3_600_000;

/// The wait asked for, ms. `errors` are error objects, the outermost first.
pub(crate) fn wait_ms(headers: &[(String, String)], errors: &[&Value], now_ms: i64) -> Option<u64> {
    let first = |read: &dyn Fn(&Value) -> Option<u64>| errors.iter().find_map(|error| read(error));
    header(headers, "retry-after-ms")
        .and_then(|value| value.trim().parse().ok())
        .and_then(whole_ms)
        .or_else(|| header(headers, "retry-after").and_then(|value| retry_after(value, now_ms)))
        .or_else(|| first(&|error| seconds(error.get("availability")?, "retry_after")))
        .or_else(|| first(&|error| in_metadata(error, now_ms)))
        .or_else(|| header(headers, "x-ratelimit-reset").and_then(|value| reset(value.trim().parse().ok()?, now_ms)))
        .or_else(|| first(&retry_info))
        .or_else(|| first(&|error| seconds(error, "retry_after")))
}

/// Until the next midnight UTC, when daily counts begin anew, ms.
pub(crate) fn until_midnight_ms(now_ms: i64) -> u64 {
    let passed = now_ms.rem_euclid(DAY_MS);
    u64::try_from(DAY_MS.saturating_sub(passed)).unwrap_or(0)
}

/// The `X-RateLimit-Limit` that OpenRouter puts into the body.
pub(crate) fn limit_in_metadata(error: &Value) -> Option<f64> {
    header_in_body(error.get("metadata")?.get("headers")?, "x-ratelimit-limit").and_then(number_of)
}

pub(crate) fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

fn header_in_body<'a>(headers: &'a Value, name: &str) -> Option<&'a Value> {
    headers.as_object()?.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn in_metadata(error: &Value, now_ms: i64) -> Option<u64> {
    let metadata = error.get("metadata")?;
    let headers = metadata.get("headers");
    let named = |name: &str| headers.and_then(|headers| header_in_body(headers, name));
    named("retry-after")
        .and_then(|value| match value {
            Value::String(text) => retry_after(text, now_ms),
            other => number_of(other).and_then(|seconds| whole_ms(seconds * 1_000.0)),
        })
        .or_else(|| named("x-ratelimit-reset").and_then(number_of).and_then(|at| reset(at, now_ms)))
        .or_else(|| seconds(metadata, "retry_after"))
        .or_else(|| seconds(metadata, "retry_after_seconds"))
}

fn seconds(holder: &Value, key: &str) -> Option<u64> {
    number(holder, key).and_then(|seconds| whole_ms(seconds * 1_000.0))
}

/// Seconds, possibly with a fraction, or an HTTP date.
fn retry_after(value: &str, now_ms: i64) -> Option<u64> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return whole_ms(seconds * 1_000.0);
    }
    let at = DateTime::parse_from_rfc2822(value).map(|at| at.timestamp_millis()).ok().or_else(|| {
        // The two older forms of HTTP dates.
        let forms = ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];
        let at = forms.iter().find_map(|form| NaiveDateTime::parse_from_str(value, form).ok())?;
        Some(at.and_utc().timestamp_millis())
    })?;
    u64::try_from(at.saturating_sub(now_ms)).ok().filter(|wait| *wait > 0)
}

/// A time to reset at: ms since 1970, or seconds when it is too small for that, or seconds from now when too small for both.
#[allow(clippy::cast_precision_loss)]
fn reset(at: f64, now_ms: i64) -> Option<u64> {
    let wait = match at {
        at if at >= 1e11 => at - now_ms as f64,
        at if at >= 1e9 => at * 1_000.0 - now_ms as f64,
        at => at * 1_000.0,
    };
    whole_ms(wait).filter(|wait| *wait > 0)
}

/// Google's `RetryInfo`: `"34s"`, `"34.074824224s"`.
fn retry_info(error: &Value) -> Option<u64> {
    array(error, "details").iter().find_map(|detail| {
        let delay = text(detail, "retryDelay")?;
        let seconds: f64 = delay.strip_suffix('s').unwrap_or(delay).trim().parse().ok()?;
        whole_ms(seconds * 1_000.0)
    })
}

/// Rounded up. None for what is negative, not finite or absurd.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole_ms(ms: f64) -> Option<u64> {
    (ms.is_finite() && ms >= 0.0).then(|| ms.ceil().min(NONSENSE_MS) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: i64 = 1_777_380_000_000;

    fn headers(name: &str, value: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), value.to_owned())]
    }

    #[test]
    fn headers_in_all_their_forms() {
        for (name, value, wanted) in [
            ("Retry-After-Ms", "1500", Some(1_500)),
            ("retry-after", "2", Some(2_000)),
            ("Retry-After", " 1.5 ", Some(1_500)),
            ("retry-after", "-3", None),
            ("retry-after", "NaN", None),
            ("retry-after", "soon", None),
            ("retry-after", "Tue, 28 Apr 2026 12:40:30 GMT", Some(30_000)),
            ("retry-after", "Tuesday, 28-Apr-26 12:40:30 GMT", Some(30_000)),
            ("retry-after", "Tue Apr 28 12:40:30 2026", Some(30_000)),
            ("retry-after", "Tue, 28 Apr 2026 12:39:30 GMT", None),
            ("x-ratelimit-reset", "1777380010000", Some(10_000)),
            ("x-ratelimit-reset", "1777380010", Some(10_000)),
            ("x-ratelimit-reset", "7", Some(7_000)),
            ("retry-after", "1e300", Some(31_622_400_000)),
        ] {
            assert_eq!(wait_ms(&headers(name, value), &[], NOW), wanted, "{name}: {value}");
        }
    }

    #[test]
    fn bodies_in_all_their_forms() {
        for (error, wanted) in [
            (json!({"availability": {"retry_after": 3}}), Some(3_000)),
            (json!({"metadata": {"headers": {"X-RateLimit-Reset": "1777380020000"}}}), Some(20_000)),
            (json!({"metadata": {"headers": {"x-ratelimit-reset": 1_777_380_020_i64}}}), Some(20_000)),
            (json!({"metadata": {"headers": {"Retry-After": "4"}}}), Some(4_000)),
            (json!({"metadata": {"headers": null, "retry_after_seconds": 6}}), Some(6_000)),
            (json!({"details": [{"@type": "x"}, {"retryDelay": "34.5s"}]}), Some(34_500)),
            (json!({"metadata": {"headers": {"X-RateLimit-Reset": "1"}}}), Some(1_000)),
            (json!({"metadata": {"headers": {"X-RateLimit-Reset": "1700000000000"}}}), None),
            (json!({}), None),
        ] {
            assert_eq!(wait_ms(&[], &[&error], NOW), wanted, "{error}");
        }
    }

    #[test]
    fn headers_outrank_the_body() {
        let error = json!({"availability": {"retry_after": 3}});
        assert_eq!(wait_ms(&headers("retry-after", "9"), &[&error], NOW), Some(9_000));
    }

    #[test]
    fn midnight_is_in_utc() {
        assert_eq!(until_midnight_ms(0), 86_400_000);
        assert_eq!(until_midnight_ms(86_399_999), 1);
        assert_eq!(until_midnight_ms(-1), 1);
    }
}
