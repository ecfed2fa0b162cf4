//! A round of tool calls (design T1 to T5): intent first, each call exactly one result entry, in call order.

use super::interface::{Effect, HookCall, OpRef, Verdict};
use super::state::{EndingKind, Parked, Phase, Replay, ToolOp, ToolResult, ToolStep};
use super::unit::Unit;
use super::{RESTARTS_MAX, TOOL_CALLS_MAX, TOOLS_AT_ONCE, call, settle};
use crate::error::tool_code;
use crate::model::message::{AssistantMessage, Block, Message};
use crate::port::SqlError;
use crate::sabotage::{Fault, active};
use serde_json::json;

/// The answer asks for tools: each call becomes a row of work, and those that cannot run have their error at once.
pub(super) fn begin_round(unit: &mut Unit<'_>, message: &AssistantMessage) -> Result<(), SqlError> {
    unit.run_mut()?.phase = Phase::Tools { due_ms: None };
    for (position, block) in message.content.iter().filter(|block| matches!(block, Block::ToolCall { .. })).enumerate()
    {
        let Block::ToolCall { id, name, arguments } = block else {
            continue;
        };
        let mut tool = ToolOp {
            position: i64::try_from(position).unwrap_or(i64::MAX),
            id: unit.new_id("tool"),
            generation: 0,
            step: ToolStep::Queued,
            tool_call_id: id.clone(),
            name: name.clone(),
            arguments: arguments.clone(),
            replay: Replay::Unsafe,
            timeout_ms: unit.machine.settings.tool_timeout_ms,
            resource: None,
            restarts: 0,
            pending: false,
            due_ms: None,
            result: None,
        };
        let fault = message.call_faults.iter().find(|fault| fault.tool_call_id == *id).map(|fault| &fault.problem);
        match admit(unit, &mut tool, position, fault) {
            Ok(()) => {}
            Err(result) => finish(&mut tool, result),
        }
        unit.save_tool(&tool)?;
    }
    go_on(unit)
}

/// Whether the call can run at all; if not, the error that answers it.
fn admit(unit: &Unit<'_>, tool: &mut ToolOp, position: usize, fault: Option<&String>) -> Result<(), ToolResult> {
    if position >= TOOL_CALLS_MAX {
        let text = format!("Not executed: at most {TOOL_CALLS_MAX} calls of one answer are.");
        return Err(ToolResult::error(tool_code::TOO_MANY_CALLS, text));
    }
    let Some(spec) = call::active_tools(unit).into_iter().find(|spec| spec.name == tool.name) else {
        return Err(ToolResult::error(
            tool_code::TOOL_UNAVAILABLE,
            format!("There is no tool named {}.", quoted(&tool.name)),
        ));
    };
    if let Some(problem) = fault {
        return Err(ToolResult::error(tool_code::INVALID_ARGUMENTS, format!("Not executed: {problem}")));
    }
    tool.replay = spec.replay;
    tool.timeout_ms = spec.timeout_ms.unwrap_or(unit.machine.settings.tool_timeout_ms);
    tool.resource.clone_from(&spec.resource);
    check(unit, tool)
}

/// Bytes of a call's arguments and of its result, as JSON. Both stand in one row of work until the round is over, and no
/// cell is to be above 1 MiB (design S3); half of that is more than most contexts hold.
const ARGUMENT_BYTES_MAX: usize = 384 * 1024;
const RESULT_BYTES_MAX: usize = 512 * 1024;

/// A result that fits its row, or the error that says how large it was.
fn bounded(result: &ToolResult) -> ToolResult {
    let bytes = json_bytes(result);
    if bytes <= RESULT_BYTES_MAX {
        return result.clone();
    }
    let text = format!("The tool ended, but its result of {bytes} bytes is above {RESULT_BYTES_MAX} and was not kept.");
    ToolResult::error(tool_code::TOOL_FAILED, text)
}

fn json_bytes<T: serde::Serialize>(value: &T) -> usize {
    serde_json::to_string(value).map_or(usize::MAX, |text| text.len())
}

fn check(unit: &Unit<'_>, tool: &ToolOp) -> Result<(), ToolResult> {
    let bytes = json_bytes(&tool.arguments);
    if bytes > ARGUMENT_BYTES_MAX {
        let text = format!("Not executed: the arguments have {bytes} bytes, more than {ARGUMENT_BYTES_MAX}.");
        return Err(ToolResult::error(tool_code::INVALID_ARGUMENTS, text));
    }
    (unit.machine.check_arguments)(&tool.name, &tool.arguments).map_err(|problem| {
        ToolResult::error(tool_code::INVALID_ARGUMENTS, format!("Not executed, the arguments do not fit: {problem}"))
    })
}

/// A name of the model's, short and in one line, for an error text.
fn quoted(name: &str) -> String {
    let short: String = name.chars().take(64).collect();
    format!("{short:?}")
}

fn finish(tool: &mut ToolOp, result: ToolResult) {
    // Nobody reads them any more: the transcript has the call.
    tool.arguments = json!({});
    tool.step = ToolStep::Done;
    tool.generation = tool.generation.saturating_add(1);
    tool.due_ms = None;
    tool.pending = false;
    tool.result = Some(result);
}

/// Writes the results that are due in call order, starts what may start, and ends the round when all is done.
pub(super) fn go_on(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    start_queued(unit)?;
    let rest = write_results(unit)?;
    if rest.is_empty() {
        if unit.agent.ending.is_some() {
            return settle::finish_ending(unit);
        }
        settle::place_steers(unit)?;
        return call::begin(unit);
    }
    let due_ms = rest.iter().filter_map(|tool| tool.due_ms).min();
    unit.run_mut()?.phase = Phase::Tools { due_ms };
    Ok(())
}

/// Results become entries strictly in call order: one that is done waits for those before it. Gives what is left.
fn write_results(unit: &mut Unit<'_>) -> Result<Vec<ToolOp>, SqlError> {
    let mut tools = unit.tools()?;
    let ready = tools.iter().take_while(|tool| tool.step == ToolStep::Done).count();
    let rest = tools.split_off(ready);
    for tool in &tools {
        let result = tool
            .result
            .clone()
            .unwrap_or_else(|| ToolResult::error(tool_code::TOOL_FAILED, "The tool gave no result."));
        unit.entry(
            "tool_result",
            &Message::ToolResult {
                tool_call_id: tool.tool_call_id.clone(),
                tool_name: tool.name.clone(),
                content: result.content,
                is_error: result.is_error,
                code: result.code,
            },
        )?;
        unit.delete_tool(tool)?;
    }
    Ok(rest)
}

fn start_queued(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    if unit.agent.ending.is_some() || unit.run()?.parked.is_some() {
        return Ok(());
    }
    let tools = unit.tools()?;
    let mut busy: Vec<Option<String>> = tools
        .iter()
        .filter(|tool| matches!(tool.step, ToolStep::Hooks | ToolStep::Started))
        .map(|tool| tool.resource.clone())
        .collect();
    for mut tool in tools.into_iter().filter(|tool| tool.step == ToolStep::Queued) {
        if busy.len() >= TOOLS_AT_ONCE {
            break;
        }
        if tool.resource.is_some() && busy.contains(&tool.resource) {
            continue;
        }
        busy.push(tool.resource.clone());
        if unit.machine.catalog.handles_tool_call {
            tool.step = ToolStep::Hooks;
            ask_hooks(unit, &tool);
        } else {
            start(unit, &mut tool)?;
        }
        unit.save_tool(&tool)?;
    }
    Ok(())
}

fn ask_hooks(unit: &mut Unit<'_>, tool: &ToolOp) {
    let (op, context) = (unit.op(&tool.id, tool.generation), unit.hook_context());
    let hook = HookCall::ToolCall {
        tool_call_id: tool.tool_call_id.clone(),
        tool_name: tool.name.clone(),
        input: tool.arguments.clone(),
    };
    unit.effect(Effect::AskHooks { op, hook, context });
}

/// The handlers of `tool_call` said what they think; what they left as input is checked again (hooks.md, detail 1).
pub(super) fn hooks_answered(unit: &mut Unit<'_>, op: &OpRef, verdict: &Verdict) -> Result<(), SqlError> {
    let Some(mut tool) = unit.current_tool(op)?.filter(|tool| tool.step == ToolStep::Hooks) else {
        return Ok(());
    };
    call::report(unit, &verdict.reports)?;
    tool.pending = false;
    if let Some(input) = &verdict.input {
        tool.arguments = input.clone();
    }
    let blocked =
        verdict.block.as_ref().map(|reason| ToolResult::error(tool_code::BLOCKED, format!("Blocked: {reason}")));
    match blocked.map_or_else(|| check(unit, &tool), Err) {
        Ok(()) => start(unit, &mut tool)?,
        Err(result) => finish(&mut tool, result),
    }
    unit.save_tool(&tool)?;
    go_on(unit)
}

/// See [`call::hooks_pending`].
pub(super) fn hooks_pending(unit: &mut Unit<'_>, op: &OpRef) -> Result<(), SqlError> {
    if let Some(mut tool) = unit.current_tool(op)?.filter(|tool| tool.step == ToolStep::Hooks) {
        tool.pending = true;
        tool.restarts = 0;
        unit.save_tool(&tool)?;
    }
    Ok(())
}

/// Commits the final arguments and the replay policy, and lets the tool go (design T1).
fn start(unit: &mut Unit<'_>, tool: &mut ToolOp) -> Result<(), SqlError> {
    tool.step = ToolStep::Started;
    // A new row is progress: deaths at its hooks are no deaths of the tool.
    tool.restarts = 0;
    let run_id = unit.run()?.id.clone();
    unit.log(
        "tool_started",
        json!({
            "run_id": run_id, "op": tool.id, "tool_call_id": tool.tool_call_id, "tool": tool.name,
            "arguments": tool.arguments, "replay": tool.replay,
        }),
    );
    launch(unit, tool);
    Ok(())
}

fn launch(unit: &mut Unit<'_>, tool: &mut ToolOp) {
    let timeout_ms = i64::try_from(tool.timeout_ms).unwrap_or(i64::MAX);
    tool.due_ms = Some(unit.now_ms.saturating_add(timeout_ms));
    let (op, context) = (unit.op(&tool.id, tool.generation), unit.hook_context());
    unit.effect(Effect::RunTool {
        op,
        name: tool.name.clone(),
        arguments: tool.arguments.clone(),
        tool_call_id: tool.tool_call_id.clone(),
        context,
    });
}

/// The tool ended. Its result is committed before anything follows from it.
pub(super) fn ended(unit: &mut Unit<'_>, op: &OpRef, result: &ToolResult) -> Result<(), SqlError> {
    let Some(mut tool) = unit.current_tool(op)?.filter(|tool| tool.step == ToolStep::Started) else {
        return Ok(());
    };
    complete(unit, &mut tool, bounded(result))?;
    go_on(unit)
}

fn complete(unit: &mut Unit<'_>, tool: &mut ToolOp, result: ToolResult) -> Result<(), SqlError> {
    unit.log(
        "tool_ended",
        json!({
            "op": tool.id, "tool_call_id": tool.tool_call_id, "tool": tool.name, "is_error": result.is_error,
            "code": result.code,
        }),
    );
    finish(tool, result);
    unit.save_tool(tool)
}

/// Tools whose time is over are left behind and answered with an error.
pub(super) fn due(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    for mut tool in unit.tools()? {
        if tool.step == ToolStep::Started && tool.due_ms.is_some_and(|due| due <= unit.now_ms) {
            let op = unit.op(&tool.id, tool.generation);
            unit.effect(Effect::Abort { op });
            let text =
                format!("The tool did not end within {} ms. Whether it had an effect is unknown.", tool.timeout_ms);
            complete(unit, &mut tool, ToolResult::error(tool_code::TOOL_TIMEOUT, text))?;
        }
    }
    go_on(unit)
}

/// Ends what the tools do, for a stop: those that run get their signal and the grace, the others their error at once.
/// Gives whether something is still to answer.
pub(super) fn abort(unit: &mut Unit<'_>) -> Result<bool, SqlError> {
    let parked = unit.run()?.parked.is_some();
    let mut running = false;
    for mut tool in unit.tools()? {
        match tool.step {
            ToolStep::Started if !parked => {
                running = true;
                let op = unit.op(&tool.id, tool.generation);
                unit.effect(Effect::Abort { op });
            }
            ToolStep::Started | ToolStep::Done => {}
            ToolStep::Queued | ToolStep::Hooks => {
                let op = unit.op(&tool.id, tool.generation);
                unit.effect(Effect::Abort { op });
                finish(&mut tool, ToolResult::error(tool_code::STOPPED, "Not executed: the run was ended before."));
                unit.save_tool(&tool)?;
            }
        }
    }
    Ok(running)
}

/// Every call that has no result yet gets one, and all are written: the round is over.
pub(super) fn close_round(unit: &mut Unit<'_>, kind: EndingKind) -> Result<(), SqlError> {
    let word = if call::refuses_after(kind) { "stopped" } else { "interrupted" };
    for mut tool in unit.tools()? {
        if tool.step == ToolStep::Started {
            let text = format!("The run was {word} while the tool was at work. Whether it had an effect is unknown.");
            complete(unit, &mut tool, ToolResult::error(tool_code::INTERRUPTED, text))?;
        } else if tool.step != ToolStep::Done {
            finish(&mut tool, ToolResult::error(tool_code::STOPPED, "Not executed: the run was ended before."));
            unit.save_tool(&tool)?;
        }
    }
    write_results(unit)?;
    Ok(())
}

/// After a crash: a hook is asked again, a replay-safe tool runs again with the stored arguments, any other is answered
/// `interrupted`, its effect unknown (design T3). `count` when the death counts against the operation (design L3).
pub(super) fn resume(unit: &mut Unit<'_>, count: bool) -> Result<(), SqlError> {
    let mut tools = unit.tools()?;
    if count && park(unit, &mut tools)? {
        return Ok(());
    }
    for mut tool in tools {
        match tool.step {
            ToolStep::Queued | ToolStep::Done => continue,
            ToolStep::Hooks => {
                tool.pending = false;
                tool.generation = tool.generation.saturating_add(1);
                ask_hooks(unit, &tool);
            }
            ToolStep::Started if may_run_again(&tool) => {
                tool.generation = tool.generation.saturating_add(1);
                launch(unit, &mut tool);
            }
            ToolStep::Started => {
                let text = "The tool was interrupted by a restart. Whether it had an effect is unknown: check before you call it again.";
                complete(unit, &mut tool, ToolResult::error(tool_code::INTERRUPTED, text))?;
            }
        }
        unit.save_tool(&tool)?;
    }
    go_on(unit)
}

/// Counts a death against the calls it cut off; gives whether that parked the run. Then the whole round rests as it is:
/// were the other calls started again, `retry` could not tell them from those that a later death cut off, and would start
/// them twice.
fn park(unit: &mut Unit<'_>, tools: &mut [ToolOp]) -> Result<bool, SqlError> {
    let mut reason = None;
    for tool in tools.iter_mut() {
        let word = match tool.step {
            ToolStep::Hooks if !tool.pending => "hook_crash",
            ToolStep::Started if may_run_again(tool) => "tool_crash",
            _ => continue,
        };
        tool.restarts = tool.restarts.saturating_add(1);
        if tool.restarts >= RESTARTS_MAX {
            reason = Some(word);
        }
    }
    let Some(reason) = reason else {
        return Ok(false);
    };
    for tool in tools.iter_mut() {
        tool.due_ms = None;
        unit.save_tool(tool)?;
    }
    let since_ms = unit.now_ms;
    let run = unit.run_mut()?;
    run.phase = Phase::Tools { due_ms: None };
    run.parked = Some(Parked { reason: reason.to_owned(), since_ms });
    Ok(true)
}

fn may_run_again(tool: &ToolOp) -> bool {
    tool.replay == Replay::Safe || active(Fault::UnsafeToolRunAgain)
}

/// `retry` of a parked run: one more series for each operation.
pub(super) fn forgive(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    for mut tool in unit.tools()? {
        if tool.restarts > 0 {
            tool.restarts = 0;
            unit.save_tool(&tool)?;
        }
    }
    Ok(())
}

/// Answers every call of a message with this error, without running any.
pub(super) fn refuse_all(
    unit: &mut Unit<'_>,
    message: &AssistantMessage,
    code: &str,
    text: &str,
) -> Result<(), SqlError> {
    for block in &message.content {
        if let Block::ToolCall { id, name, .. } = block {
            unit.entry(
                "tool_result",
                &Message::ToolResult {
                    tool_call_id: id.clone(),
                    tool_name: name.clone(),
                    content: vec![Block::text(text)],
                    is_error: true,
                    code: Some(code.to_owned()),
                },
            )?;
        }
    }
    Ok(())
}
