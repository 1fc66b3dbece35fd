//! Which tokens may come next, where a request's text follows a grammar.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use olivine_tokenizer::{JsonGrammar, JsonSchema, JsonState, SchemaState, Tokenizer};

use crate::Error;

/// A constraint on the tokens of a request. It is asked for the allowed ones before each token, and told each that was chosen.
pub trait TokenMask: Send + Sync + fmt::Debug {
    /// The tokens that may come next: bit `id % 64` of word `id / 64`. Tokens past the last word may not.
    fn allowed(&mut self) -> Arc<[u64]>;

    /// Goes on with a token that was chosen. An error ends the request with [`Finish::Constraint`](crate::Finish::Constraint).
    fn accept(&mut self, token: i64) -> Result<(), Error>;

    /// A copy in the same state.
    fn duplicate(&self) -> Box<dyn TokenMask>;
}

/// A [`TokenMask`] of a request.
pub struct Constraint(Box<dyn TokenMask>);

impl Constraint {
    /// The constraint of a mask.
    pub fn new(mask: impl TokenMask + 'static) -> Self {
        Constraint(Box::new(mask))
    }

    /// The tokens that may come next, among those of a vocabulary; `None` if there are none.
    pub(crate) fn allowed(&mut self, vocabulary: usize) -> Option<Arc<[u64]>> {
        let words = self.0.allowed();
        let any = |(i, word): (usize, &u64)| {
            let known = vocabulary.saturating_sub(64 * i).min(64);
            let kept = if known == 64 { *word } else { word & ((1 << known) - 1) };
            kept != 0
        };
        words.iter().enumerate().any(any).then_some(words)
    }

    pub(crate) fn accept(&mut self, token: i64) -> Result<(), Error> {
        self.0.accept(token)
    }
}

impl Clone for Constraint {
    fn clone(&self) -> Self {
        Constraint(self.0.duplicate())
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Constraints to valid JSON, for the tokens of a tokenizer. Made once for a model: its requests share what was computed.
#[derive(Clone)]
pub struct JsonConstraints {
    grammar: Arc<Mutex<JsonGrammar>>,
}

impl JsonConstraints {
    /// Collects the tokens that are text.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, Error> {
        Ok(JsonConstraints { grammar: Arc::new(Mutex::new(JsonGrammar::new(tokenizer)?)) })
    }

    /// A constraint to one JSON value, after which only tokens that end the text may come.
    pub fn value(&self) -> Constraint {
        self.from(JsonGrammar::start)
    }

    /// A constraint to one JSON object.
    pub fn object(&self) -> Constraint {
        self.from(JsonGrammar::start_object)
    }

    fn from(&self, start: fn(&JsonGrammar) -> JsonState) -> Constraint {
        let state = start(&self.grammar.lock().unwrap_or_else(PoisonError::into_inner));
        Constraint::new(JsonMask { grammar: self.grammar.clone(), state: Position::Value(state) })
    }

    /// A constraint to one value that follows a JSON schema.
    pub fn schema(&self, schema: &str) -> Result<Constraint, Error> {
        Ok(self.of_schema(JsonSchema::parse(schema)?))
    }

    /// [`JsonConstraints::schema`] of a schema that is read.
    pub fn of_schema(&self, schema: JsonSchema) -> Constraint {
        let grammar = self.grammar.lock().unwrap_or_else(PoisonError::into_inner);
        let state = Position::Schema(grammar.start_schema(Arc::new(schema)));
        Constraint::new(JsonMask { grammar: self.grammar.clone(), state })
    }
}

/// A position in a JSON text.
#[derive(Clone, Debug)]
enum Position {
    Value(JsonState),
    Schema(SchemaState),
}

/// A request's position in a JSON text.
#[derive(Clone)]
struct JsonMask {
    grammar: Arc<Mutex<JsonGrammar>>,
    state: Position,
}

impl fmt::Debug for JsonMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JsonMask").field(&self.state).finish()
    }
}

impl TokenMask for JsonMask {
    fn allowed(&mut self) -> Arc<[u64]> {
        // Masks that are kept are whole, whatever a thread did that panicked.
        let mut grammar = self.grammar.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.state {
            Position::Value(state) => grammar.mask(state),
            Position::Schema(state) => grammar.schema_mask(state),
        }
    }

    fn accept(&mut self, token: i64) -> Result<(), Error> {
        let grammar = self.grammar.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown = || olivine_tokenizer::Error::Grammar { problem: format!("{token} is no token") };
        let id = u32::try_from(token).map_err(|_| unknown())?;
        match &mut self.state {
            Position::Value(state) => grammar.accept(state, id)?,
            Position::Schema(state) => grammar.schema_accept(state, id)?,
        }
        Ok(())
    }

    fn duplicate(&self) -> Box<dyn TokenMask> {
        Box::new(self.clone())
    }
}
