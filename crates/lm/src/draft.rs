//! Drafts of the next tokens by what followed the same tokens before, which one run verifies.

/// Last tokens that are looked for, the longest first.
const LONGEST: usize = 4;
const SHORTEST: usize = 2;

/// Up to `most` tokens that followed the latest earlier place with the same last tokens; none if there is no such place.
pub(crate) fn draft(tokens: &[i64], most: usize) -> &[i64] {
    for length in (SHORTEST..=LONGEST.min(tokens.len().saturating_sub(1))).rev() {
        let (before, last) = tokens.split_at(tokens.len() - length);
        // The last tokens themselves are no earlier place, but one that overlaps them is.
        let found = (0..before.len()).rev().find(|at| &tokens[*at..at + length] == last);
        if let Some(at) = found {
            let next = at + length;
            return &tokens[next..(next + most).min(tokens.len())];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_follow_the_latest_longest_match() {
        assert!(draft(&[], 3).is_empty());
        assert!(draft(&[1], 3).is_empty());
        assert!(draft(&[1, 2, 3], 3).is_empty());
        assert_eq!(draft(&[1, 2, 9, 8, 1, 2], 3), [9, 8, 1]);
        assert_eq!(draft(&[1, 2, 9, 1, 2, 7, 1, 2], 1), [7]);
        // Three tokens say more than two.
        assert_eq!(draft(&[5, 1, 2, 9, 6, 1, 2, 7, 5, 1, 2], 2), [9, 6]);
        // A run of the same token goes on.
        assert_eq!(draft(&[4, 4, 4], 2), [4]);
        assert!(draft(&[1, 2, 1, 2], 0).is_empty());
    }
}
