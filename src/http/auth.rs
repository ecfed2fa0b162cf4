//! Who asks: bearer tokens, compared by their hashes.

use crate::config::{ApiToken, Scope};
use crate::error::{ApiError, Code};
use crate::json::sha256_hex;

/// The WebSocket subprotocol; the answer to an upgrade names it.
pub const WEBSOCKET_PROTOCOL: &str = "agentdo.v1";

/// Bytes of a token that are looked at.
const TOKEN_BYTES_MAX: usize = 4_096;

/// The headers that can carry a token.
#[derive(Debug, Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// `Authorization`.
    pub authorization: Option<&'a str>,
    /// `Sec-WebSocket-Protocol`, to be given for an upgrade only: a browser's WebSocket cannot send `Authorization`.
    pub websocket_protocol: Option<&'a str>,
}

/// Who a token speaks for, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The tenant.
    pub tenant: String,
    /// The scopes; one does not include another.
    pub scopes: Vec<Scope>,
}

/// Finds the token among those that are configured.
///
/// # Errors
/// `unauthorized`. The text tells a missing token from an unknown one and has neither.
pub fn authenticate(tokens: &[ApiToken], credentials: &Credentials<'_>) -> Result<Principal, ApiError> {
    let token = match (credentials.authorization, credentials.websocket_protocol) {
        (Some(header), _) => bearer(header),
        (None, Some(header)) => websocket_bearer(header),
        (None, None) => return Err(ApiError::because(Code::Unauthorized, "No token was sent.")),
    };
    let token =
        token.ok_or_else(|| ApiError::because(Code::Unauthorized, "The token is not sent as a bearer token."))?;
    let hash = sha256_hex(token.as_bytes());
    let known = tokens.iter().find(|known| same(&known.sha256, &hash));
    let known = known.ok_or_else(|| ApiError::because(Code::Unauthorized, "The token is not known."))?;
    Ok(Principal { tenant: known.tenant.clone(), scopes: known.scopes.clone() })
}

/// Compares in a time that does not tell where two hashes differ.
fn same(left: &str, right: &str) -> bool {
    let differing = left.bytes().zip(right.bytes()).fold(0, |bits, (left, right)| bits | (left ^ right));
    left.len() == right.len() && differing == 0
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| sane(token))
}

fn websocket_bearer(header: &str) -> Option<&str> {
    let protocols = || header.split(',').map(str::trim);
    if !protocols().any(|protocol| protocol == WEBSOCKET_PROTOCOL) {
        return None;
    }
    protocols().find_map(|protocol| protocol.strip_prefix("bearer.")).filter(|token| sane(token))
}

fn sane(token: &str) -> bool {
    !token.is_empty() && token.len() <= TOKEN_BYTES_MAX && !token.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(authorization: Option<&str>, websocket_protocol: Option<&str>) -> Result<Principal, ApiError> {
        let token = |text: &str, tenant: &str| ApiToken {
            sha256: sha256_hex(text.as_bytes()),
            tenant: tenant.to_owned(),
            scopes: vec![Scope::Read],
        };
        let tokens = [token("first", "acme"), token("second", "umbrella")];
        authenticate(&tokens, &Credentials { authorization, websocket_protocol })
    }

    #[test]
    fn a_known_token_gives_its_tenant() {
        assert_eq!(ask(Some("Bearer second"), None).unwrap().tenant, "umbrella");
        assert_eq!(ask(Some("bearer  first "), None).unwrap().tenant, "acme");
        assert_eq!(ask(None, Some("agentdo.v1, bearer.first")).unwrap().tenant, "acme");
        assert_eq!(ask(None, Some("bearer.first,agentdo.v1")).unwrap().tenant, "acme");
    }

    #[test]
    fn anything_else_is_unauthorized_and_not_repeated() {
        let hash = format!("Bearer {}", sha256_hex(b"first"));
        for (authorization, protocol) in [
            (None, None),
            (Some(""), None),
            (Some("Bearer"), None),
            (Some("Bearer "), None),
            (Some("Bearer hunter2"), None),
            (Some("Basic first"), None),
            (Some("Bearer first second"), None),
            (Some(hash.as_str()), None),
            (None, Some("bearer.first")),
            (None, Some("agentdo.v1")),
            (None, Some("agentdo.v1, bearer.")),
            (None, Some("agentdo.v2, bearer.first")),
            // A wrong header is not made good by another one.
            (Some("Bearer hunter2"), Some("agentdo.v1, bearer.first")),
        ] {
            let error = ask(authorization, protocol).unwrap_err();
            assert_eq!(error.code, Code::Unauthorized, "{authorization:?} {protocol:?}");
            assert!(!error.body().to_string().contains("hunter2"));
        }
    }
}
