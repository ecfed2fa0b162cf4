//! How the answers of several handlers become one, and what a failure of each means (the table of hooks.md).

use super::{Ctx, Registered};
use crate::agent::{HookReport, Verdict};
use futures::future::{Either, select};
use serde_json::{Value, json};

/// `before_agent_request`: all must return, one after another. A throw is reported and the call goes on (fails open). It
/// has no deadline: not returning is how a call is held.
pub async fn before_agent_request(handlers: Vec<Registered>, ctx: Ctx) -> Verdict {
    let mut verdict = Verdict::default();
    for registered in handlers {
        let event = json!({ "type": "before_agent_request" });
        match registered.handler.handle(event, ctx.clone()).await {
            Ok(handled) if handled.returned.is_null() => {}
            Ok(_) => verdict.reports.push(report(&registered, "it returns nothing; what it returned is ignored")),
            Err(message) => verdict.reports.push(report(&registered, &message)),
        }
    }
    verdict
}

/// `tool_call`: changes of the input chain; the first block ends it; a throw, a timeout or a bad return blocks the call.
pub async fn tool_call(
    handlers: Vec<Registered>,
    tool_call_id: &str,
    tool_name: &str,
    input: Value,
    ctx: Ctx,
    deadline_ms: u64,
) -> Verdict {
    let mut verdict = Verdict { input: Some(input), ..Verdict::default() };
    for registered in handlers {
        let input = verdict.input.clone().unwrap_or_else(|| json!({}));
        let event = json!({ "type": "tool_call", "toolCallId": tool_call_id, "toolName": tool_name, "input": input });
        let signal = ctx.signal.child();
        let handling = registered.handler.handle(event, Ctx { signal: signal.clone(), ..ctx.clone() });
        let outcome = match select(handling, ctx.world.sleep(deadline_ms)).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => {
                signal.raise();
                Err(format!("it did not return within {deadline_ms} ms"))
            }
        };
        let decided = outcome.and_then(|handled| {
            let input = changed_input(&handled.event)?;
            Ok((input, block_of(&handled.returned)?))
        });
        match decided {
            Ok((input, block)) => {
                verdict.input = Some(input);
                if block.is_some() {
                    verdict.block = block;
                    return verdict;
                }
            }
            Err(message) => {
                verdict.reports.push(report(&registered, &message));
                verdict.block = Some(format!("the extension {} failed: {message}", registered.namespace));
                return verdict;
            }
        }
    }
    verdict
}

fn changed_input(event: &Value) -> Result<Value, String> {
    match event.get("input") {
        Some(input @ Value::Object(_)) => Ok(input.clone()),
        _ => Err("it left an input that is not an object".to_owned()),
    }
}

/// `{block: true, reason?}`, or nothing. A reason without a block is nothing.
fn block_of(returned: &Value) -> Result<Option<String>, String> {
    match returned {
        Value::Null => Ok(None),
        Value::Object(fields) => match fields.get("block") {
            None | Some(Value::Null | Value::Bool(false)) => Ok(None),
            Some(Value::Bool(true)) => match fields.get("reason") {
                None | Some(Value::Null) => Ok(Some("an extension blocked it".to_owned())),
                Some(Value::String(reason)) => Ok(Some(reason.clone())),
                Some(_) => Err("it returned a reason that is not text".to_owned()),
            },
            Some(_) => Err("it returned a block that is not true or false".to_owned()),
        },
        _ => Err("it returned something that is not an object".to_owned()),
    }
}

/// The report of a handler that failed.
pub fn report(registered: &Registered, message: &str) -> HookReport {
    const MESSAGE_CHARS_MAX: usize = 1_000;
    HookReport {
        namespace: registered.namespace.clone(),
        event: registered.event.clone(),
        message: message.chars().take(MESSAGE_CHARS_MAX).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CtxWorld, Handler};
    use super::*;
    use crate::signal::Signal;
    use futures::executor::block_on;
    use futures::future::LocalBoxFuture;
    use std::rc::Rc;

    struct Still;
    impl CtxWorld for Still {
        fn memo(&self, _: &str, _: &str, _: &str, value: Value) -> Result<Value, String> {
            Ok(value)
        }
        fn env(&self) -> Rc<std::collections::BTreeMap<String, String>> {
            Rc::default()
        }
        fn log(&self, _: &str, _: &str, _: &str) {}
        fn now_ms(&self) -> i64 {
            0
        }
        fn sleep(&self, ms: u64) -> LocalBoxFuture<'static, ()> {
            // A deadline of 0 has passed at once; any other never does.
            if ms == 0 { Box::pin(std::future::ready(())) } else { Box::pin(std::future::pending()) }
        }
    }

    #[derive(Default)]
    struct Never {
        signal: Rc<std::cell::RefCell<Signal>>,
    }
    impl Handler for Never {
        fn handle(&self, _: Value, ctx: Ctx) -> LocalBoxFuture<'static, Result<super::super::Handled, String>> {
            *self.signal.borrow_mut() = ctx.signal;
            Box::pin(std::future::pending())
        }
    }

    fn ctx() -> Ctx {
        Ctx {
            agent_id: "a".into(),
            run_id: "run_1".into(),
            tier: "haiku".into(),
            provider: "openrouter".into(),
            phase: "generation",
            call: 1,
            resumed: false,
            signal: Signal::default(),
            world: Rc::new(Still),
        }
    }

    fn handler(f: impl Fn(&mut Value, &Ctx) -> Result<Value, String> + 'static) -> Registered {
        Registered { namespace: "x".into(), event: "tool_call".into(), handler: Rc::new(f) }
    }

    fn decide(handlers: Vec<Registered>) -> Verdict {
        block_on(tool_call(handlers, "c1", "write", json!({"path": "./a"}), ctx(), 10))
    }

    #[test]
    fn changes_chain_and_each_handler_sees_what_the_one_before_left() {
        let verdict = decide(vec![
            handler(|event, _| {
                event["input"]["path"] = json!("a");
                Ok(Value::Null)
            }),
            handler(|event, _| {
                assert_eq!(event["input"]["path"], "a");
                event["input"]["extra"] = json!(1);
                Ok(json!({ "reason": "no block" }))
            }),
        ]);
        assert_eq!(verdict.input, Some(json!({"path": "a", "extra": 1})));
        assert_eq!(verdict.block, None);
    }

    #[test]
    fn the_first_block_ends_it() {
        let verdict = decide(vec![
            handler(|_, _| Ok(json!({ "block": true, "reason": "no" }))),
            handler(|_, _| panic!("asked after a block")),
        ]);
        assert_eq!(verdict.block.as_deref(), Some("no"));
    }

    #[test]
    fn a_throw_a_bad_return_and_a_bad_input_block_and_are_reported() {
        let failing: Vec<Registered> = vec![
            handler(|_, _| Err("boom".into())),
            handler(|_, _| Ok(json!(7))),
            handler(|_, _| Ok(json!({ "block": "yes" }))),
            handler(|event, _| {
                event["input"] = json!([1]);
                Ok(Value::Null)
            }),
        ];
        for registered in failing {
            let verdict = decide(vec![registered]);
            assert!(verdict.block.is_some());
            assert_eq!(verdict.reports.len(), 1);
        }
    }

    #[test]
    fn a_handler_that_never_returns_blocks_at_its_deadline_and_gets_its_signal() {
        let never = Never::default();
        let (signal, ctx) = (Rc::clone(&never.signal), ctx());
        let never = Registered { namespace: "x".into(), event: "tool_call".into(), handler: Rc::new(never) };
        let verdict = block_on(tool_call(vec![never], "c1", "write", json!({}), ctx.clone(), 0));
        assert!(verdict.block.is_some_and(|reason| reason.contains("did not return")));
        assert!(signal.borrow().is_raised(), "its own signal");
        assert!(!ctx.signal.is_raised(), "not that of the run");
    }

    #[test]
    fn before_agent_request_fails_open_and_asks_everybody() {
        let verdict = block_on(before_agent_request(
            vec![
                handler(|_, _| Err("boom".into())),
                handler(|_, _| Ok(json!({ "block": true }))),
                handler(|_, _| Ok(Value::Null)),
            ],
            ctx(),
        ));
        assert_eq!(verdict.block, None);
        assert_eq!(verdict.reports.len(), 2);
    }
}
