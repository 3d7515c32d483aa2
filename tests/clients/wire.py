"""What a reply is on the wire of each endpoint, plain and streamed: all give the same `Reply`."""

import json
from dataclasses import dataclass

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"


@dataclass
class Reply:
    """What a client received."""

    reasoning: str = ""
    content: str = ""
    finish_reason: str | None = None
    completion_tokens: int | None = None

    def begins(self, whole: "Reply") -> bool:
        """Whether this is what a client may have seen of `whole` when it left."""
        if whole.reasoning.startswith(self.reasoning):
            return not self.content or (self.reasoning == whole.reasoning and whole.content.startswith(self.content))
        return False


def whole(path: str, told: dict) -> Reply:
    """The reply in the JSON of an answer."""
    if path == MESSAGES:
        texts = {kind: "".join(block.get(kind, "") for block in told["content"]) for kind in ("thinking", "text")}
        return Reply(texts["thinking"], texts["text"], told["stop_reason"], told["usage"]["output_tokens"])
    if path == RESPONSES:
        texts = {"reasoning": "", "message": ""}
        for item in told["output"]:
            texts[item["type"]] += "".join(part["text"] for part in item["content"])
        return Reply(texts["reasoning"], texts["message"], told["status"], told["usage"]["output_tokens"])
    [choice] = told["choices"]
    message = choice.get("message") or {"content": choice["text"]}
    reasoning, content = message.get("reasoning_content") or "", message["content"] or ""
    return Reply(reasoning, content, choice["finish_reason"], told["usage"]["completion_tokens"])


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
        if ended := kind in ("response.completed", "response.incomplete"):
            told = told["response"]
            reply.finish_reason, reply.completion_tokens = told["status"], told["usage"]["output_tokens"]
        return ended
    for choice in told["choices"]:
        delta = choice.get("delta") or {"content": choice.get("text")}
        reply.reasoning += delta.get("reasoning_content") or ""
        reply.content += delta.get("content") or ""
        reply.finish_reason = choice["finish_reason"] or reply.finish_reason
    if told["usage"]:
        reply.completion_tokens = told["usage"]["completion_tokens"]
    return False
