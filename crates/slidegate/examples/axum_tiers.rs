//! Tiers: 10 requests a minute for anonymous clients, 100 for authenticated users, 1000 for premium users. Logins have
//! an additional, stricter limit. Health checks are exempt.
//!
//! Run `cargo run --example axum_tiers`, optionally with an address (`-- 127.0.0.1:3000`).

use std::error::Error;
use std::net::SocketAddr;

use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use slidegate::tower::{ClientAddress, Key, RateLimitLayer};
use slidegate::{Limiter, Policy};

#[derive(Clone)]
struct User {
    name: &'static str,
    is_premium: bool,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let api = Limiter::builder("api")
        .quotas(["10/1m"])
        .tier("authenticated", ["100/1m"])
        .tier("premium", ["1000/1m"])
        .in_memory()?;
    // At most five in any minute. By address, because the user is not authenticated yet.
    let login = Limiter::over(api.store().clone(), Policy::parse("login", ["5/1m strict-window"])?);
    let attempts = RateLimitLayer::new(login);
    let tiers = RateLimitLayer::new(api)
        .tier(|request| {
            let user = request.extensions.get::<User>()?;
            Some(if user.is_premium { "premium" } else { "authenticated" })
        })
        // Users count by name from any address, anonymous clients by address.
        .key(Key::first_of([Key::extension(|user: &User| user.name), Key::address(ClientAddress::peer())]))
        .skip(|request| request.path() == "/healthz");

    let app = Router::new()
        .route("/login", post(async || "welcome"))
        .route_layer(attempts)
        .route("/", get(hello))
        .route("/healthz", get(async || "healthy"))
        .layer(tiers)
        // The layer added last runs first, so the tiers know the user.
        .layer(middleware::from_fn(authenticate));

    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    println!("try: curl -si http://{address}/ -H 'authorization: Bearer ada'");
    // Without this, the layer has no peer address and rejects anonymous clients.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Placeholder for authentication: Ada is a premium user, Bob is not.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let user = match request.headers().get("authorization").and_then(|value| value.to_str().ok()) {
        Some("Bearer ada") => Some(User { name: "ada", is_premium: true }),
        Some("Bearer bob") => Some(User { name: "bob", is_premium: false }),
        _ => None,
    };
    if let Some(user) = user {
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

async fn hello(user: Option<Extension<User>>) -> String {
    format!("hello, {}\n", user.map_or("stranger", |Extension(user)| user.name))
}
