/** What a message of a conversation looks like. */

import { copyButton, element, icon, iconButton } from "./dom.js";
import { renderMarkdown } from "./markdown.js";

const numbers = new Intl.NumberFormat();
const oneDecimal = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** Something a person wrote; `edit` takes it back into the composer. */
export function userMessage(message, edit) {
  return element(
    "article",
    { class: "message user" },
    element("h2", { class: "visually-hidden" }, "You"),
    element("div", { class: "bubble" }, message.content),
    element(
      "footer",
      {},
      iconButton("edit", "Edit this message and ask again", edit),
      copyButton(() => message.content, "Copy this message"),
    ),
  );
}

/** A reply, also while it is written: `update` shows what has been added to its message. */
export class ReplyView {
  /**
   * `results` gives the result of a call by its id, if there is one. Of the actions, `retry` asks again, `openSettings`
   * does so, and `answerCalls`, missing where the conversation has gone on, takes results of the calls.
   */
  constructor(message, results, actions) {
    this.message = message;
    this.results = results;
    this.actions = actions;
    this.reasoning = element("div", { class: "reasoning-text" });
    this.summary = element("span");
    this.details = element("details", { class: "reasoning", hidden: true }, element("summary", {}, icon("thought"), this.summary), this.reasoning);
    // Folded reasoning is not drawn.
    this.details.addEventListener("toggle", () => this.drawReasoning());
    this.waiting = element("div", { class: "waiting" });
    this.content = element("div", { class: "prose" });
    this.calls = element("div", { class: "calls" });
    this.note = element("p", { class: "note", hidden: true });
    this.footer = element("footer");
    this.root = element(
      "article",
      { class: "message reply" },
      element("h2", { class: "visually-hidden" }, "Lily"),
      this.details,
      this.waiting,
      this.content,
      this.calls,
      this.note,
      this.footer,
    );
    this.update();
  }

  update() {
    const { message } = this;
    const writing = message.end === undefined;
    this.root.setAttribute("aria-busy", writing);
    this.root.classList.toggle("writing", writing);
    this.details.hidden = message.reasoning.trim() === "";
    const thinking = writing && message.content === "" && message.calls.length === 0;
    this.summary.textContent = thinking ? "Thinking…" : thoughtFor(message.figures?.thoughtSeconds);
    this.details.classList.toggle("active", thinking);
    this.drawReasoning();
    renderMarkdown(this.content, message.content);
    this.drawWaiting(writing);
    this.drawCalls(writing);
    this.drawNote();
    if (!writing && this.footer.childElementCount === 0) this.drawFooter();
  }

  drawReasoning() {
    if (this.details.open) renderMarkdown(this.reasoning, this.message.reasoning.trim());
  }

  drawWaiting(writing) {
    const { reasoning, content, calls, prefill } = this.message;
    this.waiting.hidden = !writing || reasoning !== "" || content !== "" || calls.length > 0;
    if (this.waiting.hidden) return;
    if (!prefill) {
      if (!this.waiting.firstChild) this.waiting.append(element("span", { class: "dots", role: "img", "aria-label": "Waiting" }));
      return;
    }
    const { done, total } = prefill;
    const text = `Reading the prompt: ${numbers.format(done)} of ${numbers.format(total)} tokens`;
    this.waiting.replaceChildren(element("label", {}, text, element("progress", { max: total, value: done })));
  }

  /** Cards that have been drawn stay, so that what somebody types into them does. */
  drawCalls(writing) {
    const { calls } = this.message;
    while (this.calls.children.length < calls.length) this.calls.append(this.card());
    calls.forEach((call, index) => {
      const card = this.calls.children[index];
      card.querySelector(".call-name").textContent = call.name;
      card.querySelector(".call-arguments").textContent = indented(call.text, writing);
    });
    if (!writing && !this.answersDrawn && calls.length > 0) {
      this.answersDrawn = true;
      this.drawAnswers();
    }
  }

  card() {
    return element(
      "section",
      { class: "call" },
      element("h3", {}, icon("tool"), element("span", {}, "Calls "), element("code", { class: "call-name" })),
      element("pre", { class: "call-arguments", tabindex: "0" }),
    );
  }

  /** The calls' results; where there are none yet, fields for them. */
  drawAnswers() {
    const { calls } = this.message;
    const fields = new Map();
    calls.forEach((call, index) => {
      const card = this.calls.children[index];
      const result = this.results(call.id);
      if (result !== undefined) {
        card.append(element("h4", {}, "Result"), element("pre", { class: "call-result", tabindex: "0" }, result));
      } else if (this.actions.answerCalls) {
        const field = element("textarea", { rows: 2, placeholder: "What the tool gives, as text or JSON" });
        fields.set(call.id, field);
        card.append(element("label", {}, element("span", {}, "Result"), field));
      }
    });
    if (fields.size === 0) return;
    const send = () => this.actions.answerCalls([...fields].map(([id, field]) => ({ role: "tool", id, content: field.value })));
    this.calls.append(element("button", { type: "button", class: "primary", onclick: send }, fields.size === 1 ? "Send the result" : "Send the results"));
  }

  drawNote() {
    const { end, error } = this.message;
    const words = {
      stopped: "Stopped.",
      length: "Cut: the reply reached its limit of tokens, or the conversation fills the context.",
      error,
    };
    const text = words[end];
    this.note.hidden = !text;
    this.note.classList.toggle("error", end === "error");
    this.note.textContent = text ?? "";
    if (end === "error" && this.message.status === 401) {
      this.note.append(" ", element("button", { type: "button", onclick: this.actions.openSettings }, "Open settings"));
    }
  }

  drawFooter() {
    const { content, figures } = this.message;
    this.footer.append(
      copyButton(() => content, "Copy this reply"),
      iconButton("retry", "Ask again", this.actions.retry),
      element("span", { class: "figures" }, figures ? figuresText(figures) : ""),
    );
  }
}

function thoughtFor(seconds) {
  if (seconds === undefined) return "Thoughts";
  return seconds < 1 ? "Thought for a moment" : `Thought for ${oneDecimal.format(seconds)} s`;
}

/** `{promptTokens, cachedTokens, tokens, waitSeconds, writeSeconds}`, as far as they are known, in words. */
function figuresText({ promptTokens, cachedTokens, tokens, waitSeconds, writeSeconds }) {
  const parts = [];
  if (tokens !== undefined) {
    parts.push(tokens === 1 ? "1 token" : `${numbers.format(tokens)} tokens`);
    // The first token's time is the prompt's.
    if (tokens > 1 && writeSeconds > 0) parts.push(`${oneDecimal.format((tokens - 1) / writeSeconds)} tokens/s`);
  }
  if (waitSeconds !== undefined) parts.push(`first after ${oneDecimal.format(waitSeconds)} s`);
  if (promptTokens !== undefined) parts.push(`prompt ${numbers.format(promptTokens)}, ${numbers.format(cachedTokens)} cached`);
  return parts.join(" · ");
}

/** A call's arguments, easier to read once they are whole. */
function indented(text, writing) {
  if (writing) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
