//! The macro that makes a Worker of AgentDO in the final crate.

/// Exports a whole Worker from the final crate: the object classes, `fetch`, `queue`, `scheduled`, and a start event that
/// fills the registry of extensions, again whenever the wasm instance is rebuilt.
///
/// `register` is a `fn(&mut agentdo::Extensions)`. A JavaScript module is declared by the final crate, since its path is
/// looked up there, and passed on:
///
/// ```ignore
/// use agentdo::worker::{js_sys, wasm_bindgen::{self, prelude::*}};
///
/// #[wasm_bindgen(module = "/extensions/index.js")]
/// extern "C" {
///     fn extensions() -> js_sys::Array;
/// }
///
/// fn register(on: &mut agentdo::Extensions) {
///     on.javascript(&extensions());
/// }
///
/// agentdo::export!(register = register);
/// ```
///
/// The final crate needs `worker` as a dependency of its own: the macros of that crate expand to its name.
#[macro_export]
macro_rules! export {
    (register = $register:path) => {
        #[allow(unused_imports, unreachable_pub)]
        pub use $crate::{AgentDO, ChangeDO, LedgerDO};

        #[allow(unused_imports)]
        mod agentdo_worker {
            use $crate::worker::{self, event, wasm_bindgen, wasm_bindgen_futures};

            #[event(start)]
            fn start() {
                $crate::platform::cloudflare::start($register);
            }

            #[event(fetch)]
            async fn fetch(
                request: worker::Request,
                env: worker::Env,
                context: worker::Context,
            ) -> worker::Result<worker::Response> {
                $crate::platform::cloudflare::fetch(request, env, context).await
            }

            #[event(scheduled)]
            async fn scheduled(event: worker::ScheduledEvent, env: worker::Env, context: worker::ScheduleContext) {
                $crate::platform::cloudflare::scheduled(event, env, context).await;
            }

            #[event(queue)]
            async fn queue(
                batch: worker::MessageBatch<wasm_bindgen::JsValue>,
                env: worker::Env,
                _: worker::Context,
            ) -> worker::Result<()> {
                $crate::platform::cloudflare::queue(batch, env).await;
                Ok(())
            }
        }
    };
}
