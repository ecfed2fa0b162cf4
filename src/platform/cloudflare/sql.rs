//! The SQL port over Durable Object storage.
//!
//! Own bindings, because the ones of the crate either lack a call (`transactionSync`) or turn a JavaScript exception into
//! the death of the wasm instance (`next`, `toArray`, `one`).

use super::model::js_text;
use crate::port::{Row, RowCounts, SqlError, Storage, Tx, Value};
use std::cell::Cell;
use worker::js_sys::{Array, ArrayBuffer, Uint8Array};
use worker::wasm_bindgen::prelude::*;
use worker::{State, js_sys, wasm_bindgen};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(extends = js_sys::Object)]
    type StorageHandle;

    #[wasm_bindgen(method, catch, js_name = transactionSync)]
    fn transaction_sync(
        this: &StorageHandle,
        body: &mut dyn FnMut() -> Result<JsValue, JsValue>,
    ) -> Result<JsValue, JsValue>;

    #[wasm_bindgen(method, getter, catch)]
    fn sql(this: &StorageHandle) -> Result<SqlHandle, JsValue>;

    #[wasm_bindgen(method, catch, js_name = setAlarm)]
    fn set_alarm(this: &StorageHandle, at_ms: f64) -> Result<js_sys::Promise, JsValue>;

    #[wasm_bindgen(method, catch, js_name = deleteAlarm)]
    fn delete_alarm(this: &StorageHandle) -> Result<js_sys::Promise, JsValue>;

    type SqlHandle;

    #[wasm_bindgen(method, catch, variadic)]
    fn exec(this: &SqlHandle, sql: &str, params: &Array) -> Result<CursorHandle, JsValue>;

    type CursorHandle;

    #[wasm_bindgen(method, catch)]
    fn raw(this: &CursorHandle) -> Result<js_sys::Iterator, JsValue>;

    #[wasm_bindgen(method, getter, catch, js_name = rowsRead)]
    fn rows_read(this: &CursorHandle) -> Result<f64, JsValue>;

    #[wasm_bindgen(method, getter, catch, js_name = rowsWritten)]
    fn rows_written(this: &CursorHandle) -> Result<f64, JsValue>;
}

/// Storage of one Durable Object.
pub(super) struct DurableStorage {
    handle: StorageHandle,
    counts: Cell<RowCounts>,
}

impl DurableStorage {
    pub(super) fn new(state: &State) -> Self {
        let storage = state.storage();
        let handle: &JsValue = storage.as_raw().as_ref();
        Self { handle: handle.clone().unchecked_into(), counts: Cell::default() }
    }

    fn count(&self, read: f64, written: f64) {
        let mut counts = self.counts.get();
        // Counts of JavaScript are whole and far below 2^53.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let (read, written) = (read as u64, written as u64);
        counts.rows_read = counts.rows_read.saturating_add(read);
        counts.rows_written = counts.rows_written.saturating_add(written);
        counts.statements = counts.statements.saturating_add(1);
        self.counts.set(counts);
    }

    fn start(&self, sql: &str, params: &[Value]) -> Result<CursorHandle, SqlError> {
        let bound = params.iter().map(to_js).collect::<Array>();
        self.handle.sql().and_then(|handle| handle.exec(sql, &bound)).map_err(sql_error)
    }

    fn rows(&self, cursor: &CursorHandle) -> Result<Vec<Row>, SqlError> {
        let mut rows = Vec::new();
        let iterator = cursor.raw().map_err(sql_error)?;
        loop {
            let step = iterator.next().map_err(sql_error)?;
            if step.done() {
                break;
            }
            let columns: Array = step.value().unchecked_into();
            rows.push(Row(columns.iter().map(|value| from_js(&value)).collect()));
        }
        let read = cursor.rows_read().map_err(sql_error)?;
        let written = cursor.rows_written().map_err(sql_error)?;
        self.count(read, written);
        Ok(rows)
    }
}

impl Storage for DurableStorage {
    fn transact(&self, body: &mut dyn FnMut(&dyn Tx) -> Result<(), SqlError>) -> Result<(), SqlError> {
        let mut failure: Option<SqlError> = None;
        let ran = self.handle.transaction_sync(&mut || match body(self) {
            Ok(()) => Ok(JsValue::UNDEFINED),
            Err(error) => {
                let thrown = JsValue::from_str(&error.message);
                failure = Some(error);
                Err(thrown)
            }
        });
        match (ran, failure) {
            (_, Some(error)) => Err(error),
            (Ok(_), None) => Ok(()),
            (Err(thrown), None) => Err(sql_error(thrown)),
        }
    }

    fn row_counts(&self) -> RowCounts {
        self.counts.get()
    }
}

impl Tx for DurableStorage {
    fn execute(&self, sql: &str, params: &[Value]) -> Result<u64, SqlError> {
        let cursor = self.start(sql, params)?;
        self.rows(&cursor)?;
        let changed = self.start("SELECT changes()", &[])?;
        let rows = self.rows(&changed)?;
        let changed = rows.first().map_or(Ok(0), |row| row.integer(0))?;
        Ok(u64::try_from(changed).unwrap_or(0))
    }

    fn run(&self, sql: &str, params: &[Value]) -> Result<(), SqlError> {
        let cursor = self.start(sql, params)?;
        self.rows(&cursor).map(|_| ())
    }

    fn query(&self, sql: &str, params: &[Value]) -> Result<Vec<Row>, SqlError> {
        let cursor = self.start(sql, params)?;
        self.rows(&cursor)
    }

    fn set_alarm(&self, at_ms: Option<i64>) -> Result<(), SqlError> {
        // Inside transactionSync it commits and rolls back with the rows; its promise has nothing to say.
        #[allow(clippy::cast_precision_loss)]
        let set = match at_ms {
            Some(at_ms) => self.handle.set_alarm(at_ms as f64),
            None => self.handle.delete_alarm(),
        };
        let _promise = set.map_err(sql_error)?;
        self.count(0.0, 1.0);
        Ok(())
    }
}

#[allow(clippy::cast_precision_loss)]
fn to_js(value: &Value) -> JsValue {
    match value {
        Value::Null => JsValue::NULL,
        Value::Integer(number) => JsValue::from_f64(*number as f64),
        Value::Real(number) => JsValue::from_f64(*number),
        Value::Text(text) => JsValue::from_str(text),
        Value::Blob(bytes) => Uint8Array::from(bytes.as_slice()).into(),
    }
}

fn from_js(value: &JsValue) -> Value {
    const EXACT_MAX: f64 = 9_007_199_254_740_991.0;
    if let Some(number) = value.as_f64() {
        #[allow(clippy::cast_possible_truncation)]
        return if number.fract() == 0.0 && number.abs() <= EXACT_MAX {
            Value::Integer(number as i64)
        } else {
            Value::Real(number)
        };
    }
    if let Some(text) = value.as_string() {
        return Value::Text(text);
    }
    match value.dyn_ref::<ArrayBuffer>() {
        Some(buffer) => Value::Blob(Uint8Array::new(buffer).to_vec()),
        None => Value::Null,
    }
}

fn sql_error(thrown: JsValue) -> SqlError {
    SqlError::new(js_text(&thrown))
}
