//! Connections over TLS that stay: when certificates are changed, and to their end.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use slidegate_testkit::Authority;

use super::{BODY, Secure, curl, secure};

/// A connection that stays open.
struct Talk(Child);

impl Talk {
    fn begin(secure: &Secure) -> Self {
        let address = secure.server.url().replace("https://", "");
        let mut client = Command::new("openssl");
        client.args(["s_client", "-quiet", "-connect", &address]);
        Self(client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// What is complained about once the other side has closed the connection.
    fn last_words(&mut self) -> String {
        let mut words = String::new();
        self.0.stdout.as_mut().unwrap().read_to_string(&mut words).unwrap();
        self.0.stderr.as_mut().unwrap().read_to_string(&mut words).unwrap();
        words
    }

    fn is_answered(&mut self) -> bool {
        let length = BODY.len();
        let said = format!("POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{BODY}");
        self.0.stdin.as_mut().unwrap().write_all(said.as_bytes()).unwrap();
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"]}") {
            if self.0.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 0 {
                return false;
            }
            answer.push(byte[0]);
        }
        answer.starts_with(b"HTTP/1.1 200")
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_trusted(secure: &Secure) -> bool {
    curl(secure, &[]).0 == 0
}

#[test]
fn a_connection_is_closed_so_that_it_can_be_told_from_one_that_broke() {
    let mut secure = secure("closing", false);
    let mut talk = Talk::begin(&secure);
    assert!(talk.is_answered());
    assert!(secure.server.signal_and_wait("TERM").success());
    let words = talk.last_words();
    assert!(!words.contains("unexpected eof"), "{words}");
}

#[test]
fn a_new_certificate_is_shown_to_whoever_comes_and_others_go_on() {
    let mut secure = secure("rotation", false);
    let mut talk = Talk::begin(&secure);
    assert!(talk.is_answered() && is_trusted(&secure));
    // Into the same files; whoever asks trusts the new authority alone.
    secure.authority = Authority::make(&secure.folder);
    while !is_trusted(&secure) {}
    assert!(talk.is_answered(), "a connection goes on");

    fs::write(secure.folder.join("server.key"), "no key").unwrap();
    let admin = secure.server.startup_lines.iter().find_map(|line| line.strip_prefix("admin: ")).unwrap();
    let live = format!("{admin}/v1/live");
    let ca = secure.authority.ca_path();
    loop {
        let said = Command::new("curl").arg("-sS").arg("--cacert").arg(&ca).arg(&live).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        if said.contains("tls.key: ") {
            break;
        }
    }
    assert!(is_trusted(&secure), "what is of no use changes nothing");
}
