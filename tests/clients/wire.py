"""What a reply is on the wire of each endpoint, plain and streamed: all give the same `Reply`."""

import json
from dataclasses import dataclass

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"


@dataclass
class Reply:
    """What a client received."""

    reasoning: str = ""
    # The text, then the names and arguments of functions that are called.
    content: str = ""
    # Content of the second of two choices.
    second: str = ""
    finish_reason: str | None = None
    completion_tokens: int | None = None

    def begins(self, whole: "Reply") -> bool:
        """Whether this is what a client may have seen of `whole` when it left."""
        if whole.reasoning.startswith(self.reasoning) and whole.second.startswith(self.second):
            return not self.content or (self.reasoning == whole.reasoning and whole.content.startswith(self.content))
        return False


def whole(path: str, told: dict) -> Reply:
    """The reply in the JSON of an answer."""
    if path == MESSAGES:
        texts = {kind: "".join(block.get(kind, "") for block in told["content"]) for kind in ("thinking", "text")}
        tokens = told["usage"]["output_tokens"]
        return Reply(texts["thinking"], texts["text"], finish_reason=told["stop_reason"], completion_tokens=tokens)
    if path == RESPONSES:
        texts = {"reasoning": "", "message": "", "function_call": ""}
        for item in told["output"]:
            parts = [item] if item["type"] == "function_call" else item["content"]
            texts[item["type"]] += "".join(part.get("text") or called(part) for part in parts)
        content = texts["message"] + texts["function_call"]
        return Reply(texts["reasoning"], content, finish_reason=told["status"], completion_tokens=told["usage"]["output_tokens"])
    messages = [choice.get("message") or {"content": choice["text"]} for choice in told["choices"]]
    texts = [(m["content"] or "") + "".join(called(c["function"]) for c in m.get("tool_calls", [])) for m in messages]
    reasoning, reason = messages[0].get("reasoning_content") or "", told["choices"][0]["finish_reason"]
    return Reply(reasoning, texts[0], "".join(texts[1:]), reason, told["usage"]["completion_tokens"])


def called(function: dict) -> str:
    """A call as part of a reply's content; of the pieces of a stream only the first has the name."""
    return (f"\n{function['name']} " if function.get("name") else "") + function.get("arguments", "")


def add(path: str, line: str, reply: Reply) -> bool:
    """Adds what the data of an event tells to `reply`; whether the stream has come to its end."""
    if line == "[DONE]":
        return True
    told = json.loads(line)
    kind = told.get("type", "")
    if "error" in kind or "failed" in kind or ("choices" not in told and path in (CHAT, COMPLETIONS)):
        raise RuntimeError(line)
    if path == MESSAGES:
        delta = told.get("delta", {})
        reply.reasoning += delta.get("thinking", "")
        reply.content += delta.get("text", "")
        if kind == "message_delta":
            reply.finish_reason, reply.completion_tokens = delta["stop_reason"], told["usage"]["output_tokens"]
        return kind == "message_stop"
    if path == RESPONSES:
        reply.reasoning += told["delta"] if kind == "response.reasoning_text.delta" else ""
        reply.content += told["delta"] if kind == "response.output_text.delta" else ""
        if kind == "response.output_item.added" and told["item"]["type"] == "function_call":
            reply.content += called({"name": told["item"]["name"]})
        reply.content += told["delta"] if kind == "response.function_call_arguments.delta" else ""
        if ended := kind in ("response.completed", "response.incomplete"):
            told = told["response"]
            reply.finish_reason, reply.completion_tokens = told["status"], told["usage"]["output_tokens"]
        return ended
    for choice in told["choices"]:
        delta = choice.get("delta") or {"content": choice.get("text")}
        text = (delta.get("content") or "") + "".join(called(c["function"]) for c in delta.get("tool_calls", []))
        if choice["index"] > 0:
            reply.second += text
            continue
        reply.reasoning += delta.get("reasoning_content") or ""
        reply.content += text
        reply.finish_reason = choice["finish_reason"] or reply.finish_reason
    if told["usage"]:
        reply.completion_tokens = told["usage"]["completion_tokens"]
    return False
