"""Tool loops with the official openai package: the embedded model calls, the test answers, the model tells."""

import json

import openai
import pytest

MODEL = "lily"


def function(name, description, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


STOCK = function("get_stock_price", "Get the price of a stock.", symbol={"type": "string"})
LIGHT = function("set_light", "Set the light.", on={"type": "boolean"}, level={"type": "integer"})
QUESTION = {"role": "user", "content": "What is the stock price of TWU?"}


def request(messages, **parameters):
    defaults = {"model": MODEL, "messages": messages, "tools": [STOCK], "temperature": 0, "max_completion_tokens": 200}
    return defaults | parameters


def streamed(client, **parameters):
    """The choice that the deltas of a stream amount to, put together as clients do it."""
    message, reason = {"role": "assistant", "content": None}, None
    for chunk in client.chat.completions.create(**parameters, stream=True):
        [choice] = chunk.choices
        if choice.delta.content:
            message["content"] = (message["content"] or "") + choice.delta.content
        for delta in choice.delta.tool_calls or []:
            calls = message.setdefault("tool_calls", [])
            if delta.index == len(calls):
                assert delta.id and delta.type == "function" and delta.function.name
                function = {"name": delta.function.name, "arguments": ""}
                calls.append({"id": delta.id, "type": "function", "function": function})
            calls[delta.index]["function"]["arguments"] += delta.function.arguments
        reason = choice.finish_reason or reason
    return message, reason


def whole(client, **parameters):
    [choice] = client.chat.completions.create(**parameters).choices
    return choice.message.model_dump(exclude_none=True), choice.finish_reason


@pytest.mark.parametrize("ask", [whole, streamed])
def test_the_loop(client, ask):
    messages = [QUESTION]
    message, reason = ask(client, **request(messages))
    assert reason == "tool_calls"
    [call] = message["tool_calls"]
    assert call["function"]["name"] == "get_stock_price"
    assert json.loads(call["function"]["arguments"]) == {"symbol": "TWU"}

    messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"price": 371})}]
    message, reason = ask(client, **request(messages))
    assert reason == "stop"
    assert "tool_calls" not in message, "absent where there are none"
    assert "371" in message["content"]


@pytest.mark.parametrize("ask", [whole, streamed])
def test_types_come_from_the_schema(client, ask):
    choice = {"type": "function", "function": {"name": "set_light"}}
    text = {"role": "user", "content": "Set the light: on true, level 7."}
    message, reason = ask(client, **request([text], tools=[LIGHT], tool_choice=choice))
    assert reason == "tool_calls"
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert arguments, "the question names them"
    expected = {"on": bool, "level": int}
    assert all(type(value) is expected[name] for name, value in arguments.items()), arguments


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_stock_price"}}])
def test_a_call_can_be_forced(client, choice):
    message, reason = whole(client, **request([{"role": "user", "content": "Good morning!"}], tool_choice=choice))
    assert reason == "tool_calls"
    assert message["tool_calls"][0]["function"]["name"] == "get_stock_price"
    assert isinstance(json.loads(message["tool_calls"][0]["function"]["arguments"]), dict)


def test_a_call_can_be_forbidden(client):
    message, reason = whole(client, **request([QUESTION], tool_choice="none"))
    assert "tool_calls" not in message
    assert reason in ("stop", "length")


def test_one_call_at_a_time(client):
    text = {"role": "user", "content": "What is the stock price of TWU? Also: What is the stock price of ABC?"}
    message, _ = whole(client, **request([text], parallel_tool_calls=False, tool_choice="required"))
    assert len(message["tool_calls"]) == 1


def test_the_packages_own_accumulator(client):
    """`stream()` puts deltas together itself and is strict about their order."""
    with client.chat.completions.stream(**request([QUESTION])) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    [call] = final.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"symbol": "TWU"}


def test_an_unknown_tool_is_named(client):
    choice = {"type": "function", "function": {"name": "no_such_tool"}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**request([QUESTION], tool_choice=choice))
    assert caught.value.param == "tool_choice.function.name"
