//! Full disks.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};

use super::server::Postgres;

impl Postgres {
    /// Fills the disk beside the data. Panics unless the server was built with
    /// [`data_on_tmpfs`](super::PostgresBuilder::data_on_tmpfs).
    ///
    /// PostgreSQL can still use space that it has allocated: the rest of a page or of a WAL segment. When it needs a
    /// new segment it panics, and it does not always recover after [`free_disk`](Self::free_disk).
    /// [`restart`](Self::restart) it then.
    #[track_caller]
    pub fn fill_disk(&self) {
        assert!(self.folder.is_small(), "this server was built without data_on_tmpfs()");
        let mut ballast = File::create(self.folder.ballast()).expect("an empty file needs no space");
        let page = [0; 4096];
        loop {
            match ballast.write_all(&page) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("cannot fill the disk: {error}"),
            }
        }
    }

    /// Frees the disk after [`fill_disk`](Self::fill_disk).
    pub fn free_disk(&self) {
        fs::remove_file(self.folder.ballast()).expect("the disk was filled");
    }
}
