//! The objects whose classes exist from the first migration on, since a class cannot be added to a tag that is deployed.
//! They hold nothing in this release and say so.

// The macro adds functions of its own without a word about them.
#![allow(missing_docs)]

use super::protocol;
use crate::error::{ApiError, Code};
use worker::wasm_bindgen::prelude::*;
use worker::{DurableObject, Env, Request, Response, Result, State, durable_object, wasm_bindgen};

/// The object of one Change.
#[durable_object(fetch)]
pub struct ChangeDO;

impl DurableObject for ChangeDO {
    fn new(_: State, _: Env) -> Self {
        Self
    }

    async fn fetch(&self, _: Request) -> Result<Response> {
        protocol::error(&ApiError::new(Code::NotFound))
    }
}

/// The counts of one tenant.
#[durable_object(fetch)]
pub struct LedgerDO;

impl DurableObject for LedgerDO {
    fn new(_: State, _: Env) -> Self {
        Self
    }

    async fn fetch(&self, _: Request) -> Result<Response> {
        protocol::error(&ApiError::new(Code::NotFound))
    }
}
