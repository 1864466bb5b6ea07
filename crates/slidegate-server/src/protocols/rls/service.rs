//! The service over gRPC.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use metrics::counter;
use slidegate::Store;
use tonic::codegen::async_trait;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::HealthServer;
use tracing::debug;

use super::body_timeout::{Brief, Patient};
use super::health::AppHealth;
use super::proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use super::proto::{DESCRIPTORS, RateLimitRequest, RateLimitResponse};
use crate::app::App;
use crate::protocols::http::Task;
use crate::request::{Rejection, RejectionKind};
use crate::stopwatch::Stopwatch;
use crate::traces;

/// The largest message that is read, as with gRPC for Go. Envoy's have some hundred bytes, but whoever sends it large
/// headers makes them larger, and Envoy lets through what is refused here.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// The same for health and reflection, where the name of a service or of a file is all there is to say.
const MAX_NAME_MESSAGE_BYTES: usize = 4 << 10;

/// The routes over `app`: the rate limit service, health and reflection. The body of a request is waited for as long as
/// `patience` lasts.
pub(crate) fn router<S: Store + 'static>(app: Arc<App<S>>, patience: Duration) -> Result<Router, String> {
    let health =
        HealthServer::new(AppHealth(Arc::clone(&app))).max_decoding_message_size(MAX_NAME_MESSAGE_BYTES);
    let rls = RateLimitServiceServer::new(Rls { app }).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Both versions, because clients ask for one or the other.
    let v1 = reflection().build_v1().map_err(|error| error.to_string())?;
    let v1alpha = reflection().build_v1alpha().map_err(|error| error.to_string())?;
    let v1 = v1.max_decoding_message_size(MAX_NAME_MESSAGE_BYTES);
    let v1alpha = v1alpha.max_decoding_message_size(MAX_NAME_MESSAGE_BYTES);
    let routes = Routes::new(Patient::new(rls, patience))
        .add_service(Patient::new(health, patience))
        .add_service(Brief::new(v1, patience))
        .add_service(Brief::new(v1alpha, patience));
    Ok(routes.prepare().into_axum_router())
}

/// The rate limit service.
pub(super) struct Rls<S> {
    app: Arc<App<S>>,
}

#[async_trait]
impl<S: Store + 'static> RateLimitService for Rls<S> {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let whole = Stopwatch::start();
        let headers = request.metadata().as_ref();
        let admit = |verb| self.app.tokens().admit(headers, verb).map_err(|rejection| refused(&rejection));
        super::verbs(request.get_ref()).try_for_each(admit)?;
        let span = traces::request_span("ShouldRateLimit", headers);
        let decided = traces::in_span(span, super::decide(&self.app, request.get_ref())).await;
        Task::ShouldRateLimit.record(whole);
        decided.map(Response::new).map_err(|rejection| refused(&rejection))
    }
}

/// Never a code UNKNOWN in an answer: Envoy lets that through even where it shall deny on failure.
fn refused(rejection: &Rejection) -> Status {
    debug!(kind = ?rejection.kind, %rejection, "refused");
    counter!("slidegate_refusals_total", "reason" => rejection.kind.name()).increment(1);
    match rejection.kind {
        RejectionKind::Unauthorized => Status::unauthenticated(rejection.to_string()),
        RejectionKind::Forbidden => Status::permission_denied(rejection.to_string()),
        RejectionKind::Busy | RejectionKind::StoreUnavailable { .. } => {
            Status::unavailable(rejection.to_string())
        }
        _ => Status::invalid_argument(rejection.to_string()),
    }
}
