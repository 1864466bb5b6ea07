//! Wildcards in descriptor values.

/// Returns whether `text` matches a pattern in which each `*` stands for any text, the empty text included.
///
/// Each part matches at its first occurrence after the previous part. There is no backtracking, so the cost is linear in
/// the length of both.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let Some((prefix, rest)) = pattern.split_once('*') else { return pattern == text };
    let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
    // The prefix and the suffix must not overlap.
    let inner = text.strip_prefix(prefix).and_then(|text| text.strip_suffix(suffix));
    let Some(mut inner) = inner else { return false };
    for part in middle.split('*') {
        let Some((_, after)) = inner.split_once(part) else { return false };
        inner = after;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_star_stands_for_any_text() {
        for (pattern, text, expected) in [
            ("a*", "a", true),
            ("a*", "ab", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("*a", "ab", false),
            ("*", "", true),
            ("a*b", "ab", true),
            ("a*b", "axxb", true),
            ("a*b", "abx", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("ab*ba", "aba", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*b*c", "abxbc", true),
            ("a**b", "ab", true),
            ("*b*", "abc", true),
            ("*b*", "ac", false),
            ("a*ä*c", "aääc", true),
            ("a", "a", true),
            ("a", "ab", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} against {text}");
        }
    }

    /// Reference implementation, which tries every split in exponential time.
    fn matches_by_definition(pattern: &str, text: &str) -> bool {
        match pattern.chars().next() {
            None => text.is_empty(),
            Some('*') => (0..=text.len()).any(|end| matches_by_definition(&pattern[1..], &text[end..])),
            Some(first) => text.starts_with(first) && matches_by_definition(&pattern[1..], &text[1..]),
        }
    }

    #[test]
    fn short_patterns_match_as_defined() {
        let words = |letters: &[char], max_length: usize| {
            let mut words = vec![String::new()];
            let mut index = 0;
            while words[index].len() < max_length {
                words.extend(
                    letters.iter().map(|letter| format!("{}{letter}", words[index])).collect::<Vec<_>>(),
                );
                index += 1;
            }
            words
        };
        let texts = words(&['a', 'b'], 5);
        for pattern in words(&['a', 'b', '*'], 5) {
            for text in &texts {
                assert_eq!(
                    matches(&pattern, text),
                    matches_by_definition(&pattern, text),
                    "{pattern} against {text}"
                );
            }
        }
    }
}
