use super::*;
use proptest::prelude::*;

fn agent(method: &str, path: &str, query: &str) -> AgentCall {
    match parse(method, path, query) {
        Ok(Route::Agent { id, call }) if id == "a.1" => call,
        other => panic!("{method} {path}?{query}: {other:?}"),
    }
}

fn refused(method: &str, path: &str, query: &str) -> (Code, String) {
    let error = parse(method, path, query).expect_err(path);
    let field = error.details.get("field").and_then(|field| field.as_str()).unwrap_or("").to_owned();
    (error.code, field)
}

#[test]
fn every_line_of_the_table_is_found_and_keeps_its_scope() {
    for spec in TABLE {
        let path = spec.template.replace("{id}", "a.1").replace("{request_id}", "r1").replace("{name}", "go");
        let route = parse(spec.method, &path, "").unwrap();
        assert_eq!(route.kind(), spec.kind, "{}", spec.template);
        assert_eq!(route.scope(), spec.scope);
    }
}

#[test]
fn parameters_and_queries() {
    let submission = AgentCall::Submission { request_id: "r/1 ä".to_owned(), wait_s: 30 };
    assert_eq!(agent("GET", "/v1/agents/a.1/submissions/r%2f1%20%C3%A4", "wait=30"), submission);
    assert_eq!(agent("GET", "/v1/agents/a%2E1/entries", ""), AgentCall::Entries { after: 0, limit: 200 });
    assert_eq!(
        agent("GET", "/v1/agents/a.1/entries", "limit=1000&after=7"),
        AgentCall::Entries { after: 7, limit: 1000 }
    );
    assert_eq!(agent("GET", "/v1/agents/a.1/events", "after=0"), AgentCall::Events { after: Some(0) });
    assert_eq!(
        agent("POST", "/v1/agents/a.1/signals/approve+1", ""),
        AgentCall::Signal { name: "approve+1".to_owned() }
    );
    let list = Route::ListAgents { status: Some(AgentStatus::Idle), cursor: Some("a b".to_owned()) };
    assert_eq!(parse("GET", "/v1/agents", "status=idle&cursor=a+b").unwrap(), list);
    let all = Route::ListAgents { status: None, cursor: None };
    assert_eq!(parse("GET", "/v1/agents", "status=&cursor=").unwrap(), all);
}

#[test]
fn what_is_wrong_is_refused_and_named() {
    let invalid = |field: &str| (Code::InvalidRequest, field.to_owned());
    for (path, query, field) in [
        ("/v1/agents/a%2Fb", "", "id"),
        ("/v1/agents/a%00", "", "id"),
        ("/v1/agents/%C3%A4", "", "id"),
        ("/v1/agents/a b", "", "id"),
        ("/v1/agents/a/entries", "limit=0", "limit"),
        ("/v1/agents/a/entries", "limit=1001", "limit"),
        ("/v1/agents/a/entries", "after=-1", "after"),
        ("/v1/agents/a/entries", "after=+1", "after"),
        ("/v1/agents/a/entries", "after=", "after"),
        ("/v1/agents/a/entries", "after=9007199254740992", "after"),
        ("/v1/agents/a/entries", "after=1&after=2", "after"),
        ("/v1/agents/a/submissions/r", "wait=61", "wait"),
        ("/v1/agents/a/submissions/r", "wait=99999999999999999999999", "wait"),
        ("/v1/agents/a/submissions/r%0a", "", "request_id"),
        ("/v1/agents", "status=busy", "status"),
        ("/v1/agents/%", "", ""),
        ("/v1/agents/%4", "", ""),
        ("/v1/agents/%zz", "", ""),
        ("/v1/agents/%ff", "", ""),
        ("/v1/agents/%+1", "", ""),
    ] {
        assert_eq!(refused("GET", path, query), invalid(field), "{path}?{query}");
    }
    let long = format!("/v1/agents/{}", "a".repeat(65));
    assert_eq!(refused("GET", &long, ""), invalid("id"));
    assert_eq!(refused("GET", "/v1/agents/a/entries", "aftr=1"), (Code::UnknownField, "aftr".to_owned()));
    assert_eq!(refused("GET", "/healthz", "x"), (Code::UnknownField, "x".to_owned()));
}

#[test]
fn other_paths_and_methods() {
    for path in [
        "",
        "/",
        "/v1",
        "/v1/",
        "/v1/agents/",
        "/v1/agents//entries",
        "/v1/agents/a/",
        "/v1/agents/a/entries/1",
        "/V1/agents",
        "//healthz",
        "/v1/changes",
    ] {
        assert_eq!(refused("GET", path, "").0, Code::NotFound, "{path}");
    }
    let error = parse("POST", "/v1/agents/a", "").unwrap_err();
    assert_eq!(error.headers(), [("Allow", "GET, PUT, DELETE".to_owned())]);
    assert_eq!(refused("get", "/healthz", "").0, Code::MethodNotAllowed);
}

#[test]
fn a_stream_goes_on_after_the_last_event_seen() {
    assert_eq!(resume_after(None, None).unwrap(), 0);
    assert_eq!(resume_after(Some(5), None).unwrap(), 5);
    assert_eq!(resume_after(Some(5), Some("9")).unwrap(), 9);
    assert_eq!(resume_after(Some(5), Some("3")).unwrap(), 5);
    assert_eq!(resume_after(Some(5), Some("")).unwrap(), 5);
    assert_eq!(resume_after(None, Some("x")).unwrap_err().code, Code::InvalidRequest);
}

proptest! {
    #[test]
    fn no_address_panics(method in "(GET|POST|PUT|DELETE|.*)", path in "(/v1/agents)?(/[a-z%0-9./]*|.*){0,4}", query in ".*") {
        let _ = parse(&method, &path, &query);
        let _ = resume_after(None, Some(&query));
    }

    #[test]
    fn any_name_survives_percent_encoding(name in "[^\\p{Cc}]{1,128}") {
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let route = parse("POST", &format!("/v1/agents/a/signals/{encoded}"), "").unwrap();
        prop_assert_eq!(route, Route::Agent { id: "a".to_owned(), call: AgentCall::Signal { name } });
    }
}
