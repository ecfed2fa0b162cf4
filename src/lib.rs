//! AgentDO: durable AI agents on Cloudflare.

#[macro_use]
mod closed_list;

pub mod agent;
pub mod config;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod error;
pub mod graph;
pub mod hook;
pub mod http;
pub mod json;
mod log;
pub mod model;
pub mod platform;
pub mod port;
pub mod sabotage;
pub mod signal;
pub mod task;
pub mod tool;

#[cfg(target_family = "wasm")]
pub use platform::cloudflare::{AgentDO, ChangeDO, Extensions, LedgerDO};
#[cfg(target_family = "wasm")]
pub use worker;
