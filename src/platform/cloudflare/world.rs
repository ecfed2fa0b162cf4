//! Clock, randomness, waiting, variables.

use crate::port::Random;
use futures::channel::oneshot;
use futures::future::LocalBoxFuture;
use worker::wasm_bindgen::prelude::*;
use worker::{Env, js_sys, wasm_bindgen};

/// ms since 1970, UTC.
pub(super) fn now_ms() -> i64 {
    #[allow(clippy::cast_possible_truncation)]
    let now_ms = js_sys::Date::now() as i64;
    now_ms
}

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_name = setTimeout)]
    fn set_timeout(callback: &Closure<dyn FnMut()>, ms: f64) -> JsValue;

    #[wasm_bindgen(js_name = clearTimeout)]
    fn clear_timeout(timer: &JsValue);
}

/// A timer, cleared when it is dropped. The one of the crate takes a timer for a number, which it no longer is with the
/// timers of Node that newer compatibility dates bring; a debug build dies of that.
struct Timer {
    handle: JsValue,
    _callback: Closure<dyn FnMut()>,
}

impl Drop for Timer {
    fn drop(&mut self) {
        // One that has fired is no matter.
        clear_timeout(&self.handle);
    }
}

/// Waits. A zero wait still gives way once.
pub(super) fn sleep(ms: u64) -> LocalBoxFuture<'static, ()> {
    /// `setTimeout` counts in an i32.
    const STEP_MS_MAX: u64 = 1_000_000_000;
    Box::pin(async move {
        let mut rest = ms;
        loop {
            let step = rest.min(STEP_MS_MAX);
            let (fire, fired) = oneshot::channel();
            let callback = Closure::once(move || {
                // Nobody waits any more: no matter.
                let _ = fire.send(());
            });
            #[allow(clippy::cast_precision_loss)]
            let timer = Timer { handle: set_timeout(&callback, step as f64), _callback: callback };
            // The sender lives in the callback, and that in the timer.
            let _ = fired.await;
            drop(timer);
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
