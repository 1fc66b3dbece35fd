//! Regular expressions of pre-tokenizers, matched in time linear in the text whatever the text is.
//!
//! ```text
//!   pattern ── parse ── Node ── compile ── Program ── Matcher::find ── leftmost match, first alternative first
//! ```
//!
//! Supported: alternation, groups, classes with nested sets and intersections, `\p{..}`, greedy, lazy and possessive quantifiers,
//! `\b`, anchors, `(?i:..)`, and lookaheads of bounded length. Lookbehinds, backreferences and unbounded lookaheads are errors.

mod compile;
mod parse;
mod run;
mod set;

pub(crate) use compile::Program;
pub(crate) use run::Matcher;

use crate::Error;

impl Program {
    /// Compiles a pattern.
    pub(crate) fn new(pattern: &str) -> Result<Program, Error> {
        let wrong = |problem: String| Error::Pattern { pattern: crate::error::shortened(pattern), problem };
        let node = parse::parse(pattern).map_err(wrong)?;
        compile::compile(&node).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pattern: &str, text: &str) -> Vec<String> {
        let program = Program::new(pattern).unwrap();
        let mut matcher = Matcher::new(&program, text);
        let mut found = Vec::new();
        let mut at = 0;
        while let Some((start, end)) = matcher.find(at) {
            found.push(text[start..end].to_string());
            at = if end > start { end } else { end + 1 };
        }
        found
    }

    #[test]
    fn a_search_that_takes_too_long_is_given_up() {
        let program = Program::new("(?:a?){1000}(?:a?){1000}b").unwrap();
        let text = "a".repeat(1 << 16);
        let mut matcher = Matcher::new(&program, &text);
        assert_eq!(matcher.find(0), None);
        assert!(matcher.gave_up());
        let mut matcher = Matcher::new(&program, "aab");
        assert_eq!(matcher.find(0), Some((0, 3)));
        assert!(!matcher.gave_up());
    }

    #[test]
    fn the_first_alternative_wins() {
        assert_eq!(all("a|ab", "ab"), ["a"]);
        assert_eq!(all("(?:ab|a)c?", "abac"), ["ab", "ac"]);
        assert_eq!(all("a+?b", "aab"), ["aab"]);
    }

    #[test]
    fn quantifiers_backtrack_unless_possessive() {
        assert_eq!(all("a+a", "aaa"), ["aaa"]);
        assert_eq!(all("a++a", "aaa"), Vec::<String>::new());
        assert_eq!(all(r"\d{2,3}", "1234567"), ["123", "456"]);
        assert_eq!(all("(?:ab){2}", "ababab"), ["abab"]);
        assert_eq!(all("x(?:ab)*", "xababa"), ["xabab"]);
    }

    #[test]
    fn lookaheads_see_one_character_on() {
        assert_eq!(all(r"\s+(?!\S)|\s+", "a   b  "), ["  ", " ", "  "]);
        assert_eq!(all("a(?=b)", "acab"), ["a"]);
    }

    #[test]
    fn classes_have_categories_ranges_and_intersections() {
        assert_eq!(all(r"[\p{L}\p{M}&&[^\p{Han}]]+", "aé字b"), ["aé", "b"]);
        assert_eq!(all(r"[^\s\p{L}\p{N}]+", "a!?9 …"), ["!?", "…"]);
        assert_eq!(all(r"(?i:'s|'ll)", "'S 'lL 'ſ"), ["'S", "'lL", "'ſ"]);
        assert_eq!(all(r"[!-/:-@]+", "a+b--"), ["+", "--"]);
    }

    #[test]
    fn hostile_text_takes_linear_time() {
        let spaces = " ".repeat(1 << 20) + "x";
        assert_eq!(all(r"\s+$", &spaces).len(), 0);
        assert_eq!(all(r"(?:a|a)*b|(?:a*c)*d|(?:aa?)+e", &"a".repeat(1 << 18)).len(), 0);
        assert_eq!(all(r"\s*[\r\n]+|\s+(?!\S)|\s+", &spaces).len(), 2);
    }

    #[test]
    fn what_is_not_supported_is_an_error() {
        for pattern in [
            "(",
            "a)",
            "[a",
            "a{2",
            "*a",
            r"\p{Nope}",
            "(?<=a)b",
            r"(a)\1",
            "(?=a*)",
            "(?:a*)*",
            "(?:ab){1000}{1000}",
            "(?>a|b)",
        ] {
            assert!(Program::new(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn hostile_patterns_are_refused_or_compiled_with_bounded_work() {
        let begun = std::time::Instant::now();
        let often = |part: &str, count: usize| part.repeat(count);
        // What is empty has no steps, however often it repeats.
        assert_eq!(all("(){1000}{1000}{1000}{1000}a", "ba"), ["a"]);
        assert_eq!(all("((((){1000}){1000}){1000}b{0}){1000}a", "ba"), ["a"]);
        let wide: String = (0..9000u32).filter_map(|i| char::from_u32(0x4E00 + i)).collect();
        for pattern in [
            "(){1000}{1000}{1000}{1000}{1000}".to_string(),
            format!("a{}", often("{1}", 100_000)),
            format!("a{}", often("{1}", 20_000)),
            format!("a{}", often("?", 60_000)),
            format!("[{}a]", often("a&&", 20_000)),
            format!("[a{}]", often("&&b", 100)),
            format!("{}a", often("()", 40_000)),
            format!("(?:{}a){{1000}}", often("()", 20_000)),
            format!("(?:[{wide}]a){{1000}}"),
            format!("(?:(?=[{wide}])a){{1000}}"),
            format!("(?:(?={}b)a){{1000}}", often("a|", 1000)),
            format!("(?i:[{}])", often("a-\u{150}", 10_000)),
            often("(?:", 20_000),
            often("[", 60_000),
            "a".repeat(1 << 17),
        ] {
            assert!(Program::new(&pattern).is_err(), "{}", crate::error::shortened(&pattern));
        }
        // A matter of milliseconds each, not of minutes.
        assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    }
}
