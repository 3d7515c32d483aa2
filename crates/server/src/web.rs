//! The web page: a chat in the browser. Its files are part of the program; nothing of it comes from elsewhere, and its
//! policy lets it talk to this server only.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use std::hash::{DefaultHasher, Hash, Hasher};

/// One file of the page.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! asset {
    ($path:literal, $content_type:expr, $file:literal) => {
        Asset { path: $path, content_type: $content_type, bytes: include_bytes!(concat!("web/", $file)) }
    };
}

static ASSETS: [Asset; 17] = [
    asset!("/", HTML, "index.html"),
    asset!("/web/style.css", CSS, "style.css"),
    asset!("/web/frame.css", CSS, "frame.css"),
    asset!("/web/dialog.css", CSS, "dialog.css"),
    asset!("/web/message.css", CSS, "message.css"),
    asset!("/web/lily.svg", SVG, "lily.svg"),
    asset!("/web/theme.js", JAVASCRIPT, "theme.js"),
    asset!("/web/main.js", JAVASCRIPT, "main.js"),
    asset!("/web/chat.js", JAVASCRIPT, "chat.js"),
    asset!("/web/dom.js", JAVASCRIPT, "dom.js"),
    asset!("/web/inline.js", JAVASCRIPT, "inline.js"),
    asset!("/web/markdown.js", JAVASCRIPT, "markdown.js"),
    asset!("/web/message.js", JAVASCRIPT, "message.js"),
    asset!("/web/run.js", JAVASCRIPT, "run.js"),
    asset!("/web/settings.js", JAVASCRIPT, "settings.js"),
    asset!("/web/sidebar.js", JAVASCRIPT, "sidebar.js"),
    asset!("/web/store.js", JAVASCRIPT, "store.js"),
];

/// What the browser enforces whatever a model writes: scripts, styles and pictures from here only, requests to here only,
/// no HTML made from text, no frames around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// The page and its parts, a path each.
pub(crate) fn pages() -> Router {
    ASSETS.iter().fold(Router::new(), |router, asset| {
        router.route(asset.path, get(move |headers: HeaderMap| async move { asset.answer(&headers) }))
    })
}

impl Asset {
    /// The file, or 304 for a browser that has it as it is.
    fn answer(&self, request: &HeaderMap) -> Response {
        let tag = self.tag();
        let known = request.get_all(header::IF_NONE_MATCH).iter().any(|value| names(value, &tag));
        let mut response = if known {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            Response::new(Body::from(Bytes::from_static(self.bytes)))
        };
        let headers = response.headers_mut();
        if let Ok(tag) = HeaderValue::try_from(tag) {
            headers.insert(header::ETAG, tag);
        }
        let fixed: [(HeaderName, &'static str); 6] = [
            (header::CONTENT_TYPE, self.content_type),
            // Kept, and asked for whether it is still the same: a new build shows at once.
            (header::CACHE_CONTROL, "no-cache"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        ];
        headers.extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
        response
    }

    /// Another content has another tag.
    fn tag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.bytes.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }
}

/// Whether a value of If-None-Match holds the tag.
fn names(value: &HeaderValue, tag: &str) -> bool {
    let tags = value.to_str().unwrap_or_default().split(',').map(str::trim);
    tags.into_iter().any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

#[cfg(test)]
mod tests {
    use super::{ASSETS, JAVASCRIPT, names};
    use axum::http::HeaderValue;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_file_is_served_and_every_reference_leads_to_one() {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/web");
        let there: BTreeSet<String> = std::fs::read_dir(files)
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        let served: BTreeSet<String> =
            ASSETS.iter().map(|asset| asset.path.trim_start_matches("/web/").replace('/', "index.html")).collect();
        assert_eq!(served, there);
        for asset in &ASSETS {
            let text = std::str::from_utf8(asset.bytes).expect("UTF-8");
            let beginnings = [("src=\"", ""), ("<link rel=\"stylesheet\" href=\"", ""), ("from \".", "/web")];
            for (beginning, folder) in beginnings {
                for rest in text.split(beginning).skip(1) {
                    let path = format!("{folder}{}", rest.split('"').next().expect("a quote"));
                    assert!(ASSETS.iter().any(|asset| asset.path == path), "{}: {path}", asset.path);
                }
            }
        }
    }

    /// The policy would stop most of it; that it is not even tried is what keeps a text a text.
    #[test]
    fn no_text_becomes_html_or_code() {
        for asset in ASSETS.iter().filter(|asset| asset.content_type == JAVASCRIPT) {
            let text = std::str::from_utf8(asset.bytes).expect("UTF-8");
            for word in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser"]
            {
                assert!(!text.contains(word), "{}: {word}", asset.path);
            }
        }
    }

    #[test]
    fn tags_are_told_apart() {
        let names = |value: &'static str| names(&HeaderValue::from_static(value), "\"ab\"");
        for value in ["\"ab\"", "W/\"ab\"", "\"x\", \"ab\"", "*"] {
            assert!(names(value), "{value}");
        }
        for value in ["", "ab", "\"abc\"", "\"x\""] {
            assert!(!names(value), "{value}");
        }
    }
}
