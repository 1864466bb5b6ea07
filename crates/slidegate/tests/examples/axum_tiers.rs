//! The tiers of the axum example.

use axum::body::Body;
use http::{Method, Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use crate::process::{Example, run_shell};

async fn send(method: Method, url: &str, user: Option<&str>) -> Response<()> {
    let mut request = Request::builder().method(method).uri(url);
    if let Some(user) = user {
        request = request.header("authorization", format!("Bearer {user}"));
    }
    let client = Client::builder(TokioExecutor::new()).build_http();
    client.request(request.body(Body::empty()).unwrap()).await.unwrap().map(drop)
}

fn policies(response: &Response<()>) -> Option<&str> {
    response.headers().get("ratelimit-policy").map(|value| value.to_str().unwrap())
}

/// Returns the number of allowed requests before the first denial. This is at least the limit; a slow machine allows
/// more because the window moves meanwhile.
async fn allowed(method: Method, url: &str) -> usize {
    for count in 0..100 {
        let response = send(method.clone(), url, None).await;
        if response.status() == 429 {
            let retry_after = response.headers().get("retry-after").unwrap().to_str().unwrap();
            assert!((1..=120).contains(&retry_after.parse::<u32>().unwrap()), "{retry_after}");
            return count;
        }
        assert_eq!(response.status(), 200);
    }
    panic!("no request was denied");
}

#[tokio::test]
async fn each_user_gets_its_tier() {
    let mut example = Example::start("axum_tiers", &["127.0.0.1:0"]);
    let url = example.read_line("listening on ");
    let output = run_shell(&example.read_line("try: "));
    assert!(output.starts_with("HTTP/1.1 200") && output.ends_with("hello, ada\n"), "{output}");
    let premium = send(Method::GET, &url, Some("ada")).await;
    assert_eq!(policies(&premium), Some(r#""1000/1m";q=1000;w=60"#));
    let ratelimit = premium.headers().get("ratelimit").unwrap().to_str().unwrap();
    assert!(ratelimit.starts_with(r#""1000/1m";r=998;t="#), "{ratelimit}");

    let login = format!("{url}/login");
    let attempt = send(Method::POST, &login, Some("bob")).await;
    assert_eq!(policies(&attempt), Some(r#""100/1m";q=100;w=60, "5/1m";q=5;w=60"#));
    assert!((4..10).contains(&allowed(Method::POST, &login).await), "5 per minute, of which 1 is spent");

    let count = allowed(Method::GET, &url).await;
    assert!((4..10).contains(&count), "the logins count too: {count}");
    assert_eq!(send(Method::GET, &url, Some("bob")).await.status(), 200, "another user");
    let healthy = send(Method::GET, &format!("{url}/healthz"), None).await;
    assert_eq!((healthy.status().as_u16(), policies(&healthy)), (200, None));
}
