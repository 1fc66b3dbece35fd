//! Models broken in many ways: as bytes, and as fields of messages whose lengths still fit.

/// SplitMix64.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below another; 0 below 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next() % n as u64) as usize }
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// No message is taken apart deeper than this.
const DEEPEST: usize = 24;

/// No broken model is larger.
const LARGEST: usize = 1 << 16;

/// A field of a message.
#[derive(Clone)]
struct Field {
    number: u64,
    value: Value,
}

#[derive(Clone)]
enum Value {
    Varint(u64),
    Eight([u8; 8]),
    Four([u8; 4]),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

/// A model that cases start from: its bytes, and their fields.
pub(crate) struct Seed {
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

impl Seed {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Seed { fields: parse(&bytes, 0).unwrap_or_default(), bytes }
    }
}

/// One of the models, broken.
pub(crate) fn mutated(corpus: &[Seed], rng: &mut Rng) -> Vec<u8> {
    let model = &corpus[rng.below(corpus.len())];
    let mut bytes = if rng.chance(75) {
        let mut fields = model.fields.clone();
        let other = &corpus[rng.below(corpus.len())];
        let donor = if rng.chance(40) { &other.fields } else { &model.fields };
        for _ in 0..=rng.below(3) {
            edit(&mut fields, donor, rng);
        }
        let mut bytes = Vec::with_capacity(model.bytes.len() + 64);
        write(&fields, &mut bytes);
        bytes
    } else {
        model.bytes.clone()
    };
    if rng.chance(15) {
        for _ in 0..=rng.below(4) {
            damage(&mut bytes, corpus, rng);
        }
    }
    bytes.truncate(LARGEST);
    bytes
}

/// Breaks bytes without a thought to what they mean.
fn damage(bytes: &mut Vec<u8>, corpus: &[Seed], rng: &mut Rng) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.below(bytes.len());
    match rng.below(6) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.pick(&[0, 1, 0x7f, 0x80, 0xff]),
        2 => bytes.truncate(at),
        3 => {
            let end = (at + 1 + rng.below(16)).min(bytes.len());
            bytes.drain(at..end);
        }
        4 => {
            let other = &corpus[rng.below(corpus.len())].bytes;
            let from = rng.below(other.len());
            let end = (from + rng.below(64)).min(other.len());
            bytes.splice(at..at, other[from..end].iter().copied());
        }
        _ => {
            let end = (at + rng.below(64)).min(bytes.len());
            let copy = bytes[at..end].to_vec();
            bytes.splice(at..at, copy);
        }
    }
}

/// Changes one field somewhere.
fn edit(fields: &mut Vec<Field>, donor: &[Field], rng: &mut Rng) {
    let at = rng.below(fields.len());
    // Down into a message, mostly: the interesting fields are far inside.
    if rng.chance(85) {
        let inner: Vec<usize> =
            (0..fields.len()).filter(|i| matches!(fields[*i].value, Value::Message(_))).collect();
        if !inner.is_empty() {
            let chosen = rng.pick(&inner);
            let number = fields[chosen].number;
            let alike: Vec<&[Field]> = donor
                .iter()
                .filter(|f| f.number == number)
                .filter_map(
                    |f| if let Value::Message(inner) = &f.value { Some(inner.as_slice()) } else { None },
                )
                .collect();
            let donor: &[Field] = if alike.is_empty() { &[] } else { rng.pick(&alike) };
            if let Value::Message(inner) = &mut fields[chosen].value {
                edit(inner, donor, rng);
                return;
            }
        }
    }
    match rng.below(8) {
        0 if !fields.is_empty() => drop(fields.remove(at)),
        1 if !fields.is_empty() => fields.insert(at, fields[at].clone()),
        2 if !fields.is_empty() => {
            let other = rng.below(fields.len());
            fields.swap(at, other);
        }
        3 if !donor.is_empty() => {
            let field = donor[rng.below(donor.len())].clone();
            fields.insert(at, field);
        }
        4 if !donor.is_empty() && !fields.is_empty() => {
            let alike: Vec<&Field> = donor.iter().filter(|f| f.number == fields[at].number).collect();
            if !alike.is_empty() {
                fields[at] = rng.pick(&alike).clone();
            }
        }
        5 if !fields.is_empty() => {
            // Names are exchanged: what a node reads or makes is another.
            let alike: Vec<usize> =
                (0..fields.len()).filter(|i| matches!(fields[*i].value, Value::Bytes(_))).collect();
            if alike.len() > 1 {
                let (a, b) = (rng.pick(&alike), rng.pick(&alike));
                fields[a].value = fields[b].value.clone();
            }
        }
        _ => {
            if let Some(field) = fields.get_mut(at) {
                twist(&mut field.value, rng);
            }
        }
    }
}

/// Changes a value.
fn twist(value: &mut Value, rng: &mut Rng) {
    let wild =
        [0, 1, 2, 3, 4, 7, 8, 16, 255, 1 << 16, 1 << 31, 1 << 40, 1 << 62, 1 << 63, u64::MAX, u64::MAX - 1];
    match value {
        Value::Varint(v) => {
            *v = match rng.below(4) {
                0 => v.wrapping_add(1),
                1 => v.wrapping_sub(1),
                2 => rng.below(32) as u64,
                _ => rng.pick(&wild),
            }
        }
        Value::Eight(bytes) => *bytes = rng.pick(&wild).to_le_bytes(),
        Value::Four(bytes) => {
            let floats = [0.0, -0.0, 1.0, -1.0, 1e30, f32::INFINITY, f32::NAN, 0.5];
            *bytes = rng.pick(&floats).to_le_bytes();
        }
        Value::Bytes(bytes) if bytes.len() % 8 == 0 && !bytes.is_empty() && rng.chance(60) => {
            // Perhaps integers: sizes, axes, indices.
            let at = rng.below(bytes.len() / 8) * 8;
            bytes[at..at + 8].copy_from_slice(&rng.pick(&wild).to_le_bytes());
        }
        Value::Bytes(bytes) => match rng.below(4) {
            0 => bytes.clear(),
            1 => bytes.push(rng.below(128) as u8),
            2 => drop(bytes.pop()),
            _ => {
                let at = rng.below(bytes.len());
                if let Some(byte) = bytes.get_mut(at) {
                    // Mostly text still: what is no text is refused before anything else is looked at.
                    *byte = if rng.chance(80) { rng.below(128) as u8 } else { rng.next() as u8 };
                }
            }
        },
        Value::Message(fields) => fields.clear(),
    }
}

/// The fields of a message, if the bytes are one.
fn parse(bytes: &[u8], depth: usize) -> Option<Vec<Field>> {
    let mut rest = bytes;
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut rest)?),
            1 => Value::Eight(take(&mut rest, 8)?.try_into().ok()?),
            5 => Value::Four(take(&mut rest, 4)?.try_into().ok()?),
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                let inner = take(&mut rest, length)?;
                // Text may look like a message; that of ONNX's names hardly does.
                match parse(inner, depth + 1) {
                    Some(fields) if depth < DEEPEST && !fields.is_empty() => Value::Message(fields),
                    _ => Value::Bytes(inner.to_vec()),
                }
            }
            _ => return None,
        };
        if key >> 3 == 0 || key >> 3 > 64 {
            return None;
        }
        fields.push(Field { number: key >> 3, value });
    }
    Some(fields)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (part, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(part)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn write(fields: &[Field], out: &mut Vec<u8>) {
    for field in fields {
        let key = |wire: u64| field.number << 3 | wire;
        match &field.value {
            Value::Varint(v) => {
                put(out, key(0));
                put(out, *v);
            }
            Value::Eight(bytes) => {
                put(out, key(1));
                out.extend(bytes);
            }
            Value::Four(bytes) => {
                put(out, key(5));
                out.extend(bytes);
            }
            Value::Bytes(bytes) => {
                put(out, key(2));
                put(out, bytes.len() as u64);
                out.extend(bytes);
            }
            Value::Message(inner) => {
                put(out, key(2));
                put(out, written_size(inner) as u64);
                write(inner, out);
            }
        }
    }
}

/// The size of the fields as bytes.
fn written_size(fields: &[Field]) -> usize {
    let with_length = |length: usize| varint_size(length as u64) + length;
    let of = |field: &Field| {
        varint_size(field.number << 3)
            + match &field.value {
                Value::Varint(v) => varint_size(*v),
                Value::Eight(_) => 8,
                Value::Four(_) => 4,
                Value::Bytes(bytes) => with_length(bytes.len()),
                Value::Message(inner) => with_length(written_size(inner)),
            }
    };
    fields.iter().map(of).sum()
}

fn varint_size(value: u64) -> usize {
    (value | 1).ilog2() as usize / 7 + 1
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
