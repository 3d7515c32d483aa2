"""One `lily serve` with the embedded checkpoint and one Chromium for all tests; a page of its own for each."""

import os
import shutil

import pytest
from gate import Gate
from playwright.sync_api import sync_playwright
from serving import launched

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

# How long anything on the page may take, in seconds, before it counts as hung; generous, as the machine may be busy with other work.
PATIENCE = 30.0


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a running server, which must end cleanly after the last test."""
    with launched(tmp_path_factory.mktemp("no-models")) as server:
        yield server.url


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
