//! JSON that comes from outside: strict parsing, reading with a path in every problem, and a canonical form.
//!
//! serde's derived errors name no path and do not tell an unknown field from a bad one, and `Value` keeps the last of two
//! equal keys in silence. Both matter at the edge (api.md: 400 naming the field), so bodies and variables are read here.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Nesting of arrays and objects that is accepted: enough for any schema, small beside the stack of a wasm instance.
pub const DEPTH_MAX: usize = 64;

/// What is wrong with a JSON document, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The field, such as `images[0].data`; empty for the document itself.
    pub path: String,
    /// What is wrong, without the offending value (which may be a secret).
    pub problem: String,
    /// What kind of problem it is.
    pub kind: ProblemKind,
}

/// The kind of a [`Problem`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProblemKind {
    /// Not JSON, a missing field, a wrong type or a value out of range.
    Invalid,
    /// A field that is not known; these are.
    Unknown(&'static [&'static str]),
    /// Above a limit, which is this many of this unit.
    TooLarge(usize, &'static str),
}

impl Problem {
    /// A value that is not as it should be.
    pub fn invalid(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into(), kind: ProblemKind::Invalid }
    }

    /// A value above its limit of `limit` `unit`s.
    pub fn too_large(path: impl Into<String>, limit: usize, unit: &'static str) -> Self {
        let problem = format!("is above the limit of {limit} {unit}");
        Self { path: path.into(), problem, kind: ProblemKind::TooLarge(limit, unit) }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => formatter.write_str(&self.problem),
            path => write!(formatter, "{path}: {}", self.problem),
        }
    }
}
impl std::error::Error for Problem {}

/// Parses one document. Refuses a key given twice, nesting deeper than [`DEPTH_MAX`], and whatever is not JSON in UTF-8
/// (NaN, lone surrogates, trailing text).
pub fn parse(bytes: &[u8]) -> Result<Value, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|_| Problem::invalid("", "is not UTF-8"))?;
    if text.trim().is_empty() {
        return Err(Problem::invalid("", "is empty; JSON is wanted"));
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = Strict { depth: 0 }.deserialize(&mut deserializer);
    parsed
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|error| Problem::invalid("", format!("is not valid JSON: {error}")))
}

/// Builds a `Value` and refuses what `Value` itself would swallow.
struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: de::Error>(&self) -> Result<Self, E> {
        let depth = self.depth.saturating_add(1);
        if depth > DEPTH_MAX {
            return Err(E::custom(format_args!("nested deeper than {DEPTH_MAX}")));
        }
        Ok(Self { depth })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut found = Vec::new();
        while let Some(item) = items.next_element_seed(self.deeper()?)? {
            found.push(item);
        }
        Ok(Value::Array(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut found = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            // serde_json parses the content of such a key when the stored text is read again as a `Value`.
            if key.starts_with("$serde_json::") {
                return Err(de::Error::custom("a reserved key"));
            }
            let value = entries.next_value_seed(self.deeper()?)?;
            if found.contains_key(&key) {
                return Err(de::Error::custom(format_args!("the key {:?} stands there twice", child("", &key))));
            }
            found.insert(key, value);
        }
        Ok(Value::Object(found))
    }
}

/// The name of a value's JSON type, with its article.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A place in a document: a value and the path to it.
#[derive(Debug, Clone)]
pub struct At<'a> {
    /// The value.
    pub value: &'a Value,
    /// The path, such as `images[0].data`.
    pub path: String,
}

impl<'a> At<'a> {
    /// The document itself.
    pub fn root(value: &'a Value) -> Self {
        Self { value, path: String::new() }
    }

    /// A problem at this place.
    pub fn problem(&self, problem: impl Into<String>) -> Problem {
        Problem::invalid(self.path.clone(), problem)
    }

    fn wanted(&self, what: &str) -> Problem {
        self.problem(format!("must be {what}, not {}", type_name(self.value)))
    }

    /// The object here, of which only these fields may exist.
    pub fn fields(&self, known: &'static [&'static str]) -> Result<Fields<'a>, Problem> {
        let object = self.object()?;
        if let Some(field) = object.keys().find(|key| !known.contains(&key.as_str())) {
            let path = child(&self.path, field);
            let problem = format!("is not known here; known: {}", known.join(", "));
            return Err(Problem { path, problem, kind: ProblemKind::Unknown(known) });
        }
        Ok(Fields { object, path: self.path.clone() })
    }

    /// The object here, whatever its fields.
    pub fn object(&self) -> Result<&'a Map<String, Value>, Problem> {
        self.value.as_object().ok_or_else(|| self.wanted("an object"))
    }

    /// The items of the array here, at most `items_max`.
    pub fn items(&self, items_max: usize) -> Result<Vec<At<'a>>, Problem> {
        let items = self.value.as_array().ok_or_else(|| self.wanted("an array"))?;
        if items.len() > items_max {
            return Err(Problem::too_large(self.path.clone(), items_max, "items"));
        }
        let place = |(index, value)| At { value, path: format!("{}[{index}]", self.path) };
        Ok(items.iter().enumerate().map(place).collect())
    }

    /// The string here, at most `chars_max` characters.
    pub fn text(&self, chars_max: usize) -> Result<&'a str, Problem> {
        let text = self.value.as_str().ok_or_else(|| self.wanted("a string"))?;
        // Bytes first: counting characters of a huge text is work that the limit is there to save.
        if text.len() > chars_max && text.chars().count() > chars_max {
            return Err(Problem::too_large(self.path.clone(), chars_max, "characters"));
        }
        Ok(text)
    }

    /// The string here, not empty, without control characters, at most `chars_max` characters: a name or an id.
    pub fn name(&self, chars_max: usize) -> Result<&'a str, Problem> {
        let text = self.text(chars_max)?;
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(self.problem("must not be empty or have control characters"));
        }
        Ok(text)
    }

    /// The boolean here.
    pub fn boolean(&self) -> Result<bool, Problem> {
        self.value.as_bool().ok_or_else(|| self.wanted("true or false"))
    }

    /// The whole number here, within `min..=max`.
    pub fn integer(&self, min: u64, max: u64) -> Result<u64, Problem> {
        let found = self.value.as_u64().filter(|number| (min..=max).contains(number));
        found.ok_or_else(|| self.problem(format!("must be a whole number from {min} to {max}")))
    }

    /// The number here, within `min..=max`.
    pub fn number(&self, min: f64, max: f64) -> Result<f64, Problem> {
        let found = self.value.as_f64().filter(|number| (min..=max).contains(number));
        found.ok_or_else(|| self.problem(format!("must be a number from {min} to {max}")))
    }

    /// The member of a closed list whose name stands here.
    pub fn one_of<T: Copy>(&self, list: &[(&'static str, T)]) -> Result<T, Problem> {
        let found = self.value.as_str().and_then(|text| list.iter().find(|(name, _)| *name == text));
        found.map(|(_, member)| *member).ok_or_else(|| {
            let names: Vec<&str> = list.iter().map(|(name, _)| *name).collect();
            self.problem(format!("must be one of {}", names.join(", ")))
        })
    }
}

/// The fields of an object, all of them known.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The field, which must be there. `null` counts as a value.
    pub fn required(&self, name: &str) -> Result<At<'a>, Problem> {
        let value = self.object.get(name);
        let path = child(&self.path, name);
        match value {
            Some(value) => Ok(At { value, path }),
            None => Err(Problem::invalid(path, "is missing")),
        }
    }

    /// The field, unless it is missing or `null`.
    pub fn optional(&self, name: &str) -> Option<At<'a>> {
        let value = self.object.get(name).filter(|value| !value.is_null())?;
        Some(At { value, path: child(&self.path, name) })
    }
}

fn child(path: &str, name: &str) -> String {
    // A key from outside may be of any length and hold anything; it goes into messages and the log.
    let name: String = name.chars().take(64).map(|char| if char.is_control() { '?' } else { char }).collect();
    if path.is_empty() { name } else { format!("{path}.{name}") }
}

/// The canonical text of a value by RFC 8785: keys sorted by UTF-16, no white space, one form for each number.
///
/// Integers beyond 2^53 keep their digits instead of being rounded as the RFC would.
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => write_number(float, text),
            None => text.push_str(&number.to_string()),
        },
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_canonical(item, text);
            }
            text.push(']');
        }
        Value::Object(object) => {
            let mut entries: Vec<(&String, &Value)> = object.iter().collect();
            entries.sort_by(|(left, _), (right, _)| left.encode_utf16().cmp(right.encode_utf16()));
            text.push('{');
            for (index, (key, item)) in entries.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write_canonical(item, text);
            }
            text.push('}');
        }
        Value::Null | Value::Bool(_) | Value::String(_) => text.push_str(&value.to_string()),
    }
}

/// A float as ECMAScript's `Number::toString` writes it.
fn write_number(float: f64, text: &mut String) {
    let magnitude = float.abs();
    if magnitude == 0.0 {
        text.push('0');
    } else if (1e-6..1e21).contains(&magnitude) {
        // Rust's `{}` never uses an exponent and prints the shortest digits that read back as the same number.
        text.push_str(&float.to_string());
    } else {
        let scientific = format!("{float:e}");
        text.push_str(&if scientific.contains("e-") { scientific } else { scientific.replace('e', "e+") });
    }
}

/// SHA-256 in lower-case hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    use std::fmt::Write;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        // Writing to a `String` does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
