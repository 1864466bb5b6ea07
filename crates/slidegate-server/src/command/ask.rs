//! Asking a running server.

use std::str::FromStr;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use slidegate::{Clock, SystemClock, Verb};
use tokio::net::TcpStream;

use super::Failure;
use crate::answer::Answer;

/// How long a server may take to answer.
const PATIENCE_MS: u64 = 10_000;
/// An answer is a few kilobytes; whatever is longer was not sent by a slidegate.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Where a server listens: `http://host:port`, and a path if it stands behind one.
#[derive(Clone, Debug)]
pub(super) struct ServerUrl {
    authority: String,
    /// Host and port to connect to.
    address: String,
    path: String,
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url: Uri = text.parse().map_err(|error| format!("{error}; write http://HOST:PORT"))?;
        match (url.scheme_str(), url.authority()) {
            (Some("http"), Some(authority)) => Ok(Self {
                authority: authority.to_string(),
                address: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)),
                path: url.path().trim_end_matches('/').to_owned(),
            }),
            (Some("https"), _) => Err("https is not spoken yet; write http://HOST:PORT".to_owned()),
            _ => Err("not a server's address; write http://HOST:PORT".to_owned()),
        }
    }
}

/// Posts `request` to where the server decides by `verb`.
pub(super) async fn decide(
    server: &ServerUrl,
    verb: Verb,
    request: &Value,
) -> Result<Answer<'static>, Failure> {
    let clock = SystemClock::default();
    let (status, body) = tokio::select! {
        answer = post(server, verb, request) => answer.map_err(|error| {
            Failure::new(format!("cannot ask http://{}: {error}", server.authority))
        })?,
        () = clock.sleep(PATIENCE_MS) => {
            let seconds = PATIENCE_MS / 1000;
            return Err(Failure::new(format!("http://{} did not answer in {seconds} s", server.authority)));
        }
    };
    if status == StatusCode::OK
        && let Ok(answer) = serde_json::from_slice(&body)
    {
        return Ok(answer);
    }
    Err(Failure::new(format!("http://{} answered {status}: {}", server.authority, detail(&body))))
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn post(server: &ServerUrl, verb: Verb, request: &Value) -> Result<(StatusCode, Bytes), AnyError> {
    let stream = TcpStream::connect(&server.address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let path = match verb {
        Verb::Check => "check",
        Verb::Peek => "peek",
        Verb::Refund => "refund",
        Verb::Reset => "reset",
    };
    let mut builder = Request::post(format!("{}/v1/{path}", server.path))
        .header(HOST, &server.authority)
        .header(CONTENT_TYPE, "application/json");
    // Not a flag: whoever may list processes sees those.
    if let Ok(token) = std::env::var("SLIDEGATE_TOKEN") {
        builder = builder.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = builder.body(Full::new(Bytes::from(request.to_string())))?;
    // What goes wrong with the connection is what the request fails with.
    tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await?;
    Ok((status, body.to_bytes()))
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
