/** What the page does: holds the conversation that is shown, and those that are being answered. */

import { servedModel } from "./chat.js";
import { announce, element, toast } from "./dom.js";
import { ReplyView, userMessage } from "./message.js";
import { emptyReply, Run } from "./run.js";
import { applyTheme, change, onSetting, openSettings, settings } from "./settings.js";
import { drawSidebar, leaveSidebar, toggleSidebar } from "./sidebar.js";
import { loadConversation, newConversation, onOtherTab, removeConversation, saveConversation } from "./store.js";

const [title, modelButton, scroller, welcome, thread, latest, form, editing, composer, thinking, context, send, stop] = [
  "title",
  "model",
  "scroller",
  "welcome",
  "thread",
  "latest",
  "composer-form",
  "editing",
  "composer",
  "thinking",
  "context",
  "send",
  "stop",
].map((id) => document.getElementById(id));

/** How often a reply under way is kept, so that a page that is closed loses little of it. */
const SAVE_EVERY = 1000;
const EXAMPLES = {
  tiny: ["What is the capital of Norway?", "What is 38 + 57?", "Count from 1 to 20.", "How do I cook pepper?"],
  full: ["Explain how a rainbow forms", "Write a haiku about the sea", "Plan a weekend in Lisbon", "What is a hash map?"],
};

let conversation = newConversation();
/** Replies under way by their conversation's id: `{run, conversation}`. */
const running = new Map();
/** The view of the last reply, if the conversation ends with one. */
let view = null;
/** The message that is being edited: its place in the conversation. */
let editedAt = null;
let model = null;
/** The offer to take back what was removed of a conversation: `{id, hide}`. */
let offer = null;
/** Whether the page stays at the end of a text that grows. */
let following = true;

// Conversations

/** Shows the conversation that the address names, or a new one. */
function showAddressed() {
  const id = location.hash.slice(1);
  if (id === conversation.id) return;
  const found = running.get(id)?.conversation ?? loadConversation(id);
  if (id && !found) history.replaceState(null, "", location.pathname);
  show(found ?? newConversation());
}

function show(shown) {
  conversation = shown;
  // Its page was closed while it was written.
  const last = conversation.messages.at(-1);
  if (last?.role === "assistant" && last.end === undefined && !running.has(conversation.id)) last.end = "stopped";
  cancelEdit();
  drawThread();
  drawFrame();
  leaveSidebar();
  following = true;
  follow();
}

function startNew() {
  history.pushState(null, "", location.pathname);
  show(newConversation());
  composer.focus();
}

function remove(id) {
  running.get(id)?.run.stop();
  const removed = running.get(id)?.conversation ?? loadConversation(id);
  running.delete(id);
  removeConversation(id);
  if (id === conversation.id) startNew();
  else drawFrame();
  if (!removed) return;
  const run = () => {
    keep(removed);
    history.pushState(null, "", `#${id}`);
    show(removed);
  };
  toast("Conversation deleted.", { label: "Undo", run });
}

function keep(kept) {
  if (!saveConversation(kept)) toast("The browser has no room for this conversation: delete others to have it kept.");
}

// Asking

function submit() {
  const text = composer.value.trim();
  if (text === "" || running.has(conversation.id)) return;
  const cut = editedAt === null ? null : cutAt(editedAt);
  conversation.messages.push({ role: "user", content: text });
  composer.value = "";
  cancelEdit();
  fitComposer();
  answer();
  if (cut) offerBack(cut);
}

/** Removes a message that is written anew, and what follows it; gives what the conversation was. */
function cutAt(at) {
  const cut = { from: conversation, messages: [...conversation.messages], title: conversation.title, at };
  conversation.messages.length = at;
  if (at === 0) conversation.title = "";
  return cut;
}

/** Lets people have back what followed a message that is written anew. */
function offerBack({ from, messages, title, at }) {
  if (messages.length <= at + 1) return;
  const { id } = from;
  const { length } = from.messages;
  const run = () => {
    // Who went elsewhere and came back may see it read anew from what is stored.
    const shown = id === conversation.id ? conversation : null;
    const now = running.get(id)?.conversation ?? shown ?? loadConversation(id);
    // Deleted meanwhile, or gone on with in another tab.
    if (!now || now.messages.length > length) return;
    running.get(id)?.run.stop();
    running.delete(id);
    Object.assign(now, { messages, title });
    keep(now);
    if (id === conversation.id) show(now);
    else drawFrame();
  };
  offer = { id, hide: toast("What followed has been removed.", { label: "Undo", run }) };
}

/** Has the model go on with the conversation. */
function answer() {
  const asked = conversation;
  // Taking it back would remove what is asked now.
  if (offer?.id === asked.id) offer.hide();
  const { messages } = asked;
  const reply = emptyReply();
  const before = [...messages];
  messages.push(reply);
  asked.title ||= titleOf(messages[0].content);
  asked.updated = Date.now();
  if (location.hash.slice(1) !== asked.id) history.replaceState(null, "", `#${asked.id}`);

  const run = new Run(before, reply, { ...settings }, () => progress(asked));
  running.set(asked.id, { run, conversation: asked, kept: performance.now(), drawing: false });
  keep(asked);
  drawThread();
  drawFrame();
  following = true;
  follow();
  announce("Lily is answering");
  run.follow().then(() => finish(asked, run));
}

/** There is more of a reply. Drawing waits for the next frame, which brings all that has come until then. */
function progress(asked) {
  const state = running.get(asked.id);
  if (!state) return;
  if (performance.now() - state.kept > SAVE_EVERY) {
    state.kept = performance.now();
    keep(asked);
  }
  if (asked !== conversation || state.drawing) return;
  state.drawing = true;
  requestAnimationFrame(() => {
    state.drawing = false;
    if (asked !== conversation) return;
    view?.update();
    follow();
  });
}

function finish(asked, run) {
  // One that has been deleted meanwhile is not kept, nor one that is written anew.
  if (running.get(asked.id)?.run !== run) return;
  running.delete(asked.id);
  keep(asked);
  drawFrame();
  if (asked !== conversation) return;
  view?.update();
  follow();
  const { end, error } = run.reply;
  announce(end === "error" ? `No reply: ${error}` : end === "stopped" ? "Stopped" : "Lily has answered");
  if ((end === "error") !== (model === null)) findModel();
}

/** Ends the reply under way, if there is one, and waits until it has. Whether the same conversation is shown then. */
async function halt() {
  const halted = conversation;
  const state = running.get(halted.id);
  state?.run.stop();
  // Its end has to be seen here before something else begins.
  while (state && running.get(halted.id) === state) await new Promise((resolve) => setTimeout(resolve));
  return halted === conversation;
}

async function retry(at) {
  if (!(await halt())) return;
  const cut = cutAt(at);
  answer();
  offerBack(cut);
}

async function edit(at) {
  if (!(await halt())) return;
  editedAt = at;
  editing.hidden = false;
  composer.value = conversation.messages[at].content;
  fitComposer();
  composer.focus();
}

function cancelEdit() {
  if (editedAt !== null) composer.value = "";
  editedAt = null;
  editing.hidden = true;
  fitComposer();
}

function answerCalls(results) {
  conversation.messages.push(...results);
  answer();
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

// Drawing

function drawThread() {
  const { messages } = conversation;
  const results = (id) => messages.find((message) => message.role === "tool" && message.id === id)?.content;
  view = null;
  const drawn = [];
  messages.forEach((message, at) => {
    if (message.role === "user") {
      drawn.push(userMessage(message, () => edit(at)));
    } else if (message.role === "assistant") {
      const isLast = at === messages.length - 1;
      const reply = new ReplyView(message, results, {
        retry: () => retry(at),
        answerCalls: isLast ? answerCalls : null,
        openSettings,
      });
      if (isLast) view = reply;
      drawn.push(reply.root);
    }
  });
  thread.replaceChildren(...drawn);
  welcome.hidden = messages.length > 0;
  thread.hidden = messages.length === 0;
}

/** All but the messages. */
function drawFrame() {
  const isRunning = running.has(conversation.id);
  title.textContent = conversation.title || "New conversation";
  document.title = conversation.title ? `${conversation.title} · Lily` : "Lily";
  const hadFocus = document.activeElement === (isRunning ? send : stop);
  send.hidden = isRunning;
  stop.hidden = !isRunning;
  if (hadFocus) composer.focus();
  drawSend();
  drawContext();
  drawSidebar(conversation.id, running, remove);
}

function drawSend() {
  send.disabled = composer.value.trim() === "";
}

/** How much of the context the conversation takes, by what the last reply told. */
function drawContext() {
  const figures = conversation.messages.findLast((message) => message.figures?.promptTokens !== undefined)?.figures;
  const room = model?.max_model_len;
  context.textContent = figures && room ? `${percent(figures.promptTokens + figures.tokens, room)} of the context` : "";
  context.title = room ? `The context holds ${room.toLocaleString()} tokens` : "";
}

function percent(part, whole) {
  return `${Math.min(100, Math.ceil((100 * part) / whole))} %`;
}

function drawThinking() {
  thinking.setAttribute("aria-pressed", settings.thinking);
}

function drawModel(state, text, explanation) {
  modelButton.dataset.state = state;
  modelButton.textContent = text;
  modelButton.title = explanation;
}

async function findModel() {
  try {
    model = await servedModel(settings);
    drawModel("ready", model.id, "The served model");
    document.getElementById("welcome-model").textContent = `You are talking with ${model.id}, on your own machine.`;
    drawExamples();
  } catch (error) {
    model = null;
    drawModel("failed", error.status === 401 ? "API key needed" : "Not reachable", error.message);
  }
  drawContext();
}

function drawExamples() {
  const texts = /tiny|embedded/i.test(model.id) ? EXAMPLES.tiny : EXAMPLES.full;
  const button = (text) => {
    const ask = () => {
      composer.value = text;
      submit();
    };
    return element("li", {}, element("button", { type: "button", onclick: ask }, text));
  };
  document.getElementById("examples").replaceChildren(...texts.map(button));
}

function fitComposer() {
  composer.style.height = "auto";
  composer.style.height = `${composer.scrollHeight}px`;
  drawSend();
}

function follow() {
  if (following) scroller.scrollTop = scroller.scrollHeight;
  drawLatest();
}

function isAtEnd() {
  return scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
}

function drawLatest() {
  latest.hidden = isAtEnd();
}

// What people do

form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
composer.addEventListener("input", fitComposer);
composer.addEventListener("keydown", (event) => {
  // Enter also ends the choice of a character in input methods.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
stop.addEventListener("click", halt);
latest.addEventListener("click", () => {
  following = true;
  follow();
});
scroller.addEventListener("scroll", () => {
  following = isAtEnd();
  drawLatest();
});
thinking.addEventListener("click", () => change("thinking", !settings.thinking));
modelButton.addEventListener("click", () => (model ? openSettings() : findModel().then(() => model || openSettings())));
document.getElementById("open-settings").addEventListener("click", openSettings);
document.getElementById("cancel-edit").addEventListener("click", cancelEdit);
document.getElementById("menu").addEventListener("click", toggleSidebar);
document.getElementById("new").addEventListener("click", startNew);
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || event.isComposing) return;
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "Escape") {
    if (running.has(conversation.id)) halt();
    else cancelEdit();
  } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    composer.focus();
  } else if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    startNew();
  }
});
onSetting((name) => {
  if (name === "theme") applyTheme();
  if (name === "thinking") drawThinking();
  if (name === "apiKey") findModel();
});
onOtherTab((id) => {
  const isShown = id === null || id === conversation.id;
  if (isShown && !running.has(conversation.id) && editedAt === null) {
    const changed = loadConversation(conversation.id);
    if (changed) show(changed);
  }
  drawFrame();
});
window.addEventListener("hashchange", showAddressed);
window.addEventListener("popstate", showAddressed);
window.addEventListener("pagehide", () => {
  for (const { run, conversation: unfinished } of running.values()) {
    // Else its connection, which the browser now ends, would count as broken.
    run.stop();
    saveConversation(unfinished);
  }
});
window.addEventListener("resize", fitComposer);

applyTheme();
drawThinking();
showAddressed();
findModel();
if (window.matchMedia("(hover: hover)").matches) composer.focus();
