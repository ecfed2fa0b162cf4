//! The conformance checks over Durable Object storage, for the test Worker: in no release.

use super::sql::DurableStorage;
use super::world::now_ms;
use crate::conformance::{Check, checks};
use futures::future::LocalBoxFuture;
use worker::State;

/// Runs the checks of [`crate::conformance`] on the storage of this object.
pub async fn conformance(state: &State) -> Vec<Check> {
    let alarm = || -> LocalBoxFuture<'static, Option<i64>> {
        let storage = state.storage();
        Box::pin(async move { storage.get_alarm().await.unwrap_or(Some(-1)) })
    };
    checks(&DurableStorage::new(state), &alarm, now_ms()).await
}
