//! The HTTP edge, as pure functions: authentication, routes, bodies, event streams.
//!
//! Nothing here touches the platform. The Worker hands in strings and bytes and carries out the [`Route`] it gets back.

pub mod auth;
pub mod body;
pub mod route;
pub mod sse;

pub use auth::{Credentials, Principal};
pub use route::{AgentCall, Route};

use crate::config::Config;
use crate::error::{ApiError, Code};

/// Characters of an agent id or a tenant.
pub const ID_CHARS_MAX: usize = 64;

/// Whether the text is an agent id or a tenant: `[A-Za-z0-9._-]{1,64}`.
pub fn is_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=ID_CHARS_MAX).contains(&text.len()) && text.bytes().all(fits)
}

/// A request that may be carried out: what it asks for, and for whom.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    /// What it asks for.
    pub route: Route,
    /// Who asks; `None` for the health check only.
    pub principal: Option<Principal>,
}

/// Decides whether a request is carried out: token, then route, then scope.
///
/// The token comes first, so that without one nobody learns which paths exist. `path` is still percent-encoded; `query`
/// is without its question mark.
///
/// # Errors
/// `unauthorized`, `not_found`, `method_not_allowed`, `invalid_request`, `unknown_field`, `forbidden`.
pub fn admit(
    config: &Config,
    method: &str,
    path: &str,
    query: &str,
    credentials: &Credentials<'_>,
) -> Result<Admitted, ApiError> {
    if path == "/healthz" {
        return Ok(Admitted { route: route::parse(method, path, query)?, principal: None });
    }
    let principal = auth::authenticate(&config.api_tokens, credentials)?;
    let route = route::parse(method, path, query)?;
    if let Some(scope) = route.scope().filter(|scope| !principal.scopes.contains(scope)) {
        let message = format!("The token lacks the scope {}.", scope.name());
        return Err(ApiError::because(Code::Forbidden, message).with("scope", scope.name()));
    }
    Ok(Admitted { route, principal: Some(principal) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::sha256_hex;
    use serde_json::json;

    fn config() -> Config {
        let tokens = json!([
            {"sha256": sha256_hex(b"reader"), "tenant": "acme", "scopes": ["read"]},
            {"sha256": sha256_hex(b"writer"), "tenant": "acme", "scopes": ["read", "write"]},
        ]);
        Config::from_vars(&|name| (name == "API_TOKENS").then(|| tokens.to_string())).unwrap()
    }

    fn code(method: &str, path: &str, token: Option<&str>) -> Code {
        let header = token.map(|token| format!("Bearer {token}"));
        let credentials = Credentials { authorization: header.as_deref(), websocket_protocol: None };
        admit(&config(), method, path, "", &credentials).unwrap_err().code
    }

    #[test]
    fn token_then_route_then_scope() {
        assert_eq!(code("GET", "/v1/agents/a", None), Code::Unauthorized);
        assert_eq!(code("GET", "/v1/no-such-thing", None), Code::Unauthorized);
        assert_eq!(code("GET", "/", None), Code::Unauthorized);
        assert_eq!(code("GET", "/v1/no-such-thing", Some("reader")), Code::NotFound);
        assert_eq!(code("PUT", "/v1/agents/a", Some("reader")), Code::Forbidden);
        assert_eq!(code("DELETE", "/v1/agents/a", Some("writer")), Code::Forbidden);
        assert_eq!(code("PATCH", "/v1/agents/a", Some("writer")), Code::MethodNotAllowed);
    }

    #[test]
    fn the_health_check_needs_no_token() {
        let admitted = admit(&config(), "GET", "/healthz", "", &Credentials::default()).unwrap();
        assert_eq!(admitted, Admitted { route: Route::Healthz, principal: None });
        assert_eq!(code("POST", "/healthz", None), Code::MethodNotAllowed);
    }

    #[test]
    fn ids() {
        for id in ["a", "A.b_c-9", &"x".repeat(64)] {
            assert!(is_id(id), "{id}");
        }
        for id in ["", "a/b", "ä", "a b", "a\0", &"x".repeat(65)] {
            assert!(!is_id(id), "{id}");
        }
    }
}
