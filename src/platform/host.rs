//! The ports on the host, for tests, the simulation and the command line: rusqlite, and an alarm that is part of the
//! transaction as it is in a Durable Object.

use crate::port::{Random, Row, RowCounts, SqlError, Storage, Tx, Value};
use rusqlite::Connection;
use rusqlite::types::{ToSqlOutput, ValueRef};
use std::cell::{Cell, RefCell};

/// Storage of one object in a SQLite database.
pub struct HostStorage {
    connection: Connection,
    alarm: Cell<Option<i64>>,
    counts: RefCell<RowCounts>,
}

impl HostStorage {
    /// Storage in memory.
    pub fn in_memory() -> Result<Self, SqlError> {
        Ok(Self::over(Connection::open_in_memory().map_err(sql_error)?))
    }

    /// Storage over this connection.
    pub fn over(connection: Connection) -> Self {
        Self { connection, alarm: Cell::new(None), counts: RefCell::default() }
    }

    /// What the committed alarm stands at.
    pub fn alarm(&self) -> Option<i64> {
        self.alarm.get()
    }

    /// Sets the alarm outside any transaction: the platform does when it fires.
    pub fn put_alarm(&self, at_ms: Option<i64>) {
        self.alarm.set(at_ms);
    }
}

impl Storage for HostStorage {
    fn transact(&self, body: &mut dyn FnMut(&dyn Tx) -> Result<(), SqlError>) -> Result<(), SqlError> {
        self.connection.execute_batch("BEGIN IMMEDIATE").map_err(sql_error)?;
        let tx = HostTx { storage: self, alarm: Cell::new(None) };
        match body(&tx) {
            Ok(()) => {
                self.connection.execute_batch("COMMIT").map_err(sql_error)?;
                if let Some(alarm) = tx.alarm.get() {
                    self.alarm.set(alarm);
                    self.count(0, 1);
                }
                Ok(())
            }
            Err(error) => {
                self.connection.execute_batch("ROLLBACK").map_err(sql_error)?;
                Err(error)
            }
        }
    }

    fn row_counts(&self) -> RowCounts {
        *self.counts.borrow()
    }
}

impl HostStorage {
    fn count(&self, read: u64, written: u64) {
        let mut counts = self.counts.borrow_mut();
        counts.rows_read = counts.rows_read.saturating_add(read);
        counts.rows_written = counts.rows_written.saturating_add(written);
        counts.statements = counts.statements.saturating_add(1);
    }
}

struct HostTx<'a> {
    storage: &'a HostStorage,
    alarm: Cell<Option<Option<i64>>>,
}

impl Tx for HostTx<'_> {
    fn execute(&self, sql: &str, params: &[Value]) -> Result<u64, SqlError> {
        let mut statement = self.storage.connection.prepare_cached(sql).map_err(sql_error)?;
        let changed = statement.execute(rusqlite::params_from_iter(params)).map_err(sql_error)?;
        let changed = u64::try_from(changed).unwrap_or(u64::MAX);
        self.storage.count(0, changed);
        Ok(changed)
    }

    fn query(&self, sql: &str, params: &[Value]) -> Result<Vec<Row>, SqlError> {
        let mut statement = self.storage.connection.prepare_cached(sql).map_err(sql_error)?;
        let columns = statement.column_count();
        let mut rows = statement.query(rusqlite::params_from_iter(params)).map_err(sql_error)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(sql_error)? {
            let values = (0..columns)
                .map(|index| row.get_ref(index).map(read_value).map_err(sql_error))
                .collect::<Result<Vec<Value>, SqlError>>()?;
            found.push(Row(values));
        }
        self.storage.count(u64::try_from(found.len()).unwrap_or(u64::MAX), 0);
        Ok(found)
    }

    fn set_alarm(&self, at_ms: Option<i64>) -> Result<(), SqlError> {
        self.alarm.set(Some(at_ms));
        Ok(())
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Real(number) => ValueRef::Real(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

fn read_value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(bytes) => Value::Text(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    }
}

fn sql_error(error: rusqlite::Error) -> SqlError {
    SqlError::new(error.to_string())
}

/// Random bits from a seed: the same seed, the same bits (SplitMix64).
pub struct SeededRandom(Cell<u64>);

impl SeededRandom {
    /// A source that begins at this seed.
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    /// The next 64 bits.
    pub fn next_u64(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.0.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, 0 when `bound` is 0.
    pub fn below(&self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX);
        self.next_u64().checked_rem(bound).and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
    }
}

impl Random for SeededRandom {
    fn next_u128(&self) -> u128 {
        (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64())
    }
}
