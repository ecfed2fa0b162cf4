//! docs/openapi.yaml says what the code does: the same routes, scopes, queries, bodies and codes, both ways.

// Helpers of an integration test stand outside `#[test]`, where clippy.toml's exemption does not reach.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};

use agentdo::config::{Provider, Scope, Thinking, TierName};
use agentdo::error::{Code, tool_code};
use agentdo::http::body::{self, MessageBody, WhenBusy};
use agentdo::http::route::{self, AgentStatus};
use serde_json::{Value, json};

fn document() -> Value {
    serde_yaml_ng::from_str(include_str!("../docs/openapi.yaml")).unwrap()
}

/// `METHOD path` with what the file says of it.
fn operations(document: &Value) -> BTreeMap<String, (Value, Value)> {
    let mut found = BTreeMap::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
            found.insert(format!("{} {path}", method.to_uppercase()), (operation.clone(), item["parameters"].clone()));
        }
    }
    found
}

fn names(value: &Value) -> BTreeSet<String> {
    value.as_array().unwrap().iter().map(|name| name.as_str().unwrap_or("null").to_owned()).collect()
}

fn schema<'a>(document: &'a Value, name: &str) -> &'a Value {
    let found = &document["components"]["schemas"][name];
    assert!(!found.is_null(), "no schema {name}");
    found
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

#[test]
fn the_routes_are_the_same() {
    let written: BTreeSet<String> = operations(&document()).into_keys().collect();
    let coded: BTreeSet<String> =
        route::TABLE.iter().map(|spec| format!("{} {}", spec.method, spec.template)).collect();
    assert_eq!(written, coded);
}

#[test]
fn each_route_has_its_scope_parameters_and_error() {
    let operations = operations(&document());
    let mut ids = BTreeSet::new();
    for spec in route::TABLE {
        let name = format!("{} {}", spec.method, spec.template);
        let (operation, shared) = &operations[&name];
        assert_eq!(operation["x-scope"].as_str(), spec.scope.map(Scope::name), "{name}");
        assert_eq!(operation["security"] == json!([]), spec.scope.is_none(), "{name}");
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let queries = parameters.iter().filter(|one| one["in"] == "query").map(|one| one["name"].as_str().unwrap());
        assert_eq!(set(queries), set(spec.query.iter().copied()), "{name}");
        let placeholders = spec.template.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let shared = shared.as_array().cloned().unwrap_or_default();
        let shared: BTreeSet<String> =
            shared.iter().map(|one| one["name"].as_str().unwrap_or("id").to_owned()).collect();
        assert_eq!(shared, set(placeholders), "{name}");
        assert_eq!(operation["responses"]["default"]["$ref"], "#/components/responses/Error", "{name}");
        assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{name}");
        assert!(operation["summary"].as_str().is_some_and(|text| text.ends_with('.')), "{name}");
    }
}

#[test]
fn the_codes_are_the_same() {
    let document = document();
    let written = schema(&document, "ErrorCode");
    assert_eq!(names(&written["enum"]), set(Code::ALL.iter().map(|code| code.name())));
    let statuses: Value = Code::ALL.iter().map(|code| (code.name().to_owned(), json!(code.status()))).collect();
    assert_eq!(written["x-status"], statuses);
    assert_eq!(names(&schema(&document, "ToolCode")["enum"]), set(tool_code::ALL.iter().copied()));
}

#[test]
fn the_closed_lists_are_the_same() {
    fn listed<T>(all: &[(&'static str, T)]) -> BTreeSet<String> {
        all.iter().map(|(name, _)| (*name).to_owned()).collect()
    }
    let document = document();
    assert_eq!(names(&schema(&document, "AgentStatus")["enum"]), listed(AgentStatus::ALL));
    assert_eq!(names(&schema(&document, "TierName")["enum"]), listed(TierName::ALL));
    assert_eq!(names(&schema(&document, "Provider")["enum"]), listed(Provider::ALL));
    assert_eq!(names(&schema(&document, "Thinking")["enum"]), listed(Thinking::ALL));
    let when_busy = &schema(&document, "MessageBody")["properties"]["when_busy"];
    assert_eq!(names(&when_busy["enum"]), listed(WhenBusy::ALL));
}

/// The object with one more field must be refused, and the refusal lists the fields that the file lists.
#[test]
fn the_fields_of_bodies_are_the_same() {
    fn known<T: body::Request + std::fmt::Debug>() -> BTreeSet<String> {
        let error = body::parse::<T>(br#"{"no_such_field":1}"#).unwrap_err();
        assert_eq!((error.code, &error.details["field"]), (Code::UnknownField, &json!("no_such_field")));
        names(&error.details["known"])
    }
    let document = document();
    let operations = operations(&document);
    let written = |name: &str| {
        let body = &operations[name].0["requestBody"]["content"]["application/json"]["schema"];
        let body = match body["$ref"].as_str() {
            Some(reference) => schema(&document, reference.rsplit('/').next().unwrap()),
            None => body,
        };
        assert_eq!(body["additionalProperties"], json!(false), "{name}");
        set(body["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()))
    };
    assert_eq!(known::<MessageBody>(), written("POST /v1/agents/{id}/messages"));
    assert_eq!(known::<body::ConfigureBody>(), written("PUT /v1/agents/{id}"));
    assert_eq!(known::<body::StopBody>(), written("POST /v1/agents/{id}/stop"));
    assert_eq!(known::<body::InterruptBody>(), written("POST /v1/agents/{id}/interrupt"));
    assert_eq!(known::<body::RetryBody>(), written("POST /v1/agents/{id}/retry"));
    assert_eq!(known::<body::SignalBody>(), written("POST /v1/agents/{id}/signals/{name}"));
}

#[test]
fn every_reference_leads_somewhere() {
    fn visit(document: &Value, value: &Value) {
        match value {
            Value::Object(object) => {
                if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
                    assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
                }
                object.values().for_each(|value| visit(document, value));
            }
            Value::Array(items) => items.iter().for_each(|value| visit(document, value)),
            _ => {}
        }
    }
    let document = document();
    visit(&document, &document);
}

#[test]
fn limits_of_the_file_are_those_of_the_code() {
    let document = document();
    let operations = operations(&document);
    let parameter = |operation: &str, name: &str| {
        let parameters = operations[operation].0["parameters"].as_array().unwrap().clone();
        parameters.into_iter().find(|one| one["name"] == name).unwrap()["schema"].clone()
    };
    let limit = parameter("GET /v1/agents/{id}/entries", "limit");
    assert_eq!((&limit["maximum"], &limit["default"]), (&json!(route::LIMIT_MAX), &json!(route::LIMIT_DEFAULT)));
    assert_eq!(parameter("GET /v1/agents/{id}/submissions/{request_id}", "wait")["maximum"], json!(route::WAIT_S_MAX));
    assert_eq!(schema(&document, "RequestId")["maxLength"], json!(route::REQUEST_ID_CHARS_MAX));
    assert_eq!(schema(&document, "MessageBody")["properties"]["images"]["maxItems"], json!(body::IMAGES_MAX));
    assert_eq!(schema(&document, "Image")["properties"]["data"]["maxLength"], json!(body::IMAGE_BYTES_MAX));
}
