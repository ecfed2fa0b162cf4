//! AgentDO: durable AI agents on Cloudflare.

#[macro_use]
mod closed_list;

pub mod config;
pub mod error;
pub mod http;
pub mod json;
pub mod model;
pub mod port;
pub mod tool;
