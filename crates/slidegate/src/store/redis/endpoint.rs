//! How a connection to one server comes about.

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
use super::url::{Address, Topology};
use crate::error::StoreError;

/// A connection, and word of its end.
pub(super) struct Link {
    /// The server's address, for messages.
    pub(super) place: String,
    pub(super) connection: MultiplexedConnection,
    /// True once the server has hung up.
    pub(super) is_over: watch::Receiver<bool>,
}

impl Link {
    /// Asks one thing, within the budget.
    pub(super) async fn ask<T: FromRedisValue>(
        &mut self,
        question: &Cmd,
        budget: Duration,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(budget, question.query_async(&mut self.connection)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(connect_error(&self.place, &error)),
            Err(_) => {
                let message = format!("redis at {}: it lets us in and then says nothing", self.place);
                Err(StoreError::transient(message))
            }
        }
    }
}

/// What all connections of a store have in common.
#[derive(Clone)]
pub(super) struct Access {
    login: RedisConnectionInfo,
    is_tls: bool,
    ca_pem: Option<Vec<u8>>,
    /// A certificate and its key.
    client_pem: Option<(Vec<u8>, Vec<u8>)>,
    pub(super) budget: Duration,
    subscriber: Subscriber,
}

/// Where to connect to.
#[derive(Clone)]
pub(super) enum Target {
    /// A socket or an address.
    At(ConnectionAddr),
    /// Whoever the sentinels say is the primary.
    Primary { sentinels: Vec<Address>, name: String, sentinel_access: Access },
}

impl Access {
    pub(super) fn new(builder: &RedisStoreBuilder) -> Self {
        let mut login = login(builder.url.user.as_deref(), builder.url.password.as_deref());
        login = login.set_db(builder.url.database);
        Self {
            login,
            is_tls: builder.url.is_tls,
            ca_pem: builder.ca_pem.clone(),
            client_pem: builder.client_cert_pem.clone().zip(builder.client_key_pem.clone()),
            budget: builder.connect_budget(),
            subscriber: builder.subscriber(),
        }
    }

    pub(super) fn subscriber(&self) -> &Subscriber {
        &self.subscriber
    }

    fn for_sentinels(builder: &RedisStoreBuilder) -> Self {
        let login = login(builder.sentinel_user.as_deref(), builder.sentinel_password.as_deref());
        Self { login, ..Self::new(builder) }
    }

    pub(super) fn at(&self, address: &Address) -> ConnectionAddr {
        let Address { host, port } = address.clone();
        if self.is_tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    }

    /// Connects, logs in and says hello, within the budget.
    pub(super) async fn connect(&self, address: &ConnectionAddr) -> Result<Link, StoreError> {
        let place = address.to_string();
        match tokio::time::timeout(self.budget, self.open(address.clone())).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => Err(connect_error(&place, &error)),
            Err(_) => {
                let hint =
                    if self.is_tls { "; does it speak TLS at this port, as rediss:// expects?" } else { "" };
                let budget = self.budget;
                Err(StoreError::transient(format!("redis at {place}: no connection within {budget:?}{hint}")))
            }
        }
    }

    async fn open(&self, address: ConnectionAddr) -> Result<Link, RedisError> {
        // A request is one small write, and the next one comes after its answer: waiting to fill a packet only delays.
        let tcp = TcpSettings::default().set_nodelay(true);
        let place = address.to_string();
        let info =
            address.into_connection_info()?.set_redis_settings(self.login.clone()).set_tcp_settings(tcp);
        let client = if self.is_tls {
            provide_cryptography();
            let root_cert = self.ca_pem.clone();
            let client_tls = self.client_pem.clone();
            let client_tls =
                client_tls.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
            Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })?
        } else {
            Client::open(info)?
        };
        let (over, is_over) = watch::channel(false);
        let subscriber = self.subscriber.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            // As many calls as there may be in one go on a cluster.
            .set_pipeline_buffer_size(256)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    over.send_replace(true);
                } else {
                    subscriber.hear(&push);
                }
                Ok::<_, SendError>(())
            });
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Link { place, connection, is_over })
    }
}

impl Target {
    pub(super) fn new(builder: &RedisStoreBuilder, access: &Access) -> Self {
        match &builder.url.topology {
            Topology::Unix(path) => Self::At(ConnectionAddr::Unix(path.clone())),
            Topology::Sentinel { name } => Self::Primary {
                sentinels: builder.url.hosts.clone(),
                name: name.clone(),
                sentinel_access: Access::for_sentinels(builder),
            },
            Topology::One | Topology::Cluster => Self::At(access.at(&builder.url.hosts[0])),
        }
    }

    /// The host, if it is known.
    pub(super) fn host(&self) -> String {
        match self {
            Self::At(ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }) => host.clone(),
            _ => String::new(),
        }
    }

    pub(super) async fn connect(&self, access: &Access) -> Result<Link, StoreError> {
        match self {
            Self::At(address) => access.connect(address).await,
            Self::Primary { sentinels, name, sentinel_access } => {
                super::sentinel::connect_primary(sentinels, name, sentinel_access, access).await
            }
        }
    }
}

fn login(user: Option<&str>, password: Option<&str>) -> RedisConnectionInfo {
    // With the newer protocol the connection tells us when the server hangs up, and not only with the next request.
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

/// rustls leaves the choice to the application; if it has made none, this one does.
fn provide_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // It fails only if another thread was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
