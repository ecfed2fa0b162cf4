//! The tables of one agent, and their versions (design S2).

use crate::port::{SqlError, Tx};

/// The version this release writes.
pub const SCHEMA_VERSION: i64 = 1;

/// One additive step for each version; step `n` brings version `n` to `n + 1`. Never edited once released.
const MIGRATIONS: [&[&str]; 1] = [&[
    // One row: what resuming needs. `state` is small JSON, `config` is rewritten only when it changes.
    "CREATE TABLE agent (one INTEGER PRIMARY KEY CHECK (one = 1), config TEXT NOT NULL, state TEXT NOT NULL) STRICT",
    // One row for each transaction that made something visible: events `first..=seq`, as a JSON array. Clients number
    // events, the bill counts rows. `body` is NULL when the text lies in `part` (design S3).
    "CREATE TABLE log (seq INTEGER PRIMARY KEY, first INTEGER NOT NULL, body TEXT, at_ms INTEGER NOT NULL) STRICT",
    "CREATE TABLE part (seq INTEGER NOT NULL, n INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (seq, n)) STRICT, WITHOUT ROWID",
    // The request id is the key, so a submission costs one row; only those that wait are in the index.
    "CREATE TABLE submission (request_id TEXT PRIMARY KEY, id TEXT NOT NULL, position INTEGER NOT NULL, mode TEXT NOT NULL, \
     body_sha256 TEXT NOT NULL, content TEXT, status TEXT NOT NULL, run_id TEXT, entry INTEGER, answer INTEGER, reason TEXT, \
     created_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE INDEX submission_queued ON submission (position) WHERE status = 'queued'",
    // Tool calls of the current round.
    "CREATE TABLE work (position INTEGER PRIMARY KEY, state TEXT NOT NULL) STRICT",
    // The stream log of the model call in flight.
    "CREATE TABLE chunk (op TEXT NOT NULL, n INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (op, n)) STRICT, WITHOUT ROWID",
    // Values of `ctx.memo`: the first writer wins, for the life of the run.
    "CREATE TABLE memo (run_id TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (run_id, name)) STRICT, WITHOUT ROWID",
    // Signals nobody waited for yet: the last 100 are kept.
    "CREATE TABLE signal (request_id TEXT PRIMARY KEY, name TEXT NOT NULL, call TEXT, value TEXT NOT NULL, at_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE TABLE schema_version (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL) STRICT",
    "INSERT INTO schema_version (one, version) VALUES (1, 1)",
]];

/// The tables that hold what was said and done; a deletion empties them.
pub(super) const CONTENT_TABLES: [&str; 7] = ["log", "part", "submission", "work", "chunk", "memo", "signal"];

/// What the stored schema is to this release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaState {
    /// It fits, possibly after migrating.
    Ready,
    /// A later release wrote it: nothing is touched, every request answers `schema_newer`.
    Newer(i64),
}

/// Brings the tables to [`SCHEMA_VERSION`] inside the caller's transaction.
pub fn migrate(tx: &dyn Tx) -> Result<SchemaState, SqlError> {
    let found = stored_version(tx)?;
    if found > SCHEMA_VERSION {
        return Ok(SchemaState::Newer(found));
    }
    let done = usize::try_from(found).unwrap_or(0);
    for statements in MIGRATIONS.iter().skip(done) {
        for statement in *statements {
            tx.run(statement, &[])?;
        }
    }
    if found > 0 && found < SCHEMA_VERSION {
        tx.run("UPDATE schema_version SET version = ?1 WHERE one = 1", &[SCHEMA_VERSION.into()])?;
    }
    Ok(SchemaState::Ready)
}

/// Whether anything was ever stored: an object that was only looked at has no tables.
pub(super) fn present(tx: &dyn Tx) -> Result<bool, SqlError> {
    Ok(stored_version(tx)? > 0)
}

/// Whether something is stored that this release wrote.
pub(super) fn fits(tx: &dyn Tx) -> Result<bool, SqlError> {
    Ok(stored_version(tx)? == SCHEMA_VERSION)
}

/// Asks the table itself: looking it up among the tables would read a row for each of them.
fn stored_version(tx: &dyn Tx) -> Result<i64, SqlError> {
    match tx.query("SELECT version FROM schema_version WHERE one = 1", &[]) {
        Ok(rows) => rows.first().map_or(Ok(0), |row| row.integer(0)),
        Err(error) if error.message.contains("no such table") => Ok(0),
        Err(error) => Err(error),
    }
}
