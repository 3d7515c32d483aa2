//! What each agent has to be told. docs/clients.md says which versions were tried.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::server::Server;
use super::{Client, KEY_VARIABLE, Launch, Value};

/// The longest reply that agents are told to ask for: long enough for a file, short enough to leave room for the rest.
const LONGEST_REPLY: u64 = 32_768;

pub(super) fn launch(client: Client, server: &Server) -> Result<Launch> {
    match client {
        Client::Opencode => Ok(opencode(server)),
        Client::Claude => Ok(claude(server)),
        Client::Codex => Ok(codex(server)),
        Client::Qwen => qwen(server),
        Client::Pi => pi(server),
    }
}

fn text(value: impl ToString) -> Value {
    Value::Text(value.to_string())
}

/// What is left of the context for a reply once a conversation is long.
fn reply(server: &Server) -> u64 {
    (server.context / 4).min(LONGEST_REPLY)
}

/// For agents that send back what the model thought: it stays in the prompt, which then begins as the one before did.
fn keeping_thoughts() -> serde_json::Value {
    json!({"chat_template_kwargs": {"preserve_thinking": true}})
}

/// Its settings are merged from several places; the variable comes last and lasts for one run.
fn opencode(server: &Server) -> Launch {
    let model = format!("lily/{}", server.model);
    let config = json!({
        "provider": {"lily": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Lily",
            "options": {"baseURL": format!("{}/v1", server.url), "apiKey": format!("{{env:{KEY_VARIABLE}}}")},
            "models": {&server.model: {
                "name": server.model,
                "reasoning": true,
                "tool_call": true,
                "options": keeping_thoughts(),
                "limit": {"context": server.context, "output": reply(server)},
            }},
        }},
        "model": model,
        "small_model": model,
    });
    Launch {
        program: "opencode",
        package: "opencode-ai",
        environment: vec![("OPENCODE_CONFIG_CONTENT", text(config))],
        arguments: Vec::new(),
    }
}

fn claude(server: &Server) -> Launch {
    let model = || text(&server.model);
    let environment = vec![
        ("ANTHROPIC_BASE_URL", text(&server.url)),
        ("ANTHROPIC_AUTH_TOKEN", Value::Key),
        // A real one is nobody else's business.
        ("ANTHROPIC_API_KEY", text("")),
        ("ANTHROPIC_MODEL", model()),
        ("ANTHROPIC_DEFAULT_OPUS_MODEL", model()),
        ("ANTHROPIC_DEFAULT_SONNET_MODEL", model()),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", model()),
        ("CLAUDE_CODE_SUBAGENT_MODEL", model()),
        ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", text(reply(server))),
        // It takes a model that it does not know for one of a million tokens. Its variable for the window in which it
        // compacts would not do: what is below 100,000 there counts as 100,000.
        ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", text(server.context)),
        // It would begin each prompt with other words, of which no prefix is kept.
        ("CLAUDE_CODE_ATTRIBUTION_HEADER", text(0)),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", text(1)),
    ];
    Launch { program: "claude", package: "@anthropic-ai/claude-code", environment, arguments: Vec::new() }
}

fn codex(server: &Server) -> Launch {
    // JSON strings are TOML strings.
    let provider = format!(
        "model_providers.lily={{name=\"Lily\",base_url={},env_key=\"{KEY_VARIABLE}\",wire_api=\"responses\"}}",
        json!(format!("{}/v1", server.url))
    );
    let settings = [provider, "model_provider=\"lily\"".into(), format!("model_context_window={}", server.context)];
    let mut arguments: Vec<String> = settings.into_iter().flat_map(|setting| ["--config".into(), setting]).collect();
    arguments.extend(["--model".into(), server.model.clone()]);
    Launch { program: "codex", package: "@openai/codex", environment: Vec::new(), arguments }
}

/// It would take any Qwen3 for one of a million tokens, and is told otherwise by a settings file only: one of our own in
/// the place of the system's defaults, which the user's own settings go before.
fn qwen(server: &Server) -> Result<Launch> {
    let generation = json!({"contextWindowSize": server.context, "extra_body": keeping_thoughts()});
    let defaults = json!({"model": {"generationConfig": generation}});
    // By the name of what is in it: servers of other contexts have files of their own.
    let defaults = own_file(&format!("qwen-defaults-{}.json", server.context), &defaults.to_string())?;
    Ok(Launch {
        program: "qwen",
        package: "@qwen-code/qwen-code",
        environment: vec![
            ("OPENAI_BASE_URL", text(format!("{}/v1", server.url))),
            ("OPENAI_API_KEY", Value::Key),
            ("OPENAI_MODEL", text(&server.model)),
            ("QWEN_CODE_MAX_OUTPUT_TOKENS", text(reply(server))),
            ("QWEN_CODE_SYSTEM_DEFAULTS_PATH", text(defaults)),
        ],
        arguments: vec!["--auth-type".into(), "openai".into()],
    })
}

/// What tells Pi of the server; it finds the particulars in variables.
const PI_EXTENSION: &str = include_str!("pi_extension.js");

/// It learns of a provider from a file only: one of our own, which an argument names.
fn pi(server: &Server) -> Result<Launch> {
    let file = own_file("pi-extension.js", PI_EXTENSION)?;
    let argument = |word: &str| word.to_owned();
    Ok(Launch {
        program: "pi",
        package: "@mariozechner/pi-coding-agent",
        environment: vec![
            ("LILY_URL", text(&server.url)),
            ("LILY_MODEL_NAME", text(&server.model)),
            ("LILY_CONTEXT", text(server.context)),
            ("LILY_LONGEST_REPLY", text(reply(server))),
        ],
        arguments: vec![
            argument("--extension"),
            file,
            argument("--provider"),
            argument("lily"),
            argument("--model"),
            server.model.clone(),
        ],
    })
}

/// The path of a file of ours that an agent is to read. It is there whole at any moment: another agent may be reading it.
fn own_file(name: &str, contents: &str) -> Result<String> {
    let folder = cache_folder()?;
    let file = folder.join(name);
    let unfinished = folder.join(format!("{name}.{}", process::id()));
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&unfinished, contents))
        .and_then(|()| fs::rename(&unfinished, &file))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file.display().to_string())
}

/// Where programs keep what they can make again.
fn cache_folder() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache")));
    match cache {
        Some(cache) if cache.is_absolute() => Ok(cache.join("lily")),
        _ => bail!("there is no home directory: set XDG_CACHE_HOME to a folder"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::server::Room;

    fn server(context: u64) -> Server {
        Server {
            url: "http://127.0.0.1:8080".into(),
            model: "mlx-community/Qwen3.6-35B-A3B-4bit".into(),
            context,
            room: Room::default(),
        }
    }

    fn variable(launch: &Launch, name: &str) -> Value {
        launch.environment.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}")).1.clone()
    }

    #[test]
    fn opencode_gets_json() {
        let Value::Text(config) = variable(&opencode(&server(50_000)), "OPENCODE_CONFIG_CONTENT") else { panic!() };
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        let lily = &config["provider"]["lily"];
        assert_eq!(lily["options"]["apiKey"], "{env:LILY_API_KEY}");
        let limit = &lily["models"]["mlx-community/Qwen3.6-35B-A3B-4bit"]["limit"];
        assert_eq!(limit, &json!({"context": 50_000, "output": 12_500}));
        assert_eq!(config["model"], "lily/mlx-community/Qwen3.6-35B-A3B-4bit");
    }

    #[test]
    fn keys_are_named_or_marked_never_written() {
        for launch in [opencode(&server(9)), claude(&server(9)), codex(&server(9))] {
            let texts: String = launch.environment.iter().map(|(_, value)| format!("{value:?}")).collect();
            let all = texts + &launch.arguments.join(" ");
            assert!(all.contains("Key") || all.contains(KEY_VARIABLE), "{all}");
        }
    }

    #[test]
    fn replies_leave_room() {
        assert_eq!(reply(&server(4096)), 1024);
        assert_eq!(reply(&server(262_144)), LONGEST_REPLY);
    }
}
