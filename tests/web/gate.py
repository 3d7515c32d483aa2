"""A proxy before the server that holds a stream's events until a test lets them pass."""

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Gate:
    """Open at first. Closed, it lets `limit` events of each stream pass and holds the others."""

    def __init__(self, upstream: str):
        self.upstream = urlsplit(upstream).netloc
        self.limit = None
        self.breaks = False
        self.comments = []
        self.key = None
        self.asked = []
        self.changed = threading.Condition()
        gate = self

        class Handler(BaseHTTPRequestHandler):
            # Every answer ends with its connection: simple, and what a proxy may do.
            protocol_version = "HTTP/1.0"

            def do_GET(self):
                gate.forward(self)

            def do_POST(self):
                gate.forward(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close_after(self, events: int, *, breaks: bool = False) -> None:
        """Lets so many events of each stream pass; then holds the rest, or breaks the connection off."""
        with self.changed:
            self.limit, self.breaks = events, breaks
            self.changed.notify_all()

    def open(self) -> None:
        """Lets everything pass."""
        self.close_after(None)

    def shut_down(self) -> None:
        self.open()
        self.server.shutdown()
        self.server.server_close()

    def forward(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        if self.key and handler.path.startswith("/v1/") and handler.headers.get("authorization") != f"Bearer {self.key}":
            return self.refuse(handler)
        if body:
            self.asked.append(json.loads(body))
        upstream = http.client.HTTPConnection(self.upstream, timeout=60)
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in HOP_BY_HOP}
        try:
            upstream.request(handler.command, handler.path, body or None, headers)
            answer = upstream.getresponse()
            handler.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    handler.send_header(name, value)
            handler.end_headers()
            if answer.getheader("content-type") == "text/event-stream":
                self.stream(handler, answer)
            else:
                handler.wfile.write(answer.read())
        except (BrokenPipeError, ConnectionResetError):
            pass  # The browser has gone.
        finally:
            upstream.close()

    def stream(self, handler: BaseHTTPRequestHandler, answer: http.client.HTTPResponse) -> None:
        for comment in self.comments:
            handler.wfile.write(f": {comment}\n\n".encode())
        passed = 0
        for line in answer:
            if line.startswith(b"data:"):
                if not self.may_pass(handler, passed):
                    return
                passed += 1
            handler.wfile.write(line)
            handler.wfile.flush()

    def may_pass(self, handler: BaseHTTPRequestHandler, passed: int) -> bool:
        """Waits as long as the gate is closed; false once the browser has gone, or is to be cut off."""
        with self.changed:
            while self.limit is not None and passed >= self.limit:
                if self.breaks:
                    return False
                self.changed.wait(0.1)
                # A comment line: it fails once the other side has closed.
                handler.wfile.write(b":\n")
                handler.wfile.flush()
        return True

    def refuse(self, handler: BaseHTTPRequestHandler) -> None:
        """As the server does when the API key is missing or wrong."""
        error = {"message": "The API key is missing or wrong.", "type": "invalid_request_error", "param": None, "code": None}
        handler.send_response(401)
        handler.send_header("content-type", "application/json")
        handler.end_headers()
        handler.wfile.write(json.dumps({"error": error}).encode())
