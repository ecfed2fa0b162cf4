//! The ports: everything the pure core needs from the world, as traits.
//!
//! `platform/` implements them over Durable Objects, `platform::host` over rusqlite and a settable clock. A decision of the
//! core is a synchronous function over [`Tx`]; it is given the time and its random ids and reads neither itself
//! (design A1, A2).

use std::fmt;

/// One SQL value. Booleans do not exist on purpose: Durable Object SQL binds them as the text `true` (use 0 and 1).
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// An integer within ±2^53 (Durable Object SQL carries integers as JavaScript numbers).
    Integer(i64),
    /// A floating point number.
    Real(f64),
    /// UTF-8 text, at most 1 MiB (design S3).
    Text(String),
    /// Bytes, at most 1 MiB (design S3).
    Blob(Vec<u8>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}
impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Integer(i64::from(value))
    }
}
impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}
impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// One result row, its columns in the order of the statement.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row(pub Vec<Value>);

impl Row {
    /// The text of column `index`; an error when it is absent or of another type.
    pub fn text(&self, index: usize) -> Result<&str, SqlError> {
        match self.0.get(index) {
            Some(Value::Text(text)) => Ok(text),
            other => Err(SqlError::column(index, "text", other)),
        }
    }

    /// The text of column `index`, or `None` when it is NULL.
    pub fn optional_text(&self, index: usize) -> Result<Option<&str>, SqlError> {
        match self.0.get(index) {
            Some(Value::Null) => Ok(None),
            _ => self.text(index).map(Some),
        }
    }

    /// The integer of column `index`; a real with an integral value counts (JavaScript has one kind of number).
    pub fn integer(&self, index: usize) -> Result<i64, SqlError> {
        match self.0.get(index) {
            Some(Value::Integer(number)) => Ok(*number),
            #[allow(clippy::cast_possible_truncation)]
            Some(Value::Real(number)) if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_991.0 => {
                Ok(*number as i64)
            }
            other => Err(SqlError::column(index, "integer", other)),
        }
    }

    /// The integer of column `index`, or `None` when it is NULL.
    pub fn optional_integer(&self, index: usize) -> Result<Option<i64>, SqlError> {
        match self.0.get(index) {
            Some(Value::Null) => Ok(None),
            _ => self.integer(index).map(Some),
        }
    }
}

/// What a statement or a transaction failed with. The transaction it happened in changes nothing (design S5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlError {
    /// The store's own text, for the log; never sent to a client.
    pub message: String,
}

impl SqlError {
    /// An error with this text.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }

    fn column(index: usize, wanted: &str, found: Option<&Value>) -> Self {
        let found = match found {
            None => "no such column",
            Some(Value::Null) => "null",
            Some(Value::Integer(_)) => "integer",
            Some(Value::Real(_)) => "real",
            Some(Value::Text(_)) => "text",
            Some(Value::Blob(_)) => "blob",
        };
        Self::new(format!("column {index}: wanted {wanted}, found {found}"))
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}
impl std::error::Error for SqlError {}

/// SQL inside one open transaction.
///
/// # Contract
/// Statements see the ones before them. The alarm set here commits and rolls back with the rows. `?1 ?2 …` or `?`
/// placeholders; one statement a call; no `BEGIN`, `COMMIT`, `SAVEPOINT`.
pub trait Tx {
    /// Runs a statement that returns no rows; gives the number of rows it changed.
    fn execute(&self, sql: &str, params: &[Value]) -> Result<u64, SqlError>;

    /// Runs a statement that returns no rows, for who does not need the count: on the platform that is a statement of its
    /// own.
    fn run(&self, sql: &str, params: &[Value]) -> Result<(), SqlError> {
        self.execute(sql, params).map(|_| ())
    }

    /// Runs a query and gives all its rows. Bound it with LIMIT.
    fn query(&self, sql: &str, params: &[Value]) -> Result<Vec<Row>, SqlError>;

    /// Sets the object's one alarm to this time (ms since 1970, UTC), or clears it.
    fn set_alarm(&self, at_ms: Option<i64>) -> Result<(), SqlError>;
}

/// The object's own storage.
///
/// # Contract
/// [`Storage::transact`] commits when the body returns `Ok` and changes nothing, the alarm included, when it returns
/// `Err`. Transactions do not nest. Committed state survives any crash; uncommitted state is never observed.
pub trait Storage {
    /// Runs `body` in one transaction. Prefer [`transaction`], which returns a value.
    fn transact(&self, body: &mut dyn FnMut(&dyn Tx) -> Result<(), SqlError>) -> Result<(), SqlError>;

    /// Rows read and written since this instance began, indexes and alarms counted: what the platform bills.
    fn row_counts(&self) -> RowCounts;
}

/// What storage did since the instance began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowCounts {
    /// Rows read.
    pub rows_read: u64,
    /// Rows written, indexes counted, and one for each alarm set or cleared.
    pub rows_written: u64,
    /// Statements executed.
    pub statements: u64,
}

/// Runs `body` in one transaction and returns its value. `E` is any error an [`SqlError`] turns into; an `Err` rolls back.
pub fn transaction<T, E: From<SqlError>>(
    storage: &dyn Storage,
    mut body: impl FnMut(&dyn Tx) -> Result<T, E>,
) -> Result<T, E> {
    let mut outcome: Option<Result<T, E>> = None;
    let ran = storage.transact(&mut |tx| match body(tx) {
        Ok(value) => {
            outcome = Some(Ok(value));
            Ok(())
        }
        Err(error) => {
            outcome = Some(Err(error));
            Err(SqlError::new("rolled back"))
        }
    });
    match (ran, outcome) {
        (_, Some(Err(error))) => Err(error),
        (Ok(()), Some(Ok(value))) => Ok(value),
        (Err(error), _) => Err(error.into()),
        (Ok(()), None) => Err(SqlError::new("the transaction body did not run").into()),
    }
}

/// The wall clock.
pub trait Clock {
    /// Milliseconds since 1970, UTC. It may stand still between I/O and may jump either way.
    fn now_ms(&self) -> i64;
}

/// The random source.
pub trait Random {
    /// 128 random bits.
    fn next_u128(&self) -> u128;
}

/// A fresh id: `prefix` and a ULID, so that ids of one object sort by time (design S4).
pub fn new_id(prefix: &str, now_ms: i64, random: &dyn Random) -> String {
    let ms = u64::try_from(now_ms).unwrap_or(0);
    format!("{prefix}_{}", ulid::Ulid::from_parts(ms, random.next_u128()).to_string().to_lowercase())
}
