//! Metadata: keys and typed values, in the file's order.

use std::collections::HashMap;
use std::fmt;

use crate::Error;
use crate::error::shortened;

/// Lists the types once: variant, number in a file, Rust type, name.
macro_rules! values {
    ($($variant:ident $array:ident = $id:literal, $rust:ty, $name:literal;)*) => {
        /// A value of the metadata.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Value {
            $(
                #[doc = concat!("One ", $name, ".")]
                $variant($rust),
                #[doc = concat!("An array of ", $name, ".")]
                $array(Vec<$rust>),
            )*
            /// An array of arrays.
            Arrays(Vec<Value>),
        }

        impl Value {
            /// The type in words.
            pub fn type_name(&self) -> &'static str {
                match self {
                    $(
                        Value::$variant(_) => $name,
                        Value::$array(_) => concat!("array of ", $name),
                    )*
                    Value::Arrays(_) => "array of arrays",
                }
            }

            /// The number of the type of a single value in a file, or of an array's elements.
            pub(crate) fn id(&self) -> u32 {
                match self {
                    $(Value::$variant(_) | Value::$array(_) => $id,)*
                    Value::Arrays(_) => ARRAY,
                }
            }

            /// Elements of an array; `None` for a single value.
            pub fn array_len(&self) -> Option<usize> {
                match self {
                    $(
                        Value::$variant(_) => None,
                        Value::$array(elements) => Some(elements.len()),
                    )*
                    Value::Arrays(arrays) => Some(arrays.len()),
                }
            }

            /// An element of an array.
            pub fn element(&self, i: usize) -> Option<Value> {
                match self {
                    $(
                        Value::$variant(_) => None,
                        Value::$array(elements) => elements.get(i).cloned().map(Value::$variant),
                    )*
                    Value::Arrays(arrays) => arrays.get(i).cloned(),
                }
            }
        }

        /// Single values as they are, arrays by their length.
        impl fmt::Display for Value {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(
                        Value::$variant(value) => write!(f, "{value}"),
                        Value::$array(elements) => write!(f, "[{} of {}]", elements.len(), $name),
                    )*
                    Value::Arrays(arrays) => write!(f, "[{} arrays]", arrays.len()),
                }
            }
        }

        $(
            impl From<$rust> for Value {
                fn from(value: $rust) -> Value {
                    Value::$variant(value)
                }
            }

            impl From<Vec<$rust>> for Value {
                fn from(values: Vec<$rust>) -> Value {
                    Value::$array(values)
                }
            }
        )*
    };
}

/// The number of arrays in a file.
pub(crate) const ARRAY: u32 = 9;

values! {
    U8 U8s = 0, u8, "u8";
    I8 I8s = 1, i8, "i8";
    U16 U16s = 2, u16, "u16";
    I16 I16s = 3, i16, "i16";
    U32 U32s = 4, u32, "u32";
    I32 I32s = 5, i32, "i32";
    F32 F32s = 6, f32, "f32";
    Bool Bools = 7, bool, "bool";
    String Strings = 8, String, "string";
    U64 U64s = 10, u64, "u64";
    I64 I64s = 11, i64, "i64";
    F64 F64s = 12, f64, "f64";
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.to_string())
    }
}

impl Value {
    /// The number of an integer of any width that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(x) => Some(x.into()),
            Value::U16(x) => Some(x.into()),
            Value::U32(x) => Some(x.into()),
            Value::U64(x) => Some(x),
            Value::I8(x) => x.try_into().ok(),
            Value::I16(x) => x.try_into().ok(),
            Value::I32(x) => x.try_into().ok(),
            Value::I64(x) => x.try_into().ok(),
            _ => None,
        }
    }

    /// The number of a float of either width.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(x) => Some(x.into()),
            Value::F64(x) => Some(x),
            _ => None,
        }
    }
}

/// The metadata of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    places: HashMap<String, usize>,
}

impl Metadata {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.places.get(key).map(|&i| &self.entries[i].1)
    }

    /// Keys and values in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry; gives the key back if it is there already.
    pub(crate) fn insert_or_key(&mut self, key: String, value: Value) -> Option<String> {
        if self.places.contains_key(&key) {
            return Some(key);
        }
        self.places.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// A string that must be there.
    pub fn string(&self, key: &str) -> Result<&str, Error> {
        match self.get(key) {
            Some(Value::String(text)) => Ok(text),
            other => Err(missing(key, "a string", other)),
        }
    }

    /// An integer that must be there and be at least 0.
    pub fn integer(&self, key: &str) -> Result<u64, Error> {
        let value = self.get(key);
        value.and_then(Value::as_u64).ok_or_else(|| missing(key, "a number", value))
    }

    /// A float that must be there.
    pub fn float(&self, key: &str) -> Result<f64, Error> {
        let value = self.get(key);
        value.and_then(Value::as_f64).ok_or_else(|| missing(key, "a float", value))
    }
}

fn missing(key: &str, wanted: &str, found: Option<&Value>) -> Error {
    let problem = match found {
        None => format!("it is missing; {wanted} is needed"),
        Some(value) => format!("it is of type {}, not {wanted}", value.type_name()),
    };
    Error::Metadata { key: shortened(key), problem }
}
