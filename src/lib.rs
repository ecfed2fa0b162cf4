//! AgentDO: durable AI agents on Cloudflare.

pub mod agent;
mod closed_list;
pub mod error;
pub mod hook;
pub mod json;
pub mod model;
pub mod platform;
pub mod port;
pub mod sabotage;
pub mod signal;
