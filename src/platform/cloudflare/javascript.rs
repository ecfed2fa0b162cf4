//! Extensions in JavaScript: modules of the final crate, called in the isolate. Events cross as JSON text, so that nothing
//! of a handler's object (getters, cycles, proxies) reaches the core.

use super::model::js_text;
use super::world::AbortController;
use crate::agent::ToolSpec;
use crate::agent::state::Replay;
use crate::hook::{Ctx, Handled, Handler, Registrar, Registry, Tool, ToolCall, ToolOutput};
use crate::model::message::Block;
use futures::future::LocalBoxFuture;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use worker::js_sys::{self, Array, Function, JSON, Object, Promise, Reflect};
use worker::wasm_bindgen::prelude::*;
use worker::wasm_bindgen_futures::JsFuture;

/// JSON text that a handler or tool may give back, bytes.
const RETURN_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Registers a list of `{ name, default(host) }`.
pub(super) fn register(registry: &mut Registry, modules: &Array) {
    for module in modules.iter() {
        let name = get(&module, "name").as_string().unwrap_or_default();
        let Ok(setup) = get(&module, "default").dyn_into::<Function>() else {
            registry.problem(&name, "register", "a module has no default function");
            continue;
        };
        let collected = match set_up(&module, &setup) {
            Ok(collected) => collected,
            Err(message) => {
                registry.problem(&name, "register", &message);
                continue;
            }
        };
        if let Some(mut on) = registry.namespace(&name) {
            add(&mut on, &name, collected);
        }
    }
}

#[derive(Default)]
struct Collected {
    handlers: Vec<(String, Function)>,
    tools: Vec<JsValue>,
}

/// Calls the module's default function with a host that collects what it registers.
fn set_up(module: &JsValue, setup: &Function) -> Result<Collected, String> {
    let collected = Rc::new(RefCell::new(Some(Collected::default())));
    let (on, tool) = (Rc::clone(&collected), Rc::clone(&collected));
    let on =
        Closure::<dyn Fn(JsValue, JsValue) -> Result<(), JsValue>>::new(move |event: JsValue, handler: JsValue| {
            let event = name_of(&event)?;
            let handler = handler.dyn_into::<Function>().map_err(|_| type_error("a handler is a function"))?;
            if let Some(collected) = on.borrow_mut().as_mut() {
                collected.handlers.push((event, handler));
            }
            Ok(())
        });
    let register_tool = Closure::<dyn Fn(JsValue)>::new(move |definition| {
        if let Some(collected) = tool.borrow_mut().as_mut() {
            collected.tools.push(definition);
        }
    });
    let host = Object::new();
    set(&host, "on", &on.into_js_value());
    set(&host, "registerTool", &register_tool.into_js_value());
    let returned = setup.call1(module, &host).map_err(|thrown| js_text(&thrown))?;
    // The list is fixed when the function returns: what is registered later is not seen.
    let found = collected.borrow_mut().take().unwrap_or_default();
    if returned.is_instance_of::<Promise>() {
        return Err("the default function must not be async: what it registers later is not seen".to_owned());
    }
    Ok(found)
}

fn add(on: &mut Registrar<'_>, namespace: &str, collected: Collected) {
    for (event, function) in collected.handlers {
        on.on(&event, Rc::new(JsHandler { namespace: namespace.to_owned(), function }));
    }
    for definition in collected.tools {
        match JsTool::read(namespace, &definition) {
            Ok(tool) => on.tool(Rc::new(tool)),
            Err(problem) => on.problem("register_tool", &problem),
        }
    }
}

struct JsHandler {
    namespace: String,
    function: Function,
}

impl Handler for JsHandler {
    fn handle(&self, event: Value, ctx: Ctx) -> LocalBoxFuture<'static, Result<Handled, String>> {
        let (function, namespace) = (self.function.clone(), self.namespace.clone());
        Box::pin(async move {
            let event = to_js(&event)?;
            let context = context(&namespace, &ctx)?;
            let returned = function.call2(&JsValue::NULL, &event, &context).map_err(|thrown| js_text(&thrown))?;
            let returned = settle(returned).await?;
            Ok(Handled { event: from_js(&event)?, returned: from_js(&returned)? })
        })
    }
}

/// A promise is awaited, anything else is its own value.
async fn settle(returned: JsValue) -> Result<JsValue, String> {
    let thenable = returned.is_object() && get(&returned, "then").is_function();
    if !thenable {
        return Ok(returned);
    }
    JsFuture::from(Promise::resolve(&returned)).await.map_err(|thrown| js_text(&thrown))
}

struct JsTool {
    namespace: String,
    spec: ToolSpec,
    definition: JsValue,
    execute: Function,
}

impl JsTool {
    fn read(namespace: &str, definition: &JsValue) -> Result<Self, String> {
        let name = get(definition, "name").as_string().unwrap_or_default();
        let execute = get(definition, "execute")
            .dyn_into::<Function>()
            .map_err(|_| format!("tool {name:?} has no execute function"))?;
        let parameters = match get(definition, "parameters") {
            absent if absent.is_undefined() || absent.is_null() => json!({ "type": "object", "properties": {} }),
            given => from_js(&given)?,
        };
        let replay = match get(definition, "replay").as_string().as_deref() {
            None | Some("unsafe") => Replay::Unsafe,
            Some("safe") => Replay::Safe,
            Some(other) => return Err(format!("tool {name:?}: replay is safe or unsafe, not {other:?}")),
        };
        let timeout_ms = match get(definition, "timeoutMs") {
            absent if absent.is_undefined() || absent.is_null() => None,
            given => Some(milliseconds(&given).ok_or_else(|| format!("tool {name:?}: timeoutMs is no number of ms"))?),
        };
        let spec = ToolSpec {
            description: get(definition, "description").as_string().unwrap_or_default(),
            resource: get(definition, "resource").as_string(),
            name,
            parameters,
            replay,
            timeout_ms,
        };
        Ok(Self { namespace: namespace.to_owned(), spec, definition: definition.clone(), execute })
    }
}

fn milliseconds(value: &JsValue) -> Option<u64> {
    const DAY_MS: f64 = 86_400_000.0;
    let number = value.as_f64()?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (1.0..=DAY_MS).contains(&number).then_some(number as u64)
}

impl Tool for JsTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn execute(&self, call: ToolCall) -> LocalBoxFuture<'static, Result<ToolOutput, String>> {
        let (execute, definition, namespace) = (self.execute.clone(), self.definition.clone(), self.namespace.clone());
        Box::pin(async move {
            let context = context(&namespace, &call.ctx)?;
            set(&context, "key", &JsValue::from_str(&call.key));
            let signal = get(&context, "signal");
            // Progress is for those who watch; there is no event for it yet, and calling it does no harm.
            let on_update = Closure::<dyn Fn()>::new(|| {}).into_js_value();
            let arguments = Array::of5(
                &JsValue::from_str(&call.tool_call_id),
                &to_js(&call.arguments)?,
                &signal,
                &on_update,
                &context,
            );
            let returned = execute.apply(&definition, &arguments).map_err(|thrown| js_text(&thrown))?;
            read_output(&from_js(&settle(returned).await?)?)
        })
    }
}

/// `{content: [{type: "text", text} | {type: "image", data, mimeType}], isError?}`, or plain text.
fn read_output(returned: &Value) -> Result<ToolOutput, String> {
    if let Some(text) = returned.as_str() {
        return Ok(ToolOutput { content: vec![Block::text(text)], is_error: false });
    }
    let parts = returned.get("content").and_then(Value::as_array).ok_or("the tool returned no content")?;
    let content = parts
        .iter()
        .map(|part| {
            let text = |name: &str| part.get(name).and_then(Value::as_str).map(str::to_owned);
            match part.get("type").and_then(Value::as_str) {
                Some("text") => text("text").map(|text| Block::Text { text }),
                Some("image") => {
                    text("data").zip(text("mimeType")).map(|(data, mime_type)| Block::Image { data, mime_type })
                }
                _ => None,
            }
            .ok_or_else(|| "the tool returned a content part that is neither text nor an image".to_owned())
        })
        .collect::<Result<Vec<Block>, String>>()?;
    let is_error = returned.get("isError").and_then(Value::as_bool).unwrap_or(false);
    Ok(ToolOutput { content, is_error })
}

/// `ctx` as hooks.md has it.
fn context(namespace: &str, ctx: &Ctx) -> Result<Object, String> {
    let provider = json!({ "provider": "agentdo", "id": ctx.model_id() });
    let facts = to_js(&json!({
        "agentId": ctx.agent_id, "runId": ctx.run_id, "tier": ctx.tier, "provider": ctx.provider, "model": provider,
        "phase": ctx.phase, "call": ctx.call, "resumed": ctx.resumed, "env": *ctx.world.env(),
    }))?;
    let object: Object = facts.unchecked_into();
    let controller = AbortController::new().map_err(|thrown| js_text(&thrown))?;
    set(&object, "signal", &controller.signal().map_err(|thrown| js_text(&thrown))?);
    let (world, space) = (Rc::clone(&ctx.world), namespace.to_owned());
    ctx.signal.listen(move || {
        // The listeners are the extension's, and what they throw comes out here.
        if let Err(thrown) = controller.abort() {
            world.log(&space, "error", &format!("a listener of its signal threw: {}", js_text(&thrown)));
        }
    });
    let (world, run_id, space) = (Rc::clone(&ctx.world), ctx.run_id.clone(), namespace.to_owned());
    let memo =
        Closure::<dyn Fn(JsValue, JsValue) -> Result<JsValue, JsValue>>::new(move |name: JsValue, value: JsValue| {
            let name = name_of(&name)?;
            let value = from_js(&value).map_err(|message| JsValue::from_str(&message))?;
            let kept = world.memo(&space, &run_id, &name, value).map_err(|message| JsValue::from_str(&message))?;
            to_js(&kept).map_err(|message| JsValue::from_str(&message))
        });
    set(&object, "memo", &memo.into_js_value());
    let (world, space) = (Rc::clone(&ctx.world), namespace.to_owned());
    let log = Closure::<dyn Fn(JsValue, JsValue)>::new(move |level: JsValue, text: JsValue| {
        let text = text.as_string().unwrap_or_else(|| "(no text)".to_owned());
        world.log(&space, &level.as_string().unwrap_or_default(), &text);
    });
    set(&object, "log", &log.into_js_value());
    let world = Rc::clone(&ctx.world);
    #[allow(clippy::cast_precision_loss)]
    let now = Closure::<dyn Fn() -> f64>::new(move || world.now_ms() as f64);
    set(&object, "now", &now.into_js_value());
    Ok(object)
}

/// A name that an extension gives. Taken as any value and looked at here: told that a parameter is text, the glue of a
/// release build reads what is no text as if it were, and the instance dies.
fn name_of(value: &JsValue) -> Result<String, JsValue> {
    value.as_string().ok_or_else(|| type_error("a name is text"))
}

fn type_error(text: &str) -> JsValue {
    js_sys::TypeError::new(text).into()
}

fn get(object: &JsValue, name: &str) -> JsValue {
    // A getter that throws counts as absent.
    Reflect::get(object, &JsValue::from_str(name)).unwrap_or(JsValue::UNDEFINED)
}

fn set(object: &Object, name: &str, value: &JsValue) {
    // An object of our own takes every property.
    let _ = Reflect::set(object, &JsValue::from_str(name), value);
}

fn to_js(value: &Value) -> Result<JsValue, String> {
    JSON::parse(&value.to_string()).map_err(|thrown| js_text(&thrown))
}

/// The JSON value of what JavaScript gave; `undefined` and functions are `null`.
fn from_js(value: &JsValue) -> Result<Value, String> {
    if value.is_undefined() || value.is_null() || value.is_function() {
        return Ok(Value::Null);
    }
    let text = JSON::stringify(value).map_err(|thrown| format!("it is no JSON: {}", js_text(&thrown)))?;
    // A value whose toJSON gives undefined has no text.
    let text = JsValue::from(text).as_string().unwrap_or_else(|| "null".to_owned());
    if text.len() > RETURN_BYTES_MAX {
        return Err(format!("it has {} bytes, more than {RETURN_BYTES_MAX}", text.len()));
    }
    crate::json::parse(text.as_bytes()).map_err(|problem| format!("it is no plain JSON: {problem}"))
}
