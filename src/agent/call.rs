//! The way of a model call (design R2): hooks, gates, credentials, then, in one transaction that the request follows in
//! the same turn, the committed intent.

use super::context::fragment_of;
use super::interface::{Effect, GateAnswer, HookCall, HookReport, ModelRequest, OpRef, ToolSpec, Verdict};
use super::state::{CallOp, CallStep, EndingKind, Phase, Reason};
use super::unit::Unit;
use super::{EMPTIES_MAX, TRUNCATED_IN_A_ROW_MAX, settle, tools};
use crate::error::tool_code;
use crate::log::{parse, to_json};
use crate::model::encode::Fragment;
use crate::model::message::{AssistantMessage, Block, Message, Stop, Usage};
use crate::model::wire::{Declaration, Folded, RequestHead, Target, Wire};
use crate::model::{Delta, Failure, FailureKind, Outcome};
use crate::port::SqlError;
use crate::sabotage::{Fault, active};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::rc::Rc;

/// Bytes of a request that make a token, for an estimate.
const BYTES_PER_TOKEN: u64 = 4;

/// The run goes to its next model call.
pub(super) fn begin(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    let id = unit.new_id("call");
    unit.run_mut()?.phase = Phase::Call(CallOp {
        id,
        generation: 0,
        step: CallStep::Hooks,
        retries: 0,
        empties: 0,
        restarts: 0,
        hook_restarts: 0,
        pending: false,
        due_ms: None,
        since_ms: None,
        request_bytes: 0,
    });
    ask_hooks(unit)
}

/// The call starts on its way again: nothing that was asked before counts any more.
pub(super) fn again(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    if let Some(call) = unit.call_mut() {
        call.generation = call.generation.saturating_add(1);
        call.pending = false;
        call.due_ms = None;
        call.since_ms = None;
        call.step = CallStep::Hooks;
    }
    ask_hooks(unit)
}

/// Asks what the current step waits for, as it stands.
pub(super) fn ask(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    match unit.call().map(|call| call.step) {
        Some(CallStep::Hooks) => ask_hooks(unit),
        Some(CallStep::Gate(index)) => ask_gate(unit, index),
        Some(CallStep::Authorize) => ask_credentials(unit),
        _ => Ok(()),
    }
}

fn ask_hooks(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    if !unit.machine.catalog.handles_before_agent_request {
        return ask_gate(unit, 0);
    }
    let context = unit.hook_context();
    let Some(call) = unit.call() else {
        return Ok(());
    };
    let op = unit.op(&call.id, call.generation);
    unit.effect(Effect::AskHooks { op, hook: HookCall::BeforeAgentRequest, context });
    Ok(())
}

/// All handlers returned: the call goes on to the gates. A handler that failed is reported, and the call goes on.
pub(super) fn hooks_answered(unit: &mut Unit<'_>, op: &OpRef, verdict: &Verdict) -> Result<(), SqlError> {
    let fits = unit.current_call(op).is_some() || active(Fault::LateHookAnswerAccepted);
    if !fits || unit.call().map(|call| call.step) != Some(CallStep::Hooks) {
        return Ok(());
    }
    report(unit, &verdict.reports)?;
    if let Some(call) = unit.call_mut() {
        call.pending = false;
    }
    ask_gate(unit, 0)
}

/// The handlers take long: a death from now on is a hold and not a crash (design L3).
pub(super) fn hooks_pending(unit: &mut Unit<'_>, op: &OpRef) {
    if unit.current_call(op).is_some_and(|call| call.step == CallStep::Hooks)
        && let Some(call) = unit.call_mut()
    {
        call.pending = true;
        call.hook_restarts = 0;
    }
}

/// Puts failed handlers on record.
pub(super) fn report(unit: &mut Unit<'_>, reports: &[HookReport]) -> Result<(), SqlError> {
    for failed in reports {
        unit.log(
            "extension_error",
            json!({ "namespace": failed.namespace, "event": failed.event, "message": failed.message }),
        );
    }
    Ok(())
}

fn ask_gate(unit: &mut Unit<'_>, index: u32) -> Result<(), SqlError> {
    let name = gate_name(unit, index);
    let step = if name.is_some() { CallStep::Gate(index) } else { CallStep::Authorize };
    let Some(call) = unit.call_mut() else {
        return Ok(());
    };
    call.step = step;
    call.due_ms = None;
    let (id, generation) = (call.id.clone(), call.generation);
    match name {
        Some(name) => {
            let op = unit.op(&id, generation);
            unit.effect(Effect::AskGate { op, name });
            Ok(())
        }
        None => ask_credentials(unit),
    }
}

fn gate_name(unit: &Unit<'_>, index: u32) -> Option<String> {
    usize::try_from(index).ok().and_then(|index| unit.machine.catalog.gates.get(index)).cloned()
}

/// A gate answered. Its error is a no: a gate fails closed, unlike a hook.
pub(super) fn gate_answered(unit: &mut Unit<'_>, op: &OpRef, name: &str, answer: &GateAnswer) -> Result<(), SqlError> {
    let Some(CallStep::Gate(index)) = unit.current_call(op).map(|call| call.step) else {
        return Ok(());
    };
    // An answer given twice must not open the next gate.
    if gate_name(unit, index).as_deref() != Some(name) {
        return Ok(());
    }
    match answer {
        GateAnswer::Go => {
            if let Some(call) = unit.call_mut() {
                call.since_ms = None;
            }
            ask_gate(unit, index.saturating_add(1))
        }
        GateAnswer::Wait(until_ms) => {
            let now_ms = unit.now_ms;
            if let Some(call) = unit.call_mut() {
                call.step = CallStep::GateWait(index);
                call.due_ms = Some(*until_ms);
                // One that says so again goes on with the same wait.
                call.since_ms.get_or_insert(now_ms);
            }
            Ok(())
        }
        GateAnswer::No(reason) => settle::end_run(unit, Reason::Budget, Some(reason)),
    }
}

/// A backoff or a gate's wait is over.
pub(super) fn due(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    match unit.call().map(|call| call.step) {
        Some(CallStep::Backoff) => again(unit),
        Some(CallStep::GateWait(index)) => ask_gate(unit, index),
        _ => Ok(()),
    }
}

fn ask_credentials(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    let provider = unit.run()?.provider.clone();
    let Some(call) = unit.call() else {
        return Ok(());
    };
    let op = unit.op(&call.id, call.generation);
    unit.effect(Effect::Authorize { op, provider });
    Ok(())
}

/// Credentials are ready: the last transaction before the request. A stop since then has ended the call, so that `op`
/// names nothing any more; an older instance's epoch does not fit (design R2: stop check, epoch check, intent, in one turn).
pub(super) fn authorized(unit: &mut Unit<'_>, op: &OpRef, refused: Option<&Failure>) -> Result<(), SqlError> {
    let stands = unit.current_call(op).is_some_and(|call| call.step == CallStep::Authorize);
    if !stands {
        if active(Fault::StopCheckBeforeCredentials) && refused.is_none() {
            let request = ModelRequest {
                provider: "openrouter".to_owned(),
                model: String::new(),
                tier: String::new(),
                body: String::new(),
                run_id: String::new(),
                call: 0,
                attempt: 1,
            };
            unit.effect(Effect::CallModel { op: op.clone(), request: Box::new(request) });
        }
        return Ok(());
    }
    match refused {
        Some(failure) => failed(unit, failure),
        None => dispatch(unit, op),
    }
}

/// Commits the intent and lets the request go.
fn dispatch(unit: &mut Unit<'_>, op: &OpRef) -> Result<(), SqlError> {
    let run = unit.run()?;
    let (tier, provider, run_id, calls) = (run.tier.clone(), run.provider.clone(), run.id.clone(), run.calls);
    if calls >= calls_max(&tier, unit.machine.settings.calls_max) {
        return settle::end_run(unit, Reason::Budget, Some("the run has made all the calls it may make"));
    }
    // What joined while the call was held is in the request: nobody is asked again for it.
    settle::place_steers(unit)?;
    let (Some(target), Some(wire)) = (unit.machine.target(&tier, &provider).cloned(), unit.machine.wire(&provider))
    else {
        let why = format!("tier {tier} has no model at {provider}");
        return settle::end_run(unit, Reason::Config, Some(&why));
    };
    let body = encode(unit, &target, &*wire, &run_id)?;
    let sha256 = hex(&Sha256::digest(body.as_bytes()));
    let Some(call) = unit.call() else {
        return Ok(());
    };
    let attempt = call.retries.saturating_add(call.empties).saturating_add(call.restarts).saturating_add(1);
    let request = ModelRequest {
        provider,
        model: target.models.first().cloned().unwrap_or_default(),
        tier,
        body,
        run_id,
        call: calls.saturating_add(1),
        attempt,
    };
    let request_bytes = u64::try_from(request.body.len()).unwrap_or(u64::MAX);
    if active(Fault::IntentAfterEffect) {
        unit.effect(Effect::CallModel { op: op.clone(), request: Box::new(request) });
        return Ok(());
    }
    record_intent(unit, &request, &sha256, request_bytes)?;
    unit.effect(Effect::CallModel { op: op.clone(), request: Box::new(request) });
    Ok(())
}

fn record_intent(
    unit: &mut Unit<'_>,
    request: &ModelRequest,
    sha256: &str,
    request_bytes: u64,
) -> Result<(), SqlError> {
    let Some(call) = unit.call_mut() else {
        return Ok(());
    };
    call.step = CallStep::Dispatched;
    call.request_bytes = request_bytes;
    let id = call.id.clone();
    unit.run_mut()?.calls = request.call;
    unit.log(
        "call_started",
        json!({
            "run_id": request.run_id, "call": request.call, "op": id, "attempt": request.attempt,
            "provider": request.provider, "model": request.model, "request_sha256": sha256,
        }),
    );
    Ok(())
}

fn encode(unit: &Unit<'_>, target: &Target, wire: &dyn Wire, run_id: &str) -> Result<String, SqlError> {
    let mut fragments = unit.machine.cache.borrow_mut().refresh(unit.tx, &target.provider, wire)?;
    let new: Vec<Rc<Fragment>> = unit.events().iter().filter_map(|event| fragment_of(event, wire)).collect();
    fragments.extend(new);
    let tools: Vec<Declaration<'_>> = active_tools(unit)
        .into_iter()
        .map(|tool| Declaration { name: &tool.name, description: &tool.description, parameters: &tool.parameters })
        .collect();
    let mut target = target.clone();
    if unit.config.thinking.is_some() {
        target.thinking.clone_from(&unit.config.thinking);
    }
    let head = RequestHead { target: &target, system: &unit.config.system_prompt, tools: &tools, session_id: run_id };
    Ok(wire.body(&head, &fragments))
}

/// The registered tools that this agent may use.
pub(super) fn active_tools<'a>(unit: &Unit<'a>) -> Vec<&'a ToolSpec> {
    let machine = unit.machine;
    let allowed = unit.config.tools.as_ref();
    machine.catalog.tools.iter().filter(|tool| allowed.is_none_or(|names| names.contains(&tool.name))).collect()
}

fn calls_max(tier: &str, limits: [u32; 3]) -> u32 {
    let [haiku, sonnet, opus] = limits;
    match tier {
        "haiku" => haiku,
        "sonnet" => sonnet,
        _ => opus,
    }
}

/// A piece of the stream goes to the stream log (design R3).
pub(super) fn stream_batch(unit: &mut Unit<'_>, op: &OpRef, deltas: &[Delta]) -> Result<(), SqlError> {
    if unit.current_call(op).is_none_or(|call| call.step != CallStep::Dispatched) {
        return Ok(());
    }
    let batch: String = [&to_json(&deltas)?, "\n"].concat();
    // A batch is added to the last row until that is full: each row costs again when it is deleted.
    let appended = unit.tx.execute(
        "UPDATE chunk SET body = body || ?2 WHERE op = ?1 AND n = (SELECT MAX(n) FROM chunk WHERE op = ?1) \
         AND length(body) < ?3",
        &[op.id.as_str().into(), batch.as_str().into(), CHUNK_ROW_CHARS.into()],
    )?;
    if appended == 0 {
        let sql = "INSERT INTO chunk (op, n, body) \
                   VALUES (?1, (SELECT COALESCE(MAX(n), 0) + 1 FROM chunk WHERE op = ?1), ?2)";
        unit.tx.run(sql, &[op.id.as_str().into(), batch.into()])?;
    }
    Ok(())
}

/// A row of the stream log is full at this length, characters. Each batch rewrites its row, so it is not larger.
const CHUNK_ROW_CHARS: i64 = 65_536;

/// What the stream log holds of the call in flight.
pub(super) fn stored_deltas(unit: &Unit<'_>) -> Result<Vec<Delta>, SqlError> {
    let Some(call) = unit.call() else {
        return Ok(Vec::new());
    };
    let rows = unit.tx.query("SELECT body FROM chunk WHERE op = ?1 ORDER BY n", &[call.id.as_str().into()])?;
    let mut deltas = Vec::new();
    for row in &rows {
        for batch in row.text(0)?.lines() {
            let batch: Vec<Delta> = parse(batch, "chunk.body")?;
            deltas.extend(batch);
        }
    }
    Ok(deltas)
}

pub(super) fn drop_stream(unit: &Unit<'_>) -> Result<(), SqlError> {
    if let Some(call) = unit.call() {
        unit.tx.run("DELETE FROM chunk WHERE op = ?1", &[call.id.as_str().into()])?;
    }
    Ok(())
}

/// The call ended: live, or adopted after a crash.
pub(super) fn ended(unit: &mut Unit<'_>, op: &OpRef, outcome: &Outcome) -> Result<(), SqlError> {
    let Some(call) = unit.current_call(op) else {
        return Ok(());
    };
    if call.step == CallStep::Authorize && active(Fault::IntentAfterEffect) {
        let run = unit.run()?;
        let request = ModelRequest {
            provider: run.provider.clone(),
            model: String::new(),
            tier: run.tier.clone(),
            body: String::new(),
            run_id: run.id.clone(),
            call: run.calls.saturating_add(1),
            attempt: 1,
        };
        record_intent(unit, &request, "", 0)?;
    } else if call.step != CallStep::Dispatched {
        return Ok(());
    }
    drop_stream(unit)?;
    match outcome {
        Outcome::Answer(message) => answered(unit, message),
        Outcome::Failed(failure) => {
            let usage = failure.partial.as_ref().map(|partial| partial.usage.clone()).unwrap_or_default();
            log_ended(unit, outcome_word(failure.kind), &usage, Some(&failure.message))?;
            if let Some(partial) = &failure.partial {
                show_partial(unit, partial)?;
            }
            failed(unit, failure)
        }
    }
}

fn answered(unit: &mut Unit<'_>, message: &AssistantMessage) -> Result<(), SqlError> {
    let outcome = match message.stop {
        Stop::ToolCalls => "tool_calls",
        Stop::Length => "truncated",
        _ => "answer",
    };
    log_ended(unit, outcome, &message.usage, None)?;
    if unit.agent.ending.is_some() {
        show_partial(unit, message)?;
        return settle::finish_ending(unit);
    }
    let seq = unit.entry("assistant", &Message::Assistant(message.clone()))?;
    let asks_for_tools = message.content.iter().any(|block| matches!(block, Block::ToolCall { .. }));
    if !asks_for_tools {
        unit.run_mut()?.truncated_in_a_row = 0;
        return settle::answer(unit, seq);
    }
    if message.stop == Stop::Length {
        let run = unit.run_mut()?;
        run.truncated_in_a_row = run.truncated_in_a_row.saturating_add(1);
        if run.truncated_in_a_row > TRUNCATED_IN_A_ROW_MAX {
            tools::refuse_all(
                unit,
                message,
                tool_code::TRUNCATED,
                "The output limit was reached; the call was not executed.",
            )?;
            return settle::end_run(unit, Reason::ModelError, Some("the output limit cut every answer"));
        }
        let text = "The output limit was reached before the arguments were complete; nothing was executed. \
                    Issue the call again, in smaller pieces.";
        tools::refuse_all(unit, message, tool_code::TRUNCATED, text)?;
        settle::place_steers(unit)?;
        return begin(unit);
    }
    unit.run_mut()?.truncated_in_a_row = 0;
    tools::begin_round(unit, message)
}

/// A partial becomes an entry that is shown and never sent back. Calls in it are left out: they will never have a result.
pub(super) fn show_partial(unit: &mut Unit<'_>, message: &AssistantMessage) -> Result<(), SqlError> {
    let content: Vec<Block> = message
        .content
        .iter()
        .filter(|block| match block {
            Block::Text { text } | Block::Thinking { text } => !text.is_empty(),
            _ => false,
        })
        .cloned()
        .collect();
    if content.is_empty() {
        return Ok(());
    }
    let partial = AssistantMessage {
        content,
        stop: Stop::Aborted,
        aborted: true,
        call_faults: Vec::new(),
        reasoning_details: None,
        ..message.clone()
    };
    unit.entry("assistant", &Message::Assistant(partial))?;
    Ok(())
}

/// The call is over and counted, whatever became of it (design R4).
pub(super) fn log_ended(
    unit: &mut Unit<'_>,
    outcome: &str,
    usage: &Usage,
    error: Option<&str>,
) -> Result<(), SqlError> {
    unit.agent.usage.add(usage);
    if let Some(call) = unit.call_mut() {
        call.step = CallStep::Ended;
    }
    let run = unit.run()?;
    let (run_id, call) = (run.id.clone(), run.calls);
    let op = unit.call().map(|call| call.id.clone());
    unit.log(
        "call_ended",
        json!({ "run_id": run_id, "call": call, "op": op, "outcome": outcome, "usage": usage, "error": error }),
    );
    Ok(())
}

/// The call gave no usable answer: it is tried again, or ends the run (design R6, R8).
fn failed(unit: &mut Unit<'_>, failure: &Failure) -> Result<(), SqlError> {
    if unit.agent.ending.is_some() {
        return settle::finish_ending(unit);
    }
    let message = failure.message.as_str();
    match failure.kind {
        FailureKind::Transient | FailureKind::RateLimited | FailureKind::MalformedCall | FailureKind::Aborted => {
            retry(unit, failure)
        }
        FailureKind::Empty | FailureKind::Truncated => {
            let Some(call) = unit.call_mut() else {
                return Ok(());
            };
            if call.empties >= EMPTIES_MAX {
                return settle::end_run(unit, Reason::Empty, Some(message));
            }
            call.empties = call.empties.saturating_add(1);
            again(unit)
        }
        FailureKind::QuotaExhausted => settle::end_run(unit, Reason::Quota, Some(message)),
        FailureKind::Authentication | FailureKind::InvalidRequest => {
            settle::end_run(unit, Reason::Config, Some(message))
        }
        FailureKind::ContextOverflow => settle::end_run(unit, Reason::ContextOverflow, Some(message)),
        FailureKind::ContentFilter => settle::end_run(unit, Reason::ContentFilter, Some(message)),
    }
}

fn retry(unit: &mut Unit<'_>, failure: &Failure) -> Result<(), SqlError> {
    let settings = &unit.machine.settings;
    let (base, cap, retries_max) = (settings.retry_base_ms, settings.retry_max_ms, settings.retries_max);
    let wait_max_ms = settings.retry_wait_max_ms;
    let random = unit.random.next_u128();
    let now_ms = unit.now_ms;
    let Some(call) = unit.call_mut() else {
        return Ok(());
    };
    if failure.retry_after_ms.is_some_and(|wait| wait > wait_max_ms) {
        return settle::end_run(unit, Reason::Quota, Some(&failure.message));
    }
    if call.retries >= retries_max {
        return settle::end_run(unit, Reason::ModelError, Some(&failure.message));
    }
    let delay_ms = failure.retry_after_ms.unwrap_or_else(|| {
        let bound = base.saturating_mul(1u64.checked_shl(call.retries).unwrap_or(u64::MAX)).min(cap);
        full_jitter(bound, random)
    });
    call.retries = call.retries.saturating_add(1);
    call.generation = call.generation.saturating_add(1);
    call.step = CallStep::Backoff;
    call.since_ms = Some(now_ms);
    call.due_ms = Some(now_ms.saturating_add(i64::try_from(delay_ms).unwrap_or(i64::MAX)));
    Ok(())
}

/// A number in `0..=bound`, from these random bits.
fn full_jitter(bound: u64, random: u128) -> u64 {
    let range = u128::from(bound).saturating_add(1);
    random.checked_rem(range).and_then(|number| u64::try_from(number).ok()).unwrap_or(bound)
}

fn outcome_word(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Transient => "transient",
        FailureKind::RateLimited => "rate_limited",
        FailureKind::QuotaExhausted => "quota_exhausted",
        FailureKind::Authentication => "authentication",
        FailureKind::InvalidRequest => "invalid_request",
        FailureKind::ContextOverflow => "context_overflow",
        FailureKind::ContentFilter => "content_filter",
        FailureKind::MalformedCall => "malformed_call",
        FailureKind::Truncated => "truncated",
        FailureKind::Empty => "empty",
        FailureKind::Aborted => "aborted",
    }
}

/// Ends what the call does, for a stop: gives whether something is still to answer.
pub(super) fn abort(unit: &mut Unit<'_>) -> Result<bool, SqlError> {
    let Some(call) = unit.call() else {
        return Ok(false);
    };
    let op = unit.op(&call.id, call.generation);
    let running = call.step == CallStep::Dispatched && unit.run()?.parked.is_none();
    unit.effect(Effect::Abort { op });
    Ok(running)
}

/// A call whose end never came: it is counted with an estimate (design R4), and what was stored of its stream is shown.
pub(super) fn lost(unit: &mut Unit<'_>, partial: &AssistantMessage) -> Result<(), SqlError> {
    log_ended(unit, "lost", &partial.usage, None)?;
    show_partial(unit, partial)?;
    drop_stream(unit)
}

/// The same when the deployment no longer has the model, so that nobody can read what is stored of the stream.
pub(super) fn lost_unread(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    let request_bytes = unit.call().map_or(0, |call| call.request_bytes);
    let usage = Usage { input_tokens: request_bytes.div_ceil(BYTES_PER_TOKEN), estimated: true, ..Usage::default() };
    drop_stream(unit)?;
    log_ended(unit, "lost", &usage, None)
}

/// Folds what is stored of the stream.
pub(super) fn fold_stored(unit: &Unit<'_>) -> Result<Option<Folded>, SqlError> {
    let run = unit.run()?;
    let (Some(target), Some(wire)) = (unit.machine.target(&run.tier, &run.provider), unit.machine.wire(&run.provider))
    else {
        return Ok(None);
    };
    let request_bytes = unit.call().map_or(0, |call| call.request_bytes);
    Ok(Some(wire.fold(&stored_deltas(unit)?, target, request_bytes)))
}

/// Whether the ending is one after which the agent refuses messages.
pub(super) fn refuses_after(kind: EndingKind) -> bool {
    kind == EndingKind::Stop
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
