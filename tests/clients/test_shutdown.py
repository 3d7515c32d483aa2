"""The end of a server while it answers."""

import time

import httpx
import openai
import pytest

from serving import PATIENCE, launched
from test_openai import END_TOKENS, joined, request


def connect(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE)


def wait_until_closed(server):
    """Returns once no new client gets in."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            httpx.get(f"{server.url}/health", timeout=PATIENCE)
        except httpx.TransportError:
            return
        time.sleep(0.02)
    pytest.fail("the server still takes connections")


def test_running_replies_may_end(tmp_path):
    """A stream under way when SIGTERM comes is sent to its end; new clients are turned away."""
    with launched(tmp_path) as server, connect(server) as client:
        count = request("Count from 1 to 80.", max_completion_tokens=400)
        stream = iter(client.chat.completions.create(**count, stream=True))
        chunks = [next(stream) for _ in range(3)]
        server.stop()
        wait_until_closed(server)
        chunks.extend(stream)
        assert joined(chunks) == ", ".join(str(number) for number in range(1, 81))
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_second_signal_does_not_wait(tmp_path):
    """A reply that would take minutes is broken off."""
    with launched(tmp_path, exit_code=1) as server, connect(server) as client:
        endless = request("Hello!", max_completion_tokens=30000, logit_bias=END_TOKENS)
        stream = iter(client.chat.completions.create(**endless, stream=True))
        next(stream)
        server.stop()
        wait_until_closed(server)
        server.stop()
        with pytest.raises((openai.APIError, httpx.TransportError)):
            list(stream)
