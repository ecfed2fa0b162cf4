//! `API_TOKENS`: who may call, for which tenant, with which scopes.

use std::fmt;

use serde_json::Value;

use crate::json::{At, Problem};

closed_list! {
    /// What a token may do. One scope does not include another.
    Scope {
        Read "read": "Look.",
        Write "write": "Change what the agents do.",
        Admin "admin": "Delete, and set limits.",
    }
}

/// Tokens that are accepted.
const TOKENS_MAX: usize = 1_000;
/// Characters of a tenant's name.
pub const TENANT_CHARS_MAX: usize = 64;

/// One token, known by its hash only.
#[derive(Clone, PartialEq)]
pub struct ApiToken {
    /// SHA-256 of the token, lower-case hex.
    pub sha256: String,
    /// The tenant it speaks for.
    pub tenant: String,
    /// What it may do, at least one.
    pub scopes: Vec<Scope>,
}

impl fmt::Debug for ApiToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The hash of a weak token can be guessed from, so it does not go into a log either.
        formatter
            .debug_struct("ApiToken")
            .field("tenant", &self.tenant)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

pub(super) fn read(value: &Value) -> Result<Vec<ApiToken>, Problem> {
    let mut tokens: Vec<ApiToken> = Vec::new();
    for entry in At::root(value).items(TOKENS_MAX)? {
        let token = read_token(&entry)?;
        if tokens.iter().any(|other| other.sha256 == token.sha256) {
            return Err(entry.problem("has the sha256 of an earlier entry"));
        }
        tokens.push(token);
    }
    if tokens.is_empty() {
        return Err(Problem::invalid("", "has no token, so that nothing could be served"));
    }
    Ok(tokens)
}

fn read_token(entry: &At<'_>) -> Result<ApiToken, Problem> {
    let fields = entry.fields(&["sha256", "tenant", "scopes"])?;
    let hash = fields.required("sha256")?;
    let sha256 = hash.text(1_000)?.to_ascii_lowercase();
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(hash.problem("must be the SHA-256 of the token as 64 hex digits"));
    }
    let tenant = fields.required("tenant")?;
    let name = tenant.name(TENANT_CHARS_MAX)?;
    // An object's name is `tenant/agent-id`, so a slash would let one tenant name the agents of another.
    if !crate::http::is_id(name) {
        return Err(tenant.problem("may have letters, digits, dot, underscore and hyphen only"));
    }
    let list = fields.required("scopes")?;
    let scopes: Result<Vec<Scope>, Problem> = list.items(3)?.iter().map(|at| at.one_of(Scope::ALL)).collect();
    let scopes = scopes?;
    if scopes.is_empty() {
        return Err(list.problem("needs at least one of read, write, admin"));
    }
    Ok(ApiToken { sha256, tenant: name.to_owned(), scopes })
}
