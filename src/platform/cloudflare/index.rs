//! The index of agents in D1: for lists and for the sweep. It may lag; no decision reads it.

use super::world::now_ms;
use crate::agent::IndexRow;
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::Cell;
use worker::wasm_bindgen::JsValue;
use worker::{D1Database, Env, Result};

/// The D1 schema this release knows.
pub(super) const D1_SCHEMA_VERSION: i64 = 1;
/// Agents on one page of a list.
const PAGE_AGENTS: usize = 100;
/// Agents one sweep wakes.
const SWEEP_AGENTS_MAX: u32 = 200;
/// The alarm is trusted this long before the sweep steps in, ms.
const OVERDUE_MS: i64 = 90_000;

/// How the D1 schema fits this release.
pub(super) enum D1Schema {
    /// As it must be.
    Fits,
    /// Migrations are missing.
    Older(i64),
    /// A later release migrated it.
    Newer(i64),
}

thread_local! {
    // Once it fits it fits for as long as this instance lives; until then it is looked at with each request.
    static FITS: Cell<bool> = const { Cell::new(false) };
}

#[derive(Deserialize)]
struct VersionRow {
    value: String,
}

/// Looks at the schema version.
pub(super) async fn schema(env: &Env) -> Result<D1Schema> {
    if FITS.with(Cell::get) {
        return Ok(D1Schema::Fits);
    }
    let found =
        database(env)?.prepare("SELECT value FROM meta WHERE key = 'schema_version'").first::<VersionRow>(None).await;
    let version = match found {
        Ok(row) => row.and_then(|row| row.value.parse().ok()).unwrap_or(0),
        Err(error) if format!("{error:?}").contains("no such table") => 0,
        Err(error) => return Err(error),
    };
    Ok(match version.cmp(&D1_SCHEMA_VERSION) {
        std::cmp::Ordering::Less => D1Schema::Older(version),
        std::cmp::Ordering::Greater => D1Schema::Newer(version),
        std::cmp::Ordering::Equal => {
            FITS.with(|fits| fits.set(true));
            D1Schema::Fits
        }
    })
}

fn database(env: &Env) -> Result<D1Database> {
    env.d1("DB")
}

#[allow(clippy::cast_precision_loss)]
fn number(value: i64) -> JsValue {
    JsValue::from_f64(value as f64)
}

/// Upserts a row; a version that is not newer changes nothing.
pub(super) async fn upsert(env: &Env, tenant: &str, agent: &str, row: &IndexRow) -> Result<()> {
    let sql = "INSERT INTO agent (tenant, id, status, due_ms, version, updated_ms, deleted) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
               ON CONFLICT (tenant, id) DO UPDATE SET status = excluded.status, due_ms = excluded.due_ms, \
               version = excluded.version, updated_ms = excluded.updated_ms, deleted = excluded.deleted \
               WHERE excluded.version > agent.version";
    let params = [
        tenant.into(),
        agent.into(),
        row.status.as_str().into(),
        row.due_ms.map_or(JsValue::NULL, number),
        number(row.version),
        number(now_ms()),
        number(i64::from(row.deleted)),
    ];
    database(env)?.prepare(sql).bind(&params)?.run().await?;
    Ok(())
}

#[derive(Deserialize)]
struct ListRow {
    id: String,
    status: String,
    updated_ms: f64,
}

/// A page of a tenant's agents, by id. The cursor is the last id of the page before.
pub(super) async fn list(env: &Env, tenant: &str, status: Option<&str>, cursor: Option<&str>) -> Result<Value> {
    let sql = "SELECT id, status, updated_ms FROM agent WHERE tenant = ?1 AND id > ?2 AND deleted = 0 \
               AND (?3 IS NULL OR status = ?3) ORDER BY id LIMIT ?4";
    let limit = i64::try_from(PAGE_AGENTS).unwrap_or(100);
    let params = [
        tenant.into(),
        cursor.unwrap_or("").into(),
        status.map_or(JsValue::NULL, JsValue::from_str),
        number(limit.saturating_add(1)),
    ];
    let mut rows = database(env)?.prepare(sql).bind(&params)?.all().await?.results::<ListRow>()?;
    let more = rows.len() > PAGE_AGENTS;
    rows.truncate(PAGE_AGENTS);
    let next = if more { rows.last().map(|row| row.id.clone()) } else { None };
    let agents: Vec<Value> = rows
        .iter()
        .map(|row| {
            #[allow(clippy::cast_possible_truncation)]
            let updated_ms = row.updated_ms as i64;
            json!({ "id": row.id, "status": row.status, "updated_at": crate::agent::rfc3339(updated_ms) })
        })
        .collect();
    Ok(json!({ "agents": agents, "next": next }))
}

/// An agent whose due time is long past.
#[derive(Deserialize)]
pub(super) struct Overdue {
    /// Its tenant.
    pub(super) tenant: String,
    /// Its id.
    pub(super) id: String,
}

/// Agents that should have been awake by now, the longest overdue first.
pub(super) async fn overdue(env: &Env) -> Result<Vec<Overdue>> {
    let sql = "SELECT tenant, id FROM agent WHERE due_ms IS NOT NULL AND due_ms < ?1 AND deleted = 0 ORDER BY due_ms LIMIT ?2";
    let params = [number(now_ms().saturating_sub(OVERDUE_MS)), number(i64::from(SWEEP_AGENTS_MAX))];
    database(env)?.prepare(sql).bind(&params)?.all().await?.results::<Overdue>()
}

/// After a sweep woke it: when it is due next, so that the next sweep looks at others.
pub(super) async fn put_due(env: &Env, agent: &Overdue, due_ms: Option<i64>) -> Result<()> {
    let sql = "UPDATE agent SET due_ms = ?3 WHERE tenant = ?1 AND id = ?2";
    let params = [agent.tenant.as_str().into(), agent.id.as_str().into(), due_ms.map_or(JsValue::NULL, number)];
    database(env)?.prepare(sql).bind(&params)?.run().await?;
    Ok(())
}
