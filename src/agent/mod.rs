//! Durable execution: the machine that turns submissions into answers, one per agent.
//!
//! **Machine.** [`Machine`] holds no state of its own but a cache. Every command and every event is one synchronous
//! function over one SQL transaction: it loads the working set ([`state::Agent`] and the rows of `work`), changes it,
//! writes it once, and returns [`Effect`]s. Nothing else changes an agent (design A2, A3).
//!
//! **Driver.** [`driver`] performs effects and feeds [`Event`]s back. It decides nothing; the simulation has another
//! driver over the same machine.
//!
//! **Fence.** Each effect names its operation with epoch and generation ([`OpRef`]); an event that does not fit is
//! dropped. So a late hook, a tool left behind, a second alarm or a stale instance can do no harm.
//!
//! **Caveats.** An effect may be performed and its event lost; what then holds is in [`recover`], case by case. The cache
//! of encoded transcript rows holds committed rows only.

mod call;
mod command;
mod context;
pub mod driver;
mod interface;
mod live;
mod recover;
mod schema;
mod settings;
mod settle;
pub mod state;
mod stream;
mod tools;
mod unit;
pub mod view;

pub use crate::log::rfc3339;
pub use crate::model::wire::{Folded, RequestHead, Target, Wire};
pub use interface::*;
pub use schema::{SCHEMA_VERSION, SchemaState, migrate};
pub use settings::Settings;

use crate::error::{ApiError, Code};
use crate::port::{Random, SqlError, Tx};
use context::ContextCache;
use serde_json::Value;
use std::cell::RefCell;
use std::rc::Rc;
use unit::Unit;

/// Times a crash may cut off one operation before it is parked (design L3).
pub const RESTARTS_MAX: u32 = 5;
/// Runs in a row that may end with the same failure before the agent is parked (design I3).
pub const FAILURES_MAX: u32 = 3;
/// Submissions that may wait at once.
pub const QUEUED_MAX: u32 = 200;
/// Tools that run at once (design T5).
pub const TOOLS_AT_ONCE: usize = 4;
/// Tool calls of one answer that are looked at; the rest is answered with an error.
pub const TOOL_CALLS_MAX: usize = 64;
/// Empty answers that are asked for again (design R8).
pub const EMPTIES_MAX: u32 = 2;
/// Answers in a row whose tool calls the output limit cut, before the run ends.
pub const TRUNCATED_IN_A_ROW_MAX: u32 = 3;

/// What is registered: tools, hooks that somebody handles, gates in order.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// The tools, in order of registration.
    pub tools: Vec<ToolSpec>,
    /// Somebody handles `before_agent_request`.
    pub handles_before_agent_request: bool,
    /// Somebody handles `tool_call`.
    pub handles_tool_call: bool,
    /// Names of the gates, in the order they are asked.
    pub gates: Vec<String>,
}

/// Checks arguments against a tool's schema; the texts are for the model.
pub type CheckArguments = dyn Fn(&str, &Value) -> Result<(), String>;

/// The machine of one agent.
pub struct Machine {
    settings: Settings,
    catalog: Catalog,
    wires: Vec<(String, Rc<dyn Wire>)>,
    check_arguments: Rc<CheckArguments>,
    cache: RefCell<ContextCache>,
}

/// The world as one transaction may know it.
#[derive(Clone, Copy)]
pub struct World<'a> {
    /// ms since 1970, UTC.
    pub now_ms: i64,
    /// For ids and jitter.
    pub random: &'a dyn Random,
}

impl Machine {
    /// A machine with these settings. `wires` maps a provider to its format; `check_arguments` checks a tool's arguments.
    pub fn new(
        settings: Settings,
        catalog: Catalog,
        wires: Vec<(String, Rc<dyn Wire>)>,
        check_arguments: Rc<CheckArguments>,
    ) -> Self {
        Self { settings, catalog, wires, check_arguments, cache: RefCell::default() }
    }

    /// What is registered.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The model of a tier at a provider.
    pub fn target(&self, tier: &str, provider: &str) -> Option<&Target> {
        self.settings.targets.iter().find(|target| target.tier == tier && target.provider == provider)
    }

    fn wire(&self, provider: &str) -> Option<Rc<dyn Wire>> {
        self.wires.iter().find(|(name, _)| name == provider).map(|(_, wire)| Rc::clone(wire))
    }

    /// After start, eviction or panic: looks at the working set, and goes on with what was in flight. Writes nothing when
    /// there is nothing to do.
    pub fn open(&self, tx: &dyn Tx, world: World<'_>) -> Result<(SchemaState, Output), SqlError> {
        self.cache.borrow_mut().clear();
        if !schema::present(tx)? {
            return Ok((SchemaState::Ready, Output::default()));
        }
        let state = schema::migrate(tx)?;
        if state != SchemaState::Ready {
            return Ok((state, Output::default()));
        }
        let mut unit = Unit::open(tx, self, world.now_ms, world.random)?;
        recover::open(&mut unit)?;
        Ok((SchemaState::Ready, unit.close()?))
    }

    /// Carries out a command. An error changes nothing.
    pub fn command(&self, tx: &dyn Tx, command: &Command, world: World<'_>) -> Result<(Reply, Output), ApiError> {
        if let SchemaState::Newer(found) = schema::migrate(tx)? {
            return Err(newer(found));
        }
        let mut unit = Unit::open(tx, self, world.now_ms, world.random)?;
        if unit.agent.alarm_ms.is_some_and(|due| due <= world.now_ms) {
            recover::fire_due(&mut unit)?;
        }
        let reply = command::carry_out(&mut unit, command)?;
        Ok((reply, unit.close()?))
    }

    /// Takes note of an event. One that no longer counts changes nothing.
    pub fn event(&self, tx: &dyn Tx, event: &Event, world: World<'_>) -> Result<Output, SqlError> {
        if !schema::fits(tx)? {
            return Ok(Output::default());
        }
        let mut unit = Unit::open(tx, self, world.now_ms, world.random)?;
        match event {
            Event::HooksAnswered { op, verdict } => {
                if op.id.starts_with("tool") {
                    tools::hooks_answered(&mut unit, op, verdict)?;
                } else {
                    call::hooks_answered(&mut unit, op, verdict)?;
                }
            }
            Event::HooksPending { op } => {
                if op.id.starts_with("tool") {
                    tools::hooks_pending(&mut unit, op)?;
                } else {
                    call::hooks_pending(&mut unit, op);
                }
            }
            Event::GateAnswered { op, name, answer } => call::gate_answered(&mut unit, op, name, answer)?,
            Event::Authorized { op, refused } => call::authorized(&mut unit, op, refused.as_ref())?,
            Event::StreamBatch { op, deltas } => call::stream_batch(&mut unit, op, deltas)?,
            Event::ModelEnded { op, outcome } => call::ended(&mut unit, op, outcome)?,
            Event::ToolEnded { op, result } => tools::ended(&mut unit, op, result)?,
            Event::Indexed { version } => {
                // While a run goes on the next change tells the index again: only the last word is worth a row.
                if unit.agent.rests() {
                    unit.agent.index.acknowledged = unit.agent.index.acknowledged.max(*version);
                }
            }
            Event::AlarmFired => {
                unit.alarm_fired = true;
                recover::fire_due(&mut unit)?;
            }
        }
        unit.close()
    }
}

/// The refusal of storage that a later release wrote.
fn newer(found: i64) -> ApiError {
    let text = format!("this agent's storage has version {found}, this release knows {SCHEMA_VERSION}");
    ApiError::because(Code::SchemaNewer, text)
}
