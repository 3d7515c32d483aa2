"""`lily serve` as a process of its own, for the tests of clients and of the page."""

import collections
import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[1]
BINARY = Path(os.environ.get("LILY_BIN", ROOT / "target/release/lily"))

# How long anything may take before it counts as hung; generous, as the machine may be busy with other work.
PATIENCE = 60.0


@dataclass
class Server:
    """A running server."""

    url: str
    process: subprocess.Popen
    stopping: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """Asks it to end: running replies may still end."""
        self.stopping = True
        self.process.send_signal(signal.SIGTERM)

    @property
    def address(self) -> tuple[str, int]:
        """For raw sockets."""
        url = httpx.URL(self.url)
        return url.host, url.port

    def engine(self) -> dict:
        """The engine's counters: requests running and queued, tokens so far."""
        answer = httpx.get(f"{self.url}/health", timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        return answer.json()["engine"]

    def wait_until_idle(self, seconds: float) -> None:
        """Returns once no request runs or waits."""
        end = time.monotonic() + seconds
        while True:
            engine = self.engine()
            if engine["running"] == 0 and engine["queued"] == 0:
                return
            assert time.monotonic() < end, f"still busy after {seconds} s: {engine}"
            time.sleep(0.05)


def environment(empty: Path) -> dict[str, str]:
    """An environment in which no checkpoint is found, so that the embedded one is served."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LILY_", "HF_", "HUGGINGFACE_"))}
    return kept | {"HF_HOME": str(empty)}


@contextlib.contextmanager
def launched(empty: Path, exit_code: int = 0, arguments: tuple[str, ...] = ()):
    """A server of its own, which must end with `exit_code` at the end; `empty` is a folder without models."""
    if not BINARY.is_file():
        pytest.exit(f"{BINARY} is not there; build it with `cargo build --release` or set LILY_BIN", returncode=2)
    process = subprocess.Popen(
        [BINARY, "serve", "--port", "0", *arguments],
        env=environment(empty),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    said: collections.deque[str] = collections.deque(maxlen=1000)
    url: list[str] = []
    listening = threading.Event()

    def read() -> None:
        for line in process.stderr:
            said.append(line)
            if not url and (found := re.search(r"listening on (http://\S+)", line)):
                url.append(found[1])
                listening.set()
        listening.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        listening.wait(PATIENCE)
        assert url, f"the server did not say where it listens:\n{''.join(said)}"
        server = Server(url[0], process)
        wait_until_ready(server)
        yield server
        if not server.stopping:
            assert process.poll() is None, f"the server ended by itself: {process.returncode}\n{''.join(said)}"
            server.stop()
        code = process.wait(PATIENCE)
        reader.join(PATIENCE)
        assert code == exit_code, f"exit code {code} after SIGTERM\n{''.join(said)}"
        assert not any("panicked" in line for line in said), "".join(said)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_until_ready(server: Server) -> None:
    end = time.monotonic() + PATIENCE
    while httpx.get(f"{server.url}/ready", timeout=PATIENCE).status_code != 200:
        assert time.monotonic() < end, "the server is not ready"
        time.sleep(0.05)
