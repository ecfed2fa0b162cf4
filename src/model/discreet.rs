//! Takes the configured credentials themselves out of a failure: the patterns of `redact` know their usual forms only, and
//! a provider may say any of them back.

use super::wire::Decoder;
use super::{Delta, Failure, Outcome};
use crate::model::call::StreamEnd;

/// A shorter part of a credential at the end of a text that was cut is no secret, bytes.
const CUT_BYTES_MIN: usize = 6;

/// A decoder whose failures have none of these texts.
pub struct Discreet {
    inner: Box<dyn Decoder>,
    secrets: Vec<String>,
}

impl Discreet {
    /// Wraps a decoder.
    pub fn new(inner: Box<dyn Decoder>, secrets: Vec<String>) -> Self {
        Self { inner, secrets }
    }
}

impl Decoder for Discreet {
    fn push(&mut self, bytes: &[u8], deltas: &mut Vec<Delta>) {
        self.inner.push(bytes, deltas);
    }

    fn events(&self) -> u64 {
        self.inner.events()
    }

    fn finished(&self) -> bool {
        self.inner.finished()
    }

    fn done(&self) -> bool {
        self.inner.done()
    }

    fn end(self: Box<Self>, end: StreamEnd) -> Outcome {
        match self.inner.end(end) {
            Outcome::Failed(failure) => {
                let message = without(&failure.message, &self.secrets);
                let mut partial = failure.partial;
                if let Some(partial) = partial.as_mut() {
                    partial.error = partial.error.take().map(|error| without(&error, &self.secrets));
                }
                Outcome::Failed(Failure { message, partial, ..failure })
            }
            answer @ Outcome::Answer(_) => answer,
        }
    }
}

/// The text without these credentials, and without the beginning of one where it was cut.
fn without(text: &str, secrets: &[String]) -> String {
    const INSTEAD: &str = "[redacted]";
    let mut clean = text.to_owned();
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        clean = clean.replace(secret.as_str(), INSTEAD);
        let cut = secret.char_indices().map(|(at, _)| at).rev().take_while(|at| *at >= CUT_BYTES_MIN);
        let beginning = cut.filter_map(|at| secret.get(..at)).find(|beginning| clean.ends_with(beginning));
        if let Some(rest) = beginning.and_then(|beginning| clean.strip_suffix(beginning)) {
            clean = format!("{rest}{INSTEAD}");
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_taken_out_whole_and_where_the_text_was_cut() {
        let secrets = ["hunter2-of-old".to_owned(), String::new()];
        for (given, wanted) in [
            ("key hunter2-of-old is wrong", "key [redacted] is wrong"),
            ("hunter2-of-oldhunter2-of-old", "[redacted][redacted]"),
            ("and then hunter2-of", "and then [redacted]"),
            ("and then hunt", "and then hunt"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(without(given, &secrets), wanted);
        }
    }
}
