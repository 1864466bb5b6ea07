//! Checks that the bytes of a server are valid HTTP with an allowed status.

use serde_json::Value;

/// Returns the number of responses in `received` to the bytes `sent`, or the first violation.
pub(super) fn check_responses(sent: &[u8], received: &[u8]) -> Result<usize, String> {
    if sent.starts_with(b"PRI ") {
        // HTTP/2 is binary and not checked here.
        return Ok(0);
    }
    // A response to HEAD has a content-length and no body.
    let is_head_request = sent.windows(4).any(|window| window == b"HEAD");
    let (mut rest, mut count) = (received, 0);
    while !rest.is_empty() {
        let end = rest.windows(4).position(|window| window == b"\r\n\r\n").ok_or("a head without its end")?;
        let head = str::from_utf8(&rest[..end]).map_err(|error| error.to_string())?;
        rest = &rest[end + 4..];
        let parsed_head = Head::parse(head)?;
        if parsed_head.status == 100 {
            continue;
        }
        count += 1;
        let length = if is_head_request { 0 } else { parsed_head.length };
        let body = rest.get(..length).ok_or("a body shorter than its content-length")?;
        rest = &rest[length..];
        parsed_head.check(body).map_err(|reason| format!("{reason} in {head}"))?;
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
                "content-length" => parsed.length = value.parse().map_err(|_| "an invalid content-length")?,
                "content-type" => value.clone_into(&mut parsed.content_type),
                "transfer-encoding" => {
                    return Err("transfer-encoding, although the length is known".to_owned());
                }
                _ => {}
            }
        }
        Ok(parsed)
    }

    fn check(&self, body: &[u8]) -> Result<(), String> {
        let json = || serde_json::from_slice::<Value>(body).map_err(|error| format!("no JSON: {error}"));
        match self.status {
            200 if self.content_type == "application/json" && !body.is_empty() => json().map(drop),
            // 204 is for proxies. The others come from hyper and the fast path before a handler runs.
            204 | 400 | 414 | 431 if self.content_type.is_empty() && body.is_empty() => Ok(()),
            400..500 if self.content_type != "application/problem+json" => {
                Err("an error without a problem document".to_owned())
            }
            400..500 if !body.is_empty() && json()?["status"] != self.status => {
                Err("different statuses in head and body".to_owned())
            }
            200 | 400..500 => Ok(()),
            status => Err(format!("status {status}")),
        }
    }
}
