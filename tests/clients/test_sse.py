"""The bytes on the wire: curl for streams and errors, raw sockets for clients that misbehave."""

import json
import socket
import subprocess

import pytest

from serving import PATIENCE

CHAT = "/v1/chat/completions"
QUESTION = {
    "messages": [{"role": "user", "content": "What is the capital of Norway?"}],
    "temperature": 0,
    "max_completion_tokens": 50,
    "chat_template_kwargs": {"enable_thinking": False},
}
ANSWER = "The capital of Norway is Oslo."


class Answer:
    """What curl received: status, headers in lower case, body."""

    def __init__(self, received: bytes):
        head, self.body = received.split(b"\r\n\r\n", 1)
        while head.startswith(b"HTTP/1.1 100"):
            head, self.body = self.body.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}

    def error(self) -> dict:
        assert self.headers["content-type"] == "application/json"
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return error


def curl(server, path, *options, data: bytes | None = None) -> Answer:
    command = ["curl", "-sS", "-i", "--max-time", str(PATIENCE), *options]
    if data is not None:
        command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    done = subprocess.run([*command, server.url + path], input=data, capture_output=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr.decode()
    return Answer(done.stdout)


def chat(server, **parameters) -> Answer:
    return curl(server, CHAT, "-N", data=json.dumps(QUESTION | parameters).encode())


def assert_serves(server):
    reply = chat(server)
    assert json.loads(reply.body)["choices"][0]["message"]["content"] == ANSWER


def events(body: bytes) -> list[str]:
    """The data of each event; every byte of the stream must belong to an event or a comment."""
    assert b"\r" not in body
    assert body.endswith(b"\n\n")
    found = []
    for block in body[:-2].split(b"\n\n"):
        assert b"\n" not in block, f"not one line: {block!r}"
        if block.startswith(b":"):
            continue
        assert block.startswith(b"data: "), block
        found.append(block.removeprefix(b"data: ").decode())
    return found


def test_stream(server):
    answer = chat(server, stream=True)
    assert answer.status == 200
    assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    *chunks, done = events(answer.body)
    assert done == "[DONE]"
    chunks = [json.loads(chunk) for chunk in chunks]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == ANSWER
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert all(chunk["created"] == chunks[0]["created"] for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)


def test_stream_with_usage(server):
    *chunks, usage, done = events(chat(server, stream=True, stream_options={"include_usage": True}).body)
    assert done == "[DONE]"
    assert all(json.loads(chunk)["usage"] is None for chunk in chunks)
    usage = json.loads(usage)
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + usage["usage"]["completion_tokens"]


def test_stream_of_reasoning(server):
    answer = chat(server, stream=True, chat_template_kwargs={"enable_thinking": True})
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in events(answer.body)[:-1]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert "".join(delta.get("content") or "" for delta in deltas) == ANSWER


def test_stream_of_a_completion(server):
    body = {"prompt": "The capital of Norway is", "max_tokens": 8, "temperature": 0, "stream": True}
    *chunks, done = events(curl(server, "/v1/completions", "-N", data=json.dumps(body).encode()).body)
    assert done == "[DONE]"
    chunks = [json.loads(chunk) for chunk in chunks]
    assert all(chunk["object"] == "text_completion" for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_an_error_before_a_stream_is_not_a_stream(server):
    answer = chat(server, stream=True, temperature=-1)
    assert answer.status == 400
    assert answer.error()["param"] == "temperature"


def test_health_and_readiness(server):
    for path in ("/health", "/ready"):
        assert curl(server, path).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"messages": [}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b"[" * 100_000,
        b"[]",
        b'"hello"',
        b"\x00" * 100,
    ],
    ids=["empty", "open", "malformed", "NaN", "invalid UTF-8", "lone surrogate", "deep", "array", "string", "zeros"],
)
def test_bodies_that_are_no_request(server, body):
    answer = curl(server, CHAT, data=body)
    assert answer.status == 400
    assert answer.error()["type"] == "invalid_request_error"


def test_paths_and_methods(server):
    nothing = curl(server, "/v1/nothing")
    assert (nothing.status, nothing.error()["type"]) == (404, "invalid_request_error")
    wrong = curl(server, CHAT)
    assert (wrong.status, wrong.error()["type"]) == (405, "invalid_request_error")


@pytest.mark.parametrize("options", [(), ("-H", "Expect:"), ("-H", "Transfer-Encoding: chunked")])
def test_a_body_over_the_limit(server, options):
    """33 MiB, where 32 are taken; told beforehand, sent without asking, and of a length not told."""
    answer = curl(server, CHAT, *options, data=b" " * (33 << 20))
    assert answer.status == 413
    assert answer.error()["type"] == "invalid_request_error"


def test_a_chunked_body(server):
    answer = curl(server, CHAT, "-H", "Transfer-Encoding: chunked", data=json.dumps(QUESTION).encode())
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == ANSWER


def test_a_prompt_of_ten_megabytes(server):
    answer = chat(server, messages=[{"role": "user", "content": "water " * (10_000_000 // 6)}])
    assert (answer.status, answer.error()["code"]) == (400, "context_length_exceeded")


def post(body: bytes, length: int | None = None) -> bytes:
    """A whole request as bytes."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length or len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "sent",
    [
        b"not HTTP at all\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2_000_000 + b"\r\n\r\n",
    ],
    ids=["words", "TLS", "length", "long header"],
)
def test_bytes_that_are_no_http(server, sent):
    with socket.create_connection(server.address, timeout=PATIENCE) as connection:
        try:
            connection.sendall(sent)
            received = connection.recv(1 << 16)
        except (ConnectionResetError, BrokenPipeError):
            received = b""
    assert received == b"" or received.startswith(b"HTTP/1.1 4")
    assert_serves(server)


def test_clients_that_leave(server):
    """In the middle of the body, right after the request, and while the model reads a long prompt."""
    body = json.dumps(QUESTION).encode()
    long = json.dumps(QUESTION | {"messages": [{"role": "user", "content": "water and bread " * 7000}]}).encode()
    for sent in (post(body[:20], len(body)), post(body), post(long)):
        with socket.create_connection(server.address, timeout=PATIENCE) as connection:
            connection.sendall(sent)
    server.wait_until_idle(20)
    assert_serves(server)


def test_two_requests_on_one_connection(server):
    body = json.dumps(QUESTION).encode()
    with socket.create_connection(server.address, timeout=PATIENCE) as connection:
        connection.sendall(post(body) + post(body))
        received = b""
        while received.count(ANSWER.encode()) < 2:
            received += (some := connection.recv(1 << 16))
            assert some, received
    assert received.count(b"HTTP/1.1 200 OK") == 2


def test_slow_clients_are_given_up(server, slow_clients):
    """They sent half a request at the start of the test run; others were answered meanwhile, and now they are cut."""
    assert_serves(server)
    for name, connection in slow_clients.items():
        received = b""
        try:
            while some := connection.recv(1 << 16):
                received += some
        except ConnectionResetError:
            pass
        except TimeoutError:
            pytest.fail(f"{name}: the server still waits")
        assert received == b"" or received.startswith(b"HTTP/1.1 408"), f"{name}: {received!r}"
    server.wait_until_idle(10)
