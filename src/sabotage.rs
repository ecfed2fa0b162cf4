//! Deliberate faults, to prove that the simulation sees them. They exist only under `--cfg agentdo_sabotage`, which no
//! release has: `make test` builds once with it and requires the simulation to turn red under each.

/// The faults that can be switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The alarm is set after the commit instead of within it.
    AlarmOutsideTransaction,
    /// A model request leaves before `call_started` is committed.
    IntentAfterEffect,
    /// The stop mark is looked at before the credentials are fetched, and not again.
    StopCheckBeforeCredentials,
    /// Events of an older instance are taken.
    EpochCheckDropped,
    /// A hook's answer counts for whatever call stands at its hooks.
    LateHookAnswerAccepted,
    /// A submission that is settled may be settled again.
    SubmissionSettledTwice,
    /// A tool that is not replay-safe runs again after a crash.
    UnsafeToolRunAgain,
    /// A wake counts as done before the agent has committed the start.
    WakeAcknowledgedBeforeStart,
    /// A second start of the same attempt is taken.
    SecondStartAccepted,
}

impl Fault {
    /// Every fault, for the test command.
    pub const ALL: [Fault; 7] = [
        Fault::AlarmOutsideTransaction,
        Fault::IntentAfterEffect,
        Fault::StopCheckBeforeCredentials,
        Fault::EpochCheckDropped,
        Fault::LateHookAnswerAccepted,
        Fault::SubmissionSettledTwice,
        Fault::UnsafeToolRunAgain,
    ];
}

/// Whether `fault` is switched on: never, in a build without the cfg.
#[cfg(not(agentdo_sabotage))]
pub const fn active(_fault: Fault) -> bool {
    false
}

#[cfg(agentdo_sabotage)]
mod switch {
    use super::Fault;
    use std::cell::Cell;

    thread_local! { static ACTIVE: Cell<Option<Fault>> = const { Cell::new(None) }; }

    /// Whether `fault` is switched on in this thread.
    pub fn active(fault: Fault) -> bool {
        ACTIVE.with(|active| active.get() == Some(fault))
    }

    /// Switches one fault on in this thread, or all off.
    pub fn set(fault: Option<Fault>) {
        ACTIVE.with(|active| active.set(fault));
    }
}
#[cfg(agentdo_sabotage)]
pub use switch::{active, set};
