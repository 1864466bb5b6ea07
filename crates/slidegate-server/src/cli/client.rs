//! HTTP client for a running server.

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

use self::connect_error::describe;
use self::trust::connector;
use super::Failure;
use super::certificate::ClientCertificate;
use crate::environment;
use crate::protocols::http::DecisionJson;

/// Timeout of a request.
const TIMEOUT_MS: u64 = 10_000;
/// Maximum length of a response body. Those of slidegate are much shorter.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// URL of a server: `http://host:port` or `https://host:port`, with a path prefix if a proxy adds one.
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
            _ => {
                return Err("not the URL of a server; write http://HOST:PORT or https://HOST:PORT".to_owned());
            }
        };
        let authority = url.authority().ok_or("no host; write http://HOST:PORT")?;
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

/// URL of a server, and the client certificate for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server<'a> {
    pub(super) url: &'a ServerUrl,
    pub(super) certificate: &'a ClientCertificate,
}

/// Posts `request` to the path of `verb` and returns the decision.
pub(super) async fn decide(
    server: Server<'_>,
    verb: Verb,
    request: &Value,
) -> Result<DecisionJson<'static>, Failure> {
    let path = format!("/v1/{verb}");
    send_json(server, Api::Decisions, Method::POST, &path, request.to_string()).await
}

/// Gets `path` from the admin API.
pub(super) async fn get<T: DeserializeOwned>(server: Server<'_>, path: &str) -> Result<T, Failure> {
    send_json(server, Api::Admin, Method::GET, path, String::new()).await
}

/// Posts `body` to `path` of the admin API.
pub(super) async fn post<T: DeserializeOwned>(
    server: Server<'_>,
    path: &str,
    body: &Value,
) -> Result<T, Failure> {
    send_json(server, Api::Admin, Method::POST, path, body.to_string()).await
}

/// API of a server, for hints in error messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Api {
    Decisions,
    Admin,
}

/// Sends a request and parses the response. The error of an unsuccessful response has a hint.
async fn send_json<T: DeserializeOwned>(
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
        // Without TLS the certificate has no effect, and the request is not encrypted.
        (false, true) => return Err(Failure::new(format!("--client-cert: {server} is not https://"))),
    };
    let (status, body) = tokio::select! {
        response = send(server, tls, method, path, body) => {
            response.map_err(|error| {
                Failure::new(format!("request to {server} failed: {}", describe(server.is_tls, &*error)))
            })?
        }
        () = clock.sleep(TIMEOUT_MS) => {
            return Err(Failure::new(format!("no response from {server} within {} s", TIMEOUT_MS / 1000)));
        }
    };
    if status.is_success()
        && let Ok(response) = serde_json::from_slice(&body)
    {
        return Ok(response);
    }
    let hint = match status {
        StatusCode::UNAUTHORIZED if token().is_none() => "; set SLIDEGATE_TOKEN",
        StatusCode::UNAUTHORIZED => "; set SLIDEGATE_TOKEN to another token",
        StatusCode::NOT_FOUND if !server.path.is_empty() => "; check the path of the URL",
        StatusCode::NOT_FOUND if problem_detail(&body).contains("there is no policy") => "",
        StatusCode::NOT_FOUND | StatusCode::OK if api == Api::Admin => "; is this the URL of the admin API?",
        StatusCode::OK => "; is this the URL of the HTTP listener?",
        _ => "",
    };
    Err(Failure::new(format!("{server} returned {status}: {}{hint}", problem_detail(&body))))
}

/// Returns the token for the server. It is not a flag, because other users can see the flags of a process.
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
            handshake(tls.connect(name, stream).await?).await?
        }
        None => handshake(stream).await?,
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
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await?;
    Ok((status, body.to_bytes()))
}

/// Starts HTTP/1 on a stream.
async fn handshake<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: I,
) -> Result<SendRequest<Full<Bytes>>, SendError> {
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // An error of the connection fails the request, too.
    tokio::spawn(connection);
    Ok(sender)
}

/// Returns the detail of a problem document.
fn problem_detail(body: &[u8]) -> String {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    match (problem["field"].as_str(), problem["detail"].as_str()) {
        (Some(field), Some(detail)) => format!("{field}: {detail}"),
        (None, Some(detail)) => detail.to_owned(),
        _ => "not a response of slidegate".to_owned(),
    }
}
