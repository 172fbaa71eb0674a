//! Fields of an `INFO` reply.

use redis::{Value, from_redis_value};

/// The value of field `name`, without the line end.
pub(crate) fn field(info: &Value, name: &str) -> Option<String> {
    let info = text(info)?;
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(|value| value.trim_end().to_owned())
}

pub(crate) fn text(value: &Value) -> Option<String> {
    from_redis_value(value).ok()
}
