/**
 * Conversations and settings, in the browser's own storage: nothing of them is kept anywhere else.
 *
 * A conversation is `{id, title, updated, messages}`; a message is one of
 * - `{role: "user", content}`
 * - `{role: "assistant", reasoning, content, calls, end, error, figures}`; `end` is missing while it is written
 * - `{role: "tool", id, content}`: the result of the call with that id
 */

const CONVERSATION = "lily.conversation.";
const SETTINGS = "lily.settings";

export const DEFAULT_SETTINGS = Object.freeze({
  system: "",
  temperature: null,
  maxTokens: null,
  thinking: true,
  apiKey: "",
  tools: "",
  theme: "auto",
});

export function newConversation() {
  // Not randomUUID: it is there only for pages that come over HTTPS or from this machine.
  const random = crypto.getRandomValues(new Uint32Array(2));
  return { id: Date.now().toString(36) + "-" + random.join(""), title: "", updated: Date.now(), messages: [] };
}

/** Who they are, the newest first. What is not a conversation, whoever wrote it, is passed over. */
export function listConversations() {
  const found = [];
  for (let index = 0; index < localStorage.length; index++) {
    const key = localStorage.key(index);
    if (!key.startsWith(CONVERSATION)) continue;
    const conversation = loadConversation(key.slice(CONVERSATION.length));
    if (conversation) found.push({ id: conversation.id, title: conversation.title, updated: conversation.updated });
  }
  return found.sort((one, other) => other.updated - one.updated);
}

export function loadConversation(id) {
  const read = parse(localStorage.getItem(CONVERSATION + id));
  if (!read || read.id !== id || !Array.isArray(read.messages) || !read.messages.every(isMessage)) return null;
  return { id, title: String(read.title ?? ""), updated: Number(read.updated) || 0, messages: read.messages };
}

/** Whether there was room for it. */
export function saveConversation(conversation) {
  return write(CONVERSATION + conversation.id, conversation);
}

export function removeConversation(id) {
  localStorage.removeItem(CONVERSATION + id);
}

export function loadSettings() {
  const read = parse(localStorage.getItem(SETTINGS)) ?? {};
  const settings = { ...DEFAULT_SETTINGS };
  for (const text of ["system", "apiKey", "tools", "theme"]) if (typeof read[text] === "string") settings[text] = read[text];
  for (const number of ["temperature", "maxTokens"]) if (Number.isFinite(read[number])) settings[number] = read[number];
  if (typeof read.thinking === "boolean") settings.thinking = read.thinking;
  return settings;
}

/** Whether there was room for them. */
export function saveSettings(settings) {
  return write(SETTINGS, settings);
}

/** Calls `changed` when another tab has changed a conversation; with its id, or with null if it may be any. */
export function onOtherTab(changed) {
  window.addEventListener("storage", ({ key }) => {
    if (key === null) changed(null);
    else if (key.startsWith(CONVERSATION)) changed(key.slice(CONVERSATION.length));
  });
}

function isMessage(message) {
  switch (message?.role) {
    case "user":
      return typeof message.content === "string";
    case "assistant":
      return typeof message.content === "string" && typeof message.reasoning === "string" && Array.isArray(message.calls);
    case "tool":
      return typeof message.content === "string" && typeof message.id === "string";
    default:
      return false;
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
