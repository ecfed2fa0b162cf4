//! What the simulation reached: the crash table of docs/design.md row by row, and each effect, event, command and step.

use crate::faults::Kind;
use std::collections::BTreeMap;
use std::fmt;

/// The crash table: what was in flight when the object died.
pub const ROWS: [&str; 18] = [
    "submit",
    "hook asked",
    "hook held (pending)",
    "gate asked",
    "gate waiting",
    "credentials asked",
    "dispatched, nothing stored",
    "dispatched, part stored",
    "dispatched, end mark stored",
    "backoff",
    "tool hook asked",
    "tool hook held (pending)",
    "tool queued",
    "tool at work, replay-safe",
    "tool at work, unsafe",
    "tool result stored, others at work",
    "stop marked, not finished",
    "index row unacknowledged",
];

const COLUMNS: [&str; 3] = ["before commit", "after commit", "after effect / waiting"];

/// Rows of machine.md's table that this machine cannot be found in, and why.
const CANNOT: [(&str, &str); 3] = [
    ("tool waiting", "design T7 is not built yet"),
    ("outbox row", "the index row is the only message an agent sends yet"),
    ("results stored, next call not begun", "one transaction does both; see `tool result stored, others at work`"),
];

const SEEN: [(&str, &[&str]); 6] = [
    ("effect", &["AskHooks", "AskToolHooks", "AskGate", "Authorize", "CallModel", "RunTool", "Index", "Abort"]),
    (
        "event",
        &[
            "HooksAnswered",
            "ToolHooksAnswered",
            "HooksPending",
            "ToolHooksPending",
            "GateAnswered",
            "Authorized",
            "StreamBatch",
            "ModelEnded",
            "ToolEnded",
            "Indexed",
            "AlarmFired",
        ],
    ),
    ("command", &["Submit", "Stop", "Interrupt", "Retry", "Signal", "Configure"]),
    (
        "step",
        &[
            "Hooks",
            "Gate",
            "GateWait",
            "Authorize",
            "Dispatched",
            "Backoff",
            "Tool Queued",
            "Tool Hooks",
            "Tool Started",
            "Tool Done",
            "Ending",
        ],
    ),
    ("status", &["idle", "working", "stopping", "stopped", "parked"]),
    ("parked", &PARKED),
];

const PARKED: [&str; 4] = ["hook_crash", "call_crash", "tool_crash", "repeated_failure"];

/// Counts.
#[derive(Debug, Default)]
pub struct Coverage {
    deaths: BTreeMap<(&'static str, usize), u64>,
    seen: BTreeMap<(&'static str, &'static str), u64>,
    pub scenarios: u64,
    pub transactions: u64,
    pub storage_errors: u64,
    pub stale_events: u64,
}

impl Coverage {
    pub fn died(&mut self, row: &'static str, kind: Kind) {
        let column = match kind {
            Kind::BeforeCommit | Kind::StorageError => 0,
            Kind::AfterCommit => 1,
            Kind::AfterEffect | Kind::Waiting => 2,
        };
        *self.deaths.entry((row, column)).or_default() += 1;
    }

    pub fn seen(&mut self, what: &'static str, name: &'static str) {
        *self.seen.entry((what, name)).or_default() += 1;
    }

    pub fn seen_parked(&mut self, reason: &str) {
        if let Some(known) = PARKED.iter().find(|known| **known == reason) {
            self.seen("parked", known);
        }
    }

    /// Counts of another part of the simulation.
    pub fn add(&mut self, other: &Self) {
        for (cell, count) in &other.deaths {
            *self.deaths.entry(*cell).or_default() += count;
        }
        for (key, count) in &other.seen {
            *self.seen.entry(*key).or_default() += count;
        }
        self.scenarios += other.scenarios;
        self.transactions += other.transactions;
        self.storage_errors += other.storage_errors;
        self.stale_events += other.stale_events;
    }

    /// What could have been reached and was not.
    pub fn missing(&self) -> Vec<String> {
        let cells = ROWS.iter().flat_map(|row| (0..COLUMNS.len()).map(move |column| (*row, column)));
        let deaths = cells
            .filter(|cell| !self.deaths.contains_key(cell))
            .map(|(row, column)| format!("{row} × {}", COLUMNS[column]));
        let seen = SEEN
            .iter()
            .flat_map(|(what, names)| names.iter().map(move |name| (*what, *name)))
            .filter(|key| !self.seen.contains_key(key))
            .map(|(what, name)| format!("{what} {name}"));
        deaths.chain(seen).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{:<36}{:>15}{:>15}{:>24}", "died with", COLUMNS[0], COLUMNS[1], COLUMNS[2])?;
        for row in ROWS {
            let count = |column| self.deaths.get(&(row, column)).copied().unwrap_or(0);
            writeln!(formatter, "{row:<36}{:>15}{:>15}{:>24}", count(0), count(1), count(2))?;
        }
        for (row, why) in CANNOT {
            writeln!(formatter, "{row:<36}cannot be: {why}")?;
        }
        let mut last = "";
        for ((what, name), count) in &self.seen {
            if *what != last {
                write!(formatter, "{}{what}:", if last.is_empty() { "" } else { "\n" })?;
                last = what;
            }
            write!(formatter, " {name} {count}")?;
        }
        write!(
            formatter,
            "\n{} scenarios, {} transactions, {} storage errors, {} events of dead instances",
            self.scenarios, self.transactions, self.storage_errors, self.stale_events
        )
    }
}
