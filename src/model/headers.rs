//! Request headers: those of the AI Gateway, of OpenRouter, and of any other chat-completions server.

use super::encode::Dialect;
use serde_json::Value;

/// The most entries the gateway keeps of `cf-aig-metadata`; it drops the others without a word.
pub const METADATA_ENTRIES_MAX: usize = 5;

/// What a request through the AI Gateway carries besides the provider's own headers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GatewayHeaders {
    /// The gateway's token; none for a gateway without authentication.
    pub token: Option<String>,
    /// The alias of the stored provider key; none for the default one.
    pub key_alias: Option<String>,
    /// How long the gateway waits for the first byte, ms.
    pub first_byte_timeout_ms: u64,
    /// Flat scalars for the gateway's log. What is no scalar and what is beyond [`METADATA_ENTRIES_MAX`] is left out: one
    /// object or null would make the gateway drop all of it.
    pub metadata: Vec<(String, Value)>,
    /// Our id of this request.
    pub event_id: String,
}

/// What the headers are made of.
#[derive(Debug, Clone, PartialEq)]
pub struct HeaderParts {
    /// Which provider it is.
    pub dialect: Dialect,
    /// None for a server that is asked directly.
    pub gateway: Option<GatewayHeaders>,
    /// The provider's key. None when the gateway has it: any value sent would win over the stored one.
    pub key: Option<String>,
    /// The address of the application, for OpenRouter.
    pub referer: Option<String>,
    /// The name of the application, for OpenRouter.
    pub title: Option<String>,
}

/// The headers of a request, names in lower case but for OpenRouter's own. Values are printable ASCII.
pub fn headers(parts: &HeaderParts) -> Vec<(String, String)> {
    let mut list = vec![("content-type".to_owned(), "application/json".to_owned())];
    let mut add = |name: &str, value: &str| {
        let value: String = value.trim().chars().filter(|char| matches!(char, ' '..='~')).collect();
        if !value.is_empty() {
            list.push((name.to_owned(), value));
        }
    };
    if let Some(key) = &parts.key {
        add("authorization", &format!("Bearer {key}"));
    }
    if let Some(gateway) = &parts.gateway {
        if let Some(token) = &gateway.token {
            add("cf-aig-authorization", &format!("Bearer {token}"));
        }
        // Identical requests were served from a cache, across users, even with the cache set to zero seconds.
        add("cf-aig-skip-cache", "true");
        // Retries are ours: the gateway's own would spend the free tier's count where nobody sees it.
        add("cf-aig-max-attempts", "1");
        // Without a key the request fails instead of being billed to Cloudflare.
        add("cf-aig-no-wholesale", "true");
        add("cf-aig-request-timeout", &gateway.first_byte_timeout_ms.to_string());
        if let Some(alias) = &gateway.key_alias {
            add("cf-aig-byok-alias", alias);
        }
        if let Some(metadata) = metadata(&gateway.metadata) {
            add("cf-aig-metadata", &metadata);
        }
        add("cf-aig-event-id", &gateway.event_id);
    }
    if parts.dialect == Dialect::OpenRouter {
        if let Some(referer) = &parts.referer {
            add("HTTP-Referer", referer);
        }
        if let Some(title) = &parts.title {
            add("X-OpenRouter-Title", title);
        }
    }
    list
}

fn metadata(entries: &[(String, Value)]) -> Option<String> {
    let scalars = entries.iter().filter(|(_, value)| value.is_string() || value.is_number() || value.is_boolean());
    let object: serde_json::Map<String, Value> =
        scalars.take(METADATA_ENTRIES_MAX).map(|(key, value)| (key.clone(), value.clone())).collect();
    if object.is_empty() {
        return None;
    }
    // Header values are ASCII; JSON can say the rest in escapes.
    let json = Value::Object(object).to_string();
    let mut ascii = String::with_capacity(json.len());
    for char in json.chars() {
        if char.is_ascii() {
            ascii.push(char);
        } else {
            let mut units = [0_u16; 2];
            for unit in char.encode_utf16(&mut units) {
                ascii.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    Some(ascii)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parts(dialect: Dialect) -> HeaderParts {
        HeaderParts {
            dialect,
            gateway: None,
            key: None,
            referer: Some("https://a.example".into()),
            title: Some("A".into()),
        }
    }

    fn get<'a>(list: &'a [(String, String)], name: &str) -> Option<&'a str> {
        list.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn a_plain_server_gets_nothing_of_ours() {
        let list = headers(&HeaderParts { key: Some("k".into()), ..parts(Dialect::Plain) });
        let names: Vec<&str> = list.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["content-type", "authorization"]);
        assert_eq!(headers(&parts(Dialect::Plain)).len(), 1);
    }

    #[test]
    fn the_gateway_path() {
        let metadata = vec![
            ("run".to_owned(), json!("run:01 é")),
            ("bad".to_owned(), json!({"a": 1})),
            ("none".to_owned(), Value::Null),
            ("turn".to_owned(), json!(3)),
            ("c".to_owned(), json!(true)),
            ("d".to_owned(), json!(1)),
            ("e".to_owned(), json!(1)),
            ("f".to_owned(), json!(1)),
        ];
        let gateway = GatewayHeaders {
            token: Some("t\r\nx: y".into()),
            key_alias: Some("free".into()),
            first_byte_timeout_ms: 60_000,
            metadata,
            event_id: "ev_1".into(),
        };
        let list = headers(&HeaderParts { gateway: Some(gateway), ..parts(Dialect::OpenRouter) });
        assert_eq!(get(&list, "authorization"), None);
        assert_eq!(get(&list, "cf-aig-authorization"), Some("Bearer tx: y"));
        assert_eq!(get(&list, "cf-aig-skip-cache"), Some("true"));
        assert_eq!(get(&list, "cf-aig-max-attempts"), Some("1"));
        assert_eq!(get(&list, "cf-aig-no-wholesale"), Some("true"));
        assert_eq!(get(&list, "cf-aig-request-timeout"), Some("60000"));
        assert_eq!(get(&list, "cf-aig-byok-alias"), Some("free"));
        assert_eq!(get(&list, "cf-aig-event-id"), Some("ev_1"));
        assert_eq!(get(&list, "HTTP-Referer"), Some("https://a.example"));
        assert_eq!(get(&list, "X-OpenRouter-Title"), Some("A"));
        assert_eq!(get(&list, "cf-aig-metadata"), Some(r#"{"c":true,"d":1,"e":1,"run":"run:01 \u00e9","turn":3}"#));
    }
}
