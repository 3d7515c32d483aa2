"""A person's way through the page: asking, watching, stopping, coming back."""

import json
import re
import urllib.request

import pytest
from playwright.sync_api import expect

expect.set_options(timeout=30_000)

TOOL = {
    "type": "function",
    "function": {
        "name": "get_stock_price",
        "description": "Get the price of a stock.",
        "parameters": {"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]},
    },
}


def settle(page, **settings):
    """Sets settings as a person does, in the dialog."""
    page.get_by_role("button", name="Settings", exact=True).click()
    dialog = page.get_by_role("dialog", name="Settings")
    for name, value in settings.items():
        field = dialog.locator(f"[name={name}]")
        if name == "tools":
            dialog.get_by_text("Tools", exact=True).first.click()
        if isinstance(value, bool):
            field.set_checked(value)
        elif name == "theme":
            field.select_option(value)
        else:
            field.fill(str(value))
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()


def ask(page, text):
    """Asks, and gives the reply's element, which may still be growing."""
    message = page.get_by_label("Message", exact=True)
    message.fill(text)
    message.press("Enter")
    return page.locator(".message.reply").last


def answered(reply):
    expect(reply).to_have_attribute("aria-busy", "false")
    return reply


def running(server):
    with urllib.request.urlopen(f"{server}/health") as answer:
        engine = json.load(answer)["engine"]
    return engine["running"] + engine["queued"]


def wait_until_idle(page, server):
    """Until the server writes for nobody any more."""
    for _ in range(300):
        if running(server) == 0:
            return
        page.wait_for_timeout(50)
    raise AssertionError("the server goes on writing")


def test_a_question_is_answered(page):
    expect(page.get_by_text("What shall we look at?")).to_be_visible()
    expect(page.locator("#model")).to_have_text("lily-tiny")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    settle(page, temperature=0)
    reply = answered(ask(page, "What is 38 + 57?"))
    expect(reply.locator(".prose")).to_have_text("38 + 57 = 95")
    figures = reply.locator(".figures")
    expect(figures).to_have_text(re.compile(r"^\d+ tokens · [\d.,]+ tokens/s · first after [\d.]+ s · prompt \d+, \d+ cached$"))
    expect(page.locator("#context")).to_have_text(re.compile(r"^\d+ % of the context$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("What is 38 + 57?")
    expect(page).to_have_title("What is 38 + 57? · Lily")


def test_reasoning_is_folded(page):
    settle(page, temperature=0)
    reply = answered(ask(page, "What is 38 + 57?"))
    summary = reply.locator("summary")
    expect(summary).to_have_text(re.compile("^Thought for"))
    reasoning = reply.locator(".reasoning-text")
    expect(reasoning).to_be_hidden()
    summary.focus()
    summary.press("Enter")
    expect(reasoning).to_be_visible()
    expect(reasoning).not_to_be_empty()
    expect(reply.locator(".prose")).not_to_contain_text("<think>")


def test_thinking_can_be_switched_off(gated, gate):
    settle(gated, temperature=0)
    toggle = gated.get_by_role("button", name="Think", exact=True)
    expect(toggle).to_have_attribute("aria-pressed", "true")
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "false")
    reply = answered(ask(gated, "What is 2 + 3?"))
    expect(reply.locator(".prose")).to_have_text("2 + 3 = 5")
    expect(reply.locator(".reasoning")).to_be_hidden()
    assert gate.asked[-1]["chat_template_kwargs"] == {"enable_thinking": False}


def test_a_reply_is_seen_as_it_is_written(gated, gate):
    settle(gated, temperature=0, thinking=False)
    gate.close_after(4)
    reply = ask(gated, "Count from 1 to 20.")
    prose = reply.locator(".prose")
    expect(prose).not_to_be_empty()
    expect(reply).to_have_attribute("aria-busy", "true")
    part = prose.inner_text()
    expect(gated.get_by_role("button", name="Stop")).to_be_visible()
    gate.open()
    answered(reply)
    whole = prose.inner_text()
    assert whole.startswith(part) and len(whole) > len(part) and "20" in whole
    expect(gated.get_by_role("button", name="Send")).to_be_visible()


@pytest.mark.parametrize("how", ["button", "key"])
def test_a_reply_can_be_stopped(gated, gate, server, how):
    settle(gated, temperature=0, thinking=False)
    gate.close_after(4)
    reply = ask(gated, "Count from 1 to 20.")
    prose = reply.locator(".prose")
    expect(prose).not_to_be_empty()
    if how == "button":
        gated.get_by_role("button", name="Stop").click()
    else:
        gated.keyboard.press("Escape")
    answered(reply)
    expect(reply.locator(".note")).to_have_text("Stopped.")
    part = prose.inner_text()
    assert part and "20" not in part
    expect(gated.get_by_label("Message", exact=True)).to_be_focused()
    wait_until_idle(gated, server)
    # It is part of the conversation, which goes on.
    gate.open()
    expect(answered(ask(gated, "What is 2 + 3?")).locator(".prose")).to_have_text("2 + 3 = 5")
    roles = [message["role"] for message in gate.asked[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert gate.asked[-1]["messages"][1]["content"].strip() == part.strip()


def test_a_conversation_survives_a_reload(page):
    settle(page, temperature=0, system="Be brief.")
    answered(ask(page, "My name is Anna."))
    page.reload()
    expect(page.locator(".bubble")).to_have_text("My name is Anna.")
    reply = answered(ask(page, "What is my name?"))
    expect(reply.locator(".prose")).to_contain_text("Anna")
    cached = int(re.search(r"([\d,]+) cached", reply.locator(".figures").inner_text())[1].replace(",", ""))
    assert cached > 0, "the prompt begins as the one before did"
    page.reload()
    expect(page.locator(".message.reply")).to_have_count(2)
    expect(page.locator(".figures").last).to_contain_text("tokens/s")
    page.get_by_role("button", name="Settings", exact=True).click()
    expect(page.locator("[name=system]")).to_have_value("Be brief.")


def test_a_reload_amid_a_reply_keeps_what_was_there(gated, gate, server):
    settle(gated, temperature=0, thinking=False)
    gate.close_after(6)
    reply = ask(gated, "Count from 1 to 20.")
    expect(reply.locator(".prose")).not_to_be_empty()
    part = reply.locator(".prose").inner_text()
    gated.reload()
    reply = gated.locator(".message.reply")
    expect(reply.locator(".note")).to_have_text("Stopped.")
    assert reply.locator(".prose").inner_text().startswith(part)
    wait_until_idle(gated, server)
    gate.open()
    reply.get_by_role("button", name="Ask again").click()
    expect(answered(gated.locator(".message.reply")).locator(".prose")).to_contain_text("20")


def test_conversations_are_listed_opened_and_deleted(page):
    settle(page, temperature=0, thinking=False)
    answered(ask(page, "What is 2 + 3?"))
    page.keyboard.press("Control+Shift+O")
    expect(page.get_by_text("What shall we look at?")).to_be_visible()
    answered(ask(page, "What is 3 + 4?"))
    listed = page.get_by_role("navigation", name="Conversations").get_by_role("link")
    expect(listed).to_have_text(["What is 3 + 4?", "What is 2 + 3?"])
    listed.nth(1).click()
    expect(page.locator(".prose")).to_have_text("2 + 3 = 5")
    expect(listed.nth(1)).to_have_attribute("aria-current", "page")
    page.go_back()
    expect(page.locator(".prose")).to_have_text("3 + 4 = 7")
    page.get_by_role("button", name="Delete “What is 3 + 4?”").click()
    expect(listed).to_have_text(["What is 2 + 3?"])
    expect(page.locator(".message")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(listed).to_have_count(2)
    expect(page.locator(".prose")).to_have_text("3 + 4 = 7")
    page.get_by_role("button", name="Delete “What is 3 + 4?”").click()
    page.reload()
    expect(listed).to_have_text(["What is 2 + 3?"])


def test_two_conversations_are_answered_at_once(gated, gate):
    settle(gated, temperature=0, thinking=False)
    gate.close_after(4)
    ask(gated, "Count from 1 to 20.")
    expect(gated.locator(".prose")).not_to_be_empty()
    gated.get_by_role("button", name="New conversation").click()
    ask(gated, "What is 2 + 3?")
    gate.open()
    expect(gated.locator(".prose")).to_have_text("2 + 3 = 5")
    gated.get_by_role("link", name="Count from 1 to 20.").click()
    answered(gated.locator(".message.reply"))
    expect(gated.locator(".prose")).to_contain_text("20")


def test_a_message_can_be_edited(gated, gate):
    settle(gated, temperature=0, thinking=False)
    answered(ask(gated, "What is 2 + 3?"))
    answered(ask(gated, "What is 3 + 4?"))
    gated.locator(".message.user").first.hover()
    gated.get_by_role("button", name="Edit this message").first.click()
    expect(gated.get_by_label("Message", exact=True)).to_have_value("What is 2 + 3?")
    answered(ask(gated, "What is 4 + 4?"))
    expect(gated.locator(".bubble")).to_have_text(["What is 4 + 4?"])
    expect(gated.locator(".prose")).to_have_text(["4 + 4 = 8"])
    assert [message["content"] for message in gate.asked[-1]["messages"]] == ["What is 4 + 4?"]


def test_calls_of_tools_are_shown_and_answered(gated, gate):
    settle(gated, temperature=0, tools=json.dumps([TOOL]))
    reply = answered(ask(gated, "What is the stock price of TWU?"))
    expect(reply.locator(".call-name")).to_have_text("get_stock_price")
    assert json.loads(reply.locator(".call-arguments").inner_text()) == {"symbol": "TWU"}
    gated.reload()
    reply = gated.locator(".message.reply")
    reply.get_by_label("Result").fill('{"price": 371}')
    reply.get_by_role("button", name="Send the result").click()
    final = answered(gated.locator(".message.reply").last)
    expect(final.locator(".prose")).to_contain_text("371")
    expect(reply.first.locator(".call-result")).to_have_text('{"price": 371}')
    sent = gate.asked[-1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"]


def test_the_limit_of_tokens_is_obeyed_and_said(page):
    settle(page, temperature=0, thinking=False, maxTokens=3)
    reply = answered(ask(page, "Count from 1 to 20."))
    expect(reply.locator(".note")).to_contain_text("Cut")
    expect(reply.locator(".figures")).to_contain_text("3 tokens")


def test_a_number_out_of_range_is_not_taken(gated, gate):
    settle(gated, temperature=0, thinking=False)
    settle(gated, temperature=7)
    answered(ask(gated, "What is 2 + 3?"))
    assert gate.asked[-1]["temperature"] == 0


def test_a_broken_stream_is_said_and_tried_again(gated, gate):
    settle(gated, temperature=0, thinking=False)
    gate.close_after(4, breaks=True)
    reply = answered(ask(gated, "Count from 1 to 20."))
    expect(reply.locator(".note")).to_have_text("The connection ended before the reply did.")
    gate.open()
    reply.get_by_role("button", name="Ask again").click()
    expect(answered(gated.locator(".message.reply")).locator(".prose")).to_contain_text("20")


def test_reading_a_long_prompt_shows_how_far_it_is(gated, gate):
    gate.comments = ["prefill 512/4096"]
    gate.close_after(0)
    reply = ask(gated, "Hello!")
    expect(reply.locator(".waiting")).to_contain_text("Reading the prompt: 512 of 4,096 tokens")
    gate.open()
    answered(reply)
    expect(reply.locator(".waiting")).to_be_hidden()


def test_an_error_is_told_in_the_servers_words(page, context):
    settle(page, tools='[{"type": "function"}]')
    reply = answered(ask(page, "Hello!"))
    expect(reply.locator(".note.error")).to_contain_text("tools[0]")
    # The browser logs every answer that is an error.
    assert len(context.complaints) == 1 and "400" in context.complaints.pop()


def test_a_server_that_wants_a_key(context, gate):
    gate.key = "secret"
    page = context.new_page()
    page.goto(gate.url)
    expect(page.locator("#model")).to_have_text("API key needed")
    reply = answered(ask(page, "What is 2 + 3?"))
    reply.get_by_role("button", name="Open settings").click()
    page.locator("[name=apiKey]").fill("secret")
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#model")).to_have_text("lily-tiny")
    reply.get_by_role("button", name="Ask again").click()
    answered(page.locator(".message.reply"))
    expect(page.locator(".note")).to_be_hidden()
    assert all("401" in complaint for complaint in context.complaints)
    context.complaints.clear()


def test_undo_takes_nothing_that_was_asked_since(page):
    settle(page, temperature=0, thinking=False)
    answered(ask(page, "What is 2 + 3?"))
    answered(ask(page, "What is 3 + 4?"))
    undo = page.get_by_role("button", name="Undo")
    page.get_by_role("button", name="Ask again", exact=True).first.click()
    expect(undo).to_be_visible()
    answered(page.locator(".message.reply").last)
    # Who comes back sees the conversation read anew.
    page.keyboard.press("Control+Shift+O")
    page.get_by_role("navigation", name="Conversations").get_by_role("link").first.click()
    answered(ask(page, "What is 4 + 4?"))
    expect(undo).to_have_count(0)
    expect(page.locator(".bubble")).to_have_text(["What is 2 + 3?", "What is 4 + 4?"])


def test_what_asking_again_removes_can_be_had_back(page):
    settle(page, temperature=0, thinking=False)
    answered(ask(page, "What is 2 + 3?"))
    answered(ask(page, "What is 3 + 4?"))
    bubbles, replies = page.locator(".bubble"), page.locator(".prose")
    undo = page.get_by_role("button", name="Undo")
    page.get_by_role("button", name="Ask again", exact=True).first.click()
    expect(bubbles).to_have_text(["What is 2 + 3?"])
    undo.click()
    expect(bubbles).to_have_text(["What is 2 + 3?", "What is 3 + 4?"])
    expect(replies).to_have_text(["2 + 3 = 5", "3 + 4 = 7"])
    page.locator(".message.user").first.hover()
    page.get_by_role("button", name="Edit this message").first.click()
    answered(ask(page, "What is 4 + 4?"))
    expect(bubbles).to_have_text(["What is 4 + 4?"])
    undo.click()
    page.reload()
    expect(replies).to_have_text(["2 + 3 = 5", "3 + 4 = 7"])
    expect(page.get_by_role("heading", level=1)).to_have_text("What is 2 + 3?")
    # The last reply is only written anew; and whoever has gone on cannot lose that.
    answered(page.locator(".message.reply").last)
    page.get_by_role("button", name="Ask again", exact=True).last.click()
    expect(undo).to_have_count(0)
    page.get_by_role("button", name="Ask again", exact=True).first.click()
    expect(undo).to_be_visible()
    answered(page.locator(".message.reply").last)
    answered(ask(page, "What is 4 + 4?"))
    expect(undo).to_have_count(0)
