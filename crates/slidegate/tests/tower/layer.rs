//! Guarantees of the layer, without a network.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use slidegate::resilience::{Mode, PolicySwitch, Switch};
use slidegate::store::{Operation, Responses, StoreLayer, StoreLimiter};
use slidegate::tower::{HeaderStyle, Key, Limited, MissingKey, NotAllowed, RateLimitLayer, Tier, Undecided};
use slidegate::{Decision, FallbackReason, Limiter, ManualClock, Policy, Source, StoreError, Verb};
use tower::Layer;

use crate::services::{Manual, get, header, limiter, over, send};

fn policy(quotas: &[&str]) -> Policy {
    Policy::parse("api", quotas.iter().copied()).unwrap()
}

fn by_path(quotas: &[&str]) -> RateLimitLayer<Manual> {
    RateLimitLayer::over(limiter().0, policy(quotas)).key(Key::path())
}

#[tokio::test]
async fn allows_and_denies_with_headers_and_a_problem() {
    let service = over(by_path(&["2/1m fixed-window", "10/1h fixed-window"]));
    let first = send(&service, get("/a")).await;
    assert_eq!((first.status(), first.body().as_str()), (StatusCode::OK, "served"));
    assert_eq!(header(&first, "ratelimit-policy"), Some(r#""2/1m";q=2;w=60, "10/1h";q=10;w=3600"#));
    assert_eq!(header(&first, "ratelimit"), Some(r#""2/1m";r=1;t=60, "10/1h";r=9;t=3600"#));
    assert_eq!(header(&first, "retry-after"), None);
    send(&service, get("/a")).await;
    let denied = send(&service, get("/a")).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&denied, "retry-after"), Some("60"));
    assert_eq!(header(&denied, "ratelimit"), Some(r#""2/1m";r=0;t=60, "10/1h";r=8;t=3600"#));
    assert_eq!(header(&denied, "content-type"), Some("application/problem+json"));
    let problem: Value = serde_json::from_str(denied.body()).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&problem["status"], &problem["violated-policies"]), (&json!(429), &json!(["2/1m"])));
    assert_eq!(send(&service, get("/b")).await.status(), StatusCode::OK, "another key");
    let limited = denied.extensions().get::<Limited>().unwrap();
    assert!(!limited.decision.is_allowed() && limited.decision.source() == Source::Store);
}

/// An independent parser of structured fields reads the headers.
#[tokio::test]
async fn lists_of_any_names_and_layers_parse_back() {
    let hostile = "quote \"hi\" \\ größe, x;q=1";
    let policy = Policy::with_names("api", [(hostile, "3/1500ms".parse().unwrap())]).unwrap();
    let inner = over(RateLimitLayer::over(limiter().0, policy).key(Key::path()));
    let outer = by_path(&["281474976710656/366d", "5/1s"]).layer(inner);
    let response = send(&outer, get("/")).await;
    for (name, parameters) in [("ratelimit-policy", ["q", "w"]), ("ratelimit", ["r", "t"])] {
        let list: sfv::List = sfv::Parser::new(header(&response, name).unwrap()).parse().unwrap();
        assert_eq!(list.len(), 3, "{name}");
        for entry in &list {
            let sfv::ListEntry::Item(item) = entry else { panic!("{entry:?}") };
            assert!(item.bare_item.as_string().is_some());
            assert_eq!(item.params.keys().map(|key| key.as_str()).collect::<Vec<_>>(), parameters);
            assert!(item.params.values().all(|value| value.as_integer().is_some()));
        }
    }
}

#[tokio::test]
async fn legacy_header_styles_report_the_tightest_quota() {
    let quotas = ["2/1m fixed-window", "10/1h fixed-window"];
    let service = over(by_path(&quotas).headers(HeaderStyle::LegacyEpoch));
    let response = send(&service, get("/a")).await;
    let legacy = |response: &Response<String>| {
        ["limit", "remaining", "reset"]
            .map(|part| header(response, &format!("x-ratelimit-{part}")).map(str::to_owned).unwrap())
    };
    assert_eq!(legacy(&response), ["2", "1", "1800000060"]);
    let service = over(by_path(&quotas).headers(HeaderStyle::LegacyDelta));
    assert_eq!(legacy(&send(&service, get("/a")).await), ["2", "1", "60"]);
    assert_eq!(header(&response, "ratelimit"), None);
    let service = over(by_path(&["1/1m fixed-window"]).headers(HeaderStyle::None));
    send(&service, get("/a")).await;
    let denied = send(&service, get("/a")).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(denied.headers().keys().all(|name| name == CONTENT_TYPE), "{:?}", denied.headers());
}

#[tokio::test]
async fn several_layers_share_one_header_list() {
    let inner = over(by_path(&["5/1m fixed-window"]));
    let outer = by_path(&["3/1s fixed-window"]).layer(inner);
    let response = send(&outer, get("/a")).await;
    assert_eq!(header(&response, "ratelimit-policy"), Some(r#""3/1s";q=3;w=1, "5/1m";q=5;w=60"#));
    assert_eq!(header(&response, "ratelimit"), Some(r#""3/1s";r=2;t=1, "5/1m";r=4;t=60"#));
    assert_eq!(response.headers().get_all("ratelimit").iter().count(), 1);

    // The service's own entries stay, and empty lines do not break the list.
    let service = tower::service_fn(async |_: Request<()>| {
        let lines = [r#""theirs";r=7;t=1"#, "", " "];
        let response =
            lines.iter().fold(Response::builder(), |response, line| response.header("ratelimit", *line));
        Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).unwrap())
    });
    let response = send(&by_path(&["3/1s fixed-window"]).layer(service), get("/a")).await;
    assert_eq!(header(&response, "ratelimit"), Some(r#""3/1s";r=2;t=1, "theirs";r=7;t=1"#));

    let legacy = |quota| by_path(&[quota]).headers(HeaderStyle::LegacyDelta);
    let tighter_inside = legacy("9/1s fixed-window").layer(over(legacy("2/1m fixed-window")));
    assert_eq!(header(&send(&tighter_inside, get("/a")).await, "x-ratelimit-limit"), Some("2"));
    let tighter_outside = legacy("2/1m fixed-window").layer(over(legacy("9/1s fixed-window")));
    assert_eq!(header(&send(&tighter_outside, get("/a")).await, "x-ratelimit-limit"), Some("2"));
}

#[tokio::test]
async fn the_retry_time_covers_all_layers() {
    let inner = || over(by_path(&["1/10s fixed-window"]));
    for (outer, expected) in [
        // The second request uses up the outer limit, whose window is longer.
        (by_path(&["2/1m fixed-window"]), "60"),
        (by_path(&["2/1m fixed-window"]).headers(HeaderStyle::LegacyDelta), "60"),
        (by_path(&["2/1m fixed-window", "2/1h fixed-window"]), "3600"),
        (by_path(&["2/1s fixed-window"]), "10"),
        (by_path(&["3/1m fixed-window"]), "10"),
    ] {
        let service = outer.layer(inner());
        let first = send(&service, get("/a")).await;
        assert_eq!((first.status(), header(&first, "retry-after")), (StatusCode::OK, None));
        let denied = send(&service, get("/a")).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(&denied, "retry-after"), Some(expected));
    }
}

#[tokio::test]
async fn a_grpc_client_gets_a_status() {
    let service = over(by_path(&["1/1m fixed-window"]));
    let request =
        || Request::post("/service/Method").header(CONTENT_TYPE, "application/grpc+proto").body(()).unwrap();
    send(&service, request()).await;
    let denied = send(&service, request()).await;
    assert_eq!((denied.status(), header(&denied, "grpc-status")), (StatusCode::OK, Some("8")));
    assert_eq!(header(&denied, "retry-after"), Some("60"));
    assert_eq!(header(&denied, "content-type"), Some("application/grpc+proto"));
    assert!(denied.body().is_empty());
}

#[tokio::test]
async fn a_missing_key_follows_the_layers_rule() {
    let layer = |missing| {
        let key = Key::header(HeaderName::from_static("x-api-key"));
        over(by_path(&["1/1m fixed-window"]).key(key).missing_key(missing))
    };
    let rejected = send(&layer(MissingKey::Rejected), get("/")).await;
    assert_eq!((rejected.status(), header(&rejected, "ratelimit")), (StatusCode::BAD_REQUEST, None));
    let shared = layer(MissingKey::Shared);
    assert_eq!(send(&shared, get("/")).await.status(), StatusCode::OK);
    assert_eq!(send(&shared, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    let passed = layer(MissingKey::Passed);
    for _ in 0..3 {
        let response = send(&passed, get("/")).await;
        assert_eq!((response.status(), header(&response, "ratelimit")), (StatusCode::OK, None));
    }
}

#[tokio::test]
async fn tier_cost_and_skip_depend_on_the_request() {
    let tier = |quota| Tier::new(Policy::parse(quota, [quota]).unwrap());
    let (anonymous, known) = (tier("2/1m fixed-window"), tier("100/1m fixed-window"));
    let layer = RateLimitLayer::choosing(limiter().0, move |request| {
        let is_known = request.headers.contains_key("x-user");
        Some(if is_known { known.clone() } else { anonymous.clone() })
    })
    .key(Key::method())
    .cost(|request| if request.uri.path() == "/heavy" { 2 } else { 1 })
    .skip(|request| request.uri.path() == "/healthz");
    let service = over(layer);
    assert_eq!(send(&service, get("/heavy")).await.status(), StatusCode::OK);
    assert_eq!(send(&service, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    let healthy = send(&service, get("/healthz")).await;
    assert_eq!((healthy.status(), header(&healthy, "ratelimit")), (StatusCode::OK, None));
    let known = Request::get("/").header("x-user", "1").body(()).unwrap();
    assert_eq!(header(&send(&service, known).await, "ratelimit"), Some(r#""100/1m";r=99;t=60"#));
}

/// The layer of a limiter: its policy, its tiers, with and without the fast path of a memory store.
#[tokio::test]
async fn a_limiter_brings_its_policy_and_its_tiers() {
    for has_layers in [false, true] {
        let builder =
            Limiter::builder("api").quotas(["2/1m fixed-window"]).tier("known", ["100/1m fixed-window"]);
        let builder = builder.clock(ManualClock::at(1_800_000_000_000));
        let builder = if has_layers { builder.switch(PolicySwitch::default()) } else { builder };
        let limiter = builder.in_memory().unwrap();
        let layer = RateLimitLayer::new(limiter.clone())
            .key(Key::method())
            .tier(|request| request.headers.get("x-tier")?.to_str().ok())
            .skip(|request| request.path() == "/healthz");
        let service = over(layer);
        let with_tier = |tier| Request::get("/").header("x-tier", tier).body(()).unwrap();
        assert_eq!(header(&send(&service, get("/")).await, "ratelimit"), Some(r#""2/1m";r=1;t=60"#));
        let known = send(&service, with_tier("known")).await;
        assert_eq!(header(&known, "ratelimit"), Some(r#""100/1m";r=98;t=60"#), "the key keeps its count");
        assert_eq!(send(&service, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(limiter.peek_now("GET").unwrap().quotas()[0].used, 2, "the layer counts by the limiter");
        let healthy = Request::get("/healthz").header("x-tier", "known").body(()).unwrap();
        assert_eq!(header(&send(&service, healthy).await, "ratelimit"), None);

        let unknown = send(&service, with_tier("gold")).await;
        assert_eq!(unknown.status(), StatusCode::SERVICE_UNAVAILABLE);
        let error = unknown.extensions().get::<Undecided>().unwrap().0.to_string();
        assert_eq!(error, "the policy \"api\" has no tier \"gold\"; known: known");
        assert!(!unknown.body().contains("gold"), "the client gets no details");
    }
}

#[tokio::test]
async fn failures_are_refunded_or_the_only_ones_that_count() {
    let is_server_error = |response: &http::response::Parts| response.status.is_server_error();
    let service = over(by_path(&["2/1m fixed-window"]).key(Key::method()).refund_if(is_server_error));
    for _ in 0..5 {
        let response = send(&service, get("/500")).await;
        assert_eq!(header(&response, "ratelimit"), Some(r#""2/1m";r=2;t=0"#), "refunded");
    }
    send(&service, get("/")).await;
    send(&service, get("/404")).await;
    assert_eq!(send(&service, get("/500")).await.status(), StatusCode::TOO_MANY_REQUESTS);

    let has_failed = |response: &http::response::Parts| response.status == StatusCode::UNAUTHORIZED;
    let service = over(by_path(&["2/1m fixed-window"]).key(Key::method()).count_only_if(has_failed));
    for _ in 0..5 {
        assert_eq!(send(&service, get("/")).await.status(), StatusCode::OK);
    }
    for left in [1, 0] {
        let failed = send(&service, get("/401")).await;
        assert_eq!(failed.status(), StatusCode::UNAUTHORIZED);
        assert!(header(&failed, "ratelimit").unwrap().contains(&format!("r={left};")));
        assert_eq!(header(&failed, "retry-after"), None);
    }
    assert_eq!(send(&service, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS, "too many failures");
}

#[tokio::test]
async fn a_cost_can_be_set_after_the_response() {
    let layer = |cost: u64| by_path(&["10/1m fixed-window"]).cost(|_| 2).cost_after(move |_| cost);
    for (cost, left) in [(0, 10), (1, 9), (2, 8), (7, 3), (10, 0), (99, 0)] {
        let response = send(&over(layer(cost)), get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        let ratelimit = header(&response, "ratelimit").unwrap();
        assert!(ratelimit.contains(&format!("r={left};")), "{cost}: {ratelimit}");
        assert_eq!(header(&response, "retry-after"), None, "{cost}");
    }
}

#[tokio::test]
async fn responses_to_requests_that_are_not_allowed_are_customizable() {
    let layer = by_path(&["1/1m fixed-window"]).when_not_allowed(|reason, request| {
        let NotAllowed::Denied { decision, .. } = reason else { panic!("{reason:?}") };
        let text = format!("{} for {} ms", request.uri.path(), decision.retry_after_ms().unwrap());
        Response::builder().status(420).body(Bytes::from(text)).unwrap()
    });
    let service = over(layer);
    send(&service, get("/calm")).await;
    let denied = send(&service, get("/calm")).await;
    assert_eq!((denied.status().as_u16(), denied.body().as_str()), (420, "/calm for 60000 ms"));
    assert_eq!(header(&denied, "retry-after"), Some("60"));
}

/// A store that always fails.
struct FailingStore(Manual);

impl StoreLayer for FailingStore {
    type Inner = Manual;

    fn inner(&self) -> &Manual {
        &self.0
    }

    async fn apply(&self, operations: &[Operation<'_>]) -> Responses {
        let failure = |_| Err(StoreError::transient("the address of something secret"));
        operations.iter().map(failure).collect()
    }

    fn is_immediate(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_store_failure_is_not_a_denial() {
    let store = slidegate::store::MemoryStore::builder().clock(ManualClock::at(0)).build().unwrap();
    let limiter = Arc::new(StoreLimiter::new(FailingStore(store)));
    let service = over(RateLimitLayer::over(limiter, policy(&["1/1m"])).key(Key::path()));
    let failed = send(&service, get("/")).await;
    assert_eq!(
        (failed.status(), header(&failed, "retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, Some("1"))
    );
    assert_eq!(header(&failed, "ratelimit"), None);
    assert!(!failed.body().contains("secret"), "{}", failed.body());
    let Undecided(error) = failed.extensions().get().unwrap();
    assert!(error.is_transient() && error.to_string().contains("secret"), "for the log");
    let grpc = Request::post("/").header(CONTENT_TYPE, "application/grpc").body(()).unwrap();
    assert_eq!(header(&send(&service, grpc).await, "grpc-status"), Some("14"));
}

#[tokio::test]
async fn shadow_decisions_are_in_the_extensions() {
    let store = slidegate::store::MemoryStore::builder().clock(ManualClock::at(0)).build().unwrap();
    let limiter = Arc::new(StoreLimiter::new(Switch::new(store)));
    limiter.store().update("api", |switch| switch.mode = Mode::Shadow);
    let service = over(RateLimitLayer::over(limiter, policy(&["1/1m fixed-window"])).key(Key::path()));
    send(&service, get("/")).await;
    let response = send(&service, get("/")).await;
    assert_eq!((response.status(), header(&response, "retry-after")), (StatusCode::OK, None));
    let limited = response.extensions().get::<Limited>().unwrap();
    assert!(!limited.decision.shadow().unwrap().is_allowed());
}

#[tokio::test]
async fn denials_are_in_the_extensions() {
    fn entry_of(response: &Response<String>) -> Option<&Limited> {
        response.extensions().get()
    }
    let service = over(by_path(&["1/1m fixed-window"]));
    assert!(entry_of(&send(&service, get("/")).await).is_none(), "an allowed request leaves no entry");
    assert!(!entry_of(&send(&service, get("/")).await).unwrap().decision.is_allowed());
    let recording = over(by_path(&["1/1m fixed-window"]).record_all());
    let response = send(&recording, get("/")).await;
    let limited = entry_of(&response).unwrap();
    assert!(limited.decision.is_allowed() && limited.inner.is_none());
    assert_eq!(limited.tier.policy().quota_name(0), "1/1m");

    // An outer layer does not hide the denial of an inner one.
    for is_recording in [false, true] {
        let outer = by_path(&["9/1m fixed-window"]);
        let outer = if is_recording { outer.record_all() } else { outer };
        let both = outer.layer(over(by_path(&["1/1m fixed-window"])));
        send(&both, get("/")).await;
        let denied = send(&both, get("/")).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        let entry = entry_of(&denied).unwrap();
        let inner = if is_recording { entry.inner.as_deref().unwrap() } else { entry };
        assert!(!inner.decision.is_allowed());
    }
}

/// Allows all requests without counting, as a fallback does with `OnFailure::Open`.
struct OpenFallback(Manual, Arc<Mutex<Vec<Verb>>>);

impl StoreLayer for OpenFallback {
    type Inner = Manual;

    fn inner(&self) -> &Manual {
        &self.0
    }

    async fn apply(&self, operations: &[Operation<'_>]) -> Responses {
        let allow = |operation: &Operation<'_>| {
            self.1.lock().unwrap().push(operation.verb);
            Ok(Decision::allowed_by(operation.check.policy, Source::Fallback(FallbackReason::Timeout)))
        };
        operations.iter().map(allow).collect()
    }

    fn is_immediate(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn an_uncounted_request_is_not_refunded() {
    let verbs = Arc::new(Mutex::new(Vec::new()));
    let store = slidegate::store::MemoryStore::builder().clock(ManualClock::at(0)).build().unwrap();
    let limiter = Arc::new(StoreLimiter::new(OpenFallback(store, Arc::clone(&verbs))));
    let layer = RateLimitLayer::over(limiter, policy(&["1/1m"])).key(Key::path());
    let refunding = over(layer.clone().refund_if(|_| true));
    let response = send(&refunding, get("/")).await;
    assert_eq!((response.status(), header(&response, "ratelimit")), (StatusCode::OK, None));
    let limited = response.extensions().get::<Limited>().unwrap();
    assert_ne!(limited.decision.source(), Source::Store, "the store did not decide");
    send(&over(layer.cost_after(|_| 0)), get("/")).await;
    assert_eq!(*verbs.lock().unwrap(), [Verb::Check, Verb::Check]);
}
