//! `tools` and `tool_choice` of a chat.

use std::collections::HashMap;
use std::sync::Arc;

use olivine_lm::Constraint;
use olivine_tokenizer::{ChatTemplate, Json, JsonSchema};

use super::calls::{Calls, Syntax};
use super::fields::Fields;
use super::problem::Problem;
use crate::router::Language;

/// Tools of one request at most.
const MOST_TOOLS: usize = 128;
/// Characters of a tool's name at most.
const LONGEST_NAME: usize = 64;
/// Keys of a schema whose entries others refer to.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The tools that a model may or must call.
pub(crate) struct Tools {
    /// As the template gets them.
    pub(crate) definitions: Vec<Json>,
    pub(crate) calls: Calls,
    /// The tools of which one must be called.
    forced: Vec<usize>,
}

/// Reads the tools of a request; `None` if it has none, or none that may be called.
pub(crate) fn tools(fields: &Fields<'_>, template: &ChatTemplate) -> Result<Option<Tools>, Problem> {
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let definitions = fields.array("tools")?.unwrap_or_default();
    if definitions.len() > MOST_TOOLS {
        return Err(fields.wrong("tools", format_args!("has over {MOST_TOOLS} tools")));
    }
    let mut names: Vec<String> = Vec::with_capacity(definitions.len());
    for (i, tool) in definitions.iter().enumerate() {
        let name = name(tool, &format!("tools[{i}]"))?;
        if names.contains(&name) {
            return Err(fields.wrong("tools", format_args!("has two tools named `{name}`")));
        }
        names.push(name);
    }
    let forced = match forced(fields, &names)? {
        _ if names.is_empty() => return Ok(None),
        None => return Ok(None),
        Some(forced) => forced,
    };
    let no_tools = || {
        let message =
            "the model's chat template does not say how tools are called; give another one to the server";
        Problem::unsupported("tools", message)
    };
    let syntax = Syntax::of_template(template.source()).ok_or_else(no_tools)?;
    let calls = Calls { syntax, names: names.into(), parallel, forced: !forced.is_empty() };
    Ok(Some(Tools { definitions: definitions.to_vec(), calls, forced }))
}

fn name(tool: &Json, path: &str) -> Result<String, Problem> {
    let tool = Fields::of(tool, path)?;
    match tool.str("type")? {
        Some("function") => {}
        Some(_) => return Err(tool.wrong("type", "has to be `function`")),
        None => return Err(tool.wrong("type", "is missing")),
    }
    let Some(function) = tool.get("function") else { return Err(tool.wrong("function", "is missing")) };
    let function = Fields::of(function, format!("{path}.function"))?;
    function.entries("parameters")?;
    function.str("description")?;
    function.bool("strict")?;
    let Some(name) = function.str("name")? else { return Err(function.wrong("name", "is missing")) };
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    match !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(allowed) {
        true => Ok(name.to_string()),
        false => {
            let what = format_args!("needs 1 to {LONGEST_NAME} letters, digits, `_`, `-` and `.`");
            Err(function.wrong("name", what))
        }
    }
}

/// The tools of which one must be called: none of them if the model decides, `None` if none may be called.
fn forced(fields: &Fields<'_>, names: &[String]) -> Result<Option<Vec<usize>>, Problem> {
    let choice = match fields.get("tool_choice") {
        None => return Ok(Some(Vec::new())),
        Some(choice) => choice,
    };
    let forced = match choice {
        Json::String(choice) => match choice.as_str() {
            "none" => return Ok(None),
            "auto" => return Ok(Some(Vec::new())),
            "required" => (0..names.len()).collect(),
            _ => return Err(fields.wrong("tool_choice", "has to be `none`, `auto`, `required` or a tool")),
        },
        choice => {
            let choice = Fields::of(choice, "tool_choice")?;
            if choice.str("type")? != Some("function") {
                return Err(choice.wrong("type", "has to be `function`"));
            }
            let Some(function) = choice.get("function") else {
                return Err(choice.wrong("function", "is missing"));
            };
            let function = Fields::of(function, "tool_choice.function")?;
            let Some(wanted) = function.str("name")? else {
                return Err(function.wrong("name", "is missing"));
            };
            match names.iter().position(|name| name == wanted) {
                Some(at) => vec![at],
                None => return Err(function.wrong("name", "is not one of `tools`")),
            }
        }
    };
    match names.is_empty() {
        true => Err(fields.wrong("tool_choice", "needs `tools`")),
        false => Ok(Some(forced)),
    }
}

impl Tools {
    /// The grammar of an answer that has to be a call.
    pub(crate) fn constraint(&self, language: &Language) -> Result<Option<Constraint>, Problem> {
        if self.forced.is_empty() {
            return Ok(None);
        }
        let refused = |error: olivine_tokenizer::Error| Problem::param("tools", error.to_string());
        let schema = JsonSchema::from_json(&self.schema()?).map_err(refused)?;
        Ok(Some(language.json()?.of_schema(schema)))
    }

    /// The schema of a call of one of the tools.
    fn schema(&self) -> Result<Json, Problem> {
        let object = |entries: Vec<(&str, Json)>| {
            Json::Object(entries.into_iter().map(|(key, value)| (key.to_string(), value)).collect())
        };
        let mut shared = DEFINITIONS.map(|key| (key, Definitions::default()));
        let mut each = Vec::with_capacity(self.forced.len());
        for tool in &self.forced {
            let parameters = self.definitions[*tool].get("function").and_then(|f| f.get("parameters"));
            let mut parameters = match parameters {
                Some(Json::Object(entries)) => entries.clone(),
                _ => vec![("type".into(), "object".into()), ("properties".into(), Json::Object(Vec::new()))],
            };
            // References are from the root of the document, which is around the parameters now.
            for (key, definitions) in &mut shared {
                let Some(at) = parameters.iter().position(|(name, _)| name == key) else { continue };
                let (_, Json::Object(entries)) = parameters.remove(at) else { continue };
                definitions.add(key, entries)?;
            }
            let name = Json::from(self.calls.names[*tool].as_str());
            let properties = object(vec![
                ("name", object(vec![("const", name)])),
                (self.calls.syntax.arguments(), Json::Object(parameters)),
            ]);
            let required = ["name", self.calls.syntax.arguments()].map(Json::from).to_vec();
            each.push(object(vec![
                ("type", "object".into()),
                ("properties", properties),
                ("required", Json::Array(required)),
            ]));
        }
        let call = object(vec![("anyOf", Json::Array(each))]);
        let mut root = match self.calls.syntax {
            Syntax::Hermes | Syntax::Llama => call,
            Syntax::Mistral => {
                let one = || Json::Int(1);
                object(vec![
                    ("type", "array".into()),
                    ("items", call),
                    ("minItems", one()),
                    ("maxItems", one()),
                ])
            }
        };
        if let Json::Object(entries) = &mut root {
            let shared = shared.into_iter().filter(|(_, definitions)| !definitions.entries.is_empty());
            entries.extend(shared.map(|(key, all)| (key.to_string(), Json::Object(all.entries))));
        }
        Ok(root)
    }

    /// Control tokens that mark calls; their text is needed to find them.
    pub(crate) fn markers(&self, language: &Language) -> Arc<[u32]> {
        let tokenizer = &language.tokenizer;
        let ids = self.calls.syntax.markers().into_iter().filter_map(|marker| tokenizer.token_id(marker));
        ids.filter(|id| tokenizer.is_special(*id)).collect()
    }
}

/// Definitions of all tools under one key, in order, and where each is.
#[derive(Default)]
struct Definitions {
    entries: Vec<(String, Json)>,
    places: HashMap<String, usize>,
}

impl Definitions {
    fn add(&mut self, key: &str, entries: Vec<(String, Json)>) -> Result<(), Problem> {
        for (name, schema) in entries {
            match self.places.get(&name) {
                Some(place) if self.entries[*place].1 != schema => {
                    let message = format!("two tools define `{name}` in `{key}` differently");
                    return Err(Problem::param("tools", message));
                }
                Some(_) => {}
                None => {
                    self.places.insert(name.clone(), self.entries.len());
                    self.entries.push((name, schema));
                }
            }
        }
        Ok(())
    }
}
