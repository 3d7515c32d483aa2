"""One `lily serve` for (nearly) all tests of this folder, on a free port, with the embedded checkpoint.

The program is target/release/lily, or what $LILY_BIN names. The server is stopped with SIGTERM after the last test
and must end cleanly: exit code 0, no panic on its standard error.
"""

import socket

import openai
import pytest
from serving import PATIENCE, launched


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with launched(tmp_path_factory.mktemp("no-models")) as server:
        yield server


@pytest.fixture(scope="session")
def client(server):
    """The official client. It must not retry: an error is what a test looks at."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE) as client:
        yield client


@pytest.fixture(scope="session", autouse=True)
def slow_clients(server):
    """Clients that begin a request and then stop sending, from before the first test on: nobody else may notice.

    `test_sse.py` looks at them last, when the server has had time to give up on them.
    """
    beginnings = {
        "headers": b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le",
        "body": b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Content-Length: 1000\r\n\r\n{"messages": [',
    }
    connections = {}
    for kind, sent in beginnings.items():
        for number in range(8):
            connection = socket.create_connection(server.address, timeout=PATIENCE)
            connection.sendall(sent)
            connections[f"{kind} {number}"] = connection
    yield connections
    for connection in connections.values():
        connection.close()
