//! AgentDO on Cloudflare: objects, bindings, JavaScript. Decisions are elsewhere; here are adapters.

mod agent_object;
mod catalog;
#[cfg(feature = "conformance")]
mod conformance;
mod edge;
mod events;
mod export;
mod index;
mod javascript;
mod model;
mod other_objects;
mod protocol;
mod sql;
#[cfg(feature = "standalone")]
mod standalone;
mod wakes;
mod world;

pub use agent_object::AgentDO;
pub use catalog::{Extensions, start};
#[cfg(feature = "conformance")]
pub use conformance::conformance;
pub use edge::fetch;
pub use other_objects::{ChangeDO, LedgerDO};
pub use wakes::{queue, scheduled};
