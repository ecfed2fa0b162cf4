//! Who watches an agent: hibernating WebSockets, so that a client that went away pins nothing.
//!
//! Each socket carries its own cursor (the last sequence number it was sent) in its attachment, which survives hibernation
//! and the rebuilding of the wasm instance; so a socket never misses an event and never gets one twice.

use crate::agent::view::Page;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use worker::{State, WebSocket};

/// Sockets of one agent.
pub(super) const SOCKETS_MAX: usize = 1_000;
/// Events of one page of a replay.
pub(super) const PAGE_EVENTS: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Cursor {
    /// The last number sent.
    seq: i64,
    /// The replay is done: what is committed from now on is sent at once.
    live: bool,
}

fn cursor(socket: &WebSocket) -> Option<Cursor> {
    socket.deserialize_attachment::<Cursor>().ok().flatten()
}

fn put_cursor(socket: &WebSocket, cursor: Cursor) {
    if let Err(error) = socket.serialize_attachment(cursor) {
        worker::console_error!("socket attachment: {error:?}");
    }
}

fn seq_of(event: &Value) -> i64 {
    event.get("seq").and_then(Value::as_i64).unwrap_or(0)
}

/// Takes a new socket that has seen everything up to `after`.
pub(super) fn accept(state: &State, socket: &WebSocket, after: i64) {
    state.accept_web_socket(socket);
    put_cursor(socket, Cursor { seq: after, live: false });
}

/// Sends events to every socket whose replay is done.
pub(super) fn publish(state: &State, events: &[Value]) {
    let sockets = state.get_websockets();
    if sockets.is_empty() {
        return;
    }
    let texts: Vec<(i64, String)> = events.iter().map(|event| (seq_of(event), event.to_string())).collect();
    for socket in sockets {
        let Some(standing) = cursor(&socket).filter(|cursor| cursor.live) else { continue };
        let mut seq = standing.seq;
        for (number, text) in &texts {
            let fresh = *number == 0 || *number > seq;
            if !fresh {
                continue;
            }
            if socket.send_with_str(text).is_err() {
                break;
            }
            seq = seq.max(*number);
        }
        if seq != standing.seq {
            put_cursor(&socket, Cursor { seq, live: true });
        }
    }
}

/// What is left of a socket's replay.
pub(super) enum Replay {
    /// There is more.
    More,
    /// It has caught up, or is gone.
    Done,
}

/// Sends the next page. `read` gives events after a number; `live` what of a stream in progress comes first.
pub(super) fn replay(socket: &WebSocket, read: impl Fn(i64) -> Option<Page>, live: impl Fn() -> Vec<Value>) -> Replay {
    let Some(standing) = cursor(socket).filter(|cursor| !cursor.live) else { return Replay::Done };
    let Some(page) = read(standing.seq) else {
        // Left open it would never be sent anything again; the client comes back and resumes where it was.
        let _ = socket.close(Some(CLOSE_TRY_AGAIN), Some("storage did not answer"));
        return Replay::Done;
    };
    let mut seq = standing.seq;
    for event in &page.events {
        if socket.send_with_str(event.to_string()).is_err() {
            return Replay::Done;
        }
        seq = seq.max(seq_of(event));
    }
    if page.more {
        put_cursor(socket, Cursor { seq, live: false });
        return Replay::More;
    }
    for event in live() {
        if socket.send_with_str(event.to_string()).is_err() {
            return Replay::Done;
        }
    }
    put_cursor(socket, Cursor { seq, live: true });
    Replay::Done
}

/// "Try again later", of the list of WebSocket close codes.
const CLOSE_TRY_AGAIN: u16 = 1013;

/// After the instance was rebuilt, sockets may lack what was committed just before: each is replayed from its cursor.
pub(super) fn reopen(state: &State) -> Vec<WebSocket> {
    let sockets = state.get_websockets();
    for socket in &sockets {
        if let Some(standing) = cursor(socket) {
            put_cursor(socket, Cursor { seq: standing.seq, live: false });
        }
    }
    sockets
}

/// Nothing more will ever come: the agent was deleted.
pub(super) fn close_all(state: &State) {
    for socket in state.get_websockets() {
        // A socket that is gone is no matter.
        let _ = socket.close(Some(1000), Some("deleted"));
    }
}
