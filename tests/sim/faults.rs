//! What goes wrong in one scenario, and where.

use std::fmt;

/// How an instance dies, or a transaction fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The instance dies in transaction `at`: it is rolled back.
    BeforeCommit,
    /// The instance dies right after transaction `at`: its output is lost, and with it an alarm set outside of it.
    AfterCommit,
    /// The instance dies right after it performed effect `at`: the rest of the output is lost, and so are the answers.
    AfterEffect,
    /// The instance dies after all effects of transaction `at` were performed: it only waited.
    Waiting,
    /// A statement of transaction `at` fails. A command answers with an error; an event kills its driver.
    StorageError,
}

/// One fault at one position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    pub at: u64,
}

/// The same death again and again, whenever something of this name is done.
#[derive(Debug, Clone)]
pub struct Again {
    pub kind: Kind,
    pub label: &'static str,
    pub times: u32,
}

/// How late alarms fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lateness {
    Never,
    Ms(i64),
    /// From nothing to hours.
    Random,
}

/// All that goes wrong in one scenario.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub faults: Vec<Fault>,
    pub again: Option<Again>,
    /// Answers of dead instances, and of operations that were ended, arrive after all, at bad moments.
    pub late_answers: bool,
    /// A client that got no answer sends its command again.
    pub client_repeats: bool,
    /// Each alarm fires twice, and alarms fire between other events.
    pub stray_alarms: bool,
    pub lateness: Lateness,
    /// From this instance on, the deployment has no model for the tier.
    pub models_gone_from: Option<u64>,
}

impl Plan {
    pub fn calm(seed: u64) -> Self {
        Self {
            seed,
            faults: Vec::new(),
            again: None,
            late_answers: false,
            client_repeats: false,
            stray_alarms: false,
            lateness: Lateness::Never,
            models_gone_from: None,
        }
    }

    pub fn fault_at_transaction(&self, at: u64) -> Option<Kind> {
        self.faults.iter().find(|fault| fault.kind != Kind::AfterEffect && fault.at == at).map(|fault| fault.kind)
    }

    pub fn fault_at_effect(&self, at: u64) -> bool {
        self.faults.iter().any(|fault| fault.kind == Kind::AfterEffect && fault.at == at)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "seed {}", self.seed)?;
        for fault in &self.faults {
            write!(formatter, ", {:?} {}", fault.kind, fault.at)?;
        }
        if let Some(again) = &self.again {
            write!(formatter, ", {:?} at each {}, {} times", again.kind, again.label, again.times)?;
        }
        let flags = [
            (self.late_answers, "late answers"),
            (self.client_repeats, "clients repeat"),
            (self.stray_alarms, "stray alarms"),
            (self.models_gone_from.is_some(), "models gone"),
        ];
        for (on, name) in flags {
            if on {
                write!(formatter, ", {name}")?;
            }
        }
        if self.lateness != Lateness::Never {
            write!(formatter, ", alarms late {:?}", self.lateness)?;
        }
        Ok(())
    }
}
