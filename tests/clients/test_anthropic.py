"""The official anthropic package against the server. What the tiny model answers is in models/tiny/README.md."""

import asyncio
import json

import anthropic
import pytest

from serving import PATIENCE

MODEL = "lily"  # any name is answered by the one model there is
SUM = "What is 38 + 57?"
STOCK = {
    "name": "get_stock_price",
    "description": "Get the price of a stock.",
    "input_schema": {"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]},
}
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def claude(server):
    """The official client. It must not retry: an error is what a test looks at."""
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=PATIENCE) as client:
        yield client


def user(content):
    return {"role": "user", "content": content}


def request(content, **parameters):
    """A greedy request; the tiny model's own defaults draw."""
    defaults = {"model": MODEL, "max_tokens": 1500, "messages": [user(content)], "extra_body": {"temperature": 0}}
    return defaults | parameters


def whole(claude, **parameters):
    return claude.messages.create(**parameters)


def streamed(claude, **parameters):
    """The message that the package puts together from a stream, strict about the order of its events."""
    with claude.messages.stream(**parameters) as stream:
        return stream.get_final_message()


both_ways = pytest.mark.parametrize("ask", [whole, streamed])


def content(message):
    """The blocks without what differs from one reply to the next."""
    return [block.model_dump(exclude={"id"}) for block in message.content]


@both_ways
def test_plain(claude, ask):
    message = ask(claude, **request(SUM))
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn")
    assert message.id.startswith("msg_")
    [block] = message.content
    assert (block.type, block.text) == ("text", "38 + 57 = 95")
    assert message.usage.output_tokens > 5


@both_ways
def test_thinking(claude, ask):
    thinking, text = ask(claude, **request(SUM, thinking=THINKING)).content
    assert thinking.type == "thinking" and "carry 1" in thinking.thinking and thinking.signature
    assert text.text == "38 + 57 = 95"


def test_a_stream_amounts_to_the_whole(claude):
    for parameters in ({}, {"thinking": THINKING}, {"stop_sequences": [" = 9"]}, {"max_tokens": 3}):
        one, other = (ask(claude, **request(SUM, **parameters)) for ask in (whole, streamed))
        assert content(one) == content(other)
        assert (one.stop_reason, one.stop_sequence) == (other.stop_reason, other.stop_sequence)
        # What the first has left in the cache the second need not read.
        assert sum_of_input(one) == sum_of_input(other)
        assert one.usage.output_tokens == other.usage.output_tokens


def sum_of_input(message):
    usage = message.usage
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_ends(claude):
    stopped = whole(claude, **request(SUM, stop_sequences=["x", " = 9"]))
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == ("stop_sequence", " = 9", "38 + 57")
    cut = whole(claude, **request(SUM, max_tokens=3))
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)


def test_text_comes_in_pieces(claude):
    with claude.messages.stream(**request(SUM)) as stream:
        pieces = list(stream.text_stream)
    assert len(pieces) > 3 and "".join(pieces) == "38 + 57 = 95"


def test_system_and_history_reach_the_model(claude):
    messages = [user("My name is Anna."), {"role": "assistant", "content": "Nice to meet you, Anna!"}, user("What is my name?")]
    system = [{"type": "text", "text": "You are Lily, a small and friendly assistant.", "cache_control": {"type": "ephemeral"}}]
    assert "Anna" in whole(claude, **request("", messages=messages, system=system)).content[0].text


@both_ways
def test_the_loop(claude, ask):
    messages = [user("What is the stock price of TWU?")]
    message = ask(claude, **request("", messages=messages, tools=[STOCK], thinking=THINKING))
    assert message.stop_reason == "tool_use"
    call = message.content[-1]
    assert (call.type, call.name, call.input) == ("tool_use", "get_stock_price", {"symbol": "TWU"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": json.dumps({"price": 371})}
    messages += [{"role": "assistant", "content": message.content}, user([result])]
    message = ask(claude, **request("", messages=messages, tools=[STOCK], thinking=THINKING))
    assert message.stop_reason == "end_turn"
    assert "371" in message.content[-1].text


def test_calls_can_be_forced_and_forbidden(claude):
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_stock_price"}):
        message = whole(claude, **request("Good morning!", tools=[STOCK], tool_choice=choice))
        assert (message.stop_reason, message.content[-1].name) == ("tool_use", "get_stock_price")
    message = whole(claude, **request("What is the stock price of TWU?", tools=[STOCK], tool_choice={"type": "none"}))
    assert all(block.type == "text" for block in message.content)


def test_tokens_are_counted_as_they_are_used(claude):
    parameters = {"messages": [user("Hello")], "system": "You are Lily.", "tools": [STOCK], "model": MODEL}
    counted = claude.messages.count_tokens(**parameters).input_tokens
    assert counted == sum_of_input(claude.messages.create(**parameters, max_tokens=1))


def test_a_second_turn_is_found_in_the_cache(claude):
    system = "Answer each question in one short sentence. " * 40
    messages = [user(SUM)]
    first = streamed(claude, **request("", messages=messages, system=system))
    messages += [{"role": "assistant", "content": first.content}, user("What is the capital of Norway?")]
    second = streamed(claude, **request("", messages=messages, system=system))
    assert second.usage.cache_read_input_tokens > 0.9 * sum_of_input(second)


def test_errors(claude):
    with pytest.raises(anthropic.BadRequestError) as caught:
        whole(claude, **request([{"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}]))
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert "text only" in caught.value.body["error"]["message"]
    assert caught.value.request_id.startswith("req_")
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        whole(claude, **request("word " * 100_000))
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.list()


def test_many_at_once(server):
    async def run():
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=PATIENCE) as client:
            asked = [client.messages.create(**request(f"What is {number} + 5?")) for number in (20, 30, 40)]
            return await asyncio.gather(*asked)

    for number, message in zip((20, 30, 40), asyncio.run(run()), strict=True):
        assert str(number + 5) in message.content[0].text
