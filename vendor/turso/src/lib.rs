//! The names of `turso` that `cubecl-environment` uses, with a database that never opens.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use transaction::{Transaction, TransactionBehavior};

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// An error.
#[derive(Debug, Clone)]
pub enum Error {
    /// Another process holds a lock.
    Busy(String),
    /// Another process holds a snapshot.
    BusySnapshot(String),
    /// A file operation failed.
    IoError(std::io::ErrorKind, &'static str),
    /// Anything else.
    Error(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(reason) | Self::BusySnapshot(reason) | Self::Error(reason) => {
                f.write_str(reason)
            }
            Self::IoError(kind, what) => write!(f, "{what}: {kind}"),
        }
    }
}

impl std::error::Error for Error {}

/// The location and options of a database.
pub struct Builder;

impl Builder {
    /// A database in a file.
    pub fn new_local(_path: &str) -> Self {
        Self
    }

    /// Whether nothing is written.
    pub fn read_only(self, _yes: bool) -> Self {
        self
    }

    /// Whether several processes share the file.
    pub fn experimental_multiprocess_wal(self, _yes: bool) -> Self {
        self
    }

    /// Whether the file may be compacted.
    pub fn experimental_vacuum(self, _yes: bool) -> Self {
        self
    }

    /// Opens the database.
    ///
    /// # Errors
    /// Always.
    pub async fn build(self) -> Result<Database> {
        Err(Error::Error("this build has no database".into()))
    }
}

/// A database; there is none.
#[derive(Debug)]
pub struct Database(Infallible);

impl Database {
    /// A connection.
    pub fn connect(&self) -> Result<Connection> {
        match self.0 {}
    }
}

/// A connection; there is none.
pub struct Connection(Infallible);

impl Connection {
    /// Sets the time to wait for a lock.
    pub fn busy_timeout(&self, _time: Duration) -> Result<()> {
        match self.0 {}
    }

    /// Runs a statement that gives rows.
    pub async fn query<P>(&self, _statement: impl AsRef<str>, _parameters: P) -> Result<Rows> {
        match self.0 {}
    }

    /// Runs a statement and counts the rows that it changed.
    pub async fn execute<P>(&self, _statement: impl AsRef<str>, _parameters: P) -> Result<u64> {
        match self.0 {}
    }

    /// Runs a pragma.
    pub async fn pragma_query(
        &self,
        _name: &str,
        _row: impl FnMut(&Row) -> Result<()>,
    ) -> Result<()> {
        match self.0 {}
    }

    /// Begins a transaction.
    pub async fn transaction_with_behavior(
        &mut self,
        _behavior: TransactionBehavior,
    ) -> Result<Transaction<'_>> {
        match self.0 {}
    }
}

/// The rows of a query; there are none.
pub struct Rows(Infallible);

impl Rows {
    /// The next row.
    pub async fn next(&mut self) -> Result<Option<Row>> {
        match self.0 {}
    }
}

/// A row; there is none.
pub struct Row(Infallible);

impl Row {
    /// A column.
    pub fn get<T>(&self, _column: usize) -> Result<T> {
        match self.0 {}
    }
}

/// Transactions.
pub mod transaction {
    use std::ops::Deref;

    use super::{Connection, Result};

    /// When a transaction takes the lock.
    pub enum TransactionBehavior {
        /// At the first write.
        Deferred,
        /// At once.
        Immediate,
    }

    /// A transaction.
    pub struct Transaction<'a>(&'a Connection);

    impl Transaction<'_> {
        /// Ends it and keeps what was written.
        pub async fn commit(self) -> Result<()> {
            match self.0.0 {}
        }
    }

    impl Deref for Transaction<'_> {
        type Target = Connection;

        fn deref(&self) -> &Connection {
            self.0
        }
    }
}
