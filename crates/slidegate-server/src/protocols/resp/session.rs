//! What a connection is known by, and the commands that are about nothing else: what clients say before they get to the
//! point.

use std::fmt::Write as _;

use slidegate::Verb;

use super::command::Name;
use super::frame::Arguments;
use super::reply::{self, Version};
use crate::authenticator::{Authenticator, authorize};
use crate::request::Rejection;
use slidegate_config::Token;

/// How much of a command that nobody knows is repeated.
const MAX_REPEATED: usize = 128;
/// Clients look for what a server of this version can do.
const REDIS_VERSION: &str = "7.0.0";
const NOAUTH: &str = "NOAUTH Authentication required.";
const NOAUTH_HELLO: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                            HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
                            select the RESP protocol version at the same time";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are \
                           you sure your configuration is correct?";
const WRONGPASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const SYNTAX: &str = "ERR syntax error";
/// Whoever has said so many wrong passwords has to connect again, which is seen and costs time.
const MAX_WRONG_PASSWORDS: u8 = 10;

/// One connection, as it has introduced itself.
#[derive(Debug)]
pub(super) struct Session {
    number: u64,
    version: Version,
    name: Vec<u8>,
    admitted: Admitted,
    wrong_passwords: u8,
}

/// Whether somebody may ask.
#[derive(Debug)]
enum Admitted {
    /// As anybody may.
    Anyway,
    /// Not yet.
    No,
    /// By this token, which was valid when they had been replaced so many times.
    By(Token, u64),
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    GoOn,
    /// It is over.
    End,
    /// It is over in the middle of what the other side says.
    Break,
}

impl Session {
    pub(super) fn new(number: u64, passwords: Option<&Authenticator>) -> Self {
        Self {
            number,
            version: Version::default(),
            name: Vec::new(),
            admitted: if passwords.is_none() { Admitted::Anyway } else { Admitted::No },
            wrong_passwords: 0,
        }
    }

    /// Refuses a verb that the connection's token is not for.
    #[inline]
    pub(super) fn may(&self, verb: Verb) -> Result<(), Rejection> {
        if let Admitted::By(token, _) = &self.admitted { authorize(token, verb) } else { Ok(()) }
    }

    /// Whether it has yet to say a password.
    #[inline]
    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.admitted, Admitted::No)
    }

    /// Whoever came in by a token that is not valid any more is a stranger again.
    #[inline]
    pub(super) fn look_again(&mut self, passwords: Option<&Authenticator>) {
        if let (Admitted::By(token, turns), Some(passwords)) = (&mut self.admitted, passwords)
            && *turns != passwords.generation()
        {
            *turns = passwords.generation();
            match passwords.tokens().iter().find(|other| other.is_same_secret(token)) {
                Some(other) => *token = other.clone(),
                None => self.admitted = Admitted::No,
            }
        }
    }

    /// Answers a command that needs no store.
    pub(super) fn answer(
        &mut self,
        name: &Name,
        words: Arguments<'_, '_>,
        passwords: Option<&Authenticator>,
        out: &mut Vec<u8>,
    ) -> Next {
        match name.as_bytes() {
            b"AUTH" => self.auth(words, passwords, out),
            b"HELLO" => self.hello(words, passwords, out),
            b"QUIT" => {
                reply::simple(out, "OK");
                return Next::End;
            }
            b"RESET" => {
                let wrong_passwords = self.wrong_passwords;
                *self = Self { wrong_passwords, ..Self::new(self.number, passwords) };
                reply::simple(out, "RESET");
            }
            // A page in a browser can make it send HTTP to any port. The rest of that may be commands.
            b"POST" | b"HOST:" => return Next::Break,
            _ if self.is_stranger() => reply::error(out, NOAUTH),
            b"PING" => match words.len() {
                1 => reply::simple(out, "PONG"),
                2 => reply::bulk(out, words.word(1)),
                _ => arity(out, "ping"),
            },
            b"ECHO" if words.len() == 2 => reply::bulk(out, words.word(1)),
            b"ECHO" => arity(out, "echo"),
            b"SELECT" if words.len() != 2 => arity(out, "select"),
            b"SELECT" => match str::from_utf8(words.word(1)).map(str::parse::<i64>) {
                Ok(Ok(0)) => reply::simple(out, "OK"),
                Ok(Ok(_)) => reply::error(out, "ERR DB index is out of range"),
                _ => reply::error(out, "ERR value is not an integer or out of range"),
            },
            b"CLIENT" => self.client(words, out),
            b"COMMAND" => self.command(words, out),
            b"INFO" => reply::bulk(out, info().as_bytes()),
            _ => unknown(words, out),
        }
        if self.wrong_passwords < MAX_WRONG_PASSWORDS { Next::GoOn } else { Next::Break }
    }

    /// `AUTH [username] password`: the name does not matter.
    fn auth(&mut self, words: Arguments<'_, '_>, passwords: Option<&Authenticator>, out: &mut Vec<u8>) {
        if !(2..=3).contains(&words.len()) {
            return arity(out, "auth");
        }
        let user = if words.len() == 3 { Some(words.word(1)) } else { None };
        if self.admit(user, words.word(words.len() - 1), passwords, out) {
            reply::simple(out, "OK");
        }
    }

    /// Whether the password is one; else it is said what is wrong with it.
    fn admit(
        &mut self,
        user: Option<&[u8]>,
        password: &[u8],
        passwords: Option<&Authenticator>,
        out: &mut Vec<u8>,
    ) -> bool {
        match passwords {
            // Some send it to whomever they talk to.
            None if user == Some(b"default") => return true,
            None => reply::error(out, NO_PASSWORD),
            Some(passwords) => {
                // Before: if they are replaced meanwhile, it is looked at again.
                let turns = passwords.generation();
                if let Some(token) = passwords.tokens().find_by_secret(password) {
                    self.admitted = Admitted::By(token.clone(), turns);
                    return true;
                }
                self.wrong_passwords = self.wrong_passwords.saturating_add(1);
                reply::error(out, WRONGPASS);
            }
        }
        false
    }

    /// `HELLO [version [AUTH username password] [SETNAME name]]`.
    fn hello(&mut self, words: Arguments<'_, '_>, passwords: Option<&Authenticator>, out: &mut Vec<u8>) {
        let version = match words.word(1) {
            _ if words.len() == 1 => self.version,
            b"2" => Version::Two,
            b"3" => Version::Three,
            _ => return reply::error(out, "NOPROTO unsupported protocol version"),
        };
        let (mut place, mut user, mut name) = (2, None, None);
        while place < words.len() {
            let option = Name::of(words.word(place));
            match option.as_bytes() {
                b"AUTH" if place + 2 < words.len() => {
                    user = Some((words.word(place + 1), words.word(place + 2)));
                    place += 3;
                }
                b"SETNAME" if place + 1 < words.len() => {
                    name = Some(words.word(place + 1));
                    place += 2;
                }
                _ => return reply::error(out, SYNTAX),
            }
        }
        // All of it or nothing: who is refused is no more than before.
        if name.is_some_and(|name| !is_name(name)) {
            return reply::error(out, &bad_name());
        }
        if user.is_some_and(|(user, password)| !self.admit(Some(user), password, passwords, out)) {
            return;
        }
        if self.is_stranger() {
            return reply::error(out, NOAUTH_HELLO);
        }
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        self.version = version;
        self.greet(out);
    }

    fn greet(&self, out: &mut Vec<u8>) {
        let version = self.version;
        reply::map(out, version, 7);
        let text = |out: &mut Vec<u8>, name: &str, value: &str| {
            reply::bulk(out, name.as_bytes());
            reply::bulk(out, value.as_bytes());
        };
        text(out, "server", "slidegate");
        text(out, "version", REDIS_VERSION);
        reply::bulk(out, b"proto");
        reply::integer(out, if version == Version::Three { 3 } else { 2 });
        reply::bulk(out, b"id");
        reply::integer(out, self.number.cast_signed());
        text(out, "mode", "standalone");
        text(out, "role", "master");
        reply::bulk(out, b"modules");
        reply::array(out, 0);
    }

    fn client(&mut self, words: Arguments<'_, '_>, out: &mut Vec<u8>) {
        let verb = Name::of(words.word(1));
        match (verb.as_bytes(), words.len()) {
            (b"SETNAME", 3) => {
                if is_name(words.word(2)) {
                    self.name = words.word(2).to_vec();
                    reply::simple(out, "OK");
                } else {
                    reply::error(out, &bad_name());
                }
            }
            (b"GETNAME", 2) if self.name.is_empty() => reply::null(out, self.version),
            (b"GETNAME", 2) => reply::bulk(out, &self.name),
            (b"ID", 2) => reply::integer(out, self.number.cast_signed()),
            (b"SETINFO", 4) | (b"NO-EVICT" | b"NO-TOUCH", 3) => reply::simple(out, "OK"),
            (b"SETNAME" | b"GETNAME" | b"ID" | b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH", _) => {
                let verb = String::from_utf8_lossy(verb.as_bytes()).to_lowercase();
                arity(out, &format!("client|{verb}"));
            }
            (_, 1) => arity(out, "client"),
            _ => {
                let word = repeated(words.word(1));
                reply::error(out, &format!("ERR unknown subcommand '{word}'. Try CLIENT HELP."));
            }
        }
    }

    /// Nothing is told about commands: whoever asks does so to help typing.
    fn command(&self, words: Arguments<'_, '_>, out: &mut Vec<u8>) {
        match Name::of(words.word(1)).as_bytes() {
            b"COUNT" => reply::integer(out, 0),
            b"DOCS" => reply::map(out, self.version, 0),
            _ => reply::array(out, 0),
        }
    }
}

fn is_name(name: &[u8]) -> bool {
    name.iter().all(u8::is_ascii_graphic) && name.len() <= MAX_REPEATED
}

fn bad_name() -> String {
    format!(
        "ERR Client names cannot contain spaces, newlines or special characters, nor more than {MAX_REPEATED} of them."
    )
}

fn info() -> String {
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nslidegate_version:{}\r\n\r\n\
         # Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n",
        env!("CARGO_PKG_VERSION")
    )
}

pub(super) fn arity(out: &mut Vec<u8>, name: &str) {
    reply::error(out, &format!("ERR wrong number of arguments for '{name}' command"));
}

fn repeated(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(MAX_REPEATED)]).into_owned()
}

fn unknown(words: Arguments<'_, '_>, out: &mut Vec<u8>) {
    let mut arguments = String::new();
    for word in words.from(1) {
        if arguments.len() >= MAX_REPEATED {
            break;
        }
        let rest = MAX_REPEATED - arguments.len();
        let word = repeated(&word[..word.len().min(rest)]);
        let _ = write!(arguments, "'{word}' ");
    }
    let name = repeated(words.word(0));
    reply::error(out, &format!("ERR unknown command '{name}', with args beginning with: {arguments}"));
}
