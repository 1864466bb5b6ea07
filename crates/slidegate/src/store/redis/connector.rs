//! Connection to one server: TLS and login.

use std::time::Duration;

use redis::aio::{MultiplexedConnection, SendError};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, FromRedisValue, IntoConnectionInfo,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, TlsCertificates,
};
use tokio::sync::watch;

use super::failure::connect_error;
use super::invalidation::Subscriber;
use super::settings::RedisStoreBuilder;
use super::url::Address;
use crate::error::StoreError;

/// Connection, and the notification that it was closed.
pub(super) struct Link {
    /// Address of the server, for messages.
    pub(super) server: String,
    pub(super) connection: MultiplexedConnection,
    /// True once the server has closed the connection.
    pub(super) is_closed: watch::Receiver<bool>,
}

impl Link {
    /// Executes one command, within the budget.
    pub(super) async fn query<T: FromRedisValue>(
        &mut self,
        command: &Cmd,
        budget: Duration,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(budget, command.query_async(&mut self.connection)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(connect_error(&self.server, &error)),
            Err(_) => {
                let message = format!("redis at {}: no reply within {budget:?} after the login", self.server);
                Err(StoreError::transient(message))
            }
        }
    }
}

/// Settings that all connections of a store share.
#[derive(Clone)]
pub(super) struct Connector {
    login: RedisConnectionInfo,
    is_tls: bool,
    ca_pem: Option<Vec<u8>>,
    /// Client certificate and its key.
    client_pem: Option<(Vec<u8>, Vec<u8>)>,
    pub(super) budget: Duration,
    subscriber: Subscriber,
}

impl Connector {
    pub(super) fn new(builder: &RedisStoreBuilder) -> Self {
        let mut login = login(builder.url.user.as_deref(), builder.url.password.as_deref());
        login = login.set_db(builder.url.database);
        Self {
            login,
            is_tls: builder.url.is_tls,
            ca_pem: builder.remote.ca_pem.clone(),
            client_pem: builder.client_cert_pem.clone().zip(builder.client_key_pem.clone()),
            budget: builder.connect_budget(),
            subscriber: builder.subscriber(),
        }
    }

    pub(super) fn subscriber(&self) -> &Subscriber {
        &self.subscriber
    }

    pub(super) fn for_sentinels(builder: &RedisStoreBuilder) -> Self {
        let login = login(builder.sentinel_user.as_deref(), builder.sentinel_password.as_deref());
        Self { login, ..Self::new(builder) }
    }

    pub(super) fn address(&self, address: &Address) -> ConnectionAddr {
        let Address { host, port } = address.clone();
        if self.is_tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    }

    /// Connects and logs in, within the budget.
    pub(super) async fn connect(&self, address: &ConnectionAddr) -> Result<Link, StoreError> {
        let server = address.to_string();
        match tokio::time::timeout(self.budget, self.open(address.clone())).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => Err(connect_error(&server, &error)),
            Err(_) => {
                let hint =
                    if self.is_tls { "; does it speak TLS at this port, as rediss:// expects?" } else { "" };
                let budget = self.budget;
                Err(StoreError::transient(format!(
                    "redis at {server}: no connection within {budget:?}{hint}"
                )))
            }
        }
    }

    async fn open(&self, address: ConnectionAddr) -> Result<Link, RedisError> {
        // A request is one small write, and the next one often follows its reply: delaying it to fill a packet costs time.
        let tcp = TcpSettings::default().set_nodelay(true);
        let server = address.to_string();
        let info =
            address.into_connection_info()?.set_redis_settings(self.login.clone()).set_tcp_settings(tcp);
        let client = if self.is_tls {
            install_crypto_provider();
            let root_cert = self.ca_pem.clone();
            let client_tls = self.client_pem.clone();
            let client_tls =
                client_tls.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
            Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })?
        } else {
            Client::open(info)?
        };
        let (closed, is_closed) = watch::channel(false);
        let subscriber = self.subscriber.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            // On a cluster, a batch may contain as many script calls as requests.
            .set_pipeline_buffer_size(256)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    closed.send_replace(true);
                } else {
                    subscriber.receive(&push);
                }
                Ok::<_, SendError>(())
            });
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Link { server, connection, is_closed })
    }
}

fn login(user: Option<&str>, password: Option<&str>) -> RedisConnectionInfo {
    // With RESP3 the client library reports a closed connection at once, and not only with the next request.
    let mut login =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

/// Installs a default cryptography provider for rustls, unless the application has installed one.
fn install_crypto_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
