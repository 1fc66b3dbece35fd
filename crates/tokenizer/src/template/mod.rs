//! Chat templates: the prompt of a chat, as Hugging Face's `transformers` renders it.

mod limits;
mod operands;
mod python;
mod time;

use minijinja::value::{Kwargs, Rest};
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use olivine_gguf::{Metadata, Value as Entry};

use crate::{Error, Json, Tokenizer};

/// Steps that a template may take. The longest chats need a hundredth of them.
const FUEL: u64 = 10_000_000;
/// Bytes of the text between tags that all steps may write.
const MOST_TEXT: u64 = 1 << 30;
/// Bytes of the longest prompt.
const LONGEST_PROMPT: usize = 64 << 20;

/// Bytes of the longest template; those of models have a tenth of it.
const LONGEST_TEMPLATE: usize = 256 << 10;
/// Bytes of stack for a template, of which few are touched as a rule. Its expressions, and the values that it builds, may be nested as
/// deeply as its length and its steps allow, and each level takes a part of the stack.
const STACK: usize = if usize::BITS > 32 { 1 << 30 } else { 128 << 20 };

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// One message of a chat.
#[derive(Clone, Debug, PartialEq)]
pub struct Message(Json);

impl Message {
    /// A message of text. Roles are `system`, `user`, `assistant` and, for results of tools, `tool`.
    pub fn new(role: &str, content: &str) -> Message {
        Message(Json::Object(vec![("role".into(), role.into()), ("content".into(), content.into())]))
    }

    /// A message as clients of chat servers send it: an object with a role.
    pub fn from_json(json: Json) -> Result<Message, Error> {
        match json.get("role") {
            Some(Json::String(_)) => Ok(Message(json)),
            _ => Err(Error::Template { problem: "a message is not an object with a role".into() }),
        }
    }

    /// Adds a field, such as `tool_calls`.
    pub fn with(mut self, name: &str, value: Json) -> Message {
        if let Json::Object(fields) = &mut self.0 {
            fields.push((name.to_string(), value));
        }
        self
    }
}

/// What a template gets beside the messages.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// Ends the prompt with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Tools that the model may call, as JSON schemas.
    pub tools: Vec<Json>,
    /// Other variables that a template knows, such as `enable_thinking`.
    pub variables: Vec<(String, Json)>,
    /// Seconds since 1970 for templates that write a date; by default the clock's, which WebAssembly lacks.
    pub now: Option<i64>,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template; `bos` and `eos` are the texts of these tokens.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, Error> {
        if source.len() > LONGEST_TEMPLATE {
            let length = source.len();
            let problem = format!("its {length} bytes are more than {LONGEST_TEMPLATE}");
            return Err(Error::Template { problem });
        }
        on_large_stack(|| ChatTemplate::compile(source, bos, eos))
    }

    fn compile(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, Error> {
        let mut environment = Environment::new();
        let syntax = environment.syntax().to_builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(problem)?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        let (counted, longest) = operands::counted(&without_generation_tags(source));
        environment.set_fuel(Some(FUEL.min(MOST_TEXT / longest.max(1) as u64)));
        environment.set_formatter(|out, _, value| {
            let text = python::text(value)?;
            limits::count(text.len())?;
            out.write_str(&text)
                .map_err(|_| minijinja::Error::new(ErrorKind::WriteFailure, "the prompt is too long"))
        });
        limits::install(&mut environment);
        environment.add_filter("tojson", |value: Value, rest: Rest<Value>, options: Kwargs| {
            let text = python::json(&value, &rest, &options)?;
            limits::count(text.len())?;
            Ok::<_, minijinja::Error>(text)
        });
        environment.add_filter("string", |value: Value| -> Result<String, minijinja::Error> {
            let text = python::text(&value)?;
            limits::count(text.len())?;
            Ok(text)
        });
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(
                ErrorKind::InvalidOperation,
                format!("the template refuses the chat: {message}"),
            ))
        });
        environment.add_template_owned("chat", counted).map_err(problem)?;
        Ok(ChatTemplate { environment, source: source.into(), bos: bos.into(), eos: eos.into() })
    }

    /// The text that was compiled.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The template of a GGUF file, or ChatML where there is none and the vocabulary has its tokens.
    pub fn from_gguf(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
        const KEY: &str = "tokenizer.chat_template";
        match metadata.get(KEY) {
            Some(Entry::String(source)) => ChatTemplate::for_tokenizer(source, tokenizer),
            Some(other) => {
                Err(Error::metadata(KEY, format!("it is of type {}, not a string", other.type_name())))
            }
            None => ChatTemplate::chatml(tokenizer),
        }
    }

    /// The template in the text of a `tokenizer_config.json`; of several the one named `default`.
    pub fn from_config(text: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
        let config = Json::parse(text)?;
        let source = match config.get("chat_template") {
            Some(Json::String(source)) => Some(source.as_str()),
            Some(Json::Array(named)) => {
                let default =
                    named.iter().find(|entry| entry.get("name").and_then(Json::as_str) == Some("default"));
                default.or(named.first()).and_then(|entry| entry.get("template")?.as_str())
            }
            _ => None,
        };
        match source {
            Some(source) => ChatTemplate::for_tokenizer(source, tokenizer),
            None => ChatTemplate::chatml(tokenizer),
        }
    }

    /// Compiles a template, with the texts of a tokenizer's BOS and EOS.
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id).ok()).unwrap_or_default();
        ChatTemplate::new(source, text(tokenizer.special().bos), text(tokenizer.special().eos))
    }

    fn chatml(tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
        if tokenizer.token_id("<|im_start|>").is_none() || tokenizer.token_id("<|im_end|>").is_none() {
            let problem =
                "the model has none, and its vocabulary lacks the tokens of ChatML; give a template"
                    .to_string();
            return Err(Error::Template { problem });
        }
        ChatTemplate::for_tokenizer(CHATML, tokenizer)
    }

    /// The prompt of a chat. It holds control tokens, so encode it with `parse_special`, and without `add_special` if it begins
    /// with BOS.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, Error> {
        on_large_stack(|| self.render_here(messages, options))
    }

    fn render_here(&self, messages: &[Message], options: &ChatOptions) -> Result<String, Error> {
        limits::begin();
        let now = options.now;
        let strftime = move |format: String| match now.or_else(time::now) {
            Some(seconds) => Ok(time::strftime(&format, seconds)),
            None => {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, "there is no clock; give the time"))
            }
        };
        let list = |values: &mut dyn Iterator<Item = &Json>| values.map(value).collect::<Vec<Value>>();
        let tools = if options.tools.is_empty() {
            Value::from(())
        } else {
            Value::from(list(&mut options.tools.iter()))
        };
        let mut variables = vec![
            ("messages".to_string(), Value::from(list(&mut messages.iter().map(|message| &message.0)))),
            ("tools".to_string(), tools),
            ("documents".to_string(), Value::from(())),
            ("add_generation_prompt".to_string(), Value::from(options.add_generation_prompt)),
            ("bos_token".to_string(), Value::from(self.bos.as_str())),
            ("eos_token".to_string(), Value::from(self.eos.as_str())),
            ("strftime_now".to_string(), Value::from_function(strftime)),
        ];
        variables.extend(options.variables.iter().map(|(name, json)| (name.clone(), value(json))));
        let template = self.environment.get_template("chat").map_err(problem)?;
        let mut prompt = Limited(Vec::new());
        template.render_captured_to(Value::from_pairs(variables), &mut prompt).map_err(problem)?;
        String::from_utf8(prompt.0).map_err(|_| Error::Template { problem: "its output is not UTF-8".into() })
    }
}

/// Runs what a template may nest deeply on a thread with a large stack; there are no threads in browsers, whose stacks are theirs to check.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    if cfg!(target_family = "wasm") {
        return work();
    }
    let failed = |why: String| Error::Template { problem: why };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK);
        let thread =
            thread.spawn_scoped(scope, work).map_err(|e| failed(format!("it gets no thread: {e}")))?;
        thread.join().unwrap_or_else(|_| Err(failed("its rendering panicked".into())))
    })
}

/// Output up to the limit.
struct Limited(Vec<u8>);

impl std::io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > LONGEST_PROMPT {
            return Err(std::io::Error::other("the prompt is too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn problem(error: minijinja::Error) -> Error {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    Error::Template { problem: crate::error::shortened(&format!("{error}{cause}")) }
}

fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Int(value) => Value::from(*value),
        Json::Float(value) => Value::from(*value),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(values) => Value::from(values.iter().map(value).collect::<Vec<Value>>()),
        Json::Object(entries) => {
            Value::from_pairs(entries.iter().map(|(key, json)| (key.as_str(), value(json))))
        }
    }
}

/// `{% generation %}` marks what a model is trained on; here it is a block that is always rendered.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (before, tag) = (&rest[..start], &rest[start..start + length]);
        result.push_str(before);
        match tag.trim_matches(|c: char| matches!(c, '{' | '%' | '-' | '+') || c.is_whitespace()) {
            "generation" => result.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => result.push_str(&tag.replace("endgeneration", "endif")),
            _ => result.push_str(tag),
        }
        rest = &rest[start + length..];
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String, Error> {
        let messages = [Message::new("user", "Hi"), Message::new("assistant", " Yes. ")];
        let options =
            ChatOptions { add_generation_prompt: true, now: Some(1_721_900_000), ..ChatOptions::default() };
        ChatTemplate::new(source, "<s>", "</s>")?.render(&messages, &options)
    }

    #[test]
    fn blocks_take_their_lines_with_them() {
        let source = "{{ bos_token }}\n{% for m in messages %}\n  {% if true %}\n[{{ m.role }}] {{ m['content'] | trim }}\n  {% endif %}\n{% endfor %}\n";
        assert_eq!(render(source).unwrap(), "<s>\n[user] Hi\n[assistant] Yes.\n");
    }

    #[test]
    fn values_print_as_in_python() {
        let source = "{{ [1, 'a', none, true, 1.0, {'k': 'it\\'s'}] }} {{ none }} {{ true }} {{ 1e20 }} {{ nothing }}|";
        assert_eq!(render(source).unwrap(), "[1, 'a', None, True, 1.0, {'k': \"it's\"}] None True 1e+20 |");
        assert_eq!(
            render("{{ {'b': 1, 'a': ['é\\n']} | tojson }}").unwrap(),
            "{\"b\": 1, \"a\": [\"é\\n\"]}"
        );
        assert_eq!(
            render("{{ {'b': 1, 'a': []} | tojson(indent=2) }}").unwrap(),
            "{\n  \"b\": 1,\n  \"a\": []\n}"
        );
    }

    #[test]
    fn dates_and_generation_tags_are_known() {
        assert_eq!(render("{{ strftime_now('%d %b %Y %H:%M') }}").unwrap(), "25 Jul 2024 09:33");
        assert_eq!(render("a{% generation %}b{%- endgeneration %}c").unwrap(), "abc");
        assert_eq!(
            render(
                "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}"
            )
            .unwrap(),
            "assistant"
        );
    }

    #[test]
    fn templates_that_raise_loop_or_flood_are_errors() {
        let raised = render("{{ raise_exception('roles must alternate') }}").unwrap_err().to_string();
        assert!(raised.contains("roles must alternate"), "{raised}");
        let nested = "{% for i in range(1000) %}".repeat(6) + &"{% endfor %}".repeat(6);
        assert!(render(&nested).is_err());
        assert!(render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").is_err());
        assert!(
            render(&("{% for i in range(100000) %}".to_string() + &"x".repeat(1000) + "{% endfor %}"))
                .is_err()
        );
        assert!(render("{{ messages[0].content.nothing.more }}").is_err());
        assert!(render("{% if %}").is_err());
        // A list that is in itself twice, and so on, is short to build and long to write.
        let twice = "{% set at = namespace(x=[1]) %}{% for i in range(60) %}{% set at.x = [at.x, at.x] %}{% endfor %}";
        for write in ["{{ at.x }}", "{{ at.x | tojson }}", "{{ (at.x | string) | length }}"] {
            assert!(render(&format!("{twice}{write}")).is_err(), "{write}");
        }
    }

    #[test]
    fn nothing_is_nested_too_deeply_for_the_stack() {
        let repeated = |before: &str, part: &str, count: usize, after: &str| {
            let source = format!("{{{{ {before}{}{after} }}}}", part.repeat(count));
            let rendered = render(&source);
            assert!(rendered.is_ok(), "{part}: {rendered:?}");
        };
        for (before, part, after) in [
            ("", "not ", "1"),
            ("", "-", "1"),
            ("1", "+1", ""),
            ("1", "**1", ""),
            ("'a'", "~1", ""),
            ("1", "|string", ""),
            ("", "1 if 0 else ", "1"),
            ("messages", "|list", ""),
            ("1", " and 1", ""),
            ("1", " in 1", " if false else 1"),
        ] {
            repeated(before, part, ((LONGEST_TEMPLATE - 100) / part.len()).min(30_000), after);
        }
        assert!(render(&"a".repeat(LONGEST_TEMPLATE + 1)).is_err());
        let otherwise = "{% elif 0 %}".repeat(20_000);
        assert_eq!(render(&format!("{{% if 0 %}}{otherwise}{{% else %}}a{{% endif %}}")).unwrap(), "a");
        let deep = "{% set at = namespace(x=[1]) %}{% for i in range(300) %}{% for j in range(1000) %}{% set at.x = [at.x] %}{% endfor %}{% endfor %}";
        assert_eq!(
            render(&format!("{deep}{{{{ at.x | length }}}}{{{{ (at.x ~ '') | length }}}}")).unwrap(),
            "1600003"
        );
        assert!(render(&format!("{deep}{{{{ at.x }}}}")).unwrap().contains("[[…]]"));
    }

    #[test]
    fn what_grows_with_every_step_is_an_error() {
        let doubled = |step: &str| {
            format!(
                "{{% set at = namespace(x='abcdefgh', l=[1, 2], s='') %}}{{% for i in range(60) %}}{{% set at.x = {step} %}}{{% endfor %}}{{{{ at.x | length }}}}"
            )
        };
        let begun = std::time::Instant::now();
        for step in [
            "at.x ~ at.x",
            "at.x + at.x",
            "at.x * 2",
            "2 * at.x",
            "[at.x, at.x] | join(at.x)",
            "at.x | replace('a', at.x)",
            "at.x.replace('a', at.x)",
            "at.x | indent(2 ** 40)",
            "at.x | indent(width=2 ** 40)",
            "'%1000000000000d' | format(1)",
            "'%*d' | format(1000000000000, 1)",
            "'{:>1000000000000}'.format(1)",
            "'{}{}'.format(at.x, at.x)",
            "'%s%s' | format(at.x, at.x)",
            "at.x.join([at.x, at.x])",
            "(at.x | list) + (at.x | list)",
            "(at.x ~ at.l) ~ at.x",
            "[at.x, at.x] | sum(start='')",
            "at.x if false else at.x ~ (at.x | upper)",
            "(at.x|string) ~ (at.x|tojson)",
            "at.x[0:] ~ at.x[:]",
            "at.x ~ 0xE ~ at.x",
        ] {
            let error = render(&doubled(step));
            assert!(error.is_err(), "{step}: {error:?}");
            println!("{step}: {:?}", begun.elapsed());
        }
        for source in [
            "{% set at = namespace(x='abcdefgh') %}{% for i in range(60) %}{% set y %}{{ at.x }}{{ at.x }}{% endset %}{% set at.x = y %}{% endfor %}",
            "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set at = namespace(x='abcdefgh') %}{% for i in range(60) %}{% set at.x = m(at.x) %}{% endfor %}",
            "{% set x = 'a' * 90000000 %}{% set y = x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x %}",
            "{% set at = namespace(l=[], x='a' * 50000000) %}{% for i in range(100000) %}{% set at.l = at.l + [at.x[1:]] %}{% endfor %}",
            "{% set at = namespace(l=[], x='a' * 50000000) %}{% for i in range(100000) %}{% set at.l = at.l + [at.x.strip()] %}{% endfor %}",
            "{% set at = namespace() %}{% set at.at = at %}{% set x = at ~ '' %}",
            "{% set l = [1] * 90000000 %}{% set a = l | list %}{% set b = a | list %}",
            "{% set at = namespace(l=[1]) %}{% for i in range(60) %}{% set at.l = at.l + at.l %}{% endfor %}{{ at.l | length }}",
        ] {
            let error = render(source);
            assert!(error.is_err(), "{source}: {:?}", error.map(|text| text.len()));
        }
        // Text between tags that is captured again and again.
        let raw = "{% set at = namespace(l=[]) %}{% for i in range(100000) %}{% for j in range(100000) %}{% set x %}".to_string()
            + &"x".repeat(200_000)
            + "{% endset %}{% set at.l = at.l + [x] %}{% endfor %}{% endfor %}";
        assert!(render(&raw).is_err());
    }

    #[test]
    fn counted_templates_render_as_they_are_written() {
        let mut plain = Environment::new();
        plain.set_formatter(|out, _, value| Ok(out.write_str(&python::text(value)?)?));
        plain.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        let message = |role: &str, content: &str| {
            Value::from_pairs([("role", Value::from(role)), ("content", Value::from(content))])
        };
        let messages = Value::from(vec![message("user", "Hi"), message("assistant", " Yes. ")]);
        for source in [
            "{{ 1 + 2 * 3 }} {{ 'a' ~ (1 + 2) }} {{ -1 + 2 }} {{ 2 ** 3 + 1 }} {{ 7 // 2 * 2 }}",
            "{{ 'ab' * 2 + 'c' }} {{ ([1] + [2, 3])[1:] }} {{ [1, 2] * 2 }}",
            "{{ messages[0].content[0:1] ~ messages[1]['content'].strip()[::-1] }}",
            "{{ 'a' ~ 'b' if 1 + 1 == 2 else 'c' ~ 'd' }} {{ 'x' ~ 1 is string }}",
            "{{ messages | map(attribute='role') | join(', ') ~ '!' }} {{ ', '.join(['a', 'b']) }}",
            "{{ 'a\nb' | indent(2) }} {{ '%s-%03d' | format('x', 7) }} {{ '{:>3}|{}'.format(1, 'y') }}",
            "{{ 'a,b' | replace(',', ';') }} {{ 'a,b'.split(',')[-1] + '.' }} {{ [1, 2, 3] | sum + 1 }}",
            "{{ [3, 1, 2] | sort | list }} {{ 'abc' | list | reverse | join }} {{ [1, 2, 3] | batch(2) | list }}",
            "{{ not 1 + 1 }} {{ (1, 2) + (3,) }} {{ 'a' < 'b' ~ 'c' }} {{ 5 is divisibleby 2 + 3 }}",
            "{{ messages | sum(attribute='content', start='') }} {{ messages | join('-', attribute='role') }}",
            "{% for m in messages[::-1] %}{{ loop.index0 + 1 }}{{ m['role'][0:2] + m.content|trim + '\n' }}{%- endfor -%} x",
            "{% set ns = namespace(a='', b=[]) %}{% for m in messages + [messages[0]] %}{% set ns.a = ns.a ~ m.role ~ loop.index %}{% endfor %}{{+ ns.a }}",
        ] {
            let want = plain.render_str(source, Value::from_pairs([("messages", messages.clone())])).unwrap();
            assert_eq!(render(source).unwrap_or_else(|e| panic!("{source}: {e}")), want, "{source}");
        }
    }
}
