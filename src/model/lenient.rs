//! Reading JSON that others wrote: accessors for which `null`, an empty string and a missing field are the same, and the
//! repair of damage that changes no meaning.

use serde_json::Value;
use std::fmt::Write;

/// What [`repair`] mends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    /// Inside strings only: raw control characters, bad escapes, halves of surrogate pairs.
    Strings,
    /// Also `NaN` and `Infinity` outside strings, which become null: fit for a frame, not for a tool's arguments.
    StringsAndNumbers,
}

/// Parses a frame, mending it when it does not parse as it stands. None when it is no JSON.
pub(crate) fn parse_frame(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().or_else(|| serde_json::from_str(&repair(text, Damage::StringsAndNumbers)).ok())
}

/// Mends lexical damage. It closes nothing: truncated JSON stays truncated.
pub(crate) fn repair(text: &str, damage: Damage) -> String {
    let mut out = String::with_capacity(text.len().saturating_add(16));
    let mut chars = text.chars();
    let mut in_string = false;
    while let Some(char) = chars.next() {
        match char {
            '"' => {
                in_string = !in_string;
                out.push('"');
            }
            '\\' if in_string => chars = repair_escape(chars.as_str(), &mut out).chars(),
            control if in_string && control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            'N' | 'I' | '-' if !in_string && damage == Damage::StringsAndNumbers => {
                let rest = chars.as_str();
                let word = match char {
                    'N' => rest.strip_prefix("aN"),
                    'I' => rest.strip_prefix("nfinity"),
                    _ => rest.strip_prefix("Infinity"),
                };
                match word {
                    Some(after) => {
                        out.push_str("null");
                        chars = after.chars();
                    }
                    None => out.push(char),
                }
            }
            other => out.push(other),
        }
    }
    out
}

/// Writes the escape that follows a backslash, mended, and gives what comes after it.
fn repair_escape<'a>(rest: &'a str, out: &mut String) -> &'a str {
    let mut chars = rest.chars();
    match chars.next() {
        // The end of a truncated text: leave it truncated.
        None => {
            out.push('\\');
            rest
        }
        Some(known @ ('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't')) => {
            out.push('\\');
            out.push(known);
            chars.as_str()
        }
        Some('u') => match hex4(chars.as_str()) {
            Some((unit, after)) => match unit {
                0xD800..=0xDBFF => match after.strip_prefix("\\u").and_then(hex4) {
                    Some((low @ 0xDC00..=0xDFFF, after_low)) => {
                        let _ = write!(out, "\\u{unit:04x}\\u{low:04x}");
                        after_low
                    }
                    _ => {
                        out.push_str("\\ufffd");
                        after
                    }
                },
                0xDC00..=0xDFFF => {
                    out.push_str("\\ufffd");
                    after
                }
                _ => {
                    let _ = write!(out, "\\u{unit:04x}");
                    after
                }
            },
            None if chars.as_str().len() < 4 && chars.as_str().chars().all(|char| char.is_ascii_hexdigit()) => {
                out.push_str("\\u");
                chars.as_str()
            }
            None => {
                out.push_str("\\\\u");
                chars.as_str()
            }
        },
        // `\q`: the backslash was meant as itself.
        Some(_) => {
            out.push_str("\\\\");
            rest
        }
    }
}

fn hex4(text: &str) -> Option<(u32, &str)> {
    let digits = text.get(..4)?;
    if !digits.chars().all(|char| char.is_ascii_hexdigit()) {
        return None;
    }
    Some((u32::from_str_radix(digits, 16).ok()?, text.get(4..)?))
}

/// Nesting of what a model or provider may give us to keep. What is kept is wrapped on its way, and read again with the
/// limit of `serde_json`, 128: what was stored deeper could never be read.
pub(crate) const KEPT_DEPTH_MAX: usize = 64;

/// Whether arrays and objects are nested deeper than `levels`.
pub(crate) fn deeper_than(value: &Value, levels: usize) -> bool {
    let below = |value: &Value| levels.checked_sub(1).is_none_or(|levels| deeper_than(value, levels));
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(below),
        Value::Object(fields) => levels == 0 || fields.values().any(below),
        _ => false,
    }
}

/// The non-empty string under `key`.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// The object under `key`, unless it is empty.
pub(crate) fn object<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|value| value.as_object().is_some_and(|object| !object.is_empty()))
}

/// The elements of the array under `key`; none when there is no array.
pub(crate) fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A finite number, or a string that spells one.
pub(crate) fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
    .filter(|number: &f64| number.is_finite())
}

/// The finite number under `key`, or the string that spells one.
pub(crate) fn number(value: &Value, key: &str) -> Option<f64> {
    value.get(key).and_then(number_of)
}

/// The count under `key`: fractions are cut, negative counts are zero.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(crate) fn count(value: &Value, key: &str) -> Option<u64> {
    // `as` saturates: no float is out of its range.
    number(value, key).map(|number| number.max(0.0) as u64)
}

/// The longest start of `text` of at most `bytes` bytes.
pub(crate) fn head(text: &str, bytes: usize) -> &str {
    if text.len() <= bytes {
        return text;
    }
    let mut end = bytes;
    while end > 0 && !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn case_b14_control_characters_and_bad_escapes() {
        let mended = repair("{\"text\":\"line1\nline2\\q\"}", Damage::Strings);
        assert_eq!(serde_json::from_str::<Value>(&mended).unwrap(), json!({"text": "line1\nline2\\q"}));
    }

    #[test]
    fn case_196_halves_of_surrogate_pairs_are_replaced_and_whole_pairs_kept() {
        for (given, wanted) in [
            (r#""a\ud83db""#, "a\u{fffd}b"),
            (r#""\ude00""#, "\u{fffd}"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
            (r#""\ud83d\u0041""#, "\u{fffd}A"),
            (r#""\u12zz""#, "\\u12zz"),
            (r#""\u0000""#, "\0"),
        ] {
            assert_eq!(parse_frame(given), Some(Value::from(wanted)), "{given}");
        }
    }

    #[test]
    fn truncated_json_stays_truncated() {
        for text in ["{\"a", "{\"a\\", "{\"a\\u12", "{\"a\\ud83d", "{\"a\": {"] {
            assert!(serde_json::from_str::<Value>(&repair(text, Damage::Strings)).unwrap_err().is_eof(), "{text}");
        }
    }

    #[test]
    fn no_number_becomes_null_in_frames_only() {
        assert_eq!(
            parse_frame(r#"{"cost":NaN,"b":-Infinity,"c":Infinity,"d":"NaN","e":-1}"#),
            Some(json!({"cost": null, "b": null, "c": null, "d": "NaN", "e": -1}))
        );
        assert!(serde_json::from_str::<Value>(&repair("{\"a\":NaN}", Damage::Strings)).is_err());
    }

    #[test]
    fn absent_null_and_empty_are_the_same() {
        for value in [json!({}), json!({"k": null}), json!({"k": ""})] {
            assert_eq!(text(&value, "k"), None);
        }
        assert_eq!(text(&Value::Null, "k"), None);
        assert_eq!(count(&json!({"k": "12"}), "k"), Some(12));
        assert_eq!(count(&json!({"k": 12.7}), "k"), Some(12));
        assert_eq!(count(&json!({"k": -3}), "k"), Some(0));
        assert_eq!(count(&json!({"k": 1e300}), "k"), Some(u64::MAX));
        assert_eq!(count(&json!({"k": "NaN"}), "k"), None);
    }

    #[test]
    fn head_cuts_between_characters() {
        assert_eq!(head("aé", 2), "a");
        assert_eq!(head("aé", 3), "aé");
        assert_eq!(head("é", 0), "");
    }
}
