//! What the final crate registered, and the machine that is made of it.

use super::javascript;
use super::model::dialect;
use crate::agent::{Catalog, Machine, Settings};
use crate::config::Config;
use crate::hook::{Extension, Registry};
use crate::model::wire::{ChatWire, Wire};
use crate::tool::schema::Schema;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use worker::js_sys::Array;

thread_local! {
    static REGISTRY: RefCell<Rc<Registry>> = RefCell::new(Rc::new(Registry::default()));
}

/// What a final crate's `register` function fills.
pub struct Extensions {
    registry: Registry,
}

impl Extensions {
    /// Adds an extension in Rust.
    pub fn rust(&mut self, extension: &dyn Extension) -> &mut Self {
        self.registry.add(extension);
        self
    }

    /// Adds extensions in JavaScript: a list of `{ name, default(host) }`, from a module the final crate declares.
    pub fn javascript(&mut self, modules: &Array) -> &mut Self {
        javascript::register(&mut self.registry, modules);
        self
    }
}

/// Fills the registry. Called by `export!` whenever the wasm instance is built, before any request.
pub fn start(register: fn(&mut Extensions)) {
    let mut extensions = Extensions { registry: Registry::new(check_schema) };
    register(&mut extensions);
    REGISTRY.with(|registry| *registry.borrow_mut() = Rc::new(extensions.registry));
}

fn check_schema(schema: &Value) -> Result<(), String> {
    Schema::compile(schema).map(|_| ()).map_err(|problem| format!("{}: {}", problem.path, problem.problem))
}

/// The registry of this instance.
pub(super) fn registry() -> Rc<Registry> {
    REGISTRY.with(|registry| Rc::clone(&registry.borrow()))
}

/// The machine of one agent.
pub(super) fn machine(config: &Config, registry: &Registry) -> Machine {
    let catalog = Catalog {
        tools: registry.tools().iter().map(|registered| registered.spec.clone()).collect(),
        handles_before_agent_request: registry.handles("before_agent_request"),
        handles_tool_call: registry.handles("tool_call"),
        gates: Vec::new(),
    };
    let schemas: HashMap<String, Schema> = registry
        .tools()
        .iter()
        .filter_map(|registered| {
            Some((registered.spec.name.clone(), Schema::compile(&registered.spec.parameters).ok()?))
        })
        .collect();
    let check = move |tool: &str, arguments: &Value| match schemas.get(tool).map(|schema| schema.check(arguments)) {
        None | Some(Ok(())) => Ok(()),
        Some(Err(violations)) => {
            let texts: Vec<String> = violations
                .iter()
                .map(|violation| {
                    let path = if violation.path.is_empty() { "the arguments" } else { &violation.path };
                    format!("{path}: {}", violation.problem)
                })
                .collect();
            Err(texts.join("; "))
        }
    };
    let chat: Rc<dyn Wire> = Rc::new(ChatWire { dialect: dialect(config) });
    Machine::new(Settings::from(config), catalog, vec![("openrouter".to_owned(), chat)], Rc::new(check))
}
