use super::*;
use proptest::prelude::*;
use serde_json::json;

fn violations(schema: &Value, value: &Value) -> Vec<String> {
    let checked = Schema::compile(schema).unwrap().check(value);
    checked.err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

fn refused(schema: &Value) -> (String, String) {
    let problem = Schema::compile(schema).expect_err("the schema must be refused");
    (problem.path, problem.problem)
}

#[test]
fn a_model_is_told_what_to_correct() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["path", "mode"],
        "properties": {
            "path": {"type": "string", "minLength": 1, "pattern": "^[a-z/]+$"},
            "mode": {"enum": ["read", "write"]},
            "lines": {"type": "array", "maxItems": 2, "items": {"type": "integer", "minimum": 1, "maximum": 9}},
            "to": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["id"]}]},
            "v": {"const": {"a": 1}},
        },
    });
    assert_eq!(
        violations(&schema, &json!({"path": "src/a", "mode": "read", "lines": [1, 2.0], "v": {"a": 1.0}})),
        [""; 0]
    );
    assert_eq!(violations(&schema, &json!([])), ["the value must be an object, not an array"]);
    assert_eq!(
        violations(&schema, &json!({"path": "", "lines": [0, 1.5, 10], "to": {}, "file/name": 1, "v": 2})),
        [
            "the value lacks the required property \"mode\"",
            "/file~1name is not a known property; known: lines, mode, path, to, v",
            "/lines must have at most 2 items, not 3",
            "/lines/0 must be at least 1, not 0",
            "/lines/1 must be an integer, not a number",
            "/lines/2 must be at most 9, not 10",
            "/path must have at least 1 characters, not 0",
            "/path must match the pattern ^[a-z/]+$",
            "/to fits none of 2 alternatives: (1) must be a string, not an object; (2) lacks the required property \"id\"",
            "/v must be {\"a\":1}",
        ]
    );
    assert_eq!(
        violations(&schema, &json!({"path": "a", "mode": "append"})),
        ["/mode must be one of \"read\", \"write\""]
    );
}

#[test]
fn one_of_and_all_of() {
    let schema = json!({"oneOf": [{"minimum": 1}, {"minimum": 5}], "allOf": [{"type": "number"}, {"maximum": 8}]});
    assert_eq!(violations(&schema, &json!(3)), [""; 0]);
    assert_eq!(violations(&schema, &json!(6)), ["the value must fit one alternative only, and fits 1 and 2"]);
    assert_eq!(violations(&schema, &json!(0)).len(), 1);
    assert_eq!(violations(&schema, &json!(9)).len(), 2);
}

#[test]
fn references_within_the_document() {
    let tree = json!({
        "type": "object", "required": ["name"],
        "properties": {"name": {"$ref": "#/$defs/a~1b"}, "children": {"type": "array", "items": {"$ref": "#"}}},
        "$defs": {"a/b": {"type": "string"}},
    });
    assert_eq!(violations(&tree, &json!({"name": "a", "children": [{"name": "b", "children": []}]})), [""; 0]);
    assert_eq!(
        violations(&tree, &json!({"name": "a", "children": [{"name": 1}, {}]})),
        ["/children/0/name must be a string, not a number", "/children/1 lacks the required property \"name\""]
    );
}

#[test]
fn what_is_outside_the_subset_is_refused_at_its_place() {
    for (schema, path) in [
        (json!([]), ""),
        (json!({"type": "text"}), "/type"),
        (json!({"type": ["string", "string"]}), "/type"),
        (json!({"type": []}), "/type"),
        (json!({"properties": {"a/b": {"multipleOf": 2}}}), "/properties/a~1b/multipleOf"),
        (json!({"exclusiveMinimum": 0}), "/exclusiveMinimum"),
        (json!({"items": [{"type": "string"}]}), "/items"),
        (json!({"required": ["a", "a"]}), "/required"),
        (json!({"required": true}), "/required"),
        (json!({"enum": []}), "/enum"),
        (json!({"anyOf": []}), "/anyOf"),
        (json!({"anyOf": [{"not": {}}]}), "/anyOf/0/not"),
        (json!({"minLength": -1}), "/minLength"),
        (json!({"minItems": "1"}), "/minItems"),
        (json!({"minimum": "1"}), "/minimum"),
        (json!({"pattern": "("}), "/pattern"),
        (json!({"pattern": "(?=a)"}), "/pattern"),
        (json!({"pattern": "((a{1000}){1000}){1000}"}), "/pattern"),
        (json!({"$ref": "https://example.com/schema"}), "/$ref"),
        (json!({"$ref": "#anchor"}), "/$ref"),
        (json!({"$ref": "#/$defs/missing"}), "/$ref"),
        (json!({"properties": {"a": {"$ref": "#/properties"}}}), "/properties/a/$ref"),
        (json!({"$id": "x"}), "/$id"),
    ] {
        assert_eq!(refused(&schema).0, path, "{schema}");
    }
    let error = ApiError::from(Schema::compile(&json!({"not": {}})).unwrap_err());
    assert_eq!((error.code, &error.details["path"]), (Code::SchemaInvalid, &json!("/not")));
}

#[test]
fn a_reference_that_leads_back_to_itself_is_refused() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"properties": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/b"}]}},
            "$defs": {"b": {"$ref": "#/$defs/c"}, "c": {"oneOf": [{"$ref": "#/$defs/b"}]}}}),
    ] {
        assert!(refused(&schema).1.contains("leads back to itself"), "{schema}");
    }
}

#[test]
fn depth_and_work_are_bounded() {
    let mut deep = json!({});
    for _ in 0..100 {
        deep = json!({"items": deep});
    }
    assert!(refused(&deep).1.contains("nested too deeply"));
    let many: Vec<Value> = vec![json!(true); NODES_MAX];
    assert!(refused(&json!({"anyOf": many})).1.contains("too many"));

    let list = Schema::compile(&json!({"items": {"$ref": "#"}})).unwrap();
    let mut value = json!([]);
    for _ in 0..200 {
        value = json!([value]);
    }
    assert!(list.check(&value).unwrap_err()[0].problem.contains("too deep"));

    // Each definition applies the next twice: 2^30 steps without a bound.
    let mut definitions = Map::new();
    for index in 0..30 {
        let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
        definitions.insert(format!("d{index}"), json!({"allOf": [next, next]}));
    }
    definitions.insert("d30".to_owned(), json!({"type": "string"}));
    let bomb = Schema::compile(&json!({"$ref": "#/$defs/d0", "$defs": definitions})).unwrap();
    assert!(bomb.check(&json!("text")).is_err());
}

#[test]
fn at_most_ten_violations_are_told() {
    let found = violations(&json!({"items": {"type": "string"}}), &json!(vec![1; 50]));
    assert_eq!(found.len(), VIOLATIONS_MAX);
}

#[test]
fn large_integers_are_compared_exactly() {
    let schema = json!({"maximum": 9_007_199_254_740_993_u64});
    assert_eq!(violations(&schema, &json!(9_007_199_254_740_993_u64)), [""; 0]);
    assert_eq!(violations(&schema, &json!(9_007_199_254_740_994_u64)).len(), 1);
}

/// Values from a small alphabet, so that schemas and values meet often.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        (-3_i64..4).prop_map(Value::from),
        (-3_i32..4).prop_map(|number| json!(f64::from(number) / 2.0)),
        "[abé😀]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[abc/~]", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

fn keyword(inner: BoxedStrategy<Value>) -> BoxedStrategy<(String, Value)> {
    let types = vec!["null", "boolean", "integer", "number", "string", "array", "object"];
    let counts = prop_oneof!["minItems", "maxItems", "minLength", "maxLength"];
    let bounds = prop_oneof!["minimum", "maximum"];
    let patterns = vec!["^a", "b$", "a.b?", "[^a]+", "^(a|b)*$", "é", "^.{2}$"];
    let lists = prop_oneof!["anyOf", "oneOf", "allOf"];
    let pair = |name: &str, value: Value| (name.to_owned(), value);
    prop_oneof![
        3 => proptest::sample::subsequence(types, 1..4).prop_map(move |list| pair("type", json!(list))),
        1 => proptest::collection::vec(value(), 1..4).prop_map(move |list| pair("enum", json!(list))),
        1 => value().prop_map(move |value| pair("const", value)),
        2 => proptest::collection::btree_map("[abc/~]", inner.clone(), 0..3).prop_map(move |map| pair("properties", json!(map))),
        1 => proptest::sample::subsequence(vec!["a", "b", "/"], 0..3).prop_map(move |list| pair("required", json!(list))),
        2 => inner.clone().prop_map(move |schema| pair("additionalProperties", schema)),
        2 => inner.clone().prop_map(move |schema| pair("items", schema)),
        1 => (counts, 0..3).prop_map(|(name, count)| (name, json!(count))),
        1 => (bounds, -4..4).prop_map(|(name, bound)| (name, json!(f64::from(bound) / 2.0))),
        1 => proptest::sample::select(patterns).prop_map(move |text| pair("pattern", json!(text))),
        2 => (lists, proptest::collection::vec(inner, 1..4)).prop_map(|(name, list)| (name, json!(list))),
        1 => proptest::sample::select(vec!["#/$defs/x", "#/$defs/y"]).prop_map(move |target| pair("$ref", json!(target))),
        1 => Just(pair("description", json!("a note"))),
        1 => Just(pair("format", json!("email"))),
    ]
    .boxed()
}

fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![1 => any::<bool>().prop_map(Value::from), 6 => Just(json!({"type": ["string", "number"]})), 1 => Just(json!({}))];
    leaf.prop_recursive(4, 24, 4, |inner| {
        proptest::collection::vec(keyword(inner.boxed()), 1..4)
            .prop_map(|pairs| Value::Object(pairs.into_iter().collect()))
    })
}

/// A document whose references have their targets; the targets may refer to each other.
fn document() -> impl Strategy<Value = Value> {
    (schema(), schema(), schema()).prop_map(|(root, x, y)| {
        let mut root = match root {
            Value::Object(root) => root,
            other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
        };
        root.insert("$defs".to_owned(), json!({"x": x, "y": y}));
        Value::Object(root)
    })
}

/// The oracle (0.33) holds 0.0 for no integer when `type` is a list, though it does when it is a name: lists become names.
/// No property or value of the generators has the key `type`.
fn for_oracle(schema: &Value) -> Value {
    let Value::Object(keywords) = schema else {
        return match schema {
            Value::Array(items) => items.iter().map(for_oracle).collect(),
            other => other.clone(),
        };
    };
    let mut keywords: Map<String, Value> =
        keywords.iter().map(|(key, value)| (key.clone(), for_oracle(value))).collect();
    if let Some(Value::Array(types)) = keywords.remove("type") {
        let any: Vec<Value> = types.into_iter().map(|name| json!({"type": name})).collect();
        let all = keywords.entry("allOf").or_insert_with(|| json!([]));
        all.as_array_mut().unwrap().push(json!({"anyOf": any}));
    }
    Value::Object(keywords)
}

proptest! {
    #[test]
    fn the_oracle_agrees(schema in document(), values in proptest::collection::vec(value(), 8)) {
        let compiled = match Schema::compile(&schema) {
            Ok(compiled) => compiled,
            Err(problem) => {
                // The oracle would not come back from these.
                prop_assert!(problem.problem.contains("leads back to itself"), "{}", problem);
                return Ok(());
            }
        };
        let oracle = jsonschema::draft202012::new(&for_oracle(&schema)).unwrap();
        for value in values {
            let ours = compiled.check(&value);
            prop_assert_eq!(ours.is_ok(), oracle.is_valid(&value), "{} with {}: {:?}", schema, value, ours);
        }
    }

    #[test]
    fn nothing_that_looks_like_a_schema_panics(schema in value(), keyword in "(type|enum|items|\\$ref|anyOf|pattern|minItems|properties|[a-z]{3})", value in value()) {
        if let Ok(schema) = Schema::compile(&json!({keyword: schema})) {
            let _ = schema.check(&value);
        }
    }
}
