//! Clock, randomness, waiting, variables.

use crate::port::Random;
use futures::channel::oneshot;
use futures::future::LocalBoxFuture;
use worker::wasm_bindgen::prelude::*;
use worker::{Env, js_sys, wasm_bindgen};

#[wasm_bindgen]
extern "C" {
    /// What it gives is an object here (Node's timers). The crate's `Delay` takes it for a number, which an optimised build
    /// puts up with, while a debug build panics.
    #[wasm_bindgen(catch, js_name = setTimeout)]
    fn set_timeout(handler: &js_sys::Function, ms: f64) -> Result<JsValue, JsValue>;

    #[wasm_bindgen(catch, js_name = clearTimeout)]
    fn clear_timeout(timer: &JsValue) -> Result<(), JsValue>;

    /// The crate's `AbortController::abort` does not catch, while workerd lets what a listener throws out of `abort()`: an
    /// extension's listener would kill the instance.
    pub(super) type AbortController;

    #[wasm_bindgen(constructor, catch)]
    pub(super) fn new() -> Result<AbortController, JsValue>;

    #[wasm_bindgen(method, getter, catch)]
    pub(super) fn signal(this: &AbortController) -> Result<JsValue, JsValue>;

    #[wasm_bindgen(method, catch)]
    pub(super) fn abort(this: &AbortController) -> Result<(), JsValue>;
}

/// A timer that is cleared when nobody waits for it any more: a pending one keeps its object in memory.
struct Timer {
    id: JsValue,
    // It must live until the timer has fired or is cleared.
    _handler: Closure<dyn FnMut()>,
}

impl Drop for Timer {
    fn drop(&mut self) {
        // One that fired is cleared without effect.
        let _ = clear_timeout(&self.id);
    }
}

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
            wait(step).await;
            rest = rest.saturating_sub(step);
            if rest == 0 {
                return;
            }
        }
    })
}

async fn wait(ms: u64) {
    let (sender, receiver) = oneshot::channel();
    let mut sender = Some(sender);
    let handler: Closure<dyn FnMut()> = Closure::new(move || {
        if let Some(sender) = sender.take() {
            // Nobody waits any more: no matter.
            let _ = sender.send(());
        }
    });
    #[allow(clippy::cast_precision_loss)]
    match set_timeout(handler.as_ref().unchecked_ref(), ms as f64) {
        Ok(id) => {
            let _timer = Timer { id, _handler: handler };
            let _ = receiver.await;
        }
        Err(thrown) => worker::console_error!("setTimeout: {thrown:?}"),
    }
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
