//! Where `slidegate serve` listens, and for what.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;
use tracing::warn;

use super::Failure;
use super::envoy::Loaded;
use super::sockets::{bind, bind_or_leave};
use crate::app::App;
use crate::authenticator::Authenticator;
use crate::changes::ChangeController;
use crate::net::{ListenerSettings, ProtocolListener};
use crate::protocols::admin;
use crate::protocols::rls;
use crate::store_stack::StoreStack;
use slidegate_config::TlsFiles;
use slidegate_config::{Address, Config, Listen, StoreUrl};

/// Addresses, which go over those of the file.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Addresses {
    /// Where to serve HTTP; port 0 picks a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_HTTP")]
    http: Option<Address>,

    /// Where to serve Envoy's rate limit service over gRPC, or off [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_GRPC")]
    grpc: Option<Listen>,

    /// Where to serve the protocol of Redis, or off [default: off]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_RESP")]
    resp: Option<Listen>,

    /// Where to serve the admin API, or off [default: 127.0.0.1:8082]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_ADMIN")]
    admin: Option<Listen>,
}

/// Sockets that are open, for what is served.
pub(super) struct Listeners {
    http: TcpListener,
    grpc: Option<TcpListener>,
    resp: Option<TcpListener>,
    admin: Option<TcpListener>,
}

impl Listeners {
    /// With limits for Envoy there is no going without gRPC: Envoy would let everybody through.
    pub(super) async fn open(
        addresses: Addresses,
        config: &Config,
        has_envoy: bool,
    ) -> Result<Self, Failure> {
        let Addresses { http, grpc, resp, admin } = addresses;
        let admin = admin.or(config.admin.listen.clone());
        // Unless whoever is elsewhere could come in without a token.
        config
            .admin
            .checked_listen(admin.clone())
            .map_err(|message| Failure::new(format!("admin: {message}")))?;
        if has_envoy && matches!(grpc.as_ref().or(config.grpc.as_ref()), Some(Listen::Off)) {
            warn!(
                "there are limits for Envoy, which asks by gRPC, and gRPC is off; POST /json still asks for them"
            );
        }
        Ok(Self {
            http: bind("http", &http.or(config.http.clone()).unwrap_or_default()).await?,
            grpc: bind_or_leave("grpc", grpc.or(config.grpc.clone()), "127.0.0.1:8081", has_envoy).await?,
            resp: match resp.or(config.resp.clone()) {
                Some(Listen::At(address)) => Some(bind("resp", &address).await?),
                Some(Listen::Off) | None => None,
            },
            admin: bind_or_leave("admin", admin, "127.0.0.1:8082", false).await?,
        })
    }

    /// What is served, where, and a line to paste into a shell.
    pub(super) fn greeting(
        &self,
        door: &ListenerSettings,
        store: &StoreUrl,
        config: &Config,
        controller: &ChangeController,
        envoy: Option<&Loaded>,
    ) -> Result<String, Failure> {
        // As it is in force, which may not be as the file says.
        let policies = controller.app().policies();
        let (http, redis) = if door.tls.is_some() { ("https", "rediss") } else { ("http", "redis") };
        let address = address_of(&self.http)?;
        let mut text = format!("slidegate serves {http}://{address}\nstore: {store}\n");
        for policy in policies.iter() {
            let quotas: Vec<_> = policy.quotas().iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "policy {}: {}", policy.name(), quotas.join(", "));
        }
        if let changed @ 1.. = controller.in_force().len() {
            let (s, are) = if changed == 1 { ("", "is") } else { ("s", "are") };
            let _ = writeln!(text, "changes: {changed} change{s} by the admin API {are} in force");
        }
        if let Some(envoy) = envoy {
            let _ = writeln!(text, "envoy: {envoy}");
        }
        if let Some(listener) = &self.grpc {
            let _ = writeln!(text, "grpc: {}", address_of(listener)?);
        }
        if let Some(listener) = &self.resp {
            let _ = writeln!(text, "resp: {redis}://{}", address_of(listener)?);
        }
        if let Some(listener) = &self.admin {
            let _ = writeln!(text, "admin: {http}://{}", address_of(listener)?);
        }
        let subject = match policies.names().next() {
            Some(name) => format!(r#""policy": {}"#, serde_json::json!(name)),
            None => r#""quotas": ["100/1m"]"#.to_owned(),
        };
        let body = within_quotes(&format!(r#"{{{subject}, "key": "user:1"}}"#));
        let token = if config.tokens.is_empty() { "" } else { "-H 'authorization: Bearer TOKEN' " };
        let shown = config.tls.as_ref().map(certificates_for_curl).unwrap_or_default();
        let url = format!("{http}://{}/v1/check", reachable(address));
        let _ = writeln!(text, "try: curl -sSi {shown}{url} {token}-d '{body}'");
        Ok(text)
    }

    /// Whether anybody can change something while it runs.
    pub(super) fn has_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// What is spoken behind each.
    pub(super) fn entrances(
        self,
        app: &Arc<App<StoreStack>>,
        controller: &Arc<ChangeController>,
        door: &ListenerSettings,
        admins: &Arc<Authenticator>,
    ) -> Result<Vec<ProtocolListener<StoreStack>>, Failure> {
        let mut entrances = vec![ProtocolListener::decisions(self.http, app, door)];
        if let Some(listener) = self.grpc {
            let router = rls::router(Arc::clone(app), door.limits.body_timeout).map_err(Failure::new)?;
            entrances.push(ProtocolListener::routed(listener, router));
        }
        let passwords =
            Some(app.tokens()).filter(|authenticator| !authenticator.allows_anonymous()).map(Arc::clone);
        entrances.extend(self.resp.map(|listener| ProtocolListener::resp(listener, passwords)));
        let admin = admin::router(Arc::clone(controller), Arc::clone(admins));
        entrances.extend(self.admin.map(|listener| ProtocolListener::routed(listener, admin)));
        Ok(entrances)
    }
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    listener.local_addr().map_err(|error| Failure::new(error.to_string()))
}

/// Whom curl has to trust, which is good for a certificate that nobody else has signed too, and what it has to show.
fn certificates_for_curl(files: &TlsFiles) -> String {
    let shown = if files.client_ca.is_some() { "--cert CLIENT.crt --key CLIENT.key " } else { "" };
    format!("--cacert '{}' {shown}", within_quotes(&files.cert.to_string_lossy()))
}

/// As it stands between a shell's single quotes.
fn within_quotes(text: &str) -> String {
    text.replace('\'', r"'\''")
}

/// An address that listens on all interfaces is not one to connect to.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}
