//! The other ways in: the cron sweep, and the queue of wakes. A wake says "look"; it carries no decision.

use super::index::{self, Overdue};
use super::protocol::{Ask, ask, read_error};
use super::world::sleep;
use futures::StreamExt;
use futures::future::{Either, select};
use serde::Deserialize;
use worker::wasm_bindgen::JsValue;
use worker::{Env, Error, MessageBatch, MessageExt, Result, ScheduleContext, ScheduledEvent};

/// Objects woken at once by one sweep.
const WAKES_AT_ONCE: usize = 6;
/// How long one object may take to look, ms.
const WAKE_TIMEOUT_MS: u64 = 10_000;

/// The `scheduled` of a Worker made with `export!`: wakes agents whose due time is long past (design L1).
pub async fn scheduled(_: ScheduledEvent, env: Env, _: ScheduleContext) {
    let overdue = match index::overdue(&env).await {
        Ok(overdue) => overdue,
        Err(error) => {
            worker::console_error!("sweep: {error:?}");
            return;
        }
    };
    futures::stream::iter(overdue)
        .for_each_concurrent(WAKES_AT_ONCE, |agent| {
            let env = env.clone();
            async move {
                if let Err(error) = wake_overdue(&env, &agent).await {
                    worker::console_error!("sweep: {}/{}: {error:?}", agent.tenant, agent.id);
                }
            }
        })
        .await;
}

#[derive(Deserialize)]
struct Woken {
    due_ms: Option<i64>,
}

async fn wake_overdue(env: &Env, agent: &Overdue) -> Result<()> {
    let woken = wake(env, &agent.tenant, &agent.id).await?;
    index::put_due(env, agent, woken.due_ms).await
}

/// Wakes an object. What it refuses is an error: an agent that could not look must not be taken for one at rest.
async fn wake(env: &Env, tenant: &str, agent: &str) -> Result<Woken> {
    let asking = async {
        let mut response = ask(env, tenant, agent, &Ask::Wake).await?;
        let body = response.bytes().await?;
        if response.status_code() >= 400 {
            return Err(Error::RustError(read_error(&body).to_string()));
        }
        Ok(serde_json::from_slice(&body)?)
    };
    // An object whose instance panicked never answers.
    match select(Box::pin(asking), sleep(WAKE_TIMEOUT_MS)).await {
        Either::Left((woken, _)) => woken,
        Either::Right(_) => Err(Error::RustError("the object did not answer in time".to_owned())),
    }
}

/// A message of the wake queue.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wake {
    tenant: String,
    agent: String,
}

/// The `queue` of a Worker made with `export!`. Each message is acknowledged or retried by itself; it never fails as a
/// whole, since that kills the instance.
pub async fn queue(batch: MessageBatch<JsValue>, env: Env) {
    for message in batch.raw_iter() {
        let text = message.body().as_string().unwrap_or_default();
        let woken = match serde_json::from_str::<Wake>(&text) {
            Ok(message) => wake(&env, &message.tenant, &message.agent).await.map_err(|error| format!("{error:?}")),
            Err(error) => Err(error.to_string()),
        };
        match woken {
            Ok(_) => message.ack(),
            Err(error) => {
                worker::console_error!("queue {}: {error}", batch.queue());
                message.retry();
            }
        }
    }
}
