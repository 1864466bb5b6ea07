//! Builder of a PostgreSQL server.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::folder::{Disk, Folder};
use super::server::Postgres;
use super::{binary, template, user};
use crate::port;
use crate::process::{Launch, Process};
use crate::tls::Authority;

/// Attempts to find a port before another process binds it.
const PORT_ATTEMPTS: usize = 20;

/// Configuration of a PostgreSQL server that is not started yet.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct PostgresBuilder {
    settings: Vec<(String, String)>,
    access: String,
    with_tls: bool,
    is_durable: bool,
    disk_mb: Option<u32>,
}

impl Postgres {
    /// Starts a server with its default configuration.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder for a server.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }
}

impl PostgresBuilder {
    /// Adds a line to `postgresql.conf`. `ALTER SYSTEM` can change the setting later.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a line to `pg_hba.conf` before the default lines, which require a password from all users except the
    /// superuser.
    pub fn access(mut self, line: &str) -> Self {
        self.access.push_str(line);
        self.access.push('\n');
        self
    }

    /// Also accepts TLS on the same port, see [`Postgres::tls`].
    pub fn tls(mut self) -> Self {
        self.with_tls = true;
        self
    }

    /// Keeps the data on disk with `fsync`, as in production. By default `fsync` is off, and the data is in memory if
    /// this process may mount a tmpfs, which makes the start faster. Acknowledged data survives a kill in both cases,
    /// because the kernel holds it.
    pub fn durable(mut self) -> Self {
        self.is_durable = true;
        self
    }

    /// Keeps the data in a file system of `megabytes` MB, see [`Postgres::fill_disk`]. The minimum is 64. Requires
    /// root.
    pub fn data_on_tmpfs(mut self, megabytes: u32) -> Self {
        self.disk_mb = Some(megabytes);
        self
    }

    /// Starts the server and waits until it responds.
    pub fn start(self) -> Postgres {
        self.start_with(|folder| template::copy_to(&folder.data()))
    }

    /// Starts the server with data that `fill` writes to its folder.
    pub(crate) fn start_with(self, fill: impl Fn(&Folder)) -> Postgres {
        let mut log = String::new();
        for _ in 0..PORT_ATTEMPTS {
            let server = self.spawn(&fill);
            match server.wait_ready() {
                Ok(()) => return server,
                Err(_) if server.lost_race() => log = server.log(),
                Err(seen) => panic!("PostgreSQL does not start: {seen}"),
            }
        }
        panic!("PostgreSQL found no port in {PORT_ATTEMPTS} attempts:\n{log}");
    }

    fn spawn(&self, fill: &impl Fn(&Folder)) -> Postgres {
        // Fails on a missing binary before it creates anything.
        let program = binary::binary("postgres");
        let folder = Folder::make(self.disk());
        let port = port::free();
        let authority = self.with_tls.then(|| Authority::make(folder.path()));
        if self.with_tls {
            let key = folder.path().join("server.key");
            fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the file was made just now");
            user::give(&key);
        }
        fill(&folder);
        self.configure(&folder, port);

        let (program, mut args) = user::wrapped(&program);
        args.extend([OsString::from("-D"), folder.data().into()]);
        let environment = vec![("LC_ALL".to_owned(), "C".to_owned())];
        let process = Process::start(Launch { program, args, environment, folder: folder.path().to_owned() });
        Postgres { process, port, authority, folder }
    }

    fn disk(&self) -> Disk {
        match self.disk_mb {
            Some(megabytes) => Disk::Small { megabytes },
            None if !self.is_durable && user::is_admin() => Disk::Memory,
            None => Disk::Machine,
        }
    }

    /// Appends to the existing configuration; a standby has a copy of its primary's. The last line of a setting takes
    /// effect.
    fn configure(&self, folder: &Folder, port: u16) {
        let mut text = String::from("\n");
        let mut set = |name: &str, value: &str| {
            writeln!(text, "{name} = '{}'", value.replace('\'', "''")).expect("a string takes all");
        };
        set("listen_addresses", "127.0.0.1");
        set("port", &port.to_string());
        set("unix_socket_directories", &folder.path().to_string_lossy());
        set("shared_buffers", "16MB");
        set("fsync", if self.is_durable { "on" } else { "off" });
        set("dynamic_shared_memory_type", if user::is_admin() { "sysv" } else { "mmap" });
        set("ssl", if self.with_tls { "on" } else { "off" });
        set("ssl_cert_file", &folder.path().join("server.crt").to_string_lossy());
        set("ssl_key_file", &folder.path().join("server.key").to_string_lossy());
        for (name, value) in &self.settings {
            set(name, value);
        }
        let path = folder.data().join("postgresql.conf");
        let before = fs::read_to_string(&path).expect("a data folder is configured");
        fs::write(path, before + &text).expect("the folder is writable");

        let path = folder.data().join("pg_hba.conf");
        let after = fs::read_to_string(&path).expect("a data folder is configured");
        fs::write(path, self.access.clone() + &after).expect("the folder is writable");
    }
}
