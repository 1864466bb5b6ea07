//! Certificate authority of a server.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// Certificate authority of one server, with its files.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    ca_pem: String,
}

impl Authority {
    /// Creates an authority and a certificate for `localhost` and `127.0.0.1`: `server.crt` and `server.key` in the
    /// folder, which clients can use as well. The authority's own files are `ca.crt` and `ca.key`.
    pub fn make(folder: &Path) -> Self {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        authority.distinguished_name.push(DnType::CommonName, "Slidegate test authority");
        let key = KeyPair::generate().expect("a key can be made");
        let ca_pem = authority.self_signed(&key).expect("an authority signs itself").pem();
        let ca_key_pem = key.serialize_pem();
        let issuer = Issuer::new(authority, key);

        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let server = CertificateParams::new(names).expect("the names are valid");
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = server.signed_by(&key, &issuer).expect("an authority signs");

        let write =
            |name: &str, text: &str| fs::write(folder.join(name), text).expect("the folder is writable");
        write("ca.crt", &ca_pem);
        write("ca.key", &ca_key_pem);
        write("server.crt", &certificate.pem());
        write("server.key", &key.serialize_pem());
        Self { folder: folder.to_owned(), ca_pem }
    }

    /// Path of the authority's certificate.
    pub fn ca_path(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Paths of a certificate that the authority has signed, and of its key.
    pub fn signed_paths(&self) -> [PathBuf; 2] {
        ["server.crt", "server.key"].map(|name| self.folder.join(name))
    }

    /// PEM of the authority's certificate.
    pub fn ca_pem(&self) -> &[u8] {
        self.ca_pem.as_bytes()
    }
}

/// TLS port of a server and its certificate authority.
#[derive(Debug)]
pub struct Tls {
    pub(crate) port: u16,
    authority: Authority,
}

impl Tls {
    pub(crate) fn make(folder: &Path, port: u16) -> Self {
        Self { port, authority: Authority::make(folder) }
    }

    pub(crate) fn args(&self) -> Vec<String> {
        let port = self.port.to_string();
        let pairs = [
            ("--tls-port", port.as_str()),
            ("--tls-ca-cert-file", "ca.crt"),
            ("--tls-cert-file", "server.crt"),
            ("--tls-key-file", "server.key"),
            ("--tls-auth-clients", "no"),
        ];
        pairs.iter().flat_map(|(option, value)| [(*option).to_owned(), (*value).to_owned()]).collect()
    }

    /// Options for another server with the same certificates, so that both trust each other.
    pub(crate) fn shared_args(authority: &Authority) -> Vec<String> {
        let file = |name: &str| authority.folder.join(name).display().to_string();
        let pairs = [
            ("--tls-ca-cert-file", file("ca.crt")),
            ("--tls-cert-file", file("server.crt")),
            ("--tls-key-file", file("server.key")),
        ];
        pairs.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// TLS port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// URL: `rediss://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.port)
    }

    /// Path of the authority's certificate.
    pub fn ca_path(&self) -> PathBuf {
        self.authority.ca_path()
    }

    /// Paths of a certificate that the authority has signed, and of its key.
    pub fn signed_paths(&self) -> [PathBuf; 2] {
        self.authority.signed_paths()
    }

    /// PEM of the authority's certificate.
    pub fn ca_pem(&self) -> &[u8] {
        self.authority.ca_pem()
    }
}
