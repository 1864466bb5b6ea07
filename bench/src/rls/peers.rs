//! Peers of the rate limit service: a constant response, and Limitador's library as its own server uses it. That server
//! is not published as a crate, so it is rebuilt here without its metrics and traces.

use slidegate_server::rls::proto::rate_limit_response::Code;
use slidegate_server::rls::proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use slidegate_server::rls::proto::{RateLimitRequest, RateLimitResponse};
use tokio::net::TcpListener;
use tonic::codegen::async_trait;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

struct Constant;

#[async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        std::hint::black_box(request.get_ref());
        Ok(Response::new(response(Code::Ok)))
    }
}

fn response(code: Code) -> RateLimitResponse {
    RateLimitResponse { overall_code: code.into(), ..RateLimitResponse::default() }
}

#[cfg(feature = "limitador")]
pub(crate) use self::of_limitador::limitador;

pub(crate) fn constant() {
    serve(Constant);
}

fn serve(service: impl RateLimitService) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("grpc: {}", listener.local_addr().expect("the listener is bound"));
        Server::builder()
            .add_service(RateLimitServiceServer::new(service))
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
            .await
            .expect("the server runs");
    });
}

#[cfg(feature = "limitador")]
mod of_limitador {
    use std::collections::HashMap;
    use std::sync::Arc;

    use limitador::RateLimiter;
    use limitador::limit::{Context, Limit};

    use super::{
        Code, RateLimitRequest, RateLimitResponse, RateLimitService, Request, Response, Status, async_trait,
        response, serve,
    };

    /// Limitador's messages hold strings, the generated ones hold bytes.
    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).expect("a text")
    }

    struct Limitador(Arc<RateLimiter>);

    #[async_trait]
    impl RateLimitService for Limitador {
        async fn should_rate_limit(
            &self,
            request: Request<RateLimitRequest>,
        ) -> Result<Response<RateLimitResponse>, Status> {
            let request = request.into_inner();
            let mut descriptors = Vec::with_capacity(request.descriptors.len());
            for descriptor in request.descriptors {
                let entries =
                    descriptor.entries.into_iter().map(|entry| (text(entry.key), text(entry.value)));
                descriptors.push(entries.collect::<HashMap<_, _>>());
            }
            let mut context = Context::default();
            context.list_binding("descriptors".to_owned(), descriptors);
            let hits = request.hits_addend.max(1).into();
            let limited = self
                .0
                .check_rate_limited_and_update(&text(request.domain).into(), &context, hits)
                .map_err(|error| Status::unavailable(error.to_string()))?
                .limited;
            Ok(Response::new(response(if limited { Code::OverLimit } else { Code::Ok })))
        }
    }

    pub(crate) fn limitador() {
        let limiter = RateLimiter::new(1_000_000);
        let variable = "descriptors[0]['user']".try_into().expect("an expression");
        let limit = Limit::new("bench", 1_000_000, 1, Vec::new(), vec![variable]);
        limiter.add_limit(limit);
        serve(Limitador(Arc::new(limiter)));
    }
}
