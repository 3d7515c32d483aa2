//! The web page over HTTP. What it does in a browser is tested in tests/web.

use crate::client::{get, request};
use crate::serving::model;

#[test]
fn the_page_and_its_parts_are_there() {
    let page = get(model(), "/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let script = get(model(), "/web/main.js");
    assert_eq!((script.status, script.header("content-type")), (200, Some("text/javascript; charset=utf-8")));
    assert!(script.text().contains("Lily"));
    let (_, code, message) = get(model(), "/web/other.js").error(404);
    assert_eq!(code, "not_found");
    assert!(message.contains("/web/other.js"), "{message}");
    assert_eq!(request(model(), "POST", "/", &[], b"").status, 405);
}

#[test]
fn a_browser_that_has_a_part_is_told_so() {
    let first = get(model(), "/web/style.css");
    let tag = first.header("etag").expect("a tag").to_owned();
    let again = request(model(), "GET", "/web/style.css", &[("if-none-match", &tag)], b"");
    assert_eq!((again.status, again.header("etag"), again.body.len()), (304, Some(tag.as_str()), 0));
    let other = request(model(), "GET", "/web/style.css", &[("if-none-match", "\"other\"")], b"");
    assert_eq!((other.status, other.body.len()), (200, first.body.len()));
    assert_ne!(get(model(), "/").header("etag"), Some(tag.as_str()));
}
