//! Tools: what a model can call.

pub mod schema;
