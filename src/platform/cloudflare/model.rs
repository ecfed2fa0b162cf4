//! Model requests over `fetch`, and the credentials they need.

use super::world::{AbortController, now_ms};
use crate::agent::ModelRequest;
use crate::agent::driver::{Credentials, OpenedStream};
use crate::config::Config;
use crate::model::call::ResponseHead;
use crate::model::encode::Dialect;
use crate::model::headers::{GatewayHeaders, HeaderParts, headers};
use crate::model::{Failure, FailureKind};
use futures::StreamExt;
use futures::future::LocalBoxFuture;
use serde::Deserialize;
use serde_json::json;
use std::cell::RefCell;
use std::rc::Rc;
use worker::js_sys::{self, Promise};
use worker::wasm_bindgen::prelude::*;
use worker::wasm_bindgen_futures::JsFuture;
use worker::{Headers, Method, Request, RequestInit, RequestRedirect, Response, wasm_bindgen, web_sys};

#[wasm_bindgen]
extern "C" {
    /// The crate's `Fetch` begins when its future is first polled; a request has to begin in the turn that committed it.
    #[wasm_bindgen(catch, js_name = fetch)]
    fn begin_fetch(request: &web_sys::Request, init: &JsValue) -> Result<Promise, JsValue>;
}

/// How far a request to the provider is routed, from the configuration.
pub(super) fn dialect(config: &Config) -> Dialect {
    match &config.openrouter_base_url {
        Some(url) if !url.contains("openrouter.ai") => Dialect::Plain,
        _ => Dialect::OpenRouter,
    }
}

/// Ends the request when it is dropped: dropping the future of a `fetch` alone does not.
struct AbortOnDrop(AbortController);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        // One that has ended is aborted without effect.
        let _ = self.0.abort();
    }
}

/// Begins a model request; the future gives its head, and the body follows.
pub(super) fn send(
    config: &Config,
    request: &ModelRequest,
    credentials: &Credentials,
    event_id: String,
) -> LocalBoxFuture<'static, Result<OpenedStream, String>> {
    let guard = AbortController::new().map(AbortOnDrop).map_err(|thrown| js_text(&thrown));
    let begun = match &guard {
        Ok(AbortOnDrop(controller)) => begin(config, request, credentials, event_id, controller),
        Err(error) => Err(error.clone()),
    };
    Box::pin(async move {
        let guard = guard?;
        let response = JsFuture::from(begun?).await.map_err(|thrown| js_text(&thrown))?;
        let mut response = Response::from(response.unchecked_into::<web_sys::Response>());
        let headers: Vec<(String, String)> = response.headers().entries().collect();
        let content_type = headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.clone());
        let head = ResponseHead { status: response.status_code(), content_type, headers };
        // A response without a body is one too: its status says what it means.
        let body = match response.stream() {
            Ok(body) => body.map(|piece| piece.map_err(|error| error.to_string())).boxed_local(),
            Err(_) => futures::stream::empty().boxed_local(),
        };
        let body = body.inspect(move |_| {
            // The guard lives as long as the body.
            let _ = &guard;
        });
        Ok(OpenedStream { head, body: body.boxed_local() })
    })
}

fn begin(
    config: &Config,
    request: &ModelRequest,
    credentials: &Credentials,
    event_id: String,
    controller: &AbortController,
) -> Result<Promise, String> {
    let url = url(config)?;
    let gateway = config.openrouter_base_url.is_none().then(|| GatewayHeaders {
        token: config.gateway_token.as_ref().map(|token| token.expose().to_owned()),
        key_alias: None,
        first_byte_timeout_ms: config.timing.first_byte_timeout_ms,
        metadata: vec![
            ("run".to_owned(), json!(request.run_id)),
            ("call".to_owned(), json!(request.call)),
            ("attempt".to_owned(), json!(request.attempt)),
            ("tier".to_owned(), json!(request.tier)),
        ],
        event_id,
    });
    let parts = HeaderParts {
        dialect: dialect(config),
        gateway,
        key: credentials.authorization.clone(),
        referer: Some("https://github.com/agentdo/agentdo".to_owned()),
        title: Some("AgentDO".to_owned()),
    };
    let built = build(&url, &parts, &request.body).map_err(|error| error.to_string())?;
    let init = js_sys::Object::new();
    let signal = controller.signal().map_err(|thrown| js_text(&thrown))?;
    js_sys::Reflect::set(&init, &JsValue::from_str("signal"), &signal).map_err(|thrown| js_text(&thrown))?;
    begin_fetch(built.inner(), &init).map_err(|thrown| js_text(&thrown))
}

fn build(url: &str, parts: &HeaderParts, body: &str) -> worker::Result<Request> {
    let list = Headers::new();
    for (name, value) in headers(parts) {
        list.set(&name, &value)?;
    }
    let mut init = RequestInit::new();
    // A redirect would carry the credentials along; as a 3xx it is a failure like any other.
    init.with_redirect(RequestRedirect::Manual);
    init.with_method(Method::Post).with_headers(list).with_body(Some(JsValue::from_str(body)));
    Request::new_with_init(url, &init)
}

fn url(config: &Config) -> Result<String, String> {
    match (&config.openrouter_base_url, &config.gateway_base_url) {
        (Some(base), _) => Ok(format!("{base}/chat/completions")),
        (None, Some(base)) => Ok(format!("{base}/openrouter/v1/chat/completions")),
        (None, None) => Err("neither AI_GATEWAY_BASE_URL nor OPENROUTER_BASE_URL is set".to_owned()),
    }
}

/// A short-lived bearer and when it is to be fetched anew.
#[derive(Clone)]
struct Token {
    bearer: String,
    until_ms: i64,
}

/// Makes credentials ready, in the memory of one object.
#[derive(Clone, Default)]
pub(super) struct Keys(Rc<RefCell<Option<Token>>>);

/// A token is fetched anew this long before it ends, ms.
const TOKEN_MARGIN_MS: i64 = 60_000;

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    expires_in: Option<i64>,
}

impl Keys {
    /// Every credential that a provider may say back.
    pub(super) fn secrets(&self, config: &Config) -> Vec<String> {
        let configured = [&config.openrouter_api_key, &config.gateway_token, &config.workers_ai_token];
        let configured = configured.into_iter().flatten().map(|secret| secret.expose().to_owned());
        configured.chain(self.0.borrow().as_ref().map(|token| token.bearer.clone())).collect()
    }

    /// The credentials of OpenRouter, or of the server that stands in its place.
    pub(super) async fn openrouter(self, config: Rc<Config>) -> Result<Credentials, Failure> {
        let key = config.openrouter_api_key.as_ref().map(|key| key.expose().to_owned());
        let Some(url) = config.openrouter_token_url.clone() else {
            return Ok(Credentials { authorization: key });
        };
        let standing = self.0.borrow().clone();
        if let Some(token) = standing.filter(|token| token.until_ms > now_ms()) {
            return Ok(Credentials { authorization: Some(token.bearer) });
        }
        let token = fetch_token(&url, key).await?;
        let bearer = token.bearer.clone();
        *self.0.borrow_mut() = Some(token);
        Ok(Credentials { authorization: Some(bearer) })
    }
}

async fn fetch_token(url: &str, key: Option<String>) -> Result<Token, Failure> {
    let transient = |text: String| Failure::new(FailureKind::Transient, format!("token: {text}"));
    let parts = HeaderParts { dialect: Dialect::Plain, gateway: None, key, referer: None, title: None };
    let request = build(url, &parts, "{}").map_err(|error| transient(error.to_string()))?;
    let mut response = worker::Fetch::Request(request).send().await.map_err(|error| transient(error.to_string()))?;
    let status = response.status_code();
    let body = response.bytes().await.map_err(|error| transient(error.to_string()))?;
    if status >= 500 || status == 429 {
        return Err(transient(format!("HTTP {status}")));
    }
    let answer: Option<TokenAnswer> = serde_json::from_slice(&body).ok();
    match answer {
        Some(answer) if (200..300).contains(&status) && !answer.access_token.is_empty() => {
            let lives_ms = answer.expires_in.unwrap_or(300).saturating_mul(1_000).saturating_sub(TOKEN_MARGIN_MS);
            Ok(Token { bearer: answer.access_token, until_ms: now_ms().saturating_add(lives_ms) })
        }
        _ => Err(Failure::new(FailureKind::Authentication, format!("token: HTTP {status}, no access_token"))),
    }
}

/// The text of a JavaScript exception. What is thrown is an extension's: its `message` may be a getter that throws, or no
/// text, and the glue of `Error::message` dies of either.
pub(super) fn js_text(thrown: &JsValue) -> String {
    thrown
        .dyn_ref::<js_sys::Error>()
        .and_then(|error| js_sys::Reflect::get(error, &JsValue::from_str("message")).ok()?.as_string())
        .or_else(|| thrown.as_string())
        .unwrap_or_else(|| "a JavaScript exception".to_owned())
}
