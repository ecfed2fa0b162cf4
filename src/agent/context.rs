//! What a model is sent: the transcript as text fragments, encoded once and joined for each request.

use crate::log::{events_after, seq_of};
use crate::model::encode::Fragment;
use crate::model::message::Message;
use crate::model::wire::Wire;
use crate::port::{SqlError, Tx};
use serde_json::Value;
use std::rc::Rc;

/// The encoded transcript of one agent for one wire format, kept in memory. Only committed rows enter it, so that a
/// transaction that rolls back leaves it right; when it is lost it is read again.
#[derive(Debug, Default)]
pub(super) struct ContextCache {
    provider: String,
    up_to_seq: i64,
    fragments: Vec<Rc<Fragment>>,
}

impl ContextCache {
    /// All fragments up to the last committed row.
    pub(super) fn refresh(
        &mut self,
        tx: &dyn Tx,
        provider: &str,
        wire: &dyn Wire,
    ) -> Result<Vec<Rc<Fragment>>, SqlError> {
        if self.provider != provider {
            *self = Self { provider: provider.to_owned(), ..Self::default() };
        }
        loop {
            let page = events_after(tx, self.up_to_seq, PAGE_EVENTS)?;
            self.fragments.extend(page.events.iter().filter_map(|event| fragment_of(event, wire)));
            self.up_to_seq = page.events.last().map_or(self.up_to_seq, seq_of);
            if !page.more {
                return Ok(self.fragments.clone());
            }
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

const PAGE_EVENTS: usize = 256;

/// The fragment of an event, when it is an entry that is sent.
pub(super) fn fragment_of(event: &Value, wire: &dyn Wire) -> Option<Rc<Fragment>> {
    if event.get("type").and_then(Value::as_str) != Some("entry") {
        return None;
    }
    let message = event.get("entry")?.get("message")?;
    let message: Message = serde::Deserialize::deserialize(message).ok()?;
    wire.fragment(&message).map(Rc::new)
}
