//! A disk that is full when a test says so.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};

use super::server::Postgres;

impl Postgres {
    /// Writes a file until nothing more fits beside the data. Panics unless the server was built with
    /// [`data_on_tmpfs`](super::PostgresBuilder::data_on_tmpfs).
    ///
    /// What PostgreSQL had allocated it can still use: the rest of a page, of a segment of its log. Once it needs a new
    /// segment it panics, and does not always come back by itself when there is room again; then
    /// [`restart`](Self::restart) it.
    #[track_caller]
    pub fn fill_disk(&self) {
        assert!(self.folder.is_small(), "this server was built without data_on_tmpfs()");
        let mut ballast = File::create(self.folder.ballast()).expect("a file needs no room");
        let page = [0; 4096];
        loop {
            match ballast.write_all(&page) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("cannot fill the disk: {error}"),
            }
        }
    }

    /// Makes room again.
    pub fn free_disk(&self) {
        fs::remove_file(self.folder.ballast()).expect("the disk was filled");
    }
}
