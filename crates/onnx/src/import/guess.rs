//! Conditions that are taken for what they were last, while a loop is written out ahead of what is known.

use super::{Held, Walk};
use crate::proto::NodeProto;

/// Conditions guessed since guessing began, and what for; all are of graphs that were under construction then.
pub(crate) struct Guesses {
    depth: usize,
    made: Vec<(Held, bool)>,
}

impl Walk<'_> {
    /// From here on nothing is asked for, and [`Walk::guess`] answers. The answer is for [`Walk::end_guessing`].
    pub(crate) fn begin_guessing(&mut self) -> Option<Guesses> {
        let depth = self.depth();
        self.guesses.replace(Guesses { depth, made: Vec::new() })
    }

    /// Ends what began and hands out what was guessed; guessing around it goes on.
    pub(crate) fn end_guessing(&mut self, outer: Option<Guesses>) -> Vec<(Held, bool)> {
        std::mem::replace(&mut self.guesses, outer).map(|g| g.made).unwrap_or_default()
    }

    /// What a node's condition is taken for, if this is the time to guess and it is not known.
    pub(crate) fn guess(&mut self, node: &NodeProto, held: Held) -> Option<bool> {
        let depth = self.guesses.as_ref()?.depth;
        if held.frame > depth || self.is_decided(held) {
            return None;
        }
        let guess = self.remembered.get(&address(node)).copied().unwrap_or(false);
        if let Some(guesses) = &mut self.guesses {
            guesses.made.push((held, guess));
        }
        Some(guess)
    }

    /// Keeps in mind what a node's condition was.
    pub(crate) fn remember(&mut self, node: &NodeProto, value: bool) {
        self.remembered.insert(address(node), value);
    }
}

fn address(node: &NodeProto) -> usize {
    std::ptr::from_ref(node).addr()
}
