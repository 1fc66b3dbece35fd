//! Language models: text after a prompt or a chat, token by token.

use std::cell::{RefCell, RefMut};

use js_sys::{Function, Object, Promise, Reflect};
use olivine_lm::{
    Engine, EngineOptions, Event, Finish, JsonConstraints, Request, RequestId, Sampling, Share,
};
use olivine_tokenizer::{ChatOptions, ChatTemplate, Json, Message, Tokenizer};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use crate::tensors::of_fields;
use crate::{Download, Session, thrown};

/// Tokens of a prompt that are computed at once. A page wants to hear of its progress and to be able to stop it.
const CHUNK: usize = 128;

#[wasm_bindgen]
impl Session {
    /// Compiles a GGUF file for decoding texts of so many tokens at most; the model's own most if not given.
    #[wasm_bindgen(js_name = compileLanguageModel)]
    pub fn compile_language_model(
        &self,
        file: Download,
        context: Option<usize>,
    ) -> Result<LanguageModel, JsError> {
        let model = olivine_lm::LanguageModel::from_gguf(file.bytes).map_err(thrown)?;
        let tokenizer = model.tokenizer().map_err(thrown)?;
        let template = model.chat_template(&tokenizer).map_err(|e| e.to_string());
        let options = EngineOptions::default().context(context).chunk(CHUNK).share(Share::Pages);
        let engine = model.engine(&self.0, &options).map_err(thrown)?;
        let name = model.inner().gguf().and_then(|file| file.metadata().string("general.name").ok());
        let name = name.unwrap_or_default().to_string();
        let context = engine.context();
        Ok(LanguageModel { name, context, engine: RefCell::new(engine), tokenizer, template })
    }
}

/// A language model compiled for a device. It generates one text at a time.
#[wasm_bindgen]
pub struct LanguageModel {
    name: String,
    context: usize,
    engine: RefCell<Engine>,
    tokenizer: Tokenizer,
    /// Or why there is none.
    template: Result<ChatTemplate, String>,
}

#[wasm_bindgen]
impl LanguageModel {
    /// Its name for itself.
    #[wasm_bindgen(getter)]
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Tokens of a text at most, with those of the prompt.
    #[wasm_bindgen(getter)]
    pub fn context(&self) -> usize {
        self.context
    }

    /// Whether it has a template for chats.
    #[wasm_bindgen(getter)]
    pub fn chats(&self) -> bool {
        self.template.is_ok()
    }

    /// The tokens of a text, in which control tokens count as such where `special` says so.
    pub fn tokenize(&self, text: &str, special: bool) -> Result<Vec<u32>, JsError> {
        self.tokenizer.encode(text, false, special).map_err(thrown)
    }

    /// The text of tokens, without control tokens.
    pub fn detokenize(&self, ids: &[u32]) -> Result<String, JsError> {
        self.tokenizer.decode(ids).map_err(thrown)
    }

    /// Generates after a text or after the JSON of a chat's messages, and calls `each` with every piece of text and the number of tokens so
    /// far. What `each` returns is awaited; the text ends where that is `false`. Resolves to `{finish, promptTokens, tokens}`.
    #[allow(
        clippy::await_holding_refcell_ref,
        reason = "the engine stays borrowed until the text ends; another text is an error then"
    )]
    pub async fn generate(
        &self,
        prompt: String,
        chat: bool,
        options: Object,
        each: Function,
    ) -> Result<Object, JsError> {
        let prompt = if chat { self.chat(&prompt)? } else { self.ids(&prompt, true)? };
        let prompt_tokens = prompt.len();
        let options = Options(options);
        let most = options.number("maxTokens")?.unwrap_or(self.context as f64) as usize;
        let ends = self.tokenizer.special().end.iter().map(|id| i64::from(*id));
        let request = Request::new(prompt, most).stop(ends).sampling(options.sampling()?);
        let request = match options.constraint(&self.tokenizer)? {
            Some(constraint) => request.constraint(constraint),
            None => request,
        };
        let busy = |_| JsError::new("the model is generating another text");
        let mut engine = self.engine.try_borrow_mut().map_err(busy)?;
        let id = engine.add(request).map_err(thrown)?;
        // However this ends, the text does.
        let mut text = Text { engine, id };
        let mut stream = self.tokenizer.stream().continued();
        let mut tokens = 0u32;
        let goes_on = async |text: String, tokens: u32| {
            let answer = each.call2(&JsValue::NULL, &text.into(), &tokens.into()).map_err(of_caller)?;
            let answer = JsFuture::from(Promise::resolve(&answer)).await.map_err(of_caller)?;
            Ok::<bool, JsError>(answer != JsValue::FALSE)
        };
        let finish = 'text: loop {
            let events = text.engine.step_async().await.map_err(thrown)?;
            if events.is_empty() && !goes_on(String::new(), tokens).await? {
                break "stopped";
            }
            for event in events {
                match event {
                    Event::Token { token, .. } => {
                        tokens += 1;
                        // Models have rows for more tokens than their vocabulary; those have no text.
                        let piece = u32::try_from(token).ok().and_then(|id| stream.push(id).ok());
                        if !goes_on(piece.unwrap_or_default(), tokens).await? {
                            break 'text "stopped";
                        }
                    }
                    Event::End { finish, .. } => {
                        let rest = stream.finish();
                        if !rest.is_empty() {
                            goes_on(rest, tokens).await?;
                        }
                        break 'text match finish {
                            Finish::Stop(_) => "stop",
                            Finish::Length => "length",
                            Finish::Context => "context",
                            Finish::Constraint => "constraint",
                        };
                    }
                    _ => {}
                }
            }
        };
        drop(text);
        of_fields(&[
            ("finish", finish.into()),
            ("promptTokens", (prompt_tokens as f64).into()),
            ("tokens", tokens.into()),
        ])
    }
}

/// A text that is being generated; the engine forgets it when this is dropped.
struct Text<'a> {
    engine: RefMut<'a, Engine>,
    id: RequestId,
}

impl Drop for Text<'_> {
    fn drop(&mut self) {
        self.engine.cancel(self.id);
    }
}

impl LanguageModel {
    fn ids(&self, text: &str, begins: bool) -> Result<Vec<i64>, JsError> {
        let ids = self.tokenizer.encode(text, begins, true).map_err(thrown)?;
        Ok(ids.into_iter().map(i64::from).collect())
    }

    /// The tokens of a chat, to which the model answers.
    fn chat(&self, messages: &str) -> Result<Vec<i64>, JsError> {
        let template = self.template.as_ref().map_err(|problem| JsError::new(problem))?;
        let messages = Json::parse(messages).map_err(thrown)?;
        let messages = messages.as_array().unwrap_or_default().iter().cloned().map(Message::from_json);
        let messages = messages.collect::<Result<Vec<_>, _>>().map_err(thrown)?;
        let now = Some((js_sys::Date::now() / 1000.0) as i64);
        let options = ChatOptions { add_generation_prompt: true, now, ..ChatOptions::default() };
        let text = template.render(&messages, &options).map_err(thrown)?;
        let begins = self.tokenizer.special().bos.and_then(|bos| self.tokenizer.token_text(bos).ok());
        self.ids(&text, !begins.is_some_and(|bos| text.starts_with(bos)))
    }
}

/// What a callback threw, as an error.
fn of_caller(thrown: JsValue) -> JsError {
    let message = Reflect::get(&thrown, &"message".into()).ok().and_then(|message| message.as_string());
    JsError::new(&message.unwrap_or_else(|| format!("{thrown:?}")))
}

/// Options of a text, as a page gives them.
struct Options(Object);

impl Options {
    fn get(&self, name: &str) -> Option<JsValue> {
        let value = Reflect::get(&self.0, &name.into()).ok();
        value.filter(|value| !value.is_undefined() && !value.is_null())
    }

    fn number(&self, name: &str) -> Result<Option<f64>, JsError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| JsError::new(&format!("{name}: expected a number")))
    }

    fn sampling(&self) -> Result<Sampling, JsError> {
        let mut sampling = Sampling::default();
        let numbers = [
            ("temperature", &mut sampling.temperature),
            ("topP", &mut sampling.top_p),
            ("minP", &mut sampling.min_p),
            ("repetitionPenalty", &mut sampling.repetition),
            ("frequencyPenalty", &mut sampling.frequency),
            ("presencePenalty", &mut sampling.presence),
        ];
        for (name, number) in numbers {
            *number = self.number(name)?.map_or(*number, |value| value as f32);
        }
        sampling.top_k = self.number("topK")?.map_or(sampling.top_k, |value| value as i32);
        // A text without a seed is another one every time.
        let chance = || js_sys::Math::random() * 2f64.powi(52);
        sampling.seed = self.number("seed")?.unwrap_or_else(chance) as u64;
        Ok(sampling)
    }

    /// `json`: true for any object, or the text of a JSON schema.
    fn constraint(&self, tokenizer: &Tokenizer) -> Result<Option<olivine_lm::Constraint>, JsError> {
        let Some(json) = self.get("json").filter(|json| json != &JsValue::FALSE) else { return Ok(None) };
        let constraints = JsonConstraints::new(tokenizer).map_err(thrown)?;
        let constraint = match json.as_string() {
            Some(schema) => constraints.schema(&schema).map_err(thrown)?,
            None => constraints.object(),
        };
        Ok(Some(constraint))
    }
}
