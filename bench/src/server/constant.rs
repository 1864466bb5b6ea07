//! axum handler that reads the same JSON and returns a constant.

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;

/// Serves the handler until the process is killed.
pub(crate) fn constant() {
    const RESPONSE: &str = r#"{"allowed":true,"policy":"api","limit":1000,"remaining":999,"reset_after_ms":60000,"retry_after_ms":null,"violated":[],"source":"store","quotas":[{"name":"1000/1m","limit":1000,"window_ms":60000,"used":1,"remaining":999,"reset_after_ms":60000,"retry_after_ms":null}]}"#;
    #[derive(serde::Deserialize)]
    #[expect(dead_code, reason = "only deserialized")]
    struct Request {
        policy: String,
        key: String,
        cost: u64,
    }
    let handler = async |body: Bytes| {
        let request: Request = serde_json::from_slice(&body).expect("the JSON of wrk");
        std::hint::black_box(&request);
        ([("content-type", "application/json")], RESPONSE)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("constant at http://{}", listener.local_addr().expect("the listener is bound"));
        let app: Router = Router::new().route("/v1/check", post(handler));
        axum::serve(axum::serve::ListenerExt::tap_io(listener, |io| drop(io.set_nodelay(true))), app)
            .await
            .expect("the server runs");
    });
}
