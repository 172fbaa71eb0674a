//! Whether a server is a primary.

use redis::{ErrorKind, RedisResult, Value};

use crate::connection::dial::RawConnection;

/// Reads the role from `HELLO`, which needs no permission.
pub(crate) async fn is_primary(mut connection: RawConnection) -> RedisResult<bool> {
    let reply = connection.send_packed_command(&redis::cmd("HELLO")).await?;
    let role = match &reply.extract_error()? {
        Value::Map(pairs) => {
            let role = pairs.iter().find(|(name, _)| text(name) == Some("role"));
            role.and_then(|(_, role)| text(role)).map(|role| role == "master")
        }
        Value::Array(items) => {
            let role = items.chunks(2).find(|pair| pair.first().and_then(text) == Some("role"));
            role.and_then(|pair| text(pair.get(1)?)).map(|role| role == "master")
        }
        _ => None,
    };
    role.ok_or_else(|| (ErrorKind::ClientError, "the server does not report its role").into())
}

/// The text of a bulk or simple string.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
