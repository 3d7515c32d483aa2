//! The checkpoint's own chat template.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

use crate::late_system::StandIns;
use crate::{Guard, messages, python};

/// What a template renders.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    /// Objects with `role` and `content` as OpenAI's chat format has them.
    pub messages: Vec<Value>,
    /// Tool definitions, given to the template as they are; if there are none, the template's `tools` is none.
    pub tools: Vec<Value>,
    /// Whether the prompt ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Anything else the template may read: `enable_thinking`, `preserve_thinking`, … They can't replace the above.
    pub kwargs: Map<String, Value>,
}

/// Why a template could not be compiled or rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template's source is wrong, so the checkpoint is.
    #[error("the chat template does not compile: {0}")]
    Syntax(String),
    /// tokenizer_config.json is wrong.
    #[error("tokenizer_config.json: {0}")]
    Config(String),
    /// The template itself refused the conversation by `raise_exception`; this is its reason.
    #[error("{0}")]
    Raised(String),
    /// The template failed on this conversation.
    #[error("the chat template can't render these messages: {0}")]
    Failed(String),
    /// A message is not of the form that templates expect.
    #[error("messages[{message}]: {reason}")]
    Message {
        /// The message's index.
        message: usize,
        /// What is wrong.
        reason: String,
    },
    /// A tool call's arguments are a string that holds no JSON object.
    #[error("messages[{message}].tool_calls[{call}]: the arguments can't be used: {reason}")]
    Arguments {
        /// The message's index.
        message: usize,
        /// The call's index in the message.
        call: usize,
        /// What is wrong.
        reason: String,
    },
}

/// A chat template, compiled once.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The special tokens' texts by their names in tokenizer_config.json: `bos_token`, `eos_token`, …
    special_tokens: Map<String, Value>,
}

const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles a template the way transformers does.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn from_source(source: &str) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TemplateError::Syntax(error.to_string()))?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        python::install(&mut environment);
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|error| TemplateError::Syntax(format!("{error:#}")))?;
        Ok(Self { environment, special_tokens: Map::new() })
    }

    /// Gives the template the special tokens of a tokenizer_config.json: `bos_token`, `eos_token` and so on, each a
    /// string or an object with `content`. Null ones stay undefined.
    ///
    /// # Errors
    /// [`TemplateError::Config`] if it is no JSON object.
    pub fn with_special_tokens(mut self, tokenizer_config: &[u8]) -> Result<Self, TemplateError> {
        let config: Map<String, Value> =
            serde_json::from_slice(tokenizer_config).map_err(|error| TemplateError::Config(error.to_string()))?;
        for (name, value) in config {
            let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
            if let Some(text) = text.filter(|_| name.ends_with("_token")) {
                self.special_tokens.insert(name, text.into());
            }
        }
        Ok(self)
    }

    /// The prompt's text.
    ///
    /// Before rendering, `developer` becomes `system`, leading system messages are merged into one, `reasoning` becomes
    /// `reasoning_content`, and tool calls' `arguments` given as JSON strings become objects. A system message that the
    /// template refuses for its place is written in its place all the same.
    ///
    /// # Errors
    /// All but [`TemplateError::Syntax`] and [`TemplateError::Config`]; each is the fault of the prompt.
    pub fn render(&self, prompt: &Prompt) -> Result<String, TemplateError> {
        self.render_by(prompt, |_| {})
    }

    /// As [`render`](Self::render), for [`Guard::encode`]: the texts of control tokens in messages, tools and kwargs are
    /// broken by the guard's marks.
    ///
    /// # Errors
    /// The same.
    pub fn render_guarded(&self, prompt: &Prompt, guard: &Guard<'_>) -> Result<String, TemplateError> {
        self.render_by(prompt, |value| guard.protect(value)).map_err(|error| match error {
            TemplateError::Raised(reason) => TemplateError::Raised(guard.clean(&reason).into_owned()),
            TemplateError::Failed(reason) => TemplateError::Failed(guard.clean(&reason).into_owned()),
            other => other,
        })
    }

    /// `protect`: what is done to each value before it is rendered.
    fn render_by(&self, prompt: &Prompt, protect: impl Fn(&mut Value)) -> Result<String, TemplateError> {
        let mut messages = messages::prepare(&prompt.messages)?;
        let mut tools = prompt.tools.clone();
        let mut kwargs = prompt.kwargs.clone();
        messages.iter_mut().chain(&mut tools).chain(kwargs.values_mut()).for_each(protect);
        let mut context = self.special_tokens.clone();
        context.extend(kwargs);
        context.insert("tools".into(), if tools.is_empty() { Value::Null } else { tools.into() });
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), prompt.add_generation_prompt.into());
        match self.render_messages(&context, &messages) {
            Err(error @ (TemplateError::Raised(_) | TemplateError::Failed(_))) => {
                let Some(stand_ins) = StandIns::put_in(&mut messages) else { return Err(error) };
                let text = self.render_messages(&context, &messages)?;
                stand_ins.replace(&text).ok_or(error)
            }
            result => result,
        }
    }

    fn render_messages(&self, context: &Map<String, Value>, messages: &[Value]) -> Result<String, TemplateError> {
        let mut context = context.clone();
        context.insert("messages".into(), messages.into());
        let template = self.environment.get_template(NAME).map_err(failed)?;
        template.render(minijinja::value::Serde(context)).map_err(failed)
    }
}

fn failed(error: minijinja::Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        if let Some(python::Raised(reason)) = error.downcast_ref() {
            return TemplateError::Raised(reason.clone());
        }
        cause = error.source();
    }
    match error.kind() {
        ErrorKind::SyntaxError => TemplateError::Syntax(format!("{error:#}")),
        _ => TemplateError::Failed(error.to_string()),
    }
}
