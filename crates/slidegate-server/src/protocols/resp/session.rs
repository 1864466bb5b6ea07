//! Session of a connection: authentication, and the commands that need no store.

use std::fmt::Write as _;

use slidegate::Verb;
use slidegate_config::Token;
use slidegate_engine::{Authenticator, Rejection, authorize};

use super::frame::Arguments;
use super::grammar::Keyword;
use super::reply::{self, ProtocolVersion};

/// Maximum length of a client's name.
const MAX_CLIENT_NAME_BYTES: usize = 128;
/// Maximum length of an unknown command, and of its arguments, in an error.
const MAX_QUOTED_BYTES: usize = 128;
/// Version of Redis whose features clients may expect.
const REDIS_VERSION: &str = "7.0.0";
const NOAUTH: &str = "NOAUTH Authentication required.";
const NOAUTH_HELLO: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                            HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
                            select the RESP protocol version at the same time";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are \
                           you sure your configuration is correct?";
const WRONGPASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const SYNTAX: &str = "ERR syntax error";
/// Number of wrong passwords that closes the connection. Reconnecting slows down password guessing and makes it visible.
const MAX_WRONG_PASSWORDS: u8 = 10;

/// Session of one connection.
#[derive(Debug)]
pub(super) struct Session {
    connection_id: u64,
    version: ProtocolVersion,
    client_name: Vec<u8>,
    access: Access,
    wrong_passwords: u8,
}

/// Access of a connection.
#[derive(Debug)]
enum Access {
    /// No password is required.
    Open,
    /// No valid password was received.
    Unauthenticated,
    /// Authenticated by this token, which was valid in this generation of the tokens.
    Token(Token, u64),
}

/// Next step of the connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionStep {
    Continue,
    /// Close after the reply.
    Close,
    /// Close although the client may still be sending. Without a lingering close it could miss the reply.
    LingeringClose,
}

impl Session {
    pub(super) fn new(connection_id: u64, passwords: Option<&Authenticator>) -> Self {
        Self {
            connection_id,
            version: ProtocolVersion::default(),
            client_name: Vec::new(),
            access: if passwords.is_none() { Access::Open } else { Access::Unauthenticated },
            wrong_passwords: 0,
        }
    }

    /// Rejects a verb that the connection's token does not allow.
    #[inline]
    pub(super) fn authorize(&self, verb: Verb) -> Result<(), Rejection> {
        if let Access::Token(token, _) = &self.access { authorize(token, verb) } else { Ok(()) }
    }

    /// Returns whether commands are accepted: no password is required, or a valid one was received.
    #[inline]
    pub(super) fn is_authenticated(&self) -> bool {
        !matches!(self.access, Access::Unauthenticated)
    }

    /// Updates the connection's token after a reload of the tokens. A token that was removed ends the authentication.
    #[inline]
    pub(super) fn revalidate(&mut self, passwords: Option<&Authenticator>) {
        if let (Access::Token(token, generation), Some(passwords)) = (&mut self.access, passwords)
            && *generation != passwords.generation()
        {
            *generation = passwords.generation();
            match passwords.tokens().iter().find(|other| other.is_same_secret(token)) {
                Some(other) => *token = other.clone(),
                None => self.access = Access::Unauthenticated,
            }
        }
    }

    /// Executes a command that needs no store.
    pub(super) fn execute(
        &mut self,
        name: &Keyword,
        words: Arguments<'_, '_>,
        passwords: Option<&Authenticator>,
        out: &mut Vec<u8>,
    ) -> SessionStep {
        match name.as_bytes() {
            b"AUTH" => self.auth(words, passwords, out),
            b"HELLO" => self.hello(words, passwords, out),
            b"QUIT" => {
                reply::simple_string(out, "OK");
                return SessionStep::Close;
            }
            b"RESET" => {
                let wrong_passwords = self.wrong_passwords;
                *self = Self { wrong_passwords, ..Self::new(self.connection_id, passwords) };
                reply::simple_string(out, "RESET");
            }
            // HTTP, which a page in a browser can send to any port. Its body may contain commands.
            b"POST" | b"HOST:" => return SessionStep::LingeringClose,
            _ if !self.is_authenticated() => reply::error(out, NOAUTH),
            b"PING" => match words.len() {
                1 => reply::simple_string(out, "PONG"),
                2 => reply::bulk_string(out, words.word(1)),
                _ => write_arity_error(out, "ping"),
            },
            b"ECHO" if words.len() == 2 => reply::bulk_string(out, words.word(1)),
            b"ECHO" => write_arity_error(out, "echo"),
            b"SELECT" if words.len() != 2 => write_arity_error(out, "select"),
            b"SELECT" => match str::from_utf8(words.word(1)).map(str::parse::<i64>) {
                Ok(Ok(0)) => reply::simple_string(out, "OK"),
                Ok(Ok(_)) => reply::error(out, "ERR DB index is out of range"),
                _ => reply::error(out, "ERR value is not an integer or out of range"),
            },
            b"CLIENT" => self.client(words, out),
            b"COMMAND" => self.command(words, out),
            b"INFO" => reply::bulk_string(out, info().as_bytes()),
            _ => write_unknown_command_error(words, out),
        }
        if self.wrong_passwords < MAX_WRONG_PASSWORDS {
            SessionStep::Continue
        } else {
            SessionStep::LingeringClose
        }
    }

    /// Executes `AUTH [username] password`. Any user name is valid.
    fn auth(&mut self, words: Arguments<'_, '_>, passwords: Option<&Authenticator>, out: &mut Vec<u8>) {
        if !(2..=3).contains(&words.len()) {
            return write_arity_error(out, "auth");
        }
        let user = if words.len() == 3 { Some(words.word(1)) } else { None };
        if self.authenticate(user, words.word(words.len() - 1), passwords, out) {
            reply::simple_string(out, "OK");
        }
    }

    /// Returns whether the password is valid, and writes an error if not.
    fn authenticate(
        &mut self,
        user: Option<&[u8]>,
        password: &[u8],
        passwords: Option<&Authenticator>,
        out: &mut Vec<u8>,
    ) -> bool {
        match passwords {
            // Some clients always authenticate, as this user.
            None if user == Some(b"default") => return true,
            None => reply::error(out, NO_PASSWORD),
            Some(passwords) => {
                // Read before the tokens, so that a reload in between leads to another validation.
                let generation = passwords.generation();
                if let Some(token) = passwords.tokens().find_by_secret(password) {
                    self.access = Access::Token(token.clone(), generation);
                    return true;
                }
                self.wrong_passwords = self.wrong_passwords.saturating_add(1);
                reply::error(out, WRONGPASS);
            }
        }
        false
    }

    /// Executes `HELLO [version [AUTH username password] [SETNAME name]]`.
    fn hello(&mut self, words: Arguments<'_, '_>, passwords: Option<&Authenticator>, out: &mut Vec<u8>) {
        let version = match words.word(1) {
            _ if words.len() == 1 => self.version,
            b"2" => ProtocolVersion::Two,
            b"3" => ProtocolVersion::Three,
            _ => return reply::error(out, "NOPROTO unsupported protocol version"),
        };
        let (mut index, mut credentials, mut client_name) = (2, None, None);
        while index < words.len() {
            let option = Keyword::of(words.word(index));
            match option.as_bytes() {
                b"AUTH" if index + 2 < words.len() => {
                    credentials = Some((words.word(index + 1), words.word(index + 2)));
                    index += 3;
                }
                b"SETNAME" if index + 1 < words.len() => {
                    client_name = Some(words.word(index + 1));
                    index += 2;
                }
                _ => return reply::error(out, SYNTAX),
            }
        }
        // All options are validated before the first takes effect.
        if client_name.is_some_and(|name| !is_client_name(name)) {
            return reply::error(out, &client_name_error());
        }
        if credentials
            .is_some_and(|(user, password)| !self.authenticate(Some(user), password, passwords, out))
        {
            return;
        }
        if !self.is_authenticated() {
            return reply::error(out, NOAUTH_HELLO);
        }
        if let Some(name) = client_name {
            self.client_name = name.to_vec();
        }
        self.version = version;
        self.write_server_properties(out);
    }

    fn write_server_properties(&self, out: &mut Vec<u8>) {
        let version = self.version;
        reply::map(out, version, 7);
        let text = |out: &mut Vec<u8>, name: &str, value: &str| {
            reply::bulk_string(out, name.as_bytes());
            reply::bulk_string(out, value.as_bytes());
        };
        text(out, "server", "slidegate");
        text(out, "version", REDIS_VERSION);
        reply::bulk_string(out, b"proto");
        reply::integer(out, if version == ProtocolVersion::Three { 3 } else { 2 });
        reply::bulk_string(out, b"id");
        reply::integer(out, self.connection_id.cast_signed());
        text(out, "mode", "standalone");
        text(out, "role", "master");
        reply::bulk_string(out, b"modules");
        reply::array(out, 0);
    }

    fn client(&mut self, words: Arguments<'_, '_>, out: &mut Vec<u8>) {
        let subcommand = Keyword::of(words.word(1));
        match (subcommand.as_bytes(), words.len()) {
            (b"SETNAME", 3) => {
                if is_client_name(words.word(2)) {
                    self.client_name = words.word(2).to_vec();
                    reply::simple_string(out, "OK");
                } else {
                    reply::error(out, &client_name_error());
                }
            }
            (b"GETNAME", 2) if self.client_name.is_empty() => reply::null(out, self.version),
            (b"GETNAME", 2) => reply::bulk_string(out, &self.client_name),
            (b"ID", 2) => reply::integer(out, self.connection_id.cast_signed()),
            (b"SETINFO", 4) | (b"NO-EVICT" | b"NO-TOUCH", 3) => reply::simple_string(out, "OK"),
            (b"SETNAME" | b"GETNAME" | b"ID" | b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH", _) => {
                let subcommand = String::from_utf8_lossy(subcommand.as_bytes()).to_lowercase();
                write_arity_error(out, &format!("client|{subcommand}"));
            }
            (_, 1) => write_arity_error(out, "client"),
            _ => {
                let word = truncated(words.word(1));
                reply::error(out, &format!("ERR unknown subcommand '{word}'. Try CLIENT HELP."));
            }
        }
    }

    /// Replies without descriptions of commands, which clients use for completion only.
    fn command(&self, words: Arguments<'_, '_>, out: &mut Vec<u8>) {
        match Keyword::of(words.word(1)).as_bytes() {
            b"COUNT" => reply::integer(out, 0),
            b"DOCS" => reply::map(out, self.version, 0),
            _ => reply::array(out, 0),
        }
    }
}

fn is_client_name(name: &[u8]) -> bool {
    name.iter().all(u8::is_ascii_graphic) && name.len() <= MAX_CLIENT_NAME_BYTES
}

fn client_name_error() -> String {
    format!(
        "ERR Client names cannot contain spaces, newlines or special characters, nor more than {MAX_CLIENT_NAME_BYTES} of them."
    )
}

fn info() -> String {
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nslidegate_version:{}\r\n\r\n\
         # Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n",
        env!("CARGO_PKG_VERSION")
    )
}

pub(super) fn write_arity_error(out: &mut Vec<u8>, name: &str) {
    reply::error(out, &format!("ERR wrong number of arguments for '{name}' command"));
}

fn truncated(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(MAX_QUOTED_BYTES)]).into_owned()
}

/// Writes the error for an unknown command, with the beginning of its arguments.
fn write_unknown_command_error(words: Arguments<'_, '_>, out: &mut Vec<u8>) {
    let mut arguments = String::new();
    for word in words.iter_from(1) {
        if arguments.len() >= MAX_QUOTED_BYTES {
            break;
        }
        let remaining = MAX_QUOTED_BYTES - arguments.len();
        let word = truncated(&word[..word.len().min(remaining)]);
        let _ = write!(arguments, "'{word}' ");
    }
    let name = truncated(words.word(0));
    reply::error(out, &format!("ERR unknown command '{name}', with args beginning with: {arguments}"));
}
