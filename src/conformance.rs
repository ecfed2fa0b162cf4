//! What every implementation of the SQL port must do: one list of checks for rusqlite on the host and for Durable Object
//! storage inside workerd. In no release: tests only, and the feature `conformance` of the test Worker.

use crate::port::{Row, SqlError, Storage, Tx, Value, transaction};
use futures::future::LocalBoxFuture;

/// One check and what it found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What must hold.
    pub name: &'static str,
    /// Nothing, or what was found instead.
    pub outcome: Result<(), String>,
}

/// Reads the alarm that is committed.
pub type ReadAlarm<'a> = &'a dyn Fn() -> LocalBoxFuture<'static, Option<i64>>;

type Outcome = Result<(), String>;
type Synchronous = fn(&dyn Storage) -> Outcome;

const CHECKS: &[(&str, Synchronous)] = &[
    ("a transaction commits and gives its value", commits),
    ("an Err rolls back every statement, tables too", rolls_back),
    ("statements see the ones before them", sees_its_own),
    ("every kind of value comes back as it was", round_trip),
    ("integers stand as integers in STRICT tables", strict_integers),
    ("a whole real is read as an integer", whole_reals),
    ("1 MiB of text and of bytes come back", large_values),
    ("10,000 rows come back in order", many_rows),
    ("the number of changed rows is that of the statement", changed_rows),
    ("RETURNING gives the rows", returning),
    ("numbered and plain placeholders bind", placeholders),
    ("wrong numbers of parameters are an Err", parameter_counts),
    ("constraint errors are an Err", constraints),
    ("unknown tables and columns and bad SQL are an Err", bad_statements),
    ("after a failed statement the transaction goes on without it", goes_on_after_failure),
    ("a failed statement of many rows leaves none of them", whole_statements),
    ("WITHOUT ROWID tables keep their order", without_rowid),
    ("a partial index binds only what it covers", partial_index),
    ("rows and statements are counted", counts),
];

/// Runs all checks. Tables and alarm of the storage are the checks' own. `now_ms` lets alarms stand in the future.
pub async fn checks(storage: &dyn Storage, alarm: ReadAlarm<'_>, now_ms: i64) -> Vec<Check> {
    let mut found: Vec<Check> = CHECKS
        .iter()
        .map(|(name, check)| Check { name, outcome: clean(storage).map_err(text).and_then(|()| check(storage)) })
        .collect();
    let name = "an alarm commits and rolls back with the rows";
    found.push(Check { name, outcome: alarms(storage, alarm, now_ms).await });
    found
}

const TABLES: [&str; 2] = ["t", "u"];

fn clean(storage: &dyn Storage) -> Result<(), SqlError> {
    transaction(storage, |tx| {
        for table in TABLES {
            tx.execute(&format!("DROP TABLE IF EXISTS {table}"), &[])?;
        }
        Ok(())
    })
}

fn text(error: SqlError) -> String {
    error.message
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, wanted: &T) -> Outcome {
    if found == wanted { Ok(()) } else { Err(format!("{what}: found {found:?}, wanted {wanted:?}")) }
}

fn run<T>(storage: &dyn Storage, body: impl FnMut(&dyn Tx) -> Result<T, SqlError>) -> Result<T, String> {
    transaction(storage, body).map_err(text)
}

fn numbers(storage: &dyn Storage, sql: &str) -> Result<Vec<i64>, String> {
    run(storage, |tx| tx.query(sql, &[])?.iter().map(|row| row.integer(0)).collect())
}

fn table(tx: &dyn Tx) -> Result<(), SqlError> {
    tx.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT UNIQUE) STRICT", &[]).map(|_| ())
}

fn insert(tx: &dyn Tx, id: i64, v: &str) -> Result<u64, SqlError> {
    tx.execute("INSERT INTO t (id, v) VALUES (?1, ?2)", &[id.into(), v.into()])
}

fn commits(storage: &dyn Storage) -> Outcome {
    let value = run(storage, |tx| {
        table(tx)?;
        insert(tx, 1, "a")?;
        Ok(7)
    })?;
    same("the value", &value, &7)?;
    same("rows", &numbers(storage, "SELECT id FROM t")?, &vec![1])
}

fn rolls_back(storage: &dyn Storage) -> Outcome {
    run(storage, |tx| {
        table(tx)?;
        insert(tx, 1, "a")
    })?;
    let failed: Result<(), SqlError> = transaction(storage, |tx| {
        insert(tx, 2, "b")?;
        tx.execute("UPDATE t SET v = 'c' WHERE id = 1", &[])?;
        tx.execute("DELETE FROM t WHERE id = 2", &[])?;
        tx.execute("CREATE TABLE u (id INTEGER)", &[])?;
        insert(tx, 3, "d")?;
        Err(SqlError::new("as the body said"))
    });
    same("the error", &failed.map_err(text), &Err("as the body said".to_owned()))?;
    let rows = run(storage, |tx| tx.query("SELECT id, v FROM t ORDER BY id", &[]))?;
    same("rows", &rows, &vec![Row(vec![Value::Integer(1), "a".into()])])?;
    let tables = numbers(storage, "SELECT count(*) FROM sqlite_master WHERE name = 'u'")?;
    same("tables", &tables, &vec![0])?;
    // And it is over: the next one works.
    run(storage, |tx| insert(tx, 4, "e"))?;
    same("rows of the next transaction", &numbers(storage, "SELECT id FROM t ORDER BY id")?, &vec![1, 4])
}

fn sees_its_own(storage: &dyn Storage) -> Outcome {
    let seen = run(storage, |tx| {
        table(tx)?;
        insert(tx, 1, "a")?;
        tx.execute("UPDATE t SET v = 'b'", &[])?;
        tx.query("SELECT v FROM t", &[])
    })?;
    same("seen", &seen, &vec![Row(vec!["b".into()])])
}

const EXACT_MAX: i64 = 9_007_199_254_740_991;

fn round_trip(storage: &dyn Storage) -> Outcome {
    let values = [
        Value::Null,
        Value::Integer(0),
        Value::Integer(-1),
        Value::Integer(2_147_483_648),
        Value::Integer(EXACT_MAX),
        Value::Integer(EXACT_MAX.saturating_neg()),
        Value::Real(0.1),
        Value::Real(-1.5e-300),
        Value::Real(1.7e308),
        Value::Text(String::new()),
        "plain".into(),
        "a\0b\0".into(),
        "tab\tline\r\nquote'\"`\\".into(),
        "ä € 語 👩‍👩‍👧 \u{10FFFF} \u{FEFF}".into(),
        "9007199254740993".into(),
        "true".into(),
        Value::Blob(Vec::new()),
        Value::Blob(vec![0]),
        Value::Blob((0..=255).collect()),
    ];
    run(storage, |tx| tx.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v ANY) STRICT", &[]))?;
    for value in &values {
        let found = run(storage, |tx| {
            tx.execute("DELETE FROM t", &[])?;
            tx.execute("INSERT INTO t (id, v) VALUES (1, ?1)", std::slice::from_ref(value))?;
            tx.query("SELECT v FROM t", &[])
        })?;
        same("stored", &found, &vec![Row(vec![value.clone()])])?;
        let found = run(storage, |tx| tx.query("SELECT ?1", std::slice::from_ref(value)))?;
        same("bound", &found, &vec![Row(vec![value.clone()])])?;
        // A store that keeps texts by their length also finds them by it.
        let found = run(storage, |tx| tx.query("SELECT count(*) FROM t WHERE v IS ?1", std::slice::from_ref(value)))?;
        same(&format!("found again {value:?}"), &found, &vec![Row(vec![Value::Integer(1)])])?;
    }
    Ok(())
}

fn strict_integers(storage: &dyn Storage) -> Outcome {
    let found = run(storage, |tx| {
        tx.execute("CREATE TABLE t (a INTEGER NOT NULL, b REAL NOT NULL) STRICT", &[])?;
        tx.execute("INSERT INTO t VALUES (?1, ?2)", &[Value::Integer(7), Value::Integer(7)])?;
        tx.execute("INSERT INTO t VALUES (?1, ?2)", &[Value::Integer(EXACT_MAX), Value::Real(0.5)])?;
        tx.query("SELECT typeof(a), typeof(b) FROM t ORDER BY a", &[])
    })?;
    let row = Row(vec!["integer".into(), "real".into()]);
    same("types", &found, &vec![row.clone(), row])?;
    let refused = run(storage, |tx| tx.execute("INSERT INTO t VALUES (?1, 1)", &["7 apples".into()]));
    same("text in an INTEGER column is refused", &refused.is_err(), &true)?;
    same("a bound LIMIT", &run(storage, |tx| tx.query("SELECT a FROM t LIMIT ?1", &[1.into()]))?.len(), &1)
}

fn whole_reals(storage: &dyn Storage) -> Outcome {
    same("5.0", &numbers(storage, "SELECT 5.0")?, &vec![5])?;
    let bound =
        run(storage, |tx| tx.query("SELECT ?1", &[Value::Real(-3.0)])?.first().map_or(Ok(0), |row| row.integer(0)))?;
    same("-3.0 bound", &bound, &-3)
}

const MIB: usize = 1_048_576;

fn large_values(storage: &dyn Storage) -> Outcome {
    let long = "ü".repeat(MIB / 2);
    let bytes: Vec<u8> = (0..=255).cycle().take(MIB).collect();
    let found = run(storage, |tx| {
        tx.execute("CREATE TABLE t (a TEXT, b BLOB) STRICT", &[])?;
        tx.execute("INSERT INTO t VALUES (?1, ?2)", &[long.as_str().into(), Value::Blob(bytes.clone())])?;
        tx.query("SELECT a, b FROM t", &[])
    })?;
    let [Row(columns)] = found.as_slice() else { return Err(format!("{} rows", found.len())) };
    let [Value::Text(text), Value::Blob(blob)] = columns.as_slice() else { return Err("other kinds".to_owned()) };
    same("the text is the same", &(*text == long), &true)?;
    same("the bytes are the same", &(*blob == bytes), &true)
}

fn many_rows(storage: &dyn Storage) -> Outcome {
    const ROWS: i64 = 10_000;
    let changed = run(storage, |tx| {
        table(tx)?;
        let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
            INSERT INTO t (id, v) SELECT i, 'row ' || i FROM n";
        tx.execute(many, &[ROWS.into()])
    })?;
    same("changed", &changed, &10_000)?;
    let found = numbers(storage, "SELECT id FROM t ORDER BY id")?;
    same("in order", &found.iter().copied().eq(1..=ROWS), &true)
}

fn changed_rows(storage: &dyn Storage) -> Outcome {
    let found = run(storage, |tx| {
        table(tx)?;
        let inserted = tx.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')", &[])?;
        let all = tx.execute("UPDATE t SET v = v || '!'", &[])?;
        let none = tx.execute("UPDATE t SET v = 'z' WHERE id = 9", &[])?;
        let ignored = tx.execute("INSERT OR IGNORE INTO t VALUES (1, 'x')", &[])?;
        let upserted =
            tx.execute("INSERT INTO t VALUES (1, 'y') ON CONFLICT (id) DO UPDATE SET v = excluded.v", &[])?;
        let deleted = tx.execute("DELETE FROM t WHERE id > 1", &[])?;
        let again = tx.execute("DELETE FROM t WHERE id > 1", &[])?;
        Ok([inserted, all, none, ignored, upserted, deleted, again])
    })?;
    same("changed", &found, &[3, 3, 0, 0, 1, 2, 0])
}

fn returning(storage: &dyn Storage) -> Outcome {
    let found = run(storage, |tx| {
        table(tx)?;
        insert(tx, 1, "a")?;
        tx.query("UPDATE t SET v = ?1 WHERE id = 1 RETURNING id, v", &["b".into()])
    })?;
    same("returned", &found, &vec![Row(vec![Value::Integer(1), "b".into()])])?;
    same("stored", &numbers(storage, "SELECT id FROM t WHERE v = 'b'")?, &vec![1])
}

fn placeholders(storage: &dyn Storage) -> Outcome {
    let numbered = run(storage, |tx| tx.query("SELECT ?2, ?1, ?2", &["a".into(), "b".into()]))?;
    same("numbered", &numbered, &vec![Row(vec!["b".into(), "a".into(), "b".into()])])?;
    let plain = run(storage, |tx| tx.query("SELECT ?, ?", &["a".into(), "b".into()]))?;
    same("plain", &plain, &vec![Row(vec!["a".into(), "b".into()])])
}

fn parameter_counts(storage: &dyn Storage) -> Outcome {
    let few = run(storage, |tx| tx.query("SELECT ?1, ?2", &["a".into()]));
    same("too few are refused", &few.is_err(), &true)?;
    let many = run(storage, |tx| tx.query("SELECT ?1", &["a".into(), "b".into()]));
    same("too many are refused", &many.is_err(), &true)
}

fn constraints(storage: &dyn Storage) -> Outcome {
    run(storage, |tx| {
        tx.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT NOT NULL UNIQUE CHECK (v <> 'no')) STRICT", &[])?;
        insert(tx, 1, "a")
    })?;
    let statements = [
        ("primary key", "INSERT INTO t VALUES (1, 'b')"),
        ("unique", "INSERT INTO t VALUES (2, 'a')"),
        ("not null", "INSERT INTO t VALUES (2, NULL)"),
        ("check", "INSERT INTO t VALUES (2, 'no')"),
        ("type", "INSERT INTO t VALUES ('x', 'c')"),
    ];
    for (what, sql) in statements {
        let by_execute = run(storage, |tx| tx.execute(sql, &[]));
        same(&format!("{what}, executed, is refused"), &by_execute.is_err(), &true)?;
        let by_query = run(storage, |tx| tx.query(&format!("{sql} RETURNING id"), &[]));
        same(&format!("{what}, queried, is refused"), &by_query.is_err(), &true)?;
    }
    same("rows", &numbers(storage, "SELECT id FROM t")?, &vec![1])
}

fn bad_statements(storage: &dyn Storage) -> Outcome {
    run(storage, table)?;
    for sql in ["SELECT nothing FROM t", "SELECT id FROM nowhere", "SELEKT 1", "INSERT INTO t (id, w) VALUES (1, 2)"] {
        same(&format!("{sql}, queried, is refused"), &run(storage, |tx| tx.query(sql, &[])).is_err(), &true)?;
        same(&format!("{sql}, executed, is refused"), &run(storage, |tx| tx.execute(sql, &[])).is_err(), &true)?;
    }
    // A column that is not there, or of another kind, is an error of the row.
    let rows = run(storage, |tx| tx.query("SELECT 'a', NULL", &[]))?;
    let row = rows.first().ok_or("no row")?;
    same("text as an integer", &row.integer(0).is_err(), &true)?;
    same("NULL as text", &row.text(1).is_err(), &true)?;
    same("no such column", &row.optional_text(2).is_err(), &true)
}

fn goes_on_after_failure(storage: &dyn Storage) -> Outcome {
    run(storage, |tx| {
        table(tx)?;
        insert(tx, 1, "a")?;
        let failures = [insert(tx, 1, "b").is_err(), tx.query("SELECT nothing FROM t", &[]).is_err()];
        if failures != [true, true] {
            return Err(SqlError::new("a statement should have failed"));
        }
        insert(tx, 2, "c")
    })?;
    same("rows", &numbers(storage, "SELECT id FROM t ORDER BY id")?, &vec![1, 2])
}

fn whole_statements(storage: &dyn Storage) -> Outcome {
    run(storage, |tx| {
        table(tx)?;
        insert(tx, 3, "c")?;
        match tx.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'again'), (4, 'd')", &[]) {
            Ok(_) => Err(SqlError::new("the statement should have failed")),
            Err(_) => Ok(()),
        }
    })?;
    same("rows", &numbers(storage, "SELECT id FROM t ORDER BY id")?, &vec![3])
}

fn without_rowid(storage: &dyn Storage) -> Outcome {
    let found = run(storage, |tx| {
        tx.execute("CREATE TABLE t (k TEXT, n INTEGER, v TEXT, PRIMARY KEY (k, n)) STRICT, WITHOUT ROWID", &[])?;
        for (k, n) in [("b", 2), ("a", 2), ("b", 1), ("a", 1)] {
            tx.execute("INSERT INTO t VALUES (?1, ?2, '')", &[k.into(), n.into()])?;
        }
        let again = "INSERT INTO t VALUES ('a', 1, 'x') ON CONFLICT (k, n) DO UPDATE SET v = excluded.v";
        tx.execute(again, &[])?;
        tx.query("SELECT k || n || v FROM t ORDER BY k, n", &[])
    })?;
    let wanted: Vec<Row> = ["a1x", "a2", "b1", "b2"].into_iter().map(|text| Row(vec![text.into()])).collect();
    same("rows", &found, &wanted)
}

fn partial_index(storage: &dyn Storage) -> Outcome {
    run(storage, |tx| {
        table(tx)?;
        tx.execute("CREATE TABLE u (k TEXT, live INTEGER NOT NULL) STRICT", &[])?;
        tx.execute("CREATE UNIQUE INDEX u_live ON u (k) WHERE live = 1", &[])?;
        for live in [1, 0, 0] {
            tx.execute("INSERT INTO u VALUES ('a', ?1)", &[Value::Integer(live)])?;
        }
        Ok(())
    })?;
    let second = run(storage, |tx| tx.execute("INSERT INTO u VALUES ('a', 1)", &[]));
    same("a second one it covers is refused", &second.is_err(), &true)?;
    same("rows", &numbers(storage, "SELECT count(*) FROM u")?, &vec![3])
}

fn counts(storage: &dyn Storage) -> Outcome {
    let before = storage.row_counts();
    run(storage, |tx| {
        table(tx)?;
        insert(tx, 1, "a")?;
        tx.query("SELECT id FROM t", &[])
    })?;
    let after = storage.row_counts();
    same("rows read grew", &(after.rows_read > before.rows_read), &true)?;
    same("rows written grew", &(after.rows_written > before.rows_written), &true)?;
    same("statements grew", &(after.statements >= before.statements.saturating_add(3)), &true)
}

async fn alarms(storage: &dyn Storage, alarm: ReadAlarm<'_>, now_ms: i64) -> Outcome {
    const HOUR_MS: i64 = 3_600_000;
    let (first, second) = (now_ms.saturating_add(HOUR_MS), now_ms.saturating_add(HOUR_MS.saturating_mul(2)));
    clean(storage).map_err(text)?;
    run(storage, |tx| {
        table(tx)?;
        insert(tx, 1, "a")?;
        tx.set_alarm(Some(second))?;
        tx.set_alarm(Some(first))
    })?;
    same("committed, the last one of two", &alarm().await, &Some(first))?;
    for change in [Some(second), None] {
        let failed: Result<(), SqlError> = transaction(storage, |tx| {
            tx.set_alarm(change)?;
            insert(tx, 2, "b")?;
            Err(SqlError::new("no"))
        });
        same("it failed", &failed.is_err(), &true)?;
        same("after a rollback", &alarm().await, &Some(first))?;
        same("rows after a rollback", &numbers(storage, "SELECT id FROM t")?, &vec![1])?;
    }
    run(storage, |tx| insert(tx, 3, "c"))?;
    same("a transaction that says nothing of it", &alarm().await, &Some(first))?;
    run(storage, |tx| tx.set_alarm(Some(second)))?;
    same("moved", &alarm().await, &Some(second))?;
    run(storage, |tx| tx.set_alarm(None))?;
    same("cleared", &alarm().await, &None)?;
    let failed: Result<(), SqlError> = transaction(storage, |tx| {
        tx.set_alarm(Some(first))?;
        Err(SqlError::new("no"))
    });
    same("it failed", &failed.is_err(), &true)?;
    same("none was set by a rollback", &alarm().await, &None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::host::HostStorage;
    use std::rc::Rc;

    #[test]
    fn rusqlite_conforms() {
        let storage = Rc::new(HostStorage::in_memory().unwrap());
        let alarm = || -> LocalBoxFuture<'static, Option<i64>> { Box::pin(std::future::ready(storage.alarm())) };
        let found = futures::executor::block_on(checks(&*storage, &alarm, 1_000_000));
        let failed: Vec<&Check> = found.iter().filter(|check| check.outcome.is_err()).collect();
        assert!(failed.is_empty(), "{failed:#?}");
        assert_eq!(found.len(), CHECKS.len() + 1);
    }
}
