//! Who gets how much.

use axum::body::Body;
use http::{Method, Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use crate::process::{Example, typed};

async fn ask(method: Method, url: &str, user: Option<&str>) -> Response<()> {
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

/// How many are allowed until one is denied. At least as many as the limit says; time goes on meanwhile, and a machine
/// that is slow enough allows some more.
async fn allowed(method: Method, url: &str) -> usize {
    for count in 0..100 {
        let response = ask(method.clone(), url, None).await;
        if response.status() == 429 {
            let retry_after = response.headers().get("retry-after").unwrap().to_str().unwrap();
            assert!((1..=120).contains(&retry_after.parse::<u32>().unwrap()), "{retry_after}");
            return count;
        }
        assert_eq!(response.status(), 200);
    }
    panic!("nobody says no");
}

#[tokio::test]
async fn everybody_meets_his_tier() {
    let mut example = Example::start("axum_tiers", &["127.0.0.1:0"]);
    let url = example.says("listening on ");
    let typed = typed(&example.says("try: "));
    assert!(typed.starts_with("HTTP/1.1 200") && typed.ends_with("hello, ada\n"), "{typed}");
    let premium = ask(Method::GET, &url, Some("ada")).await;
    assert_eq!(policies(&premium), Some(r#""1000/1m";q=1000;w=60"#));
    let said = premium.headers().get("ratelimit").unwrap().to_str().unwrap();
    assert!(said.starts_with(r#""1000/1m";r=998;t="#), "{said}");

    let login = format!("{url}/login");
    let attempt = ask(Method::POST, &login, Some("bob")).await;
    assert_eq!(policies(&attempt), Some(r#""100/1m";q=100;w=60, "5/1m";q=5;w=60"#));
    assert!((4..10).contains(&allowed(Method::POST, &login).await), "five in a minute, of which one is gone");

    let seen = allowed(Method::GET, &url).await;
    assert!((4..10).contains(&seen), "those to log in have counted too: {seen}");
    assert_eq!(ask(Method::GET, &url, Some("bob")).await.status(), 200, "somebody else");
    let healthy = ask(Method::GET, &format!("{url}/healthz"), None).await;
    assert_eq!((healthy.status().as_u16(), policies(&healthy)), (200, None));
}
