//! What a template may build: texts and lists are counted before they are made.
//!
//! Counted are the operands of `~`, `+`, `*` and slices (operands.rs), what filters and methods make of their arguments, and what is
//! written, also where it is captured. Text between tags counts as steps.

use std::cell::Cell;
use std::fmt::Write;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::operands::{TEXT, VALUE};

/// Bytes of all texts and lists that one rendering makes. The longest chats need a tenth of it.
pub(super) const MOST_BYTES: usize = 256 << 20;
/// Bytes that a value other than text may take where it is joined to text.
const LONGEST_VALUE: usize = 4 << 20;
/// Bytes of an element of a list.
const ELEMENT: usize = 32;

thread_local! {
    /// What the rendering of this thread has made.
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// Begins a rendering.
pub(super) fn begin() {
    MADE.set(0);
}

/// Counts what is about to be made.
pub(super) fn count(bytes: usize) -> Result<(), Error> {
    let made = MADE.get().saturating_add(bytes);
    MADE.set(made);
    match made > MOST_BYTES {
        true => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("the template makes more than {} MiB of text and lists", MOST_BYTES >> 20),
        )),
        false => Ok(()),
    }
}

/// Counts bytes, up to a limit.
struct Counter {
    bytes: usize,
    limit: usize,
}

impl Write for Counter {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.bytes += text.len();
        if self.bytes > self.limit { Err(std::fmt::Error) } else { Ok(()) }
    }
}

/// Bytes of a value as text.
fn written(value: &Value) -> Result<usize, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.len());
    }
    let mut counter = Counter { bytes: 0, limit: LONGEST_VALUE };
    match write!(counter, "{value}") {
        Ok(()) => Ok(counter.bytes),
        Err(_) => Err(Error::new(ErrorKind::InvalidOperation, "a value is too long to write")),
    }
}

/// Bytes of a value's text, or of a list's elements.
fn size(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0).saturating_mul(ELEMENT),
    }
}

/// An argument as a number; 0 if it is none.
fn number(value: Option<&Value>) -> usize {
    value.and_then(|value| usize::try_from(value.clone()).ok()).unwrap_or(0)
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

/// An argument by its place, or by its name among those at the end.
fn argument(args: &[Value], place: usize, name: &str) -> Option<Value> {
    let last = args.last().filter(|last| last.is_kwargs());
    let named = last.and_then(|last| last.get_attr(name).ok()).filter(|value| !value.is_undefined());
    named.or_else(|| args.get(place).filter(|value| !value.is_kwargs()).cloned())
}

/// The widths that a format may ask for.
fn widths(format: &str, args: &[Value]) -> usize {
    let digits = format.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty());
    let fixed = digits.map(|run| run.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add);
    // `%*d` and `{:{}}` take a width of the arguments.
    let nested = format.contains('*') || format.matches('{').count() > format.matches('}').count() / 2 + 1;
    let given = || args.iter().map(|value| number(Some(value))).fold(0, usize::saturating_add);
    fixed.saturating_add(if nested || format.contains(":{") || format.contains(".{") { given() } else { 0 })
}

/// Elements of what is joined or added up, or attributes of them, with the bytes of all.
fn elements(value: &Value, attribute: Option<&Value>) -> Result<(usize, usize), Error> {
    if let Some(text) = value.as_str() {
        return Ok((text.len(), text.len()));
    }
    let (mut number, mut bytes) = (0usize, 0usize);
    for element in value.try_iter()? {
        number += 1;
        let path = text(attribute).split('.').filter(|part| !part.is_empty());
        let part = path.fold(element, |value, part| value.get_attr(part).unwrap_or_default());
        bytes = bytes.saturating_add(written(&part)?);
        if bytes > MOST_BYTES || number > MOST_BYTES / ELEMENT {
            break;
        }
    }
    Ok((number, bytes))
}

/// What a filter or a method makes of a value and its arguments, in bytes.
fn makes(name: &str, value: &Value, args: &[Value]) -> Result<usize, Error> {
    let own = size(value);
    Ok(match name {
        "join" => {
            let (list, joiner) = match (value.as_str(), args.first()) {
                // `", ".join(list)` of Python.
                (Some(_), Some(list)) if list.as_str().is_none() && !list.is_kwargs() => (list, own),
                _ => (value, argument(args, 0, "d").map_or(0, |joiner| size(&joiner))),
            };
            let (number, bytes) = elements(list, argument(args, 1, "attribute").as_ref())?;
            bytes.saturating_add(number.saturating_mul(joiner))
        }
        "sum" => {
            let (number, bytes) = elements(value, argument(args, 0, "attribute").as_ref())?;
            // Texts are added one by one, and each sum is a copy.
            let texts = value.try_iter()?.any(|element| !element.is_number());
            if texts { number.saturating_mul(bytes) } else { bytes }
        }
        "replace" => {
            let (from, to) = (text(args.first()), text(args.get(1)));
            let matches = if from.is_empty() { own + 1 } else { text(Some(value)).matches(from).count() };
            own.saturating_add(matches.saturating_mul(to.len()))
        }
        "indent" => {
            let lines = text(Some(value)).matches('\n').count() + 1;
            let width = argument(args, 0, "width").map_or(4, |width| number(Some(&width)));
            own.saturating_add(lines.saturating_mul(width))
        }
        "format" => {
            let given: usize = args.iter().map(written).sum::<Result<usize, Error>>()?;
            let places = text(Some(value)).matches(['%', '{']).count();
            let repeated = places.saturating_mul(args.iter().map(size).max().unwrap_or(0));
            own.saturating_add(given).saturating_add(repeated).saturating_add(widths(text(Some(value)), args))
        }
        "split" | "splitlines" | "lines" => {
            let separator = text(args.first());
            let pieces = match separator.is_empty() {
                true => {
                    text(Some(value)).split_whitespace().count().max(text(Some(value)).matches('\n').count())
                }
                false => text(Some(value)).matches(separator).count(),
            };
            own.saturating_add((pieces + 1).saturating_mul(2 * ELEMENT))
        }
        "list" | "sort" | "unique" | "reverse" if value.as_str().is_some() => own.saturating_mul(2 * ELEMENT),
        "batch" | "slice" => own.saturating_add(number(args.first()).saturating_mul(2 * ELEMENT)),
        "escape" | "e" => own.saturating_mul(6),
        "upper" | "lower" | "title" | "capitalize" => own.saturating_mul(3),
        "pprint" => {
            let mut counter = Counter { bytes: 0, limit: LONGEST_VALUE };
            let wrote = write!(counter, "{value:#?}");
            wrote.map_err(|_| Error::new(ErrorKind::InvalidOperation, "a value is too long to write"))?;
            counter.bytes
        }
        _ => own,
    })
}

/// A filter that counts what it makes.
fn add(environment: &mut Environment<'static>, name: &'static str, filter: Value) {
    environment.add_filter(name, move |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        let mut all = vec![value];
        all.extend(args.into_values());
        count(makes(name, &all[0], &all[1..])?)?;
        filter.call(state, &all)
    });
}

/// Counts what operands, filters and methods make.
pub(super) fn install(environment: &mut Environment<'static>) {
    let times = |times: Option<usize>| times.unwrap_or(0).saturating_add(1);
    environment.add_filter(TEXT, move |value: Value, chain: Option<usize>| -> Result<Value, Error> {
        let chain = if value.as_str().is_some() { times(chain) } else { 1 };
        count(written(&value)?.saturating_mul(chain))?;
        Ok(value)
    });
    environment.add_filter(VALUE, move |value: Value, chain: Option<usize>| -> Result<Value, Error> {
        if !value.is_number() {
            count(size(&value).saturating_mul(times(chain)))?;
        }
        Ok(value)
    });
    for (name, filter) in [
        ("upper", Value::from_function(filters::upper)),
        ("lower", Value::from_function(filters::lower)),
        ("title", Value::from_function(filters::title)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("replace", Value::from_function(filters::replace)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("items", Value::from_function(filters::items)),
        ("reverse", Value::from_function(filters::reverse)),
        ("trim", Value::from_function(filters::trim)),
        ("join", Value::from_function(filters::join)),
        ("split", Value::from_function(filters::split)),
        ("lines", Value::from_function(filters::lines)),
        ("sort", Value::from_function(filters::sort)),
        ("list", Value::from_function(filters::list)),
        ("batch", Value::from_function(filters::batch)),
        ("slice", Value::from_function(filters::slice)),
        ("sum", Value::from_function(filters::sum)),
        ("indent", Value::from_function(filters::indent)),
        ("unique", Value::from_function(filters::unique)),
        ("pprint", Value::from_function(filters::pprint)),
        ("format", Value::from_function(filters::format)),
        ("escape", Value::from_function(filters::escape)),
        ("e", Value::from_function(filters::escape)),
    ] {
        add(environment, name, filter);
    }
    environment.set_unknown_method_callback(|state, value, method, args| {
        if matches!(value.kind(), ValueKind::String) {
            count(makes(method, value, args)?)?;
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
    });
}
