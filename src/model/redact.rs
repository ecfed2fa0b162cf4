//! Takes credentials out of what providers say: some echo the key they refuse.

use super::lenient::head;
use regex_lite::Regex;
use std::sync::LazyLock;

/// What is searched of a text, bytes. Words shown are cut shorter than this, so a key that this cut splits is never shown.
const SEARCHED_BYTES_MAX: usize = 8 * 1024;

const PATTERNS: [(&str, &str); 6] = [
    (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=*-]{6,}", "$1 [redacted]"),
    (r"\b(?:sk|pk|rk)-[A-Za-z0-9_*.-]{4,}", "[redacted]"),
    (r"\bAIza[A-Za-z0-9_-]{16,}", "[redacted]"),
    (r"\bya29\.[A-Za-z0-9._-]{6,}", "[redacted]"),
    (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9._-]{8,}", "[redacted]"),
    (
        r#"(?i)((?:api[_ -]?key|x-goog-api-key|access[_-]?token|auth[_-]?token|private[_-]?key|client[_-]?secret|secret|password|authorization)["'\\]*\s*(?:[:=]|provided:|is)\s*["'\\]*)[A-Za-z0-9._~+/=*-]{8,}"#,
        "$1[redacted]",
    ),
];

static REGEXES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    PATTERNS.iter().filter_map(|(pattern, with)| Regex::new(pattern).ok().map(|regex| (regex, *with))).collect()
});

/// At most `bytes` bytes of `text`, without credentials.
pub(crate) fn redact(text: &str, bytes: usize) -> String {
    let mut clean = head(text, SEARCHED_BYTES_MAX).to_owned();
    for (regex, with) in REGEXES.iter() {
        if regex.is_match(&clean) {
            clean = regex.replace_all(&clean, *with).into_owned();
        }
    }
    head(&clean, bytes).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        assert_eq!(REGEXES.len(), PATTERNS.len());
    }

    #[test]
    fn credentials_are_taken_out_and_the_rest_kept() {
        for (given, wanted) in [
            ("header Authorization: Bearer abc.DEF-123456 refused", "header Authorization: Bearer [redacted] refused"),
            ("Incorrect API key provided: sk-proj-abc***xyz9.", "Incorrect API key provided: [redacted]"),
            ("key=AIzaSyA1234567890abcdefghij x", "key=[redacted] x"),
            ("token ya29.a0AfH6SMBx end", "token [redacted] end"),
            (r#"{"api_key":"0123456789abcdef"}"#, r#"{"api_key":"[redacted]"}"#),
            ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "jwt [redacted]"),
            ("max_tokens is 4096, task-list sk-", "max_tokens is 4096, task-list sk-"),
        ] {
            assert_eq!(redact(given, 2048), wanted);
        }
    }

    #[test]
    fn the_result_is_bounded_also_when_a_key_lies_on_the_border() {
        let text = format!("{} sk-{}", "x".repeat(2040), "k".repeat(100));
        let clean = redact(&text, 2048);
        assert!(clean.len() <= 2048 && !clean.contains("kkk"), "{clean}");
    }
}
