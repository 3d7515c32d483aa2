//! The HTTP server, compatible with OpenAI's API and Anthropic's.
//!
//! ```text
//! connection ─► log ─► gate ─► endpoint ─► body ─► params, messages, tools ─► conversation ─► submit ─► engine
//!                                 └──── stream (events) or one JSON ◄──── generate ◄──── text ◄────────────┘
//!                                                                            └─► recorder ─► replay ─► conversation
//! ```
//!
//! where an endpoint is `chat`, `completions`, `responses` or `anthropic`, each of which reads and writes its own wire form.
//!
//! | path | |
//! |---|---|
//! | `POST /v1/chat/completions` | messages through the checkpoint's chat template |
//! | `POST /v1/completions` | raw text or token ids |
//! | `POST /v1/responses` | items, OpenAI's Responses API; `GET` and `DELETE /v1/responses/{id}`, `GET …/input_items` |
//! | `POST /v1/messages`, `/v1/messages/count_tokens` | Anthropic's Messages; `anthropic` says what is particular |
//! | `POST /tokenize`, `/detokenize`, `/apply-template` | what a prompt is; `tokens` has the shapes |
//! | `/v1/embeddings` | 404 that says why |
//! | `GET /v1/models`, `/v1/models/{id}` | the one model |
//! | `GET /health` | 200 while the process lives, with the engine's counters |
//! | `GET /ready` | 200 once the model has answered, 503 before and while shutting down |
//! | `GET /status` | what runs and on what: model, device, requests under way, tokens, cache, memory |
//! | `GET /metrics` | the same as counters and histograms, in OpenMetrics' text for Prometheus |
//! | `GET /` | a page to chat with, its parts at `/web/` |
//!
//! Where OpenAI leaves it open:
//! - `model` may be any string or absent; the answer bears the served model's name.
//! - Beyond OpenAI's parameters: `top_k`, `min_p`, `repetition_penalty`, `chat_template_kwargs`, and `enable_thinking`,
//!   `preserve_thinking` and `thinking_budget` as short forms of the same in `chat_template_kwargs`. If they disagree,
//!   `chat_template_kwargs` wins, then the short forms, then `reasoning_effort`.
//! - `thinking_budget`: after so many tokens the reasoning is closed, where no call of a tool is under way and no character
//!   is cut, and the model answers; 0 turns thinking off. The tokens that close it count as the model's own. `reasoning_effort` "none" turns thinking off, "minimal" is a budget
//!   of 1,024 tokens, "low" one of 4,096; "high" and up let the model think as long as it takes, "medium" says nothing.
//! - The text of a control token in a message, `<|im_end|>` say, is text to the model. Raw prompts hold what they hold.
//! - A reply's reasoning is `reasoning_content` and, for clients that know it so, `reasoning`, in messages and deltas.
//! - Without `max_tokens`, or with more than the context has room for, a reply may fill the context: it ends with
//!   `finish_reason` "length".
//! - Calls are read from the model's markup while it streams; see [`lily_chat::CallParser`]. With `tool_choice` "none" the
//!   model sees the tools, so that the prompt's beginning stays the same, and cannot begin a call; "required" or a
//!   function begins the reply with the call, so that it neither thinks nor writes anything before.
//! - Content is held to a grammar by `response_format` "json_object" or "json_schema", strict or not, by vLLM's
//!   `structured_outputs` (`json`, `json_object`, `regex`, `choice` or `grammar`) or its older `guided_…` fields, or by
//!   llama.cpp's `json_schema` and `grammar`; grammars are Lark's, as llguidance reads them. `text.format` of responses and
//!   `output_config.format` of messages do as `response_format` does, the others are read there as well. It binds after the reasoning,
//!   which then has to end; a call of a tool may come instead of the content. What cannot be followed is a 400 that says why.
//!   A call that `tool_choice` asks for is held to the declared parameters likewise.
//! - A reply that `max_tokens` cuts within a call has `finish_reason` "length", one that a stop string cuts there "stop",
//!   and one that the model itself ends within a name or a value "length". Of such a call what is there is given, and its
//!   arguments are left without an end, so that they are no JSON that a client could run.
//! - Of a conversation's turns that called tools the server remembers, as long as it runs, what the model wrote, by the
//!   calls' ids, and puts that into the prompt, reasoning included, as long as the client's calls, content and reasoning
//!   are the same or, content and reasoning, left out, and the prompt fits into the context that way.
//! - `suffix` of completions makes the prompt a gap's beginning, by the model's own tokens for that; with `echo` the text
//!   begins with the prompt.
//! - `stop` strings (up to 16) end the answer, within a call too; in the reasoning before it they end nothing.
//! - `logprobs` list every generated token whose text is given, reasoning and its markers included; where a stop string
//!   cuts a token, that token is the last.
//! - `usage.completion_tokens_details.reasoning_tokens` counts the tokens before the first of the content.
//! - `return_progress` in a streamed request gives a chunk without choices for each part of its prompt that has been read:
//!   `prompt_progress` with the tokens in all (`total`), those that were cached (`cache`), those that are in
//!   (`processed`), and the milliseconds since the request (`time_ms`).
//! - With `n` > 1 choice `i` uses `seed + i`, so that it equals the only choice of a request with that seed.

mod answer;
mod anthropic;
mod auth;
mod body;
mod chat;
mod chat_shape;
mod chunks;
mod completion_shape;
mod completions;
mod connection;
mod constraint;
mod conversation;
mod counts;
mod cross_origin;
mod embeddings;
mod engine_metrics;
mod error;
mod fields;
mod gate;
mod generate;
mod infill;
mod log;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod params;
mod reading;
mod recent;
mod recorder;
mod replay;
mod reply;
mod responses;
mod router;
mod shared;
mod status;
mod stream;
mod structured;
mod submit;
mod text;
mod thinking;
mod thought;
mod tokens;
mod tools;
mod usage;
mod web;

use lily_backend::{MemoryPlan, Sampling};
use lily_chat::{ChatTemplate, Tokenizer};
use lily_engine::Engine;
use std::sync::Arc;
use std::time::Duration;

pub use auth::{ApiKeys, BadKey};
pub use connection::serve;
pub use cross_origin::CrossOrigin;
pub use reading::{Endpoint, Refused, RequestReader};

/// What is served.
pub struct App {
    /// Runs the model. [`serve`] shuts it down at its end.
    pub engine: Engine,
    /// The model's.
    pub tokenizer: Arc<Tokenizer>,
    /// The model's.
    pub template: Arc<ChatTemplate>,
    /// Token ids that end a reply.
    pub stop_tokens: Vec<u32>,
    /// How to serve it.
    pub config: Config,
}

/// How to serve.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name that `/v1/models` and every answer bear.
    pub model_name: String,
    /// The largest request body in bytes; beyond it 413.
    pub body_limit: usize,
    /// Tokens of the longest context the model was made for. Where the engine's is shorter, a prompt that does not fit
    /// is answered with the advice to start the server with a longer one; `None` gives no such advice.
    pub longest_context: Option<usize>,
    /// Bytes of replies that called tools, kept so that the next prompt holds what the model wrote; 0 keeps none.
    pub replay_bytes: usize,
    /// Bytes of responses kept, so that a conversation can go on by `previous_response_id`; 0 keeps none.
    pub response_bytes: usize,
    /// How long replies under way may go on once the shutdown begins.
    pub shutdown_grace: Duration,
    /// Bounds on clients that are slow.
    pub timeouts: Timeouts,
    /// How long a request may take from its header to the end of its reply, reading it and the wait in the queue included;
    /// then 504. A client that does not read its stream is told once it does.
    pub request_timeout: Option<Duration>,
    /// The keys that let requests in.
    pub keys: ApiKeys,
    /// Which other sites' pages are let in.
    pub cross_origin: CrossOrigin,
    /// The memory that was planned, for `/status` and `/metrics`.
    pub plan: Option<MemoryPlan>,
    /// What applies where a request is silent.
    pub defaults: Defaults,
}

impl Config {
    /// Bodies up to 32 MiB, 64 MiB each of replies and of responses kept, 30 seconds of grace, open to every client that is no
    /// foreign page, the other parts' defaults.
    #[must_use]
    pub fn new(model_name: impl Into<String>) -> Self {
        Self {
            model_name: model_name.into(),
            body_limit: 32 << 20,
            longest_context: None,
            replay_bytes: 64 << 20,
            response_bytes: 64 << 20,
            shutdown_grace: Duration::from_secs(30),
            timeouts: Timeouts::default(),
            request_timeout: None,
            keys: ApiKeys::default(),
            cross_origin: CrossOrigin::default(),
            plan: None,
            defaults: Defaults::default(),
        }
    }
}

/// How long a client may take to send a request.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From a connection's beginning, or the end of the reply before, to the end of the request's header; then the
    /// connection is closed.
    pub header: Duration,
    /// Between two pieces of a body; then 408.
    pub body_progress: Duration,
    /// For a whole body; then 408.
    pub body_total: Duration,
}

impl Default for Timeouts {
    /// 30 seconds for a header and between pieces of a body, 5 minutes for a body.
    fn default() -> Self {
        let half_a_minute = Duration::from_secs(30);
        Self { header: half_a_minute, body_progress: half_a_minute, body_total: 10 * half_a_minute }
    }
}

/// Values of parameters that a request leaves out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Defaults {
    /// temperature, top_k, top_p, min_p.
    pub sampling: Sampling,
    /// 1 changes nothing.
    pub repetition_penalty: f32,
    /// 0 changes nothing.
    pub presence_penalty: f32,
    /// `None`: what the context leaves.
    pub max_tokens: Option<usize>,
    /// Whether the model thinks.
    pub thinking: bool,
}

impl Default for Defaults {
    /// The model's own distribution, as OpenAI's API has it.
    fn default() -> Self {
        Self {
            sampling: Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            max_tokens: None,
            thinking: true,
        }
    }
}
