//! Requests that are to know who is connected.

use std::net::SocketAddr;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use slidegate::tower::PeerAddress;

use crate::http::FORWARD_AUTH;

/// The routes, for one connection.
#[derive(Clone, Debug)]
pub(super) struct Addressed {
    routes: TowerToHyperService<Router>,
    peer: SocketAddr,
}

impl Addressed {
    pub(super) fn new(router: Router, peer: SocketAddr) -> Self {
        Self { routes: TowerToHyperService::new(router), peer }
    }
}

impl Service<Request<Incoming>> for Addressed {
    type Response = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Response;
    type Error = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Error;
    type Future = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        // Whoever else asks says for whom, and an extension is an allocation.
        if request.uri().path().starts_with(FORWARD_AUTH) {
            request.extensions_mut().insert(PeerAddress(self.peer));
        }
        self.routes.call(request)
    }
}
