//! The Worker of this repository: AgentDO with the extensions of `extensions/`.

use crate::Extensions;
use crate::worker::js_sys;
use crate::worker::wasm_bindgen::{self, prelude::*};

#[wasm_bindgen(module = "/extensions/index.js")]
extern "C" {
    fn extensions() -> js_sys::Array;
}

fn register(on: &mut Extensions) {
    on.javascript(&extensions());
}

crate::export!(register = crate::platform::cloudflare::standalone::register);
