/** One reply under way: it fills its message, whoever looks on. */

import { ask, request } from "./chat.js";

export class Run {
  /** The reply to `messages` goes into `reply`; `changed` is called when there is more of it, and at its end. */
  constructor(messages, reply, settings, changed) {
    this.reply = reply;
    this.settings = settings;
    this.changed = changed;
    this.controller = new AbortController();
    this.messages = messages;
  }

  stop() {
    this.controller.abort();
  }

  /** Asks, and returns when the reply has ended, however it did. */
  async follow() {
    const { messages, reply, settings } = this;
    let end = null;
    this.begun = performance.now();
    try {
      const body = request(messages, settings);
      for await (const update of ask(body, settings, this.controller.signal)) {
        if (update.finish) end = update.finish;
        else this.take(update);
        this.changed();
      }
      reply.end = end ?? "stop";
    } catch (error) {
      if (this.controller.signal.aborted) {
        reply.end = "stopped";
      } else {
        reply.end = "error";
        reply.error = error.message;
        reply.status = error.status ?? null;
      }
    }
    delete reply.prefill;
    this.changed();
  }

  take(update) {
    const { reply } = this;
    const { figures } = reply;
    if (update.prefill) {
      reply.prefill = update.prefill;
      return;
    }
    if (update.usage) {
      const { usage } = update;
      figures.promptTokens = usage.prompt_tokens;
      figures.cachedTokens = usage.prompt_tokens_details?.cached_tokens ?? 0;
      figures.tokens = usage.completion_tokens;
      return;
    }
    const now = performance.now();
    this.first ??= now;
    figures.waitSeconds ??= (now - this.begun) / 1000;
    figures.writeSeconds = (now - this.first) / 1000;
    if (update.reasoning) {
      reply.reasoning += update.reasoning;
      figures.thoughtSeconds = figures.writeSeconds;
    } else if (update.content) {
      reply.content += update.content;
    } else if (update.call) {
      const { index, id, name } = update.call;
      reply.calls[index] = { id, name, text: "" };
    } else if (update.argument) {
      reply.calls[update.argument.index].text += update.argument.text;
    }
  }
}

/** A reply of which nothing is there yet. */
export function emptyReply() {
  return { role: "assistant", reasoning: "", content: "", calls: [], figures: {} };
}
