//! What follows from an outcome, and how a Change stands: the tables of design section 7 as pure functions.

use super::types::{AttemptOutcome, ChangeStatus, TaskStatus};

/// What follows when an attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The Task is done.
    Complete,
    /// A further attempt, after the pause of `retryTask`.
    Retry,
    /// The Task ends; `replan` when somebody should think again.
    Stop {
        /// What it becomes.
        status: TaskStatus,
        /// Whether `task.replan.requested` is told.
        replan: bool,
    },
}

/// Attempts in a row that may end the same way: the second one stops the Task.
const SAME_MAX: usize = 2;

/// What follows from the outcomes of a Task's attempts, oldest first. `None` before the first has ended.
///
/// | outcome | what follows |
/// |---|---|
/// | `completed` | complete |
/// | `failed`, `no_outcome`, `timeout` | first: retry; second: stop, `failed`, replan |
/// | `transport` | first in a row: retry; second: stop, `failed` |
/// | `quota`, `budget` | stop, `budget_blocked` |
/// | `config` | stop, `failed` |
/// | `stopped` | stop, `stopped` |
/// | `parked` | stop, `blocked` |
pub fn next_step(outcomes: &[AttemptOutcome]) -> Option<Step> {
    let last = *outcomes.last()?;
    let stop = |status| Step::Stop { status, replan: false };
    Some(match last {
        AttemptOutcome::Completed => Step::Complete,
        AttemptOutcome::Failed | AttemptOutcome::NoOutcome | AttemptOutcome::Timeout => {
            if outcomes.iter().filter(|outcome| is_intelligence(**outcome)).count() < SAME_MAX {
                Step::Retry
            } else {
                Step::Stop { status: TaskStatus::Failed, replan: true }
            }
        }
        AttemptOutcome::Transport => {
            let in_a_row = outcomes.iter().rev().take_while(|outcome| **outcome == AttemptOutcome::Transport).count();
            if in_a_row < SAME_MAX { Step::Retry } else { stop(TaskStatus::Failed) }
        }
        AttemptOutcome::Quota | AttemptOutcome::Budget => stop(TaskStatus::BudgetBlocked),
        AttemptOutcome::Config => stop(TaskStatus::Failed),
        AttemptOutcome::Stopped => stop(TaskStatus::Stopped),
        AttemptOutcome::Parked => stop(TaskStatus::Blocked),
    })
}

fn is_intelligence(outcome: AttemptOutcome) -> bool {
    matches!(outcome, AttemptOutcome::Failed | AttemptOutcome::NoOutcome | AttemptOutcome::Timeout)
}

/// How a Change stands: the first line that fits.
pub fn change_status(cancelled: bool, begun: bool, tasks: &[TaskStatus]) -> ChangeStatus {
    let any = |wanted: &[TaskStatus]| tasks.iter().any(|status| wanted.contains(status));
    if cancelled {
        ChangeStatus::Cancelled
    } else if any(&[TaskStatus::BudgetBlocked]) {
        ChangeStatus::BudgetBlocked
    } else if any(&[TaskStatus::Ready, TaskStatus::Running, TaskStatus::Retrying]) {
        if begun { ChangeStatus::Running } else { ChangeStatus::Open }
    } else if tasks.iter().all(|status| *status == TaskStatus::Completed) {
        ChangeStatus::Completed
    } else if any(&[TaskStatus::Failed, TaskStatus::Stopped]) {
        ChangeStatus::Failed
    } else {
        ChangeStatus::Blocked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AttemptOutcome as O;
    use TaskStatus as T;

    #[test]
    fn every_row_of_the_outcome_table() {
        let failed = |replan| Some(Step::Stop { status: T::Failed, replan });
        let stop = |status| Some(Step::Stop { status, replan: false });
        let rows: [(&[O], Option<Step>); 19] = [
            (&[], None),
            (&[O::Completed], Some(Step::Complete)),
            (&[O::Failed], Some(Step::Retry)),
            (&[O::NoOutcome], Some(Step::Retry)),
            (&[O::Timeout], Some(Step::Retry)),
            (&[O::Failed, O::NoOutcome], failed(true)),
            (&[O::Timeout, O::Timeout], failed(true)),
            (&[O::Failed, O::Transport, O::Failed], failed(true)),
            (&[O::Transport], Some(Step::Retry)),
            (&[O::Transport, O::Transport], failed(false)),
            (&[O::Transport, O::Failed, O::Transport], Some(Step::Retry)),
            (&[O::Failed, O::Transport], Some(Step::Retry)),
            (&[O::Failed, O::Completed], Some(Step::Complete)),
            (&[O::Quota], stop(T::BudgetBlocked)),
            (&[O::Budget], stop(T::BudgetBlocked)),
            (&[O::Config], failed(false)),
            (&[O::Stopped], stop(T::Stopped)),
            (&[O::Parked], stop(T::Blocked)),
            (&[O::Failed, O::Stopped], stop(T::Stopped)),
        ];
        for (outcomes, wanted) in rows {
            assert_eq!(next_step(outcomes), wanted, "{outcomes:?}");
        }
    }

    #[test]
    fn every_row_of_the_status_table() {
        use ChangeStatus as C;
        let rows: [(bool, bool, &[T], C); 12] = [
            (true, true, &[T::Running], C::Cancelled),
            (false, true, &[T::BudgetBlocked, T::Running], C::BudgetBlocked),
            (false, false, &[T::Ready, T::Pending], C::Open),
            (false, true, &[T::Ready, T::Pending], C::Running),
            (false, true, &[T::Running, T::Failed], C::Running),
            (false, true, &[T::Retrying, T::Completed], C::Running),
            (false, true, &[T::Completed, T::Completed], C::Completed),
            (false, true, &[T::Completed, T::Failed], C::Failed),
            (false, true, &[T::Stopped, T::Blocked], C::Failed),
            (false, true, &[T::Blocked, T::Completed], C::Blocked),
            (false, true, &[T::Failed, T::Blocked], C::Failed),
            (false, false, &[T::Stopped], C::Failed),
        ];
        for (cancelled, begun, tasks, wanted) in rows {
            assert_eq!(change_status(cancelled, begun, tasks), wanted, "{tasks:?}");
        }
    }
}
