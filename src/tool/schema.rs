//! JSON Schema for the arguments of tools: a named subset, compiled when a tool registers.
//!
//! The subset, with the meaning of draft 2020-12: `type enum const properties required additionalProperties items minItems
//! maxItems minLength maxLength minimum maximum pattern anyOf oneOf allOf`, a `$ref` within the document, and `true` and
//! `false`. Annotations are let through and do nothing: `title description default examples format deprecated readOnly
//! writeOnly $comment $schema $defs definitions`. Any other keyword is refused when the schema is compiled, since a rule
//! that is ignored looks like one that holds. (`format` is an annotation in the draft too.)
//!
//! Why our own: the crates that do all of it weigh more than twice our whole size mark (docs/design.md). `jsonschema` is
//! the oracle of the property tests. `pattern` has the syntax of `regex-lite`, without look-around and `\p{…}`.

mod check;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use regex_lite::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use crate::error::{ApiError, Code};

/// Violations that one check reports.
pub const VIOLATIONS_MAX: usize = 10;
/// Schemas within one document.
const NODES_MAX: usize = 2_000;
/// Nesting of schemas within one document.
const SCHEMA_DEPTH_MAX: usize = 64;
/// Bytes of a compiled pattern; matching takes time in proportion to it.
const PATTERN_BYTES_MAX: usize = 262_144;

/// Why a schema is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaProblem {
    /// Where in the schema, as a JSON Pointer; empty for the whole.
    pub path: String,
    /// What is wrong there.
    pub problem: String,
}

impl SchemaProblem {
    fn new(path: &str, problem: impl Into<String>) -> Self {
        Self { path: path.to_owned(), problem: problem.into() }
    }
}

impl fmt::Display for SchemaProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", if self.path.is_empty() { "the schema" } else { &self.path }, self.problem)
    }
}
impl std::error::Error for SchemaProblem {}

impl From<SchemaProblem> for ApiError {
    fn from(problem: SchemaProblem) -> Self {
        Self::because(Code::SchemaInvalid, problem.to_string()).with("path", problem.path)
    }
}

/// One place where a value does not fit, told so that a model can correct itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Where in the value, as a JSON Pointer; empty for the whole.
    pub path: String,
    /// What is wrong there.
    pub problem: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", if self.path.is_empty() { "the value" } else { &self.path }, self.problem)
    }
}

/// A compiled schema.
#[derive(Debug, Clone)]
pub struct Schema {
    nodes: Vec<Node>,
}

/// The index of a node; the root's is 0.
type NodeId = usize;

/// A JSON type, as `type` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

/// One schema of the document.
#[derive(Debug, Clone, Default)]
struct Node {
    /// The schema `false`.
    never: bool,
    types: Vec<Type>,
    values: Option<Vec<Value>>,
    constant: Option<Value>,
    properties: BTreeMap<String, NodeId>,
    required: Vec<String>,
    additional: Option<NodeId>,
    items: Option<NodeId>,
    items_min: Option<u64>,
    items_max: Option<u64>,
    length_min: Option<u64>,
    length_max: Option<u64>,
    minimum: Option<Value>,
    maximum: Option<Value>,
    pattern: Option<Regex>,
    any_of: Vec<NodeId>,
    one_of: Vec<NodeId>,
    all_of: Vec<NodeId>,
    reference: Option<NodeId>,
}

impl Node {
    /// The schemas that are applied to the same value, not to a part of it.
    fn in_place(&self) -> impl Iterator<Item = NodeId> {
        self.any_of.iter().chain(&self.one_of).chain(&self.all_of).chain(&self.reference).copied()
    }
}

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// The first keyword that is outside the subset or has a value that makes no sense, with its place.
    pub fn compile(schema: &Value) -> Result<Self, SchemaProblem> {
        let mut compiler = Compiler::default();
        compiler.schema(schema, "", 0)?;
        compiler.finish()
    }

    /// Checks a value.
    ///
    /// # Errors
    /// At most [`VIOLATIONS_MAX`] violations, in the order of the schema.
    pub fn check(&self, value: &Value) -> Result<(), Vec<Violation>> {
        check::check(self, value)
    }

    fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id)
    }
}

/// Adds one segment to a JSON Pointer.
fn pointer(path: &str, segment: &str) -> String {
    format!("{path}/{}", segment.replace('~', "~0").replace('/', "~1"))
}

#[derive(Default)]
struct Compiler {
    nodes: Vec<Node>,
    /// Every place that is a schema, by its pointer: what a `$ref` may lead to.
    places: BTreeMap<String, NodeId>,
    /// Nodes with a `$ref`, the target's pointer, and the place for the problem text.
    references: Vec<(NodeId, String, String)>,
}

impl Compiler {
    fn schema(&mut self, schema: &Value, path: &str, depth: usize) -> Result<NodeId, SchemaProblem> {
        if depth > SCHEMA_DEPTH_MAX || self.nodes.len() >= NODES_MAX {
            return Err(SchemaProblem::new(path, "is nested too deeply or is one schema too many"));
        }
        let id = self.nodes.len();
        self.nodes.push(Node::default());
        self.places.insert(path.to_owned(), id);
        let node = match schema {
            Value::Bool(all) => Node { never: !all, ..Node::default() },
            Value::Object(keywords) => self.keywords(keywords, path, depth.saturating_add(1), id)?,
            _ => return Err(SchemaProblem::new(path, "must be an object, true or false")),
        };
        if let Some(place) = self.nodes.get_mut(id) {
            *place = node;
        }
        Ok(id)
    }

    fn keywords(
        &mut self,
        keywords: &Map<String, Value>,
        path: &str,
        depth: usize,
        id: NodeId,
    ) -> Result<Node, SchemaProblem> {
        let mut node = Node::default();
        for (keyword, value) in keywords {
            let at = pointer(path, keyword);
            match keyword.as_str() {
                "type" => node.types = types(value, &at)?,
                "enum" => node.values = Some(values(value, &at)?),
                "const" => node.constant = Some(value.clone()),
                "properties" => node.properties = self.named(value, &at, depth)?,
                "required" => node.required = names(value, &at)?,
                "additionalProperties" => node.additional = Some(self.schema(value, &at, depth)?),
                "items" => node.items = Some(self.schema(value, &at, depth)?),
                "minItems" => node.items_min = Some(count(value, &at)?),
                "maxItems" => node.items_max = Some(count(value, &at)?),
                "minLength" => node.length_min = Some(count(value, &at)?),
                "maxLength" => node.length_max = Some(count(value, &at)?),
                "minimum" => node.minimum = Some(number(value, &at)?),
                "maximum" => node.maximum = Some(number(value, &at)?),
                "pattern" => node.pattern = Some(pattern(value, &at)?),
                "anyOf" => node.any_of = self.list(value, &at, depth)?,
                "oneOf" => node.one_of = self.list(value, &at, depth)?,
                "allOf" => node.all_of = self.list(value, &at, depth)?,
                "$ref" => self.references.push((id, target(value, &at)?, at)),
                "$defs" | "definitions" => {
                    self.named(value, &at, depth)?;
                }
                "title" | "description" | "default" | "examples" | "format" | "deprecated" | "readOnly"
                | "writeOnly" | "$comment" | "$schema" => {}
                _ => return Err(SchemaProblem::new(&at, "is not a supported keyword")),
            }
        }
        Ok(node)
    }

    /// An object whose values are schemas.
    fn named(&mut self, value: &Value, at: &str, depth: usize) -> Result<BTreeMap<String, NodeId>, SchemaProblem> {
        let object = value.as_object().ok_or_else(|| SchemaProblem::new(at, "must be an object of schemas"))?;
        let mut found = BTreeMap::new();
        for (name, schema) in object {
            found.insert(name.clone(), self.schema(schema, &pointer(at, name), depth)?);
        }
        Ok(found)
    }

    /// A list of schemas, at least one.
    fn list(&mut self, value: &Value, at: &str, depth: usize) -> Result<Vec<NodeId>, SchemaProblem> {
        let items = value.as_array().filter(|items| !items.is_empty());
        let items = items.ok_or_else(|| SchemaProblem::new(at, "must be a list of at least one schema"))?;
        let mut found = Vec::with_capacity(items.len());
        for (index, schema) in items.iter().enumerate() {
            found.push(self.schema(schema, &pointer(at, &index.to_string()), depth)?);
        }
        Ok(found)
    }

    fn finish(mut self) -> Result<Schema, SchemaProblem> {
        for (id, target, at) in &self.references {
            let found = self.places.get(target);
            let found = found.ok_or_else(|| SchemaProblem::new(at, "leads to no schema of this document"))?;
            if let Some(node) = self.nodes.get_mut(*id) {
                node.reference = Some(*found);
            }
        }
        self.refuse_loops()?;
        Ok(Schema { nodes: self.nodes })
    }

    /// Refuses a schema that applies itself to the same value again, which would never end.
    ///
    /// A schema is taken away once all it applies in place are; what is left over stands in a circle or before one.
    fn refuse_loops(&self) -> Result<(), SchemaProblem> {
        let mut open: Vec<bool> = vec![true; self.nodes.len()];
        let is_open = |open: &[bool], id: NodeId| open.get(id).copied().unwrap_or(false);
        loop {
            let mut changed = false;
            for (id, node) in self.nodes.iter().enumerate() {
                if is_open(&open, id) && !node.in_place().any(|next| is_open(&open, next)) {
                    if let Some(place) = open.get_mut(id) {
                        *place = false;
                    }
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        match self.references.iter().find(|(id, ..)| is_open(&open, *id)) {
            Some((_, _, at)) => {
                Err(SchemaProblem::new(at, "leads back to itself without going into a part of the value"))
            }
            None => Ok(()),
        }
    }
}

fn types(value: &Value, at: &str) -> Result<Vec<Type>, SchemaProblem> {
    let names = match value {
        Value::String(_) => std::slice::from_ref(value),
        Value::Array(items) if !items.is_empty() => items.as_slice(),
        _ => return Err(SchemaProblem::new(at, "must be the name of a type or a list of them")),
    };
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let one = match name.as_str() {
            Some("null") => Type::Null,
            Some("boolean") => Type::Boolean,
            Some("integer") => Type::Integer,
            Some("number") => Type::Number,
            Some("string") => Type::String,
            Some("array") => Type::Array,
            Some("object") => Type::Object,
            _ => {
                return Err(SchemaProblem::new(
                    at,
                    "must be among null, boolean, integer, number, string, array, object",
                ));
            }
        };
        if found.contains(&one) {
            return Err(SchemaProblem::new(at, "names a type twice"));
        }
        found.push(one);
    }
    Ok(found)
}

fn values(value: &Value, at: &str) -> Result<Vec<Value>, SchemaProblem> {
    let found = value.as_array().filter(|items| !items.is_empty()).cloned();
    found.ok_or_else(|| SchemaProblem::new(at, "must be a list of at least one value"))
}

fn names(value: &Value, at: &str) -> Result<Vec<String>, SchemaProblem> {
    let fault = || SchemaProblem::new(at, "must be a list of names, each once");
    let mut found: Vec<String> = Vec::new();
    for name in value.as_array().ok_or_else(fault)? {
        let name = name.as_str().filter(|name| !found.iter().any(|other| other == name)).ok_or_else(fault)?;
        found.push(name.to_owned());
    }
    Ok(found)
}

fn count(value: &Value, at: &str) -> Result<u64, SchemaProblem> {
    // The draft allows `2.0`; JavaScript writes it as 2, so it is not worth more than this.
    value.as_u64().ok_or_else(|| SchemaProblem::new(at, "must be a whole number, 0 or more"))
}

fn number(value: &Value, at: &str) -> Result<Value, SchemaProblem> {
    if value.is_number() { Ok(value.clone()) } else { Err(SchemaProblem::new(at, "must be a number")) }
}

fn pattern(value: &Value, at: &str) -> Result<Regex, SchemaProblem> {
    let text = value.as_str().ok_or_else(|| SchemaProblem::new(at, "must be a string"))?;
    let built = RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build();
    built.map_err(|error| SchemaProblem::new(at, format!("is not a pattern that can be used: {error}")))
}

fn target(value: &Value, at: &str) -> Result<String, SchemaProblem> {
    let inside = value.as_str().and_then(|text| text.strip_prefix('#'));
    let pointer = inside.filter(|pointer| pointer.is_empty() || pointer.starts_with('/'));
    pointer.map(str::to_owned).ok_or_else(|| SchemaProblem::new(at, "must be # or begin with #/, within this document"))
}
