//! What a schema says of an object, and texts in order that are found byte by byte.

use std::ops::Range;

use super::NodeId;

/// A property of an object.
#[derive(Debug)]
pub(crate) struct Property {
    /// Its name as JSON, with quotes.
    pub(crate) key: Box<[u8]>,
    pub(crate) value: NodeId,
    pub(crate) required: bool,
}

/// An object.
#[derive(Debug)]
pub(crate) struct Object {
    properties: Vec<Property>,
    /// The numbers of the properties in the order of their keys.
    sorted: Vec<usize>,
    /// For each property the first from it on that is required, and for none the number of all.
    required: Vec<usize>,
    /// Other properties, if there may be some.
    pub(crate) others: Option<NodeId>,
}

impl Object {
    pub(crate) fn new(properties: Vec<Property>, others: Option<NodeId>) -> Self {
        let count = properties.len();
        let mut sorted: Vec<usize> = (0..count).collect();
        sorted.sort_unstable_by(|a, b| properties[*a].key.cmp(&properties[*b].key));
        let mut required = vec![count; count + 1];
        for (i, property) in properties.iter().enumerate().rev() {
            required[i] = if property.required { i } else { required[i + 1] };
        }
        Object { properties, sorted, required, others }
    }

    /// How many properties there are.
    pub(crate) fn len(&self) -> usize {
        self.properties.len()
    }

    pub(crate) fn property(&self, number: usize) -> &Property {
        &self.properties[number]
    }

    /// Whether no property from this on is required.
    pub(crate) fn may_end(&self, next: usize) -> bool {
        self.required[next] == self.len()
    }

    /// Whether a property may come next: from this on, up to the first that is required.
    pub(crate) fn may_come(&self, next: usize, number: usize) -> bool {
        (next..=self.required[next]).contains(&number)
    }

    /// Of places in the order of keys that have the first `at` bytes in common, those with `byte` next.
    pub(crate) fn narrowed(&self, places: Range<usize>, at: usize, byte: u8) -> Range<usize> {
        narrowed(places, at, byte, |place| &self.properties[self.sorted[place]].key)
    }

    /// The number of the property at a place in the order of keys.
    pub(crate) fn at_place(&self, place: usize) -> usize {
        self.sorted[place]
    }

    /// Whether a property has this key, which is JSON.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.sorted.binary_search_by(|number| (*self.properties[*number].key).cmp(key)).is_ok()
    }
}

/// Of texts in order that have the first `at` bytes in common, those with `byte` next.
pub(super) fn narrowed<'a>(
    range: Range<usize>,
    at: usize,
    byte: u8,
    text: impl Fn(usize) -> &'a [u8],
) -> Range<usize> {
    let first = |limit: u16| {
        let (mut low, mut high) = (range.start, range.end);
        while low < high {
            let middle = low + (high - low) / 2;
            match text(middle).get(at).is_none_or(|byte| u16::from(*byte) < limit) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    };
    first(byte.into())..first(u16::from(byte) + 1)
}
