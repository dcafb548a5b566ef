use super::read_object;
use crate::error::EngineError;
use minijinja::value::Value as JinjaValue;
use minijinja::{Environment, ErrorKind, context};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

const NAME: &str = "chat_template";

/// One message of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A model's own way to write a conversation as one prompt.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// The template of a model folder: `chat_template.jinja`, else the one in
    /// `tokenizer_config.json`; `None` if there is neither.
    ///
    /// # Errors
    /// `io`, or `tokenizer-invalid` if the template does not parse.
    pub fn open(dir: &Path) -> Result<Option<Self>, EngineError> {
        let config = read_object(dir, "tokenizer_config.json")?.unwrap_or_default();
        let path = dir.join("chat_template.jinja");
        let source = match std::fs::read_to_string(&path) {
            Ok(source) => Some(source),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                config.get("chat_template").and_then(default_template)
            }
            Err(source) => return Err(EngineError::Io { path, source }),
        };
        let Some(source) = source else { return Ok(None) };
        Self::new(source, token_text(&config, "bos_token"), token_text(&config, "eos_token"))
            .map(Some)
    }

    /// A template from its source and the texts of two special tokens it may mention.
    ///
    /// # Errors
    /// `tokenizer-invalid` if it does not parse.
    pub fn new(source: String, bos_token: String, eos_token: String) -> Result<Self, EngineError> {
        let mut environment = Environment::new();
        // The settings that the templates are written for.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |text: String| {
            Err::<JinjaValue, _>(minijinja::Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_template_owned(NAME, source).map_err(|error| failed(&error))?;
        Ok(Self { environment, bos_token, eos_token })
    }

    /// The prompt for `messages`; with `add_generation_prompt` it ends where the model's
    /// answer begins.
    ///
    /// # Errors
    /// `tokenizer-invalid` with what the template says.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, EngineError> {
        let template = self.environment.get_template(NAME).map_err(|error| failed(&error))?;
        template
            .render(context! {
                messages,
                add_generation_prompt,
                bos_token => self.bos_token,
                eos_token => self.eos_token,
            })
            .map_err(|error| failed(&error))
    }
}

/// A template is a string, or a list of named ones of which `default` is meant.
fn default_template(value: &Value) -> Option<String> {
    let named = |entry: &&Value| entry["name"] == "default";
    let source = match value {
        Value::Array(list) => &list.iter().find(named)?["template"],
        other => other,
    };
    source.as_str().map(str::to_owned)
}

/// A special token is its text, or an object with its text under `content`.
fn token_text(config: &serde_json::Map<String, Value>, key: &str) -> String {
    let value = config.get(key).unwrap_or(&Value::Null);
    value.as_str().or(value["content"].as_str()).unwrap_or_default().to_owned()
}

fn to_json(value: &JinjaValue) -> Result<String, minijinja::Error> {
    serde_json::to_string(value)
        .map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// The error with its line and everything below it.
fn failed(error: &minijinja::Error) -> EngineError {
    EngineError::Tokenizer { what: "chat template".to_owned(), problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Result<ChatTemplate, EngineError> {
        ChatTemplate::new(source.to_owned(), "<s>".to_owned(), "</s>".to_owned())
    }

    #[test]
    fn python_methods_filters_and_tokens_work() {
        let source = "{{ bos_token }}{% for m in messages %}{% if m.role.startswith('u') %}\n\
            {{ m['content'].strip() | tojson }}{{ eos_token }}{% endif %}{% endfor %}";
        let messages = [Message::new("system", "x"), Message::new("user", " a\"b ")];
        let prompt = template(source).unwrap().render(&messages, true).unwrap();
        assert_eq!(prompt, "<s>\"a\\\"b\"</s>");
    }

    #[test]
    fn a_template_may_refuse() {
        let refusing = template("{{ raise_exception('roles must alternate') }}").unwrap();
        let error = refusing.render(&[], false).unwrap_err();
        assert_eq!(error.kind(), "tokenizer-invalid");
        assert!(error.to_string().contains("roles must alternate"), "{error}");
        assert_eq!(template("{% for %}").unwrap_err().kind(), "tokenizer-invalid");
    }
}
