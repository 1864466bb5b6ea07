//! limitador over HTTP. Its own server is not published as a crate, so this program assembles the library as that
//! server does: in-memory limiter, actix-web, the same bodies, bindings, Prometheus counters, API description and
//! routes. The routes that the benchmark does not request exist because the router has to match past them.

use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

use actix_web::http::StatusCode;
use actix_web::{App, HttpServer, ResponseError};
use limitador::RateLimiter;
use limitador::limit::{Context, Limit};
use metrics::{counter, histogram};
use metrics_exporter_prometheus::PrometheusBuilder;
use paperclip::actix::{Apiv2Schema, OpenApiExt, api_v2_errors, api_v2_operation, web};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

const KEYS: u64 = 200_000;

#[derive(serde::Deserialize, Apiv2Schema)]
struct CheckRequest {
    namespace: String,
    values: HashMap<String, String>,
    delta: u64,
}

#[api_v2_errors(429, 500)]
#[derive(Debug)]
enum CheckError {
    Limited,
    Failed,
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limited => "too many requests",
            Self::Failed => "internal server error",
        })
    }
}

impl ResponseError for CheckError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::Limited => StatusCode::TOO_MANY_REQUESTS,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

#[api_v2_operation]
async fn check_and_report(
    limiter: web::Data<RateLimiter>,
    request: web::Json<CheckRequest>,
) -> Result<web::Json<()>, CheckError> {
    let CheckRequest { namespace, values, delta } = request.into_inner();
    let mut context = Context::default();
    context.list_binding("descriptors".to_owned(), vec![values]);
    let labels = [("limitador_namespace".to_owned(), namespace.clone())];
    match limiter.check_rate_limited_and_update(&namespace.into(), &context, delta) {
        Ok(checked) if checked.limited => {
            counter!("limited_calls", &labels).increment(1);
            Err(CheckError::Limited)
        }
        Ok(_) => {
            counter!("authorized_calls", &labels).increment(1);
            counter!("authorized_hits", &labels).increment(delta);
            Ok(web::Json(()))
        }
        Err(_) => Err(CheckError::Failed),
    }
}

#[api_v2_operation]
async fn status() -> web::Json<()> {
    web::Json(())
}

#[api_v2_operation]
async fn namespace_status(_: web::Path<String>) -> web::Json<()> {
    web::Json(())
}

/// Times store spans as limitador's server does: a layer receives every span and records those of the configured names.
/// The log layer shows only errors.
struct SpanTimer(HashMap<&'static str, ()>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanTimer {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: LayerContext<'_, S>) {
        if let Some(span) = context.span(id)
            && self.0.contains_key(span.name())
        {
            span.extensions_mut().insert(Instant::now());
        }
    }

    fn on_close(&self, id: Id, context: LayerContext<'_, S>) {
        if let Some(span) = context.span(&id)
            && let Some(since) = span.extensions().get::<Instant>()
        {
            histogram!("datastore_latency").record(since.elapsed().as_secs_f64());
        }
    }
}

#[actix_web::main]
async fn main() -> std::io::Result<()> {
    PrometheusBuilder::new().install_recorder().expect("the only recorder");
    let log = tracing_subscriber::fmt::layer().with_filter(LevelFilter::ERROR);
    tracing_subscriber::registry().with(SpanTimer(HashMap::from([("datastore", ())]))).with(log).init();
    let limiter = RateLimiter::new(KEYS);
    let key = "descriptors[0].key".try_into().expect("an expression");
    limiter.add_limit(Limit::new("api", 1000, 60, vec![], vec![key]));
    let limiter = web::Data::new(limiter);
    let routes = move || {
        App::new()
            .wrap_api()
            .with_json_spec_at("/api/spec")
            .app_data(limiter.clone())
            .route("/status", web::get().to(status))
            .route("/metrics", web::get().to(status))
            .route("/limits/{namespace}", web::get().to(namespace_status))
            .route("/counters/{namespace}", web::get().to(namespace_status))
            .route("/check_and_report", web::post().to(check_and_report))
            .build()
    };
    let server = HttpServer::new(routes).bind(("127.0.0.1", 0))?;
    println!("limitador at http://{}", server.addrs()[0]);
    server.run().await
}
