//! Style sheet, script and icon, which are part of the binary.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};

/// A file that changes only with the version of the server.
struct Asset {
    content_type: &'static str,
    text: String,
    tag: String,
}

impl Asset {
    fn new(content_type: &'static str, text: String) -> Self {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Self { content_type, tag: format!("\"{:016x}\"", hasher.finish()), text }
    }

    /// Browsers cache the file and revalidate it by its tag.
    fn response(&self, headers: &HeaderMap) -> Response {
        let is_current =
            headers.get(IF_NONE_MATCH).is_some_and(|tag| tag.as_bytes() == self.tag.as_bytes());
        let cache = (CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        let content_type = (CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        let mut response = match is_current {
            true => (StatusCode::NOT_MODIFIED, [cache]).into_response(),
            false => ([cache, content_type], self.text.clone()).into_response(),
        };
        if let Ok(tag) = HeaderValue::from_str(&self.tag) {
            response.headers_mut().insert(ETAG, tag);
        }
        response
    }
}

/// `GET /console/style.css`, with the style of the charts.
pub(super) async fn style(headers: HeaderMap) -> Response {
    static STYLE: LazyLock<Asset> = LazyLock::new(|| {
        let text = format!(".plot {{\n{}}}\n\n{}", crate::chart::STYLE, include_str!("style.css"));
        Asset::new("text/css; charset=utf-8", text)
    });
    STYLE.response(&headers)
}

/// `GET /console/console.js`
pub(super) async fn script(headers: HeaderMap) -> Response {
    static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
        Asset::new("text/javascript; charset=utf-8", include_str!("console.js").into())
    });
    SCRIPT.response(&headers)
}

/// `GET /console/icon.svg`
pub(super) async fn icon(headers: HeaderMap) -> Response {
    static ICON: LazyLock<Asset> =
        LazyLock::new(|| Asset::new("image/svg+xml", include_str!("icon.svg").into()));
    ICON.response(&headers)
}
