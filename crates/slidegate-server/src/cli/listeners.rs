//! Listeners of `slidegate serve`, and the lines that it prints at startup.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use slidegate_config::{Address, Config, Listen, StoreUrl, TlsFiles};
use slidegate_engine::changes::ChangeController;
use slidegate_engine::{Authenticator, Engine, StoreStack};
use tokio::net::TcpListener;
use tracing::warn;

use super::Failure;
use super::envoy::LoadedEnvoyLimits;
use super::sockets::{bind, bind_optional};
use crate::listeners::{ListenerSettings, ProtocolListener};
use crate::protocols::admin;
use crate::protocols::rls;

/// Addresses of the listeners. They override those of the file.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Addresses {
    /// Address for HTTP; port 0 picks a free port [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_HTTP")]
    http: Option<Address>,

    /// Address for Envoy's rate limit service over gRPC, or off [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_GRPC")]
    grpc: Option<Listen>,

    /// Address for the protocol of Redis, or off [default: off]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_RESP")]
    resp: Option<Listen>,

    /// Address for the admin API, or off [default: 127.0.0.1:8082]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_ADMIN")]
    admin: Option<Listen>,
}

/// Open listeners, one per protocol.
pub(super) struct Listeners {
    http: TcpListener,
    grpc: Option<TcpListener>,
    resp: Option<TcpListener>,
    admin: Option<TcpListener>,
}

impl Listeners {
    /// Binds the addresses. Limits for Envoy require gRPC, because Envoy allows all requests while the gRPC
    /// service is unreachable.
    pub(super) async fn open(
        addresses: Addresses,
        config: &Config,
        has_envoy: bool,
    ) -> Result<Self, Failure> {
        let Addresses { http, grpc, resp, admin } = addresses;
        let admin = admin.or(config.admin.listen.clone());
        // An address other than loopback needs tokens.
        config
            .admin
            .checked_listen(admin.clone())
            .map_err(|message| Failure::new(format!("admin: {message}")))?;
        if has_envoy && matches!(grpc.as_ref().or(config.grpc.as_ref()), Some(Listen::Off)) {
            warn!(
                "gRPC is off, so Envoy cannot use its limits; start with --grpc ADDR, or use them by POST /json"
            );
        }
        Ok(Self {
            http: bind("http", &http.or(config.http.clone()).unwrap_or_default()).await?,
            grpc: bind_optional("grpc", grpc.or(config.grpc.clone()), "127.0.0.1:8081", has_envoy).await?,
            resp: match resp.or(config.resp.clone()) {
                Some(Listen::At(address)) => Some(bind("resp", &address).await?),
                Some(Listen::Off) | None => None,
            },
            admin: bind_optional("admin", admin, "127.0.0.1:8082", false).await?,
        })
    }

    /// Returns the startup lines: addresses, store and policies, and an example command for a shell.
    pub(super) fn greeting(
        &self,
        settings: &ListenerSettings,
        store: &StoreUrl,
        config: &Config,
        controller: &ChangeController,
        envoy: Option<&LoadedEnvoyLimits>,
    ) -> Result<String, Failure> {
        // The policies in force, which may differ from those of the file.
        let policies = controller.engine().policies();
        let (http_scheme, redis_scheme) =
            if settings.tls.is_some() { ("https", "rediss") } else { ("http", "redis") };
        let address = address_of(&self.http)?;
        let mut text = format!("slidegate serves {http_scheme}://{address}\nstore: {store}\n");
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
            let _ = writeln!(text, "resp: {redis_scheme}://{}", address_of(listener)?);
        }
        if let Some(listener) = &self.admin {
            let _ = writeln!(text, "admin: {http_scheme}://{}", address_of(listener)?);
        }
        let limits = match policies.names().next() {
            Some(name) => format!(r#""policy": {}"#, serde_json::json!(name)),
            None => r#""quotas": ["100/1m"]"#.to_owned(),
        };
        let body = escape_single_quotes(&format!(r#"{{{limits}, "key": "user:1"}}"#));
        let token = if config.tokens.is_empty() { "" } else { "-H 'authorization: Bearer TOKEN' " };
        let certificates = config.tls.as_ref().map(curl_certificates).unwrap_or_default();
        let url = format!("{http_scheme}://{}/v1/check", connectable(address));
        let _ = writeln!(text, "try: curl -sSi {certificates}{url} {token}-d '{body}'");
        Ok(text)
    }

    /// Returns whether the admin API is on.
    pub(super) fn has_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// Assigns a protocol to each listener.
    pub(super) fn into_protocol_listeners(
        self,
        engine: &Arc<Engine<StoreStack>>,
        controller: &Arc<ChangeController>,
        settings: &ListenerSettings,
        admins: &Arc<Authenticator>,
    ) -> Result<Vec<ProtocolListener<StoreStack>>, Failure> {
        let mut listeners = vec![ProtocolListener::decisions(self.http, engine, settings)];
        if let Some(listener) = self.grpc {
            let router =
                rls::router(Arc::clone(engine), settings.limits.body_timeout).map_err(Failure::new)?;
            listeners.push(ProtocolListener::routed(listener, router));
        }
        let passwords =
            Some(engine.tokens()).filter(|authenticator| !authenticator.allows_anonymous()).map(Arc::clone);
        listeners.extend(self.resp.map(|listener| ProtocolListener::resp(listener, passwords)));
        let admin = admin::router(Arc::clone(controller), Arc::clone(admins));
        listeners.extend(self.admin.map(|listener| ProtocolListener::routed(listener, admin)));
        Ok(listeners)
    }
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    listener.local_addr().map_err(|error| Failure::new(error.to_string()))
}

/// Returns curl's options for certificates. `--cacert` names the server's own certificate, which may be self-signed.
fn curl_certificates(files: &TlsFiles) -> String {
    let client = if files.client_ca.is_some() { "--cert CLIENT.crt --key CLIENT.key " } else { "" };
    format!("--cacert '{}' {client}", escape_single_quotes(&files.cert.to_string_lossy()))
}

/// Escapes text for a shell's single quotes.
fn escape_single_quotes(text: &str) -> String {
    text.replace('\'', r"'\''")
}

/// Replaces the unspecified address, to which clients cannot connect, with the loopback address.
fn connectable(mut address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}
