//! Checking a value against a compiled schema.

use std::cmp::Ordering;

use serde_json::{Number, Value};

use super::{Node, NodeId, Schema, Type, VIOLATIONS_MAX, Violation, pointer};
use crate::json::type_name;

/// Schemas within schemas that are followed for one value: the stack of a wasm instance is small.
const CHECK_DEPTH_MAX: usize = 256;
/// Steps of one check: schemas that share parts can need a number of steps that grows as a power of two.
const STEPS_MAX: u32 = 1_000_000;
/// Characters of a value or a list of names that a text shows.
const SHOWN_CHARS_MAX: usize = 300;
/// Alternatives whose problem a text shows.
const SHOWN_ALTERNATIVES_MAX: usize = 5;

pub(super) fn check(schema: &Schema, value: &Value) -> Result<(), Vec<Violation>> {
    let mut steps_left = STEPS_MAX;
    let mut found = Found { violations: Vec::new(), max: VIOLATIONS_MAX };
    Check { schema, steps_left: &mut steps_left, found: &mut found }.node(0, value, &Path::Root, 0);
    if found.violations.is_empty() { Ok(()) } else { Err(found.violations) }
}

/// The place of a value, made into text only when there is something to say about it.
enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl Path<'_> {
    fn text(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Key(parent, key) => pointer(&parent.text(), &shorten(key)),
            Self::Index(parent, index) => pointer(&parent.text(), &index.to_string()),
        }
    }
}

struct Found {
    violations: Vec<Violation>,
    max: usize,
}

impl Found {
    fn full(&self) -> bool {
        self.violations.len() >= self.max
    }

    fn add(&mut self, path: &Path<'_>, problem: impl Into<String>) {
        if !self.full() {
            self.violations.push(Violation { path: path.text(), problem: problem.into() });
        }
    }
}

struct Check<'a> {
    schema: &'a Schema,
    steps_left: &'a mut u32,
    found: &'a mut Found,
}

impl Check<'_> {
    fn node(&mut self, id: NodeId, value: &Value, path: &Path<'_>, depth: usize) {
        let Some(node) = self.schema.node(id) else { return };
        if self.found.full() {
            return;
        }
        *self.steps_left = self.steps_left.saturating_sub(1);
        if depth > CHECK_DEPTH_MAX || *self.steps_left == 0 {
            // Not checked is not valid.
            self.found.add(path, "is too deep or too large to be checked");
            return;
        }
        let depth = depth.saturating_add(1);
        if node.never {
            self.found.add(path, "is not allowed here");
        }
        if !node.types.is_empty() && !node.types.iter().any(|wanted| is_of(value, *wanted)) {
            let wanted: Vec<&str> = node.types.iter().map(|wanted| wanted.name()).collect();
            self.found.add(path, format!("must be {}, not {}", wanted.join(" or "), type_name(value)));
            // What else is wrong follows from the wrong type and only distracts.
            return;
        }
        self.values(node, value, path);
        match value {
            Value::Object(object) => self.object(node, object, path, depth),
            Value::Array(items) => self.array(node, items, path, depth),
            Value::String(text) => self.string(node, text, path),
            Value::Number(number) => self.number(node, number, path),
            Value::Null | Value::Bool(_) => {}
        }
        for part in node.all_of.iter().chain(&node.reference) {
            self.node(*part, value, path, depth);
        }
        self.alternatives(node, value, path, depth);
    }

    fn values(&mut self, node: &Node, value: &Value, path: &Path<'_>) {
        if let Some(list) = node.values.as_ref().filter(|list| !list.iter().any(|one| equal(one, value))) {
            let shown: Vec<String> = list.iter().map(Value::to_string).collect();
            self.found.add(path, format!("must be one of {}", shorten(&shown.join(", "))));
        }
        if let Some(one) = node.constant.as_ref().filter(|one| !equal(one, value)) {
            self.found.add(path, format!("must be {}", shorten(&one.to_string())));
        }
    }

    fn object(&mut self, node: &Node, object: &serde_json::Map<String, Value>, path: &Path<'_>, depth: usize) {
        for name in node.required.iter().filter(|name| !object.contains_key(*name)) {
            self.found.add(path, format!("lacks the required property {:?}", shorten(name)));
        }
        for (name, value) in object {
            let place = Path::Key(path, name);
            match (node.properties.get(name), node.additional) {
                (Some(schema), _) => self.node(*schema, value, &place, depth),
                (None, Some(schema)) if self.schema.node(schema).is_some_and(|node| node.never) => {
                    let known: Vec<&str> = node.properties.keys().map(String::as_str).collect();
                    let known = if known.is_empty() { "there are none".to_owned() } else { known.join(", ") };
                    self.found.add(&place, format!("is not a known property; known: {}", shorten(&known)));
                }
                (None, Some(schema)) => self.node(schema, value, &place, depth),
                (None, None) => {}
            }
        }
    }

    fn array(&mut self, node: &Node, items: &[Value], path: &Path<'_>, depth: usize) {
        let length = u64::try_from(items.len()).unwrap_or(u64::MAX);
        self.between(length, node.items_min, node.items_max, "items", path);
        if let Some(schema) = node.items {
            for (index, item) in items.iter().enumerate() {
                self.node(schema, item, &Path::Index(path, index), depth);
                if self.found.full() {
                    break;
                }
            }
        }
    }

    fn string(&mut self, node: &Node, text: &str, path: &Path<'_>) {
        if node.length_min.is_some() || node.length_max.is_some() {
            let length = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
            self.between(length, node.length_min, node.length_max, "characters", path);
        }
        if let Some(pattern) = node.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
            self.found.add(path, format!("must match the pattern {}", shorten(pattern.as_str())));
        }
    }

    fn between(&mut self, length: u64, min: Option<u64>, max: Option<u64>, unit: &str, path: &Path<'_>) {
        if let Some(min) = min.filter(|min| length < *min) {
            self.found.add(path, format!("must have at least {min} {unit}, not {length}"));
        }
        if let Some(max) = max.filter(|max| length > *max) {
            self.found.add(path, format!("must have at most {max} {unit}, not {length}"));
        }
    }

    fn number(&mut self, node: &Node, number: &Number, path: &Path<'_>) {
        let compare = |bound: &Option<Value>| match bound {
            Some(Value::Number(bound)) => Some((compare(number, bound), bound.to_string())),
            _ => None,
        };
        if let Some((_, min)) = compare(&node.minimum).filter(|(order, _)| *order == Ordering::Less) {
            self.found.add(path, format!("must be at least {min}, not {number}"));
        }
        if let Some((_, max)) = compare(&node.maximum).filter(|(order, _)| *order == Ordering::Greater) {
            self.found.add(path, format!("must be at most {max}, not {number}"));
        }
    }

    fn alternatives(&mut self, node: &Node, value: &Value, path: &Path<'_>, depth: usize) {
        if !node.any_of.is_empty() {
            let mut problems = Vec::new();
            let fits = node.any_of.iter().any(|id| match self.first_problem(*id, value, path, depth) {
                Some(problem) => {
                    problems.push(problem);
                    false
                }
                None => true,
            });
            if !fits {
                self.none_fits(&problems, path);
            }
        }
        if !node.one_of.is_empty() {
            let tried: Vec<Option<Violation>> =
                node.one_of.iter().map(|id| self.first_problem(*id, value, path, depth)).collect();
            let fitting: Vec<String> =
                (1_usize..).zip(&tried).filter(|(_, one)| one.is_none()).map(|(index, _)| index.to_string()).collect();
            if fitting.is_empty() {
                let problems: Vec<Violation> = tried.into_iter().flatten().collect();
                self.none_fits(&problems, path);
            } else if fitting.len() > 1 {
                let problem = format!("must fit one alternative only, and fits {}", shorten(&fitting.join(" and ")));
                self.found.add(path, problem);
            }
        }
    }

    /// The first thing that is wrong with the value by this schema.
    fn first_problem(&mut self, id: NodeId, value: &Value, path: &Path<'_>, depth: usize) -> Option<Violation> {
        let mut found = Found { violations: Vec::new(), max: 1 };
        Check { schema: self.schema, steps_left: self.steps_left, found: &mut found }.node(id, value, path, depth);
        found.violations.pop()
    }

    fn none_fits(&mut self, problems: &[Violation], path: &Path<'_>) {
        let here = path.text();
        let shown = (1_usize..).zip(problems).take(SHOWN_ALTERNATIVES_MAX).map(|(index, violation)| {
            if violation.path == here {
                format!("({index}) {}", violation.problem)
            } else {
                format!("({index}) {violation}")
            }
        });
        let shown: Vec<String> = shown.collect();
        let text = format!("fits none of {} alternatives: {}", problems.len(), shown.join("; "));
        // Alternatives within alternatives repeat each other's texts.
        self.found.add(path, text.chars().take(SHOWN_CHARS_MAX.saturating_mul(3)).collect::<String>());
    }
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Integer => "an integer",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        }
    }
}

fn is_of(value: &Value, wanted: Type) -> bool {
    match wanted {
        Type::Null => value.is_null(),
        Type::Boolean => value.is_boolean(),
        // 2.0 is an integer by the draft.
        Type::Integer => value
            .as_number()
            .is_some_and(|number| !number.is_f64() || number.as_f64().is_some_and(|float| float.fract() == 0.0)),
        Type::Number => value.is_number(),
        Type::String => value.is_string(),
        Type::Array => value.is_array(),
        Type::Object => value.is_object(),
    }
}

/// Equality of JSON values: 1 and 1.0 are the same number, at any depth.
fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => compare(left, right) == Ordering::Equal,
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equal(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, value)| right.get(key).is_some_and(|other| equal(value, other)))
        }
        _ => left == right,
    }
}

/// The order of two numbers, exact when both are integers.
fn compare(left: &Number, right: &Number) -> Ordering {
    let integer = |number: &Number| number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    match (integer(left), integer(right)) {
        (Some(left), Some(right)) => left.cmp(&right),
        // Numbers of JSON are never NaN, so that the order is total.
        _ => left.as_f64().partial_cmp(&right.as_f64()).unwrap_or(Ordering::Equal),
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
