//! Stop strings in text that comes in pieces.

/// Finds the first stop string, and holds back text that may be the beginning of one.
#[derive(Debug, Default)]
pub(crate) struct StopStrings {
    stops: Vec<String>,
    held: String,
}

impl StopStrings {
    pub(crate) fn new(stops: Vec<String>) -> Self {
        StopStrings {
            stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(),
            held: String::new(),
        }
    }

    /// The text that can be shown with another piece, and whether a stop string ends it.
    pub(crate) fn push(&mut self, piece: &str) -> (String, bool) {
        if self.stops.is_empty() {
            return (piece.to_string(), false);
        }
        self.held.push_str(piece);
        // Of several, the one that is complete first; of those that end together, the longest.
        let found = self.stops.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start))
        });
        if let Some((_, start)) = found.min() {
            self.held.truncate(start);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back, where no stop string came of it.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of a text with which a stop string begins.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    let fits = |n: &usize| {
        text.is_char_boundary(text.len() - n)
            && stop.as_bytes().starts_with(&text.as_bytes()[text.len() - n..])
    };
    (1..=longest).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text shown for pieces, and whether it was stopped.
    fn shown(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut scanner = StopStrings::new(stops.iter().map(|stop| stop.to_string()).collect());
        let mut text = String::new();
        for piece in pieces {
            let (more, stopped) = scanner.push(piece);
            text += &more;
            assert!(!stops.iter().any(|stop| !stop.is_empty() && text.contains(stop)), "{text:?}");
            if stopped {
                return (text, true);
            }
        }
        text += &scanner.finish();
        (text, false)
    }

    /// A text cut into pieces of every size.
    fn cuts(text: &str) -> Vec<Vec<String>> {
        let chars: Vec<char> = text.chars().collect();
        (1..=chars.len().max(1))
            .map(|n| chars.chunks(n).map(|part| part.iter().collect()).collect())
            .collect()
    }

    #[test]
    fn however_text_is_cut_it_ends_before_the_first_stop_string() {
        let cases: [(&[&str], &str, &str, bool); 9] = [
            (&["END"], "a END b", "a ", true),
            (&["END"], "a EN", "a EN", false),
            (&["aab"], "aaaab", "aa", true),
            (&["\n\n", "User:"], "x\nUser: y", "x\n", true),
            (&["é!"], "caféé!é", "café", true),
            (&["abc", "b"], "abc", "a", true),
            (&["bc", "abcd"], "abcd", "a", true),
            (&[""], "all of it", "all of it", false),
            (&["x"], "", "", false),
        ];
        for (stops, text, want, stopped) in cases {
            for pieces in cuts(text) {
                let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                assert_eq!(shown(stops, &pieces), (want.to_string(), stopped), "{stops:?} in {pieces:?}");
            }
        }
    }

    #[test]
    fn text_is_held_back_only_while_it_may_become_a_stop_string() {
        let mut scanner = StopStrings::new(vec!["stop".into()]);
        assert_eq!(scanner.push("abst"), ("ab".into(), false));
        assert_eq!(scanner.push("a"), ("sta".into(), false));
        assert_eq!(scanner.push("s"), (String::new(), false));
        assert_eq!(scanner.finish(), "s");
    }
}
