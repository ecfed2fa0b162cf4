//! The other ways in: the cron sweep, and the queue of wakes. A wake says "look"; it carries no decision.

use super::index::{self, Overdue};
use super::protocol::{Ask, ask};
use futures::StreamExt;
use serde::Deserialize;
use worker::wasm_bindgen::JsValue;
use worker::{Env, MessageBatch, MessageExt, Result, ScheduleContext, ScheduledEvent};

/// Objects woken at once by one sweep.
const WAKES_AT_ONCE: usize = 6;

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
    let mut response = ask(env, &agent.tenant, &agent.id, &Ask::Wake).await?;
    let body = response.bytes().await?;
    let woken: Woken = serde_json::from_slice(&body)?;
    index::put_due(env, agent, woken.due_ms).await
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
            Ok(wake) => {
                ask(&env, &wake.tenant, &wake.agent, &Ask::Wake).await.map(|_| ()).map_err(|e| format!("{e:?}"))
            }
            Err(error) => Err(error.to_string()),
        };
        match woken {
            Ok(()) => message.ack(),
            Err(error) => {
                worker::console_error!("queue {}: {error}", batch.queue());
                message.retry();
            }
        }
    }
}
