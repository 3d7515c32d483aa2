// Tells Pi of a running Lily server. Written by `lily launch pi`, which sets the variables.
export default function (pi) {
  const { LILY_URL, LILY_MODEL_NAME, LILY_CONTEXT, LILY_LONGEST_REPLY } = process.env;
  if (!LILY_URL) return;
  pi.registerProvider("lily", {
    baseUrl: `${LILY_URL}/v1`,
    apiKey: "LILY_API_KEY",
    api: "openai-completions",
    models: [
      {
        id: LILY_MODEL_NAME,
        name: LILY_MODEL_NAME,
        reasoning: true,
        input: ["text"],
        cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
        contextWindow: Number(LILY_CONTEXT),
        maxTokens: Number(LILY_LONGEST_REPLY),
        compat: { supportsStore: false, thinkingFormat: "qwen-chat-template" },
      },
    ],
  });
}
