//! Long-lived TLS connections: certificate rotation and an orderly close.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use slidegate_testkit::Authority;

use super::{BODY, TlsServer, curl, tls_server};

/// A TLS connection of `openssl s_client`.
struct TlsConnection(Child);

impl TlsConnection {
    fn open(server: &TlsServer) -> Self {
        let address = server.process.url().replace("https://", "");
        let mut client = Command::new("openssl");
        client.args(["s_client", "-quiet", "-connect", &address]);
        Self(client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Returns the rest of the output of openssl, with its complaints about the close.
    fn remaining_output(&mut self) -> String {
        let mut output = String::new();
        self.0.stdout.as_mut().unwrap().read_to_string(&mut output).unwrap();
        self.0.stderr.as_mut().unwrap().read_to_string(&mut output).unwrap();
        output
    }

    fn is_served(&mut self) -> bool {
        let length = BODY.len();
        let request = format!("POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{BODY}");
        self.0.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        let (mut response, mut byte) = (Vec::new(), [0]);
        while !response.ends_with(b"]}") {
            if self.0.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 0 {
                return false;
            }
            response.push(byte[0]);
        }
        response.starts_with(b"HTTP/1.1 200")
    }
}

impl Drop for TlsConnection {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_trusted(server: &TlsServer) -> bool {
    curl(server, &[]).0 == 0
}

#[test]
fn a_shutdown_sends_close_notify() {
    let mut server = tls_server("closing", false);
    let mut connection = TlsConnection::open(&server);
    assert!(connection.is_served());
    assert!(server.process.signal_and_wait("TERM").success());
    let output = connection.remaining_output();
    assert!(!output.contains("unexpected eof"), "{output}");
}

#[test]
fn a_replaced_certificate_applies_to_new_connections_only() {
    let mut server = tls_server("rotation", false);
    let mut connection = TlsConnection::open(&server);
    assert!(connection.is_served() && is_trusted(&server));
    // Replaces the same files. curl trusts only the new authority.
    server.authority = Authority::make(&server.folder);
    while !is_trusted(&server) {}
    assert!(connection.is_served(), "the open connection is not affected");

    fs::write(server.folder.join("server.key"), "no key").unwrap();
    let admin = server.process.startup_lines.iter().find_map(|line| line.strip_prefix("admin: ")).unwrap();
    let live = format!("{admin}/v1/live");
    let ca = server.authority.ca_path();
    loop {
        let live_output =
            Command::new("curl").arg("-sS").arg("--cacert").arg(&ca).arg(&live).output().unwrap();
        let live_output = String::from_utf8(live_output.stdout).unwrap();
        if live_output.contains("tls.key: ") {
            break;
        }
    }
    assert!(is_trusted(&server), "an invalid key does not replace the valid one");
}
