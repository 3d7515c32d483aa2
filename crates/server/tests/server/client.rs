//! A small HTTP client over a plain socket: what arrives is seen as it arrives, and a test can misbehave at will.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Nothing here takes that long unless the server hangs.
const HANGS: Duration = Duration::from_secs(120);

pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The answer's JSON, if it is a good one.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// The error's `param`, `code` and message, if it has `status` and OpenAI's shape.
    pub(crate) fn error(&self, status: u16) -> (Value, Value, String) {
        assert_eq!(self.status, status, "{}", self.text());
        let error = &self.json()["error"];
        let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
        assert_eq!(error["type"], kind, "{error}");
        assert_eq!(error.as_object().expect("an object").len(), 4, "{error}");
        let message = error["message"].as_str().expect("a message");
        assert!(!message.is_empty());
        (error["param"].clone(), error["code"].clone(), message.to_owned())
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    request(address, "GET", path, &[], b"")
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    request(address, "POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
}

pub(crate) fn chat(address: SocketAddr, body: &Value) -> Answer {
    post(address, "/v1/chat/completions", body)
}

pub(crate) fn request(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut connection = Connection::open(address);
    connection.send(method, path, headers, body);
    connection.answer()
}

/// An open connection with at most one request on it.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(HANGS)).expect("a socket");
        Self { reader: BufReader::new(stream) }
    }

    /// Sends a request. A server that has answered and closed already is no error.
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n", body.len());
        self.raw(head.as_bytes());
        self.raw(body);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        let _closed = self.reader.get_mut().write_all(bytes);
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("the server answers");
        line.trim_end().to_owned()
    }

    /// The status and headers of the answer.
    pub(crate) fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let status = self.line();
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        (code.unwrap_or_else(|| panic!("no status: {status:?}")), headers)
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let (status, headers) = self.head();
        let mut answer = Answer { status, headers, body: Vec::new() };
        if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                answer.body.extend(chunk);
            }
        } else {
            let length = answer.header("content-length").map_or(0, |length| length.parse().expect("a number"));
            answer.body.resize(length, 0);
            self.reader.read_exact(&mut answer.body).expect("the whole body");
        }
        answer
    }

    /// The next chunk of a chunked body; `None` after the last.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let length = usize::from_str_radix(&self.line(), 16).expect("a chunk's length");
        let mut chunk = vec![0; length + 2];
        self.reader.read_exact(&mut chunk).expect("the whole chunk");
        chunk.truncate(length);
        (length > 0).then_some(chunk)
    }

    /// Whether the server has closed the connection without another word.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.reader.read(&mut [0]), Ok(0) | Err(_))
    }
}

/// The JSON of a stream's events and whether `[DONE]` ended it. Comments are skipped.
pub(crate) fn events(answer: &Answer) -> (Vec<Value>, bool) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let text = String::from_utf8(answer.body.clone()).expect("UTF-8");
    let mut events = Vec::new();
    let mut done = false;
    for block in text.split_terminator("\n\n").filter(|block| !block.starts_with(':')) {
        assert!(!done, "something follows [DONE]");
        let data = block.strip_prefix("data: ").unwrap_or_else(|| panic!("no event: {block:?}"));
        match data {
            "[DONE]" => done = true,
            data => events.push(serde_json::from_str(data).expect("JSON")),
        }
    }
    (events, done)
}
