//! An incremental parser of server-sent events over bytes.
//!
//! Our own, because the crates at hand discard an event that the end of the body leaves unterminated, swallow bodies that
//! are no event stream without a word, and set no limits. Bytes are never scanned twice, and UTF-8 is decoded for a whole
//! event, so that no split of the input can change what comes out.

use std::fmt;
use std::mem;

/// The longest line, bytes.
pub const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most data of one event, bytes.
pub const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How much of a body that is no event stream is kept, bytes: enough to say what it was.
pub const STRAY_BYTES_MAX: usize = 8 * 1024;

const BOM: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// One event with data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// The `event:` field, when there was a non-empty one.
    pub event: Option<String>,
    /// The data lines joined with a line feed; never blank, never a comment dressed as data (`data: : keepalive`).
    pub data: String,
}

/// The stream broke a limit. Nothing after it is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SseError {
    /// A line longer than [`LINE_BYTES_MAX`].
    LineTooLong,
    /// An event with more data than [`EVENT_BYTES_MAX`].
    EventTooLarge,
}

impl fmt::Display for SseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::LineTooLong => "a line of the stream is longer than 16 MiB",
            Self::EventTooLarge => "an event of the stream is larger than 16 MiB",
        })
    }
}
impl std::error::Error for SseError {}

/// The parser. Feed it every chunk, then call [`SseParser::end`] once.
#[derive(Debug, Default)]
pub struct SseParser {
    /// The line in progress, without the part that is still in the caller's chunk.
    line: Vec<u8>,
    data: Vec<u8>,
    have_data: bool,
    event: Option<String>,
    /// The last line ended in CR: an LF that follows belongs to it.
    skip_lf: bool,
    bom_checked: bool,
    bom_matched: usize,
    stray: Vec<u8>,
    bytes: u64,
    events: u64,
    lossy_events: u64,
    broken: Option<SseError>,
}

impl SseParser {
    /// A parser at the start of a body.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and appends the events they complete.
    ///
    /// # Errors
    /// A limit was broken; the events before it are in `out`, and every later call fails the same way.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<SseEvent>) -> Result<(), SseError> {
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if let Some(error) = self.broken {
            return Err(error);
        }
        let result = self.lines(bytes, out);
        self.broken = result.err();
        result
    }

    /// The body ended: an event without its blank line, even without its line end, is still an event.
    ///
    /// # Errors
    /// As [`SseParser::push`].
    pub fn end(&mut self, out: &mut Vec<SseEvent>) -> Result<(), SseError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        if !self.bom_checked {
            self.bom_checked = true;
            self.line.extend(BOM.iter().take(self.bom_matched));
        }
        let line = mem::take(&mut self.line);
        let result = if line.is_empty() { Ok(()) } else { self.take_line(&line, out) };
        self.broken = result.err();
        self.dispatch(out);
        result
    }

    /// Bytes so far, comments included: any of them is a sign of life.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Events so far: comments are no progress.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Events whose bytes were not UTF-8 and were read with replacement characters.
    pub fn lossy_events(&self) -> u64 {
        self.lossy_events
    }

    /// The lines that belong to no event stream, at most [`STRAY_BYTES_MAX`] of them: an error page, a bare JSON body.
    pub fn stray(&self) -> String {
        String::from_utf8_lossy(&self.stray).into_owned()
    }

    fn lines(&mut self, mut bytes: &[u8], out: &mut Vec<SseEvent>) -> Result<(), SseError> {
        while !self.bom_checked {
            let Some((first, rest)) = bytes.split_first() else { return Ok(()) };
            if BOM.get(self.bom_matched) == Some(first) {
                self.bom_matched = self.bom_matched.saturating_add(1);
                self.bom_checked = self.bom_matched == BOM.len();
                bytes = rest;
            } else {
                self.bom_checked = true;
                self.line.extend(BOM.iter().take(self.bom_matched));
            }
        }
        loop {
            if self.skip_lf
                && let Some((first, rest)) = bytes.split_first()
            {
                self.skip_lf = false;
                if *first == b'\n' {
                    bytes = rest;
                }
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let line_end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let Some((line, rest)) = line_end.and_then(|at| bytes.split_at_checked(at)) else {
                return self.hold(bytes);
            };
            let Some((terminator, rest)) = rest.split_first() else { return Ok(()) };
            if self.line.is_empty() {
                self.take_line(line, out)?;
            } else {
                self.hold(line)?;
                // Taken out and put back: the buffer's memory serves the next split line too.
                let mut whole = mem::take(&mut self.line);
                self.take_line(&whole, out)?;
                whole.clear();
                self.line = whole;
            }
            self.skip_lf = *terminator == b'\r';
            bytes = rest;
        }
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.line.len().saturating_add(bytes.len()) > LINE_BYTES_MAX {
            return Err(SseError::LineTooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn take_line(&mut self, line: &[u8], out: &mut Vec<SseEvent>) -> Result<(), SseError> {
        if line.len() > LINE_BYTES_MAX {
            return Err(SseError::LineTooLong);
        }
        if line.is_empty() {
            self.dispatch(out);
            return Ok(());
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':').and_then(|at| line.split_at_checked(at)) {
            Some((name, rest)) => {
                let value = rest.strip_prefix(b":").unwrap_or(rest);
                (name, value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, [].as_slice()),
        };
        match name {
            b"" | b"id" | b"retry" => {}
            b"data" => {
                if self.data.len().saturating_add(value.len()) >= EVENT_BYTES_MAX {
                    return Err(SseError::EventTooLarge);
                }
                if self.have_data {
                    self.data.push(b'\n');
                }
                self.have_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.event = (!value.is_empty()).then(|| String::from_utf8_lossy(value).into_owned());
            }
            _ => {
                let room = STRAY_BYTES_MAX.saturating_sub(self.stray.len());
                self.stray.extend(line.iter().chain(b"\n").take(room));
            }
        }
        Ok(())
    }

    fn dispatch(&mut self, out: &mut Vec<SseEvent>) {
        let event = self.event.take();
        if !mem::take(&mut self.have_data) {
            return;
        }
        let data = match String::from_utf8(mem::take(&mut self.data)) {
            Ok(data) => data,
            Err(error) => {
                self.lossy_events = self.lossy_events.saturating_add(1);
                String::from_utf8_lossy(error.as_bytes()).into_owned()
            }
        };
        // Some gateways wrap the upstream's comments in data lines.
        let start = data.trim_start();
        if start.is_empty() || start.starts_with(':') {
            return;
        }
        self.events = self.events.saturating_add(1);
        out.push(SseEvent { event, data });
    }
}

#[cfg(test)]
#[path = "sse_tests.rs"]
mod tests;
