//! The inputs of a run: a row for every sequence.

use std::sync::Arc;

use olivine::ir::{DType, Element, Tensor};

use crate::pages::Page;
use crate::{Error, Sampling, recurrent};

/// Sizes of the lists of recent tokens and of biases are multiples of this, so that few of them are compiled for.
const LIST_STEP: usize = 64;

/// A sequence's part of a run.
pub(crate) struct Row<'a> {
    /// The tokens that are new.
    pub(crate) tokens: &'a [i64],
    /// How many came before and are in the cache.
    pub(crate) before: usize,
    /// All tokens so far, for penalties.
    pub(crate) history: &'a [i64],
    pub(crate) sampling: &'a Sampling,
    /// The number of the draw.
    pub(crate) draw: u64,
    /// The pages of its cache.
    pub(crate) pages: &'a [Page],
    /// The tokens that may come next, if not all.
    pub(crate) allowed: Option<&'a Arc<[u64]>>,
}

/// The inputs by name.
pub(crate) type Inputs = Vec<(&'static str, Tensor)>;

/// Sizes of a run.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Tokens of a row; those that a row does not have are computed for nothing.
    pub(crate) width: usize,
    /// Whether a token is chosen after each token, or only after a row's last.
    pub(crate) every: bool,
    /// Pages that a sequence may have.
    pub(crate) table: usize,
    /// The slot of the first row; the others follow.
    pub(crate) slot: usize,
    /// Whether the model has states of fixed size.
    pub(crate) recurrent: bool,
    /// Whether the tokens are those that the run before chose, which are on the device.
    pub(crate) chosen: bool,
    pub(crate) vocabulary: usize,
}

/// Inputs of a run with a row for each sequence; `None` is a slot without one, whose result is not used.
pub(crate) fn inputs(rows: &[Option<Row<'_>>], sizes: Sizes) -> Result<Inputs, Error> {
    let Sizes { width, every, table, .. } = sizes;
    let batch = rows.len();
    let mut tokens = vec![0i64; batch * width];
    let mut positions = vec![0i64; batch * width];
    let (mut starts, mut lengths) = (vec![0i64; batch], vec![0i64; batch]);
    // A token without a page is dropped.
    let mut pages = vec![-1i32; batch * table];
    let picks = if every { width } else { 1 };
    let mut picked = vec![0i64; batch * picks];
    for (i, row) in rows.iter().enumerate() {
        let first = if every { 0 } else { row.as_ref().map_or(1, |row| row.tokens.len()) - 1 };
        for (at, picked) in picked[i * picks..][..picks].iter_mut().enumerate() {
            *picked = (i * width + first + at) as i64;
        }
        let Some(row) = row else { continue };
        tokens[i * width..][..row.tokens.len()].copy_from_slice(row.tokens);
        for (at, position) in positions[i * width..][..width].iter_mut().enumerate() {
            *position = (row.before + at) as i64;
        }
        starts[i] = row.before as i64;
        // Tokens that a row does not have come after those that it has, which do not see them.
        lengths[i] = (row.before + width) as i64;
        pages[i * table..][..row.pages.len()].copy_from_slice(row.pages);
    }
    let slots = || rows.iter().enumerate().map(|(i, row)| row.as_ref().map(|_| sizes.slot + i));
    let mut all = Vec::with_capacity(20);
    if sizes.recurrent {
        all.push(("slots", recurrent::slot_input(slots())?));
    }
    if !sizes.chosen {
        all.push(("tokens", Tensor::new([batch, width], tokens)?));
    }
    // Only the token after a row's last may be what the next run begins with.
    let places = slots().flat_map(|slot| std::iter::repeat_n(slot.filter(|_| !every), picks));
    all.extend([
        ("places", recurrent::slot_input(places)?),
        ("positions", Tensor::new([batch, width], positions)?),
        ("starts", column(starts)?),
        ("lengths", column(lengths)?),
        ("pages", Tensor::new([batch, table], pages)?),
        ("picked", column(picked)?),
    ]);
    let chosen: Vec<Option<&Row<'_>>> =
        rows.iter().flat_map(|row| std::iter::repeat_n(row.as_ref(), picks)).collect();
    choices(&chosen, sizes.vocabulary, &mut all)?;
    Ok(all)
}

/// How the tokens are chosen, each after a row's tokens. Lists that no row has are empty, and so are draws where all rows take the
/// likeliest token.
fn choices(rows: &[Option<&Row<'_>>], vocabulary: usize, inputs: &mut Inputs) -> Result<(), Error> {
    let none = Sampling::default();
    let recent = |row: &Row<'_>| -> usize {
        match row.sampling.penalises() {
            true => counted(row.sampling, row.history).len(),
            false => 0,
        }
    };
    let listed = |most: usize| most.next_multiple_of(LIST_STEP);
    let of_rows = || rows.iter().flatten();
    let recents = listed(of_rows().map(|row| recent(row)).max().unwrap_or(0));
    let biases = listed(of_rows().map(|row| row.sampling.bias.len()).max().unwrap_or(0));
    let count = rows.len();
    let mut recent_tokens = vec![-1i64; count * recents];
    let (mut bias_tokens, mut bias) = (vec![0i64; count * biases], vec![0f32; count * biases]);
    let drawn = if of_rows().any(|row| row.sampling.temperature != 0.0) { count } else { 0 };
    let mut draws = vec![0u32; drawn * 4];
    for (i, row) in rows.iter().enumerate() {
        let Some(row) = row else { continue };
        if row.sampling.penalises() {
            let counted = counted(row.sampling, row.history);
            recent_tokens[i * recents..][..counted.len()].copy_from_slice(counted);
        }
        for (at, (token, add)) in row.sampling.bias.iter().enumerate() {
            (bias_tokens[i * biases + at], bias[i * biases + at]) = (*token, *add);
        }
        let (seed, draw) = (row.sampling.seed, row.draw);
        if let Some(draws) = draws.get_mut(4 * i..4 * i + 4) {
            draws.copy_from_slice(&[seed as u32, (seed >> 32) as u32, draw as u32, (draw >> 32) as u32]);
        }
    }
    let samplings: Vec<&Sampling> = rows.iter().map(|row| row.map_or(&none, |row| row.sampling)).collect();
    let floats = |of: fn(&Sampling) -> f32| column(samplings.iter().map(|sampling| of(sampling)).collect());
    inputs.extend([
        ("recent", Tensor::new([count, recents], recent_tokens)?),
        ("repetition", floats(|s| s.repetition)?),
        ("frequency", floats(|s| s.frequency)?),
        ("presence", floats(|s| s.presence)?),
        ("bias_tokens", Tensor::new([count, biases], bias_tokens)?),
        ("biases", Tensor::new([count, biases], bias)?),
        ("temperature", floats(|s| s.temperature)?),
        ("top_p", floats(|s| s.top_p)?),
        ("min_p", floats(|s| s.min_p)?),
        ("top_k", column(samplings.iter().map(|sampling| sampling.top_k).collect())?),
        ("draws", Tensor::new([drawn, 4], draws)?),
        ("allowed", allowed(rows, vocabulary)?),
    ]);
    Ok(())
}

/// Whether each token may be chosen, as a mask of all rows; none where all may.
fn allowed(rows: &[Option<&Row<'_>>], vocabulary: usize) -> Result<Tensor, Error> {
    if rows.iter().flatten().all(|row| row.allowed.is_none()) {
        return Ok(Tensor::zeros(DType::Bool, [0, rows.len(), vocabulary])?);
    }
    let mut flags = vec![true; rows.len() * vocabulary];
    for (row, flags) in rows.iter().zip(flags.chunks_mut(vocabulary)) {
        let Some(words) = row.and_then(|row| row.allowed) else { continue };
        for (id, flag) in flags.iter_mut().enumerate() {
            *flag = words.get(id / 64).is_some_and(|word| word >> (id % 64) & 1 == 1);
        }
    }
    Ok(Tensor::new([1, rows.len(), vocabulary], flags)?)
}

/// The tokens that count for penalties.
fn counted<'a>(sampling: &Sampling, history: &'a [i64]) -> &'a [i64] {
    let most = if sampling.last_tokens == 0 { history.len() } else { sampling.last_tokens };
    &history[history.len().saturating_sub(most)..]
}

fn column<T: Element>(elements: Vec<T>) -> Result<Tensor, Error> {
    Ok(Tensor::new([elements.len()], elements)?)
}
