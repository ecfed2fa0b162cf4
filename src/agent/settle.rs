//! Submissions and the ends of runs: each accepted input settles exactly once (design I3), and nothing is lost to a stop
//! (I4).

use super::interface::Effect;
use super::state::{CallStep, EndingKind, Failures, Mode, Parked, Phase, Reason, Run};
use super::unit::Unit;
use super::{FAILURES_MAX, call, tools};
use crate::log::parse;
use crate::model::message::{Block, Message};
use crate::port::{Row, SqlError};
use crate::sabotage::{Fault, active};
use serde_json::json;

/// A submission that waits.
struct Queued {
    request_id: String,
    content: Vec<Block>,
}

fn queued(unit: &Unit<'_>, mode: Option<Mode>, limit: i64) -> Result<Vec<Queued>, SqlError> {
    if unit.agent.queued == 0 {
        return Ok(Vec::new());
    }
    let rows = unit.tx.query(
        "SELECT request_id, content FROM submission WHERE status = 'queued' AND (?1 IS NULL OR mode = ?1) \
         ORDER BY position LIMIT ?2",
        &[mode.map(Mode::as_str).into(), limit.into()],
    )?;
    rows.iter().map(read_queued).collect()
}

fn read_queued(row: &Row) -> Result<Queued, SqlError> {
    let content = parse(row.text(1)?, "submission.content")?;
    Ok(Queued { request_id: row.text(0)?.to_owned(), content })
}

/// The input enters the transcript; gives its entry's number.
pub(super) fn place(unit: &mut Unit<'_>, request_id: &str, content: &[Block]) -> Result<i64, SqlError> {
    let entry = unit.entry("user", &Message::User { content: content.to_vec() })?;
    unit.run_mut()?.placed.push(request_id.to_owned());
    Ok(entry)
}

fn place_queued(unit: &mut Unit<'_>, input: &Queued) -> Result<(), SqlError> {
    let entry = place(unit, &input.request_id, &input.content)?;
    let run_id = unit.run()?.id.clone();
    unit.agent.queued = unit.agent.queued.saturating_sub(1);
    unit.tx.run(
        "UPDATE submission SET status = 'placed', run_id = ?2, entry = ?3, content = NULL WHERE request_id = ?1",
        &[input.request_id.as_str().into(), run_id.into(), entry.into()],
    )?;
    Ok(())
}

/// Steers join now; gives whether there were any.
pub(super) fn place_steers(unit: &mut Unit<'_>) -> Result<bool, SqlError> {
    let steers = queued(unit, Some(Mode::Steer), i64::from(super::QUEUED_MAX))?;
    for input in &steers {
        place_queued(unit, input)?;
    }
    Ok(!steers.is_empty())
}

/// Begins a run and gives its id; the caller places its input and then begins the call.
pub(super) fn open_run(unit: &mut Unit<'_>) -> Result<String, SqlError> {
    let id = unit.new_id("run");
    let provider = unit.config.provider.clone().unwrap_or_else(|| unit.machine.settings.provider.clone());
    unit.agent.run = Some(Run {
        id: id.clone(),
        started_ms: unit.now_ms,
        tier: unit.config.tier.clone(),
        provider: provider.clone(),
        placed: Vec::new(),
        calls: 0,
        truncated_in_a_row: 0,
        parked: None,
        phase: Phase::Tools { due_ms: None },
    });
    unit.log("run_started", json!({ "run_id": id, "tier": unit.config.tier, "provider": provider }));
    Ok(id)
}

/// The oldest waiting input starts a run of its own, if the agent may work.
pub(super) fn start_next(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    let may_work =
        unit.agent.run.is_none() && unit.agent.parked.is_none() && !unit.agent.stopped && !unit.agent.deleted;
    if !may_work {
        return Ok(());
    }
    let waiting = queued(unit, None, 1)?;
    let Some(input) = waiting.first() else {
        return Ok(());
    };
    open_run(unit)?;
    place_queued(unit, input)?;
    call::begin(unit)
}

/// The answer is there: what was placed before its call settles with it, then steers and the next follow-up join.
pub(super) fn answer(unit: &mut Unit<'_>, entry: i64) -> Result<(), SqlError> {
    settle_placed(unit, Some(entry), None)?;
    unit.agent.failures = None;
    if !place_steers(unit)? {
        let next = queued(unit, Some(Mode::FollowUp), 1)?;
        let Some(input) = next.first() else {
            return close_run(unit, "done", None, None);
        };
        place_queued(unit, input)?;
    }
    call::begin(unit)
}

fn settle_placed(unit: &mut Unit<'_>, answer: Option<i64>, reason: Option<Reason>) -> Result<(), SqlError> {
    let placed = unit.run()?.placed.clone();
    for request_id in &placed {
        settle_one(unit, request_id, answer, reason)?;
    }
    if !active(Fault::SubmissionSettledTwice) {
        unit.run_mut()?.placed.clear();
    }
    Ok(())
}

fn settle_one(
    unit: &mut Unit<'_>,
    request_id: &str,
    answer: Option<i64>,
    reason: Option<Reason>,
) -> Result<(), SqlError> {
    let status = if answer.is_some() { "done" } else { "unanswered" };
    let reason = reason.map(Reason::as_str);
    let changed = unit.tx.execute(
        "UPDATE submission SET status = ?2, answer = ?3, reason = ?4, content = NULL \
         WHERE request_id = ?1 AND (status IN ('queued', 'placed') OR ?5)",
        &[request_id.into(), status.into(), answer.into(), reason.into(), active(Fault::SubmissionSettledTwice).into()],
    )?;
    if changed > 0 {
        unit.log(
            "submission",
            json!({ "request_id": request_id, "status": status, "reason": reason, "answer_seq": answer }),
        );
    }
    Ok(())
}

/// The run ends without an answer; what it had placed settles with the reason.
pub(super) fn end_run(unit: &mut Unit<'_>, reason: Reason, note: Option<&str>) -> Result<(), SqlError> {
    settle_placed(unit, None, Some(reason))?;
    if reason.counts_as_failure() {
        let count = match unit.agent.failures.as_ref() {
            Some(failures) if failures.reason == reason => failures.count.saturating_add(1),
            _ => 1,
        };
        unit.agent.failures = Some(Failures { reason, count });
        if count >= FAILURES_MAX {
            unit.agent.parked =
                Some(Parked { reason: Reason::RepeatedFailure.as_str().to_owned(), since_ms: unit.now_ms });
        }
    }
    close_run(unit, "unanswered", Some(reason), note)
}

fn close_run(unit: &mut Unit<'_>, outcome: &str, reason: Option<Reason>, note: Option<&str>) -> Result<(), SqlError> {
    let run = unit.run()?;
    let (run_id, calls) = (run.id.clone(), run.calls);
    unit.log(
        "run_ended",
        json!({ "run_id": run_id, "outcome": outcome, "reason": reason.map(Reason::as_str), "detail": note, "calls": calls }),
    );
    unit.tx.run("DELETE FROM memo WHERE run_id = ?1", &[run_id.into()])?;
    unit.agent.run = None;
    if unit.agent.ending.is_some() {
        return Ok(());
    }
    start_next(unit)
}

/// Ends the run at once, whatever is at work in it: for a deletion.
pub(super) fn abandon(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    unit.agent.ending = None;
    match unit.agent.run.as_ref().map(|run| &run.phase) {
        Some(Phase::Call(_)) => call::abort(unit)?,
        Some(Phase::Tools { .. }) => tools::abort(unit)?,
        None => false,
    };
    settle_placed(unit, None, Some(Reason::Deleted))?;
    unit.agent.run = None;
    Ok(())
}

/// All that waits settles with this reason.
pub(super) fn settle_queue(unit: &mut Unit<'_>, reason: Reason) -> Result<(), SqlError> {
    for input in queued(unit, None, i64::from(super::QUEUED_MAX))? {
        settle_one(unit, &input.request_id, None, Some(reason))?;
    }
    unit.agent.queued = 0;
    Ok(())
}

/// Ends what is in flight after the mark is set: at once when nothing is really at work, else when it has answered or its
/// grace is over (design X1).
pub(super) fn press(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    let running = match unit.agent.run.as_ref().map(|run| &run.phase) {
        None => false,
        Some(Phase::Call(_)) => call::abort(unit)?,
        Some(Phase::Tools { .. }) => tools::abort(unit)?,
    };
    if running { Ok(()) } else { finish_ending(unit) }
}

/// The end of a stop or interrupt: whatever has not answered by now is left behind.
pub(super) fn finish_ending(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    let Some(ending) = unit.agent.ending.clone() else {
        return Ok(());
    };
    let reason = if call::refuses_after(ending.kind) { Reason::Stopped } else { Reason::Interrupted };
    if unit.agent.run.is_some() {
        if let Some((step, op)) = unit.call().map(|call| (call.step, unit.op(&call.id, call.generation))) {
            if step == CallStep::Dispatched {
                leave_call(unit)?;
                unit.effect(Effect::Abort { op });
            }
        } else {
            tools::close_round(unit, ending.kind)?;
        }
        end_run(unit, reason, ending.note.as_deref())?;
    }
    unit.agent.ending = None;
    match ending.kind {
        EndingKind::Stop => {
            unit.agent.stopped = true;
            settle_queue(unit, Reason::Stopped)
        }
        EndingKind::Interrupt => start_next(unit),
    }
}

/// A dispatched call that did not answer in time.
fn leave_call(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    match call::fold_stored(unit)? {
        Some(folded) => call::lost(unit, &folded.partial),
        None => call::lost_unread(unit),
    }
}
