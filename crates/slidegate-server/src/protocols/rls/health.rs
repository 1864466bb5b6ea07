//! `grpc.health.v1.Health`: serving, until it stops.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{self, Stream, StreamExt};
use slidegate::store::Store;
use tonic::codegen::async_trait;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::proto::rate_limit_service_server::RateLimitServiceServer;
use super::service::Rls;
use crate::app::App;

/// The name that envoyproxy/ratelimit reports its health under, and that its probes ask for.
const PEER_NAME: &str = "ratelimit";

/// Says how `app` is doing.
pub(super) struct AppHealth<S>(pub(super) Arc<App<S>>);

impl<S: Store + 'static> AppHealth<S> {
    fn answer(&self) -> HealthCheckResponse {
        let status = if self.0.is_stopping() { ServingStatus::NotServing } else { ServingStatus::Serving };
        HealthCheckResponse { status: status.into() }
    }

    fn find(service: &str) -> Result<(), Status> {
        let known = ["", RateLimitServiceServer::<Rls<S>>::NAME, PEER_NAME];
        if known.contains(&service) { Ok(()) } else { Err(Status::not_found("there is no such service")) }
    }
}

#[async_trait]
impl<S: Store + 'static> Health for AppHealth<S> {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        Self::find(&request.get_ref().service)?;
        Ok(Response::new(self.answer()))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Ends after it has said that it stops: nobody who only watches holds up the end.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Self::find(&request.get_ref().service)?;
        let stopped = self.0.stopped();
        let last = stream::once(async move {
            stopped.await;
            Ok(HealthCheckResponse { status: ServingStatus::NotServing.into() })
        });
        let first = (!self.0.is_stopping()).then(|| Ok(self.answer()));
        Ok(Response::new(stream::iter(first).chain(last).boxed()))
    }
}
