//! AgentDO: durable AI agents on Cloudflare.

pub mod model;
pub mod port;
