//! Which call a piece of a tool call belongs to, and what its arguments are in the end.
//!
//! Providers disagree about identity: some reuse index 0 for parallel calls, some change the id inside one call, some send
//! neither. The order is id, index, position; a kind switch never closes a call; a prefix that parses is no sign of an end.
//! Arguments go into two buffers, one that appends and one that lets a cumulative snapshot replace what it extends, and the
//! choice between them is made once, when all has come.

use super::lenient::{Damage, repair};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A piece of a tool call. Absent and empty are the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) index: Option<i64>,
    pub(crate) id: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
    pub(crate) arguments: &'a str,
}

/// A call as it stands.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slot {
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    index: Option<i64>,
    appended: Buffer,
    /// None while it would be the same as `appended`.
    snapshot: Option<Buffer>,
    /// Opened by a bare repetition of the name: without arguments it was that repetition, not a call.
    weak: bool,
}

/// What a call's arguments came to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Arguments {
    /// An object.
    Object(Value),
    /// Cut off before its end.
    Truncated,
    /// No object; why, for the model.
    Invalid(String),
}

impl Slot {
    /// True for something that never became a call: nothing but an id, or nothing at all.
    pub(crate) fn is_phantom(&self) -> bool {
        self.arguments_blank() && (self.name.is_none() || self.weak)
    }

    /// Bytes of name and arguments.
    pub(crate) fn bytes(&self) -> usize {
        self.name.as_ref().map_or(0, String::len).saturating_add(self.latest().text.len())
    }

    /// The arguments. Called once, at the end.
    pub(crate) fn arguments(&self) -> Arguments {
        let texts = [Some(self.appended.text.as_str()), self.snapshot.as_ref().map(|buffer| buffer.text.as_str())];
        arguments_of(texts.into_iter().flatten())
    }

    fn latest(&self) -> &Buffer {
        self.snapshot.as_ref().unwrap_or(&self.appended)
    }

    fn arguments_blank(&self) -> bool {
        self.appended.text.trim().is_empty()
    }

    fn is_complete(&self) -> bool {
        self.appended.scan.is_complete() || self.latest().scan.is_complete()
    }

    /// The same arguments once more.
    fn repeats(&self, arguments: &str) -> bool {
        let arguments = arguments.trim();
        !arguments.is_empty() && (self.appended.text.trim() == arguments || self.latest().text.trim() == arguments)
    }

    /// True when `piece`, which names a tool, begins another call although it carries this call's id or index.
    fn is_followed_by(&self, piece: &Piece<'_>) -> bool {
        let Some(name) = piece.name else { return false };
        let Some(own) = &self.name else { return false };
        if own != name {
            return true;
        }
        let arguments = piece.arguments.trim_start();
        self.is_complete() && (arguments.is_empty() || arguments.starts_with('{')) && !self.repeats(arguments)
    }

    fn add(&mut self, piece: &Piece<'_>) {
        if self.id.is_none() {
            self.id = piece.id.map(str::to_owned);
        }
        if self.name.is_none() {
            self.name = piece.name.map(str::to_owned);
        }
        if self.index.is_none() {
            self.index = piece.index;
        }
        let arguments = piece.arguments;
        if arguments.is_empty() {
            return;
        }
        match &mut self.snapshot {
            Some(snapshot) if arguments.starts_with(&snapshot.text) => *snapshot = Buffer::of(arguments),
            Some(snapshot) => snapshot.append(arguments),
            None if !self.appended.text.is_empty() && arguments.starts_with(&self.appended.text) => {
                self.snapshot = Some(Buffer::of(arguments));
            }
            None => {}
        }
        self.appended.append(arguments);
    }
}

/// The calls of one message.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls {
    slots: Vec<Slot>,
    by_id: BTreeMap<String, usize>,
    by_index: BTreeMap<i64, usize>,
    last: Option<usize>,
}

impl Calls {
    /// The calls in the order they began.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Adds a piece; true when it began a new call, which is then the last of [`Calls::slots`].
    pub(crate) fn add(&mut self, piece: &Piece<'_>) -> bool {
        if piece.id.is_none() && piece.name.is_none() && piece.arguments.is_empty() {
            return false;
        }
        let found = self.find(piece);
        let at = found.unwrap_or(self.slots.len());
        if found.is_none() {
            let other_index = piece.index.is_some_and(|index| !self.by_index.contains_key(&index));
            let repeated_name = piece.id.is_none()
                && !other_index
                && piece.arguments.trim().is_empty()
                && self.slots.last().is_some_and(|slot| slot.name.as_deref() == piece.name);
            self.slots.push(Slot { weak: repeated_name, ..Slot::default() });
        }
        if let Some(slot) = self.slots.get_mut(at) {
            slot.add(piece);
        }
        if let Some(id) = piece.id {
            self.by_id.insert(id.to_owned(), at);
        }
        if let Some(index) = piece.index {
            self.by_index.insert(index, at);
        }
        self.last = Some(at);
        found.is_none()
    }

    /// The call this piece belongs to; None when it begins one.
    fn find(&self, piece: &Piece<'_>) -> Option<usize> {
        let indexed = piece.index.and_then(|index| self.by_index.get(&index)).copied();
        let slot = |at: usize| self.slots.get(at);
        let continues = |at: usize| slot(at).filter(|slot| !slot.is_followed_by(piece)).map(|_| at);
        let Some(id) = piece.id else {
            return match (indexed, piece.index) {
                (Some(at), _) => continues(at),
                (None, Some(_)) => None,
                (None, None) => self.find_by_position(piece),
            };
        };
        if let Some(at) = indexed
            && slot(at).is_some_and(|slot| slot.id.as_deref() == Some(id))
        {
            return self.same_id(at, piece);
        }
        if let Some(at) = self.by_id.get(id).copied() {
            let other_index = slot(at).is_some_and(|slot| {
                piece.index.is_some() && slot.index.is_some() && piece.index != slot.index && slot.is_complete()
            });
            return if other_index && piece.name.is_some() { None } else { self.same_id(at, piece) };
        }
        if let Some(at) = indexed {
            let known = slot(at)?;
            if known.id.is_none() {
                return continues(at);
            }
            // Another id at a known index: a new call if it has a name and the call so far could stand alone, else the
            // provider changed the id inside one call.
            let begins = piece.name.is_some()
                && (known.is_complete() || known.arguments_blank() || known.name.as_deref() != piece.name);
            return (!begins).then_some(at);
        }
        if piece.index.is_some() {
            return None;
        }
        // An unknown id without an index: the late id of a call without one, or the changed id of an unfinished call.
        let at = self.last?;
        let last = slot(at)?;
        let late = last.id.is_none() && (last.name.is_none() || piece.name.is_none());
        let changed = piece.name.is_none() && !last.arguments_blank() && !last.is_complete();
        (late || changed).then_some(at)
    }

    /// Two whole, different calls may carry one id.
    fn same_id(&self, at: usize, piece: &Piece<'_>) -> Option<usize> {
        let slot = self.slots.get(at)?;
        let mut scan = Scan::default();
        scan.feed(piece.arguments);
        let another = piece.name.is_some()
            && slot.is_complete()
            && slot.appended.text.trim() != "{}"
            && scan.is_complete()
            && !slot.repeats(piece.arguments);
        (!another).then_some(at)
    }

    fn find_by_position(&self, piece: &Piece<'_>) -> Option<usize> {
        let at = self.last?;
        let last = self.slots.get(at)?;
        let Some(name) = piece.name else { return Some(at) };
        let Some(own) = &last.name else { return Some(at) };
        // A name begins a call, unless it is repeated with each piece of one.
        let arguments = piece.arguments.trim_start();
        let repeated = own == name
            && ((!last.arguments_blank() && !last.is_complete() && !arguments.starts_with('{'))
                || last.repeats(arguments));
        repeated.then_some(at)
    }
}

#[derive(Debug, Clone, Default)]
struct Buffer {
    text: String,
    scan: Scan,
}

impl Buffer {
    fn of(text: &str) -> Self {
        let mut buffer = Self::default();
        buffer.append(text);
        buffer
    }

    fn append(&mut self, text: &str) {
        self.scan.feed(text);
        self.text.push_str(text);
    }
}

/// Tells whether brackets opened so far are closed, without looking at anything twice.
#[derive(Debug, Clone, Default)]
struct Scan {
    depth: u32,
    in_string: bool,
    escaped: bool,
    closed: bool,
    trailing: bool,
}

impl Scan {
    fn feed(&mut self, text: &str) {
        for byte in text.bytes() {
            if self.closed {
                self.trailing |= !byte.is_ascii_whitespace();
            } else if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                    b'}' | b']' => {
                        self.depth = self.depth.saturating_sub(1);
                        self.closed = self.depth == 0;
                    }
                    _ => {}
                }
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.closed && !self.trailing
    }
}

fn arguments_of<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Arguments {
    let Some(first) = texts.clone().next().map(str::trim).filter(|text| !text.is_empty() && *text != "null") else {
        return Arguments::Object(Value::Object(Map::new()));
    };
    if let Some(object) = texts.clone().find_map(object_of) {
        return Arguments::Object(object);
    }
    // Some send `{}` first and the real arguments after it.
    if let Some(object) = first.strip_prefix("{}").and_then(object_of) {
        return Arguments::Object(object);
    }
    let mut truncated = false;
    let mut problem = None;
    for text in texts {
        let mended = repair(text, Damage::Strings);
        match first_value(&mended) {
            Ok((value @ Value::Object(_), rest)) if !rest.contains('{') => return Arguments::Object(value),
            Ok((Value::Object(_), _)) => {
                problem = problem.or(Some("they hold more than one JSON object".to_owned()));
            }
            Ok((Value::String(inner), "")) => match object_of(&inner) {
                Some(object) => return Arguments::Object(object),
                None => problem = problem.or(Some("they are a string, not a JSON object".to_owned())),
            },
            Ok(_) => problem = problem.or(Some("they are not a JSON object".to_owned())),
            Err(error) if error.is_eof() => truncated = true,
            Err(error) => problem = problem.or(Some(error.to_string())),
        }
    }
    if truncated {
        return Arguments::Truncated;
    }
    Arguments::Invalid(problem.unwrap_or_else(|| "they are not a JSON object".to_owned()))
}

fn object_of(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().filter(Value::is_object)
}

/// The first value of a text, and what follows it.
fn first_value(text: &str) -> Result<(Value, &str), serde_json::Error> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Ok((value, text.get(values.byte_offset()..).unwrap_or_default().trim())),
        Some(Err(error)) => Err(error),
        None => Ok((Value::Null, "")),
    }
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
