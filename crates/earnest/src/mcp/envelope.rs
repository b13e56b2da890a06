//! What a message has to look like before anything is dispatched (JSON-RPC 2.0, as MCP narrows it):
//! one object, never a batch; an id that is a string or an integer, never null.

use http::StatusCode;
use serde_json::{Value, json};

/// Why a message is not taken: the HTTP status, and the error to answer with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Malformed(pub(super) Value);

impl Malformed {
    fn new(id: &Value, code: i32, why: &str) -> Self {
        Self(json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": why } }))
    }

    /// A message that its envelope does not give away, for whoever reads it next.
    pub(super) fn unreadable(message: &Value) -> Self {
        let id = message.get("id").filter(|id| is_id(id));
        Self::new(id.unwrap_or(&Value::Null), -32600, "that is no message of this protocol")
    }

    /// Always the same.
    pub(super) const STATUS: StatusCode = StatusCode::BAD_REQUEST;
}

/// Judges a message.
pub(super) fn read(bytes: &[u8]) -> Result<Value, Malformed> {
    let invalid = |id: &Value, why: &str| Err(Malformed::new(id, -32600, why));
    let null = Value::Null;
    let message: Value = match serde_json::from_slice(bytes) {
        Ok(message) => message,
        Err(_) => return Err(Malformed::new(&null, -32700, "the body is not JSON")),
    };
    let Value::Object(members) = &message else {
        return invalid(&null, "one message at a time: the body has to be one object");
    };
    let id = members.get("id");
    if id.is_some_and(|id| !is_id(id)) {
        return invalid(&null, "an id is a string or an integer");
    }
    let id = id.unwrap_or(&null);
    if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return invalid(id, "`jsonrpc` has to be \"2.0\"");
    }
    let answers = members.contains_key("result") || members.contains_key("error");
    match members.get("method") {
        Some(Value::String(_)) if !answers => {}
        None if answers => {}
        _ => return invalid(id, "`method` has to be a string"),
    }
    if members.get("params").is_some_and(|params| !params.is_object()) {
        return invalid(id, "`params` has to be an object");
    }
    Ok(message)
}

fn is_id(id: &Value) -> bool {
    id.is_string() || id.is_i64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_messages_with_sound_ids_are_taken() {
        for good in [
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":"a","method":"ping","params":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        ] {
            assert!(read(good.as_bytes()).is_ok(), "{good}");
        }
        for (bad, code, id) in [
            ("[]", -32600, json!(null)),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600, json!(null)),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600, json!(null)),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600, json!(null)),
            (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600, json!(null)),
            (r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#, -32600, json!(7)),
            (r#"{"id":7,"method":"ping"}"#, -32600, json!(7)),
            (r#"{"jsonrpc":"2.0","id":7}"#, -32600, json!(7)),
            (r#"{"jsonrpc":"2.0","id":7,"method":1}"#, -32600, json!(7)),
            (r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":[]}"#, -32600, json!(7)),
            ("{", -32700, json!(null)),
            ("", -32700, json!(null)),
            ("3", -32600, json!(null)),
        ] {
            let Malformed(error) = read(bad.as_bytes()).unwrap_err();
            assert_eq!((&error["error"]["code"], &error["id"]), (&json!(code), &id), "{bad}");
        }
    }
}
