//! Changes and Tasks: work posted as a set of Tasks with dependencies, done by agents, in order, each once.
//!
//! **Change.** [`change::ChangeMachine`] is the machine of one Change's object and the only writer of its Tasks, attempts
//! and events, in the style of the agent's machine: one transaction, effects out, events back.
//!
//! **Rules.** [`rules`] holds what follows from an outcome and how a Change's status follows from its Tasks, as pure
//! functions with a table each.

pub mod change;
pub mod interface;
pub mod rules;
pub mod types;
mod view;
