#![allow(clippy::arithmetic_side_effects, clippy::type_complexity, clippy::string_slice)]

use super::*;
use proptest::prelude::*;

fn parse_chunks<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> (Vec<SseEvent>, String) {
    let mut parser = SseParser::new();
    let mut events = Vec::new();
    for chunk in chunks {
        parser.push(chunk, &mut events).unwrap();
    }
    parser.end(&mut events).unwrap();
    (events, parser.stray())
}

/// Whole, byte by byte and split at every offset.
fn parse(body: &[u8]) -> (Vec<SseEvent>, String) {
    let whole = parse_chunks(std::iter::once(body));
    assert_eq!(parse_chunks(body.chunks(1)), whole);
    for at in 0..=body.len() {
        let (one, two) = body.split_at(at);
        assert_eq!(parse_chunks([one, two].into_iter()), whole, "split at {at}");
    }
    whole
}

fn data(body: &[u8]) -> Vec<String> {
    parse(body).0.into_iter().map(|event| event.data).collect()
}

#[test]
fn framing_cases() {
    for (case, body, wanted) in [
        ("case_127_crlf", "data: {}\r\n\r\n", vec!["{}"]),
        ("case_128_cr_only", "data: a\r\rdata: b\r\r", vec!["a", "b"]),
        ("mixed line ends", "data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", vec!["a", "b", "c"]),
        ("case_130_no_space", "data:{\"a\":1}\n\n", vec!["{\"a\":1}"]),
        ("two spaces: one is stripped", "data:  a\n\n", vec![" a"]),
        ("case_134_several_data_lines", "data: a\ndata: b\n\n", vec!["a\nb"]),
        ("case_136_bom", "\u{feff}data: a\n\n", vec!["a"]),
        ("a bom is stripped once", "\u{feff}\u{feff}data: a\n\n", vec![]),
        ("case_139_comment_as_data", "data: : keepalive\n\ndata: a\n\n", vec!["a"]),
        ("case_140_comment_and_blank_line", "id:1\ndata:{}\n\n: ping\n\n", vec!["{}"]),
        ("case_142_bare_colon", ":\n\ndata: a\n\n", vec!["a"]),
        ("case_a1_processing", ": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\ndata: a\n\n", vec!["a"]),
        ("no blank line at the end", "data: a\n\ndata: b\n", vec!["a", "b"]),
        ("no line end at the end", "data: a\n\ndata: b", vec!["a", "b"]),
        ("data without a colon is empty", "data\n\ndata:\n\ndata: a\n\n", vec!["a"]),
        ("other fields", "id: 7\nretry: 100\nfoo: bar\ndata: a\n\n", vec!["a"]),
        ("a field's name is exact", " data: a\ndatax: b\n\n", vec![]),
        ("an empty event type", "event:\ndata: a\n\n", vec!["a"]),
        ("nothing", "", vec![]),
    ] {
        assert_eq!(data(body.as_bytes()), wanted, "{case}");
    }
}

#[test]
fn case_121_split_characters() {
    assert_eq!(data("data: 中é😀\n\n".as_bytes()), ["中é😀"]);
}

#[test]
fn invalid_utf8_is_replaced_and_counted() {
    let mut parser = SseParser::new();
    let mut events = Vec::new();
    parser.push(b"data: a\xE9b\n\n", &mut events).unwrap();
    assert_eq!((events[0].data.as_str(), parser.lossy_events()), ("a\u{fffd}b", 1));
}

#[test]
fn the_event_type_belongs_to_its_event_only() {
    let events = parse(b"event: error\ndata: a\n\nevent: x\n\ndata: b\n\n").0;
    let types: Vec<Option<&str>> = events.iter().map(|event| event.event.as_deref()).collect();
    assert_eq!(types, [Some("error"), None]);
}

#[test]
fn comments_are_bytes_but_no_events() {
    let mut parser = SseParser::new();
    let mut events = Vec::new();
    parser.push(b": keepalive\n\n", &mut events).unwrap();
    assert_eq!((parser.bytes(), parser.events(), events.len()), (13, 0, 0));
}

#[test]
fn what_is_no_event_stream_is_kept_to_a_limit() {
    let (events, stray) = parse(b"{\"error\":\n{\"message\":\"no\"}}");
    assert_eq!((events.len(), stray.as_str()), (0, "{\"error\":\n{\"message\":\"no\"}}\n"));
    let long = vec![b'x'; 3 * STRAY_BYTES_MAX];
    assert_eq!(parse_chunks(std::iter::once(long.as_slice())).1.len(), STRAY_BYTES_MAX);
}

#[test]
fn limits_hold_in_any_chunking() {
    let mut line = b"data: ".to_vec();
    line.resize(LINE_BYTES_MAX + 1, b'x');
    line.extend(b"\n\n");
    for size in [line.len(), 1 << 16] {
        let mut parser = SseParser::new();
        let mut events = Vec::new();
        let results: Vec<_> = line.chunks(size).map(|chunk| parser.push(chunk, &mut events)).collect();
        assert!(results.contains(&Err(SseError::LineTooLong)), "{size}");
        assert_eq!(parser.end(&mut events), Err(SseError::LineTooLong));
    }
    let mut many = Vec::new();
    for _ in 0..=EVENT_BYTES_MAX / 0x10_0000 {
        many.extend(b"data: ");
        many.resize(many.len() + 0x10_0000, b'x');
        many.push(b'\n');
    }
    assert_eq!(SseParser::new().push(&many, &mut Vec::new()), Err(SseError::EventTooLarge));
}

#[test]
fn an_event_of_ten_megabytes_passes() {
    let mut body = b"data: ".to_vec();
    body.resize(10_000_000, b'x');
    assert_eq!(parse_chunks(body.chunks(1000)).0[0].data.len(), 10_000_000 - 6);
}

proptest! {
    #[test]
    fn any_chunking_gives_the_same(body in "(data|event|id|x|)(:|: |)[a-z:\\r\\né😀\u{feff}]{0,40}(\\n|\\r|\\r\\n){0,3}data: z", cuts in prop::collection::vec(1_usize..9, 1..40)) {
        let whole = parse_chunks(std::iter::once(body.as_bytes()));
        let mut rest = body.as_bytes();
        let mut chunks = Vec::new();
        for cut in cuts {
            let (chunk, after) = rest.split_at(cut.min(rest.len()));
            chunks.push(chunk);
            rest = after;
        }
        chunks.push(rest);
        prop_assert_eq!(parse_chunks(chunks.into_iter()), whole);
    }

    #[test]
    fn any_bytes_do_no_harm(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let whole = parse_chunks(std::iter::once(body.as_slice()));
        prop_assert_eq!(parse_chunks(body.chunks(1)), whole);
    }

    #[test]
    fn line_ends_do_not_matter(lines in prop::collection::vec("(data: [a-z{}]{0,8}|event: [a-z]{0,4}|: c|)", 0..20)) {
        let with = |end: &str| parse_chunks(std::iter::once(lines.iter().map(|line| format!("{line}{end}")).collect::<String>().as_bytes()));
        prop_assert_eq!(with("\r\n"), with("\n"));
        prop_assert_eq!(with("\r"), with("\n"));
    }
}
