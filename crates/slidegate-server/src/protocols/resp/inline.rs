//! Words of a line, with quotes as at a shell: `"` with escapes, `'` without but for `\'`.

/// A quote is not closed, or something follows it at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unbalanced;

/// Puts the words of `line`, without quotes, one behind the other, and where each of them is.
pub(super) fn split(
    line: &[u8],
    copied: &mut Vec<u8>,
    places: &mut Vec<(u32, u32)>,
) -> Result<(), Unbalanced> {
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let from = copied.len();
        rest = word(rest, copied)?.trim_ascii_start();
        places.push((from as u32, copied.len() as u32));
    }
    Ok(())
}

/// Copies the first word; what follows it.
fn word<'a>(mut rest: &'a [u8], copied: &mut Vec<u8>) -> Result<&'a [u8], Unbalanced> {
    while let Some((first, behind)) = rest.split_first() {
        match first {
            b'"' | b'\'' => {
                rest = quoted(*first, behind, copied)?;
                return match rest.first() {
                    Some(next) if !next.is_ascii_whitespace() => Err(Unbalanced),
                    _ => Ok(rest),
                };
            }
            space if space.is_ascii_whitespace() => return Ok(rest),
            other => {
                copied.push(*other);
                rest = behind;
            }
        }
    }
    Ok(rest)
}

/// Copies up to the closing quote; what follows it.
fn quoted<'a>(quote: u8, mut rest: &'a [u8], copied: &mut Vec<u8>) -> Result<&'a [u8], Unbalanced> {
    loop {
        let (byte, behind) = match rest {
            [] => return Err(Unbalanced),
            [first, behind @ ..] if *first == quote => return Ok(behind),
            [b'\\', b'\'', behind @ ..] if quote == b'\'' => (b'\'', behind),
            [b'\\', b'x', high, low, behind @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (digit(*high) << 4 | digit(*low), behind)
            }
            [b'\\', escaped, behind @ ..] if quote == b'"' => (unescaped(*escaped), behind),
            [other, behind @ ..] => (*other, behind),
        };
        copied.push(byte);
        rest = behind;
    }
}

fn digit(hex: u8) -> u8 {
    char::from(hex).to_digit(16).map_or(0, |digit| digit as u8)
}

fn unescaped(byte: u8) -> u8 {
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

    fn words(line: &str) -> Result<Vec<Vec<u8>>, Unbalanced> {
        let (mut copied, mut places) = (Vec::new(), Vec::new());
        split(line.as_bytes(), &mut copied, &mut places)?;
        Ok(places.iter().map(|(from, to)| copied[*from as usize..*to as usize].to_vec()).collect())
    }

    #[test]
    fn quotes_are_those_of_a_shell() {
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
            assert_eq!(words(line), Err(Unbalanced), "{line}");
        }
    }
}
