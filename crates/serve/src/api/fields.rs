//! The fields of a request's JSON, with errors that name them.

use olivine_tokenizer::Json;

use super::problem::Problem;

/// The fields of an object. A field that is `null` counts as missing.
pub(crate) struct Fields<'a> {
    json: &'a Json,
    /// Where the object is in the request, such as `messages[2].`
    path: String,
}

fn kind(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Int(_) => "an integer",
        Json::Float(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}

impl<'a> Fields<'a> {
    /// Of a value that has to be an object.
    pub(crate) fn of(json: &'a Json, path: impl Into<String>) -> Result<Self, Problem> {
        let path: String = path.into();
        match json {
            Json::Object(_) => {
                Ok(Fields { json, path: if path.is_empty() { path } else { format!("{path}.") } })
            }
            other if path.is_empty() => {
                Err(Problem::bad(format!("the request has to be an object, not {}", kind(other))))
            }
            other => Err(Problem::param(&path, format!("`{path}` has to be an object, not {}", kind(other)))),
        }
    }

    /// A field's name with the path to it.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Json> {
        self.json.get(key).filter(|value| **value != Json::Null)
    }

    /// An error about a field.
    pub(crate) fn wrong(&self, key: &str, message: impl std::fmt::Display) -> Problem {
        let name = self.name(key);
        Problem::param(&name, format!("`{name}` {message}"))
    }

    fn expected(&self, key: &str, what: &str, found: &Json) -> Problem {
        self.wrong(key, format_args!("has to be {what}, not {}", kind(found)))
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, Problem> {
        let read = |json: &Json| json.as_bool().ok_or_else(|| self.expected(key, "true or false", json));
        self.get(key).map(read).transpose()
    }

    pub(crate) fn str(&self, key: &str) -> Result<Option<&'a str>, Problem> {
        let read = |json: &'a Json| json.as_str().ok_or_else(|| self.expected(key, "a string", json));
        self.get(key).map(read).transpose()
    }

    /// A number between two others.
    pub(crate) fn number(&self, key: &str, low: f64, high: f64) -> Result<Option<f32>, Problem> {
        let Some(json) = self.get(key) else { return Ok(None) };
        let value = json.as_f64().ok_or_else(|| self.expected(key, "a number", json))?;
        match (low..=high).contains(&value) {
            true => Ok(Some(value as f32)),
            false => Err(self.wrong(key, format_args!("has to be from {low} to {high}, not {value}"))),
        }
    }

    /// An integer between two others.
    pub(crate) fn integer(&self, key: &str, low: i64, high: i64) -> Result<Option<i64>, Problem> {
        match self.get(key) {
            None => Ok(None),
            Some(Json::Int(value)) if (low..=high).contains(value) => Ok(Some(*value)),
            Some(Json::Int(value)) => {
                Err(self.wrong(key, format_args!("has to be from {low} to {high}, not {value}")))
            }
            Some(other) => Err(self.expected(key, "an integer", other)),
        }
    }

    /// A size; there is no bound but the type's.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>, Problem> {
        Ok(self.integer(key, 0, i64::MAX)?.map(|value| usize::try_from(value).unwrap_or(usize::MAX)))
    }

    /// An object's entries.
    pub(crate) fn entries(&self, key: &str) -> Result<&'a [(String, Json)], Problem> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Json::Object(entries)) => Ok(entries),
            Some(other) => Err(self.expected(key, "an object", other)),
        }
    }

    pub(crate) fn array(&self, key: &str) -> Result<Option<&'a [Json]>, Problem> {
        let read = |json: &'a Json| json.as_array().ok_or_else(|| self.expected(key, "an array", json));
        self.get(key).map(read).transpose()
    }

    /// Refuses fields that are not among `known`: ignored, they would change the result without a word.
    pub(crate) fn only(&self, known: &[&[&str]]) -> Result<(), Problem> {
        let Json::Object(entries) = self.json else { return Ok(()) };
        let is_known = |key: &str| known.iter().any(|keys| keys.contains(&key));
        match entries.iter().find(|(key, value)| *value != Json::Null && !is_known(key)) {
            Some((key, _)) => {
                let name: String = self.name(key).chars().take(100).collect();
                Err(Problem::unsupported(&name, format!("`{name}` is not supported")))
            }
            None => Ok(()),
        }
    }

    /// Refuses fields that would change the result if they were ignored, unless they are empty.
    pub(crate) fn refuse(&self, keys: &[&str]) -> Result<(), Problem> {
        let empty = |json: &Json| match json {
            Json::Array(items) => items.is_empty(),
            Json::Object(entries) => entries.is_empty(),
            Json::Bool(value) => !value,
            _ => false,
        };
        match keys.iter().find(|key| self.get(key).is_some_and(|json| !empty(json))) {
            Some(key) => Err(Problem::unsupported(key, format!("`{}` is not supported", self.name(key)))),
            None => Ok(()),
        }
    }
}
