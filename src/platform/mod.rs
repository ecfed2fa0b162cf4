//! The ports, implemented: over Cloudflare in `cloudflare`, over rusqlite on the host. The only place that imports
//! `worker` (design A1).

#[cfg(target_family = "wasm")]
pub mod cloudflare;
#[cfg(not(target_family = "wasm"))]
pub mod host;
