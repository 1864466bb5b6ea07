//! Splitting of inline commands into words, with the quoting rules of Redis.

/// Error for a quote that is not closed, or that is followed by another character than a space.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnbalancedQuotes;

/// Appends the words of `line` to `unquoted`, and the start and end of each to `ranges`.
pub(super) fn split(
    line: &[u8],
    unquoted: &mut Vec<u8>,
    ranges: &mut Vec<(u32, u32)>,
) -> Result<(), UnbalancedQuotes> {
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let start = unquoted.len();
        rest = unquote_word(rest, unquoted)?.trim_ascii_start();
        ranges.push((start as u32, unquoted.len() as u32));
    }
    Ok(())
}

/// Appends the first word to `unquoted`, and returns the bytes after it.
fn unquote_word<'a>(mut rest: &'a [u8], unquoted: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    while let Some((first, after)) = rest.split_first() {
        match first {
            b'"' | b'\'' => {
                rest = unquote(*first, after, unquoted)?;
                return match rest.first() {
                    Some(next) if !next.is_ascii_whitespace() => Err(UnbalancedQuotes),
                    _ => Ok(rest),
                };
            }
            space if space.is_ascii_whitespace() => return Ok(rest),
            other => {
                unquoted.push(*other);
                rest = after;
            }
        }
    }
    Ok(rest)
}

/// Appends the bytes up to the closing quote, and returns the bytes after it. Double quotes allow all escapes, single quotes
/// only `\'`.
fn unquote<'a>(quote: u8, mut rest: &'a [u8], unquoted: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        let (byte, after) = match rest {
            [] => return Err(UnbalancedQuotes),
            [first, after @ ..] if *first == quote => return Ok(after),
            [b'\\', b'\'', after @ ..] if quote == b'\'' => (b'\'', after),
            [b'\\', b'x', high, low, after @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (digit(*high) << 4 | digit(*low), after)
            }
            [b'\\', escaped, after @ ..] if quote == b'"' => (unescape(*escaped), after),
            [other, after @ ..] => (*other, after),
        };
        unquoted.push(byte);
        rest = after;
    }
}

fn digit(hex: u8) -> u8 {
    char::from(hex).to_digit(16).map_or(0, |digit| digit as u8)
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Vec<Vec<u8>>, UnbalancedQuotes> {
        let (mut unquoted, mut ranges) = (Vec::new(), Vec::new());
        split(line.as_bytes(), &mut unquoted, &mut ranges)?;
        Ok(ranges.iter().map(|(start, end)| unquoted[*start as usize..*end as usize].to_vec()).collect())
    }

    #[test]
    fn quotes_and_escapes_are_resolved() {
        let cases: [(&str, &[&[u8]]); 6] = [
            ("  a  b\t", &[b"a", b"b"]),
            (r#""a b" 'c d' """#, &[b"a b", b"c d", b""]),
            (r#""\x41\xff\n\"\\" 'it\'s \n'"#, &[b"A\xff\n\"\\", b"it's \\n"]),
            (r#""\xzz""#, &[b"xzz"]),
            (r#"a"b c""#, &[b"ab c"]),
            ("", &[]),
        ];
        for (line, expected) in cases {
            assert_eq!(words(line).unwrap(), expected, "{line}");
        }
        for line in [r#""a"#, "'a", r#""a"b"#, r#""a\"#, r"'a\'"] {
            assert_eq!(words(line), Err(UnbalancedQuotes), "{line}");
        }
    }
}
