//! State that all listeners share.

use std::sync::Arc;

use slidegate::Clock;
use slidegate::store::Store;
use slidegate_config::Tokens;
use slidegate_engine::{Authenticator, Engine, Readiness};

/// State that all listeners share: the engine, the tokens of clients and the readiness of the service.
#[derive(Debug)]
pub struct App<S> {
    engine: Arc<Engine<S>>,
    tokens: Arc<Authenticator>,
    readiness: Arc<Readiness>,
}

impl<S> App<S> {
    /// Creates the state of a service without tokens.
    pub fn new(engine: Engine<S>) -> Self {
        Self {
            engine: Arc::new(engine),
            tokens: Arc::new(Authenticator::new(Tokens::default())),
            readiness: Arc::default(),
        }
    }

    /// Sets the tokens of clients. Without tokens, every client may request decisions.
    #[must_use]
    pub fn with_tokens(self, tokens: Tokens) -> Self {
        Self { tokens: Arc::new(Authenticator::new(tokens)), ..self }
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Arc<Engine<S>> {
        &self.engine
    }

    /// Returns the authenticator of clients.
    pub fn tokens(&self) -> &Arc<Authenticator> {
        &self.tokens
    }

    /// Returns the conditions that the readiness probe reports.
    pub fn readiness(&self) -> &Arc<Readiness> {
        &self.readiness
    }
}

impl<S: Store> App<S> {
    /// Returns the store's clock.
    pub fn clock(&self) -> &dyn Clock {
        self.engine.clock()
    }
}
