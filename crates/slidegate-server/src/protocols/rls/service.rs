//! The gRPC services.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use slidegate::store::Store;
use slidegate_engine::{Engine, Rejection, RejectionKind};
use tonic::codegen::async_trait;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::HealthServer;
use tracing::Instrument;

use super::body_timeout::{ResponseTimeout, StreamTimeout};
use super::health::EngineHealth;
use super::operations::required_verbs;
use super::proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use super::proto::{DESCRIPTORS, RateLimitRequest, RateLimitResponse};
use crate::protocols::headers::credentials;
use crate::request_metrics::{Stopwatch, Task, record_rejection};
use crate::traces;

/// Maximum length of a rate limit request, the default of gRPC for Go. Messages of Envoy usually have some hundred bytes.
/// Large headers of a client can enlarge them, and Envoy allows a request whose message is rejected.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Maximum length of a health or reflection request, which contains only the name of a service or file.
const MAX_NAME_MESSAGE_BYTES: usize = 4 << 10;

/// Returns the routes of the rate limit service, health and reflection.
pub(crate) fn router<S: Store + 'static>(
    engine: Arc<Engine<S>>,
    body_timeout: Duration,
) -> Result<Router, String> {
    let health = HealthServer::new(EngineHealth(Arc::clone(&engine)))
        .max_decoding_message_size(MAX_NAME_MESSAGE_BYTES);
    let rls = RateLimitServiceServer::new(Rls { engine }).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Clients use one version or the other.
    let v1 = reflection().build_v1().map_err(|error| error.to_string())?;
    let v1alpha = reflection().build_v1alpha().map_err(|error| error.to_string())?;
    let v1 = v1.max_decoding_message_size(MAX_NAME_MESSAGE_BYTES);
    let v1alpha = v1alpha.max_decoding_message_size(MAX_NAME_MESSAGE_BYTES);
    let routes = Routes::new(ResponseTimeout::new(rls, body_timeout))
        .add_service(ResponseTimeout::new(health, body_timeout))
        .add_service(StreamTimeout::new(v1, body_timeout))
        .add_service(StreamTimeout::new(v1alpha, body_timeout));
    Ok(routes.prepare().into_axum_router())
}

/// The rate limit service.
pub(super) struct Rls<S> {
    engine: Arc<Engine<S>>,
}

#[async_trait]
impl<S: Store + 'static> RateLimitService for Rls<S> {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let stopwatch = Stopwatch::start();
        let headers = request.metadata().as_ref();
        let admit = |verb| {
            self.engine
                .tokens()
                .admit(credentials(headers), verb)
                .map_err(|rejection| rejection_status(&rejection))
        };
        required_verbs(request.get_ref()).try_for_each(admit)?;
        let span = traces::request_span("ShouldRateLimit", headers.into());
        let response = super::decide(&self.engine, request.get_ref()).instrument(span).await;
        Task::ShouldRateLimit.record(stopwatch);
        response.map(Response::new).map_err(|rejection| rejection_status(&rejection))
    }
}

/// Converts a rejection to a gRPC status. A response with the code `UNKNOWN` is no alternative: Envoy allows the request even with
/// `failure_mode_deny`.
fn rejection_status(rejection: &Rejection) -> Status {
    record_rejection(rejection);
    match rejection.kind {
        RejectionKind::Unauthorized => Status::unauthenticated(rejection.to_string()),
        RejectionKind::Forbidden => Status::permission_denied(rejection.to_string()),
        RejectionKind::Busy | RejectionKind::StoreUnavailable { .. } => {
            Status::unavailable(rejection.to_string())
        }
        _ => Status::invalid_argument(rejection.to_string()),
    }
}
