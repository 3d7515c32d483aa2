"""One `lily serve` with the embedded checkpoint and one Chromium for all tests; a page of its own for each."""

import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from gate import Gate
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("LILY_BIN", ROOT / "target/release/lily"))
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
# Chromium's own errands lead nowhere here, and as root it has no sandbox.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# How long anything may take before it counts as hung; generous, as the machine may be busy with other work.
PATIENCE = 30.0


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a running server, which must end cleanly after the last test."""
    if not BINARY.is_file():
        pytest.exit(f"{BINARY} is not there; build it with `cargo build --release` or set LILY_BIN", returncode=2)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LILY_", "HF_"))}
    process = subprocess.Popen(
        [BINARY, "serve", "--port", "0"],
        env=kept | {"HF_HOME": str(tmp_path_factory.mktemp("no-models"))},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    said, url, listening = [], [], threading.Event()

    def read():
        for line in process.stderr:
            said.append(line)
            if not url and (found := re.search(r"listening on (http://\S+)", line)):
                url.append(found[1])
                listening.set()
        listening.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        listening.wait(2 * PATIENCE)
        assert url, f"the server did not say where it listens:\n{''.join(said)}"
        yield url[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(2 * PATIENCE) == 0, "".join(said)
        reader.join(PATIENCE)
        assert not any("panicked" in line for line in said), "".join(said)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def browser():
    if not CHROMIUM:
        pytest.exit("there is no Chromium; install it or set CHROMIUM", returncode=2)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def gate(server):
    gate = Gate(server)
    yield gate
    gate.shut_down()


@pytest.fixture
def context(browser):
    """A browser without a past. Whatever its pages complain about fails the test."""
    context = browser.new_context(locale="en-US", color_scheme="light", viewport={"width": 1180, "height": 820})
    context.set_default_timeout(PATIENCE * 1000)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    complaints = []
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    context.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    context.complaints = complaints
    yield context
    context.close()
    assert complaints == []


@pytest.fixture
def page(context, server):
    page = context.new_page()
    page.goto(server)
    return page


@pytest.fixture
def gated(context, gate):
    """A page that talks with the server through the gate."""
    page = context.new_page()
    page.goto(gate.url)
    return page
