/** Asking the server: one request of the chat endpoint, read as it streams. */

/** Why there is no reply, or no more of it; `status` is the HTTP status if there was one. */
export class ChatError extends Error {
  constructor(message, status = null) {
    super(message);
    this.status = status;
  }
}

const UNREACHABLE = "The server can’t be reached. Is `lily serve` running?";

/** The served model's `{id, max_model_len}`. */
export async function servedModel(settings) {
  const response = await reach("/v1/models", { headers: headers(settings) });
  if (!response.ok) throw await refusal(response);
  const { data } = await response.json();
  return data[0];
}

/** The body of the request that goes on with these messages. */
export function request(messages, settings) {
  const tools = readTools(settings.tools);
  return {
    messages: wireMessages(messages, settings.system),
    stream: true,
    stream_options: { include_usage: true },
    chat_template_kwargs: { enable_thinking: settings.thinking },
    ...(settings.temperature === null ? {} : { temperature: settings.temperature }),
    ...(settings.maxTokens === null ? {} : { max_tokens: settings.maxTokens }),
    ...(tools.length > 0 ? { tools } : {}),
  };
}

/** The tools in what somebody typed; throws an error that says what is wrong with it. */
export function readTools(text) {
  if (text.trim() === "") return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new ChatError(`The tools in the settings are not JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new ChatError("The tools in the settings must be a JSON array.");
  return tools;
}

function wireMessages(messages, system) {
  const wire = system.trim() === "" ? [] : [{ role: "system", content: system }];
  for (const message of messages) {
    if (message.role === "user") {
      wire.push({ role: "user", content: message.content });
    } else if (message.role === "tool") {
      wire.push({ role: "tool", tool_call_id: message.id, content: message.content });
    } else {
      const sent = { role: "assistant", content: message.content };
      if (message.reasoning) sent.reasoning_content = message.reasoning;
      // A call that was cut, or that nobody has answered, is not one to go on from.
      const answered = message.calls.filter((call) => messages.some(({ role, id }) => role === "tool" && id === call.id));
      if (answered.length > 0) {
        sent.tool_calls = answered.map(({ id, name, text }) => ({ id, type: "function", function: { name, arguments: text } }));
      }
      // A reply that failed before its first token is none.
      if (sent.content || sent.reasoning_content || sent.tool_calls) wire.push(sent);
    }
  }
  return wire;
}

/**
 * Sends `body` and yields what comes: `{prefill: {done, total}}`, `{reasoning}`, `{content}`, `{call: {index, id, name}}`,
 * `{argument: {index, text}}`, `{finish}`, `{usage}`. Throws a ChatError, or an AbortError once `signal` says so.
 */
export async function* ask(body, settings, signal) {
  const response = await reach("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...headers(settings) },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  let done = false;
  for await (const line of lines(response.body, signal)) {
    const prefill = /^: prefill (\d+)\/(\d+)$/.exec(line);
    if (prefill) yield { prefill: { done: Number(prefill[1]), total: Number(prefill[2]) } };
    if (!line.startsWith("data:")) continue;
    const data = line.slice("data:".length).trim();
    if (data === "[DONE]") {
      done = true;
      continue;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ChatError(chunk.error.message);
    yield* updates(chunk);
  }
  if (!done) throw new ChatError("The connection ended before the reply did.");
}

function* updates({ choices, usage }) {
  for (const { delta, finish_reason: finish } of choices ?? []) {
    if (delta.reasoning_content) yield { reasoning: delta.reasoning_content };
    if (delta.content) yield { content: delta.content };
    for (const { index, id, function: called } of delta.tool_calls ?? []) {
      if (id) yield { call: { index, id, name: called.name } };
      if (called?.arguments) yield { argument: { index, text: called.arguments } };
    }
    if (finish) yield { finish };
  }
  if (usage) yield { usage };
}

/** The lines of a stream, without their ends. */
async function* lines(stream, signal) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) yield part.endsWith("\r") ? part.slice(0, -1) : part;
    }
  } catch (error) {
    signal?.throwIfAborted();
    throw new ChatError(`The connection broke off: ${error.message}`);
  }
  if (rest) yield rest;
}

function headers({ apiKey }) {
  return apiKey === "" ? {} : { authorization: `Bearer ${apiKey}` };
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    options.signal?.throwIfAborted();
    throw new ChatError(UNREACHABLE);
  }
}

/** What the server says about a request that it does not take. */
async function refusal(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Something between the page and Lily answered.
  }
  return new ChatError(message, response.status);
}
