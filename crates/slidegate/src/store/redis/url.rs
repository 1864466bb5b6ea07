//! URL of the servers.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use crate::error::SettingsError;

/// Forms of the URL, for error messages.
const FORMS: &str = "redis://[user:password@]host[:port][/database], rediss:// for TLS, redis+unix:///path, \
                     redis+sentinel://host[:port],…/name[/database], redis+cluster://host[:port],…";

/// Arrangement of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    One,
    Unix(PathBuf),
    Sentinel { name: String },
    Cluster,
}

/// Host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Parsed URL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) topology: Topology,
    pub(super) is_tls: bool,
    pub(super) hosts: Vec<Address>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    /// Options after the question mark, for the settings.
    pub(super) options: Vec<(String, String)>,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, SettingsError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid("the URL has no scheme"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            return Err(invalid("escape ? in a password as %3F, and @ in an option as %40"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (userinfo, hosts) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
        let (kind, is_tls) = match scheme {
            "redis" | "valkey" => ("", false),
            "rediss" | "valkeys" => ("", true),
            _ => match scheme.split_once('+') {
                Some(("redis" | "valkey", kind)) => (kind, false),
                Some(("rediss" | "valkeys", kind)) => (kind, true),
                _ => return Err(invalid(&format!("the scheme {scheme:?} is unknown"))),
            },
        };
        let options = parse_options(query)?;
        let (user, password) = parse_user(userinfo)?;
        let mut url =
            Self { topology: Topology::One, is_tls, hosts: Vec::new(), user, password, database: 0, options };
        match kind {
            "" => {
                url.hosts = parse_hosts(hosts, 6379)?;
                url.database = parse_database(path)?;
                if url.hosts.len() > 1 {
                    return Err(invalid("several hosts need redis+cluster:// or redis+sentinel://"));
                }
            }
            "unix" if is_tls => return Err(invalid("a Unix socket does not use TLS; use redis+unix://")),
            "unix" if hosts.is_empty() && !path.is_empty() => {
                url.topology = Topology::Unix(PathBuf::from(format!("/{}", decode(path)?)));
            }
            "unix" => return Err(invalid("the path of a Unix socket is absolute: redis+unix:///path")),
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(invalid("the name of the primary is missing after the sentinels"));
                }
                url.hosts = parse_hosts(hosts, 26379)?;
                url.database = parse_database(database)?;
                url.topology = Topology::Sentinel { name: decode(name)? };
            }
            "cluster" => {
                if !path.is_empty() {
                    return Err(invalid("a cluster has only database 0"));
                }
                url.hosts = parse_hosts(hosts, 6379)?;
                url.topology = Topology::Cluster;
            }
            _ => return Err(invalid(&format!("the scheme {scheme:?} is unknown"))),
        }
        Ok(url)
    }
}

/// Omits the password.
impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Url")
            .field("topology", &self.topology)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

fn invalid(why: &str) -> SettingsError {
    SettingsError::url(format_args!("{why}; allowed are {FORMS}"))
}

fn parse_user(userinfo: Option<&str>) -> Result<(Option<String>, Option<String>), SettingsError> {
    let Some(userinfo) = userinfo else { return Ok((None, None)) };
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    if !user.is_empty() && password.is_empty() {
        return Err(invalid("the user has no password; a password without a user is written :password@"));
    }
    let some = |text: &str| decode(text).map(|text| Some(text).filter(|text| !text.is_empty()));
    Ok((some(user)?, some(password)?))
}

fn parse_hosts(hosts: &str, default_port: u16) -> Result<Vec<Address>, SettingsError> {
    hosts.split(',').map(|host| parse_address(host, default_port)).collect()
}

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(super) fn parse_address(text: &str, default_port: u16) -> Result<Address, SettingsError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| invalid("a [ has no ]"))?;
            match port.strip_prefix(':') {
                None if !port.is_empty() => {
                    return Err(invalid("only a colon and a port may follow a ]"));
                }
                port => (host, port),
            }
        }
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(invalid("a host is missing"));
    }
    let port = match port {
        None => default_port,
        // The message omits the text: it is the beginning of a password that contains an unescaped slash.
        Some(port) => port.parse().map_err(|_| invalid("a port is not a number up to 65535"))?,
    };
    Ok(Address { host: decode(host)?, port })
}

fn parse_database(text: &str) -> Result<i64, SettingsError> {
    match text {
        "" => Ok(0),
        _ => match text.parse() {
            Ok(number @ 0..) => Ok(number),
            // The message omits the text: it may be the end of such a password.
            _ => Err(invalid("the database is not a number")),
        },
    }
}

fn parse_options(query: &str) -> Result<Vec<(String, String)>, SettingsError> {
    query
        .split('&')
        .filter(|option| !option.is_empty())
        .map(|option| {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            Ok((decode(name)?, decode(value)?))
        })
        .try_fold(Vec::new(), |mut options: Vec<(String, String)>, option: Result<_, SettingsError>| {
            let option = option?;
            if options.iter().any(|(name, _)| *name == option.0) {
                return Err(SettingsError::option(&option.0, "it is given twice"));
            }
            options.push(option);
            Ok(options)
        })
}

fn decode(text: &str) -> Result<String, SettingsError> {
    let decoded =
        percent_decode_str(text).decode_utf8().map_err(|_| invalid("percent-encoded text is not UTF-8"))?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        Url::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn parses_every_form() {
        let url = Url::parse("rediss://ann:p%40ss@cache:7000/3?prefix=a&keys=plain").unwrap();
        assert!(url.is_tls && url.topology == Topology::One);
        assert_eq!(url.hosts[0].to_string(), "cache:7000");
        assert_eq!(
            (url.user.as_deref(), url.password.as_deref(), url.database),
            (Some("ann"), Some("p@ss"), 3)
        );
        assert_eq!(url.options, [("prefix".into(), "a".into()), ("keys".into(), "plain".into())]);

        let url = Url::parse("redis://:pw@[::1]").unwrap();
        assert_eq!(url.hosts[0].to_string(), "[::1]:6379");
        assert_eq!((url.user, url.password.as_deref()), (None, Some("pw")));

        let url = Url::parse("redis+sentinel://a,b:1/main/2").unwrap();
        assert_eq!(url.topology, Topology::Sentinel { name: "main".into() });
        assert_eq!(url.hosts.iter().map(Address::to_string).collect::<Vec<_>>(), ["a:26379", "b:1"]);
        assert_eq!(url.database, 2);

        let url = Url::parse("rediss+cluster://a:1,b:2,c").unwrap();
        assert!(url.is_tls && url.topology == Topology::Cluster && url.hosts.len() == 3);

        let url = Url::parse("redis+unix:///run/redis.sock").unwrap();
        assert_eq!(url.topology, Topology::Unix("/run/redis.sock".into()));
    }

    #[test]
    fn errors_name_the_mistake_and_the_allowed_forms() {
        assert!(error_of("cache:6379").starts_with("the URL has no scheme; allowed are redis://["));
        assert!(error_of("http://a").starts_with("the scheme \"http\" is unknown; allowed are"));
        assert!(error_of("redis+ring://a").starts_with("the scheme \"redis+ring\" is unknown"));
        assert!(error_of("redis://").starts_with("a host is missing"));
        assert!(error_of("redis://[::1]7911").starts_with("only a colon and a port may follow a ]"));
        assert!(error_of("redis://a?prefix=b&prefix=c").starts_with("prefix: it is given twice"));
        assert!(error_of("redis://a?secret=p@ss").contains("@ in an option as %40"));
        assert!(error_of("redis://a:b").starts_with("a port is not a number up to 65535"));
        assert!(error_of("redis://a/x").starts_with("the database is not a number"));
        assert!(error_of("redis://a/-1").starts_with("the database is not a number"));
        assert!(error_of("redis://a,b").starts_with("several hosts need redis+cluster://"));
        assert!(error_of("redis+sentinel://a").starts_with("the name of the primary is missing"));
        assert!(error_of("redis+cluster://a/1").starts_with("a cluster has only database 0"));
        assert!(error_of("redis+unix://x").starts_with("the path of a Unix socket is absolute"));
        assert!(error_of("rediss+unix:///x").starts_with("a Unix socket does not use TLS"));
        assert!(error_of("redis://a%ff").starts_with("percent-encoded text is not UTF-8"));
        assert!(error_of("redis://hush@cache").starts_with("the user has no password"));
        assert!(error_of("redis://me:12?hush@cache").starts_with("escape ? in a password as %3F"));
        assert!(!format!("{:?}", Url::parse("redis://:hush@a").unwrap()).contains("hush"));
        for unescaped in ["redis://me:hush/hush@a", "redis://me:hush?hush@a", "redis://me:1/hush@a"] {
            assert!(!error_of(unescaped).contains("hush"), "{unescaped}");
        }
    }
}
