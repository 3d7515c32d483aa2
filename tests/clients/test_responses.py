"""The Responses API with the official openai package. What the tiny model answers is in models/tiny/README.md."""

import json

import openai
import pytest

MODEL = "lily"
NORWAY = "What is the capital of Norway?"
OSLO = "The capital of Norway is Oslo."
STOCK = {
    "type": "function",
    "name": "get_stock_price",
    "description": "Get the price of a stock.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]},
}


def request(text, **parameters):
    """A greedy request without thinking, unless said otherwise."""
    defaults = {"model": MODEL, "input": text, "temperature": 0, "max_output_tokens": 200}
    return defaults | {"reasoning": {"effort": "none"}} | parameters


def ask(client, text, **parameters):
    return client.responses.create(**request(text, **parameters))


def test_plain(client):
    response = ask(client, NORWAY, metadata={"a": "b"})
    assert (response.object, response.status, response.error) == ("response", "completed", None)
    assert response.output_text == OSLO
    [message] = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert response.metadata == {"a": "b"}
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_reasoning_is_an_item(client):
    response = ask(client, "What is 38 + 57?", reasoning={"effort": "medium"})
    reasoning, message = response.output
    assert reasoning.type == "reasoning"
    assert "carry" in reasoning.content[0].text
    assert reasoning.summary == []
    assert response.output_text == message.content[0].text == "38 + 57 = 95"
    assert response.usage.output_tokens_details.reasoning_tokens > 0

    summarised = ask(client, "What is 38 + 57?", reasoning={"effort": "medium", "summary": "auto"}).output[0]
    assert summarised.summary[0].text == reasoning.content[0].text
    assert not summarised.content


def test_every_event_in_order(client):
    events = list(client.responses.create(**request("What is 38 + 57?", reasoning={}, stream=True)))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [kind for kind in kinds if not kind.endswith(".delta")] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == "38 + 57 = 95"
    assert kinds.count("reasoning_text.delta") > 5, "it comes in pieces"


def test_the_packages_own_accumulator(client):
    """`stream()` puts events together itself and is strict about their order and the items' identity."""
    with client.responses.stream(**request("What is the stock price of TWU?", tools=[STOCK], reasoning={})) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert json.loads(snapshots[-1]) == {"symbol": "TWU"}
    call = final.output[-1]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_stock_price", {"symbol": "TWU"})

    with client.responses.stream(**request(NORWAY)) as stream:
        texts = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        assert texts[-1] == stream.get_final_response().output_text == OSLO


@pytest.mark.parametrize("kept", [True, False])
def test_the_tool_loop(client, kept):
    """By the response's id, and by sending its items back."""
    question = {"role": "user", "content": "What is the stock price of TWU?"}
    parameters = {"tools": [STOCK], "store": kept, "reasoning": {}}
    first = ask(client, [question], **parameters)
    call = first.output[-1]
    assert (call.type, json.loads(call.arguments)) == ("function_call", {"symbol": "TWU"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"price": 371})}
    if kept:
        second = ask(client, [result], previous_response_id=first.id, **parameters)
    else:
        second = ask(client, [question, *first.output, result], **parameters)
    assert "371" in second.output_text
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens, "and nothing is read again"


def test_types_come_from_the_schema(client):
    properties = {"on": {"type": "boolean"}, "level": {"type": "integer"}}
    tool = {"type": "function", "name": "set_light", "description": "Set the light.", "strict": False}
    tool["parameters"] = {"type": "object", "properties": properties, "required": list(properties)}
    response = ask(
        client,
        "Set the light: on true, level 7.",
        tools=[tool],
        tool_choice={"type": "function", "name": "set_light"},
    )
    arguments = json.loads(response.output[0].arguments)
    assert arguments, "the question names them"
    assert all(type(value) is {"on": bool, "level": int}[name] for name, value in arguments.items()), arguments


def test_a_conversation_by_id(client):
    system = "You are Lily, a small and friendly assistant."
    first = ask(client, "My name is Anna.", instructions=system)
    second = ask(client, "What is my name?", instructions=system, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert "Anna" in second.output_text

    again = client.responses.retrieve(first.id)
    assert again.output_text == first.output_text
    texts = [item.content[0].text for item in client.responses.input_items.list(second.id, order="asc")]
    assert texts == ["My name is Anna.", first.output_text, "What is my name?"]
    assert len(list(client.responses.input_items.list(second.id, limit=1))) == 3, "pages follow each other"

    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "And?", previous_response_id=first.id)
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


def test_what_is_not_stored_is_not_there(client):
    response = ask(client, NORWAY, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_cut_response_is_incomplete(client):
    response = ask(client, NORWAY, max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"
    assert OSLO.startswith(response.output_text)
    *_, last = client.responses.create(**request(NORWAY, max_output_tokens=3, stream=True))
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "name": "a>b"}]}, "tools[0].name"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"input": [{"type": "dance"}]}, "input[0].type"),
        ({"input": "water and bread " * 20000}, "input"),
    ],
)
def test_bad_requests_name_the_parameter(client, parameters, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**request("Hello!") | parameters)
    assert (caught.value.status_code, caught.value.param) == (400, param)
    assert caught.value.type == "invalid_request_error"
