//! Reading one model response: deadlines (design R7), batches for the stream log (R3), live text.

use super::driver::{Driver, Host, OpenedStream};
use super::interface::{Event, ModelRequest, OpRef};
use crate::model::call::StreamEnd;
use crate::model::{Delta, Failure, FailureKind, Outcome};
use crate::signal::Signal;
use futures::StreamExt;
use futures::future::{Either, LocalBoxFuture, select};
use std::rc::Rc;

/// Reads a response to its end.
pub(super) async fn read<H: Host>(
    driver: &Rc<Driver<H>>,
    op: &OpRef,
    request: &ModelRequest,
    response: LocalBoxFuture<'static, Result<OpenedStream, String>>,
    signal: &Signal,
) -> Outcome {
    let timing = driver.host().timing();
    let began_ms = driver.host().now_ms();
    let first_byte = driver.host().sleep(timing.first_byte_ms);
    let opened = match select(select(response, signal.raised()), first_byte).await {
        Either::Left((Either::Left((opened, _)), _)) => opened,
        Either::Left((Either::Right(_), _)) => return aborted(),
        Either::Right(_) => return broken("no response within the time allowed for the first byte"),
    };
    let OpenedStream { head, mut body } = match opened {
        Ok(opened) => opened,
        Err(error) => return broken(&error),
    };
    let request_bytes = u64::try_from(request.body.len()).unwrap_or(u64::MAX);
    let target = driver.machine().target(&request.tier, &request.provider).cloned().unwrap_or_default();
    let context = target.call_context(request_bytes, began_ms);
    let mut decoder = driver.host().decoder(context, head);
    let mut batch = Batch::default();
    let mut watch = Watch { began_ms, last_event_ms: began_ms, finished_ms: None, bytes: false };
    let mut tick = driver.host().sleep(timing.batch_ms);
    let end = loop {
        let next = select(body.next(), signal.raised());
        match select(next, tick).await {
            Either::Left((Either::Right(_), _)) => break StreamEnd::Aborted,
            Either::Left((Either::Left((piece, _)), standing)) => {
                tick = standing;
                match piece {
                    None => break StreamEnd::Eof,
                    Some(Err(error)) => break StreamEnd::Broken(error),
                    Some(Ok(bytes)) => {
                        let events = decoder.events();
                        let mut deltas = Vec::new();
                        decoder.push(&bytes, &mut deltas);
                        watch.note(driver.host().now_ms(), decoder.events() > events, decoder.finished());
                        show(driver, &deltas);
                        batch.add(deltas);
                        if batch.bytes >= timing.batch_bytes {
                            batch.store(driver, op);
                        }
                        if decoder.done() {
                            break StreamEnd::Eof;
                        }
                    }
                }
            }
            Either::Right(((), _)) => {
                tick = driver.host().sleep(timing.batch_ms);
                batch.store(driver, op);
                if let Some(end) = watch.overdue(driver.host().now_ms(), &timing) {
                    break end;
                }
            }
        }
    };
    drop(body);
    decoder.end(end)
}

fn show<H: Host>(driver: &Rc<Driver<H>>, deltas: &[Delta]) {
    let events = driver.live_text().borrow_mut().as_mut().map(|live| live.push(deltas)).unwrap_or_default();
    if !events.is_empty() {
        driver.host().publish(&events);
    }
}

/// What came since the stream log was last written.
#[derive(Default)]
struct Batch {
    deltas: Vec<Delta>,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            let joins = matches!(
                (self.deltas.last(), &delta),
                (Some(Delta::Text(_)), Delta::Text(_)) | (Some(Delta::Thinking(_)), Delta::Thinking(_))
            );
            let frame = if joins { 0 } else { FRAME_BYTES };
            self.bytes = self.bytes.saturating_add(size_of_delta(&delta)).saturating_add(frame);
            match (self.deltas.last_mut(), delta) {
                (Some(Delta::Text(last)), Delta::Text(more)) | (Some(Delta::Thinking(last)), Delta::Thinking(more)) => {
                    last.push_str(&more);
                }
                (_, delta) => self.deltas.push(delta),
            }
        }
    }

    fn store<H: Host>(&mut self, driver: &Rc<Driver<H>>, op: &OpRef) {
        if !self.deltas.is_empty() {
            self.bytes = 0;
            let deltas = std::mem::take(&mut self.deltas);
            driver.feed_event(Event::StreamBatch { op: op.clone(), deltas });
        }
    }
}

/// Bytes around the text of a delta of its own.
const FRAME_BYTES: usize = 8;

/// Bytes of a delta's content.
fn size_of_delta(delta: &Delta) -> usize {
    match delta {
        Delta::Text(text) | Delta::Thinking(text) | Delta::Model(text) | Delta::Finish(text) => text.len(),
        Delta::Call { arguments, .. } => arguments.len().saturating_add(32),
        Delta::Reasoning(_) => 256,
        Delta::Usage(_) | Delta::NativeFinish(_) => 64,
        Delta::Error(_) => 256,
    }
}

/// The deadlines of one call, looked at with each tick.
struct Watch {
    began_ms: i64,
    last_event_ms: i64,
    finished_ms: Option<i64>,
    bytes: bool,
}

impl Watch {
    fn note(&mut self, now_ms: i64, event: bool, finished: bool) {
        self.bytes = true;
        if event {
            self.last_event_ms = now_ms;
        }
        if finished && self.finished_ms.is_none() {
            self.finished_ms = Some(now_ms);
        }
    }

    fn overdue(&self, now_ms: i64, timing: &super::driver::Timing) -> Option<StreamEnd> {
        let passed =
            |since_ms: i64, limit_ms: u64| u64::try_from(now_ms.saturating_sub(since_ms)).unwrap_or(0) >= limit_ms;
        if let Some(finished_ms) = self.finished_ms {
            // The answer is whole; only its trailer is missing.
            return passed(finished_ms, timing.trailer_ms).then_some(StreamEnd::Eof);
        }
        let broken = |text: &str| Some(StreamEnd::Broken(text.to_owned()));
        if !self.bytes && passed(self.began_ms, timing.first_byte_ms) {
            return broken("no byte within the time allowed for the first");
        }
        if passed(self.last_event_ms, timing.silence_ms) {
            return broken("the stream fell silent");
        }
        if passed(self.began_ms, timing.call_ms) {
            return broken("the call took longer than is allowed");
        }
        None
    }
}

fn broken(text: &str) -> Outcome {
    Outcome::Failed(Failure::new(FailureKind::Transient, text))
}

fn aborted() -> Outcome {
    Outcome::Failed(Failure::new(FailureKind::Aborted, "ended before the response began"))
}
