//! Clock, randomness, waiting, variables.

use crate::port::Random;
use futures::future::LocalBoxFuture;
use std::time::Duration;
use worker::wasm_bindgen::{JsCast, JsValue};
use worker::{Delay, Env, js_sys};

/// ms since 1970, UTC.
pub(super) fn now_ms() -> i64 {
    #[allow(clippy::cast_possible_truncation)]
    let now_ms = js_sys::Date::now() as i64;
    now_ms
}

/// Waits. A zero wait still gives way once.
pub(super) fn sleep(ms: u64) -> LocalBoxFuture<'static, ()> {
    /// `setTimeout` counts in an i32.
    const STEP_MS_MAX: u64 = 1_000_000_000;
    Box::pin(async move {
        let mut rest = ms;
        loop {
            let step = rest.min(STEP_MS_MAX);
            Delay::from(Duration::from_millis(step)).await;
            rest = rest.saturating_sub(step);
            if rest == 0 {
                return;
            }
        }
    })
}

/// The platform's random source.
pub(super) struct PlatformRandom;

impl Random for PlatformRandom {
    fn next_u128(&self) -> u128 {
        let mut bytes = [0_u8; 16];
        // Outside a handler the platform gives none; ids are made in handlers only.
        if getrandom::fill(&mut bytes).is_err() {
            worker::console_error!("no randomness here");
        }
        u128::from_le_bytes(bytes)
    }
}

/// A text variable or secret.
pub(super) fn variable(env: &Env, name: &str) -> Option<String> {
    let env: &JsValue = env.unchecked_ref();
    js_sys::Reflect::get(env, &JsValue::from_str(name)).ok()?.as_string()
}
