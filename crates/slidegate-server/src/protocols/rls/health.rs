//! `grpc.health.v1.Health`: `SERVING` until the service stops.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{self, Stream, StreamExt};
use slidegate::store::Store;
use slidegate_engine::Engine;
use tonic::codegen::async_trait;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::proto::rate_limit_service_server::SERVICE_NAME;

/// Service name in the health checks of envoyproxy/ratelimit.
const RATELIMIT_SERVICE: &str = "ratelimit";

/// Health of the service.
pub(super) struct EngineHealth<S>(pub(super) Arc<Engine<S>>);

impl<S: Store + 'static> EngineHealth<S> {
    fn current(&self) -> HealthCheckResponse {
        let status =
            if self.0.readiness().is_draining() { ServingStatus::NotServing } else { ServingStatus::Serving };
        HealthCheckResponse { status: status.into() }
    }

    /// Checks that the service exists.
    fn check_service(service: &str) -> Result<(), Status> {
        let services = ["", SERVICE_NAME, RATELIMIT_SERVICE];
        if services.contains(&service) { Ok(()) } else { Err(Status::not_found("unknown service")) }
    }
}

#[async_trait]
impl<S: Store + 'static> Health for EngineHealth<S> {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        Self::check_service(&request.get_ref().service)?;
        Ok(Response::new(self.current()))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Sends the current status, and `NOT_SERVING` when the service stops. Then the stream ends, so that it does not delay the
    /// shutdown.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Self::check_service(&request.get_ref().service)?;
        let stopped = self.0.readiness().drained();
        let last = stream::once(async move {
            stopped.await;
            Ok(HealthCheckResponse { status: ServingStatus::NotServing.into() })
        });
        let first = (!self.0.readiness().is_draining()).then(|| Ok(self.current()));
        Ok(Response::new(stream::iter(first).chain(last).boxed()))
    }
}
