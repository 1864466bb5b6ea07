//! Whether what a server said is HTTP, and what it may say.

use serde_json::Value;

/// How many answers there are in `said`, to what was `asked`; or what is wrong with them.
pub(super) fn judge(asked: &[u8], said: &[u8]) -> Result<usize, String> {
    if asked.starts_with(b"PRI ") {
        // What HTTP/2 says is binary, and not looked at here.
        return Ok(0);
    }
    // Only there is a length without that much behind it.
    let has_no_bodies = asked.windows(4).any(|window| window == b"HEAD");
    let (mut rest, mut count) = (said, 0);
    while !rest.is_empty() {
        let end = rest.windows(4).position(|window| window == b"\r\n\r\n").ok_or("a head without an end")?;
        let head = str::from_utf8(&rest[..end]).map_err(|error| error.to_string())?;
        rest = &rest[end + 4..];
        let answer = Head::parse(head)?;
        if answer.status == 100 {
            continue;
        }
        count += 1;
        let length = if has_no_bodies { 0 } else { answer.length };
        let body = rest.get(..length).ok_or("the answer is shorter than it says")?;
        rest = &rest[length..];
        answer.judge(body).map_err(|why| format!("{why} in {head}"))?;
    }
    Ok(count)
}

struct Head {
    status: u16,
    length: usize,
    content_type: String,
}

impl Head {
    fn parse(head: &str) -> Result<Self, String> {
        let mut lines = head.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let (version, status) = first.split_once(' ').ok_or("no status")?;
        if !["HTTP/1.0", "HTTP/1.1"].contains(&version) {
            return Err(format!("a version {version:?}"));
        }
        let status = status.split(' ').next().and_then(|status| status.parse().ok()).ok_or("no status")?;
        let mut parsed = Self { status, length: 0, content_type: String::new() };
        for line in lines {
            let (name, value) = line.split_once(": ").ok_or_else(|| format!("a line {line:?}"))?;
            match name {
                "content-length" => parsed.length = value.parse().map_err(|_| "a length that is none")?,
                "content-type" => value.clone_into(&mut parsed.content_type),
                "transfer-encoding" => return Err("pieces, although the length is known".to_owned()),
                _ => {}
            }
        }
        Ok(parsed)
    }

    fn judge(&self, body: &[u8]) -> Result<(), String> {
        let json = || serde_json::from_slice::<Value>(body).map_err(|error| format!("no JSON: {error}"));
        match self.status {
            200 if self.content_type == "application/json" && !body.is_empty() => json().map(drop),
            // What a proxy is told, and
            // what those say who read heads, before it has come to anybody else.
            204 | 400 | 414 | 431 if self.content_type.is_empty() && body.is_empty() => Ok(()),
            400..500 if self.content_type != "application/problem+json" => {
                Err("a refusal without a reason".to_owned())
            }
            400..500 if !body.is_empty() && json()?["status"] != self.status => {
                Err("two statuses".to_owned())
            }
            200 | 400..500 => Ok(()),
            status => Err(format!("status {status}")),
        }
    }
}
