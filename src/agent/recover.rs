//! What was in flight when the object died, and what happens then: the table of docs/design.md, row by row. Also what is
//! due, whoever notices it.

use super::interface::Effect;
use super::state::{CallStep, Parked, Phase};
use super::unit::Unit;
use super::{RESTARTS_MAX, call, settle, tools};
use crate::model::wire::Folded;
use crate::port::SqlError;

/// A new instance opens. With nothing in flight it writes nothing.
pub(super) fn open(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    if unit.agent.index.acknowledged < unit.agent.index.version {
        let row = unit.index_row();
        unit.effect(Effect::Index(row));
    }
    if unit.agent.run.is_none() && unit.agent.ending.is_none() {
        return settle::start_next(unit);
    }
    unit.agent.epoch = unit.agent.epoch.saturating_add(1);
    unit.resumed = true;
    if unit.agent.ending.is_some() {
        return settle::finish_ending(unit);
    }
    resume_run(unit, true)
}

/// Goes on with the run where it stands. `count` when what was in flight was cut off by a crash.
pub(super) fn resume_run(unit: &mut Unit<'_>, count: bool) -> Result<(), SqlError> {
    if unit.run()?.parked.is_some() {
        return Ok(());
    }
    match unit.run()?.phase {
        Phase::Call(_) => resume_call(unit, count),
        Phase::Tools { .. } => tools::resume(unit, count),
    }
}

fn resume_call(unit: &mut Unit<'_>, count: bool) -> Result<(), SqlError> {
    let Some((step, pending)) = unit.call().map(|call| (call.step, call.pending)) else {
        return Ok(());
    };
    match step {
        CallStep::Backoff | CallStep::GateWait(_) => Ok(()),
        CallStep::Dispatched => resume_dispatched(unit, count),
        // Never stored; if it were, the call would simply go out again.
        CallStep::Ended => call::again(unit),
        CallStep::Hooks | CallStep::Gate(_) | CallStep::Authorize => {
            let held = step == CallStep::Hooks && pending;
            if count && !held && cut_off(unit, if step == CallStep::Hooks { "hook_crash" } else { "call_crash" })? {
                return Ok(());
            }
            if let Some(call) = unit.call_mut() {
                call.pending = false;
                call.generation = call.generation.saturating_add(1);
            }
            call::ask(unit)
        }
    }
}

/// A request was out. Its end mark stored: the answer is adopted, no request. Otherwise the partial is shown, the call is
/// in the ledger as lost, and the way of a call begins again.
fn resume_dispatched(unit: &mut Unit<'_>, count: bool) -> Result<(), SqlError> {
    match call::fold_stored(unit)? {
        Some(Folded { complete: Some(outcome), .. }) => {
            let Some(op) = unit.call().map(|call| unit.op(&call.id, call.generation)) else {
                return Ok(());
            };
            return call::ended(unit, &op, &outcome);
        }
        Some(folded) => call::lost(unit, &folded.partial)?,
        None => call::lost_unread(unit)?,
    }
    if count && cut_off(unit, "call_crash")? {
        return Ok(());
    }
    call::again(unit)
}

/// Counts a crash against the call in flight (design L3); gives whether that parked it.
fn cut_off(unit: &mut Unit<'_>, reason: &str) -> Result<bool, SqlError> {
    let since_ms = unit.now_ms;
    let Some(call) = unit.call_mut() else {
        return Ok(false);
    };
    let restarts = if call.step == CallStep::Hooks { &mut call.hook_restarts } else { &mut call.restarts };
    *restarts = restarts.saturating_add(1);
    if *restarts < RESTARTS_MAX {
        return Ok(false);
    }
    call.generation = call.generation.saturating_add(1);
    call.step = CallStep::Hooks;
    call.pending = false;
    unit.run_mut()?.parked = Some(Parked { reason: reason.to_owned(), since_ms });
    Ok(true)
}

/// `retry`: a parked run gets one more series.
pub(super) fn unpark(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    unit.run_mut()?.parked = None;
    if let Some(call) = unit.call_mut() {
        call.restarts = 0;
        call.hook_restarts = 0;
    } else {
        tools::forgive(unit)?;
    }
    resume_run(unit, false)
}

/// Does what is due. It may run at any time and any number of times.
pub(super) fn fire_due(unit: &mut Unit<'_>) -> Result<(), SqlError> {
    let now_ms = unit.now_ms;
    if unit.agent.rests() && unit.agent.index.acknowledged < unit.agent.index.version {
        let row = unit.index_row();
        unit.effect(Effect::Index(row));
    }
    if let Some(ending) = unit.agent.ending.as_ref() {
        return if ending.due_ms <= now_ms { settle::finish_ending(unit) } else { Ok(()) };
    }
    match unit.agent.run.as_ref().map(|run| &run.phase) {
        Some(Phase::Call(in_flight)) if in_flight.due_ms.is_some_and(|due| due <= now_ms) => call::due(unit),
        Some(Phase::Tools { due_ms: Some(due) }) if *due <= now_ms => tools::due(unit),
        _ => Ok(()),
    }
}
