//! Clients that take their time are cut off; others never notice them.

use crate::client::{Connection, get};
use crate::scripted::Scripted;
use crate::serving::scripted;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_header_that_does_not_end_closes_the_connection() {
    let server = scripted(Scripted::new(1000), |config| config.timeouts.header = SHORT);
    let mut slow = Connection::open(server.address);
    slow.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: te");
    get(server.address, "/health").ok();
    assert!(slow.is_closed());
}

#[test]
fn a_body_that_stops_is_408() {
    let server = scripted(Scripted::new(1000), |config| config.timeouts.body_progress = SHORT);
    let mut slow = Connection::open(server.address);
    slow.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\n{\"mess");
    get(server.address, "/health").ok();
    slow.answer().error(408);
}

#[test]
fn a_body_that_trickles_is_408() {
    let server = scripted(Scripted::new(1000), |config| {
        config.timeouts.body_progress = LONG;
        config.timeouts.body_total = SHORT;
    });
    let mut slow = Connection::open(server.address);
    slow.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\n");
    for _ in 0..20 {
        slow.raw(b" ");
        std::thread::sleep(SHORT / 10);
    }
    slow.answer().error(408);
}
