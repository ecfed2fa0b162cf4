//! What a review found, one case each.

use super::*;

impl Bench {
    fn asks_for_tool(&mut self, arguments: &str) {
        let call = json!({"index": 0, "id": "c1", "function": {"name": "look", "arguments": arguments}});
        let frame = json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]});
        self.stream(&format!("data: {frame}\n\n"));
        self.done();
    }

    fn command(&mut self, command: &Command) {
        self.driver.command(command).unwrap();
        self.run();
    }

    fn entries(&self, after: i64) -> (Vec<Value>, Option<i64>) {
        self.driver.read(|tx| view::entries(tx, after, 1_000)).unwrap()
    }
}

#[test]
fn arguments_nested_too_deep_to_be_read_again_are_refused() {
    // Each of these parses; wrapped in the log, the deeper ones no longer would.
    for depth in [10, 64, 65, 120, 124, 127] {
        let mut bench = Bench::new(false);
        bench.submit("r1");
        bench.asks_for_tool(&format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth)));
        let ran = std::mem::take(&mut *bench.world.tools.borrow_mut());
        assert_eq!(ran.len(), usize::from(depth <= 64), "{depth}");
        for (_, tool) in ran {
            let _ = tool.send(ToolResult { content: vec![Block::text("ok")], is_error: false, code: None });
        }
        bench.run();
        assert_eq!(bench.requests(), 2, "{depth}: the run goes on");
        assert_eq!(bench.entries(0).0.len(), 3, "{depth}");
    }
}

#[test]
fn credentials_that_never_come_are_a_failure_that_is_tried_again() {
    let mut bench = Bench::new(false);
    bench.world.hold_keys.set(true);
    bench.submit("r1");
    bench.advance(59_000);
    assert_eq!(bench.agent()["waits"], json!([]));
    bench.advance(1_100);
    let wait = bench.agent()["waits"][0].clone();
    assert_eq!(wait["for"], "backoff");
    assert_eq!(wait["since"], crate::agent::rfc3339(bench.world.now_ms.get()));
    bench.world.hold_keys.set(false);
    bench.advance(1_100);
    assert_eq!(bench.requests(), 1);
}

#[test]
fn an_interrupt_that_takes_the_queue_along_leaves_what_comes_after_it() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    bench.asks_for_tool("{}");
    bench.submit("before");
    bench.command(&Command::Interrupt { keep_queue: false });
    assert_eq!(bench.submission("before")["reason"], "interrupted");
    // The tool ignores its signal, so that the run is still being ended.
    assert_eq!(bench.status(), "stopping");
    bench.submit("after");
    bench.advance(5_100);
    assert_eq!(bench.submission("r1")["reason"], "interrupted");
    assert_eq!(bench.submission("after")["status"], "placed");
    assert_eq!(bench.requests(), 2);
}

#[test]
fn an_agent_at_rest_is_not_due_in_the_index() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    assert!(bench.world.indexed.borrow().last().unwrap().due_ms.is_some());
    bench.text("Hi");
    bench.finish();
    bench.done();
    let told = bench.world.indexed.borrow().last().cloned().unwrap();
    assert_eq!((told.status.as_str(), told.due_ms), ("idle", None));
}

fn large(number: usize) -> Command {
    Command::Submit {
        request_id: format!("r{number}"),
        body_sha256: "h".into(),
        content: vec![Block::text("x".repeat(500_000))],
        mode: Mode::Steer,
    }
}

#[test]
fn pages_end_at_a_size_too_and_lose_nothing() {
    let mut bench = Bench::new(false);
    for number in 0..12 {
        bench.command(&large(number));
        bench.text("Hi");
        bench.finish();
        bench.done();
    }
    let (mut seen, mut after, mut pages) = (0, 0, 0);
    loop {
        let (found, next) = bench.entries(after);
        pages += 1;
        seen += found.len();
        match next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(seen, 24);
    assert!(pages >= 2, "{pages}");
}

#[test]
fn large_messages_that_wait_are_bounded_together() {
    let mut bench = Bench::new(false);
    bench.submit("first");
    let refused = (0..30).find_map(|number| bench.driver.command(&large(number)).err()).expect("too much waits");
    assert_eq!(refused.code, crate::error::Code::RateLimited);
    let waiting = bench.agent()["queued"].as_array().unwrap().len();
    assert_eq!(waiting, 16);
    // A small one still goes in, and the refused one once there is room.
    bench.submit("small");
    bench.finish();
    bench.done();
    assert_eq!(bench.agent()["queued"].as_array().unwrap().len(), 1, "steers joined, the follow-up waits");
    bench.driver.command(&large(29)).unwrap();
}

#[test]
fn while_storage_is_away_pieces_of_a_stream_keep_their_order() {
    let mut bench = Bench::new(false);
    bench.submit("r1");
    bench.text("one ");
    bench.storage.failing.set(true);
    bench.advance(510);
    bench.text("two ");
    bench.storage.failing.set(false);
    // The second batch is due before the first is tried again.
    bench.text(&"three ".repeat(2_000));
    bench.advance(700);
    let mut bench = bench.die();
    let (entries, _) = bench.entries(0);
    let partial = entries.last().unwrap()["message"]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(partial.starts_with("one two three "), "{}", partial.get(..40).unwrap_or(&partial));
    bench.run();
}
