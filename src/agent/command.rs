//! The commands: what somebody asks, checked and carried out or refused, in one transaction.

use super::interface::{Command, Reply};
use super::state::{AgentConfig, CallStep, Ending, EndingKind, Mode, Phase, Reason};
use super::unit::{CommandResult, Unit};
use super::{QUEUED_MAX, call, recover, settle, view};
use crate::error::{ApiError, Code};
use crate::log::to_json;
use crate::model::message::Block;
use serde_json::Value;

/// Signals kept for a tool that does not wait yet.
const SIGNALS_KEPT: i64 = 100;

pub(super) fn carry_out(unit: &mut Unit<'_>, command: &Command) -> CommandResult<Reply> {
    if unit.agent.deleted {
        return Err(ApiError::new(Code::AgentDeleted));
    }
    // A message or a configuration makes an agent; nothing else does.
    if unit.is_new() && !matches!(command, Command::Submit { .. } | Command::Configure { .. }) {
        return Err(ApiError::new(Code::NotFound));
    }
    match command {
        Command::Submit { request_id, body_sha256, content, mode } => {
            submit(unit, request_id, body_sha256, content, *mode)
        }
        Command::Stop { reason } => end(unit, EndingKind::Stop, reason.clone()),
        Command::Interrupt { keep_queue } => interrupt(unit, *keep_queue),
        Command::Retry => retry(unit),
        Command::Signal { name, request_id, call, value } => signal(unit, name, request_id, call.as_deref(), value),
        Command::Configure { config } => configure(unit, config),
        Command::Delete => delete(unit),
    }
}

fn agent_reply(unit: &Unit<'_>) -> Reply {
    Reply::Agent(view::agent_json(&unit.agent, Vec::new()))
}

fn submit(
    unit: &mut Unit<'_>,
    request_id: &str,
    body_sha256: &str,
    content: &[Block],
    mode: Mode,
) -> CommandResult<Reply> {
    if let Some(stored) = view::stored_submission(unit.tx, request_id)? {
        if stored.body_sha256 != body_sha256 {
            let message = format!("request_id {request_id:?} was used with another body");
            return Err(ApiError::because(Code::Conflict, message).with_hint("Use a new request_id for a new message."));
        }
        return Ok(Reply::Submission { submission: view::submission_json(unit.tx, &stored)?, created: false });
    }
    if unit.agent.stopped || unit.agent.ending.as_ref().is_some_and(|ending| call::refuses_after(ending.kind)) {
        return Err(ApiError::new(Code::AgentStopped));
    }
    let busy = unit.agent.run.is_some();
    if busy && mode == Mode::Reject {
        return Err(ApiError::new(Code::AgentBusy));
    }
    if unit.agent.queued >= QUEUED_MAX {
        return Err(ApiError::because(Code::RateLimited, format!("{QUEUED_MAX} messages wait for this agent already")));
    }
    let starts = !busy && unit.agent.parked.is_none() && unit.agent.queued == 0;
    let joins = mode == Mode::Steer && may_join(unit);
    let waiting = if starts || joins { None } else { Some(admit_to_queue(unit, content)?) };
    unit.agent.accepted = unit.agent.accepted.saturating_add(1);
    let id = unit.new_id("sub");
    let (mut status, mut run_id, mut entry) = ("queued", None, None);
    if starts || joins {
        run_id = Some(if starts { settle::open_run(unit)? } else { unit.run()?.id.clone() });
        entry = Some(settle::place(unit, request_id, content)?);
        status = "placed";
    } else {
        unit.agent.queued = unit.agent.queued.saturating_add(1);
    }
    unit.tx.run(
        "INSERT INTO submission (request_id, id, position, mode, body_sha256, content, status, run_id, entry, created_ms) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        &[
            request_id.into(),
            id.into(),
            unit.agent.accepted.into(),
            mode.as_str().into(),
            body_sha256.into(),
            waiting.into(),
            status.into(),
            run_id.into(),
            entry.into(),
            unit.now_ms.into(),
        ],
    )?;
    if starts {
        call::begin(unit)?;
    }
    let stored =
        view::stored_submission(unit.tx, request_id)?.ok_or_else(|| ApiError::new(Code::StorageUnavailable))?;
    Ok(Reply::Submission { submission: view::submission_json(unit.tx, &stored)?, created: true })
}

/// The content as it waits, or the refusal: all that waits may join in one transaction, and must fit the memory then.
fn admit_to_queue(unit: &Unit<'_>, content: &[Block]) -> CommandResult<String> {
    let text = to_json(&content)?;
    if text.len() > QUEUED_SMALL_BYTES {
        let sql = "SELECT COALESCE(SUM(length(content)), 0) FROM submission WHERE status = 'queued'";
        let waiting = unit.tx.query(sql, &[])?.first().map_or(Ok(0), |row| row.integer(0))?;
        let together = usize::try_from(waiting).unwrap_or(usize::MAX).saturating_add(text.len());
        if together > QUEUED_BYTES_MAX {
            let message = format!("messages of {waiting} bytes wait for this agent already");
            return Err(ApiError::because(Code::RateLimited, message));
        }
    }
    Ok(text)
}

/// Bytes of messages that may wait; small ones are counted by their number only ([`QUEUED_MAX`]).
const QUEUED_BYTES_MAX: usize = 8 * 1024 * 1024;
const QUEUED_SMALL_BYTES: usize = 64 * 1024;

/// Whether a steer can enter the transcript now: the next request has not left yet, and no result is owed.
fn may_join(unit: &Unit<'_>) -> bool {
    unit.agent.ending.is_none() && unit.call().is_some_and(|call| call.step != CallStep::Dispatched)
}

/// What waits now settles now: what comes while the run is being ended is a new word and stays.
fn interrupt(unit: &mut Unit<'_>, keep_queue: bool) -> CommandResult<Reply> {
    let stopping = unit.agent.ending.as_ref().is_some_and(|ending| call::refuses_after(ending.kind));
    if !keep_queue && !stopping {
        settle::settle_queue(unit, Reason::Interrupted)?;
    }
    end(unit, EndingKind::Interrupt, None)
}

fn end(unit: &mut Unit<'_>, kind: EndingKind, note: Option<String>) -> CommandResult<Reply> {
    if unit.agent.stopped {
        return Ok(agent_reply(unit));
    }
    if let Some(ending) = unit.agent.ending.as_mut() {
        // A stop outranks an interrupt that is under way.
        if call::refuses_after(kind) {
            ending.kind = kind;
        }
        return Ok(agent_reply(unit));
    }
    if unit.agent.run.is_some() {
        let due_ms = unit.now_ms.saturating_add(unit.machine.settings.stop_grace_ms);
        unit.agent.ending = Some(Ending { kind, note, due_ms });
        settle::press(unit)?;
    } else {
        match kind {
            EndingKind::Stop => {
                unit.agent.stopped = true;
                settle::settle_queue(unit, Reason::Stopped)?;
            }
            EndingKind::Interrupt => {}
        }
    }
    Ok(agent_reply(unit))
}

fn retry(unit: &mut Unit<'_>) -> CommandResult<Reply> {
    // A stop under way still ends the run; the agent then goes on.
    if let Some(ending) = unit.agent.ending.as_mut()
        && call::refuses_after(ending.kind)
    {
        ending.kind = EndingKind::Interrupt;
    }
    unit.agent.stopped = false;
    unit.agent.parked = None;
    unit.agent.failures = None;
    if unit.agent.ending.is_none() {
        if unit.agent.run.as_ref().is_some_and(|run| run.parked.is_some()) {
            recover::unpark(unit)?;
        } else {
            settle::start_next(unit)?;
        }
    }
    Ok(agent_reply(unit))
}

fn signal(
    unit: &mut Unit<'_>,
    name: &str,
    request_id: &str,
    call: Option<&str>,
    value: &Value,
) -> CommandResult<Reply> {
    unit.tx.run(
        "INSERT INTO signal (request_id, name, call, value, at_ms) VALUES (?1, ?2, ?3, ?4, ?5) \
         ON CONFLICT (request_id) DO NOTHING",
        &[request_id.into(), name.into(), call.into(), to_json(value)?.into(), unit.now_ms.into()],
    )?;
    unit.tx.run(
        "DELETE FROM signal WHERE request_id IN (SELECT request_id FROM signal ORDER BY at_ms DESC, request_id DESC \
         LIMIT -1 OFFSET ?1)",
        &[SIGNALS_KEPT.into()],
    )?;
    Ok(Reply::Done)
}

/// What is at work is aborted, what waits settles `deleted` for those who watch, then all rows go (design S6).
fn delete(unit: &mut Unit<'_>) -> CommandResult<Reply> {
    if unit.agent.run.is_some() {
        settle::abandon(unit)?;
    }
    settle::settle_queue(unit, Reason::Deleted)?;
    unit.delete_everything()?;
    Ok(Reply::Done)
}

fn configure(unit: &mut Unit<'_>, config: &AgentConfig) -> CommandResult<Reply> {
    unit.config = config.clone();
    // A run keeps its tier and provider; a request that has not left yet is prepared with the new prompt and tools.
    if let Some(Phase::Call(_)) = unit.agent.run.as_ref().map(|run| &run.phase) {
        unit.log("config", serde_json::json!({ "tier": config.tier, "provider": config.provider }));
    }
    Ok(agent_reply(unit))
}
