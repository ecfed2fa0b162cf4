//! Who is registered.

use super::{Extension, Handler, Tool};
use crate::agent::{HookReport, ToolSpec};
use serde_json::{Value, json};
use std::rc::Rc;

/// The events of hooks.md that this release fires; registering for another is reported.
pub const EVENTS: [&str; 2] = ["before_agent_request", "tool_call"];

/// One handler, with its extension's name.
#[derive(Clone)]
pub struct Registered {
    /// The extension.
    pub namespace: String,
    /// The event.
    pub event: String,
    /// The code.
    pub handler: Rc<dyn Handler>,
}

/// One tool, with its extension's name.
#[derive(Clone)]
pub struct RegisteredTool {
    /// The extension.
    pub namespace: String,
    /// Name, schema, policies.
    pub spec: ToolSpec,
    /// The code.
    pub tool: Rc<dyn Tool>,
}

/// Says what is wrong with a tool's schema.
pub type CheckSchema = fn(&Value) -> Result<(), String>;

/// All extensions of a Worker, in order of registration.
#[derive(Clone, Default)]
pub struct Registry {
    names: Vec<String>,
    handlers: Vec<Registered>,
    tools: Vec<RegisteredTool>,
    problems: Vec<HookReport>,
    check_schema: Option<CheckSchema>,
}

impl Registry {
    /// An empty registry; `check_schema` says what is wrong with a tool's schema.
    pub fn new(check_schema: CheckSchema) -> Self {
        Self { check_schema: Some(check_schema), ..Self::default() }
    }

    /// Registers an extension in Rust.
    pub fn add(&mut self, extension: &dyn Extension) {
        let name = extension.name().to_owned();
        if let Some(mut on) = self.namespace(&name) {
            extension.register(&mut on);
        }
    }

    /// Opens a namespace; `None`, and a report, when the name is taken or unusable: the later extension is skipped.
    pub fn namespace(&mut self, name: &str) -> Option<Registrar<'_>> {
        if name.is_empty() || name.len() > 64 {
            self.problem(name, "register", "the name of an extension has 1 to 64 bytes");
            return None;
        }
        if self.names.iter().any(|taken| taken == name) {
            self.problem(name, "register", "another extension has this name; this one is skipped");
            return None;
        }
        self.names.push(name.to_owned());
        Some(Registrar { registry: self, namespace: name.to_owned() })
    }

    /// Puts on record what went wrong at start-up.
    pub fn problem(&mut self, namespace: &str, event: &str, message: &str) {
        self.problems.push(HookReport {
            namespace: namespace.to_owned(),
            event: event.to_owned(),
            message: message.to_owned(),
        });
    }

    /// Handlers of an event, in order.
    pub fn handlers(&self, event: &str) -> Vec<Registered> {
        self.handlers.iter().filter(|registered| registered.event == event).cloned().collect()
    }

    /// Whether somebody handles it.
    pub fn handles(&self, event: &str) -> bool {
        self.handlers.iter().any(|registered| registered.event == event)
    }

    /// The tools, in order.
    pub fn tools(&self) -> &[RegisteredTool] {
        &self.tools
    }

    /// The tool of this name.
    pub fn tool(&self, name: &str) -> Option<&RegisteredTool> {
        self.tools.iter().find(|registered| registered.spec.name == name)
    }

    /// As `GET /v1/extensions` shows it.
    pub fn describe(&self) -> Value {
        let extensions: Vec<Value> = self
            .names
            .iter()
            .map(|name| {
                let mut events: Vec<&str> = Vec::new();
                for registered in self.handlers.iter().filter(|registered| registered.namespace == *name) {
                    events.push(&registered.event);
                }
                let tools: Vec<&str> = self
                    .tools
                    .iter()
                    .filter(|tool| tool.namespace == *name)
                    .map(|tool| tool.spec.name.as_str())
                    .collect();
                json!({ "name": name, "events": events, "tools": tools })
            })
            .collect();
        json!({ "extensions": extensions, "problems": self.problems })
    }
}

/// Registers the handlers and tools of one extension.
pub struct Registrar<'a> {
    registry: &'a mut Registry,
    namespace: String,
}

impl Registrar<'_> {
    /// Adds a handler of `event`. The same function registered twice runs twice.
    pub fn on(&mut self, event: &str, handler: Rc<dyn Handler>) {
        if !EVENTS.contains(&event) {
            let message = format!("there is no event {event:?} in this release; the handler is never called");
            self.registry.problem(&self.namespace, event, &message);
            return;
        }
        let (namespace, event) = (self.namespace.clone(), event.to_owned());
        self.registry.handlers.push(Registered { namespace, event, handler });
    }

    /// Puts on record what went wrong at start-up.
    pub fn problem(&mut self, event: &str, message: &str) {
        self.registry.problem(&self.namespace, event, message);
    }

    /// Adds a tool. One with a taken name, a bad name or a bad schema is refused with a report.
    pub fn tool(&mut self, tool: Rc<dyn Tool>) {
        let spec = tool.spec();
        if let Err(problem) = self.admit(&spec) {
            let message = format!("tool {:?} is not registered: {problem}", spec.name);
            self.registry.problem(&self.namespace, "register_tool", &message);
            return;
        }
        self.registry.tools.push(RegisteredTool { namespace: self.namespace.clone(), spec, tool });
    }

    fn admit(&self, spec: &ToolSpec) -> Result<(), String> {
        let fits = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
        if spec.name.is_empty() || spec.name.len() > 64 || !spec.name.chars().all(fits) {
            return Err("a tool's name is 1 to 64 of A-Z a-z 0-9 _ -".to_owned());
        }
        if self.registry.tool(&spec.name).is_some() {
            return Err("another tool has this name".to_owned());
        }
        self.registry.check_schema.map_or(Ok(()), |check| check(&spec.parameters))
    }
}
