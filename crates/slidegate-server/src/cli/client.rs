//! Asking a running server.

mod connect_error;
mod trust;

use std::fmt;
use std::str::FromStr;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde_json::Value;
use slidegate::{Clock, SystemClock, Verb};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use self::connect_error::told;
use self::trust::connector;
use super::Failure;
use super::certificate::ClientCertificate;
use crate::decision_json::DecisionJson;
use crate::environment;

/// How long a server may take to answer.
const PATIENCE_MS: u64 = 10_000;
/// An answer is a few kilobytes; whatever is longer was not sent by a slidegate.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Where a server listens: `http://host:port` or `https://…`, and a path if it stands behind one.
#[derive(Clone, Debug)]
pub(super) struct ServerUrl {
    is_tls: bool,
    authority: String,
    host: String,
    port: u16,
    path: String,
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url: Uri = text.parse().map_err(|error| format!("{error}; write http://HOST:PORT"))?;
        let is_tls = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err("not a server's address; write http://HOST:PORT or https://HOST:PORT".to_owned()),
        };
        let authority = url.authority().ok_or("it names no host; write http://HOST:PORT")?;
        Ok(Self {
            is_tls,
            authority: authority.to_string(),
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            path: url.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.is_tls { "https" } else { "http" }, self.authority, self.path)
    }
}

/// A server, and what to show it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server<'a> {
    pub(super) url: &'a ServerUrl,
    pub(super) certificate: &'a ClientCertificate,
}

/// Posts `request` to where the server decides by `verb`.
pub(super) async fn decide(
    server: Server<'_>,
    verb: Verb,
    request: &Value,
) -> Result<DecisionJson<'static>, Failure> {
    let path = match verb {
        Verb::Check => "/v1/check",
        Verb::Peek => "/v1/peek",
        Verb::Charge => "/v1/charge",
        Verb::Refund => "/v1/refund",
        Verb::Reset => "/v1/reset",
        Verb::Block => "/v1/block",
    };
    ask(server, Api::Decisions, Method::POST, path, request.to_string()).await
}

/// What the admin API has at `path`.
pub(super) async fn get<T: DeserializeOwned>(server: Server<'_>, path: &str) -> Result<T, Failure> {
    ask(server, Api::Admin, Method::GET, path, String::new()).await
}

/// What the admin API answers to `body` at `path`.
pub(super) async fn post<T: DeserializeOwned>(
    server: Server<'_>,
    path: &str,
    body: &Value,
) -> Result<T, Failure> {
    ask(server, Api::Admin, Method::POST, path, body.to_string()).await
}

/// Which of a server's listeners is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Api {
    Decisions,
    Admin,
}

async fn ask<T: DeserializeOwned>(
    Server { url: server, certificate }: Server<'_>,
    api: Api,
    method: Method,
    path: &str,
    body: String,
) -> Result<T, Failure> {
    let clock = SystemClock::default();
    let tls = match (server.is_tls, certificate.is_given()) {
        (true, _) => Some(connector(certificate).map_err(Failure::new)?),
        (false, false) => None,
        // Somebody thinks that it is shown, and that nobody else can read along.
        (false, true) => return Err(Failure::new(format!("--client-cert: {server} is not https://"))),
    };
    let (status, body) = tokio::select! {
        answer = send(server, tls, method, path, body) => {
            answer.map_err(|error| {
                Failure::new(format!("cannot ask {server}: {}", told(server.is_tls, &*error)))
            })?
        }
        () = clock.sleep(PATIENCE_MS) => {
            return Err(Failure::new(format!("{server} did not answer in {} s", PATIENCE_MS / 1000)));
        }
    };
    if status.is_success()
        && let Ok(answer) = serde_json::from_slice(&body)
    {
        return Ok(answer);
    }
    let what_to_do = match status {
        StatusCode::UNAUTHORIZED if token().is_none() => "; here: set SLIDEGATE_TOKEN",
        StatusCode::UNAUTHORIZED => "; here: set SLIDEGATE_TOKEN to another",
        StatusCode::NOT_FOUND if !server.path.is_empty() => "; is there a path too many in its address?",
        StatusCode::NOT_FOUND if detail(&body).contains("there is no policy") => "",
        StatusCode::NOT_FOUND | StatusCode::OK if api == Api::Admin => {
            "; is this the address of its admin API?"
        }
        StatusCode::OK => "; is this the address where it decides over HTTP?",
        _ => "",
    };
    Err(Failure::new(format!("{server} answered {status}: {}{what_to_do}", detail(&body))))
}

/// What is shown to a server. Not a flag: whoever may list processes sees those.
fn token() -> Option<String> {
    environment::text("SLIDEGATE_TOKEN")
}

type SendError = Box<dyn std::error::Error + Send + Sync>;

async fn send(
    server: &ServerUrl,
    tls: Option<TlsConnector>,
    method: Method,
    path: &str,
    body: String,
) -> Result<(StatusCode, Bytes), SendError> {
    let stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
    let mut sender = match tls {
        Some(tls) => {
            let name = ServerName::try_from(server.host.clone())?;
            begin(tls.connect(name, stream).await?).await?
        }
        None => begin(stream).await?,
    };
    let mut builder = Request::builder()
        .method(method)
        .uri(format!("{}{path}", server.path))
        .header(HOST, &server.authority)
        .header(CONTENT_TYPE, "application/json");
    if let Some(token) = token() {
        builder = builder.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let response = sender.send_request(builder.body(Full::new(Bytes::from(body)))?).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await?;
    Ok((status, body.to_bytes()))
}

async fn begin<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: I,
) -> Result<SendRequest<Full<Bytes>>, SendError> {
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // What goes wrong with the connection is what the request fails with.
    tokio::spawn(connection);
    Ok(sender)
}

/// What a problem says, or that it is none.
fn detail(body: &[u8]) -> String {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    match (problem["field"].as_str(), problem["detail"].as_str()) {
        (Some(field), Some(detail)) => format!("{field}: {detail}"),
        (None, Some(detail)) => detail.to_owned(),
        _ => "not an answer of slidegate".to_owned(),
    }
}
